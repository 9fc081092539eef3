"""Make this process one rank of a group, and apply transformers' own plan of tensor or expert parallelism to a model.

The group is torch's fake one: it exchanges nothing, so one process can take the part of any rank of any mesh, with
tensors that have no values.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.errors import BadInput, Incomplete, first_line
from costproof.patches.exchanges import (
    ExchangingExperts,
    GatheringExperts,
    SharedSequence,
    SharedTokens,
    expert_meshes,
    mesh_axes,
    registered,
)
from costproof.patches.patch import Patch, patched

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

NOTE: Final = (
    "operators are recorded at the dispatcher, since TorchLens sees distributed tensors in the size of the whole model"
)
"""Note in results of models that transformers has distributed."""
Plan = Mapping[str, str]
"""Name of a parallel style of transformers, by path of a module or parameter."""
_Splits = Sequence[Mapping[int, Sequence[tuple[Sequence[int], Sequence[int]]]]]
"""Numbers of pairs that go to and come from each rank, by layer with experts, tokens of a call, and call."""


@contextmanager
def fake_group(ranks: int, rank: int) -> Iterator[None]:
    """Make this process rank ``rank`` of ``ranks`` in a fake process group, which sends nothing, while the block runs.

    Raises:
        BadInput: the process already belongs to a group of torch.distributed.
        Incomplete: torch is built without torch.distributed.
    """
    import torch.distributed as dist

    if not dist.is_available():
        raise Incomplete("this build of torch has no torch.distributed", fix="install torch with distributed support")
    if dist.is_initialized():
        raise BadInput(
            "this process already belongs to a group of torch.distributed, and a rank is counted in a fake one",
            where="torch.distributed", expected="no initialized process group", got=dist.get_backend(),
            fix="count before init_process_group, after destroy_process_group, or in another process",
        )  # fmt: skip
    from torch.testing._internal.distributed.fake_pg import FakeStore

    hook = sys.excepthook  # init_process_group replaces it by one that prints the rank
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook


def plans_of(model: nn.Module, tensor: int, expert: int) -> tuple[Plan, Plan]:
    """Return transformers' plans of a model for tensor and for expert parallelism.

    Raises:
        Incomplete: the installed transformers cannot resolve plans, or the model has none.
    """
    try:
        from transformers.distributed.configuration_utils import DistributedConfig
    except ImportError as error:
        raise Incomplete("the installed transformers has no plans", fix="pip install 'transformers>=5.22'") from error
    resolve: Any = getattr(model, "_resolve_parallel_plans", None)
    if resolve is None:
        raise Incomplete("the model has no plan of transformers for several devices", got=type(model).__name__)
    try:
        with quiet():
            batches = max(1, expert // tensor)
            found = resolve(DistributedConfig(tp_size=tensor, ep_size=expert, fsdp_size=batches))
    except ValueError as error:
        raise Incomplete("transformers cannot distribute this model", got=first_line(error)) from error
    return found[0], found[1]


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' warnings while the block runs, such as those on plan entries that match nothing."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


@dataclass(frozen=True, slots=True)
class _SplitParameter:
    """A distributed parameter: its module and name, and its tensor during a run and at other times."""

    module: nn.Module
    name: str
    distributed: Any
    local: nn.Parameter


class Distributed:
    """A model that transformers has distributed; outside of :meth:`running` its parameters are plain local tensors."""

    def __init__(
        self,
        model: nn.Module,
        plans: tuple[Plan, Plan],
        ranks: int,
        rank: int,
        stages: int = 1,
        batches: int = 1,
        splits: _Splits = (),
        sequence: SharedSequence | None = None,
        sequences: tuple[int, ...] = (),
    ) -> None:
        """Split a model over ranks.

        Args:
            plans: plans of tensor and expert parallelism; empty if layers are not split.
            ranks: number of ranks that share each layer.
            rank: index of this rank among those of all pipeline stages or batches; those of one stage or batch are
                adjacent.
            stages: number of pipeline stages; see :func:`cut_to_stage`.
            batches: number of groups of ranks with separate batches that share experts.
            splits: numbers of pairs of a token and an expert that this rank sends to each rank that shares experts, and
                receives from it, in each layer with experts, by the number of tokens of a call; empty if ranks gather
                tokens.
            sequence: how ranks share a sequence; ranks of one layer are adjacent, then those of one stage.
            sequences: number of sequences in each of the ``batches``, if these are unequal.
        """
        self._sequence = sequence
        self._shared = 1 if sequence is None else sequence.ranks
        self.ranks, self.rank, self._stages, self._batches = ranks, rank, stages, batches
        form = _form(model, splits, partial(GatheringExperts, sequences=sequences))
        with self._group():
            distributed = ranks * batches > 1
            self._held = tuple(_distribute(model, plans, self._meshes(), form)) if distributed else ()
        for one in self._held:
            one.module._parameters[one.name] = one.local
        if stages > 1:
            cut_to_stage(model, ranks * batches * self._shared, rank, stages)

    def _group(self) -> AbstractContextManager[None]:
        return fake_group(self.ranks * self._stages * self._batches * self._shared, self.rank)

    def _meshes(self) -> tuple[DeviceMesh, DeviceMesh]:
        """Create the process groups of this rank, with the same names each time."""
        if self._shared == 1:
            return expert_meshes(self._batches, self.ranks, self._stages)
        _, shared, own = mesh_axes(pp=self._stages, cp=self._shared, tp=self.ranks)
        if self._sequence is not None:
            self._sequence.group = shared.get_group()
        return own, own

    @contextmanager
    def running(self) -> Iterator[None]:
        """Make the model run as one rank while the block runs."""
        with self._group():
            if self._sequence is not None or (self._stages * self._batches > 1 and self._held):
                self._meshes()
            for one in self._held:
                one.module._parameters[one.name] = one.distributed
            try:
                with nullcontext() if self._sequence is None else self._sequence.attending():
                    yield
            finally:
                for one in self._held:
                    one.module._parameters[one.name] = one.local


def _form(model: nn.Module, splits: _Splits, gathers: Callable[..., Any]) -> Callable[..., Any]:
    """Return the form in which the experts of a model get tokens: of pairs if their numbers are given, or gathered."""
    if not splits:
        return gathers
    experts = [m for name, m in model.named_modules() if name.endswith(".experts") and hasattr(m, "num_experts")]
    return partial(ExchangingExperts, dict(zip(map(id, experts), splits, strict=True)))


PARTS: Final = "_costproof_parts"
"""Attribute of a model with its sharded parameters: :class:`ParameterShard` by name."""


@dataclass(frozen=True, slots=True)
class ParameterShard:
    """Sizes of the shard of a parameter that a rank stores."""

    own: int
    """Number of elements in the shard, without padding."""
    bytes: int
    """Bytes of the shard, with padding."""
    whole: int
    """Number of elements of the whole parameter."""


_FSDP: Final = "torch.distributed.fsdp._fully_shard"
_TEST: Final = "tracers/test_fsdp_ranks.py"
ON_META: Final = (
    Patch(
        f"{_FSDP}._fsdp_param_group:FSDPParamGroup._validate_no_meta_params",
        lambda original: lambda self: None,
        "fully_shard refuses parameters on meta, since it is made for training",
        _TEST,
    ),
    Patch(
        "torch:meta",
        lambda original: sys.modules["torch"].cpu,
        "fully_shard asks the module of a device for its streams, and meta has none; a CPU's do nothing",
        _TEST,
        missing="create",
    ),
)
"""Patches with which torch's ``fully_shard`` runs on the meta device."""


