"""Copies of a module that its owner does not notice: on meta, or with the same parameters and buffers of its own."""

from __future__ import annotations

import copy
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from functools import partial
from types import CellType, CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

from costproof.ledger.attributes import attribute
from costproof.ledger.errors import Incomplete, first_line
from costproof.models.generic.alike import alike
from costproof.models.weights import FEWER, size_of

if TYPE_CHECKING:
    import torch
    from torch import nn

_COPIED: Final[dict[type, Callable[[Any, dict[int, Any]], Any]]] = {
    MappingProxyType: lambda held, memo: MappingProxyType(copy.deepcopy(dict(held), memo)),
    ModuleType: lambda held, memo: held,
    type(threading.Lock()): lambda held, memo: threading.Lock(),
    type(threading.RLock()): lambda held, memo: threading.RLock(),
}
"""What Python does not copy, and modules hold: views of dicts, modules of Python, locks."""
_WRAPPERS: Final = {"OptimizedModule": "_orig_mod", "DataParallel": "module", "DistributedDataParallel": "module"}
"""Class of a module around another one that computes nothing itself -> where the other one is."""


class TooLarge(Incomplete):
    """A module has too many parameters to be given numbers."""


MOST_BYTES: Final = 2 * 1024**3
"""Parameters and buffers up to which a module is given numbers."""


def on_meta(module: nn.Module) -> nn.Module:
    """The module with every parameter and buffer on meta, hooks and modes as they were; no memory is copied."""
    return with_tensors(module, _on_meta)


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same layout on meta, no fake one either, which belongs to a mode."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    if isinstance(tensor, FakeTensor):
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    return torch.empty_like(tensor, device="meta", requires_grad=False)


def own_copy(module: nn.Module) -> nn.Module:
    """The module with the same parameters, and buffers of its own: a run may write to buffers.

    Parameters that were made in ``inference_mode``, which nothing can trace, are copied.
    """
    import torch

    def own(tensor: torch.Tensor) -> torch.Tensor:
        same = isinstance(tensor, torch.nn.Parameter) and not tensor.is_inference()
        return tensor if same else tensor.detach().clone()

    return with_tensors(module, own)


def short_run(module: nn.Module, kwargs: Mapping[str, Any]) -> Any:
    """The result of a call on meta; where that looks at numbers, of a copy with ones; ``None`` if neither runs."""
    import torch

    from costproof.patches.inference import inference_context

    found = runs_on_meta(module, kwargs)
    if found is None:
        with suppress(Exception), unchecked(), inference_context(module):
            return with_ones(module)(**with_values(kwargs, torch.device("cpu")))
    return found


def runs_on_meta(module: nn.Module, kwargs: Mapping[str, Any]) -> Any:
    """The result of a call on meta, ``None`` if it does not run there."""
    from costproof.patches.inference import inference_context

    # It is code of other packages, which raises what it likes.
    with suppress(Exception), unchecked(), inference_context(module):
        return module(**kwargs)
    return None


def unchecked() -> AbstractContextManager[Any]:
    """For inputs without numbers, or with ones: whether a text has as many places as an image fills, numbers tell."""
    return mock.patch.dict(os.environ, {"TRANSFORMERS_DISABLE_TORCH_CHECK": "1"})


def with_ones(module: nn.Module) -> nn.Module:
    """Return a copy on the CPU with the numbers that the module has, and ones where it has none.

    Parameters that have numbers are shared. Integers in buffers that have none are made: sizes come from them, and a
    model of transformers sets them as it does for any module that was made on meta.

    Raises:
        TooLarge: the copy would be.
        Incomplete: it cannot be made.
    """
    import torch

    if (size := size_of(module, without_numbers=True)) > MOST_BYTES:
        raise TooLarge(
            "the module is too large to be given numbers",
            where=type(module).__name__,
            expected=f"at most {MOST_BYTES:,} bytes of parameters",
            got=f"{size:,}",
            fix=FEWER,
        )

    bare = {name for name, part in module.named_modules() if _lacks_integers(part)}
    made = with_tensors(module, _numbered)
    with torch.no_grad():
        for path, model in made.named_modules():
            for name, part in model.named_modules() if callable(attribute(model, "_init_weights", None)) else ():
                if f"{path}.{name}".strip(".") in bare:
                    model._init_weights(part)
    return made


