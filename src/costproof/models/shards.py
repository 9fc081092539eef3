"""One rank of a mesh as a target: the parts of parameters that it holds, and the collectives that its modules run.

A plan of transformers names a style for each module and parameter. The dynamic source lets transformers apply the plan
and runs the result. The static source exports a model that :func:`shard` makes here by its own reading of the styles,
with the collectives as operators of the graph. Neither reads the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.errors import BadInput, Incomplete
from costproof.ledger.metrics import Conventions
from costproof.ledger.progress import Progress
from costproof.ledger.run import RunOptions
from costproof.ledger.workload import Dtype, Invocation, TargetInfo, Workload
from costproof.models.decoding.decoder import text_config
from costproof.models.decoding.target import CausalTarget
from costproof.models.specs import Built, ExportJob, Run
from costproof.models.target import NamedWorkload, Setting
from costproof.patches.sharding import Distributed, Plan, plans_of
from costproof.weights.stored import Stored

if TYPE_CHECKING:
    import torch
    from torch import nn

GROUP: Final = "tp"
"""Prefix of the name of the group in exported collectives; behind a colon follows its number of ranks."""
_WHOLE: Final = frozenset({
    "replicate", "replicated_with_grad_allreduce", "local_params", "mla_kv_a_proj", "all_reduce", "moe_identity_expert",
    "moe_tp_experts", "ep_dispatch_experts",
})  # fmt: skip
"""Styles whose parameters every rank holds whole."""


@dataclass(frozen=True, slots=True)
class Place:
    """One rank of a mesh whose dimensions hold the same ranks: tensor and expert parallelism share a batch."""

    tensor: int = 1
    expert: int = 1
    rank: int = 0

    @property
    def ranks(self) -> int:
        """Return the number of ranks."""
        return max(self.tensor, self.expert)

    def check(self) -> None:
        """Check that the mesh is one that both sources can run.

        Raises:
            BadInput: the rank is none of the mesh, or experts and tensors are split over different ranks.
        """
        if not 0 <= self.rank < self.ranks:
            raise BadInput(
                "the mesh has no such rank", where="--rank", expected=f"0 to {self.ranks - 1}", got=self.rank
            )
        if self.expert not in (1, self.tensor):
            raise BadInput(
                "expert parallelism over other ranks than those that share a batch sends each token to the ranks of its "
                "experts, and how many tokens that are depends on the routing",
                where="--ep", expected=f"1 or {self.tensor}, as --tp", got=self.expert,
            )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Share:
    """The share that a rank has in a module: the style, the size of the split dimension, and the rank."""

    style: str
    ranks: int
    rank: int
    size: int = 0

    @property
    def chunk(self) -> int:
        """Return the size of a chunk; the last ranks have less if the number of ranks does not divide the size."""
        return -(-self.size // self.ranks)

    @property
    def bounds(self) -> tuple[int, int]:
        """Return the first index of this rank's chunk, and the one behind its last."""
        first = min(self.rank * self.chunk, self.size)
        return first, min(first + self.chunk, self.size)


def shard(model: nn.Module, plans: tuple[Plan, Plan], place: Place) -> None:
    """Replace the parameters of a model by the parts that one rank holds, and let its modules run the collectives.

    Raises:
        Incomplete: a plan has a style that is not known here, or experts that the ranks do not divide.
    """
    modules, parameters = dict(model.named_modules()), dict(model.named_parameters(remove_duplicate=False))
    made: dict[int, nn.Parameter] = {}
    for name, style in {**plans[0], **plans[1]}.items():
        owner, _, leaf = name.rpartition(".")
        if name in parameters:
            _split(modules[owner], leaf, Share(style, place.ranks, place.rank), made)
        else:
            if style == "mla_kv_a_proj":
                modules[name]._rope_width = text_config(model).qk_rope_head_dim
            _join(modules[name], Share(style, place.ranks, place.rank))


def _split(module: nn.Module, leaf: str, share: Share, made: dict[int, nn.Parameter]) -> None:
    """Replace one parameter of a module by the part that a rank holds; a tied parameter stays one."""
    import torch

    whole: Any = module._parameters[leaf]
    if id(whole) in made:
        module._parameters[leaf] = made[id(whole)]
        return
    part = _part(whole, leaf, share)
    if share.style == "grouped_gemm" and hasattr(module, "num_experts"):
        module.num_experts = whole.shape[0] // share.ranks
        module._is_expert_parallel = True
    module._parameters[leaf] = made[id(whole)] = torch.nn.Parameter(part, requires_grad=False)


