"""Define configurations of encoders: the fields that families share, and how a ``config.json`` is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Final, Self

from costproof.configs.config import NativeConfig, activation, check_padding, check_type, yes_or_no
from costproof.configs.reader import LARGEST, MOST_LAYERS, Section, renamed, shown
from costproof.ledger.errors import BadInput, CostproofError

NO_CLASSIFIER: Final = {"labels": "the class has no classifier"}
ONE_CLASS: Final = {"architecture": "the formulas describe one class", **NO_CLASSIFIER}
"""Fields that no draw of a proof varies, for a family with a single class, with the reason."""


@dataclass(frozen=True, slots=True)
class EncoderConfig(NativeConfig):
    """Sizes that every encoder has, and the name of its class in transformers."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    activation: str
    architecture: str
    """Name of the class in transformers."""
    labels: int = 0
    """Number of classes of the classifier; 0 if the class has no classifier."""
    waived: tuple[tuple[str, str], ...] = ()
    """Keys of the file that affect no cost, with the reason."""

    architectures: ClassVar[Mapping[str, bool]]
    """Classes of transformers that the formulas describe, and whether each has a classifier.

    The first is the default of a file that names no class.
    """
    keys: ClassVar[Mapping[str, str]] = {
        "hidden": "hidden_size",
        "intermediate": "intermediate_size",
        "layers": "num_hidden_layers",
        "heads": "num_attention_heads",
        "activation": "hidden_act",
    }
    """Keys in a file, by field.

    The default of an omitted key is that of the class in transformers: the default of the field, or the entry in
    :attr:`class_defaults`.
    """
    class_defaults: ClassVar[Mapping[str, Any]] = {}
    """Defaults of the class in transformers that differ from the field's default, by key."""
    unused_keys: ClassVar[Mapping[str, str]] = {}
    """Keys of this family that affect no cost, with the reason."""
    reads_head_dim: ClassVar[bool] = False
    """Whether the class reads ``head_dim`` from a file that has this key."""
    prefix: ClassVar[str]
    """Prefix of the symbols of this configuration, for example ``vision``."""

    @property
    def head_dim(self) -> int:
        """Return the width of one head."""
        return self.hidden // self.heads

    def sizes(self) -> dict[str, int]:
        """Return the values by symbol, without the prefix of the modality (``hidden`` for ``vision_hidden``)."""
        named = {name: getattr(self, name) for name in ("hidden", "intermediate", "layers", "heads", "head_dim")}
        return named | ({"labels": self.labels} if self.labels else {})

    def symbols(self) -> dict[str, int]:
        """Return the values of this configuration by symbol, such as 4096 for ``text_hidden``."""
        return {f"{self.prefix}_{name}": value for name, value in self.sizes().items()}

    def native(self) -> dict[str, Any]:
        return renamed(self, self.keys) | ({"num_labels": self.labels} if self.labels else {})

    @classmethod
    def read(cls, data: object, problems: list[CostproofError]) -> Self:
        top = Section(data, "$", problems)
        top.waive(cls.unused_keys)
        check_type(top, cls.model_type)
        read: dict[str, Any] = {f.name: cls.read_field(top, f.name, f.type) for f in fields(cls) if f.name in cls.keys}
        config = cls(**read, **cls.read_class(top), **cls.read_fields(top, read))
        if cls.reads_head_dim:
            top.fixed("head_dim", config.head_dim, why="the formulas describe heads that share the width")
        config = replace(config, waived=top.finish(not_null=cls.not_null))
        problems += [] if problems else config.contradictions()
        return config

    @classmethod
    def read_field(cls, top: Section, name: str, kind: object) -> Any:
        """Read one field from its key in the file, with the default of the class for an omitted key."""
        key = cls.keys[name]
        default = cls.class_defaults.get(key, cls.__dataclass_fields__[name].default)
        if kind == "bool":
            return yes_or_no(top, key, default=default)
        if kind == "str":
            return activation(top, key, default)
        return top.integer(key, default, most=MOST_LAYERS if name == "layers" else LARGEST)

    @classmethod
    def read_class(cls, top: Section) -> dict[str, Any]:
        """Read the class name from ``architectures``, and the number of labels of its classifier."""
        named = top.take("architectures", None) or [next(iter(cls.architectures))]
        name = named[0] if isinstance(named, list) else named
        if not isinstance(name, str) or name not in cls.architectures:
            expected = " or ".join(cls.architectures)
            top.problem("no formulas for this class", "architectures", expected=expected, got=shown(name))
            return {"architecture": next(iter(cls.architectures))}
        names, labels = top.take("id2label", None), top.integer("num_labels", 2)
        if isinstance(names, dict) and "num_labels" not in top.data:
            labels = len(names)  # their number goes before their names, as in transformers
        if not cls.architectures[name]:
            return {"architecture": name, "labels": 0}
        if not labels:
            top.problem("a classifier needs classes", "id2label", expected="at least one name", got=shown(names))
        return {"architecture": name, "labels": labels}

    @classmethod
    def read_fields(cls, top: Section, read: Mapping[str, Any]) -> dict[str, Any]:
        """Read the fields of the family that have no entry in :attr:`keys`."""
        return {}

    def contradictions(self) -> list[CostproofError]:
        """Return an error for each combination of sizes that the class in transformers rejects or cannot run."""
        if self.hidden % self.heads == 0:
            return []
        where, expected = f"$.{self.keys['heads']}", f"a divisor of {self.hidden}"
        return [BadInput("the heads must divide the width", where=where, expected=expected, got=self.heads)]


