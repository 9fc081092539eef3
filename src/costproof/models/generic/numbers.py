"""Integers that a model looks at: the grid that an image is cut into, the lengths of packed sequences.

Tensors without numbers cannot stand for them. What a model works out of such integers alone is not a part of its
forward: it is worked out apart, and whoever serves the model may do so beforehand. Needs torch to load.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import wraps
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import torch
from torch import nn
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


class Number(int):
    """One of them: an int that can be asked as a tensor is."""

    def item(self) -> int:
        """The int."""
        return int(self)


class Numbers:
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

    def to(self, *args: Any, **kwargs: Any) -> Numbers:
        """The same, in another dtype if one is given; they are everywhere."""
        dtype = next((v for v in (*args, *kwargs.values()) if isinstance(v, torch.dtype)), None)
        return self if dtype is None else self._called(torch.Tensor.to, dtype)

    def cpu(self) -> Numbers:
        """The same."""
        return self

    @property
    def floats(self) -> bool:
        """Whether they are other than integers."""
        return self.dtype.is_floating_point

    def moved(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Numbers:
        """The same, where the change takes tensors."""
        return Numbers(self.values, change(self.here), self.dtype)

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

    def __deepcopy__(self, memo: dict[int, Any]) -> Numbers:
        return self

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    @classmethod
    def __torch_function__(cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """A function of torch with some of these among its arguments."""
        given = tree_leaves((args, kwargs or {}))
        beside = next((v for v in given if isinstance(v, torch.Tensor) and not hasattr(v, _WRITTEN)), None)
        if beside is None:
            return worked_out(func, args, kwargs or {})
        if func in _REPEATS and len(args) > 1 and isinstance(args[1], cls):  # without values nobody knows how many
            kwargs = {"output_size": int(args[1].sum()), **(kwargs or {})}
        args, kwargs = tree_map(lambda v: v.plain(beside.device) if isinstance(v, cls) else v, (args, kwargs or {}))
        return func(*args, **kwargs)


def _method(func: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *args, **kwargs: self._called(func, *args, **kwargs)


for _name in _METHODS:
    setattr(Numbers, _name, _method(getattr(torch.Tensor, _name)))


def worked_out(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The result of a function of numbers alone: numbers again."""
    here = next(v.here for v in tree_leaves((args, kwargs)) if isinstance(v, Numbers))

    def real(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if isinstance(value, torch.Tensor):
            written = getattr(value, _WRITTEN, None)
            return torch.zeros(value.shape, dtype=value.dtype) if written is None else torch.tensor(written)
        return value._real() if isinstance(value, Numbers) else value

    def work() -> Any:
        given, named = tree_map(real, (tuple(args), dict(kwargs)))
        return tree_map(lambda v: (v.tolist(), v.dtype) if isinstance(v, torch.Tensor) else v, func(*given, **named))

    def known(value: Any) -> Any:
        if not _is_told(value):
            return value
        return Number(value[0]) if isinstance(value[0], int) else Numbers(value[0], here, value[1])

    return tree_map(known, _apart(work), is_leaf=_is_told)


def _is_told(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], torch.dtype)


def _apart(work: Callable[[], Any]) -> Any:
    """The result of some work in a thread of its own: what watches and imitates tensors does so in one thread."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()


@contextmanager
def prepared(model: nn.Module) -> Iterator[None]:
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
        return data if isinstance(data, Numbers) else as_tensor(data, *args, **kwargs)

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
        if not any(isinstance(v, Numbers) for v in given.values()):
            return function(*args, **kwargs)
        given.pop(_PREPARED, None)
        beside = any(isinstance(v, torch.Tensor) for v in given.values())

        def handed_on(value: Any) -> Any:
            stays = isinstance(value, Numbers) and (value.dtype == torch.int32 or (beside and not value.floats))
            return value.plain() if isinstance(value, Numbers) and not stays else value

        return tree_map(handed_on, worked_out(function, (), given))

    return asked