def _part(whole: torch.Tensor, leaf: str, share: Share) -> torch.Tensor:
    """Return the part of a parameter that a rank holds, in memory of its own."""
    import torch

    style, dim = share.style, whole.ndim - 1
    if style in _WHOLE or (style.startswith("rowwise") and leaf == "bias"):
        return whole
    if style == "grouped_gemm":
        if whole.shape[0] % share.ranks:
            raise Incomplete("the ranks do not divide the experts", where=leaf, got=f"{whole.shape[0]}/{share.ranks}")
        dim = 0
    elif style in ("embedding_rowwise", "embedding_colwise"):
        dim = 0 if style == "embedding_rowwise" else 1
    elif style.startswith(("colwise", "packed_colwise")):
        dim = max(whole.ndim - 2, 0)
    elif not style.startswith(("rowwise", "packed_rowwise")):
        raise Incomplete("the plan has a style that is not known here", where=leaf, got=style)
    if style.startswith("packed") and whole.ndim > 1:
        halves = whole.chunk(2, dim)
        return torch.cat([_chunk(half, dim, share) for half in halves], dim)
    return whole if style == "packed_rowwise" else _chunk(whole, dim, share).clone()


def _chunk(whole: torch.Tensor, dim: int, share: Share) -> torch.Tensor:
    first, last = replace(share, size=whole.shape[dim]).bounds
    return whole.narrow(dim, first, last - first)


Inner = Callable[..., Any]
_KEPT: Final = "_share"
"""Attribute of a module with its share."""


def _join(module: Any, share: Share) -> None:
    """Let a module exchange its input or output as its style requires."""
    if share.style not in _FORWARDS:
        if share.style not in _WHOLE | {"colwise", "packed_colwise", "packed_rowwise", "grouped_gemm"}:
            raise Incomplete("the plan has a style that is not known here", got=share.style)
        return
    sizes = ("num_embeddings", "out_features", "in_features")
    size = next((int(getattr(module, name)) for name in sizes if hasattr(module, name)), 0)
    if share.style.startswith("rowwise"):
        size = int(module.in_features)
    elif share.style == "embedding_colwise":
        size = int(module.embedding_dim)
    elif share.style == "mla_kv_a_proj":
        size = int(getattr(module, "out_features", 0))
    base = type(module)
    setattr(module, _KEPT, replace(share, size=size))

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        one: Share = getattr(self, _KEPT)
        return _FORWARDS[one.style](one, self, base.forward, *args, **kwargs)

    # The name stays, since it is that of the module in a ledger.
    module.__class__ = type(base.__name__, (base,), {"forward": forward, "__module__": base.__module__})


def _group(share: Share) -> str:
    return f"{GROUP}:{share.ranks}"


def _all_reduce(value: torch.Tensor, share: Share) -> torch.Tensor:
    import torch

    ops = torch.ops._c10d_functional
    summed: torch.Tensor = ops.wait_tensor(ops.all_reduce(value, "sum", _group(share)))
    return summed


def _all_gather_last(value: torch.Tensor, share: Share) -> torch.Tensor:
    """Return the parts of all ranks [.., chunk] one behind the other [.., size]; the last ones are padded for it."""
    import torch

    missing = share.chunk - int(value.shape[-1])
    padded = torch.nn.functional.pad(value, (0, missing)) if missing else value
    ops = torch.ops._c10d_functional
    every = ops.wait_tensor(ops.all_gather_into_tensor(padded, share.ranks, _group(share)))
    joined = torch.cat(every.view(share.ranks, *padded.shape).unbind(0), -1)
    return joined[..., : share.size] if share.chunk * share.ranks != share.size else joined


def _looked_up(share: Share, module: Any, inner: Inner, ids: torch.Tensor) -> torch.Tensor:
    """Look up the rows of this rank, set the others to zero, and add those of all ranks."""
    import torch

    first, last = share.bounds
    outside = (ids < first) | (ids >= last)
    rows = inner(module, (ids - first).masked_fill(outside, 0))
    zero = torch.scalar_tensor(0.0, dtype=rows.dtype, device=rows.device)
    return _all_reduce(rows.index_put_((outside,), zero), share)


def _looked_up_in_part(share: Share, module: Any, inner: Inner, ids: torch.Tensor) -> torch.Tensor:
    return _all_gather_last(inner(module, ids), share)


def _gathered(share: Share, module: Any, inner: Inner, value: torch.Tensor) -> torch.Tensor:
    return _all_gather_last(inner(module, value), share)


def _summed(share: Share, module: Any, inner: Inner, value: torch.Tensor) -> torch.Tensor:
    """Multiply this rank's columns, add the products of all ranks, and the bias once."""
    bias = module._parameters.get("bias")
    if share.style != "rowwise":
        first, last = share.bounds
        value = value[..., first:last]
    module._parameters["bias"] = None
    try:
        product = inner(module, value)
    finally:
        module._parameters["bias"] = bias
    summed = _all_reduce(product, share)
    return summed if bias is None else summed + bias


def _added(share: Share, module: Any, inner: Inner, *args: Any, **kwargs: Any) -> Any:
    found = inner(module, *args, **kwargs)
    return None if found is None else _all_reduce(found, share)


def _latents(share: Share, module: Any, inner: Inner, value: torch.Tensor) -> torch.Tensor:
    """Take the rotary part of the latents apart and put it back, as transformers does for its gradient."""
    import torch

    found = inner(module, value)
    width = int(module._rope_width)
    return torch.cat(found.split([found.shape[-1] - width, width], -1), -1)


