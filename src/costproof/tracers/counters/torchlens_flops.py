"""TorchLens's own FLOP figures, operator by operator."""

from __future__ import annotations

from torch import Tensor

from costproof.ledger.counter import CounterInfo
from costproof.tracers.counters.patched import BESIDE
from costproof.tracers.counters.protocol import Counted, Row, counted
from costproof.tracers.counters.surroundings import Positional, inner_path


class TorchLensFlops:
    """Rows are (module, function); an operator that it has no figure for is none."""

    info = CounterInfo("torchlens", "torchlens", ("2.36.0", "2.36.1"), "flop", "operator")

    def count(self, model: Positional, args: tuple[Tensor, ...]) -> Counted:
        """Trace one forward, structure only."""
        import torchlens
        from torchlens.options import CaptureOptions

        options = CaptureOptions(
            structure_only=True,
            recurrence_detection=False,
            compute_input_output_distances=False,
            save_code_context=False,
            inference_only=True,
        )
        trace = torchlens.trace(model, list(args), {}, capture=options)
        rows = []
        for record in trace.ops:
            figure = record.flops_forward
            if figure is not None and int(figure) != 0:
                stack = record.module_call_stack
                module = inner_path(str(stack[-1]).rsplit(":", 1)[0]) if stack else ""
                products, name = 2 * int(record.macs_forward or 0), str(record.func_name)
                if 0 < products < int(figure):
                    rows.append(Row(module, f"{name}, {BESIDE}", int(figure) - products))
                rows.append(Row(module, name, products if 0 < products < int(figure) else int(figure)))
        unknown = sorted({str(op) for op in getattr(trace, "unknown_flop_ops", None) or ()})
        notes = (f"says it has no figure for {len(unknown)} kinds of operators",) if unknown else ()
        return counted(int(trace.total_flops_forward), rows, notes)


COUNTER = TorchLensFlops()
