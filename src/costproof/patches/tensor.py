"""Patch tensor methods and torch functions to record, or to split, operations that tracers do not see."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from costproof.patches.patch import Patch, patched
from costproof.process_settings import index_as_sequence, indexed_as_sequence

if TYPE_CHECKING:
    import torch

TORCH_PYTHON: Final = ("torch._decomp", "torch._refs", "torch._prims", "torch._meta_registrations")
"""Prefixes of modules with torch's Python decompositions for meta; calls from there are parts of an operator."""
_ALL: Final = slice(None)
_INDEXING: Final = "models/generic/test_bytes_of_calls.py"


def _get_in_views(original: Callable[..., Any]) -> Callable[..., Any]:
    from torchlens import _state

    def getitem(self: torch.Tensor, key: Any) -> torch.Tensor:
        if sys._getframe(1).f_globals.get("__name__", "").startswith(TORCH_PYTHON):
            with _state.pause_logging():
                return original(self, key)  # type: ignore[no-any-return]
        key = _stack_rows(key)
        split = _split_index(self, key)
        if split is None:
            return original(self, key)  # type: ignore[no-any-return]
        view, rest = split
        viewed = original(self, view) if any(part not in (_ALL, ...) for part in view) else self
        return original(viewed, rest)  # type: ignore[no-any-return]

    return getitem


def _set_unless_false(original: Callable[..., Any]) -> Callable[..., Any]:
    def setitem(self: torch.Tensor, key: Any, value: Any) -> None:
        if key is not False:
            original(self, _stack_rows(key), value)

    return setitem


@dataclass(frozen=True, slots=True)
class IndexingPatch(Patch):
    """Patch of a tensor's indexing method that keeps C code from treating tensors as sequences."""

    def install(self, undo: ExitStack, *context: Any) -> None:
        """Replace the method; ``undo`` restores the method and the type slots of the class."""
        import torch

        before = indexed_as_sequence(torch)
        undo.callback(index_as_sequence, torch, before)
        Patch.install(self, undo, *context)
        index_as_sequence(torch, before)


SPLIT_INDEXING: Final = (
    IndexingPatch(
        "torch:Tensor.__getitem__",
        _get_in_views,
        "TorchLens records x[rows, -1] as one call that reads all of x; as in an export, numbers and slices become a "
        "view and the tensors pick from that",
        _INDEXING,
    ),
    IndexingPatch(
        "torch:Tensor.__setitem__",
        _set_unless_false,
        "TorchLens records x[False] = y as a write; nothing is written",
        _INDEXING,
    ),
)
"""Patches of indexing that are installed over TorchLens's wrappers."""
STACK_INDEX_ROWS: Final = (
    IndexingPatch(
        "torch:Tensor.__getitem__",
        lambda original: lambda self, key: original(self, _stack_rows(key)),
        "torch turns rows of scalar tensors, x[(a, b), (c, d)], into index tensors by their values, which meta lacks",
        "models/generic/test_inputs.py",
    ),
    IndexingPatch(
        "torch:Tensor.__setitem__",
        lambda original: lambda self, key, value: original(self, _stack_rows(key), value),
        "as __getitem__",
        "models/generic/test_inputs.py",
    ),
)


def _stack_rows(key: Any) -> Any:
    """Stack the scalar tensors of each row in an index key into one index tensor."""
    import torch

    def is_row(part: Any) -> bool:
        return isinstance(part, tuple | list) and bool(part) and all(isinstance(n, torch.Tensor) for n in part)

    if not (isinstance(key, tuple) and any(map(is_row, key))):
        return key
    return tuple(torch.stack(list(part)) if is_row(part) else part for part in key)


