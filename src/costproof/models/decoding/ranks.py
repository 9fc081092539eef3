"""Build the model of the counted rank: for exports by our reading of the plan, for runs by transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from costproof.estimate.routing import Splits, routed_call, splits_of, steps_differ
from costproof.ledger.errors import Incomplete
from costproof.ledger.mesh import CP_PLAN, DISPATCH, PLAN, Mesh
from costproof.ledger.progress import Progress
from costproof.ledger.run import RunOptions
from costproof.ledger.workload import Workload
from costproof.models.decoding.decoder import Decoder, text_config
from costproof.models.decoding.fsdp import keep_parts
from costproof.models.decoding.names import STAGES
from costproof.models.decoding.plans import ROWS_ALONE, LayoutPlan, named_plan, styles_of
from costproof.models.decoding.rank_model import TABLES, expert_paths, shard
from costproof.models.native import N, Native
from costproof.models.specs import Built, Run
from costproof.models.target import WithWholePrompt
from costproof.patches.exchanges import STEP, SharedSequence
from costproof.patches.sharding import NOTE, Distributed, FullySharded, Plan, plans_of

if TYPE_CHECKING:
    import torch
    from torch import nn


class NativeOnRanks(Native[N]):
    """Base class of targets: a class of transformers of which one of several ranks can be counted."""

    __slots__ = ()

    def decoder_of_rank(self, workload: Workload) -> Decoder:
        """Return the calling convention of the decoder on the counted rank."""
        return self.decoder

    def build(self, workload: Workload) -> nn.Module:
        """Return the model to export: the whole model, or on several devices what the counted rank holds of it.

        Raises:
            Incomplete: no graph counts a rank of this mesh.
        """
        whole = self.whole_prompt(workload) if isinstance(self, WithWholePrompt) else workload
        return shard_for_export(Native.build(self, workload), whole, self.decoder_of_rank(workload))

    def build_run(self, workload: Workload, progress: Progress) -> Built:
        """Return the model to run; on several devices, as transformers distributes it to the counted rank.

        Raises:
            Problems: the checkpoint does not fit.
            Incomplete: the device or packages are missing, or transformers cannot run the model on this mesh.
        """
        refuse_values(workload, self.options)
        whole = self.whole_prompt(workload) if isinstance(self, WithWholePrompt) else workload
        return distributed(self.built_run(workload, progress), whole)

    def built_run(self, workload: Workload, progress: Progress) -> Built:
        """Return the whole model to run, on the meta device or with weights."""
        return Native.build_run(self, workload, progress)


def shard_for_export(model: nn.Module, workload: Workload, decoder: Decoder) -> nn.Module:
    """Return the counted rank's part of a model, by our reading of the plan.

    Raises:
        Incomplete: the mesh or the plan is not one that a graph can count.
    """
    mesh, engine = workload.mesh, _engine(workload)
    if mesh.cp > 1:
        from costproof.models.decoding.sequence_model import OwnPositions, share_sequence

        layout, at = str(workload.inputs.get(CP_PLAN, "zigzag")), mesh.coordinates(workload.rank)
        own = OwnPositions(layout, mesh.cp, at.cp, of_heads="" if decoder.latent else workload.attention)
        share_sequence(model, decoder, own)
    if mesh.tp > 1 or mesh.ep > 1:
        plans, at = _plans(model, mesh, engine), mesh.coordinates(workload.rank)
        _copy_heads(model, plans[0], mesh.tp, at.tp)
        multiple, sequence = (1, False) if engine is None else (engine.padding(mesh.tp), engine.sequence)
        shard(
            model, plans, mesh.tp, at.ep if mesh.batches > 1 else at.tp, batches=mesh.batches,
            splits=_splits(model, workload), sequences=workload.gathered_batches, multiple=multiple,
            sequence=sequence,
        )  # fmt: skip
        _fit_heads(model, plans[0], mesh.tp)
    _fit_own_heads(model, workload)
    if mesh.pp > 1:
        keep_stage(model, mesh.pp, mesh.coordinates(workload.rank).pp)
    if mesh.fsdp > 1:
        keep_parts(model, mesh.stored_parts, mesh.stored_part(workload.rank))
    return model


def _splits(model: Any, workload: Workload) -> tuple[dict[int, list[Splits]], ...]:
    """Return, for each layer with experts, how many (token, expert) pairs the counted rank exchanges with others.

    By the number of tokens in a call: a prompt has others than a step. Empty if ranks gather tokens instead. The number
    of layers and experts is that of the model.
    """
    if DISPATCH not in workload.inputs:
        return ()
    layers = [model.get_submodule(path) for path in expert_paths(model)]
    top_k = text_config(model).num_experts_per_tok
    found: list[dict[int, list[Splits]]] = [{} for _ in layers]
    for stage in STAGES[: 2 if workload.new_tokens else 1] if layers else ():  # layers may all be dense
        every = routed_call(workload, stage).batches
        tokens = every[workload.rank % len(every)]
        sizes = len(layers), int(layers[0].num_experts), int(top_k)
        calls = splits_of(workload, *sizes, stage)
        for i, of_layer in enumerate(found):
            of_layer[tokens] = [call[i] for call in (calls if steps_differ(workload, *sizes) else calls[:1])]
    return tuple(found)


def keep_stage(model: Any, stages: int, stage: int) -> None:
    """Remove the layers of other pipeline stages; keep the embedding on the first stage, the output on the last.

    In place of other modules are modules that return what they get. All stages but the last send their hidden states.
    """
    import torch

    def unchanged(self: nn.Module, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return hidden

    absent = type("Absent", (torch.nn.Module,), {"forward": unchanged})
    stack, (size, more) = model.model, divmod(len(model.model.layers), stages)
    sizes = [size + (stages - more <= i + 1 < stages) for i in range(stages)]
    start = sum(sizes[:stage])
    for i in {*range(len(stack.layers))} - {*range(start, start + sizes[stage])}:
        stack.layers[i] = absent()
    if stage > 0:
        stack.embed_tokens = None
    if stage == stages - 1:
        return
    stack.norm, model.lm_head = absent(), absent()
    model.config.final_logit_softcapping = None
    base, ops = type(stack), torch.ops._c10d_functional

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = base.forward(self, *args, **kwargs)
        ops.wait_tensor(ops.isend(result.last_hidden_state, stage + 1, 0, f"pp:{stages}"))
        return result

    stack.__class__ = type(base.__name__, (base,), {"forward": forward, "__module__": base.__module__})


def distribute_for_run(model: nn.Module, workload: Workload) -> Distributed | FullySharded | None:
    """Let transformers distribute the model to the counted rank; ``None`` if each rank has the whole model.

    Raises:
        Incomplete: transformers cannot run this model on this mesh, or not by this plan.
    """
    mesh, engine = workload.mesh, _engine(workload)
    at, splits = mesh.coordinates(workload.rank), _splits(model, workload)
    sequence = None
    if mesh.cp > 1:
        layout = str(workload.inputs.get(CP_PLAN, "zigzag"))
        sequence = SharedSequence(model, layout, mesh.cp, at.cp, attention=workload.attention)
    parts = partial(FullySharded, model, mesh.fsdp, workload.rank, stages=mesh.pp, replicas=mesh.dp, sequence=sequence)
    if mesh.tp == mesh.ep == 1:
        if mesh.pp * mesh.cp * mesh.fsdp == 1:
            return None
        _fit_own_heads(model, workload)
        if mesh.fsdp > 1:
            return parts()
        return Distributed(model, ({}, {}), 1, at.pp * mesh.cp + at.cp, mesh.pp, sequence=sequence)
    plans = _plans(model, mesh, engine)
    if engine is not None and (why := _not_run(plans)):
        raise Incomplete(
            f"transformers cannot run this plan: it {why}", where=f"--{PLAN}", got=engine.name,
            fix="--sources analytic,static",
        )  # fmt: skip
    # The copies and padding that ranks get, which transformers does not make.
    _copy_heads(model, plans[0], mesh.tp, at.tp)
    if engine is not None:
        _pad_vocabulary(model, plans[0], engine.padding(mesh.tp))
    found: Distributed | FullySharded
    if mesh.fsdp > 1:
        found = parts(tensor=mesh.tp, plans=plans, splits=splits)
    else:
        place = (at.pp * mesh.cp + at.cp) * mesh.tp + at.tp
        if mesh.batches > 1:
            place = at.pp * mesh.ep + at.ep
        found = Distributed(
            model, plans, mesh.tp, place, mesh.pp, mesh.batches, splits, sequence, workload.gathered_batches
        )
    _drop_padding(model, int(text_config(model).vocab_size))
    _fit_heads(model, plans[0], mesh.tp)
    _fit_own_heads(model, workload)
    return found


COPIED: Final = "key/value heads are copied before transformers splits them, since it cannot split fewer than ranks"
"""Note in results of models with fewer key/value heads than ranks (issue 48307 of transformers)."""
PADDED: Final = "the vocabulary is padded before transformers splits it, since it has no padding"
"""Note on a run whose embedding and output projection got rows of zeros, so that ranks have equal parts."""
_RANK: Final = "_costproof_rank"
"""Attribute of a distributed model that holds its rank."""


def refuse_values(workload: Workload, options: RunOptions) -> None:
    """Check that a run on several devices has no concrete values.

    Raises:
        Incomplete: it is.
    """
    if not workload.mesh.one and options.real:
        raise Incomplete("one of several ranks runs only on the meta device", where="--run", expected="meta")


def distributed(built: Built, workload: Workload) -> Built:
    """Return the model as transformers distributes it to the counted rank.

    Raises:
        Incomplete: as :func:`distribute_for_run`.
    """
    mesh, heads = workload.mesh, kv_heads(built.model)
    copied = mesh.tp > 1 and not _splits_evenly(built.model, _plans(built.model, mesh, _engine(workload))[0], mesh.tp)
    engine, vocabulary = _engine(workload), int(text_config(built.model).vocab_size)
    multiple = 1 if engine is None else engine.padding(mesh.tp)
    rank = distribute_for_run(built.model, workload)
    vars(built.model)[_RANK] = rank
    if rank is None:
        return built
    more = [f"{COPIED}: {heads} for {mesh.tp} ranks"] if copied else []
    if vocabulary % multiple:
        more.append(f"{PADDED}: {vocabulary} to a multiple of {multiple}")
    return replace(built, notes=(*built.notes, NOTE, *more))


def as_rank(runs: tuple[Run, ...], model: nn.Module) -> tuple[Run, ...]:
    """Return the runs with the context of the rank to which :func:`distributed` gave the model."""
    rank: Distributed | FullySharded | None = vars(model).get(_RANK)
    if rank is None:
        return runs
    first = min((r.context for r in runs if r.context is not None), default=0)

    def around(context: int | None) -> Callable[[], AbstractContextManager[None]]:
        return partial(_in_step, rank.running, 0 if context is None else context - first)

    return tuple(replace(r, around=around(r.context), dispatched=True) for r in runs)


@contextmanager
def _in_step(running: Callable[[], AbstractContextManager[None]], step: int) -> Iterator[None]:
    """Run a model as one rank, and in one of several decode steps, while the block runs."""
    with running():
        before = STEP.set(step)
        try:
            yield
        finally:
            STEP.reset(before)


def _engine(workload: Workload) -> LayoutPlan | None:
    text = workload.inputs.get(PLAN)
    return None if text is None else named_plan(str(text))


def _not_run(plans: tuple[Plan, Plan]) -> str:
    """Return a phrase on the feature of a plan that transformers lacks; empty if it has all."""
    if ROWS_ALONE in plans[0].values():
        return "has no single sum over ranks for routed and shared experts"
    if {"turned_colwise", "turned_rowwise"} & {*plans[0].values()}:
        return "divides experts by column or row only where gate and up projections are stored one after the other"
    return "" if {*plans[0]} | {*plans[1]} else "splits no module"


def _plans(model: nn.Module, mesh: Mesh, engine: LayoutPlan | None) -> tuple[Plan, Plan]:
    return plans_of(model, mesh.tp, mesh.ep) if engine is None else styles_of(model, engine, mesh)


def kv_heads(model: nn.Module) -> int:
    """Return the number of key/value heads in the configuration of a model."""
    config = text_config(model)
    return int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)


def _splits_evenly(model: nn.Module, plan: Plan, ranks: int) -> bool:
    """Return whether all ranks get equally many key/value heads, or the plan does not split heads."""
    split = any(style == "colwise" and name.endswith(".k_proj") for name, style in plan.items())
    return not split or kv_heads(model) % ranks == 0


def _fit_heads(model: nn.Module, plan: Plan, ranks: int) -> None:
    """Write a rank's number of key/value heads into the model's configuration, from which caches are made."""
    if any(style == "colwise" and name.endswith(".k_proj") for name, style in plan.items()):
        text_config(model).num_key_value_heads = max(1, kv_heads(model) // ranks)


def _fit_own_heads(model: nn.Module, workload: Workload) -> None:
    """Write the number of heads that a rank caches into the configuration, if ranks cache heads at all positions."""
    text = text_config(model)
    if workload.mesh.cp > 1 and workload.inputs.get(CP_PLAN) == "ulysses" and not hasattr(text, "kv_lora_rank"):
        text.num_key_value_heads = kv_heads(model) // workload.mesh.cp


def _copy_heads(model: nn.Module, plan: Plan, ranks: int, rank: int) -> None:
    """Duplicate key/value heads in their projections until every rank has one, if heads are fewer than ranks.

    Several ranks get copies of the same head. Then their plan splits the projections evenly.
    """
    import torch

    heads = kv_heads(model)
    if _splits_evenly(model, plan, ranks):
        return
    if ranks % heads:
        what = "ranks get copies of key/value heads only if all heads have equally many"
        raise Incomplete(what, where="--tp", expected=f"a multiple of {heads} key/value heads", got=ranks)
    for path, module in model.named_modules():
        if plan.get(f"{path}.k_proj") != "colwise":
            continue
        attention: Any = module
        attention.num_key_value_groups = max(1, attention.num_key_value_groups * heads // ranks)
        for projection in (attention.k_proj, attention.v_proj):
            for leaf, whole in list(projection.named_parameters(recurse=False)):
                copies = whole.unflatten(0, (heads, -1)).repeat_interleave(ranks // heads, 0).flatten(0, 1)
                setattr(projection, leaf, torch.nn.Parameter(copies, requires_grad=False))


def _pad_vocabulary(model: nn.Module, plan: Plan, multiple: int) -> None:
    """Pad the vocabulary: add rows of zeros to embedding and output projection, up to a multiple of a number.

    Only to those that the plan splits; a table that both share stays shared. As ``VocabParallelEmbedding`` of vLLM and
    of Megatron-LM.
    """
    import torch

    made: dict[int, nn.Parameter] = {}
    for path, module in model.named_modules():
        rows = "num_embeddings" if isinstance(module, torch.nn.Embedding) else "out_features"
        if plan.get(path) not in TABLES or not (missing := -int(getattr(module, rows)) % multiple):
            continue
        size = int(getattr(module, rows))
        setattr(module, rows, size + missing)
        for leaf, whole in list(module.named_parameters(recurse=False)):
            if id(whole) not in made:
                padded = torch.cat([whole, whole.new_zeros((missing, *whole.shape[1:]))])
                made[id(whole)] = torch.nn.Parameter(padded, requires_grad=False)
            setattr(module, leaf, made[id(whole)])


def _drop_padding(model: Any, vocabulary: int) -> None:
    """Wrap the output projection so that it does not return the logits of padded rows."""
    head = model.get_output_embeddings()
    if getattr(head, "out_features", vocabulary) == vocabulary:
        return
    padded = head.forward
    head.forward = lambda *args, **kwargs: padded(*args, **kwargs)[..., :vocabulary]
