"""Integers that a model looks at: the grid that an image is cut into, the lengths of packed sequences.

Tensors without numbers cannot stand for them. What a model works out of such integers alone is not a part of its
forward: it is worked out apart, and whoever serves the model may do so beforehand. Needs torch to load.
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

_METHODS: Final = (
    "__getitem__", "__len__", "__gt__", "__ge__", "__lt__", "__le__", "__add__", "__radd__", "__sub__", "__rsub__",
    "__mul__", "__rmul__", "__pow__", "__floordiv__", "__mod__", "__truediv__", "__and__", "__or__", "__eq__", "__ne__",
    "__invert__", "all", "any", "bool", "clamp", "cumsum", "dim", "expand", "expand_as", "flatten", "flip", "float",
    "int", "item", "long", "max", "min", "new_ones", "new_zeros", "numel", "prod", "repeat_interleave", "reshape",
    "size", "squeeze", "sum", "tolist", "unbind", "unsqueeze", "view",
)  # fmt: skip
"""Of a tensor's those that numbers have as well."""
_REPEATS: Final = (torch.repeat_interleave, torch.Tensor.repeat_interleave)
_WRITTEN: Final = "_costproof_written"
"""Attribute of a tensor of integers that a model's code writes down, ``torch.tensor([1, 2])``: what it wrote."""
_PREPARED: Final = "kwargs"
"""The argument by which functions of transformers say that what they return may come prepared with the inputs."""


class KnownInteger(int):
    """One of them: an int that can be asked as a tensor is."""

    def item(self) -> int:
        """The int."""
        return int(self)


class KnownIntegers:
    """Integers with their values, which behave as a tensor does.

    What is computed of them alone, or beside integers that the code writes down, has values too, and no tracer sees it.
    Beside a tensor of the model they are one of the same shape.
    """

    def __init__(self, values: Any, here: torch.Tensor, dtype: torch.dtype = torch.long) -> None:
        """``values``: nested lists. ``here``: an empty tensor that is where the model is."""
        self.values, self.here, self.dtype = values, here, dtype

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.here.device

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dimensions."""
        return tuple(_apart(lambda: self._real().shape))

    @property
    def ndim(self) -> int:
        """How many dimensions."""
        return len(self.shape)

    def to(self, *args: Any, **kwargs: Any) -> KnownIntegers:
        """The same, in another dtype if one is given; they are everywhere."""
        dtype = next((v for v in (*args, *kwargs.values()) if isinstance(v, torch.dtype)), None)
        return self if dtype is None else self._called(torch.Tensor.to, dtype)

    def cpu(self) -> KnownIntegers:
        """The same."""
        return self

    @property
    def floats(self) -> bool:
        """Whether they are other than integers."""
        return self.dtype.is_floating_point

    def moved(self, change: Callable[[torch.Tensor], torch.Tensor]) -> KnownIntegers:
        """The same, where the change takes tensors."""
        return KnownIntegers(self.values, change(self.here), self.dtype)

    def plain(self, device: torch.device | None = None) -> torch.Tensor:
        """A tensor of the same shape and dtype; where tensors have values, of the same values."""
        where = device or self.device
        if where.type == "meta":
            return torch.zeros(self.shape, dtype=self.dtype, device=where)
        return torch.tensor(self.values, dtype=self.dtype, device=where)

    def _real(self) -> torch.Tensor:
        return torch.tensor(self.values, dtype=self.dtype)

    def _called(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self.__torch_function__(func, (), (self, *args), kwargs)

    if TYPE_CHECKING:  # what a tensor has, added below

        def __getattr__(self, name: str) -> Any: ...
        def __getitem__(self, which: Any) -> Any: ...
        def __len__(self) -> int: ...

    def __deepcopy__(self, memo: dict[int, Any]) -> KnownIntegers:
        return self

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    @classmethod
    def __torch_function__(cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """A function of torch with some of these among its arguments."""
        given = tree_leaves((args, kwargs or {}))
        beside = next((v for v in given if isinstance(v, torch.Tensor) and not hasattr(v, _WRITTEN)), None)
        if beside is None:
            return compute_values(func, args, kwargs or {})
        if func in _REPEATS and len(args) > 1 and isinstance(args[1], cls):  # without values nobody knows how many
            kwargs = {"output_size": int(args[1].sum()), **(kwargs or {})}
        args, kwargs = tree_map(lambda v: v.plain(beside.device) if isinstance(v, cls) else v, (args, kwargs or {}))
        return func(*args, **kwargs)


def _method(func: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *args, **kwargs: self._called(func, *args, **kwargs)


for _name in _METHODS:
    setattr(KnownIntegers, _name, _method(getattr(torch.Tensor, _name)))


def compute_values(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The result of a function of numbers alone: numbers again."""
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

    return tree_map(known, _apart(work), is_leaf=_is_told)


def _is_told(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], torch.dtype)


