"""Define the base class of text encoders, which run on a batch of texts of one length."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeVar, get_args

from costproof.algebra.symbols import sym
from costproof.analytic.compose import ModulePart
from costproof.analytic.pooling import FirstTokenPooler
from costproof.analytic.symbols import TEXT_SYMBOLS
from costproof.ledger.capture import SymbolDoc
from costproof.ledger.errors import BadInput, CostproofError
from costproof.ledger.node import Ledger
from costproof.ledger.workload import FLOAT_BYTES, AttentionKind, TensorSpec, Workload
from costproof.models import settings as common
from costproof.models.encoding import STAGE
from costproof.models.encoding.config import TextEncoderConfig
from costproof.models.encoding.formulas import TextEncoderStyle, encoder_ledger, text_encoder, text_tape
from costproof.models.encoding.target import EncoderTarget, Tensors
from costproof.models.specs import SymbolicSize
from costproof.models.target import NamedWorkload, Setting

if TYPE_CHECKING:
    from costproof.analytic.memory_tape import MemoryTape
    from costproof.models.encoding.domain import Domain

_BATCH, _LENGTH = 3, 37
"""Example batch and text length of exports: unequal and above 1, so that torch.export keeps both symbolic."""
PRESETS: Final = (
    NamedWorkload("text", "a text of 512 tokens", {"text": 512}, default=True),
    NamedWorkload("sentence", "a text of 32 tokens", {"text": 32}),
)
C = TypeVar("C", bound=TextEncoderConfig)


@dataclass(frozen=True, slots=True)
class TextTarget(EncoderTarget[C]):
    """Base class of targets: a text encoder of transformers in a given configuration."""

    input_settings: ClassVar[tuple[Setting, ...]] = (common.SEQ_LEN,)
    attentions: ClassVar[tuple[AttentionKind, ...]] = get_args(AttentionKind)
    prefix: ClassVar[str]
    """Module path of the encoder in classes with a head, followed by a dot."""
    pools: ClassVar[bool] = True
    """Whether the class without a head has a pooler of the first token."""
    named: ClassVar[tuple[NamedWorkload, ...]] = PRESETS
    notation: ClassVar[dict[str, SymbolDoc]] = TEXT_SYMBOLS

    @abstractmethod
    def style(self) -> TextEncoderStyle:
        """Return the differences of the layers from those of BERT."""

    @abstractmethod
    def names(self, path: str) -> Mapping[str, str]:
        """Return the module paths of an encoder at the module path ``path``, by role."""

    @abstractmethod
    def head(self) -> tuple[ModulePart, ...]:
        """Return the parts after the last layer: masked-word head or classifier, and the root module."""

    def formulas(self, workload: Workload) -> Ledger:
        config, texts, b, width = self.config, sym("B"), sym("b"), sym("text_hidden")
        parts = text_encoder(config, self.style(), eager=workload.attention == "eager")
        if config.masked or config.labels:
            returned = texts * (sym("S") * sym("text_vocab") if config.masked else sym("text_labels"))
            return encoder_ledger((*self.head(), *parts), self.names(self.prefix), returned * b)
        return encoder_ledger(
            (*parts, *self._pooler()), self.names(""), texts * (sym("S") + int(self.pools)) * width * b
        )

    def memory(self, workload: Workload) -> Mapping[tuple[str, str, str], MemoryTape]:
        """Return the memory tape of the forward by (stage, invocation, part)."""
        made, hidden = text_tape(self.config, self.style(), workload)
        if self.config.masked or self.config.labels:
            made.tape.keep(made.sequence(self.head(), hidden))
        else:
            made.tape.keep(hidden, made.sequence(self._pooler(), hidden))
        return {(STAGE, STAGE, STAGE): made.tape}

    def _pooler(self) -> tuple[ModulePart, ...]:
        """Return the parts of the pooler of the first token, if the class has one."""
        width = sym("text_hidden")
        return FirstTokenPooler(width, width, "tanh").parts("text.pooler", sym("B"), sym("b")) if self.pools else ()

    @classmethod
    def serves(cls, config: Mapping[str, Any]) -> bool:
        """Return whether the formulas describe a configuration: an encoder whose head is tied to the word embedding."""
        decodes = any(config.get(key) is True for key in ("is_decoder", "add_cross_attention"))
        chunks = bool(config.get("chunk_size_feed_forward"))
        return not (decodes or chunks) and config.get("tie_word_embeddings") is not False

    def default_workload(self, name: str) -> Workload:
        """Return the workload of a preset: one text, cut to the number of positions of the model."""
        tokens = next(p.tokens["text"] for p in self.named if p.name == name)
        return Workload(name, min(tokens, self.config.longest), 0)

    def with_input(self, workload: Workload, given: dict[str, Any], found: list[CostproofError]) -> Workload:
        """Return the workload with texts of the length in ``given``."""
        length = given.pop("seq_len", None)
        return workload if length is None else replace(workload, text_tokens=length)

    def problems(self, workload: Workload) -> list[CostproofError]:
        """Return an error for an invalid batch or text length, and for missing attention kernels."""
        found, most = EncoderTarget.problems(self, workload), self.config.longest
        if not 1 <= workload.text_tokens <= most:
            expected, got = f"1 to {most}", workload.text_tokens
            found.append(
                BadInput("the length of the text is out of range", where="--seq-len", expected=expected, got=got)
            )
        return found

    def values(self, workload: Workload) -> dict[str, int]:
        """Return the values of B (texts), S (tokens of each) and b (bytes per element)."""
        return {"B": workload.batch, "S": workload.text_tokens, "b": FLOAT_BYTES[workload.dtype]}

    def takes(self, workload: Workload) -> Mapping[str, TensorSpec]:
        """Return the shape of the token ids, [B, S]."""
        return {"input_ids": TensorSpec((workload.batch, workload.text_tokens), "int64")}

    def example(self, workload: Workload) -> tuple[Tensors, tuple[SymbolicSize, ...]]:
        """Return texts for an export; their number and length are symbolic."""
        length = min(_LENGTH, max(2, self.config.longest - 1))
        length -= length == _BATCH
        example = self.inputs(replace(workload, batch=_BATCH, text_tokens=length))
        return example, tuple(SymbolicSize(("input_ids",), dim, symbol) for dim, symbol in ((0, "B"), (1, "S")))

    def id_limit(self) -> int:
        """Return the size of the vocabulary."""
        return self.config.vocab

    def domain(self) -> Domain:
        """Return the domain of a proof: texts of any length, and random configurations."""
        from costproof.models.encoding.domain import TEXTS, Domain

        default = self.default_workload("text")
        return Domain((default, replace(default, name="text, eager", dtype="float32", attention="eager")), TEXTS)

    def drawn_run(self, p: Mapping[str, int], workload: Workload) -> Workload:
        """Return the workload with a text of randomly drawn length."""
        return replace(workload, text_tokens=p["S"])

    @classmethod
    def drawn(cls, p: Mapping[str, int], rng: random.Random) -> tuple[Self, dict[str, bool]]:
        from costproof.models.encoding.domain import some_layers

        default = cls.default()
        kind = type(default.config)
        architecture = rng.choice(list(kind.architectures))
        config = kind(
            **some_layers(p, rng),
            hidden=p["text_heads"] * p["text_head_dim"],
            intermediate=p["text_intermediate"],
            heads=p["text_heads"],
            architecture=architecture,
            labels=p["text_labels"] if kind.architectures[architecture] else 0,
            vocab=p["text_vocab"],
            max_positions=p["text_positions"],
            **cls.draw_fields(p, rng),
        )
        return replace(default, config=config), {
            "a head for masked words": config.masked,
            "a classifier": config.labels > 0,
            "another activation than GELU": config.activation != "gelu",
        }

    @classmethod
    def draw_fields(cls, p: Mapping[str, int], rng: random.Random) -> dict[str, Any]:
        """Draw random values of the fields that only some encoders of text have, for a proof."""
        return {}