def _dispatched(
    share: Share, module: Any, inner: Inner, value: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Run the experts of this rank on the tokens that chose them, and add the results of all ranks.

    A token's choice of another rank's expert gets a number behind the last expert, and weight 0.
    """
    import torch

    own = module.num_experts
    elsewhere = (chosen // own) != share.rank
    here = torch.where(elsewhere, own, chosen % own)
    result = inner(module, value, here, weights.masked_fill(elsewhere, 0.0))
    return _all_reduce(result, share).to(value.dtype)


_FORWARDS: Final[Mapping[str, Callable[..., Any]]] = {
    "embedding_rowwise": _looked_up,
    "embedding_colwise": _looked_up_in_part,
    "colwise_gather_output": _gathered,
    "colwise_rep": _gathered,
    "rowwise": _summed,
    "rowwise_rep": _summed,
    "rowwise_split_input": _summed,
    "all_reduce": _added,
    "moe_tp_experts": _added,
    "mla_kv_a_proj": _latents,
    "ep_dispatch_experts": _dispatched,
}
"""Style -> forward of a module in it, if it is not the module's own."""


def _fit_heads(model: nn.Module, plan: Plan, place: Place) -> None:
    """Write the K/V heads of this rank into the model's configuration, from which caches are made.

    Raises:
        Incomplete: the ranks do not divide them, which transformers cannot run.
    """
    split = [name for name, style in plan.items() if style == "colwise" and name.endswith(".k_proj")]
    config = text_config(model)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    if not split or place.tensor == 1:
        return
    if heads % place.tensor:
        raise Incomplete(
            "transformers cannot split the key/value heads over these ranks (its issue 48307)",
            where="--tp", expected=f"a divisor of {heads}", got=place.tensor,
        )  # fmt: skip
    config.num_key_value_heads = heads // place.tensor


@dataclass(frozen=True, slots=True)
class RankTarget:
    """One rank of a causal language model that several devices run together."""

    base: CausalTarget[Any]
    place: Place

    @property
    def name(self) -> str:
        """Return the name under which the whole model is registered."""
        return self.base.name

    @property
    def options(self) -> RunOptions:
        """Return the options of the dynamic run."""
        return self.base.options

    @property
    def stored(self) -> Stored:
        """Return the properties of the checkpoint that its files state."""
        return self.base.stored

    @property
    def dtype(self) -> Dtype | None:
        """Return the dtype of tensors that the checkpoint does not quantise."""
        return self.base.dtype

    def info(self) -> TargetInfo:
        """Return the whole model as plain data."""
        return self.base.info()

    def settings(self) -> tuple[Setting, ...]:
        """Return the settings of a run."""
        return self.base.settings()

    def presets(self) -> tuple[NamedWorkload, ...]:
        """Return the presets."""
        return self.base.presets()

    def workload(self, preset: str | None = None, **given: Any) -> Workload:
        """Return a workload of the whole model."""
        return self.base.workload(preset, **given)

    def conventions(self, workload: Workload) -> Conventions:
        """Return the conventions of all numbers."""
        return self.base.conventions(workload)

    def check(self, workload: Workload) -> None:
        """Check that the model can run the workload on the mesh."""
        self.place.check()
        self.base.check(workload)

    def invocations(self, workload: Workload) -> tuple[Invocation, ...]:
        """Return the stage calls of one run; every rank makes all of them."""
        return self.base.invocations(workload)

    def with_options(self, options: RunOptions) -> RankTarget:
        """Return the same rank with other run options."""
        if options.real:
            raise BadInput("a rank is counted without values", where="--run", expected="meta", got=options.device)
        return replace(self, base=self.base.with_options(options))

    def build(self, workload: Workload) -> nn.Module:
        """Return the model of this rank for the static source."""
        self.place.check()
        model = self.base.build(workload)
        plans = plans_of(model, self.place.tensor, self.place.expert)
        _fit_heads(model, plans[0], self.place)
        shard(model, plans, self.place)
        return model

    def build_stored(self) -> nn.Module:
        """Return the model of this rank in the dtype of its checkpoint."""
        return self.build(self.base.workload())

    def export_jobs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """Return the parts that the static source exports."""
        return self.base.export_jobs(model, workload)

    def stages_of(self, path: str, workload: Workload) -> tuple[str, ...]:
        """Return the stages that use a module."""
        return self.base.stages_of(path, workload)

    def build_run(self, workload: Workload, progress: Progress) -> Built:
        """Return the model that transformers has distributed, for the dynamic source."""
        self.place.check()
        built = self.base.build_run(workload, progress)
        plans = plans_of(built.model, self.place.tensor, self.place.expert)
        _fit_heads(built.model, plans[0], self.place)
        built.model._distributed = Distributed(built.model, plans, self.place.ranks, self.place.rank)  # type: ignore[assignment]
        return built

    def runs(self, model: nn.Module, workload: Workload) -> tuple[Run, ...]:
        """Return the forwards of this rank."""
        distributed: Any = model._distributed
        return tuple(replace(run, around=distributed.running, dispatched=True) for run in self.base.runs(model, workload))