def _apart(work: Callable[[], Any]) -> Any:
    """The result of some work in a thread of its own: what watches and imitates tensors does so in one thread."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()


@contextmanager
def precomputed(model: nn.Module) -> Iterator[None]:
    """For the time of the block functions beside the model's classes that may be left out are, if they get numbers.

    transformers writes these as ``get_vision_position_ids(grid_thw, …, kwargs=kwargs)``: they return what ``kwargs``
    has under a certain name, if somebody prepared it. Of their results ends of sequences, which are int32, stay
    numbers, and of those that get a tensor beside numbers the lengths of its parts; the others are tensors.
    """
    with ExitStack() as undo:
        undo.enter_context(mock.patch.object(torch, "as_tensor", _kept(torch.as_tensor)))
        undo.enter_context(mock.patch.object(torch, "tensor", _noted(torch.tensor)))
        for name in dict.fromkeys(type(m).__module__ for m in model.modules()):
            place = sys.modules.get(name)
            for key, function in list(vars(place).items() if place is not None else ()):
                if isinstance(function, FunctionType) and _PREPARED in _plain_arguments(function):
                    undo.enter_context(mock.patch.object(place, key, _beforehand(function)))
        yield


def _kept(as_tensor: Callable[..., Any]) -> Callable[..., Any]:
    """Numbers stay what they are: torch would ask for them one by one."""

    @wraps(as_tensor)
    def asked(data: Any, *args: Any, **kwargs: Any) -> Any:
        return data if isinstance(data, KnownIntegers) else as_tensor(data, *args, **kwargs)

    return asked


def _noted(tensor: Callable[..., Any]) -> Callable[..., Any]:
    """What is written down stays known beside numbers, where a tensor that a tracer watches hides it."""

    @wraps(tensor)
    def asked(data: Any, *args: Any, **kwargs: Any) -> Any:
        with mock.patch.object(torch, "tensor", tensor):  # the exporter looks whether it is this very function
            made = tensor(data, *args, **kwargs)
        if isinstance(data, list) and all(type(v) is int for v in data):
            setattr(made, _WRITTEN, data)
        return made

    return asked


def _plain_arguments(function: FunctionType) -> tuple[str, ...]:
    return function.__code__.co_varnames[: function.__code__.co_argcount]


def _beforehand(function: FunctionType) -> Callable[..., Any]:
    signature = inspect.signature(function)

    @wraps(function)
    def asked(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        if not any(isinstance(v, KnownIntegers) for v in given.values()):
            return function(*args, **kwargs)
        given.pop(_PREPARED, None)
        beside = any(isinstance(v, torch.Tensor) for v in given.values())

        def handed_on(value: Any) -> Any:
            stays = isinstance(value, KnownIntegers) and (value.dtype == torch.int32 or (beside and not value.floats))
            return value.plain() if isinstance(value, KnownIntegers) and not stays else value

        return tree_map(handed_on, compute_values(function, (), given))

    return asked


ALL_ROWS: Final = "which rows of images and sounds are padding is not known here; none is taken to be"

_FEATURES: Final = re.compile(r"get_\w+_features")
_PLACES: Final = "get_placeholder_mask"


@contextmanager
def without_padding(model: nn.Module, notes: dict[str, None]) -> Iterator[None]:
    """For the time of the block a mask without numbers hides no row, inside of the methods that make features.

    Inside of the one that looks for their places in a text it picks as many as there are features. Elsewhere a mask
    may send rows to one expert or the other, and taking all of them would count these twice.
    """
    with ExitStack() as undo:
        for kind in dict.fromkeys(kind for module in model.modules() for kind in type(module).__mro__):
            for name, method in list(vars(kind).items()):
                if callable(method) and (name == _PLACES or _FEATURES.fullmatch(name)):
                    undo.enter_context(mock.patch.object(kind, name, _whole(method, notes)))
        yield


def _whole(method: Callable[..., Any], notes: dict[str, None]) -> Callable[..., Any]:
    @wraps(method)
    def asked(*args: Any, **kwargs: Any) -> Any:
        def picked(mask: torch.Tensor) -> torch.Tensor:
            if method.__name__ == _PLACES:
                count = _features(mask, [*args, *kwargs.values()])
            else:
                notes[ALL_ROWS] = None
                count = mask.numel()
            return mask.new_empty((count, mask.dim()), dtype=torch.long)

        nonzero, total, as_list = torch.Tensor.nonzero, torch.Tensor.sum, torch.Tensor.tolist
        counted: list[tuple[torch.Tensor, int]] = []

        def known(tensor: torch.Tensor) -> torch.Tensor:
            return picked(tensor) if lacks_values(tensor) else nonzero(tensor)

        def summed(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            found = total(tensor, *args, **kwargs)
            over = args[0] if args else kwargs.get("dim")
            if tensor.dtype == torch.bool and tensor.dim() == 2 and over in (1, -1) and lacks_values(tensor):
                counted.append((found, int(tensor.shape[1])))
            return found

        def listed(tensor: torch.Tensor) -> Any:
            rows = next((rows for sums, rows in counted if sums is tensor), None)
            return as_list(tensor) if rows is None else [rows] * int(tensor.shape[0])

        # What works out the shape of rows that a mask picks asks the mask for them; how many images each element of a
        # batch has is the sum of such a mask over them.
        with (
            mock.patch.object(torch.Tensor, "nonzero", known),
            mock.patch.object(torch.Tensor, "sum", summed),
            mock.patch.object(torch.Tensor, "tolist", listed),
        ):
            return method(*args, **kwargs)

    return asked


def _features(mask: torch.Tensor, given: list[Any]) -> int:
    """How many elements of a mask [B, S] or [B, S, width] are places of features, which come after [B, S, width]."""
    floats = [v for v in given if isinstance(v, torch.Tensor) and v.is_floating_point()]
    embedded, *features = floats
    found = sum(f.numel() for f in features)
    return found if mask.dim() == embedded.dim() else found // embedded.shape[-1]


def lacks_values(value: Any) -> bool:
    """Whether the numbers of a tensor cannot be looked at: it is on meta, or stands for one in an export without."""
    if not isinstance(value, torch.Tensor) or value.device.type == "meta":
        return isinstance(value, torch.Tensor)
    followed = torch._functorch.config.fake_tensor_propagate_real_tensors
    return not followed and (isinstance(value, FakeTensor) or torch.compiler.is_exporting())
