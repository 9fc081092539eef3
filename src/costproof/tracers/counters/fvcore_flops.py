"""fvcore's ``FlopCountAnalysis``: a jit trace, one multiply-accumulate per "flop"."""

from __future__ import annotations

import logging

from torch import Tensor

from costproof.ledger.counter import CounterInfo
from costproof.tracers.counters.protocol import Counted, Row, counted, own
from costproof.tracers.counters.surroundings import Positional, inner_path, jit_on_meta


class Fvcore:
    """Rows are (module, operator)."""

    info = CounterInfo("fvcore", "fvcore", ("0.1.5.post20221221",), "mac", "operator", einsum="four digits")

    def count(self, model: Positional, args: tuple[Tensor, ...]) -> Counted:
        from fvcore.nn import FlopCountAnalysis

        # The tool and the tracer below it warn once per operator; what they would say is in the rows.
        before = logging.root.manager.disable
        logging.disable(logging.ERROR)
        try:
            with jit_on_meta():
                analysis = FlopCountAnalysis(model, args)
                analysis.unsupported_ops_warnings(False)
                analysis.uncalled_modules_warnings(False)
                total = int(analysis.total())
                modules = analysis.by_module_and_operator()
                skipped = dict(analysis.unsupported_ops())
        finally:
            logging.disable(before)
        figures = {path: {kind: int(v) for kind, v in operators.items()} for path, operators in modules.items()}
        rows = [Row(inner_path(f".{path}"), kind, value) for path, kind, value in own(figures)]
        notes = tuple(f"says it skipped {name} ({calls} calls)" for name, calls in sorted(skipped.items()))
        return counted(total, rows, notes)


COUNTER = Fvcore()
