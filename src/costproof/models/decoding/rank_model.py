"""Turn a model into one rank of a mesh, which holds parts of the parameters and runs collectives.

A plan of transformers names a style for each module and parameter. The dynamic source lets transformers apply the plan
and runs the result. The static source exports a model that :func:`shard` makes here by its own reading of the styles,
with the collectives as operators of the graph. Neither reads the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.errors import Incomplete
from costproof.models.decoding.decoder import text_config
from costproof.models.decoding.plans import ROWS_ALONE
from costproof.patches.exchanges import splits_in
from costproof.patches.sharding import Plan

if TYPE_CHECKING:
    import torch
    from torch import nn

    from costproof.estimate.routing import Splits

_TURNED: Final = {"turned_colwise": 1, "turned_rowwise": 2}
"""Split dimension, counted from the last, of our own styles for weights stored as [inputs, outputs], by style."""
TABLES: Final = frozenset({"embedding_rowwise", "colwise_gather_output"})
"""Styles of the embedding and of the output projection, which have a row for each vocabulary entry."""
GROUP: Final = "tp"
"""Prefix of the name of the group in exported collectives; a colon and its number of ranks follow."""
BATCHES: Final = "ep/tp"
"""Prefix of the name of the group of ranks that share experts and have batches of their own."""
_WHOLE: Final = frozenset({
    "replicate", "replicated_with_grad_allreduce", "local_params", "mla_kv_a_proj", "all_reduce", "moe_identity_expert",
    "moe_tp_experts", "ep_dispatch_experts", "ep_local_experts", "gather_tokens", "whole_positions",
})  # fmt: skip
"""Styles whose parameters every rank holds in full."""


@dataclass(frozen=True, slots=True)
class Share:
    """Share of a rank in a module: the style, the size of the split dimension, and the rank."""

    style: str
    ranks: int
    rank: int
    size: int = 0
    batches: int = 1
    """Number of ranks with tokens of their own among the ranks that share experts."""
    splits: Mapping[int, Sequence[Splits]] | None = None
    """Numbers of pairs that ranks exchange in calls, by their tokens, once if all calls have the same; ``None`` if they
    gather tokens instead."""
    sequences: tuple[int, ...] = ()
    """Number of sequences of each rank that gathers tokens; empty if all ranks have equally many."""
    multiple: int = 1
    """Number to a multiple of which ``size`` is padded before the split."""
    tokens: Tokens | None = None
    """State with whether ranks divide the tokens of the current call; ``None`` if they never do."""

    @property
    def padded(self) -> int:
        """Return the size of the split dimension with padding."""
        return -(-self.size // self.multiple) * self.multiple

    @property
    def chunk(self) -> int:
        """Return the size of a full chunk; the last ranks have less if the number of ranks does not divide the size."""
        return -(-self.padded // self.ranks)

    @property
    def bounds(self) -> tuple[int, int]:
        """Return the first index of this rank's chunk, and the index after its last one."""
        first = min(self.rank * self.chunk, self.padded)
        return first, min(first + self.chunk, self.padded)

    @property
    def shares_tokens(self) -> bool:
        """Return whether ranks divide the tokens of the current call among them."""
        return self.tokens is not None and self.tokens.shared


@dataclass(slots=True)
class Tokens:
    """State of a model under sequence parallelism, whose ranks divide the tokens of some calls."""

    shared: bool = False