def _lacks_integers(part: nn.Module) -> bool:
    buffers = [b for b in part._buffers.values() if b is not None and not (b.is_floating_point() or b.is_complex())]
    return any(b.is_meta for b in buffers) and all(p.is_meta for p in part._parameters.values() if p is not None)


def _numbered(tensor: torch.Tensor) -> torch.Tensor:
    """Return a parameter with numbers on the CPU itself, of other tensors a copy there; ones where there are none.

    What a run writes into a sparse parameter could not be undone, so it is copied too.
    """
    import torch

    if tensor.is_meta:
        return torch.ones_like(tensor, device="cpu")
    plain = isinstance(tensor, torch.nn.Parameter) and tensor.layout is torch.strided and not tensor.is_inference()
    if plain and tensor.device.type == "cpu":
        return tensor
    return tensor.detach().clone().cpu()


def own_inputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments with copies of their tensors, outside of graphs of gradients, and of caches, which a run fills."""
    import torch

    def made(value: Any) -> Any:
        return value.detach().clone() if isinstance(value, torch.Tensor) else _own(value)

    same = alike(dict(inputs), made)
    return {name: _mapped(value, same) for name, value in inputs.items()}


def _own(value: Any) -> Any:
    """A copy of what a run may fill, a cache for one; what cannot be copied is handed on, and so is a module."""
    import torch

    if not isinstance(value, torch.nn.Module):
        with suppress(Exception):
            return copy.deepcopy(value)
    return value


def inputs_on_meta(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments with their tensors on meta, and copies of what a run may fill."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    def moved(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return _on_meta(value) if isinstance(value, FakeTensor) else value.detach().to("meta")
        return _own(value)

    same = alike(dict(inputs), moved)
    return {name: _mapped(value, same) for name, value in inputs.items()}


def with_values(inputs: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """Arguments with zeros in place of tensors on meta, of those too that a cache holds, which is a copy then."""
    import torch

    def made(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return torch.zeros_like(value, device=device) if value.is_meta else value
        held = [t for t in _held(value) if t.is_meta]
        return copy.deepcopy(value, {id(t): made(t) for t in held}) if held else value

    same = alike(dict(inputs), made)
    return {name: _mapped(value, same) for name, value in inputs.items()}


def _held(value: Any, seen: set[int] | None = None) -> Iterator[torch.Tensor]:
    """Tensors that an object holds, however deep; a module's are its own."""
    import torch

    seen = set() if seen is None else seen
    if isinstance(value, torch.Tensor):
        yield value
    elif id(value) in seen or isinstance(value, type | torch.nn.Module):
        return
    else:
        seen.add(id(value))
        parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
        for part in (*parts, *attribute(value, "__dict__", {}).values()):
            yield from _held(part, seen)


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    from torch.utils._pytree import tree_map

    from costproof.patches.input_values import KnownIntegers

    return tree_map(lambda v: v.moved(change) if isinstance(v, KnownIntegers) else change(v), value)


def with_tensors(module: nn.Module, change: Callable[[torch.Tensor], torch.Tensor]) -> nn.Module:
    """A copy with another tensor in place of each: parameters stay parameters, what is tied stays tied, and buffers
    that share memory share it.

    Raises:
        Incomplete: something else that the module holds cannot be copied.
    """
    import torch

    def changed(tensor: torch.Tensor) -> torch.Tensor:
        made = change(tensor)
        parameter = isinstance(tensor, torch.nn.Parameter) and not isinstance(made, torch.nn.Parameter)
        return torch.nn.Parameter(made, tensor.requires_grad) if parameter else made

    # What is in the memo is taken for copied: tensors are what we say, all else is a copy.
    same = alike(list(module.buffers()), changed)
    memo: dict[int, Any] = {id(t): same(t) for t in _tensors(module)}
    try:
        with mock.patch.dict(copy._deepcopy_dispatch, _COPIED):  # type: ignore[attr-defined]
            made: nn.Module = copy.deepcopy(module, memo)
        for part in made.modules():
            for holder in (vars(part), *(v for v in vars(part).values() if isinstance(v, OrderedDict))):
                # Key by key: a configuration that must not change may be such a dict, and has none.
                for key, held in [(k, v) for k, v in holder.items() if isinstance(v, FunctionType)]:
                    holder[key] = _rebound(held, memo)
    except Exception as error:
        raise Incomplete(
            "the module cannot be copied, and it must stay as it is",
            where=type(module).__name__,
            got=first_line(error),
            fix="give a function that makes the module: FILE.py:FUNCTION",
        ) from error
    return unwrapped(made)


