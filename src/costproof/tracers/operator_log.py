"""Record the operators of a forward at the dispatcher, by stage and module, with shape, strides and dtype of tensors.

The forward may run with values or without. Without values its tensors are fake ones on the target device, so operators
take the branches of that device; on meta some differ, such as fused attention, which becomes matrix products. Nothing
is computed or allocated then, so a model that does not fit in memory can be recorded too.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves

from costproof.ledger.errors import CostproofError, Incomplete, first_line
from costproof.models.specs import Run
from costproof.patches.inference import inference_context
from costproof.snapshots.copies import with_tensors
from costproof.tracers.cpu_fallback import with_numbers
from costproof.tracers.timing import NOWHERE, Stage, watch_modules

_WEIGHTS_KEPT: Final = 8
"""Number of weight sets that are kept of a distinct call, to be used in turn."""
_NO_WORK: Final = "prim"
"""Namespace of operators that only query a tensor; the dispatcher sees them only for fake tensors."""
_STANDS_FOR: Final = {"transformers.grouped_mm_fallback.default": "_grouped_mm"}
"""Operator of torch that runs instead if tensors have values, by name of the recorded operator."""


CallPosition = tuple[int, int]
"""Position of a call in its forward, and the number of module calls between the operator before it and this call."""


@dataclass(frozen=True, slots=True)
class TensorForm:
    """Shape, strides and dtype of a tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    weight: bool
    """Whether the tensor is in the memory of a parameter of the model."""

    @property
    def size(self) -> int:
        """Return the number of elements in the memory span of the tensor; overlapping elements count once."""
        if not all(self.shape):
            return 0
        return 1 + sum((n - 1) * abs(s) for n, s in zip(self.shape, self.stride, strict=True))

    @property
    def bytes(self) -> int:
        """Return the bytes of the memory span of the tensor."""
        return self.size * self.dtype.itemsize


@dataclass(slots=True)
class LoggedCall:
    """An operator call that differs from all others in operator, tensor shapes and dtypes, or other arguments."""

    function: Any
    spec: Any
    leaves: list[Any]
    """Flattened arguments: shapes and dtypes of tensors, index tensors, and all other values."""
    results: int | None = None
    """Bytes of the results outside the memory of the arguments; ``None`` before the call."""
    weights: list[list[torch.Tensor]] = field(default_factory=list)

    @property
    def views(self) -> bool:
        """Return whether the operator only returns a view, without reading memory."""
        return bool(getattr(self.function, "is_view", False))

    @property
    def tensors(self) -> list[TensorForm | torch.Tensor]:
        """Return the tensors among the arguments, or their descriptions, in order."""
        return [leaf for leaf in self.leaves if isinstance(leaf, TensorForm | torch.Tensor)]


