"""The operators of a forward by stage and module, noted at the dispatcher with the forms of the tensors they take.

The forward has numbers, or it has none: then its tensors only claim to be on the device, and operators take the ways
that they take there. (On meta some take others: attention that one operator does on a processor is made of matrix
products there.) Nothing is computed or held then, so a model that no memory takes can be noted too.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves

from costproof.ledger.errors import CostproofError, Incomplete, first_line
from costproof.models.generic.copies import with_tensors
from costproof.models.specs import Run
from costproof.patches.inference import inference_context
from costproof.tracers.cpu_fallback import with_numbers
from costproof.tracers.timing import NOWHERE, Stage, watch_modules

_WEIGHTS_KEPT: Final = 8
"""Of a distinct call: so many sets of weights take turns."""
_NO_WORK: Final = "prim"
"""Namespace of questions about a tensor, which only tensors without numbers put to the dispatcher."""
_STANDS_FOR: Final = {"transformers.grouped_mm_fallback.default": "_grouped_mm"}
"""Operator -> the one of torch that runs where there are numbers: see :mod:`costproof.patches.inference`."""


@dataclass(frozen=True, slots=True)
class TensorForm:
    """A tensor without its numbers."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    weight: bool
    """Whether it lies in a parameter of the model."""

    @property
    def size(self) -> int:
        """Elements of the memory that it spans; those that lie there several times count once."""
        if not all(self.shape):
            return 0
        return 1 + sum((n - 1) * abs(s) for n, s in zip(self.shape, self.stride, strict=True))

    @property
    def bytes(self) -> int:
        """Of that memory."""
        return self.size * self.dtype.itemsize


@dataclass(slots=True)
class LoggedCall:
    """A distinct call."""

    function: Any
    spec: Any
    leaves: list[Any]
    """Forms, tensors of indices, and all that is not a tensor."""
    results: int | None = None
    """Bytes of what it returns beside what it was given, once it has."""
    weights: list[list[torch.Tensor]] = field(default_factory=list)

    @property
    def views(self) -> bool:
        """Whether it only says how memory is to be read, and reads none."""
        return bool(getattr(self.function, "is_view", False))

    @property
    def tensors(self) -> list[TensorForm | torch.Tensor]:
        """What stands for tensors, in order."""
        return [leaf for leaf in self.leaves if isinstance(leaf, TensorForm | torch.Tensor)]


class OperatorLog(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What a forward calls, by stage and module.

    Args:
        model: whose parameters are weights.
        numbers: whether tensors have numbers, of which indices, masks and weights are kept.
    """

    def __init__(self, model: torch.nn.Module, *, numbers: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.place: tuple[Stage, str] = (NOWHERE, "")
        self.calls: Counter[tuple[Stage, str, Any]] = Counter()
        self.distinct: dict[Any, LoggedCall] = {}
        self._weights = {_memory_of(p) for p in model.parameters()}
        self._numbers = numbers

    def passed(self, stage: Stage, module: str) -> None:
        """The work goes on here."""
        self.place = (stage, module)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == _NO_WORK:
            return func(*args, **(kwargs or {}))
        # What it takes is noted before it runs: it may write there.
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
        self.calls[*self.place, key] += 1
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
    """The same for all tensors that lie in one piece of memory, with numbers or without."""
    return int(tensor.untyped_storage()._cdata)


def _kept(leaf: Any, form: Any) -> Any:
    """The form; of integers, which are indices and masks, the tensor as it is now."""
    indices = isinstance(leaf, torch.Tensor) and not (leaf.is_floating_point() or leaf.is_complex())
    return leaf.detach().clone() if indices else form


def _real_operator(func: Any) -> Any:
    """The operator that runs where there are numbers."""
    packet = getattr(torch.ops.aten, _STANDS_FOR.get(str(func), ""), None)
    return func if packet is None else packet.default


def log_operators(run: Run) -> OperatorLog:
    """The operators of a forward with numbers, which runs once."""
    notes, kwargs = OperatorLog(run.model, numbers=True), run.inputs()
    with watch_modules(run, _everywhere(run), notes.passed), torch.no_grad(), run.around(), notes:
        run.model(**kwargs)
    return notes


def log_operators_without_values(run: Run, device: str) -> OperatorLog:
    """The operators of a forward on meta, as they would run on a device; nothing is computed.

    A forward that looks at numbers, and may run elsewhere, runs with some on the processor where that is the device.

    Raises:
        Incomplete: the forward needs numbers, or the model cannot be copied.
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
    except Exception as error:  # code of other packages raises what it likes
        if run.elsewhere and device == "cpu":
            return log_operators(with_numbers(run))
        raise Incomplete("the model does not run without numbers", where=run.id, got=first_line(error)) from error
    return notes


def _everywhere(run: Run) -> list[str]:
    return [path for path, _ in run.model.named_modules()]


class _FakeCopies(TorchFunctionMode):
    """Copies of tensors claim to be on a device, and have no numbers: ``deepcopy`` makes such within."""

    def __init__(self, mode: FakeTensorMode, device: str) -> None:
        super().__init__()
        self._mode, self._device = mode, device

    def made(self, tensor: torch.Tensor) -> torch.Tensor:
        """What stands for a tensor."""
        with self._mode:
            return torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device=self._device)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__deepcopy__:
            tensor, memo = args
            if id(tensor) not in memo:
                memo[id(tensor)] = self.made(tensor)
            return memo[id(tensor)]
        return func(*args, **(kwargs or {}))