def _rebound(function: FunctionType, memo: dict[int, Any]) -> FunctionType:
    """The function with the copies of modules, and of their methods, in place of what it holds and names.

    It holds what is in its closure, and names variables beside it. ``deepcopy`` keeps it as it is.
    """
    from torch import nn

    def copied(cell: CellType) -> CellType:
        try:
            held = cell.cell_contents
        except ValueError:  # empty
            return cell
        if isinstance(held, FunctionType):
            made = _rebound(held, memo)
            return cell if made is held else CellType(made)
        return CellType(copy.deepcopy(held, memo)) if isinstance(held, nn.Module | MethodType | partial) else cell

    closure = function.__closure__ or ()
    cells = tuple(map(copied, closure))
    named = {name: function.__globals__.get(name) for name in _names(function.__code__)}
    own = {name: copy.deepcopy(value, memo) for name, value in named.items() if _is_part(value, memo)}
    if not own and cells == closure:
        return function
    known = {**function.__globals__, **own} if own else function.__globals__
    made = FunctionType(function.__code__, known, function.__name__, function.__defaults__, cells)
    made.__kwdefaults__ = function.__kwdefaults__
    made.__dict__.update(vars(function))
    return made


def _names(code: CodeType) -> Iterator[str]:
    """Names that a function, or one that is made in it, may look up beside it."""
    yield from code.co_names
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _names(value)


def _is_part(value: Any, memo: dict[int, Any]) -> bool:
    """Whether it is a part of what was copied, or a method of one."""
    if isinstance(value, partial):
        return any(_is_part(v, memo) for v in (value.func, *value.args, *value.keywords.values()))
    return id(attribute(value, "__self__", value) if isinstance(value, MethodType) else value) in memo


def _tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    """Parameters, buffers, and tensors that are plain attributes, such as a weight that a hook computes."""
    import torch

    yield from module.parameters()
    yield from module.buffers()
    for part in module.modules():
        yield from (value for value in vars(part).values() if isinstance(value, torch.Tensor))


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the module without what ``torch.compile`` or data parallelism put around it and its parts, and with
    modules of ``torch.fx`` as if their code had been written by hand; changes the module.

    ``torch.export`` takes a ``GraphModule`` for a part of its caller, and books its work there.
    """
    plain: dict[int, nn.Module] = {}

    def inside(part: nn.Module) -> nn.Module:
        while (name := _WRAPPERS.get(type(part).__name__)) is not None:
            part = getattr(part, name)
        if id(part) not in plain:
            plain[id(part)] = _written(part)
        return plain[id(part)]

    module = inside(module)
    for part in list(module.modules()):
        part._compiled_call_impl = None
        for name, child in part._modules.items():
            if child is not None:
                part._modules[name] = inside(child)
    return module


def _written(module: nn.Module) -> nn.Module:
    """Return a module of ``torch.fx`` as one of a plain class with the same attributes; others as they are."""
    import torch

    if not isinstance(module, torch.fx.GraphModule):
        return module
    kind: Any = type(type(module).__name__, (torch.nn.Module,), {"forward": type(module).forward})
    made: nn.Module = kind.__new__(kind)
    # torch.export puts functions in place of these two that refuse a call, and a hook that refuses arguments by name.
    made.__dict__ = {name: value for name, value in vars(module).items() if name not in ("train", "eval")}
    hooks = module._forward_pre_hooks.items()
    made._forward_pre_hooks = OrderedDict((k, h) for k, h in hooks if not str(h.__module__).startswith("torch.export"))
    return made