def _split_index(tensor: Any, key: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    """Split an index key into a part that makes a view and a part that gathers; ``None`` if no tensor gathers."""
    import torch

    view: list[Any] = []
    rest: list[Any] = []
    for part in key if isinstance(key, tuple) else (key,):
        if isinstance(part, list) and part and all(type(n) is int for n in part):
            view.append(_ALL)
            rest.append(torch.tensor(part, device=tensor.device))
        elif type(part) is torch.Tensor and part.dim() > 0:
            view += [_ALL] * (part.dim() if part.dtype in (torch.bool, torch.uint8) else 1)
            rest.append(part)
        elif part is None or isinstance(part, slice):
            view.append(part)
            rest.append(_ALL)
        elif part is ...:
            view.append(part)
            rest.append(part)
        elif type(part) is int:
            view.append(part)
        else:
            return None
    picks = any(isinstance(part, torch.Tensor) for part in rest)
    return (tuple(view), tuple(rest)) if picks else None


def _note_disabled(original: Callable[..., Any], found: set[str]) -> Callable[..., Any]:
    def init(self: Any, device_type: str, dtype: Any = None, enabled: bool = True, *rest: Any, **named: Any) -> None:
        original(self, device_type, dtype, enabled, *rest, **named)
        if enabled and not self._enabled and self.fast_dtype is not None:
            found.add(str(self.fast_dtype).removeprefix("torch."))

    return init


AUTOCAST: Final = (
    Patch(
        "torch:autocast.__init__",
        _note_disabled,
        "on meta, and without its device, autocast casts nothing that operators show",
        "estimate/test_bounds_are_bounds.py",
    ),
)


@contextmanager
def disabled_autocast() -> Iterator[set[str]]:
    """Record the dtypes of autocast regions that torch disables, since their device is lacking, in the block.

    Yields:
        the dtypes as names without ``torch.``, filled while the block runs.
    """
    found = set[str]()
    with patched(*AUTOCAST, context=(found,)):
        yield found


class GradientTaken(Exception):
    """Raised when a model computes a gradient."""


def _refuse_gradient(original: Any) -> Callable[..., None]:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise GradientTaken

    return refuse


REFUSE_GRADIENTS: Final = tuple(
    Patch(
        target,
        _refuse_gradient,
        "a model that takes gradients in its forward cannot be counted; this finds out",
        "tracers/test_unfit.py",
    )
    for target in (
        "torch.autograd:grad",
        "torch.autograd:backward",
        "torch:Tensor.backward",
        "torch.autograd.forward_ad:make_dual",
    )
)


def _check_values(original: Callable[..., Any]) -> Callable[..., None]:
    def check(cond: Any, message: Any = None) -> None:
        original(bool(cond), message)

    return check


def _guard_tensor(original: Callable[..., Any]) -> Callable[..., bool]:
    import torch

    def guard(cond: Any) -> bool:
        return bool(cond) if isinstance(cond, torch.Tensor) else bool(original(cond))

    return guard


def _record_convolution(original: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    kernel: Any = torch._convolution

    def conv2d(
        x: torch.Tensor, weight: torch.Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0,
        dilation: Any = 1, groups: int = 1,
    ) -> Any:  # fmt: skip
        if x.device.type != "meta" or isinstance(padding, str):
            return original(x, weight, bias, stride, padding, dilation, groups)
        sizes = [[s, s] if isinstance(s, int) else list(s) for s in (stride, padding, dilation)]
        return kernel(x, weight, bias, *sizes, False, [0, 0], groups, False, False, False, False)

    return conv2d


JIT_ON_META: Final = (
    Patch(
        "torch:_check",
        _check_values,
        "while torch.jit.trace runs, sizes are tensors, which this check refuses",
        "tracers/test_counters.py",
    ),
    Patch(
        "torch.fx.experimental.symbolic_shapes:guard_or_false",
        _guard_tensor,
        "as torch._check",
        "tracers/test_counters.py",
    ),
    Patch(
        "torch.nn.functional:conv2d",
        _record_convolution,
        "torch.jit.trace records a convolution inside the kernel of a real device only, so it would be lost on meta",
        "tracers/test_counters.py",
    ),
)
"""Patches that make ``torch.jit.trace`` record on meta what it records on a CPU."""


def _report_call(original: Callable[..., Any], reader: Callable[..., None]) -> Callable[..., Any]:
    def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        reader(tensor)
        return original(tensor, *args, **kwargs)

    return call


READ_VALUES: Final = Patch(
    "torch:Tensor.tolist",
    _report_call,
    "the dispatcher does not see that a branch may depend on the values of a tensor",
    "tracers/test_judge.py",
)
TO_NUMPY: Final = tuple(
    Patch(
        f"torch:Tensor.{name}",
        _report_call,
        "operations on a NumPy array are not traced; numpy.array(tensor) calls Tensor.numpy",
        "tracers/test_judge.py",
    )
    for name in ("numpy", "__dlpack__")
)


def _report_around(original: Callable[..., Any], inside: Callable[[bool], None]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        inside(True)
        try:
            return original(*args, **kwargs)
        finally:
            inside(False)

    return call


EINSUM: Final = Patch(
    "torch:_VF.einsum",
    _report_around,
    "the dispatcher sees products over no index, or over indices of size 1, as elementwise multiplications",
    "tracers/test_judge.py",
)
"""Patch of ``torch._VF.einsum``, which ``torch.einsum`` calls, under whatever name a model imported that."""


def _report_complex(original: Callable[..., Any], inside: Callable[[bool], None]) -> Callable[..., Any]:
    """Return a replacement of a convolution that reports its calls on complex numbers."""
    reporting = _report_around(original, inside)

    def call(*args: Any, **kwargs: Any) -> Any:
        takes = any(getattr(value, "is_complex", bool)() for value in (*args[:2], *kwargs.values()))
        return (reporting if takes else original)(*args, **kwargs)

    return call


COMPLEX_CONVOLUTIONS: Final = tuple(
    Patch(
        f"{module}:conv{kind}{n}d",
        _report_complex,
        "the dispatcher sees a convolution of complex numbers as three of real ones, which stand for four products",
        "tracers/test_judge.py",
    )
    for module in ("torch", "torch.nn.functional")
    for kind in ("", "_transpose")
    for n in (1, 2, 3)
)


def _of_input_values(name: str) -> Callable[..., Any]:
    """Return a factory of a replacement in :mod:`.input_values`, imported on use since that module imports torch."""

    def make(original: Any, *context: Any) -> Any:
        from costproof.patches import input_values

        return getattr(input_values, name)(original, *context)

    return make


KNOWN_INTEGERS: Final = (
    Patch(
        "torch:as_tensor",
        _of_input_values("keep_known"),
        "it would read known integers one by one and make a tensor whose values a tracer hides",
        "models/generic/test_numbers.py",
    ),
    Patch(
        "torch:tensor",
        _of_input_values("remember_literal"),
        "a tracer hides the values of a literal, which are needed next to known integers",
        "models/generic/test_numbers.py",
    ),
)
SELECT_ALL_ROWS: Final = Patch(
    "torch:Tensor.nonzero",
    _of_input_values("select_all_rows"),
    "it returns the rows that a mask selects, whose number is unknown on meta; none is taken to be padding",
    "models/generic/test_unpadded.py",
)
ROW_COUNTS: Final = (
    Patch(
        "torch:Tensor.sum",
        _of_input_values("note_row_counts"),
        "the sum of a padding mask over a row is the number of images, which is unknown on meta",
        "models/generic/test_unpadded.py",
    ),
    Patch("torch:Tensor.tolist", _of_input_values("list_row_counts"), "as sum", "models/generic/test_unpadded.py"),
)
