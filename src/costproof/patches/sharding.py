"""Make this process one rank of a group, and apply transformers' own plan of tensor or expert parallelism to a model.

The group is torch's fake one: it exchanges nothing, so one process can take the part of any rank of any mesh, with
tensors that have no values.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.errors import BadInput, Incomplete, first_line

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

NOTE: Final = (
    "operators are recorded at the dispatcher, since TorchLens sees distributed tensors in the size of the whole model"
)
"""Note on the run of a model that transformers has distributed."""
AXIS: Final = "tp"
"""Name of the dimension of the mesh."""
Plan = Mapping[str, str]
"""Path of a module or a parameter -> name of a style of transformers."""


@contextmanager
def fake_group(ranks: int, rank: int) -> Iterator[None]:
    """Make this process rank ``rank`` of ``ranks`` while the block runs; nothing is exchanged and nothing remains.

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
    """Return the plans of a model of transformers for tensor and for expert parallelism, layer by layer.

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
            found = resolve(DistributedConfig(tp_size=tensor, ep_size=expert))
    except ValueError as error:
        raise Incomplete("transformers cannot distribute this model", got=first_line(error)) from error
    return found[0], found[1]


@contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings of transformers, such as those on rules of a plan that match nothing."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


@dataclass(frozen=True, slots=True)
class _SplitParameter:
    """A distributed parameter: the module that owns it, and its form inside and outside of a run."""

    module: nn.Module
    name: str
    distributed: Any
    local: nn.Parameter


class Distributed:
    """A model that transformers has distributed: outside of :meth:`running` its parameters are plain local tensors."""

    def __init__(self, model: nn.Module, plans: tuple[Plan, Plan], ranks: int, rank: int, stages: int = 1) -> None:
        """Distribute a model.

        Args:
            plans: empty if ranks have no parts of layers.
            ranks: that share each layer.
            rank: of those of all pipeline stages, the ones of a stage being neighbours.
            stages: pipeline stages; see :func:`cut_to_stage`.
        """
        self.ranks, self.rank, self._stages = ranks, rank, stages
        with self._group():
            self._held = tuple(_distribute(model, self._mesh(), plans)) if ranks > 1 else ()
        for one in self._held:
            one.module._parameters[one.name] = one.local
        if stages > 1:
            cut_to_stage(model, ranks, rank, stages)

    def _group(self) -> AbstractContextManager[None]:
        return fake_group(self.ranks * self._stages, self.rank)

    def _mesh(self) -> DeviceMesh:
        """Make the groups of ranks, which have the same names each time."""
        from torch.distributed.device_mesh import init_device_mesh

        if self._stages == 1:
            return init_device_mesh("cpu", (self.ranks,), mesh_dim_names=(AXIS,))
        both = init_device_mesh("cpu", (self._stages, self.ranks), mesh_dim_names=("pp", AXIS))
        return both[AXIS]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the model as its rank while the block runs."""
        with self._group():
            if self._stages > 1 and self._held:
                self._mesh()
            for one in self._held:
                one.module._parameters[one.name] = one.distributed
            try:
                yield
            finally:
                for one in self._held:
                    one.module._parameters[one.name] = one.local


class _Missing:
    """Forward of a module of another pipeline stage, as that of vLLM's ``PPMissingLayer``."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the first argument."""
        return args[0] if args else next(iter(kwargs.values()))


def cut_to_stage(model: Any, ranks: int, rank: int, stages: int) -> None:
    """Make a model one stage of a pipeline, as vLLM makes one of a model of transformers.

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


def _distribute(model: nn.Module, mesh: DeviceMesh, plans: tuple[Plan, Plan]) -> Iterator[_SplitParameter]:
    import torch
    from torch.distributed.tensor import DTensor
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
            apply_tensor_parallelism(model, mesh, dict(tensor))
        if expert:
            apply_expert_parallelism(model, mesh, mesh, dict(expert))
    except ValueError as error:
        raise Incomplete("transformers cannot distribute this model", got=first_line(error)) from error
    for module, name, (owner, first_name) in tied:
        module._parameters[name] = owner._parameters[first_name]
    plain: dict[int, nn.Parameter] = {}
    """A tied parameter stays one."""
    for module in model.modules():
        held: dict[str, Any] = dict(module._parameters)
        for name, parameter in held.items():
            if isinstance(parameter, DTensor):
                own = torch.nn.Parameter(parameter._local_tensor, requires_grad=parameter.requires_grad)
                yield _SplitParameter(module, name, parameter, plain.setdefault(id(parameter), own))