class FullySharded:
    """A decoder under torch's ``fully_shard``; outside of :meth:`running` its parameters are the shards of one rank."""

    def __init__(
        self, model: Any, ranks: int, rank: int, *, stages: int = 1, replicas: int = 1, tensor: int = 1,
        plans: tuple[Plan, Plan] = ({}, {}), sequence: SharedSequence | None = None,
        splits: _Splits = (),
    ) -> None:  # fmt: skip
        """Shard every layer and then the model; gathered parameters are freed after each forward.

        Args:
            ranks: number of ranks that share the batch and store a shard of each parameter.
            rank: index among all ranks; those along ``tensor`` are adjacent, then those of ``sequence``, ``ranks``,
                ``replicas`` and ``stages``.
            stages: number of pipeline stages; see :func:`cut_to_stage`.
            replicas: number of groups of ranks that each store all shards: torch's hybrid sharding, if there are
                several.
            tensor: number of ranks over which transformers distributes the model first, by ``plans``.
            sequence: how ranks share a sequence; they store shards too, as torchtitan's mesh ``fsdp`` has
                ``dp_shard * cp`` ranks.
            splits: as those of :class:`Distributed`.
        """
        import torch
        from torch.distributed.fsdp import fully_shard

        self._sequence = sequence
        ranks *= 1 if sequence is None else sequence.ranks
        self._sizes, self.rank = (stages, replicas, ranks, tensor), rank
        with self._group():
            _, _, stored_by, own = self._meshes()
            if replicas > 1:
                every = own._get_root_mesh()
                stored_by = every[(every.mesh_dim_names or ())[1:3]]
            if tensor > 1:
                deque(_distribute(model, plans, (own, own), _form(model, splits, GatheringExperts)), 0)
            if stages > 1:
                cut_to_stage(model, ranks * replicas * tensor, rank, stages)
            layers = [layer for layer in model.get_decoder().layers if any(True for _ in layer.parameters())]
            self._modules = (*layers, model)
            for module in self._modules:
                kind = type(module)
                fully_shard(module, mesh=stored_by, reshard_after_forward=True)
                # The name stays, since it is that of the module in a ledger.
                module.__class__ = type(kind.__name__, (type(module),), {"__module__": kind.__module__})
        meta, parts = torch.device("meta"), dict[int, ParameterShard]()
        for group in self._groups():
            group.device = meta if group.fsdp_params[0].sharded_param.is_meta else group.device
            for one in group.fsdp_params:
                parameter, stored = one.sharded_param, one._sharded_param_data
                parameter._costproof_part = stored
                own = parameter._local_tensor
                whole = one._orig_size.numel()
                parts[id(parameter)] = ParameterShard(own.numel(), own.untyped_storage().nbytes(), whole)
        named = model.named_parameters()
        vars(model)[PARTS] = {name: parts[id(parameter)] for name, parameter in named}
        self._held = tuple(_split_parameters(model))
        self._swap(outside=True)

    def _group(self) -> AbstractContextManager[None]:
        return fake_group(prod(self._sizes), self.rank)

    def _meshes(self) -> tuple[DeviceMesh, ...]:
        return mesh_axes(**dict(zip(("pp", "dp", "fsdp", "tp"), self._sizes, strict=True)))

    @contextmanager
    def _attending(self, sequence: SharedSequence) -> Iterator[None]:
        others = prod(self._sizes[:3]) // sequence.ranks
        sequence.group = mesh_axes(others=others, cp=sequence.ranks, each=self._sizes[3])[1].get_group()
        with sequence.attending():
            yield

    def _groups(self) -> Iterator[Any]:
        for module in self._modules:
            yield from module._get_fsdp_state()._fsdp_param_groups

    def _swap(self, *, outside: bool) -> None:
        for one in self._held:
            one.module._parameters[one.name] = one.local if outside else one.distributed

    @contextmanager
    def running(self) -> Iterator[None]:
        """Make the decoder run as one rank while the block runs."""
        with self._group(), patched(*ON_META):
            group = self._meshes()[2].get_group()
            for one in self._groups():
                one.mesh_info.shard_process_group = group
            self._swap(outside=False)
            try:
                with nullcontext() if self._sequence is None else self._attending(self._sequence):
                    yield
            finally:
                self._swap(outside=True)


