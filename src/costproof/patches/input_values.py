"""Let models compute with integer inputs whose values decide shapes, and treat images and sounds as unpadded.

A model may read integers from its inputs: the grid that an image is divided into, or the lengths of packed sequences.
Tensors on the meta device have no such values. Computations on these integers alone are not part of the forward: they
run separately on :class:`KnownIntegers`, as a server of the model may run them beforehand.

Models of transformers select the rows of a batch that are not padding by a mask, in ``get_image_features`` and similar
methods. Without values the number of these rows is unknown, and so is the work on them; no row is taken to be padding.

Importing this module imports torch.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import wraps
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import torch
import torch._functorch.config
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves, tree_map

from costproof.patches.patch import patched
from costproof.patches.tensor import KNOWN_INTEGERS, ROW_COUNTS, SELECT_ALL_ROWS

_METHODS: Final = (
    "__getitem__", "__len__", "__gt__", "__ge__", "__lt__", "__le__", "__add__", "__radd__", "__sub__", "__rsub__",
    "__mul__", "__rmul__", "__pow__", "__floordiv__", "__mod__", "__truediv__", "__and__", "__or__", "__eq__", "__ne__",
    "__invert__", "all", "any", "bool", "clamp", "cumsum", "dim", "expand", "expand_as", "flatten", "flip", "float",
    "int", "item", "long", "max", "min", "new_ones", "new_zeros", "numel", "prod", "repeat_interleave", "reshape",
    "size", "squeeze", "sum", "tolist", "unbind", "unsqueeze", "view",
)  # fmt: skip
"""Tensor methods that :class:`KnownIntegers` also has."""
_REPEATS: Final = (torch.repeat_interleave, torch.Tensor.repeat_interleave)
_WRITTEN: Final = "_costproof_written"
"""Attribute for the list of ints that a tensor was made of, as in ``torch.tensor([1, 2])``."""
_PREPARED: Final = "kwargs"
"""Name of an argument of transformers' functions that may contain their result, computed by the caller."""


class KnownInteger(int):
    """An ``int`` that also has the tensor method ``item``."""

    def item(self) -> int:
        """Return the int."""
        return int(self)


class KnownIntegers:
    """Integers with known values that behave like a tensor.

    Results computed only from them, or from them and literal integers, have known values too, and no tracer sees the
    computation. In an operation with a tensor of the model they become a tensor of the same shape.
    """

    def __init__(self, values: Any, here: torch.Tensor, dtype: torch.dtype = torch.long) -> None:
        """Take nested lists of integers and an empty tensor on the model's device."""
        self.values, self.here, self.dtype = values, here, dtype

    @property
    def device(self) -> torch.device:
        """Return the device of the model."""
        return self.here.device

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the sizes of the dimensions."""
        return tuple(apart(lambda: self._real().shape))

    @property
    def ndim(self) -> int:
        """Return the number of dimensions."""
        return len(self.shape)

    def to(self, *args: Any, **kwargs: Any) -> KnownIntegers:
        """Return the values in another dtype, if ``to`` is called with one; ignore a device."""
        dtype = next((v for v in (*args, *kwargs.values()) if isinstance(v, torch.dtype)), None)
        return self if dtype is None else self._called(torch.Tensor.to, dtype)

    def cpu(self) -> KnownIntegers:
        """Return the values unchanged."""
        return self

    @property
    def floats(self) -> bool:
        """Return whether the values are floating-point."""
        return self.dtype.is_floating_point

    def moved(self, change: Callable[[torch.Tensor], torch.Tensor]) -> KnownIntegers:
        """Return the values on the device to which ``change`` moves tensors."""
        return KnownIntegers(self.values, change(self.here), self.dtype)

    def plain(self, device: torch.device | None = None) -> torch.Tensor:
        """Return an ordinary tensor of this shape and dtype; on the meta device it has no values."""
        where = device or self.device
        if where.type == "meta":
            return torch.zeros(self.shape, dtype=self.dtype, device=where)
        return torch.tensor(self.values, dtype=self.dtype, device=where)

    def _real(self) -> torch.Tensor:
        return torch.tensor(self.values, dtype=self.dtype)

    def _called(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self.__torch_function__(func, (), (self, *args), kwargs)

    if TYPE_CHECKING:  # the methods that are added below

        def __getattr__(self, name: str) -> Any: ...
        def __getitem__(self, which: Any) -> Any: ...
        def __len__(self) -> int: ...

    def __deepcopy__(self, memo: dict[int, Any]) -> KnownIntegers:
        return self

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    @classmethod
    def __torch_function__(cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a torch function that has known integers among its arguments."""
        given = tree_leaves((args, kwargs or {}))
        beside = next((v for v in given if isinstance(v, torch.Tensor) and not hasattr(v, _WRITTEN)), None)
        if beside is None:
            return compute_values(func, args, kwargs or {})
        if func in _REPEATS and len(args) > 1 and isinstance(args[1], cls):  # the size of the result depends on values
            kwargs = {"output_size": int(args[1].sum()), **(kwargs or {})}
        args, kwargs = tree_map(lambda v: v.plain(beside.device) if isinstance(v, cls) else v, (args, kwargs or {}))
        return func(*args, **kwargs)


