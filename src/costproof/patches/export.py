"""Patch ``torch.export`` to skip unneeded work, to follow concrete values, and to print nothing on failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Any, Final

from costproof.patches.patch import Patch, SettingPatch, patched

if TYPE_CHECKING:
    import torch
    from torch import nn

_MAX_UNCACHED_LAYERS: Final = 3
"""Number of equal layers up to which caching the output shapes of operators takes longer than computing them again."""

NO_STACK_TRACES: Final = SettingPatch(
    "torch.fx.config:do_not_emit_stack_traces",
    lambda original: True,
    "the Python stack of each node is not used; its module is recorded separately",
    "tracers/test_fast_export.py",
)
NO_FAKE_TENSOR_CACHE: Final = SettingPatch(
    "torch._dynamo.config:fake_tensor_cache_enabled",
    lambda original: False,
    "caching the shapes that an operator returns pays only if many equal layers follow",
    "tracers/test_fast_export.py",
)


def _compiled_when_called(original: Callable[..., Any]) -> Callable[..., Any]:
    from torch.fx._lazy_graph_module import _make_graph_module

    return _make_graph_module


def _if_any_unbacked(original: Callable[..., Any]) -> Callable[..., None]:
    from torch._export.utils import _get_shape_env_from_gm
    from torch.utils._sympy.symbol import SymT, symbol_is_type

    def bind(module: Any) -> None:
        shapes = _get_shape_env_from_gm(module)
        unbacked = (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT)
        if shapes is not None and any(symbol_is_type(symbol, unbacked) for symbol in shapes.var_to_range):
            original(module)

    return bind


def _without_grad_settings(original: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    def replace(module: Any, signature: Any) -> Any:
        setting: Any = torch._C._set_grad_enabled
        found = [node for node in module.graph.nodes if node.target is setting]
        if all(node.args[0] == torch.is_grad_enabled() for node in found):
            for node in found:
                module.graph.erase_node(node)
        return original(module, signature)

    return replace


LAZY_PROGRAM: Final = Patch(
    "torch.export.exported_program:_create_graph_module_for_export",
    _compiled_when_called,
    "torch compiles Python code of the exported graph, which is read and seldom called",
    "tracers/test_fast_export.py",
    missing="skip",
)
NO_UNBACKED_BINDINGS: Final = Patch(
    "torch.export._trace:_replace_unbacked_bindings",
    _if_any_unbacked,
    "torch searches the shapes of all nodes for unbacked symbols, though the graph has none",
    "tracers/test_fast_export.py",
    missing="skip",
)
NO_GRAD_SETTINGS: Final = Patch(
    "torch._export.passes.replace_set_grad_with_hop_pass:replace_set_grad_with_hop_pass",
    _without_grad_settings,
    "torch splits the graph where a model disables gradients that are disabled already, and joins it again",
    "tracers/test_fast_export.py",
    missing="skip",
)
NO_TENSOR_METADATA: Final = Patch(
    "torch.fx.experimental.proxy_tensor:_extract_tensor_metadata",
    lambda original: lambda *args, **kwargs: None,
    "strides and memory formats of each node are derived with arithmetic on symbols and are not used",
    "tracers/test_fast_export.py",
    missing="skip",
)


@contextmanager
def fast_export(module: nn.Module) -> Iterator[None]:
    """Disable parts of ``torch.export`` that are not needed here and take about a third of its time.

    None of the settings is public API of torch; one that a version lacks is left out.
    """

    with ExitStack() as around:
        try:
            # Otherwise torch generates Python code for every intermediate graph, a fifth of its time.
            from torch.fx._lazy_graph_module import _use_lazy_graph_module
        except ImportError:
            pass
        else:
            around.enter_context(_use_lazy_graph_module(True))
            around.enter_context(patched(LAZY_PROGRAM))
        few = longest_module_list(module) <= _MAX_UNCACHED_LAYERS
        skipped = (NO_STACK_TRACES, NO_TENSOR_METADATA, NO_UNBACKED_BINDINGS, NO_GRAD_SETTINGS)
        around.enter_context(patched(*skipped, *([NO_FAKE_TENSOR_CACHE] if few else [])))
        yield


def longest_module_list(module: nn.Module) -> int:
    """Return the length of the longest ``ModuleList`` of a model, or 0 if it has none."""
    from torch import nn

    return max((len(m) for m in module.modules() if isinstance(m, nn.ModuleList)), default=0)


@dataclass(frozen=True, slots=True)
class KernelPatch(Patch):
    """Python function as an operator's meta kernel; a kernel that torch registers itself takes precedence."""

    def install(self, undo: ExitStack, *context: Any) -> None:
        """Register the kernel; ``undo`` removes it."""
        import torch

        key = torch._C.DispatchKey.CompositeImplicitAutograd
        name = self.target.removeprefix("torch:ops.aten.")
        op: Any = getattr(torch.ops.aten, name).default
        if key not in op.py_kernels:
            undo.callback(op._dispatch_cache.clear)
            undo.callback(op.py_kernels.pop, key)
            op.py_kernels[key] = self.make(None)
            op._dispatch_cache.clear()