def shard(
    model: nn.Module,
    plans: tuple[Plan, Plan],
    ranks: int,
    rank: int,
    *,
    batches: int = 1,
    splits: Sequence[Mapping[int, Sequence[Splits]]] = (),
    sequences: tuple[int, ...] = (),
    multiple: int = 1,
    sequence: bool = False,
) -> None:
    """Replace a model's parameters by one rank's parts, and patch its modules to run the collectives.

    Args:
        plans: for the ranks of a group along ``tp``, and for those that share experts.
        ranks: of a group along ``tp``.
        rank: among those that share experts.
        batches: groups along ``tp``, each with a batch of its own, that share experts.
        splits: pairs that ranks exchange in each layer with experts, in order, by the number of tokens of a call;
            empty if they gather tokens.
        sequences: as in :class:`Share`.
        multiple: number whose next multiple is the padded vocabulary.
        sequence: whether ranks share the tokens of a prompt between the split modules.

    Raises:
        Incomplete: a plan has a style that is not known here, or experts that the ranks do not divide.
    """
    modules, parameters = dict(model.named_modules()), dict(model.named_parameters(remove_duplicate=False))
    made: dict[int, nn.Parameter] = {}
    tokens = Tokens() if sequence else None
    tensor = Share("", ranks, rank % ranks, tokens=tokens)
    expert = replace(tensor, ranks=ranks * batches, rank=rank, batches=batches, sequences=sequences)
    routed = dict(zip(expert_paths(model), splits, strict=False))
    for name, style in {**plans[0], **plans[1]}.items():
        owner, _, leaf = name.rpartition(".")
        share = expert if name in plans[1] else tensor
        share = replace(share, style=style, multiple=multiple if style in TABLES else 1, splits=routed.get(name))
        if name in parameters:
            _split(modules[owner], leaf, share, made)
        else:
            if style == "mla_kv_a_proj":
                modules[name]._rope_width = text_config(model).qk_rope_head_dim
            _join(modules[name], share)


def expert_paths(model: nn.Module) -> list[str]:
    """Return the paths of the modules with the experts of a layer, in the order of layers."""
    return [
        path for path, module in model.named_modules() if path.endswith(".experts") and hasattr(module, "num_experts")
    ]


def _split(module: nn.Module, leaf: str, share: Share, made: dict[int, nn.Parameter]) -> None:
    """Replace a module's parameter by a rank's part of it; tied parameters stay tied."""
    import torch

    whole: Any = module._parameters[leaf]
    if id(whole) in made:
        module._parameters[leaf] = made[id(whole)]
        return
    part = _part(whole, leaf, share)
    if share.style == "grouped_gemm" and hasattr(module, "num_experts"):
        vars(module)["num_experts"] = whole.shape[0] // share.ranks
        vars(module)["_is_expert_parallel"] = True
    module._parameters[leaf] = made[id(whole)] = torch.nn.Parameter(part, requires_grad=False)


def _part(whole: torch.Tensor, leaf: str, share: Share) -> torch.Tensor:
    """Return a rank's part of a parameter, as a tensor with memory of its own."""
    import torch

    style, dim = share.style, whole.ndim - 1
    if style in _WHOLE or (style.startswith("rowwise") and leaf == "bias"):
        return whole
    if style == "grouped_gemm":
        if whole.shape[0] % share.ranks:
            raise Incomplete("the ranks do not divide the experts", where=leaf, got=f"{whole.shape[0]}/{share.ranks}")
        dim = 0
    elif style in _TURNED:
        dim = whole.ndim - _TURNED[style]
    elif style in ("embedding_rowwise", "embedding_colwise"):
        dim = 0 if style == "embedding_rowwise" else 1
    elif style.startswith(("colwise", "packed_colwise")):
        dim = max(whole.ndim - 2, 0)
    elif not style.startswith(("rowwise", "packed_rowwise")):
        raise Incomplete("costproof does not know this tensor-parallel style of the plan", where=leaf, got=style)
    if style.startswith("packed") and whole.ndim > 1:
        halves = whole.chunk(2, dim)
        return torch.cat([_chunk(half, dim, share) for half in halves], dim)
    return whole if style == "packed_rowwise" else _chunk(whole, dim, share).clone()


def _chunk(whole: torch.Tensor, dim: int, share: Share) -> torch.Tensor:
    import torch

    own = replace(share, size=whole.shape[dim])
    if own.padded > own.size:
        more = [*whole.shape[:dim], own.padded - own.size, *whole.shape[dim + 1 :]]
        whole = torch.cat([whole, whole.new_zeros(more)], dim)
    first, last = own.bounds
    return whole.narrow(dim, first, last - first)


