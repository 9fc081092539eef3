"""DeepSpeed's ``get_model_profile``: patched functions, FLOPs with elementwise work."""

from __future__ import annotations

from torch import Tensor

from costproof.ledger.counter import CounterInfo
from costproof.tracers.counters.patched import reading
from costproof.tracers.counters.protocol import Counted, counted
from costproof.tracers.counters.surroundings import Positional


class DeepSpeed:
    """Rows are (module, function)."""

    info = CounterInfo("deepspeed", "deepspeed", ("0.19.7", "0.19.8"), "flop", "operator", einsum="four digits")

    def count(self, model: Positional, args: tuple[Tensor, ...]) -> Counted:
        """Profile one forward."""
        from deepspeed.profiling.flops_profiler import profiler

        with reading(model, profiler.module_flop_count, profiler.module_mac_count) as rows:
            total, _, _ = profiler.get_model_profile(
                model, args=list(args), print_profile=False, as_string=False, warm_up=0
            )
        return counted(int(total), rows)


COUNTER = DeepSpeed()
