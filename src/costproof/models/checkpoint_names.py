"""Map the names of a model's modules to those of its published checkpoint, where transformers renames on loading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.attributes import attribute

if TYPE_CHECKING:
    from torch import nn

_STACKS: Final = {"gate_up_proj": ("gate_proj", "up_proj"), "up_proj": ("up_proj",), "down_proj": ("down_proj",)}
"""Parameter of a stack of experts -> the linear layers of an expert in the checkpoint, unless transformers says."""
_EXPERT: Final = ".experts.*."


@dataclass(frozen=True, slots=True)
class CheckpointNames:
    """The reverse of the renamings and conversions that transformers applies to a checkpoint on loading."""

    renamings: tuple[Any, ...] = ()
    """Reversed renamings, in the order in which they apply."""
    stacks: Mapping[str, tuple[str, ...]] | None = None
    """Parameter of a stack of experts -> linear layers of an expert; ``None``: transformers says nothing of stacks."""

    def parameter(self, name: str) -> str:
        """Return the name of a parameter in the checkpoint."""
        for renaming in self.renamings:
            name, _ = renaming.rename_source_key(name)
        return name

    def module(self, path: str) -> str:
        """Return the path of a module with a weight in the checkpoint."""
        named, dot, last = self.parameter(f"{path}.weight").rpartition(".")
        return named if dot and last == "weight" else path

    def layers_of(self, stack: str) -> tuple[str, ...]:
        """Return the linear layers that an expert has in the checkpoint for a parameter of a stack; empty: no stack."""
        return (self.stacks or {}).get(stack) or _STACKS.get(stack, ())

    def is_split(self, stack: str) -> bool:
        """Return whether the checkpoint is known to have a linear layer for each expert rather than the stack."""
        return stack in (self.stacks or {})


def checkpoint_names(model: nn.Module) -> CheckpointNames:
    """Return the names of a model's checkpoint; for a model that is not from transformers, its own."""
    from transformers import PreTrainedModel
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter

    if not isinstance(model, PreTrainedModel):
        return CheckpointNames()
    transforms = get_model_conversion_mapping(model, add_legacy=False)
    renamings = [t.reverse_transform() for t in reversed(transforms) if not isinstance(t, WeightConverter)]
    stacks = {}
    for transform in transforms:
        sources, targets = list(attribute(transform, "source_patterns")), list(attribute(transform, "target_patterns"))
        if isinstance(transform, WeightConverter) and len(targets) == 1 and all(_EXPERT in f".{s}" for s in sources):
            layers = tuple(source.partition("experts.*.")[2].removesuffix(".weight") for source in sources)
            stacks[targets[0].rpartition(".")[2]] = layers
    return CheckpointNames(tuple(renamings), stacks or None)