class OperatorLog(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Record of the operators that a forward calls, by stage and module.

    Args:
        model: the model whose parameters are weights.
        numbers: whether tensors have values; if so, indices, masks and weights are kept.
    """

    def __init__(self, model: torch.nn.Module, *, numbers: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.place: tuple[Stage, str] = (NOWHERE, "")
        self.calls: dict[tuple[Stage, str, Any], list[CallPosition]] = {}
        self.distinct: dict[Any, LoggedCall] = {}
        self._weights = {_memory_of(p) for p in model.parameters()}
        self._numbers = numbers
        self._noted_calls = self._boundaries = self._modules = 0

    def passed(self, stage: Stage, module: str) -> None:
        """Set the stage and module that the following calls belong to."""
        self.place = (stage, module)
        self._boundaries += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == _NO_WORK:
            return func(*args, **(kwargs or {}))
        # Arguments are recorded before the call, which may write to them.
        call = self._noted(func, args, kwargs or {})
        result = func(*args, **(kwargs or {}))
        if call.results is None:
            made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
            given = {_memory_of(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
            call.results = sum(self._form(t).bytes for t in made if _memory_of(t) not in given)
        return result

    def _noted(self, func: Any, args: Any, kwargs: Any) -> LoggedCall:
        leaves, spec = tree_flatten((args, kwargs))
        forms = [self._form(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        function = func if self._numbers else _real_operator(func)
        key = (function, str(spec), *(leaf if isinstance(leaf, TensorForm) else repr(leaf) for leaf in forms))
        modules = (self._boundaries + 1) // 2  # each module call has two
        self.calls.setdefault((*self.place, key), []).append((self._noted_calls, modules - self._modules))
        self._noted_calls, self._modules = self._noted_calls + 1, modules
        if key not in self.distinct:
            kept = map(_kept, leaves, forms) if self._numbers else forms
            self.distinct[key] = LoggedCall(function, spec, list(kept))
        found = self.distinct[key]
        own = [leaf for leaf, form in zip(leaves, forms, strict=True) if isinstance(form, TensorForm) and form.weight]
        if own and self._numbers and len(found.weights) < _WEIGHTS_KEPT:
            found.weights.append(own)
        return found

    def _form(self, tensor: torch.Tensor) -> TensorForm:
        weight = tensor.is_floating_point() and _memory_of(tensor) in self._weights
        return TensorForm(tuple(tensor.shape), tensor.stride(), tensor.dtype, weight)


def _memory_of(tensor: torch.Tensor) -> int:
    """Return a key that all tensors in one storage share, with or without values."""
    return int(tensor.untyped_storage()._cdata)


def _kept(leaf: Any, form: Any) -> Any:
    """Return the description of an argument; integer tensors (indices and masks) are copied."""
    indices = isinstance(leaf, torch.Tensor) and not (leaf.is_floating_point() or leaf.is_complex())
    return leaf.detach().clone() if indices else form


def _real_operator(func: Any) -> Any:
    """Return the operator that replaces a recorded one when it runs on values."""
    packet = getattr(torch.ops.aten, _STANDS_FOR.get(str(func), ""), None)
    return func if packet is None else packet.default


def log_operators(run: Run) -> OperatorLog:
    """Run a forward with values, and return its operators."""
    notes, kwargs = OperatorLog(run.model, numbers=True), run.inputs()
    with watch_modules(run, _everywhere(run), notes.passed), torch.no_grad(), run.around(), notes:
        run.model(**kwargs)
    return notes


def log_operators_without_values(run: Run, device: str) -> OperatorLog:
    """Return the operators of a forward on meta as they would run on a device, without computing anything.

    A forward that needs values, and may run elsewhere, runs with values on the CPU if that is the device.

    Raises:
        Incomplete: the forward needs values, or the model cannot be copied.
    """
    mode = FakeTensorMode()
    claims = _FakeCopies(mode, device)
    try:
        model = with_tensors(run.model, claims.made)
        with claims:
            kwargs = run.inputs()
        there = replace(run, model=model)
        notes = OperatorLog(model, numbers=False)
        with (
            inference_context(model),
            watch_modules(there, _everywhere(there), notes.passed),
            run.around(),
            mode,
            notes,
        ):
            model(**kwargs)
    except CostproofError:
        raise
    except Exception as error:  # code of other packages may raise anything
        if run.elsewhere and device == "cpu":
            return log_operators(with_numbers(run))
        raise Incomplete(
            "the model does not run on tensors without values", where=run.id, got=first_line(error)
        ) from error
    return notes


def _everywhere(run: Run) -> list[str]:
    return [path for path, _ in run.model.named_modules()]


class _FakeCopies(TorchFunctionMode):
    """Mode in which ``deepcopy`` creates fake tensors on a device."""

    def __init__(self, mode: FakeTensorMode, device: str) -> None:
        super().__init__()
        self._mode, self._device = mode, device

    def made(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a fake tensor with the shape, strides and dtype of a tensor."""
        with self._mode:
            return torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device=self._device)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__deepcopy__:
            tensor, memo = args
            if id(tensor) not in memo:
                memo[id(tensor)] = self.made(tensor)
            return memo[id(tensor)]
        return func(*args, **(kwargs or {}))
