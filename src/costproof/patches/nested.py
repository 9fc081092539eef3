"""Record the operators on the rows of nested tensors of the jagged layout.

A jagged tensor is a tensor of the rows of all sequences with the first row of each, and torch runs an operator on it by
one on the rows. An export records no such tensor, nor does TorchLens: arguments are split into ordinary tensors
(:class:`Jagged`), which a hook of the module puts together again, and only operators on rows are recorded.

Attention is one operator on rows, as on a GPU; on a CPU, torch runs it by nested tensors of the other layout, whose
lengths no graph has. Importing this module does not import torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from costproof.ledger.errors import BadInput
from costproof.patches.patch import Patch, patched

if TYPE_CHECKING:
    import torch
    from torch import nn

KIND: Final = "NestedTensor"
"""Class name of jagged tensors."""
_HOLES: Final = "a nested tensor with holes: it has lengths besides its offsets"
_TENSORS: Final = "torch.nested._internal.nested_tensor"
_OPERATORS: Final = "torch.nested._internal.ops"
_TEST: Final = "tracers/test_nested.py"


class Jagged(NamedTuple):
    """Jagged nested tensor as a tuple of ordinary tensors, as exports and tracers require."""

    values: torch.Tensor
    """The rows of all sequences."""
    offsets: torch.Tensor
    """First row of each sequence, and the number of all rows: [sequences + 1]."""
    shortest: torch.Tensor
    """Empty tensor whose size states the shortest length: [shortest length + 1, 0], or [0, 0] if unknown."""
    longest: torch.Tensor
    axis: torch.Tensor
    """Empty tensor whose size states the ragged dimension of the nested tensor: [dimension, 0]."""


def in_parts(given: Any, where: str) -> Any:
    """Replace every jagged tensor in nested arguments by a :class:`Jagged` of ordinary tensors.

    Raises:
        BadInput: a nested tensor has the strided layout or holes.
    """
    import torch
    from torch.utils._pytree import tree_map

    def parts(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_nested:
            return value
        if value.layout is not torch.jagged:
            raise BadInput(
                "a nested tensor of the strided layout keeps its lengths where no graph has them", where=where,
                expected="layout=torch.jagged", got=f"layout={value.layout}",
                fix="make it with torch.nested.nested_tensor(..., layout=torch.jagged), or pass padded tensors",
            )  # fmt: skip
        nested: Any = value
        if nested.lengths() is not None:
            raise BadInput(_HOLES, where=where, fix="call contiguous() on it, which leaves the holes out")
        offsets, extent = nested.offsets(), [0, 0]
        if not offsets.is_meta and len(offsets) > 1:
            extent = [1 + int(of(offsets.diff())) for of in (torch.min, torch.max)]
        rows = nested._values.detach()
        least, most, axis = (rows.new_empty((n, 0)) for n in (*extent, nested._ragged_idx))
        return Jagged(rows, offsets.detach(), least, most, axis)

    return tree_map(parts, given)


def put_together(module: nn.Module, given: Any) -> None:
    """Register a hook on a module that rebuilds jagged tensors from :class:`Jagged` arguments, if there are any."""
    from torch.utils._pytree import tree_leaves

    if any(isinstance(v, Jagged) for v in tree_leaves(given, is_leaf=_is_jagged)):
        module.register_forward_pre_hook(_assemble, prepend=True, with_kwargs=True)


def _is_jagged(value: Any) -> bool:
    return isinstance(value, Jagged)


def _assemble(module: nn.Module, args: Any, kwargs: Any) -> Any:
    from torch.utils._pytree import tree_map

    return tree_map(lambda v: _nested(v) if _is_jagged(v) else v, (args, kwargs), is_leaf=_is_jagged)


def _nested(parts: Jagged) -> Any:
    from torch.nested._internal import nested_tensor

    least, most, axis = (int(t.shape[0]) for t in parts[2:])
    known = {"min_seqlen": least - 1, "max_seqlen": most - 1} if most else {}
    view: Any = nested_tensor.nested_view_from_values_offsets_lengths
    return view(parts.values, parts.offsets, None, ragged_idx=axis, **known)


def rows_of(value: Any) -> Any:
    """Return the rows of a jagged tensor; return any other value unchanged."""
    return value._values if type(value).__name__ == KIND else value


@dataclass(slots=True)
class NestedMade:
    """Record of whether a forward made a jagged tensor."""

    seen: bool = False


@contextmanager
def watched() -> Iterator[NestedMade]:
    """Stop a forward that makes a jagged tensor while the block runs, since only the dispatcher can follow it."""
    found = NestedMade()
    with patched(REFUSED, context=(found,)):
        yield found


def _refused(original: Any, found: NestedMade) -> Any:
    def new(cls: Any, values: Any, *args: Any, **kwargs: Any) -> Any:
        found.seen = True
        raise RuntimeError("a nested tensor, whose rows only the dispatcher and an export follow")

    return staticmethod(new)


REFUSED: Final = Patch(
    f"{_TENSORS}:NestedTensor.__new__", _refused, "TorchLens cannot record operators on nested tensors", _TEST
)


@contextmanager
def whole_attention() -> Iterator[None]:
    """Run attention of jagged tensors as one operator on rows while the block runs."""
    _operator()
    with patched(*PATCHES):
        yield


@cache
def _operator() -> Any:
    """Register the attention operator on packed rows with torch, once, and return it."""
    import torch

    from costproof.opgraph.rules.attention import NESTED  # which needs sympy, and lists of targets do not load it

    space, _, name = NESTED.partition(".")
    library: Any = torch.library.Library(space, "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define(
        f"{name}(Tensor query, Tensor key, Tensor value, Tensor cu_seq_q, Tensor cu_seq_k, SymInt max_q, SymInt max_k,"
        " bool is_causal, float? scale) -> (Tensor, Tensor)"
    )
    library.impl(name, _attend, "CompositeExplicitAutograd")
    library.impl(name, _shapes, "Meta")
    _libraries.append(library)  # which unregisters it when it is deleted
    return getattr(getattr(torch.ops, space), name)


_libraries: Final[list[Any]] = []


def _shapes(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any) -> Any:
    """Return empty tensors on meta: the attention result [T_q, H, D_v], and a statistic [H, T_q] of its rows."""
    import torch

    rows, heads, _width = query.shape
    return query.new_empty((rows, heads, value.shape[-1])), query.new_empty((heads, rows), dtype=torch.float32)


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, starts: torch.Tensor, key_starts: torch.Tensor,
    max_q: int, max_k: int, is_causal: bool, scale: float | None,
) -> Any:  # fmt: skip
    """Run attention on packed rows, sequence by sequence."""
    import torch

    out, statistic = _shapes(query, key, value)
    with torch._C.DisableTorchFunction():  # no tracer records what the operator does
        lengths, of_keys = ([int(n) for n in t.diff()] for t in (starts, key_starts))
        split: Any = torch.split
        each = ((out, lengths), (query, lengths), (key, of_keys), (value, of_keys))
        parts = zip(*(split(rows, sizes) for rows, sizes in each), strict=True)
        for result, *rows in parts:
            q, k, v = (t.transpose(0, 1).unsqueeze(0) for t in rows)
            found = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=is_causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
            )
            result.copy_(found.squeeze(0).transpose(0, 1))
    return out, statistic


def _whole(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
        scale: float | None = None, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        from torch.nested._internal import nested_tensor, sdpa

        view: Any = nested_tensor.nested_view_from_values_offsets_lengths
        every = (query, key, value)
        if any(type(t).__name__ != KIND or t._ragged_idx != 2 or t.dim() != 4 for t in every):
            return original(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        sdpa._validate_sdpa_input(query, key, value, attn_mask, dropout_p, is_causal, scale)
        if any(t.lengths() is not None for t in every):
            raise RuntimeError(_HOLES)
        rows = [t._values.transpose(0, 1) for t in every]
        longest = [t._values.shape[1] if (n := t._maybe_max_seqlen) is None else n for t in (query, key)]
        found = _operator()(*rows, query.offsets(), key.offsets(), *longest, is_causal, scale)[0]
        return view(
            found, query.offsets(), None, min_seqlen=query._maybe_min_seqlen, max_seqlen=query._maybe_max_seqlen
        ).transpose(1, 2)

    return call


def _of_any_name(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(func: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(func, "__name__", "") == "scaled_dot_product_attention":  # TorchLens replaces the function itself
            ops: Any = sys.modules[_OPERATORS]
            return ops.jagged_scaled_dot_product_attention(*args, **kwargs)
        return original(func, *args, **kwargs)

    return call


def _with_offsets(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a replacement of ``jagged_from_list`` that computes offsets by operators, since exports hide literals."""

    def call(tensors: Any, offsets: Any, *args: Any, **kwargs: Any) -> Any:
        import torch

        if offsets is None and tensors and all(t.dim() == tensors[0].dim() > 0 for t in tensors):
            where = kwargs.get("device") or tensors[0].device
            sizes = [[int(n) for n in t.shape] for t in tensors]
            axis = next((i for i, of in enumerate(zip(*sizes, strict=True)) if len({*of}) > 1), 0)
            lengths = [torch.full((1,), n[axis], dtype=torch.int64, device=where) for n in sizes]
            offsets = torch.cat([torch.zeros(1, dtype=torch.int64, device=where), *lengths]).cumsum(0)
        return original(tensors, offsets, *args, **kwargs)

    return call


