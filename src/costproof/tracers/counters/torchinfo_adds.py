"""torchinfo's "mult-adds": sizes of weights times the first dimension of outputs."""

from __future__ import annotations

from torch import Tensor

from costproof.ledger.counter import UNATTRIBUTED, CounterInfo
from costproof.tracers.counters.protocol import Counted, Row, counted
from costproof.tracers.counters.surroundings import Positional, bias_part, paths_of


class Torchinfo:
    """Rows are modules."""

    info = CounterInfo("torchinfo", "torchinfo", ("1.7.2", "1.8.0"), "mac", "module", rows="first")

    def count(self, model: Positional, args: tuple[Tensor, ...]) -> Counted:
        import torchinfo

        summary = torchinfo.summary(model, input_data=list(args), verbose=0, depth=99, device=args[0].device)
        paths = paths_of(model)
        rows = []
        for layer in summary.summary_list:
            if layer.is_leaf_layer and layer.macs:
                path, value = paths.get(id(layer.module), UNATTRIBUTED), int(layer.macs)
                bias = bias_part(layer.module, value)
                rows += [Row(path, "", value - bias), Row(path, "bias", bias)]
        return counted(int(summary.total_mult_adds), rows)


COUNTER = Torchinfo()
