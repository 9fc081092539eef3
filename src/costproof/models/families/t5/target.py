"""T5 as a target: transformers' own class with one configuration, cut into encode, prefill and decode."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from costproof.analytic.symbols import TWO_STACK_SYMBOLS
from costproof.ledger.capture import SymbolDoc
from costproof.ledger.errors import BadInput, CostproofError, Problems
from costproof.ledger.node import Ledger
from costproof.ledger.progress import Progress
from costproof.ledger.workload import AttentionKind, Invocation, TensorSpec, Workload
from costproof.models import settings as common
from costproof.models.families.t5.config import T5Config
from costproof.models.generic.encoder_decoder import PROMPT, TWO_STAGES, FirstRun, TwoStacks, two_stack_calls
from costproof.models.jobs import Built, ExportJob, Run
from costproof.models.native import Native
from costproof.models.stretch import layers_cut
from costproof.models.target import NamedWorkload, Setting

if TYPE_CHECKING:
    from torch import nn

    from costproof.models.encoding.domain import Domain
    from costproof.models.proof import Proof

PRESETS: Final = (
    NamedWorkload("text", "a text of 512 tokens, answered by 64", {"text": 512}, default=True),
    NamedWorkload("sentence", "a text of 32 tokens, answered by 32", {"text": 32}),
)
_ANSWERS: Final = {"text": 64, "sentence": 32}
_BATCH, _LENGTH = 3, 37
"""Of the example that is exported."""


@dataclass(frozen=True, slots=True)
class T5(Native[T5Config]):
    """``T5ForConditionalGeneration`` with one configuration; the decoder starts with one token."""

    config: T5Config = field(default_factory=T5Config)
    name: str = "t5"
    stages: ClassVar[tuple[str, ...]] = TWO_STAGES
    model_types: ClassVar[tuple[str, ...]] = ("t5",)
    attentions: ClassVar[tuple[AttentionKind, ...]] = ("sdpa",)

    @classmethod
    def describes(cls, architecture: str) -> bool:
        """Whether the formulas describe this class of transformers."""
        return architecture == T5Config.architecture

    def symbol_docs(self) -> dict[str, SymbolDoc]:
        """How the symbols of its formulas are typeset and what they mean."""
        return TWO_STACK_SYMBOLS

    def formulas(self, workload: Workload) -> Ledger:
        """The analytic ledger in symbols: ``exprs`` filled, ``costs`` empty."""
        from costproof.models.families.t5.formulas import formulas

        return formulas(self.config, decode=workload.new_tokens > 0)

    @classmethod
    def settings(cls) -> tuple[Setting, ...]:
        """What can be chosen about a run beside the preset; in float16 the class clamps, which has no formula."""
        dtype = replace(common.DTYPE, choices=("bfloat16", "float32"))
        return (common.SEQ_LEN, common.NEW_TOKENS, common.BATCH, dtype, replace(common.ATTENTION, choices=("sdpa",)))

    @staticmethod
    def presets() -> tuple[NamedWorkload, ...]:
        """Texts of two lengths."""
        return PRESETS

    def first_layers(self, layers: int) -> tuple[T5Config, dict[str, str]]:
        """The first layers of both stacks, all else as it was."""
        most = (self.config.layers, self.config.decoder_layers)
        cut = {f"{s} layers": layers_cut(s, layers, 1, m)[1] for s, m in zip(("encoder", "decoder"), most, strict=True)}
        return replace(self.config, layers=layers, decoder_layers=layers), {k: v for k, v in cut.items() if v}

    def workload(self, preset: str | None = None, **given: Any) -> Workload:
        """A preset with changes."""
        named = {p.name: p for p in PRESETS}
        name = common.known_preset(preset or PRESETS[0].name, named)
        plain = Workload(name, named[name].tokens["text"], _ANSWERS[name], dtype=self.dtype)
        problems: list[CostproofError] = []
        length = given.pop("seq_len", None)
        started = plain if length is None else replace(plain, text_tokens=length)
        made = common.changed(started, given, self.settings(), problems)
        if problems:
            raise Problems("the workload cannot be run", problems)
        self.check(made)
        return made if made == plain else replace(made, name="custom")

    def problems(self, workload: Workload) -> list[CostproofError]:
        """A batch out of range, an empty text, or less than no new token."""
        found = common.batch_problems(workload)
        sizes = (("--seq-len", workload.text_tokens, 1), ("--new-tokens", workload.new_tokens, 0))
        for option, value, least in sizes:
            if value < least:
                found.append(BadInput("too few tokens", where=option, expected=f"at least {least}", got=value))
        return found

    def invocations(self, workload: Workload) -> tuple[Invocation, ...]:
        """The calls, with the values of their symbols."""
        batch, length = workload.batch, workload.text_tokens
        ids = TensorSpec((batch, length), "int64")
        return two_stack_calls(workload, {"B": batch, "S": length}, (ids,))

    def _stacks(self, workload: Workload) -> TwoStacks:
        """How a run is cut; nothing is run for it."""
        from costproof.models.decoding.decoder import ids_on_meta
        from costproof.models.generic.inputs import Inputs
        from costproof.models.jobs import SymbolicSize

        c, batch, length = self.config, workload.batch, workload.text_tokens
        sizes = tuple(SymbolicSize(("input_ids",), dim, symbol) for dim, symbol in ((0, "B"), (1, "S")))
        own, cross = ((batch, c.heads, n, c.head_dim) for n in (PROMPT, length))
        first = FirstRun(
            encoder="encoder",
            shared=frozenset(),
            lenders=frozenset({"shared"}),
            hidden={"last_hidden_state": (batch, length, c.hidden)},
            own=((own, own),) * c.decoder_layers,
            cross=((cross, cross),) * c.decoder_layers,
        )
        return TwoStacks(workload, Inputs({"input_ids": ids_on_meta(batch, length)}, sizes), first)

    def build(self, workload: Workload) -> nn.Module:
        """The model on the meta device."""
        import transformers

        from costproof.models.decoding.build import build

        config = transformers.T5Config(**self.config.native())
        base = transformers.T5ForConditionalGeneration
        return build(base, config, dtype=workload.dtype, attention=workload.attention)

    def build_run(self, workload: Workload, progress: Progress) -> Built:
        """The model that the dynamic source runs, on meta or with numbers.

        Raises:
            Problems: the checkpoint does not fit.
            Incomplete: the device is not there.
        """
        from costproof.models.decoding.build import with_numbers
        from costproof.models.decoding.decoder import Decoder

        return with_numbers(self.build(workload), workload, Decoder(), self.options, progress)

    def stages_of(self, path: str, workload: Workload) -> tuple[str, ...]:
        """The stages that a module works in."""
        return self._stacks(workload).first.stages_of(path)

    def export_jobs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """The encoder, the first token, and a step, at example sizes."""
        return self._stacks(replace(workload, batch=_BATCH, text_tokens=_LENGTH)).export_jobs(model)

    def runs(self, model: nn.Module, workload: Workload) -> tuple[Run, ...]:
        """The encoder with the first token, then the first, the middle and the last step."""
        from costproof.models.generic.copies import with_values

        found, device = self._stacks(workload).runs(model), next(model.parameters()).device
        if device.type == "meta":
            return found
        return tuple(replace(run, kwargs=with_values(run.kwargs, device)) for run in found)

    @staticmethod
    def proof_settings() -> tuple[Setting, ...]:
        """None: a run has no sizes to enumerate."""
        return ()

    def proof(self, samples: int, seed: int) -> Proof:
        """The three stages with their sizes as symbols, and random configurations."""
        from costproof.models.encoding.domain import proof

        return proof(self, samples, seed)

    def domain(self) -> Domain:
        """Texts of any length; random sizes."""
        from costproof.models.encoding.domain import TWO_STACKS, Domain

        usual = self.workload()
        return Domain((usual, replace(usual, name="text, float32", dtype="float32")), TWO_STACKS)

    @classmethod
    def drawn(cls, p: Mapping[str, int], rng: random.Random) -> tuple[T5, dict[str, bool]]:
        """A random small configuration for a proof."""
        config = T5Config(
            hidden=p["text_hidden"],
            head_dim=p["text_head_dim"],
            intermediate=p["text_intermediate"],
            layers=p["layers"],
            decoder_layers=p["layers"] + rng.choice((0, 0, 1)),
            heads=p["text_heads"],
            vocab=p["text_vocab"],
            buckets=p["text_buckets"],
            mlp=rng.choice(("relu", "gated-gelu", "gated-silu")),
            scaled=rng.random() < 0.5,
        )
        return cls(config), {"gated MLPs": config.gated, "a scaled result": config.scaled}

    def drawn_run(self, p: Mapping[str, int], workload: Workload) -> Workload:
        """A text of the drawn length."""
        return replace(workload, text_tokens=p["S"])


TARGET: Final = T5
"""What the name ``t5`` stands for."""