class _Missing:
    """Forward of a module that another pipeline stage has, as in vLLM's ``PPMissingLayer``."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the first argument unchanged."""
        return args[0] if args else next(iter(kwargs.values()))


def cut_to_stage(model: Any, ranks: int, rank: int, stages: int) -> None:
    """Reduce a model to one stage of a pipeline, as vLLM does with models of transformers.

    Layers of other stages are replaced by modules that pass hidden states on; so are embedding, norm and head where
    another stage runs them. The decoder receives its input from the rank before, and sends its result to the one after.
    """
    import torch
    import torch.distributed as dist

    decoder, stage = model.get_decoder(), rank // ranks
    counts = [len(decoder.layers) // stages] * stages
    for left in range(len(decoder.layers) % stages):
        counts[-2 - left] += 1
    missing = type("PPMissingLayer", (_Missing, torch.nn.Module), {})
    owner = [i for i, count in enumerate(counts) for _ in range(count)]
    for i, of in enumerate(owner):
        decoder.layers[i] = decoder.layers[i] if of == stage else missing()
    if stage:
        model.set_input_embeddings(missing())
    if stage < stages - 1:
        decoder.norm = missing()
        model.set_output_embeddings(missing())
        model.config.final_logit_softcapping = None
    kind = type(decoder)

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if stage:
            dist.recv(kwargs["inputs_embeds"], rank - ranks)
        found = kind.forward(self, *args, **kwargs)
        if stage < stages - 1:
            dist.send(found.last_hidden_state, rank + ranks)
        return found

    decoder.__class__ = type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})


