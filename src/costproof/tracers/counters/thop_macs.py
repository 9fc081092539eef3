"""thop as ultralytics maintains it: hooks on modules, a mode for functional products, MACs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from costproof.ledger.counter import CounterInfo
from costproof.tracers.counters.protocol import Counted, Row, counted, own
from costproof.tracers.counters.surroundings import Positional, inner_path


class Thop:
    """Rows are modules; functional products are in the total alone."""

    info = CounterInfo("thop", "ultralytics-thop", ("2.2.0", "2.2.1", "2.2.2", "2.2.3"), "mac", "module")

    def count(self, model: Positional, args: tuple[Tensor, ...]) -> Counted:
        from thop import profile

        total, _, tree = profile(model, inputs=args, verbose=False, ret_layer_info=True)
        rows = [Row(inner_path(path), kind, value) for path, kind, value in own(dict(_figures(tree, "")))]
        return counted(int(total), rows)


def _figures(tree: Mapping[str, Any], path: str) -> Iterator[tuple[str, dict[str, int]]]:
    for name, (value, _, below) in tree.items():
        here = f"{path}.{name}" if path else name
        yield here, {"": int(value)}
        yield from _figures(below, here)


COUNTER = Thop()