def _attention_shape(
    query: Any, key: Any, value: Any, mask: Any = None, *_: Any, enable_gqa: bool = False, **__: Any
) -> Any:
    """Return an empty attention result on meta: [.., S, v] for [.., S, d], [.., K, d] and [.., K, v], contiguous.

    The same conditions are checked as by the products, so that the exporter learns which of its symbols are equal.
    """
    import torch

    ask: Any = torch
    ask._check(query.shape[-1] == key.shape[-1])
    ask._check(key.shape[-2] == value.shape[-2])
    inner = 3 if enable_gqa else 2
    batches = ask.broadcast_shapes(*(t.shape[:-inner] for t in (query, key, value, mask) if t is not None))
    return query.new_empty((*batches, *query.shape[-inner:-1], value.shape[-1]))


def _linear_shape(rows: Any, weight: Any, bias: Any = None) -> Any:
    """Return an empty result of a linear layer on meta: [.., m] for [.., k] and weight [m, k]."""
    import torch

    ask: Any = torch
    ask._check(rows.shape[-1] == weight.shape[-1])
    return rows.new_empty((*rows.shape[:-1], *weight.shape[:-1]))


def _layer_norm_shape(rows: Any, sizes: Any, weight: Any = None, bias: Any = None, *_: Any, **__: Any) -> Any:
    """Return an empty layer norm result on meta: contiguous, with the shape of the input."""
    import torch

    ask: Any = torch
    ask._check(0 < len(sizes) <= rows.dim() and not rows.is_complex())
    for shape in (rows.shape[rows.dim() - len(sizes) :], *(t.shape for t in (weight, bias) if t is not None)):
        ask._check(len(shape) == len(sizes))
        for size, expected in zip(shape, sizes, strict=True):
            ask._check(size == expected)
    return rows.new_empty(rows.shape)


_ELEMENTWISE: Final = ("abs", "clone", "cos", "exp", "gelu", "neg", "relu", "rsqrt", "sigmoid", "silu", "sin", "tanh")
"""Unary operators whose result has the shape and, for floating-point numbers, the dtype of the argument."""
_BINARY: Final = ("add", "div", "mul", "sub")
"""Operators of two tensors, or of a tensor and a number, whose result has the broadcast shape."""


def _contiguous(tensor: Any) -> bool:
    """Return whether a tensor is contiguous, by comparing symbolic expressions, which adds no guard."""
    expected: Any = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if _term(stride) != expected:
            return False
        expected = expected * _term(size)
    return True


def _term(size: Any) -> Any:
    return size if isinstance(size, int) else size.node._expr


