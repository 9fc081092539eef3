"""calflops: a descendant of DeepSpeed's profiler without attention products."""

from __future__ import annotations

from torch import Tensor

from costproof.ledger.counter import CounterInfo
from costproof.tracers.counters.patched import reading
from costproof.tracers.counters.protocol import Counted, counted
from costproof.tracers.counters.surroundings import Positional


class Calflops:
    """Rows are (module, function)."""

    info = CounterInfo("calflops", "calflops", ("0.3.1", "0.3.2"), "flop", "operator", einsum="four digits")

    def count(self, model: Positional, args: tuple[Tensor, ...]) -> Counted:
        """Count one forward."""
        from calflops import calculate_flops, calculate_pipline

        with reading(model, calculate_pipline.module_flop_count, calculate_pipline.module_mac_count) as rows:
            total, _, _ = calculate_flops(
                model, args=list(args), print_results=False, output_as_string=False, output_precision=None
            )
        return counted(int(total), rows)


COUNTER = Calflops()