_RAGGED: Final = "_costproof_ragged"
"""Attribute of fake offsets with the symbolic size that stands for the ragged lengths."""
_numbers: Final = count(2**40)
"""Ids of the ragged sizes of fake tensors; torch's own ids count from 0."""


def _plain_size(original: Callable[..., Any]) -> Callable[..., Any]:
    def size(tensor: Any, *, coeff: int = 1) -> Any:
        import torch
        from torch._subclasses.fake_tensor import FakeTensor
        from torch._subclasses.functional_tensor import mb_unwrap_functional_tensor
        from torch.nested._internal.nested_int import NestedIntNode

        tensor = mb_unwrap_functional_tensor(tensor)
        if not isinstance(tensor, FakeTensor):
            return original(tensor, coeff=coeff)
        if _RAGGED not in vars(tensor):
            whole: Any = torch.SymInt
            setattr(tensor, _RAGGED, whole(NestedIntNode(next(_numbers), coeff)))
        return vars(tensor)[_RAGGED]

    return size


PATCHES: Final = (
    Patch(
        f"{_OPERATORS}:jagged_scaled_dot_product_attention", _whole,
        "on a CPU it needs lengths that no graph has, and on meta it has no kernel", _TEST, missing="skip",
    ),
    Patch(
        f"{_OPERATORS}:jagged_torch_function", _of_any_name,
        "it recognizes attention by a function that TorchLens replaces", _TEST, missing="skip",
    ),
    Patch(
        f"{_TENSORS}:jagged_from_list", _with_offsets, "its offsets are literals, whose values an export hides", _TEST,
        missing="skip",
    ),
    Patch(
        f"{_TENSORS}:get_tensor_symint", _plain_size, "a ragged size would be a symbol that no input of the graph has",
        _TEST, missing="skip",
    ),
    Patch(
        "torch.fx._symbolic_trace:is_fx_tracing", lambda original: lambda: False,
        "nested_tensor_from_jagged refuses every trace because of it", _TEST, missing="skip",
    ),
)  # fmt: skip


