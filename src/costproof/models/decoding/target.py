"""Define the base class of targets that are a causal language model of transformers.

A family adds its configuration and a :class:`~costproof.models.decoding.formulas.DecoderStyle`.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar, get_args

from costproof.analytic.symbols import DECODER_SYMBOLS, RUN_SYMBOLS
from costproof.ledger.capture import SymbolDoc, TokenPadding
from costproof.ledger.errors import BadInput, CostproofError, Incomplete, Problems
from costproof.ledger.evaluate import evaluate_ledger
from costproof.ledger.mesh import CP_PLAN, DISPATCH, PAIRS, RANK, Mesh, ambiguous_axes, stage_layers
from costproof.ledger.node import Ledger
from costproof.ledger.workload import (
    FLOAT_BYTES,
    KV_BLOCK,
    PAD_TO,
    PAST,
    ROWS,
    AttentionKind,
    BatchRow,
    ExpertKernel,
    Invocation,
    Workload,
)
from costproof.models import cache_dtype
from costproof.models import settings as common
from costproof.models.decoding import exports, runs
from costproof.models.decoding.build import build
from costproof.models.decoding.config import DecoderConfig
from costproof.models.decoding.copies import RankCopies
from costproof.models.decoding.decoder import Decoder
from costproof.models.decoding.names import STAGES, invocations
from costproof.models.decoding.plans import MORE_AXES, by_heads, given_plan, mesh_problems
from costproof.models.decoding.ranks import NativeOnRanks, as_rank
from costproof.models.decoding.sharding import (
    SPLIT_ALL,
    ShardPlan,
    chosen_plan,
    mesh_symbols,
)
from costproof.models.native import Native
from costproof.models.specs import ExportJob, Run, layers_cut
from costproof.models.target import NamedWorkload, Setting
from costproof.patches.flash_attention import FLASH

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
    common.ROWS,
    common.KV_BLOCK,
    common.PAD_TO,
    common.NEW_TOKENS,
    common.BATCH,
    common.DTYPE,
    common.ATTENTION,
    common.LOGITS,
    cache_dtype.SETTING,
)


C = TypeVar("C", bound=DecoderConfig)
_LAYER: Final = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")
"""Pattern of the layer index in a module path."""


@dataclass(frozen=True, slots=True)
class CausalTarget(NativeOnRanks[C]):
    """Base class of targets: a causal language model of transformers in a given configuration."""

    stages: ClassVar[tuple[str, ...]] = STAGES
    named: ClassVar[tuple[NamedWorkload, ...]] = PRESETS
    notation: ClassVar[dict[str, SymbolDoc]] = {**RUN_SYMBOLS, **DECODER_SYMBOLS}
    attentions: ClassVar[tuple[AttentionKind, ...]] = get_args(AttentionKind)
    extra_settings: ClassVar[tuple[Setting, ...]] = ()
    """Settings of a run in addition to those of every decoder."""
    plan: ClassVar[ShardPlan | None] = SPLIT_ALL
    """Tensor-parallel plan of the class of transformers; ``None`` if the formulas do not describe it."""

    @property
    def decoder(self) -> Decoder:
        windows = self.config.windows()
        if not any(windows):
            return Decoder()
        if self.config.one_mask:
            return Decoder(windows=windows)
        return Decoder(windows=windows, masks=("full_attention",), window_masks=("sliding_attention",))

    def decoder_of_rank(self, workload: Workload) -> Decoder:
        """Return the calling convention of the decoder, limited to the layers of the counted rank's pipeline stage."""
        decoder, mesh = self.decoder, workload.mesh
        if mesh.pp == 1:
            return decoder
        own = stage_layers(self.config.layers, mesh.pp, mesh.coordinates(workload.rank).pp)
        return replace(decoder, own=tuple(own), windows=tuple(decoder.windows[i] for i in own if decoder.windows))

    def style(self) -> DecoderStyle:
        """Return the differences of the layers from the default decoder; by default, there are none."""
        from costproof.models.decoding.formulas import DecoderStyle

        return DecoderStyle()

    def formulas(self, workload: Workload) -> Ledger:
        """Return the symbolic analytic ledger, with formulas (``exprs``) and without numbers (``costs``)."""
        from costproof.models.decoding.formulas import decoder_ledger

        return decoder_ledger(self.config, workload, self.style(), self.plan_of(workload))

    def plan_of(self, workload: Workload) -> ShardPlan:
        """Return the plan by which the ranks of a workload's mesh share the model.

        Raises:
            BadInput: the class of transformers has none.
            Problems: the plan that the workload names does not fit the model.
        """
        if self.plan is None:
            raise BadInput("costproof has no plan that splits this model over devices", where=self.name)
        style = self.style()
        return chosen_plan(self.config, workload, self.plan, style, style.names())

    def shares(self, workload: Workload) -> RankCopies:
        """Return the division of the model among the ranks of a workload's mesh.

        Raises:
            BadInput: no plan describes it.
        """
        found, mesh = RankCopies.of(self.config, workload, self.plan_of(workload), self.style()), workload.mesh
        if mesh.fsdp == 1:
            return found
        from costproof.analytic.compose import prompt_call
        from costproof.models.decoding.formulas import decoder_parts
        from costproof.models.decoding.fsdp import padding_by_role

        padding: Counter[str] = Counter()
        for rank in range(mesh.tp):
            one = workload.on_mesh(tp=mesh.tp, ep=mesh.ep, rank=rank)
            parts = decoder_parts(self.config, one, self.style(), self.plan_of(one))(prompt_call(past=False))
            sizes = {**self.config.symbols(), **mesh_symbols(self.config, one, self.plan_of(one))}
            padding.update(padding_by_role(parts, sizes, mesh.stored_parts, FLOAT_BYTES[workload.dtype]))
        if found.tied:  # the table is on both ends
            padding["text.embedding"] *= 2
        return replace(found, padding=tuple(padding.items()))

    def memory(self, workload: Workload) -> Mapping[tuple[str, str, str], MemoryTape]:
        """Return the memory tapes of calls by (stage, invocation, part); for decode, of a step at context P."""
        from costproof.models.decoding.formulas import decoder_stack
        from costproof.models.decoding.memory import decoder_tapes, row_tapes

        workload = workload.gathered
        style = self.style()
        shards = None if workload.mesh.one else self.shares(workload)
        stack = decoder_stack(self.config, workload, style, shards)
        if workload.rows:
            return row_tapes(self.config, workload, stack, capped=style.logits_capped)
        return decoder_tapes(self.config, workload, stack, capped=style.logits_capped, shards=shards)

    def blocked_cache(self, workload: Workload) -> cache_dtype.BlockedCache | None:
        """Return the cache in blocks of tokens; ``None`` if the workload requests no blocks.

        The bytes of a token in a layer are those that the formulas append for a prompt of one token.

        Raises:
            Incomplete: the formulas do not give them for every layer.
        """
        size = workload.inputs.get(KV_BLOCK)
        if not isinstance(size, int):
            return None
        inputs = {k: v for k, v in workload.inputs.items() if k not in (PAST, ROWS, KV_BLOCK)}
        one = replace(workload, text_tokens=1, new_tokens=0, batch=1, inputs=inputs)
        calls = {(call.stage, call.id): call.symbols for call in self.invocations(one)}
        sizes: Counter[int] = Counter()
        for node in evaluate_ledger(self.formulas(one), calls, self.config.symbols()).nodes:
            if appended := node.cost("kv_cache_bytes"):
                found = _LAYER.search(node.module)
                sizes[-1 if found is None else int(found[1])] += appended
        if sizes.keys() != {*range(self.config.layers)}:
            raise Incomplete("the formulas do not give the cache of each layer", where=f"--{KV_BLOCK}", got=self.name)
        windows = self.config.windows() or (0,) * self.config.layers
        groups = Counter((window, sizes[i]) for i, window in enumerate(windows))
        return cache_dtype.BlockedCache(
            size, tuple(cache_dtype.CachedLayers(count, *group) for group, count in groups.items())
        )

    def token_padding(self, workload: Workload) -> tuple[TokenPadding, ...]:
        """Return the token padding of each stage; empty if the workload requests none.

        The FLOPs are those of a packed call whose linear layers have more tokens, and its attention and logits not.
        """
        sizes = workload.padded_sizes
        if not sizes:
            return ()
        steps = (BatchRow(1, workload.context, workload.batch),) if workload.new_tokens else ()
        prompt = workload.rows or (BatchRow(workload.text_tokens, workload.past, workload.batch),)
        found = []
        for stage, calls, rows in ((STAGES[0], 1, prompt), (STAGES[1], workload.new_tokens, steps)):
            tokens = sum(row.count * row.new for row in rows)
            size = min((n for n in sizes if n >= tokens), default=tokens)
            if rows:
                more = self._packed_flops(workload, rows, size) - self._packed_flops(workload, rows, tokens)
                found.append(TokenPadding(stage, calls, tokens, size, calls * more))
        return tuple(found)

    def _packed_flops(self, workload: Workload, rows: Sequence[BatchRow], tokens: int) -> int:
        """Return the FLOPs of one packed call of rows, in which linear layers process ``tokens`` tokens."""
        inputs = {k: v for k, v in workload.inputs.items() if k not in (PAST, PAD_TO, KV_BLOCK)}
        inputs[ROWS] = ",".join(row.text for row in rows)
        real = sum(row.count * row.new for row in rows)
        one = replace(workload, text_tokens=real, new_tokens=0, batch=1, logits="last", inputs=inputs)
        calls = {(call.stage, call.id): {**call.symbols, "S": tokens} for call in self.invocations(one)}
        found = evaluate_ledger(self.formulas(one), calls, self.config.symbols()).total("flops")
        assert found is not None
        return found

    @classmethod
    def serves(cls, config: Mapping[str, Any]) -> bool:
        """Return whether transformers creates, for this configuration, the cache that the formulas assume."""
        return type(cls.default().config).caches_as(config)

    @classmethod
    def settings(cls) -> tuple[Setting, ...]:
        common_settings = (replace(s, choices=cls.attentions) if s is common.ATTENTION else s for s in SETTINGS)
        shared = () if cls.plan is None else (*common.MESH, common.CP_PLAN)
        return (*common_settings, *cls.extra_settings, *shared)

    def first_layers(self, layers: int) -> tuple[C, dict[str, str]]:
        """Return the configuration with only the first layers, at least one of each kind, and a note on the cut."""
        kinds = self.config.layer_kinds()
        least = max(kinds.index(kind) + 1 for kind in kinds)
        kept, cut = layers_cut("decoder", layers, least, self.config.layers)
        return replace(self.config, layers=kept), {"decoder layers": cut} if cut else {}

    def with_input(self, workload: Workload, given: dict[str, Any], found: list[CostproofError]) -> Workload:
        """Rename ``seq_len`` in ``given`` to ``text_tokens``, and store its plan and rows; return the same workload."""
        length = given.pop("seq_len", None)
        if length is not None:
            if given.get("text_tokens") not in (None, length):
                got = f"{length} and {given['text_tokens']}"
                found.append(
                    BadInput("the length of the prompt is given twice", where="--seq-len, --text-tokens", got=got)
                )
            given["text_tokens"] = length
        given_plan(given, found)
        common.take_rows(given, found)
        return workload

    def problems(self, workload: Workload) -> list[CostproofError]:
        found = cache_dtype.cache_problems(workload, latent=bool(self.decoder.latent))
        found += common.block_problems(workload)
        found += common.problems(workload, self.config.head_dim) + common.device_problems(workload, self.options)
        found += self._mesh_problems(workload) + self._flash_problems(workload)
        if workload.rows:
            return found + common.row_problems(workload, self.config.max_positions)
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

    def _flash_problems(self, workload: Workload) -> list[CostproofError]:
        """Return an error for each reason why a run with FlashAttention has no formulas."""
        if workload.attention != FLASH:
            return []
        found: list[CostproofError] = []
        longest = max([workload.context + workload.new_tokens, *(row.past + row.new for row in workload.rows)])
        reached = [window for window in self.config.windows() if 0 < window <= longest + 1]
        for wrong, expected, got in (
            (not workload.mesh.one, "one device", workload.mesh.text),
            (reached, f"at most {min(reached, default=2) - 2} tokens, below the window", f"{longest} tokens"),
        ):
            if wrong:
                what, fix = "FlashAttention cannot be counted for this run", "leave --attention at sdpa"
                found.append(BadInput(what, where=f"--attention {FLASH}", expected=expected, got=got, fix=fix))
        return found

    def _mesh_problems(self, workload: Workload) -> list[CostproofError]:
        if self.plan is None:
            return []
        try:
            plan = self.plan if workload.mesh.problems(workload.rank, more=MORE_AXES) else self.plan_of(workload)
        except Problems as error:
            return list(error.problems)
        return [*mesh_problems(self.config, workload, plan, MORE_AXES)]

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
        """Return the counted rank's invocations of prefill and decode, with the values of their symbols."""
        more: dict[str, dict[str, int]] = {}
        for stage in STAGES[: 1 if not workload.new_tokens else 2] if not workload.mesh.one else ():
            more[stage] = mesh_symbols(self.config, workload, self.plan_of(workload), stage)
        mine = workload.own
        if workload.mesh.cp > 1:
            mine = replace(mine, text_tokens=workload.own_tokens)
        calls = invocations(mine, self.config)
        found = [{**call.symbols, **more.get(call.stage, {})} for call in calls]
        for symbols in found if by_heads(self.config, workload) else ():
            symbols |= {"P": workload.context} if "P" in symbols else {}
        return tuple(replace(call, symbols=symbols) for call, symbols in zip(calls, found, strict=True))

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

    @classmethod
    def proof_settings(cls) -> tuple[Setting, ...]:
        """Return the settings of a proof: the mesh whose ranks are compared."""
        if cls.plan is None:
            return ()
        return (*(s for s in common.MESH if s.name not in (RANK, PAIRS)), common.CP_PLAN)

    def proof(
        self,
        samples: int,
        seed: int,
        plan: str | None = None,
        cp_plan: str | None = None,
        dispatch: str | None = None,
        **axes: int | str,
    ) -> Proof:
        """Return the proof of both stages in symbolic sizes, and for random configurations of families that draw any.

        Args:
            plan: by which ranks share the model.
            cp_plan: how ranks share a sequence.
            dispatch: how tokens reach experts of other ranks.
            axes: devices along the axes of a mesh; those of a certificate are texts.

        Raises:
            Problems: the target cannot be spread over the mesh.
        """
        from costproof.models.decoding.domain import mesh_proof, proof

        sizes = {axis: int(size) for axis, size in axes.items()}
        if wrong := ambiguous_axes(sizes):
            raise Problems("the workload cannot be run", wrong)

        def draw(sizes: Mapping[str, int], rng: random.Random) -> Drawn | None:
            found: Any = self.drawn(sizes, rng)
            return None if found is None else (found[0].quantised_as(self), found[1])

        made = proof(self, self.config, self.normalised(), samples, seed, draw)
        mesh = Mesh(**sizes)
        if mesh.one and cp_plan is None and dispatch is None:
            return made
        return mesh_proof(made, self, draw, mesh, plan, cp_plan, dispatch)

    def built(self, workload: Workload, experts: ExpertKernel) -> nn.Module:
        kernel = experts if any(s.name == common.EXPERTS.name for s in self.extra_settings) else None
        model = build(*self.native(), dtype=workload.dtype, attention=workload.attention, experts=kernel)
        if workload.rows:
            from costproof.models.decoding.modules import pack

            pack(model, self.decoder)
        return model

    def stages_of(self, path: str, workload: Workload) -> tuple[str, ...]:
        """Return the stages in which a module runs, which are all stages of the workload."""
        return STAGES if workload.new_tokens else STAGES[:1]

    def export_jobs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """Return the export jobs of the prefill and of a decode step."""
        heads_apart = by_heads(self.config, workload)
        jobs = exports.export_jobs(model, _own(workload, whole=heads_apart), self.decoder_of_rank(workload))
        if workload.mesh.coordinates(workload.rank).pp > 0:
            jobs = [exports.with_hidden_states(job, workload, self.config.hidden) for job in jobs]
        shared = {"S": workload.text_tokens} if self.plan is not None and self.plan_of(workload).sequence else {}
        if workload.mesh.cp > 1:
            if heads_apart:
                jobs[0] = exports.with_tokens_of(jobs[0], workload, self.decoder)
            jobs = [exports.with_positions(job) for job in jobs]
            shared |= {} if heads_apart or workload.keeps_new_tokens else {"P": workload.own_tokens}
            if workload.inputs.get(CP_PLAN, "zigzag") == "zigzag":  # halves of a symbol are rounded
                shared["S"] = workload.own_tokens
        if workload.gathered_batches or DISPATCH in workload.inputs:  # whose ratio to the own batch is a number
            shared |= {"B": workload.own_batch, "S": workload.text_tokens}
        if self._steps_differ(workload):
            jobs[-1:] = exports.in_steps(jobs[-1], workload)
        of_one = workload.mesh.tp == workload.mesh.cp == 1
        return tuple(jobs) if of_one and not shared else exports.of_rank(jobs, workload, shared)

    def _steps_differ(self, workload: Workload) -> bool:
        """Return whether decode steps exchange unequal numbers of pairs: then each has a graph of its own."""
        return DISPATCH in workload.inputs and self.shares(workload).steps_differ

    def stage_runs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """Return jobs that run the prefill and some decode steps in isolation."""
        own, whole = (_own(workload, whole=whole) for whole in (False, by_heads(self.config, workload)))
        prompt, *_ = exports.stage_runs(model, own, self.decoder, own.text_tokens)
        return (prompt, *exports.stage_runs(model, whole, self.decoder, whole.text_tokens)[1:])

    def runs(self, model: nn.Module, workload: Workload) -> tuple[Run, ...]:
        """Return the runs of the prefill and of the decode steps after it."""
        heads_apart = by_heads(self.config, workload)
        decoder, whole, workload = self.decoder_of_rank(workload), workload, _own(workload, whole=heads_apart)
        if workload.rows:
            return self._row_runs(model, workload)
        prompt = runs.prompt_inputs(workload, decoder, workload.text_tokens)
        if next(model.parameters()).device.type == "meta":
            given = runs.behind_past(model, workload, decoder, prompt)
            found = runs.shape_runs(
                model, workload, decoder, given, grows=heads_apart or whole.keeps_new_tokens,
                every=self._steps_differ(whole),
            )  # fmt: skip
            if heads_apart:
                ids = given["input_ids"][:, : whole.own_tokens]
                found = (replace(found[0], kwargs={**found[0].kwargs, "input_ids": ids}), *found[1:])
            if workload.mesh.cp > 1:
                found = tuple(map(runs.with_positions, found))
            if workload.mesh.coordinates(workload.rank).pp > 0:
                found = tuple(runs.with_hidden_states(run, workload, self.config.hidden) for run in found)
            return as_rank(found, model)
        ids = runs.drawn_ids(self.config.vocab, (workload.batch, workload.context), self.options.seed)
        return runs.real_runs(model, workload, decoder, runs.real_prompt(model, workload, decoder, prompt, ids))

    def _row_runs(self, model: nn.Module, workload: Workload) -> tuple[Run, ...]:
        if next(model.parameters()).device.type == "meta":
            return runs.rows_runs(model, workload, self.decoder)
        length = sum(row.count * (row.past + row.new) for row in workload.rows)
        ids = runs.drawn_ids(self.config.vocab, (length,), self.options.seed)
        return runs.rows_runs(model, workload, self.decoder, ids)


def _own(workload: Workload, *, whole: bool = False) -> Workload:
    """Return the workload of the counted rank: its sequences, and logits everywhere before the last pipeline stage.

    Args:
        whole: whether the rank attends to all positions of a sequence that ranks share.
    """
    mesh = workload.mesh
    last = mesh.coordinates(workload.rank).pp == mesh.pp - 1
    own = workload.own if whole else replace(workload.own, text_tokens=workload.own_tokens)
    return own if last else replace(own, logits="all")