Inner = Callable[..., Any]
_KEPT: Final = "_share"
"""Attribute of a module that holds its :class:`Share`."""


def _join(module: Any, share: Share) -> None:
    """Make a module exchange its input or output with other ranks as its style requires."""
    if share.style not in _FORWARDS:
        if share.style not in _WHOLE | {"colwise", "packed_colwise", "packed_rowwise", "grouped_gemm", ROWS_ALONE}:
            raise Incomplete("costproof does not know this tensor-parallel style of the plan", got=share.style)
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
    """Concatenate the parts [.., chunk] of all ranks to [.., size]; incomplete parts are padded for the gather."""
    import torch

    missing = share.chunk - int(value.shape[-1])
    padded = torch.nn.functional.pad(value, (0, missing)) if missing else value
    ops = torch.ops._c10d_functional
    every = ops.wait_tensor(ops.all_gather_into_tensor(padded, share.ranks, _group(share)))
    joined: torch.Tensor
    if all(size == 1 for size in padded.shape[:-1]):  # the parts of a single row are in order already
        joined = every.view(*padded.shape[:-1], -1)
    else:
        joined = torch.cat(every.view(share.ranks, *padded.shape).unbind(0), -1)
    return joined[..., : share.size] if share.chunk * share.ranks != share.size else joined


def _looked_up(share: Share, module: Any, inner: Inner, ids: torch.Tensor) -> torch.Tensor:
    """Look up the rows of this rank's part of the table, set other rows to zero, and add the results of all ranks."""
    import torch

    first, last = share.bounds
    outside = (ids < first) | (ids >= last)
    rows = inner(module, (ids - first).masked_fill(outside, 0))
    zero = torch.scalar_tensor(0.0, dtype=rows.dtype, device=rows.device)
    if share.tokens is not None:
        share.tokens.shared = ids.shape[1] > 1
    return _sum_up(rows.index_put_((outside,), zero), share)


def _sum_up(value: torch.Tensor, share: Share) -> torch.Tensor:
    """All-reduce a tensor [B, S, width]; under sequence parallelism, reduce-scatter it to [B, S / n, width]."""
    if not share.shares_tokens:
        return _all_reduce(value, share)
    import torch

    single, ops = value.shape[0] == 1, torch.ops._c10d_functional
    parts = value.squeeze(0) if single else torch.cat(value.chunk(share.ranks, 1), 0)
    own: torch.Tensor = ops.wait_tensor(ops.reduce_scatter_tensor(parts, "sum", share.ranks, _group(share)))
    return own.unsqueeze(0) if single else own


def _gathered_tokens(share: Share, module: Any, inner: Inner, value: torch.Tensor) -> torch.Tensor:
    """Run a norm on [B, S / n, width] and all-gather its results to [B, S, width]."""
    import torch

    own: torch.Tensor = inner(module, value)
    if not share.shares_tokens:
        return own
    single, ops = own.shape[0] == 1, torch.ops._c10d_functional
    parts = own.squeeze(0) if single else own
    every: torch.Tensor = ops.wait_tensor(ops.all_gather_into_tensor(parts, share.ranks, _group(share)))
    return every.unsqueeze(0) if single else torch.cat(every.chunk(share.ranks, 0), 1)