@dataclass(frozen=True, slots=True)
class VisionConfig(EncoderConfig):
    """Configuration of an encoder of square images, cut into square patches."""

    image: int = 224
    """Side, in pixels, of the images for which the position table was made."""
    patch: int = 16
    """Side of a square patch, in pixels."""
    channels: int = 3

    keys: ClassVar[Mapping[str, str]] = {
        **EncoderConfig.keys,
        "image": "image_size",
        "patch": "patch_size",
        "channels": "num_channels",
    }
    prefix: ClassVar[str] = "vision"
    two_sides: ClassVar[bool] = True
    """Whether files may give an image or patch size as a list of two equal sides."""
    class_token: ClassVar[bool] = True
    """Whether a class token precedes the patches."""

    @property
    def grid(self) -> int:
        """Return the number of patches along a side of the images for which the position table was made."""
        return self.image // self.patch

    def sizes(self) -> dict[str, int]:
        positions = self.grid**2 + int(self.class_token)
        own = {"positions": positions, "patch": self.patch, "channels": self.channels}
        return EncoderConfig.sizes(self) | own

    @classmethod
    def read_field(cls, top: Section, name: str, kind: object) -> Any:
        """Read one field from the file; an image or patch size may be a list of two equal sides."""
        key = cls.keys[name]
        sides = top.data.get(key)
        if (
            cls.two_sides
            and name in ("image", "patch")
            and isinstance(sides, list)
            and len(sides) == 2
            and sides[0] == sides[1]
        ):
            top.known.add(key)
            return top.check_integer(sides[0], key)
        return super(VisionConfig, cls).read_field(top, name, kind)

    def contradictions(self) -> list[CostproofError]:
        found = EncoderConfig.contradictions(self)
        if self.image < self.patch:
            expected = f"at least a patch, {self.patch}"
            found.append(
                BadInput("the image is smaller than one patch", where="$.image_size", expected=expected, got=self.image)
            )
        return found


@dataclass(frozen=True, slots=True)
class TextEncoderConfig(EncoderConfig):
    """Configuration of an encoder of text with learned positions."""

    vocab: int = 30522
    max_positions: int = 512

    keys: ClassVar[Mapping[str, str]] = {
        **EncoderConfig.keys,
        "vocab": "vocab_size",
        "max_positions": "max_position_embeddings",
    }
    prefix: ClassVar[str] = "text"

    @property
    def longest(self) -> int:
        """Return the maximum text length in tokens."""
        return self.max_positions

    @property
    def masked(self) -> bool:
        """Return whether the class is a masked language model, whose head is tied to the word embedding."""
        return self.architecture.endswith("ForMaskedLM")

    def sizes(self) -> dict[str, int]:
        """Return the values by symbol, without the prefix of the modality (``hidden`` for ``text_hidden``)."""
        return EncoderConfig.sizes(self) | {"vocab": self.vocab, "positions": self.max_positions}

    @classmethod
    def read_class(cls, top: Section) -> dict[str, Any]:
        """Read the class name, and check that the file describes an encoder."""
        for key in ("is_decoder", "add_cross_attention"):
            top.fixed(key, False, why="the formulas describe an encoder")
        top.fixed("tie_word_embeddings", True, why="the formulas describe one table for both ends")
        vocab = top.data.get("vocab_size", cls.__dataclass_fields__["vocab"].default)
        check_padding(top, vocab if isinstance(vocab, int) else LARGEST)
        top.fixed("chunk_size_feed_forward", 0, why="the formulas describe MLPs on all tokens at once")
        return super(TextEncoderConfig, cls).read_class(top)
