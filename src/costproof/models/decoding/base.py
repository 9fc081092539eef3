"""A text-only decoder of transformers as a target: all that does not depend on the family.

A family brings its configuration, its class in transformers, and its formulas.
"""

from __future__ import annotations

import json
import random
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeVar

from costproof.analytic.symbols import DECODER_SYMBOLS, RUN_SYMBOLS
from costproof.ledger.capture import SymbolDoc
from costproof.ledger.errors import CostproofError, Problems
from costproof.ledger.node import Ledger
from costproof.ledger.progress import Progress
from costproof.ledger.workload import Experts, Invocation, Workload
from costproof.models import settings as common
from costproof.models.configured import Config, Configured, decoder_cut
from costproof.models.decoding import exports, runs
from costproof.models.decoding.build import build
from costproof.models.decoding.decoder import Decoder
from costproof.models.decoding.names import STAGES, invocations
from costproof.models.decoding.weights import with_numbers
from costproof.models.target import Built, ExportJob, NamedWorkload, Run, Setting

if TYPE_CHECKING:
    from torch import nn

    from costproof.models.decoding.domain import Drawn
    from costproof.models.proof import Proof

PRESETS: Final = (
    NamedWorkload("chat", "a prompt of 512 tokens", {"text": 512}, default=True),
    NamedWorkload("document", "a prompt of 8192 tokens", {"text": 8192}),
)
SETTINGS: Final[tuple[Setting, ...]] = (
    common.TEXT_TOKENS,
    common.NEW_TOKENS,
    common.BATCH,
    common.DTYPE,
    replace(common.ATTENTION, choices=("sdpa", "eager")),
    common.LOGITS,
)


class DecoderConfig(Config):
    """A configuration, as far as every decoder has it."""

    __slots__ = ()
    layers: int
    head_dim: int
    max_positions: int
    """Longest context."""
    vocab: int


C = TypeVar("C", bound=DecoderConfig)


@dataclass(frozen=True, slots=True)
class CausalTarget(Configured[C]):
    """A causal language model of transformers with one configuration."""

    stages: ClassVar[tuple[str, ...]] = STAGES
    decoder: ClassVar[Decoder] = Decoder()
    """How the class of transformers is called."""

    @classmethod
    @abstractmethod
    def default(cls) -> Self:
        """The published configuration."""

    @abstractmethod
    def formulas(self, workload: Workload) -> Ledger:
        """The analytic ledger in symbols: ``exprs`` filled, ``costs`` empty."""

    @abstractmethod
    def native(self) -> tuple[Any, Any]:
        """The class of transformers, ``…ForCausalLM``, and a configuration object of it."""

    @classmethod
    def from_normalised(cls, text: str) -> Self:
        """The configuration that a certificate holds."""
        usual = cls.default()
        return replace(usual, config=type(usual.config)(**json.loads(text)))

    @staticmethod
    def settings() -> tuple[Setting, ...]:
        """What can be chosen about a run beside the preset."""
        return SETTINGS

    @staticmethod
    def presets() -> tuple[NamedWorkload, ...]:
        """Prompts of two lengths."""
        return PRESETS

    def symbol_docs(self) -> dict[str, SymbolDoc]:
        """How the symbols of its formulas are typeset and what they mean."""
        return {**RUN_SYMBOLS, **DECODER_SYMBOLS}

    def first_layers(self, layers: int) -> tuple[C, dict[str, str]]:
        """The first layers of the decoder, all else as it was."""
        return replace(self.config, layers=layers), decoder_cut(layers, 1, self.config.layers)

    def workload(self, preset: str | None = None, **given: Any) -> Workload:
        """A preset with changes."""
        named = {p.name: p for p in self.presets()}
        usual = next(p.name for p in named.values() if p.default)
        name = common.known_preset(preset or usual, named)
        plain = Workload(name, named[name].tokens["text"])
        problems: list[CostproofError] = []
        made = common.changed(plain, given, self.settings(), problems)
        if problems:
            raise Problems("the workload cannot be run", problems)
        self.check(made)
        return made if made == plain else replace(made, name="custom")

    def problems(self, workload: Workload) -> list[CostproofError]:
        """Everything that keeps the model from running a workload."""
        found = common.problems(workload, self.config.head_dim) + common.device_problems(workload, self.options)
        return found or common.too_long(workload, workload.text_tokens, self.config.max_positions)

    def invocations(self, workload: Workload) -> tuple[Invocation, ...]:
        """Prefill and decode, with the values of their symbols."""
        return invocations(workload)

    @classmethod
    def drawn(cls, sizes: Mapping[str, int], rng: random.Random) -> Drawn | None:
        """A random small configuration for a proof; ``None`` if the family draws none.

        Args:
            sizes: values of the parameters that :mod:`costproof.models.decoding.domain` draws.
            rng: for what is not a size.
        """
        return None

    @staticmethod
    def proof_settings() -> tuple[Setting, ...]:
        """None: a run on text has no sizes to enumerate."""
        return ()

    def proof(self, samples: int, seed: int) -> Proof:
        """Both stages with batch, prompt and context as symbols, and random configurations where they can be drawn."""
        from costproof.models.decoding.domain import proof

        return proof(self, self.normalised(), samples, seed, self.drawn)

    def build(self, workload: Workload) -> nn.Module:
        """The model on the meta device; a loop over experts, which depends on data, is built as grouped products."""
        return self._build(workload, "grouped_mm" if workload.experts == "eager" else workload.experts)

    def _build(self, workload: Workload, experts: Experts) -> nn.Module:
        base, config = self.native()
        kernel = experts if common.EXPERTS in self.settings() else None
        return build(base, config, dtype=workload.dtype, attention=workload.attention, experts=kernel)

    def build_run(self, workload: Workload, progress: Progress) -> Built:
        """The model that the dynamic source runs, on meta or with numbers.

        Raises:
            Problems: the checkpoint does not fit.
            Incomplete: the device is not there, or no kernel of FlashAttention.
        """
        return with_numbers(self._build(workload, workload.experts), workload, self.decoder, self.options, progress)

    def stages_of(self, path: str, workload: Workload) -> tuple[str, ...]:
        """The stages that a module works in: all of them."""
        return STAGES if workload.new_tokens else STAGES[:1]

    def export_jobs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """Prefill and decode step."""
        return tuple(exports.export_jobs(model, workload, self.decoder))

    def stage_runs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """The prefill alone, and some decode steps."""
        return tuple(exports.stage_runs(model, workload, self.decoder, workload.text_tokens))

    def runs(self, model: nn.Module, workload: Workload) -> tuple[Run, ...]:
        """The prefill, then decode steps."""
        decoder = self.decoder
        prompt = runs.prompt_inputs(workload, decoder, workload.text_tokens)
        if next(model.parameters()).device.type == "meta":
            return runs.shape_runs(model, workload, decoder, prompt)
        ids = runs.drawn_ids(self.config.vocab, prompt["input_ids"].shape, self.options.seed)
        return runs.real_runs(model, workload, decoder, runs.real_prompt(model, workload, decoder, prompt, ids))