@contextmanager
def rows_exported() -> Iterator[None]:
    """Make exports record the operators on the rows of jagged tensors while the block runs.

    The exporter records operators before the dispatcher reaches the class of a tensor. Here, an operator on a jagged
    tensor goes to the class first, while the exporter's modes are inactive; its operators on rows then reach these
    modes.
    """
    import torch
    from torch.nested._internal.nested_tensor import _nt_view_dummy

    _nt_view_dummy()  # torch makes this tensor once, which must not happen inside an export
    with patched(*EXPORTED, context=(_Modes([]),)), torch.no_grad():
        yield


@dataclass(frozen=True, slots=True)
class _Modes:
    """Suspended modes of an exporter, while an operator runs in the class of its tensors; innermost call last."""

    waiting: list[list[Any] | None]

    @contextmanager
    def away(self, first: Any) -> Iterator[None]:
        """Suspend all modes while the block runs; ``first`` is the mode that is being called."""
        import torch
        from torch.utils._python_dispatch import _disable_current_modes

        # The result of a view operator would be another object than the one that is recorded.
        views = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
        kernels = torch._C._DisablePythonDispatcher()  # those of an export know ordinary tensors only
        with _disable_current_modes() as modes, torch._C._ExcludeDispatchKeyGuard(views), kernels:
            self.waiting.append([first, *modes])
            try:
                yield
            finally:
                self.waiting.pop()

    @contextmanager
    def back(self) -> Iterator[None]:
        """Reactivate the suspended modes while the block runs."""
        from torch._dispatch.python import enable_python_dispatcher
        from torch.overrides import enable_reentrant_dispatch

        modes = self.waiting[-1] if self.waiting else None
        if modes is None:
            yield
            return
        with enable_reentrant_dispatch(), enable_python_dispatcher(), ExitStack() as stack:
            for mode in reversed(modes):
                stack.enter_context(mode)
            self.waiting.append(None)
            try:
                yield
            finally:
                self.waiting.pop()


def _to_class(original: Callable[..., Any], modes: _Modes) -> Callable[..., Any]:
    def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if all(kind.__name__ != KIND for kind in types):
            return original(self, func, types, args, kwargs)
        with modes.away(self):
            return func(*args, **(kwargs or {}))

    return dispatch


def _on_rows(original: Any, modes: _Modes) -> Any:
    def dispatch(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with modes.back():
            return original.__func__(cls, func, types, args, kwargs)

    return classmethod(dispatch)


EXPORTED: Final = (
    Patch(
        "torch.fx.experimental.proxy_tensor:ProxyTorchDispatchMode.__torch_dispatch__", _to_class,
        "an exporter takes a nested tensor for a constant", _TEST,
    ),
    Patch(
        f"{_TENSORS}:NestedTensor.__torch_dispatch__", _on_rows, "the exporter's modes must see the operators on rows",
        _TEST,
    ),
)  # fmt: skip
