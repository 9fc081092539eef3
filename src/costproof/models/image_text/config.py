"""Configurations of models of images and text: a section for each part, read as the part's own family reads it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Self, TypeVar

from costproof.ledger.errors import BadInput, CostproofError
from costproof.models.decoding.config import DecoderConfig
from costproof.models.encoding.config import EncoderConfig
from costproof.models.native import NativeConfig, check_type
from costproof.models.section import Section, shown

VISION: Final = "vision_config"
TEXT: Final = "text_config"
P = TypeVar("P", bound=NativeConfig)


@dataclass(frozen=True, slots=True)
class ImageTextConfig(NativeConfig):
    """A vision tower, a decoder, and the token that holds the place of an image's features in a prompt."""

    vision: EncoderConfig
    text: DecoderConfig
    image_token: int
    waived: tuple[tuple[str, str], ...] = ()
    """Keys of the file that were read and not used, with the reason."""

    architecture: ClassVar[str]
    """The class of transformers that the formulas describe."""
    unused_keys: ClassVar[Mapping[str, str]] = {}
    """Keys of this family that decide no cost, with the reason."""

    def symbols(self) -> dict[str, int]:
        """Values of the configuration's symbols, as the formulas name them."""
        return {**self.vision.symbols(), **self.text.symbols()}

    def normalised(self) -> dict[str, Any]:
        """All that decides a cost, as JSON data."""
        found = NativeConfig.normalised(self)
        return found | {key: part.normalised() for key, part in (("vision", self.vision), ("text", self.text))}

    def native(self) -> dict[str, Any]:
        """Keyword arguments for the configuration class of transformers."""
        parts = {VISION: self.vision, TEXT: self.text}
        return {
            **{key: {"model_type": part.model_type, **part.native()} for key, part in parts.items()},
            "image_token_id": self.image_token,
            "tie_word_embeddings": self.text.tied,
        }

    @classmethod
    def read(cls, data: object, problems: list[CostproofError]) -> Self:
        """A model in the value of a file."""
        top = Section(data, "$", problems)
        top.waive(cls.unused_keys)
        top.fixed("architectures", [cls.architecture], None, why="no formulas for this class", default=None)
        check_type(top, cls.model_type)
        config = cls.parts(top)
        own = top.finish()
        config = replace(config, waived=(*config.waived, *own))
        problems += [] if problems else config.contradictions()
        return config

    @classmethod
    @abstractmethod
    def parts(cls, top: Section) -> Self:
        """All fields; what the parts waive is among ``waived`` already."""

    def contradictions(self) -> list[CostproofError]:
        """Sizes that the classes of transformers refuse, or cannot run."""
        parts = {VISION: self.vision, TEXT: self.text}
        found = [_within(key, problem) for key, part in parts.items() for problem in part.contradictions()]
        if self.image_token >= self.text.vocab:
            expected = f"an id below the vocabulary's {self.text.vocab}"
            what = "the token of an image has no row in the table"
            found.append(BadInput(what, where="$.image_token_index", expected=expected, got=self.image_token))
        return found


def is_of(whole: Mapping[str, Any], key: str, kind: NativeConfig | type[NativeConfig]) -> bool:
    """Whether a part of a file is of a kind: it says so, says nothing, or has the type of the whole, as older files."""
    given = whole.get(key)
    said = given.get("model_type") if isinstance(given, dict) else None
    return said in (None, kind.model_type, whole.get("model_type"))


def part(top: Section, key: str, kind: type[P], given: object) -> tuple[P, tuple[tuple[str, str], ...]]:
    """One part of the model, and what it waives at its place in the file.

    Args:
        key: of its section; empty: its keys stand beside those of the whole.
        given: its keys, with what the class of transformers takes for those that a file leaves out.
    """
    own: list[CostproofError] = []
    if not isinstance(given, dict):
        top.problem("this must be an object", key, expected="a JSON object", got=shown(given))
    data = {"model_type": kind.model_type, **(given if isinstance(given, dict) else {})}
    if is_of(top.data, key, kind):
        data["model_type"] = kind.model_type
    made = kind.read(data, own)
    top.problems += [_within(key, problem) for problem in own] if isinstance(given, dict) else []
    path = f"$.{key}" if key else "$"
    if key:
        top.below.append((path, frozenset(getattr(kind, "keys", {}).values()), data))
    return replace(made, waived=()), tuple((path + place[1:], why) for place, why in made.waived)


def _within(key: str, problem: CostproofError) -> CostproofError:
    """A problem of a part, at its place in the file of the whole."""
    if key and problem.where is not None and problem.where.startswith("$"):
        problem.where = f"$.{key}{problem.where[1:]}"
    return problem