def _distribute(
    model: nn.Module,
    plans: tuple[Plan, Plan],
    meshes: tuple[DeviceMesh, DeviceMesh],
    implementation: Callable[..., Any],
) -> Iterator[_SplitParameter]:
    import torch
    from transformers.distributed.expert_parallel import apply_expert_parallelism
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    tensor, expert = plans
    # As from_pretrained, which ties parameters only behind the distribution.
    first: dict[int, tuple[nn.Module, str]] = {}
    tied: list[tuple[nn.Module, str, tuple[nn.Module, str]]] = []
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is None:
                continue
            if id(parameter) in first:
                tied.append((module, name, first[id(parameter)]))
                module._parameters[name] = torch.nn.Parameter(torch.empty_like(parameter), requires_grad=False)
            else:
                first[id(parameter)] = module, name
    try:
        if tensor:
            shared = SharedTokens.NAME in tensor.values()
            with SharedTokens().styles() if shared else nullcontext():
                apply_tensor_parallelism(model, meshes[0], dict(tensor))
        if expert:
            with registered(implementation) as name:
                gathers = getattr(implementation, "func", implementation) is GatheringExperts
                form = "auto" if gathers and meshes[0].size() == meshes[1].size() else name
                apply_expert_parallelism(model, meshes[1], meshes[0], dict(expert), ep_implementation=form)
    except ValueError as error:
        raise Incomplete("transformers cannot distribute this model", got=first_line(error)) from error
    for module, name, (owner, first_name) in tied:
        module._parameters[name] = owner._parameters[first_name]
    yield from _split_parameters(model)


def _split_parameters(model: nn.Module) -> Iterator[_SplitParameter]:
    """Yield each distributed parameter of a model, together with its local tensor."""
    import torch
    from torch.distributed.tensor import DTensor

    plain: dict[int, nn.Parameter] = {}
    """Local parameter by id of the distributed one, so that tied parameters stay tied."""
    for module in model.modules():
        held: dict[str, Any] = dict(module._parameters)
        for name, parameter in held.items():
            if isinstance(parameter, DTensor):
                own = torch.nn.Parameter(parameter._local_tensor, requires_grad=parameter.requires_grad)
                yield _SplitParameter(module, name, parameter, plain.setdefault(id(parameter), own))