def _method(func: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *args, **kwargs: self._called(func, *args, **kwargs)


for _name in _METHODS:
    setattr(KnownIntegers, _name, _method(getattr(torch.Tensor, _name)))


def compute_values(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a function whose tensor arguments are all known integers, and return known integers."""
    here = next(v.here for v in tree_leaves((args, kwargs)) if isinstance(v, KnownIntegers))

    def real(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if isinstance(value, torch.Tensor):
            written = getattr(value, _WRITTEN, None)
            return torch.zeros(value.shape, dtype=value.dtype) if written is None else torch.tensor(written)
        return value._real() if isinstance(value, KnownIntegers) else value

    def work() -> Any:
        given, named = tree_map(real, (tuple(args), dict(kwargs)))
        return tree_map(lambda v: (v.tolist(), v.dtype) if isinstance(v, torch.Tensor) else v, func(*given, **named))

    def known(value: Any) -> Any:
        if not _is_told(value):
            return value
        return KnownInteger(value[0]) if isinstance(value[0], int) else KnownIntegers(value[0], here, value[1])

    return tree_map(known, apart(work), is_leaf=_is_told)


def _is_told(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], torch.dtype)


def apart(work: Callable[[], Any]) -> Any:
    """Call a function in another thread, where no tracer and no fake mode is active."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()


def keep_known(as_tensor: Callable[..., Any]) -> Callable[..., Any]:
    """Return a replacement of ``torch.as_tensor`` that returns known integers unchanged."""

    @wraps(as_tensor)
    def call(data: Any, *args: Any, **kwargs: Any) -> Any:
        return data if isinstance(data, KnownIntegers) else as_tensor(data, *args, **kwargs)

    return call


def remember_literal(tensor: Callable[..., Any]) -> Callable[..., Any]:
    """Return a replacement of ``torch.tensor`` that records the list of ints that a tensor is made of."""

    @wraps(tensor)
    def call(data: Any, *args: Any, **kwargs: Any) -> Any:
        with mock.patch.object(torch, "tensor", tensor):  # the exporter checks for exactly this function
            made = tensor(data, *args, **kwargs)
        if isinstance(data, list) and all(type(v) is int for v in data):
            setattr(made, _WRITTEN, data)
        return made

    return call


@contextmanager
def precomputed(model: nn.Module) -> Iterator[None]:
    """Call functions of known integers outside the traced forward while the block runs.

    transformers defines them next to the model's classes, as ``get_vision_position_ids(grid_thw, …, kwargs=kwargs)``:
    they return an item of ``kwargs`` if a caller has prepared it. Some results stay known integers: ends of sequences,
    which are int32, and lengths of the parts of a tensor that is another argument. The others become tensors.
    """
    with ExitStack() as undo:
        undo.enter_context(patched(*KNOWN_INTEGERS))
        for name in dict.fromkeys(type(m).__module__ for m in model.modules()):
            place = sys.modules.get(name)
            for key, function in list(vars(place).items() if place is not None else ()):
                if isinstance(function, FunctionType) and _PREPARED in _plain_arguments(function):
                    undo.enter_context(mock.patch.object(place, key, _computedapart(function)))
        yield


def _plain_arguments(function: FunctionType) -> tuple[str, ...]:
    return function.__code__.co_varnames[: function.__code__.co_argcount]


def _computedapart(function: FunctionType) -> Callable[..., Any]:
    signature = inspect.signature(function)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        if not any(isinstance(v, KnownIntegers) for v in given.values()):
            return function(*args, **kwargs)
        given.pop(_PREPARED, None)
        beside = any(isinstance(v, torch.Tensor) for v in given.values())

        def as_result(value: Any) -> Any:
            stays = isinstance(value, KnownIntegers) and (value.dtype == torch.int32 or (beside and not value.floats))
            return value.plain() if isinstance(value, KnownIntegers) and not stays else value

        return tree_map(as_result, compute_values(function, (), given))

    return call


ALL_ROWS: Final = "which rows of images and sounds are padding is not known here; none is taken to be"

_FEATURES: Final = re.compile(r"get_\w+_features")
_PLACES: Final = "get_placeholder_mask"


def select_all_rows(original: Callable[..., Any], picked: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    """Return a wrapper of an indexing function that keeps all rows if the mask has no values, as on the meta device."""
    return lambda tensor: picked(tensor) if lacks_values(tensor) else original(tensor)


def note_row_counts(original: Callable[..., Any], counted: list[tuple[torch.Tensor, int]]) -> Callable[..., Any]:
    """Return a wrapper of ``Tensor.sum`` that records S as the sum of each row of a mask [B, S] without values."""

    def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        found = original(tensor, *args, **kwargs)
        over = args[0] if args else kwargs.get("dim")
        if tensor.dtype == torch.bool and tensor.dim() == 2 and over in (1, -1) and lacks_values(tensor):
            counted.append((found, int(tensor.shape[1])))
        return found

    return call


def list_row_counts(original: Callable[..., Any], counted: list[tuple[torch.Tensor, int]]) -> Callable[..., Any]:
    """Return a wrapper of ``Tensor.tolist`` that returns the row sums recorded by :func:`note_row_counts`."""

    def call(tensor: torch.Tensor) -> Any:
        rows = next((rows for sums, rows in counted if sums is tensor), None)
        return original(tensor) if rows is None else [rows] * int(tensor.shape[0])

    return call


@contextmanager
def without_padding(model: nn.Module, notes: dict[str, None]) -> Iterator[None]:
    """Make masks without values keep all rows of image and sound features while the block runs.

    Inside ``get_placeholder_mask``, which finds their places in a text, a mask selects as many places as there are
    features. Elsewhere nothing changes: a mask may route rows to one of several experts, and selecting all rows for
    each of them would count these several times.
    """
    with ExitStack() as undo:
        for kind in dict.fromkeys(kind for module in model.modules() for kind in type(module).__mro__):
            for name, method in list(vars(kind).items()):
                if callable(method) and (name == _PLACES or _FEATURES.fullmatch(name)):
                    undo.enter_context(mock.patch.object(kind, name, _with_all_rows(method, notes)))
        yield


def _with_all_rows(method: Callable[..., Any], notes: dict[str, None]) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        def picked(mask: torch.Tensor) -> torch.Tensor:
            if method.__name__ == _PLACES:
                count = _features(mask, [*args, *kwargs.values()])
            else:
                notes[ALL_ROWS] = None
                count = mask.numel()
            return mask.new_empty((count, mask.dim()), dtype=torch.long)

        # Whoever computes the shape of selected rows asks the mask for them; the number of images of each element of a
        # batch is the sum of a mask over them.
        counted: list[tuple[torch.Tensor, int]] = []
        with patched(SELECT_ALL_ROWS, context=(picked,)), patched(*ROW_COUNTS, context=(counted,)):
            return method(*args, **kwargs)

    return call


def _features(mask: torch.Tensor, given: list[Any]) -> int:
    """Return the number of elements of a placeholder mask [B, S] or [B, S, width] that the features in a call fill.

    Among the arguments the embedded text [B, S, width] is the first floating-point tensor; features follow it.
    """
    floats = [v for v in given if isinstance(v, torch.Tensor) and v.is_floating_point()]
    embedded, *features = floats
    found = sum(f.numel() for f in features)
    return found if mask.dim() == embedded.dim() else found // embedded.shape[-1]


def lacks_values(value: Any) -> bool:
    """Return whether a tensor has no values: it is on meta, or a fake tensor of an export that follows no values."""
    if not isinstance(value, torch.Tensor) or value.device.type == "meta":
        return isinstance(value, torch.Tensor)
    followed = torch._functorch.config.fake_tensor_propagate_real_tensors
    return not followed and (isinstance(value, FakeTensor) or torch.compiler.is_exporting())
