"""Parts of an exported graph beside plain calls: graphs inside operators, and work whose shapes lack a batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from costproof.opgraph.graph import Value

if TYPE_CHECKING:
    from torch import fx

# Higher-order operators that run the one graph they are given, once, on the arguments after it.
_REGIONS: Final = (
    "wrap_with_autocast", "wrap_with_set_grad_enabled", "wrap", "wrap_activation_checkpoint",
    "tag_activation_checkpoint",
)  # fmt: skip


def inner_graph(node: fx.Node) -> tuple[fx.Graph, tuple[Any, ...]] | None:
    """The graph that a higher-order operator runs once, and what it runs it on; ``None`` for any other call."""
    arguments: tuple[Any, ...] = node.args
    graphs = [i for i, a in enumerate(arguments) if getattr(a, "op", None) == "get_attr"]
    if getattr(node.target, "__name__", "") not in _REGIONS or len(graphs) != 1 or node.kwargs:
        return None
    (at,) = graphs
    inner: Any = getattr(node.graph.owning_module, arguments[at].target)
    return inner.graph, arguments[at + 1 :]


def autocast_dtype(node: fx.Node, outside: str) -> str:
    """Return the dtype that autocast has inside of a region; empty: none.

    An export on meta does not cast there, as meta is none of the devices that autocast is for.

    Args:
        outside: that of the region around it.
    """
    if getattr(node.target, "__name__", "") != "wrap_with_autocast":
        return outside
    _, dtype, enabled, *_ = node.args
    return str(dtype).removeprefix("torch.") if enabled else ""


class Mapped:
    """What runs inside ``torch.vmap``: an export shows it at the shapes of one item, so it may not be counted so."""

    def __init__(self) -> None:
        self.levels: dict[str, frozenset[int]] = {}
        """Values inside, by id: in which calls of ``torch.vmap``."""

    def name(self, name: str, tensors: Iterable[Value], outputs: Iterable[Value], attrs: Mapping[str, Any]) -> str:
        """The name of an operator: ``vmap`` for one on values without their batch."""
        inside = frozenset[int]().union(*(self.levels.get(t.id, ()) for t in tensors))
        if name == "_add_batch_dim":
            inside |= {attrs["2"]}
        elif not inside:
            return name
        left = inside - {attrs["1"]} if name == "_remove_batch_dim" else inside
        self.levels |= {v.id: left for v in outputs if left}
        return "vmap"