def _memory_order(tensor: Any) -> list[int] | None:
    """Return the dimensions from the outermost in memory to the innermost; ``None`` to leave the decision to torch.

    Each stride is a positive multiple of the extent of the next one, whatever the values of symbols.
    """
    if _contiguous(tensor):
        return list(range(tensor.dim()))
    sizes, strides = [*map(_term, tensor.shape)], [*map(_term, tensor.stride())]
    seen = [stride if isinstance(stride, int) else stride.node.hint for stride in tensor.stride()]
    if 1 in sizes or 0 in strides or None in seen:
        return None
    order = sorted(range(tensor.dim()), key=lambda d: -seen[d])
    for outer, inner in pairwise(order):
        extent = strides[inner] * sizes[inner]
        if isinstance(strides[outer], int) and isinstance(extent, int):
            nested = extent > 0 and strides[outer] % extent == 0
        else:
            ratio = strides[outer] / extent
            nested = bool(ratio.is_integer and ratio.is_positive)
        if not nested:
            return None
    return order


def _broadcast(shapes: list[Any]) -> list[Any] | None:
    """Return the broadcast shape of shapes with equal sizes or 1; ``None`` to leave the decision to torch."""
    result = []
    for sizes in zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1):
        different = {_term(size): size for size in sizes if _term(size) != 1}
        if len(different) > 1:
            return None
        result.append(next(iter(different.values()), 1))
    return result[::-1]


def _same_terms(shape: Any, other: Any) -> bool:
    return len(shape) == len(other) and all(_term(a) == _term(b) for a, b in zip(shape, other, strict=True))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


class _Results:
    """Methods for shape, dtype and memory order of a result, by operator; ``None`` leaves the decision to torch."""

    def __init__(self) -> None:
        import torch

        aten: Any = torch.ops.aten
        unary = (*(getattr(aten, name).default for name in _ELEMENTWISE), aten.pow.Tensor_Scalar)
        self.rules: dict[Any, Callable[..., Any]] = {
            **dict.fromkeys(unary, self.unary),
            **{getattr(aten, name).Tensor: self.binary for name in _BINARY},
            aten._to_copy.default: self.cast,
            aten.mean.dim: self.mean,
            aten.cat.default: self.concatenated,
        }

    def unary(self, rows: Any, *args: Any, memory_format: Any = None, **kwargs: Any) -> Any:
        if not rows.is_floating_point() or any(isinstance(one, complex) for one in args) or memory_format is not None:
            return None
        return rows.shape, rows.dtype, _memory_order(rows)

    def cast(self, rows: Any, **kwargs: Any) -> Any:
        if kwargs.keys() != {"dtype"} or rows.is_complex():
            return None
        return rows.shape, kwargs["dtype"], _memory_order(rows)

    def binary(self, rows: Any, other: Any, *, alpha: Any = 1) -> Any:
        if not rows.is_floating_point() or not _is_number(alpha):
            return None
        if _is_number(other):
            return rows.shape, rows.dtype, _memory_order(rows)
        alike = hasattr(other, "dim") and rows.dtype == other.dtype and rows.device == other.device
        if not alike or not rows.dim() or not other.dim():
            return None
        shape = _broadcast([rows.shape, other.shape])
        if shape is None:
            return None
        if _contiguous(rows) and _contiguous(other):
            return shape, rows.dtype, list(range(len(shape)))
        # The strides of the first argument decide, where each dimension has one.
        return shape, rows.dtype, _memory_order(rows) if _same_terms(rows.shape, shape) else None

    def mean(self, rows: Any, dims: Any, keepdim: bool = False, **kwargs: Any) -> Any:
        if not dims or kwargs or not rows.is_floating_point() or not _contiguous(rows):
            return None
        reduced = {d % rows.dim() for d in dims}
        kept = [1 if d in reduced else size for d, size in enumerate(rows.shape) if keepdim or d not in reduced]
        return kept, rows.dtype, list(range(len(kept)))

    def concatenated(self, parts: Any, dim: int = 0) -> Any:
        first = parts[0]
        dim %= first.dim() or 1
        for part in parts:
            others = part.dim() == first.dim() > 1 and part.dtype == first.dtype and part.device == first.device
            if not others or not all(
                d == dim or _term(a) == _term(b) for d, (a, b) in enumerate(zip(part.shape, first.shape, strict=True))
            ):
                return None
        # A tensor that may be in the order of channels last keeps it.
        rows_last = _term(first.stride(-1)) == 1 and isinstance(first.stride(1), int) and first.stride(1) > 1
        if first.dim() in (4, 5) and not rows_last:
            return None
        shape = [*first.shape]
        shape[dim] = sum(part.shape[dim] for part in parts[1:]) + shape[dim] if len(parts) > 1 else shape[dim]
        return shape, first.dtype, list(range(len(shape)))


