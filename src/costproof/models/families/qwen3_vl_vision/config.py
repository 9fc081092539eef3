"""The configuration of Qwen3-VL's vision tower: all that decides a cost. The defaults are those of Qwen3-VL-8B."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from costproof.ledger.errors import BadInput, CostproofError
from costproof.models.encoding.config import ONE_CLASS, EncoderConfig
from costproof.models.section import Section


@dataclass(frozen=True, slots=True)
class Qwen3VlVisionConfig(EncoderConfig):
    """Sizes, and the layers behind which a merger stands."""

    hidden: int = 1152
    intermediate: int = 4304
    layers: int = 27
    heads: int = 16
    activation: str = "gelu_pytorch_tanh"
    architecture: str = "Qwen3VLVisionModel"
    out: int = 4096
    """Width of the decoder that reads the tokens."""
    patch: int = 16
    frames: int = 2
    """Frames that a patch holds; of an image the same one."""
    merge: int = 2
    """Patches along a side that make one token."""
    channels: int = 3
    table: int = 2304
    """Entries of the table of positions."""
    deep: tuple[int, ...] = (8, 16, 24)
    """Layers, from 0, whose patches are merged as well."""

    not_drawn: ClassVar = ONE_CLASS
    model_type: ClassVar[str] = "qwen3_vl_vision"
    architectures: ClassVar = {"Qwen3VLVisionModel": False}
    keys: ClassVar = {
        **EncoderConfig.keys,
        "layers": "depth",
        "heads": "num_heads",
        "out": "out_hidden_size",
        "patch": "patch_size",
        "frames": "temporal_patch_size",
        "merge": "spatial_merge_size",
        "channels": "in_channels",
        "table": "num_position_embeddings",
    }
    class_defaults: ClassVar = {"out_hidden_size": 3584}
    unused_keys: ClassVar = {"rope_parameters": "decides no cost", "rope_theta": "decides no cost"}
    prefix: ClassVar[str] = "vision"

    @property
    def volume(self) -> int:
        """Elements of a patch."""
        return self.channels * self.frames * self.patch**2

    def sizes(self) -> dict[str, int]:
        """Values of the configuration's symbols, without the prefix."""
        own = {"out": self.out, "volume": self.volume, "merged": self.merge**2, "positions": self.table}
        return EncoderConfig.sizes(self) | own

    def native(self) -> dict[str, Any]:
        """Keyword arguments for the configuration class of transformers."""
        return EncoderConfig.native(self) | {"deepstack_visual_indexes": list(self.deep)}

    @classmethod
    def read_fields(cls, top: Section, read: Mapping[str, Any]) -> dict[str, Any]:
        """The layers with a merger."""
        key = "deepstack_visual_indexes"
        return {"deep": top.integers(key, (8, 16, 24), least=0, most=max(0, read["layers"] - 1))}

    def contradictions(self) -> list[CostproofError]:
        """Sizes that transformers' class refuses, or cannot run."""
        found = EncoderConfig.contradictions(self)
        if self.head_dim % 4:
            where, expected = "$.num_heads", "heads whose width is a multiple of 4"
            found.append(
                BadInput("rows and columns are rotated in pairs", where=where, expected=expected, got=self.heads)
            )
        return found

    def __post_init__(self) -> None:
        """A file of a certificate has a list."""
        object.__setattr__(self, "deep", tuple(self.deep))
