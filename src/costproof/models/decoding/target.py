"""The base class of targets that are a causal language model of transformers.

A family adds its configuration and a :class:`~costproof.models.decoding.formulas.DecoderStyle`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from costproof.analytic.symbols import DECODER_SYMBOLS, RUN_SYMBOLS
from costproof.ledger.capture import SymbolDoc
from costproof.ledger.errors import BadInput, CostproofError
from costproof.ledger.node import Ledger
from costproof.ledger.workload import ExpertKernel, Invocation, Workload
from costproof.models import cache_dtype
from costproof.models import settings as common
from costproof.models.decoding import exports, runs
from costproof.models.decoding.build import build
from costproof.models.decoding.config import DecoderConfig
from costproof.models.decoding.decoder import Decoder
from costproof.models.decoding.names import STAGES, invocations
from costproof.models.native import Native
from costproof.models.specs import ExportJob, Run, layers_cut
from costproof.models.target import NamedWorkload, Setting

if TYPE_CHECKING:
    from torch import nn

    from costproof.analytic.memory_tape import MemoryTape
    from costproof.models.decoding.domain import Drawn
    from costproof.models.decoding.formulas import DecoderStyle
    from costproof.models.proof import Proof

PRESETS: Final = (
    NamedWorkload("chat", "a prompt of 512 tokens", {"text": 512}, default=True),
    NamedWorkload("document", "a prompt of 8192 tokens", {"text": 8192}),
)
SETTINGS: Final[tuple[Setting, ...]] = (
    common.TEXT_TOKENS,
    Setting("seq_len", "The same, by the name that it has for any model."),
    common.PAST,
    common.NEW_TOKENS,
    common.BATCH,
    common.DTYPE,
    common.ATTENTION,
    common.LOGITS,
    cache_dtype.SETTING,
)


C = TypeVar("C", bound=DecoderConfig)


@dataclass(frozen=True, slots=True)
class CausalTarget(Native[C]):
    """Base class of targets: a causal language model of transformers in a given configuration."""

    stages: ClassVar[tuple[str, ...]] = STAGES
    named: ClassVar[tuple[NamedWorkload, ...]] = PRESETS
    notation: ClassVar[dict[str, SymbolDoc]] = {**RUN_SYMBOLS, **DECODER_SYMBOLS}
    extra_settings: ClassVar[tuple[Setting, ...]] = ()
    """Settings of a run in addition to those of every decoder."""

    @property
    def decoder(self) -> Decoder:
        """Return the calling convention of the decoder: module paths, masks and cache."""
        windows = self.config.windows()
        if not any(windows):
            return Decoder()
        if self.config.one_mask:
            return Decoder(windows=windows)
        return Decoder(windows=windows, masks=("full_attention",), window_masks=("sliding_attention",))

    def style(self) -> DecoderStyle:
        """Return how the layers differ from those of the default decoder; by default not at all."""
        from costproof.models.decoding.formulas import DecoderStyle

        return DecoderStyle()

    def formulas(self, workload: Workload) -> Ledger:
        """Return the symbolic analytic ledger: ``exprs`` are set, ``costs`` are empty."""
        from costproof.models.decoding.formulas import decoder_ledger

        return decoder_ledger(self.config, workload, self.style())

    def memory(self, workload: Workload) -> Mapping[tuple[str, str], MemoryTape]:
        """Return (stage, invocation) -> the memory tape of one call; for decode, of a step at context P."""
        from costproof.models.decoding.formulas import decoder_stack, decoder_tapes

        style = self.style()
        stack = decoder_stack(self.config, workload, style)
        return decoder_tapes(self.config, workload, stack, capped=style.logits_capped)

    @classmethod
    def serves(cls, config: Mapping[str, Any]) -> bool:
        """Return whether transformers would give a model with this configuration the cache that the formulas assume."""
        return type(cls.default().config).caches_as(config)

    @classmethod
    def settings(cls) -> tuple[Setting, ...]:
        """Return the settings of a run, other than the preset."""
        common_settings = (replace(s, choices=cls.attentions) if s is common.ATTENTION else s for s in SETTINGS)
        return (*common_settings, *cls.extra_settings)

    def first_layers(self, layers: int) -> tuple[C, dict[str, str]]:
        """Return the configuration with only the first layers, at least one of each kind, and a note on the cut."""
        kinds = self.config.layer_kinds()
        least = max(kinds.index(kind) + 1 for kind in kinds)
        kept, cut = layers_cut("decoder", layers, least, self.config.layers)
        return replace(self.config, layers=kept), {"decoder layers": cut} if cut else {}

    def with_input(self, workload: Workload, given: dict[str, Any], found: list[CostproofError]) -> Workload:
        """Move ``seq_len`` in ``given`` to ``text_tokens``; return the workload unchanged."""
        length = given.pop("seq_len", None)
        if length is not None:
            if given.get("text_tokens") not in (None, length):
                got = f"{length} and {given['text_tokens']}"
                found.append(
                    BadInput("the length of the prompt is given twice", where="--seq-len, --text-tokens", got=got)
                )
            given["text_tokens"] = length
        return workload

    def problems(self, workload: Workload) -> list[CostproofError]:
        """Return an error for each reason why the model cannot run a workload."""
        found = cache_dtype.cache_problems(workload, latent=bool(self.decoder.latent))
        found += common.problems(workload, self.config.head_dim) + common.device_problems(workload, self.options)
        found = found or common.too_long(workload, workload.text_tokens, self.config.max_positions)
        window = self.decoder.window
        if window and workload.context < window - 1 < workload.context + workload.new_tokens:
            cached = f"{workload.past} in the cache + " if workload.past else ""
            found.append(
                BadInput(
                    "the decode steps would reach the end of the window",
                    where="--text-tokens, --new-tokens",
                    expected=f"a prompt of at least {window - 1} tokens, or both together at most {window - 1}",
                    got=f"{cached}{workload.text_tokens} in the prompt + {workload.new_tokens} new",
                )
            )
        return found

    def workload(self, preset: str | None = None, **given: Any) -> Workload:
        """Return the workload of a preset with changed settings; the configuration decides the default cache format."""
        chosen = given.pop(cache_dtype.SETTING.name, None)
        made = Native.workload(self, preset, **given)
        if chosen is not None and chosen not in cache_dtype.SETTING.choices:
            return Native.workload(self, preset, **given, kv_dtype=chosen)
        found = cache_dtype.with_cache_format(made, chosen, self.stored.cache_dtype)
        self.check(found)
        return found if chosen is None or found == made else replace(found, name="custom")

    def invocations(self, workload: Workload) -> tuple[Invocation, ...]:
        """Return the invocations of prefill and decode, with the values of their symbols."""
        return invocations(workload)

    @classmethod
    def drawn(cls, sizes: Mapping[str, int], rng: random.Random) -> Drawn | None:
        """Draw a random small configuration for a proof; ``None`` if the family takes no part in such proofs.

        Args:
            sizes: values of the parameters that :mod:`costproof.models.decoding.domain` draws.
            rng: source of all choices that are not sizes.
        """
        from costproof.models.decoding.domain import features, random_config

        default = cls.default()
        config = random_config(type(default.config), sizes, rng)
        return replace(default, config=config), features(config)

    def proof(self, samples: int, seed: int) -> Proof:
        """Return the proof of both stages in symbolic sizes, and for random configurations if the family draws any."""
        from costproof.models.decoding.domain import proof

        return proof(self, type(self.config), self.normalised(), samples, seed, self.drawn)

    def built(self, workload: Workload, experts: ExpertKernel) -> nn.Module:
        """Return the model on the meta device with the given implementation of routed experts, if it has experts."""
        kernel = experts if any(s.name == common.EXPERTS.name for s in self.extra_settings) else None
        return build(*self.native(), dtype=workload.dtype, attention=workload.attention, experts=kernel)

    def stages_of(self, path: str, workload: Workload) -> tuple[str, ...]:
        """Return the stages in which a module runs: all of them."""
        return STAGES if workload.new_tokens else STAGES[:1]

    def export_jobs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """Return the export jobs of the prefill and of a decode step."""
        return tuple(exports.export_jobs(model, workload, self.decoder))

    def stage_runs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """Return jobs that run the prefill and some decode steps, each in isolation."""
        return tuple(exports.stage_runs(model, workload, self.decoder, workload.text_tokens))

    def runs(self, model: nn.Module, workload: Workload) -> tuple[Run, ...]:
        """Return the runs of the prefill and of the decode steps after it."""
        decoder = self.decoder
        prompt = runs.prompt_inputs(workload, decoder, workload.text_tokens)
        if next(model.parameters()).device.type == "meta":
            return runs.shape_runs(model, workload, decoder, runs.behind_past(model, workload, decoder, prompt))
        ids = runs.drawn_ids(self.config.vocab, (workload.batch, workload.context), self.options.seed)
        return runs.real_runs(model, workload, decoder, runs.real_prompt(model, workload, decoder, prompt, ids))