def _results_by_shape(original: Callable[..., Any]) -> Callable[..., Any]:
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    rules = _Results().rules

    def is_known(mode: Any, tensor: Any) -> bool:
        fake = isinstance(tensor, FakeTensor) and tensor.fake_mode is mode
        return fake and tensor.layout is torch.strided and tensor.constant is None

    def dispatch(self: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        rule = rules.get(func)
        if rule is not None and args and not self.propagate_real_tensors:
            given = [one for one in (args[0] if isinstance(args[0], list | tuple) else args) if not _is_number(one)]
            tensors = [one for one in given if isinstance(one, torch.Tensor)]
            if tensors and all(is_known(self, tensor) for tensor in tensors):
                found = rule(*args, **kwargs)
                if found is not None and found[2] is not None:
                    shape, dtype, order = found
                    return FakeTensor(self, _on_meta(shape, dtype, order), tensors[0].device)
        return original(self, func, types, args, kwargs)

    return dispatch


def _on_meta(shape: Any, dtype: torch.dtype, order: list[int]) -> torch.Tensor:
    """Return an empty dense meta tensor with its dimensions in this memory order, outermost first."""
    import torch

    if order == sorted(order):
        return torch.empty(shape, dtype=dtype, device="meta")
    strides, extent = [0] * len(order), 1
    for d in reversed(order):
        strides[d], extent = extent, extent * shape[d]
    return torch.empty_strided(shape, strides, dtype=dtype, device="meta")


SHAPES_OF_RESULTS: Final = (
    KernelPatch(
        "torch:ops.aten.scaled_dot_product_attention",
        lambda original: _attention_shape,
        "torch decomposes it into ten operators with arithmetic on symbols to find the shape of its result",
        "tracers/test_shapes.py",
    ),
    KernelPatch(
        "torch:ops.aten.linear",
        lambda original: _linear_shape,
        "torch decomposes it into three operators with arithmetic on symbols to find the shape of its result",
        "tracers/test_shapes.py",
    ),
    KernelPatch(
        "torch:ops.aten.layer_norm",
        lambda original: _layer_norm_shape,
        "torch decomposes it into fifteen operators with arithmetic on symbols to find the shape of its result",
        "tracers/test_shapes.py",
    ),
    Patch(
        "torch._subclasses.fake_tensor:FakeTensorMode._dispatch_impl",
        _results_by_shape,
        "torch makes up to ten tensors with arithmetic on symbols for the shape of one result",
        "tracers/test_shapes.py",
        missing="skip",
    ),
    Patch(
        "torch._subclasses.fake_tensor:FakeTensorMode._cached_dispatch_impl",
        _results_by_shape,
        "torch takes longer to make the key of a cached shape, and the result from it, than the shape itself",
        "tracers/test_shapes.py",
        missing="skip",
    ),
)
"""Patches that compute result shapes without torch's decompositions, which take most of the time of an export."""


def _discard(original: Any) -> Callable[..., None]:
    return lambda *args, **kwargs: None


QUIET_EXPORT: Final = (
    Patch(
        "torch.export._trace:print",
        _discard,
        "a failing export prints its whole graph; we report the reason",
        "models/generic/test_count.py",
        missing="create",
    ),
    *(
        Patch(f"{module}:log.{name}", _discard, "as print", "models/generic/test_count.py", missing="skip")
        for module in ("torch.export._trace", "torch.fx.experimental.symbolic_shapes")
        for name in ("warning", "error")
    ),
)


@cache
def value_dependent_tags() -> tuple[torch.Tag, ...]:
    """Return the torch tags of operators whose result values, or result sizes, depend on input values."""
    import torch

    return (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)


def _compute_real_values(original: Callable[..., Any]) -> Callable[..., Any]:
    import torch
    from torch.utils._pytree import tree_leaves, tree_map

    tags = value_dependent_tags()

    def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [v for v in tree_leaves((args, kwargs or {})) if isinstance(v, torch.Tensor)]
        if not any(tag in getattr(func, "tags", ()) for tag in tags) or any(_real_tensor(v) is None for v in given):
            return original(self, func, types, args, kwargs or {})
        real_args, real_kwargs = tree_map(_real_value, (args, kwargs or {}))
        return tree_map(lambda v: _fake_of(self, v), func(*real_args, **real_kwargs))

    return dispatch


def _tensor_of_numbers(original: Callable[..., Any]) -> Callable[..., Any]:
    from torch.utils._pytree import tree_map

    def tensor(data: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        numbers = tree_map(_scalar, data) if isinstance(data, list | tuple) else data
        return original(numbers, *args, **kwargs)  # type: ignore[no-any-return]

    return tensor


def _format_value(original: Any) -> Callable[[Any, str], str]:
    def format_value(self: Any, spec: str) -> str:
        known = _real_tensor(self)
        return object.__format__(self, spec) if known is None else format(known, spec)

    return format_value


def _copy_parameter(original: Any) -> Callable[..., None]:
    from torch._subclasses.fake_tensor import FakeTensor

    def copy(into: torch.Tensor, source: torch.Tensor | None) -> None:
        if source is not None and not isinstance(source, FakeTensor):
            into.copy_(source.detach())

    return copy


CONCRETE_VALUES: Final = (
    Patch(
        "torch:tensor",
        _tensor_of_numbers,
        "it asks each fake tensor in a list for its memory, which that does not have",
        "models/generic/test_values.py",
    ),
    Patch(
        "torch._subclasses.fake_tensor:FakeTensor.__format__",
        _format_value,
        "a text that names a part of the model must contain the number, as in a run",
        "models/generic/test_values.py",
    ),
    Patch(
        "torch._subclasses.fake_tensor:FakeTensorMode.dispatch",
        _compute_real_values,
        "torch introduces symbols for results that depend on values; here the values are known and decide the branch",
        "models/generic/test_values.py",
    ),
    Patch(
        "torch._subclasses.meta_utils:_safe_copy",
        _copy_parameter,
        "it does not copy the values of parameters, which are not plain tensors",
        "models/generic/test_values.py",
    ),
)


@contextmanager
def concrete_export() -> Iterator[None]:
    """Make exports follow concrete tensor values while the block runs, so that data-dependent branches are decided."""
    import torch._functorch.config

    with torch._functorch.config.patch(fake_tensor_propagate_real_tensors=True), patched(*CONCRETE_VALUES):
        yield


def _real_tensor(tensor: Any) -> Any:
    """Return the concrete values of a fake tensor, ``None`` without values; return other tensors unchanged."""
    from torch._subclasses.fake_tensor import FakeTensor

    return tensor.real_tensor if isinstance(tensor, FakeTensor) else tensor


def _real_value(value: Any) -> Any:
    import torch

    return _real_tensor(value) if isinstance(value, torch.Tensor) else value


def _scalar(value: Any) -> Any:
    """Convert a zero-dimensional tensor with values to a number; return anything else unchanged."""
    import torch

    known = _real_tensor(value) if isinstance(value, torch.Tensor) and value.dim() == 0 else None
    return value if known is None else known.item()


def _fake_of(mode: Any, value: Any) -> Any:
    """Return a fake tensor that carries this tensor as its concrete values; return anything but a tensor unchanged."""
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    with mode:
        fake: Any = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    fake.real_tensor = value
    return fake
