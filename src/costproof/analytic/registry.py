"""The layers that have a formula: found by name, loaded when needed, open to other distributions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from typing import Final

from costproof.analytic.costs import Layer
from costproof.analytic.symbols import CONFIG_SYMBOLS, WORKLOAD_SYMBOLS
from costproof.ledger.capture import FormulaDoc, SymbolDoc
from costproof.ledger.errors import BadInput

ENTRY_POINT_GROUP: Final = "costproof.layers"

Thunk = Callable[[], type[Layer]]

_OURS: Final[dict[str, str]] = {
    "activation": "mlp:Activation",
    "attention": "attention:Attention",
    "class_and_positions": "position_embedding:ClassAndPositions",
    "container": "container:Container",
    "conv2d": "conv2d:Conv2d",
    "embedding": "embedding:Embedding",
    "expert_loop": "looped_experts:ExpertLoop",
    "experts": "experts:Experts",
    "feature_concat": "image_tokens:FeatureConcat",
    "gated_mlp": "gated_mlp:GatedProduct",
    "image_tokens": "image_tokens:ImageTokens",
    "layer_norm": "layer_norm:LayerNorm",
    "layer_norm_2d": "layer_norm_2d:LayerNorm2d",
    "linear": "linear:Linear",
    "lm_head": "lm_head:LmHead",
    "looped_experts": "looped_experts:LoopedExperts",
    "page_in_place": "page_in_place:PageInPlace",
    "patch_embedding": "patch_embedding:PatchEmbedding",
    "position_embedding": "position_embedding:PositionEmbedding",
    "relative_position": "relative_position:RelativePosition",
    "residual": "residual:Residual",
    "rms_norm": "rms_norm:RmsNorm",
    "rotary": "rotary:Rotary",
    "rotary_product": "rotary:RotaryProduct",
    "rotary_table": "rotary:RotaryTable",
    "router": "router:Router",
    "window": "window:WindowPartition",
}


def _thunk(address: str) -> Thunk:
    module, _, attribute = address.partition(":")

    def load() -> type[Layer]:
        found: type[Layer] = getattr(import_module(f"costproof.analytic.{module}"), attribute)
        return found

    return load


class LayerRegistry:
    """Name -> layer class, loaded on first use. Two owners of one name are an error that names both."""

    def __init__(self) -> None:
        self._thunks: dict[str, tuple[str, Thunk]] = {}
        self._scanned = False

    def register(self, name: str, thunk: Thunk, *, owner: str) -> None:
        """Add a layer.

        Raises:
            BadInput: the name is taken.
        """
        if name in self._thunks:
            raise BadInput(
                "two layers have the same name",
                where=f"layer {name!r}",
                expected=f"the one of {self._thunks[name][0]}",
                got=f"another one of {owner}",
                fix="rename one of them",
            )
        self._thunks[name] = (owner, thunk)

    def names(self) -> tuple[str, ...]:
        """All registered names, those of other distributions included, sorted."""
        self._scan()
        return tuple(sorted(self._thunks))

    def owner(self, name: str) -> str:
        """The distribution that registered the name."""
        return self._entry(name)[0]

    def get(self, name: str) -> type[Layer]:
        """The class of a layer.

        Raises:
            BadInput: no such layer.
        """
        return self._entry(name)[1]()

    def _entry(self, name: str) -> tuple[str, Thunk]:
        self._scan()
        if name not in self._thunks:
            raise BadInput("no such layer", where=name, expected="one of " + ", ".join(sorted(self._thunks)))
        return self._thunks[name]

    def _scan(self) -> None:
        """Entry points are looked for once, and only when somebody asks."""
        if self._scanned:
            return
        self._scanned = True
        for point in entry_points(group=ENTRY_POINT_GROUP):
            owner = point.dist.name if point.dist else point.value
            self.register(point.name, point.load, owner=owner)


LAYERS: Final = LayerRegistry()
"""The registry that formulas and documentation use."""

for _name, _address in _OURS.items():
    LAYERS.register(_name, _thunk(_address), owner="costproof")


def formula_docs(registry: LayerRegistry = LAYERS) -> dict[str, FormulaDoc]:
    """Title, derivation and source of every layer, by its registered name."""
    docs = {}
    for name in registry.names():
        layer = registry.get(name)
        docs[name] = FormulaDoc(title=layer.title, derivation=inspect.getdoc(layer) or "", source=layer.source)
    return docs


def symbol_docs() -> dict[str, SymbolDoc]:
    """LaTeX and meaning of every symbol of workload and configuration."""
    return {**WORKLOAD_SYMBOLS, **CONFIG_SYMBOLS}