def _whole_positions(share: Share, module: Any, inner: Inner, value: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Compute the rotary table of the tokens of all ranks, where the model counts only this rank's tokens."""
    import torch

    if not share.shares_tokens:
        return inner(module, value, *args, **kwargs)
    positions, others = (args[0], args[1:]) if args else (kwargs.pop("position_ids"), ())
    every = torch.arange(positions.shape[1] * share.ranks, device=positions.device).unsqueeze(0)
    return inner(module, value, every, *others, **kwargs)


def _looked_up_in_part(share: Share, module: Any, inner: Inner, ids: torch.Tensor) -> torch.Tensor:
    return _all_gather_last(inner(module, ids), share)


def _gathered(share: Share, module: Any, inner: Inner, value: torch.Tensor) -> torch.Tensor:
    return _all_gather_last(inner(module, value), share)


def _summed(share: Share, module: Any, inner: Inner, value: torch.Tensor) -> torch.Tensor:
    """Multiply by this rank's columns, add the products of all ranks, and add the bias once."""
    bias = module._parameters.get("bias")
    if share.style != "rowwise":
        first, last = share.bounds
        value = value[..., first:last]
    module._parameters["bias"] = None
    try:
        product = inner(module, value)
    finally:
        module._parameters["bias"] = bias
    summed = _sum_up(product, share)
    return summed if bias is None else summed + bias


def _added(share: Share, module: Any, inner: Inner, *args: Any, **kwargs: Any) -> Any:
    found = inner(module, *args, **kwargs)
    return None if found is None else _all_reduce(found, share)


def _latents(share: Share, module: Any, inner: Inner, value: torch.Tensor) -> torch.Tensor:
    """Split the latents and concatenate them again, as transformers does for a separate gradient."""
    import torch

    found = inner(module, value)
    width = int(module._rope_width)
    return torch.cat(found.split([found.shape[-1] - width, width], -1), -1)


def _dispatched(
    share: Share, module: Any, inner: Inner, value: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Run this rank's experts on the tokens that chose them, and add the results of all ranks.

    A token's choice of another rank's expert gets a number after the last expert, and weight 0. Ranks with batches of
    their own first gather the tokens of all, and each gets back the sums of its own.
    """
    import torch

    own = module.num_experts
    if share.splits is not None:
        return _exchanged(share, module, inner, value, chosen, weights)
    if share.batches > 1:
        value, chosen, weights = (_all_gather_first(x, share) for x in (value, chosen, weights))
    elsewhere = (chosen // own) != share.rank
    here = torch.where(elsewhere, own, chosen % own)
    result: torch.Tensor = inner(module, value, here, weights.masked_fill(elsewhere, 0.0))
    if share.style == "ep_local_experts":
        return result
    if share.batches > 1:
        ops, group = torch.ops._c10d_functional, f"{BATCHES}:{share.batches}"
        if share.sequences:
            parts = _parts_of(result.shape[0], sum(share.sequences), share)
            result = uneven("reduce_scatter_v")(result, parts, _place(share), group)
        else:
            result = ops.wait_tensor(ops.reduce_scatter_tensor(result, "sum", share.batches, group))
    alike = replace(share, ranks=share.ranks // share.batches)
    return (_all_reduce(result, alike) if alike.ranks > 1 else result).to(value.dtype)


def _exchanged(
    share: Share, module: Any, inner: Inner, value: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Send each (token, expert) pair to the expert's rank; weight and add the results that come back.

    Ranks along ``tp`` send slices of the tokens that they share, and gather the results of all slices. The sizes are
    given; that they are those of the choices is up to the caller, as with values of any other kind.
    """
    import torch

    assert share.splits is not None
    ops, alike = torch.ops._c10d_functional, share.ranks // share.batches
    (to, of), dtype = splits_in(share.splits, value), value.dtype
    group = f"{BATCHES if alike == 1 else 'ep'}:{share.ranks}@{share.rank}"
    tokens = value.shape[0]
    chunk = -(-tokens // alike)
    if alike > 1:
        first = min(share.rank % alike * chunk, tokens)
        value, chosen, weights = (x[first : first + chunk].clone() for x in (value, chosen, weights))
    even = [module.num_experts] * share.ranks
    order = chosen.flatten().argsort()
    every = torch.arange(sum(even), device=value.device)
    counts = (chosen.flatten()[:, None] == every).sum(0)
    counts = ops.wait_tensor(ops.all_to_all_single(counts, even, even, group))
    pairs = ops.wait_tensor(ops.all_to_all_single(value[order // chosen.shape[-1]], of, to, group))
    own = torch.arange(module.num_experts, device=value.device).repeat(share.ranks)
    own = own.repeat_interleave(counts, output_size=sum(of))[:, None]
    result = inner(module, pairs, own, torch.ones_like(own, dtype=pairs.dtype))
    back = ops.wait_tensor(ops.all_to_all_single(result, to, of, group))
    placed = torch.empty_like(back)
    placed[order] = back
    sums: torch.Tensor = (placed.view(*weights.shape, placed.shape[-1]) * weights[..., None]).sum(1)
    if alike > 1:
        if missing := chunk - sums.shape[0]:
            sums = torch.nn.functional.pad(sums, (0, 0, 0, missing))
        sums = ops.wait_tensor(ops.all_gather_into_tensor(sums, alike, f"{GROUP}:{alike}"))
        sums = sums[:tokens] if chunk * alike != tokens else sums
    return sums.to(dtype)


def _all_gather_first(value: torch.Tensor, share: Share) -> torch.Tensor:
    """Concatenate the parts [rows, ..] of all ranks, which may be uneven."""
    import torch

    every: torch.Tensor
    batches, ops = share.batches, torch.ops._c10d_functional
    if share.sequences:
        parts = _parts_of(value.shape[0], share.sequences[_place(share)], share)
        every = uneven("all_gather_v")(value, parts, _place(share), f"{BATCHES}:{batches}")
    else:
        every = ops.wait_tensor(ops.all_gather_into_tensor(value, batches, f"{BATCHES}:{batches}"))
    return every


def _place(share: Share) -> int:
    """Return the index of a rank among the ranks that have batches of their own."""
    return share.rank * share.batches // share.ranks


def _parts_of(rows: int, sequences: int, share: Share) -> list[int]:
    """Return the rows of each rank, given that ``sequences`` sequences have ``rows`` rows."""
    return [rows // sequences * own for own in share.sequences]


@cache
def uneven(name: str) -> Any:
    """Return our operator that gathers, or reduces and scatters, uneven parts; torch has none that can be exported.

    As vLLM's ``all_gatherv`` and ``reduce_scatterv`` (PyNccl) do, one rank after another broadcasts its part, or gets
    the sum for it.
    """
    import torch

    if not _LIBRARY:
        library: Any = torch.library.Library("costproof", "FRAGMENT")  # type: ignore[no-untyped-call]
        _LIBRARY.append(library)  # which unregisters its operators when it is deleted
        for of, run, rows in (("all_gather_v", _gather_parts, sum), ("reduce_scatter_v", _scatter_sums, None)):
            library.define(f"{of}(Tensor local, int[] parts, int place, str group_name) -> Tensor")
            library.impl(of, run, "CompositeExplicitAutograd")
            library.impl(of, partial(_shape_of_parts, rows), "Meta")
    return getattr(torch.ops.costproof, name)


_LIBRARY: Final[list[Any]] = []


def _shape_of_parts(rows: Any, local: torch.Tensor, parts: list[int], place: int, group_name: str) -> torch.Tensor:
    return local.new_empty((parts[place] if rows is None else sum(parts), *local.shape[1:]))


def _gather_parts(local: torch.Tensor, parts: list[int], place: int, group_name: str) -> torch.Tensor:
    import torch
    import torch.distributed as dist

    group, joined = _group_named(group_name), local.new_empty((sum(parts), *local.shape[1:]))
    for i, part in enumerate(torch.split(joined, parts)):
        if i == place:
            part.copy_(local)
        dist.broadcast(part, group_src=i, group=group)
    return joined


def _scatter_sums(local: torch.Tensor, parts: list[int], place: int, group_name: str) -> torch.Tensor:
    import torch
    import torch.distributed as dist

    group, summed = _group_named(group_name), torch.split(local.clone(), parts)
    for i, part in enumerate(summed):
        dist.reduce(part, group_dst=i, group=group)
    return summed[place].clone()


def _group_named(name: str) -> Any:
    from torch.distributed import distributed_c10d

    resolve: Any = vars(distributed_c10d)["_resolve_process_group"]
    return resolve(name)


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
    "ep_local_experts": _dispatched,
    "gather_tokens": _gathered_tokens,
    "whole_positions": _whole_positions,
}
"""Forward that replaces a module's own, by style; other styles keep the module's own."""
