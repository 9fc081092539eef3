"""Define configurations of image-text models, whose parts the configuration classes of their own families read."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Self, TypeVar

from costproof.configs.config import NativeConfig, check_returns, check_type
from costproof.configs.reader import Section, shown
from costproof.ledger.errors import BadInput, CostproofError
from costproof.models.decoding.config import DecoderConfig
from costproof.models.encoding.config import EncoderConfig

VISION: Final = "vision_config"
TEXT: Final = "text_config"
P = TypeVar("P", bound=NativeConfig)


@dataclass(frozen=True, slots=True)
class ImageTextConfig(NativeConfig):
    """Configuration of a vision tower and a decoder, with the id of the image placeholder token."""

    vision: EncoderConfig
    text: DecoderConfig
    image_token: int
    waived: tuple[tuple[str, str], ...] = ()
    """Keys of the file that affect no cost, with the reason."""

    architecture: ClassVar[str]
    """Name of the class in transformers that the formulas describe."""
    unused_keys: ClassVar[Mapping[str, str]] = {}
    """Keys of this family that affect no cost, with the reason."""
    not_as_in_file: ClassVar[Mapping[str, str]] = {
        "text_config.tie_word_embeddings": "the class has the key of the whole, which is compared"
    }

    def symbols(self) -> dict[str, int]:
        """Return the values of this configuration by symbol, such as 4096 for ``text_hidden``."""
        return {**self.vision.symbols(), **self.text.symbols()}

    def normalised(self) -> dict[str, Any]:
        """Return all fields that affect a cost, as JSON data."""
        found = NativeConfig.normalised(self)
        return found | {key: part.normalised() for key, part in (("vision", self.vision), ("text", self.text))}

    def native(self) -> dict[str, Any]:
        parts = {VISION: self.vision, TEXT: self.text}
        return {
            **{key: {"model_type": part.model_type, **part.native()} for key, part in parts.items()},
            "image_token_id": self.image_token,
            "tie_word_embeddings": self.text.tied,
        }

    @classmethod
    def read(cls, data: object, problems: list[CostproofError]) -> Self:
        top = Section(data, "$", problems)
        top.waive(cls.unused_keys)
        top.fixed("architectures", [cls.architecture], None, why="no formulas for this class", default=None)
        check_type(top, cls.model_type)
        check_returns(top)
        config = cls.read_parts(top)
        own = top.finish(not_null=cls.not_null)
        config = replace(config, waived=(*config.waived, *own))
        problems += [] if problems else config.contradictions()
        return config

    @classmethod
    @abstractmethod
    def read_parts(cls, top: Section) -> Self:
        """Read the configurations of all parts; ``waived`` includes the waived keys of the parts."""

    def contradictions(self) -> list[CostproofError]:
        """Return an error for each combination of sizes that the class in transformers rejects or cannot run."""
        parts = {VISION: self.vision, TEXT: self.text}
        found = [_within(key, problem) for key, part in parts.items() for problem in part.contradictions()]
        if self.image_token >= self.text.vocab:
            expected = f"an id below the vocabulary's {self.text.vocab}"
            what = "the id of the image token is not in the vocabulary"
            found.append(BadInput(what, where="$.image_token_index", expected=expected, got=self.image_token))
        return found


def is_of(whole: Mapping[str, Any], key: str, kind: NativeConfig | type[NativeConfig]) -> bool:
    """Return whether a part's model type is ``kind``, absent, or that of the whole model, as in older files."""
    given = whole.get(key)
    stated = given.get("model_type") if isinstance(given, dict) else None
    return stated in (None, kind.model_type, whole.get("model_type"))


def read_part(top: Section, key: str, kind: type[P], given: object) -> tuple[P, tuple[tuple[str, str], ...]]:
    """Read the configuration of a part; return it, and the keys that it waives with their paths in the file.

    Args:
        key: of its section; empty if its keys are at the top level.
        given: its keys, completed by the defaults of the class in transformers.
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
    """Prefix the JSON path in an error about a submodel's configuration with its key in the whole file."""
    if key and problem.where is not None and problem.where.startswith("$"):
        problem.where = f"$.{key}{problem.where[1:]}"
    return problem
