"""Copy modules and tensors without changing the originals: to the meta device, or with the same parameters."""

from __future__ import annotations

import copy
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from math import prod
from types import CellType, CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from unittest import mock

from costproof.ledger.attributes import attribute
from costproof.ledger.errors import Incomplete, first_line
from costproof.weights.loading import FEWER, size_of

if TYPE_CHECKING:
    import torch
    from torch import nn


class Span(NamedTuple):
    """Range of a storage that overlapping tensors cover, with these tensors."""

    first: int
    end: int
    tensors: tuple[torch.Tensor, ...]


def alike(values: Any, change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return ``change`` as a memoized function of tensors whose results alias each other like the tensors.

    For tensors that overlap, or whose strides leave gaps, ``change`` is applied to the memory that they span, and the
    results are views of it.
    """
    import torch
    from torch.utils._pytree import tree_leaves

    known = {id(t): t for t in tree_leaves(values) if isinstance(t, torch.Tensor)}
    spans = {id(t): span for span in _spans(t for t in known.values() if _in_one_piece(t)) for t in span.tensors}
    made: dict[int, Any] = {}

    def changed(value: Any) -> Any:
        if id(value) not in known:
            return change(value)
        if id(value) not in made:
            span = spans.get(id(value))
            if span is None or (len(span.tensors) == 1 and span.end - span.first == value.numel()):
                made[id(value)] = change(value)
            else:
                memory = change(value.detach().as_strided((span.end - span.first,), (1,), span.first))
                for one in span.tensors:
                    where = one.storage_offset() - span.first
                    made[id(one)] = memory.as_strided(one.shape, one.stride(), where)
        return made[id(value)]

    return changed


def held_bytes(tensors: Mapping[str, torch.Tensor]) -> dict[str, int | None]:
    """Return the bytes of tensors by name; memory that several tensors share is counted for the first one.

    ``None``: a tensor without a shape yet, a tensor with unknown positions of its elements, such as a sparse one, or
    one with too many separate stretches of memory.
    """
    found: dict[str, int | None] = {}
    memories: dict[int, list[tuple[int, int, int, str]]] = {}
    for i, (name, tensor) in enumerate(tensors.items()):
        found[name] = 0 if _strided(tensor) and (tensor.numel() == 0 or _in_one_piece(tensor)) else None
        if _in_one_piece(tensor):
            size, memory = tensor.element_size(), tensor.untyped_storage()._cdata
            place = (int(tensor.storage_offset()) * size, _end(tensor) * size, i, name)
            memories.setdefault(memory, []).append(place)
    for places in memories.values():
        end, group = -1, list[tuple[int, str]]()
        for first, last, i, name in [*sorted(places), (_BEHIND, _BEHIND, -1, "")]:
            if group and first >= end:
                found[min(group)[1]] = _union_bytes([_pieces(tensors[n]) for _, n in group])
                group = []
            group.append((i, name))
            end = max(end, last)
    return found


_BEHIND: Final = 2**63
"""Address beyond the end of every memory."""
_MOST_PIECES: Final = 2**24


def _pieces(tensor: torch.Tensor) -> tuple[int, int, list[tuple[int, int]]]:
    """Split the memory of a tensor into equal contiguous stretches.

    Returns:
        The first byte, the length of a stretch, and by dimension (number, step in bytes) of stretches, the smallest
        step first.
    """
    length, size = tensor.element_size(), tensor.element_size()
    steps = sorted((step * size, n) for n, step in zip(tensor.shape, tensor.stride(), strict=True) if n > 1 and step)
    while steps and steps[0][0] <= length:
        step, n = steps.pop(0)
        length += (n - 1) * step
    return int(tensor.storage_offset()) * size, length, [(n, step) for step, n in steps]


def _union_bytes(every: list[tuple[int, int, list[tuple[int, int]]]]) -> int | None:
    """Return the bytes that at least one tensor occupies; ``None`` if there are too many stretches of memory."""
    import numpy as np

    found = {(first, length, tuple(steps)) for first, length, steps in every}
    if len(found) == 1:
        ((_, length, steps),) = found
        reach, apart = length, True
        for n, step in steps:
            apart &= step >= reach
            reach += (n - 1) * step
        if apart:
            return length * prod(n for n, _ in steps)
    if sum(prod(n for n, _ in steps) for _, _, steps in found) > _MOST_PIECES:
        return None
    starts, ends = [], []
    for first, length, steps in found:
        at = np.array([first])
        for n, step in steps:
            at = (at[:, None] + step * np.arange(n)).ravel()
        starts.append(at)
        ends.append(at + length)
    start, end = np.concatenate(starts), np.concatenate(ends)
    order = np.argsort(start)
    start, end = start[order], np.maximum.accumulate(end[order])
    before = np.concatenate([start[:1], end[:-1]])
    return int(np.clip(end - np.maximum(start, before), 0, None).sum())


@dataclass(frozen=True, slots=True)
class TensorPosition:
    """Placeholder for a tensor in the arguments of a call: argument name, and index among the argument's tensors."""

    name: str
    index: int
    """Index among the tensors of the argument."""


def once(args: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Remove repeated tensors from arguments; also return the original structure of the arguments that changed.

    An argument with a tensor that occurred before is reduced to a list of its new tensors, or dropped without any. Its
    original structure is returned with a :class:`TensorPosition` in place of every tensor.
    """
    from torch.utils._pytree import tree_leaves, tree_map

    places: dict[int, TensorPosition] = {}
    kept: dict[str, Any] = {}
    changed: dict[str, Any] = {}
    for name, value in args.items():
        tensors = tree_leaves(value)
        new = list({id(t): t for t in tensors if id(t) not in places}.values())
        places.update((id(t), TensorPosition(name, i)) for i, t in enumerate(new))
        if len(new) < len(tensors):
            changed[name] = tree_map(lambda t: places[id(t)], value)
        if new:
            kept[name] = value if name not in changed else new
    return kept, changed


def restored(args: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments from which :func:`once` made ``args``."""
    from torch.utils._pytree import tree_leaves, tree_map

    found = {name: tree_leaves(value) for name, value in args.items()} if changed else {}
    return {**args, **tree_map(lambda place: found[place.name][place.index], dict(changed))}


def _in_one_piece(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's elements lie in its storage at the offsets given by its strides."""
    return _strided(tensor) and tensor.numel() > 0 and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())


def _strided(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is an ordinary strided one, of no subclass."""
    import torch

    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided


def _spans(tensors: Iterable[torch.Tensor]) -> list[Span]:
    """Group tensors of one storage and dtype by overlap, and return the span of each group."""
    memories: dict[tuple[int, torch.dtype], list[torch.Tensor]] = {}
    for tensor in tensors:
        memories.setdefault((tensor.untyped_storage()._cdata, tensor.dtype), []).append(tensor)
    found: list[Span] = []
    for together in memories.values():
        open_span: Span | None = None
        for tensor in sorted(together, key=lambda t: t.storage_offset()):
            first, end = int(tensor.storage_offset()), _end(tensor)
            if open_span is not None and first < open_span.end:
                open_span = Span(open_span.first, max(end, open_span.end), (*open_span.tensors, tensor))
                found[-1] = open_span
            else:
                open_span = Span(first, end, (tensor,))
                found.append(open_span)
    return found


def _end(tensor: torch.Tensor) -> int:
    reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.storage_offset() + reach + 1)


_COPIED: Final[dict[type, Callable[[Any, dict[int, Any]], Any]]] = {
    MappingProxyType: lambda held, memo: MappingProxyType(copy.deepcopy(dict(held), memo)),
    ModuleType: lambda held, memo: held,
    type(threading.Lock()): lambda held, memo: threading.Lock(),
    type(threading.RLock()): lambda held, memo: threading.RLock(),
}
"""Copy function for objects that ``copy.deepcopy`` cannot copy, by class: views of dicts, Python modules, locks."""
_WRAPPERS: Final = {"OptimizedModule": "_orig_mod", "DataParallel": "module", "DistributedDataParallel": "module"}
"""Attribute of a wrapper module that holds the wrapped module, by class of the wrapper."""


class TooLarge(Incomplete):
    """Raised for a module with more parameters than can be filled with values."""


MOST_BYTES: Final = 2 * 1024**3
"""Limit in bytes of parameters and buffers up to which a module is materialized."""


def on_meta(module: nn.Module) -> nn.Module:
    """Return a copy of a module with every parameter and buffer on meta; hooks and modes are kept."""
    return with_tensors(module, _on_meta)


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    """Return a meta tensor of the same layout, not a fake tensor, which would belong to a mode."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    if isinstance(tensor, FakeTensor):
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    return torch.empty_like(tensor, device="meta", requires_grad=False)


def own_copy(module: nn.Module) -> nn.Module:
    """Return a copy of a module that shares its parameters and copies its buffers, which a run may modify.

    Parameters created in ``inference_mode`` are copied, because they cannot be traced.
    """
    import torch

    def own(tensor: torch.Tensor) -> torch.Tensor:
        same = isinstance(tensor, torch.nn.Parameter) and not tensor.is_inference()
        return tensor if same else tensor.detach().clone()

    return with_tensors(module, own)


def short_run(module: nn.Module, kwargs: Mapping[str, Any]) -> Any:
    """Call a module on meta or, if that fails, a copy filled with ones; return ``None`` if both fail."""
    import torch

    from costproof.patches.inference import inference_context

    found = runs_on_meta(module, kwargs)
    if found is None:
        with suppress(Exception), unchecked(), inference_context(module):
            return materialize(module)(**with_values(kwargs, torch.device("cpu")))
    return found


def runs_on_meta(module: nn.Module, kwargs: Mapping[str, Any]) -> Any:
    """Call a module on meta and return the result; ``None`` if the call fails."""
    from costproof.patches.inference import inference_context

    # It is code of other packages, which raises what it likes.
    with suppress(Exception), unchecked(), inference_context(module):
        return module(**kwargs)
    return None


@contextmanager
def unchecked(*, made_up: bool = True) -> Iterator[None]:
    """Disable transformers' check for as many placeholder tokens as images fill, which needs real values.

    Args:
        made_up: whether tensor values are made up, so that masks must not be counted from them.
    """
    from costproof.patches.flex_attention import made_up_values

    with (
        mock.patch.dict(os.environ, {"TRANSFORMERS_DISABLE_TORCH_CHECK": "1"}),
        made_up_values() if made_up else nullcontext(),
    ):
        yield


def materialize(module: nn.Module) -> nn.Module:
    """Return a copy of a module on the CPU, in which tensors without values are filled with ones.

    Parameters with values are shared. Integer buffers on meta are initialized by ``_init_weights`` of a model of
    transformers, because sizes may depend on them.

    Raises:
        TooLarge: the copy would exceed :data:`MOST_BYTES`.
        Incomplete: the module cannot be copied.
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
    """Return a CPU tensor with values: the tensor itself, a copy, or ones in place of a meta tensor.

    Sparse parameters are copied too, because writes to them cannot be undone.
    """
    import torch

    if tensor.is_meta:
        return torch.ones_like(tensor, device="cpu")
    plain = isinstance(tensor, torch.nn.Parameter) and tensor.layout is torch.strided and not tensor.is_inference()
    if plain and tensor.device.type == "cpu":
        return tensor
    return tensor.detach().clone().cpu()


def own_inputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Copy the tensors and caches in arguments, which a run may change; copied tensors are detached."""
    import torch

    def made(value: Any) -> Any:
        return value.detach().clone() if isinstance(value, torch.Tensor) else _own(value)

    same = alike(dict(inputs), made)
    return {name: _mapped(value, same) for name, value in inputs.items()}


def _own(value: Any) -> Any:
    """Copy an object that a run may modify; return modules and uncopyable objects as they are."""
    import torch

    if not isinstance(value, torch.nn.Module):
        with suppress(Exception):
            return copy.deepcopy(value)
    return value


def inputs_on_meta(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments with their tensors on meta and with copies of objects that a run may fill."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    def moved(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return _on_meta(value) if isinstance(value, FakeTensor) else value.detach().to("meta")
        return _own(value)

    same = alike(dict(inputs), moved)
    return {name: _mapped(value, same) for name, value in inputs.items()}


def with_values(inputs: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """Return arguments with zeros in place of meta tensors, including those in caches, which are copied."""
    import torch

    def made(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return torch.zeros_like(value, device=device) if value.is_meta else value
        held = [t for t in _held(value) if t.is_meta]
        return copy.deepcopy(value, {id(t): made(t) for t in held}) if held else value

    same = alike(dict(inputs), made)
    return {name: _mapped(value, same) for name, value in inputs.items()}


def _held(value: Any, seen: set[int] | None = None) -> Iterator[torch.Tensor]:
    """Yield the tensors that an object contains at any depth, except those in modules."""
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
    """Return a copy of a module with ``change`` applied to every tensor; ties and shared memory are preserved.

    Raises:
        Incomplete: another attribute of the module cannot be copied.
    """
    import torch
    from torch.utils._pytree import tree_leaves

    from costproof.patches.input_values import KnownIntegers

    def changed(tensor: torch.Tensor) -> torch.Tensor:
        made = change(tensor)
        parameter = isinstance(tensor, torch.nn.Parameter) and not isinstance(made, torch.nn.Parameter)
        return torch.nn.Parameter(made, tensor.requires_grad) if parameter else made

    # What is in the memo is taken for copied: tensors are what we say, all else is a copy.
    same = alike(list(module.buffers()), changed)
    memo: dict[int, Any] = {id(t): same(t) for t in _tensors(module)}
    known = (v for part in module.modules() for v in tree_leaves(vars(part)) if isinstance(v, KnownIntegers))
    memo.update((id(v), v.moved(changed)) for v in known)
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
            "the module cannot be copied, and a count must not change the module itself",
            where=type(module).__name__,
            expected="a module that copy.deepcopy can copy",
            got=first_line(error),
            fix="name a function that makes the module: FILE.py:FUNCTION",
        ) from error
    return unwrapped(made)


def _rebound(function: FunctionType, memo: dict[int, Any]) -> FunctionType:
    """Return a copy of a function whose references to a module or its methods point to the copied module.

    References are in its closure and its globals; ``copy.deepcopy`` returns functions unchanged.
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
    """Return the global names that a function, or a function nested in it, may look up."""
    yield from code.co_names
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _names(value)


def _is_part(value: Any, memo: dict[int, Any]) -> bool:
    """Return whether a value is one of the copied modules or a method of one."""
    if isinstance(value, partial):
        return any(_is_part(v, memo) for v in (value.func, *value.args, *value.keywords.values()))
    return id(attribute(value, "__self__", value) if isinstance(value, MethodType) else value) in memo


def _tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    """Return the tensors of a module: parameters, buffers and plain attributes, such as a weight computed by a hook."""
    import torch

    yield from module.parameters()
    yield from module.buffers()
    for part in module.modules():
        yield from (value for value in vars(part).values() if isinstance(value, torch.Tensor))


def attribute_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and tensor of all tensors that modules hold as plain attributes, each under all its names.

    A name is the path of the module and the attribute, such as ``block.mask``, with ``.0`` or ``.left`` for an item of
    a list, a tuple or a dict.
    """
    for path, part in module.named_modules(remove_duplicate=False):
        for name, value in vars(part).items():
            if name not in ("_parameters", "_buffers", "_modules"):
                yield from _inside(value, f"{path}.{name}" if path else name, ())


def _inside(value: Any, name: str, around: tuple[int, ...]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and tensor of each dense tensor in nested lists, tuples and dicts, which may contain themselves."""
    import torch

    if isinstance(value, torch.Tensor):
        if value.layout is torch.strided:
            yield name, value
    elif isinstance(value, dict | list | tuple) and id(value) not in around:
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _inside(inner, f"{name}.{key}", (*around, id(value)))


def innermost(module: nn.Module) -> nn.Module:
    """Return the module inside wrappers of ``torch.compile`` and data parallelism; the wrappers stay unchanged."""
    while (name := _WRAPPERS.get(type(module).__name__)) is not None:
        module = getattr(module, name)
    return module


def unwrapped(module: nn.Module) -> nn.Module:
    """Remove wrappers of ``torch.compile`` and data parallelism and rewrite ``torch.fx`` modules, in place.

    Returns the module.

    ``torch.export`` attributes the operators of a ``GraphModule`` to its caller.
    """
    plain: dict[int, nn.Module] = {}

    def inside(part: nn.Module) -> nn.Module:
        part = innermost(part)
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
    """Return a ``torch.fx`` module as an instance of a plain class; return other modules unchanged."""
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
