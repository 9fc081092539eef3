"""Run ``flex_attention`` as one operator while a model is traced, and count the pairs that its mask function keeps.

torch compiles ``flex_attention``, or runs it as two products over mapped indices, and refuses meta. Here every call
becomes a call of the operator ``costproof::flex_attention``, which does the same work. Its integer arguments state what
no shape does: the number of query-key pairs that the mask function leaves, and the FLOPs of the score function.

Both functions are Python functions of indices. The mask function is called for every pair, in another thread, where
no tracer and no fake mode is active, and with the values of the tensors that it refers to. The block mask is not read:
a kernel computes whole blocks, which is another count. Tensors made for a block mask are not work of the model.
"""

from __future__ import annotations

import copy
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from math import prod
from types import CellType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.errors import Recount, check_recounts
from costproof.opgraph.graph import OpCall, Value
from costproof.opgraph.rules.attention import EVERY_PAIR, FLEX, UNKNOWN_COUNT
from costproof.opgraph.rules.cost import OpCost
from costproof.opgraph.rules.registry import cost_of
from costproof.patches.patch import Patch, patched

if TYPE_CHECKING:
    import torch

_MODULE: Final = "torch.nn.attention.flex_attention"
_TEST: Final = "tracers/test_flex.py"
MOST_PAIRS: Final = 2**28
"""Maximum number of pairs for which a mask function is called."""
NO_FORMULA: Final = "the pairs that a mask function leaves have no formula"
_AT_ONCE: Final = 2**22

Run = Callable[["torch.Tensor", "torch.Tensor", "torch.Tensor"], Any]
_runs: Final[dict[int, Run]] = {}
"""Function that computes the result of a ``flex_attention`` call, by number of the call in the open context."""
_masks: Final[dict[int, Callable[..., Any]]] = {}
"""Mask function of a ``flex_attention`` call, by number of the call, for a separate count of its pairs."""


@contextmanager
def whole_flex_attention() -> Iterator[None]:
    """Run every ``flex_attention`` as one operator while the block runs."""
    _operator()
    try:
        with patched(*PATCHES):
            yield
    finally:
        _runs.clear()
        _masks.clear()


def mask_of_call(number: int) -> Callable[..., Any] | None:
    """Return the mask function of the call with this number, with its tensors' values; ``None`` without a mask.

    Raises:
        Exception: a tensor has no values.
    """
    mask = _masks.get(number)
    if mask is None:
        return None
    if _made_up:
        raise _NoValues
    real: Callable[..., Any] = _replaced(mask, _real)
    return real


@cache
def _operator() -> Any:
    """Register the operator ``costproof::flex_attention`` with torch, once, and return it."""
    import torch

    space, _, name = FLEX.partition(".")
    library: Any = torch.library.Library(space, "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define(
        f"{name}(Tensor query, Tensor key, Tensor value, int call, int kept, int score_flops)"
        " -> (Tensor, Tensor, Tensor)"
    )
    library.impl(name, lambda q, k, v, call, kept, score_flops: _runs[call](q, k, v), "CompositeExplicitAutograd")
    library.impl(name, _shapes, "Meta")
    _libraries.append(library)  # which unregisters it when it is deleted
    return getattr(getattr(torch.ops, space), name)


_libraries: Final[list[Any]] = []


def _shapes(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any) -> Any:
    """Return empty tensors on meta: the attention result [B, H, S, D_v], and two statistics [B, H, S] of its rows."""
    import torch

    out = query.new_empty((*query.shape[:-1], value.shape[-1]))
    return out, *(query.new_empty(query.shape[:-1], dtype=torch.float32) for _ in range(2))


def _whole(original: Any) -> Callable[..., Any]:
    from torch.nn.attention import flex_attention as flex

    def call(
        query: Any, key: Any, value: Any, score_mod: Any, block_mask: Any, scale: Any, options: Any, *rest: Any
    ) -> Any:
        mask = block_mask[-1]
        sizes = (*query.shape[:-1], key.shape[-2])
        if mask is flex.noop_mask:
            kept = EVERY_PAIR
        elif not all(type(size) is int for size in sizes):
            raise RuntimeError(NO_FORMULA)
        else:
            with unrecorded():
                kept = kept_pairs(mask, sizes, tuple(map(int, block_mask[2].shape[:2])))
        with unrecorded():
            own = 0 if score_mod is flex._identity else score_flops(score_mod)
        number = len(_runs)

        def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
            real = (*(_replaced(given, _real) for given in (score_mod, block_mask)), scale, options)
            with unrecorded():
                found = _apart(partial(_ungraded, original, q, k, v, *real, *rest))
            shapes = [q.shape[:-1]] * 2
            # A kernel that writes no statistics returns empty ones.
            return found[0], *(t if t.shape == s else q.new_zeros(s) for t, s in zip(found[1:], shapes, strict=True))

        _runs[number] = run
        if mask is not flex.noop_mask:
            _masks[number] = mask
        return _operator()(query, key, value, number, kept, own)

    return call


def _ungraded(function: Callable[..., Any], *args: Any) -> Any:
    import torch

    with torch.no_grad():
        return function(*args)


def kept_pairs(mask: Callable[..., Any], sizes: tuple[int, ...], masks: tuple[int, ...]) -> int:
    """Return the number of query-key pairs that a mask function keeps, or :data:`UNKNOWN_COUNT`.

    Args:
        sizes: batch, query heads, queries, keys.
        masks: numbers of batch elements and heads with separate masks in the block mask.
    """
    batch, heads, queries, keys = sizes
    if len(masks) != 2 or batch % masks[0] or heads % masks[1] or prod((*masks, queries, keys)) > MOST_PAIRS:
        return UNKNOWN_COUNT
    times = (batch // masks[0]) * (heads // masks[1])
    try:
        real = _replaced(mask, _real)
        if not _made_up:
            return times * int(_apart(partial(_count, real, (*masks, queries, keys))))
    except _NoValues:
        _miss_values()
    except Exception:  # of the user's code, which then fails in a run as well
        return UNKNOWN_COUNT
    return UNKNOWN_COUNT


def _miss_values() -> None:
    """Record that a mask function reads tensors without values; raise an error inside :func:`values_wanted`."""
    for one in _wanted:
        one.missed = True
    if _wanted:
        raise RuntimeError("a mask function reads tensors, which have no values here") from None


_made_up: Final[list[None]] = []
"""Not empty while tensors have made-up values, with which mask functions must not be called."""


@contextmanager
def made_up_values() -> Iterator[None]:
    """Disable the counting of pairs by mask functions while the block runs, since tensors have made-up values there."""
    _made_up.append(None)
    try:
        yield
    finally:
        _made_up.pop()


@dataclass(slots=True)
class WantedValues:
    """Record of whether a mask function read tensors without values."""

    missed: bool = False


_wanted: Final[list[WantedValues]] = []


@contextmanager
def values_wanted(wanted: bool = True) -> Iterator[WantedValues]:
    """Make calls fail while the block runs if their mask function reads tensors without values.

    Args:
        wanted: whether values are known elsewhere, so that the run can be repeated with them.
    """
    found = WantedValues()
    if wanted:
        _wanted.append(found)
    try:
        yield found
    finally:
        if wanted:
            _wanted.remove(found)


def _count(mask: Callable[..., Any], sizes: tuple[int, ...]) -> int:
    import torch
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
    from torch.nn.attention.flex_attention import _vmap_for_bhqkv

    batch, heads, queries, keys = sizes
    step = max(1, _AT_ONCE // max(1, batch * heads * keys))
    every, found = _vmap_for_bhqkv(mask, prefix=()), 0
    with TransformGetItemToIndex(), torch.no_grad(), torch.device("cpu"):
        for first in range(0, queries, step):
            rows = torch.arange(first, min(first + step, queries))
            left = every(torch.arange(batch), torch.arange(heads), rows, torch.arange(keys))
            found += int(torch.broadcast_to(left.bool(), (batch, heads, len(rows), keys)).sum())
    return found


def score_flops(score: Callable[..., Any]) -> int:
    """Return the vector FLOPs of a score function for one score, or :data:`UNKNOWN_COUNT`."""
    of_calls: list[tuple[str, int]] | None = None
    with suppress(Exception):
        calls = _apart(partial(_score_calls, _replaced(score, _shape_of)))
        costs = [cost_of(call) for call in calls]
        if all(isinstance(cost, OpCost) and cost.flops == 0 and type(cost.vector) is int for cost in costs):
            pairs = zip(calls, costs, strict=True)
            of_calls = [(call.name, int(cost.vector)) for call, cost in pairs if isinstance(cost, OpCost)]
    if of_calls is None:
        return UNKNOWN_COUNT
    found = sum(vector for _, vector in of_calls)
    # No other source sees inside of the operator: once more, by equal calls.
    again = sum(number * vector for (_, vector), number in Counter(of_calls).items())
    check_recounts([Recount("score function", "its operators", "vector_flops", found, again)])
    return found


def _score_calls(score: Callable[..., Any]) -> list[OpCall]:
    """Return the operator calls that a score function makes for one score."""
    import torch
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    calls: list[OpCall] = []

    class ScoreRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            names = [a.name for a in func._schema.arguments]
            given = {**dict(zip(names, args, strict=False)), **(kwargs or {})}
            tensors = [t for t in tree_leaves(list(given.values())) if isinstance(t, torch.Tensor)]
            outs = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
            attrs = {n: v for n, v in given.items() if isinstance(v, int | float | bool | str)}
            values = tuple(map(_value, tensors)), tuple(map(_value, outs))
            calls.append(OpCall(str(len(calls)), str(func), "", 1, *values, attrs))
            return result

    recorder: Any = ScoreRecorder
    with TransformGetItemToIndex(), torch.no_grad(), torch.device("meta"), recorder():
        indices = [torch.zeros((), dtype=torch.int32) for _ in range(4)]
        calls.clear()
        score(torch.zeros(()), *indices)
    return calls


def _value(tensor: torch.Tensor) -> Value:
    return Value(str(id(tensor)), tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


class _NoValues(Exception):
    """Raised if the values of a tensor without values are needed."""


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's concrete values on the CPU."""
    from torch._subclasses.fake_tensor import FakeTensor

    found: Any = tensor.real_tensor if isinstance(tensor, FakeTensor) else tensor
    if found is None or found.is_meta:
        raise _NoValues
    held: torch.Tensor = found.detach().cpu()
    return held


def _shape_of(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.empty(tuple(map(int, tensor.shape)), dtype=tensor.dtype, device="meta")


def _replaced(value: Any, change: Callable[[torch.Tensor], torch.Tensor], seen: tuple[int, ...] = ()) -> Any:
    """Copy a function or callable object with ``change`` applied to each tensor that it refers to."""
    import torch

    if isinstance(value, torch.Tensor):
        return change(value)
    if id(value) in seen:
        return value
    inside = partial(_replaced, change=change, seen=(*seen, id(value)))
    if isinstance(value, FunctionType):
        cells = tuple(CellType(inside(cell.cell_contents)) for cell in value.__closure__ or ())
        named = {n: v for n in value.__code__.co_names if isinstance(v := value.__globals__.get(n), torch.Tensor)}
        held = {**value.__globals__, **{n: change(v) for n, v in named.items()}} if named else value.__globals__
        made = FunctionType(value.__code__, held, value.__name__, value.__defaults__, cells)
        made.__kwdefaults__ = value.__kwdefaults__
        return made
    if isinstance(value, partial):
        named = {name: inside(v) for name, v in value.keywords.items()}
        return partial(inside(value.func), *map(inside, value.args), **named)
    if isinstance(value, MethodType):
        return MethodType(value.__func__, inside(value.__self__))
    if type(value) in (list, tuple):
        return type(value)(map(inside, value))
    if type(value) is dict:
        return {key: inside(v) for key, v in value.items()}
    if hasattr(value, "__dict__") and callable(value) and not isinstance(value, type):
        made = copy.copy(value)
        made.__dict__.update({key: inside(v) for key, v in vars(value).items()})
        return made
    return value


@contextmanager
def unrecorded() -> Iterator[None]:
    """Suspend all tracers and exports while the block runs."""
    from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

    with ExitStack() as around:
        around.enter_context(disable_proxy_modes_tracing())
        if "torchlens" in sys.modules:
            from torchlens import _state

            around.enter_context(_state.pause_logging())
        yield


def _mask_made(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(function: Any, batch: Any, heads: Any, queries: Any, keys: Any, device: Any = None) -> Any:
        import torch

        sizes = [1 if size is None else size for size in (batch, heads, queries, keys)]
        if not all(type(size) is int for size in sizes):
            raise RuntimeError(NO_FORMULA)
        change = _shape_of if torch.device(device or "cpu").type == "meta" else _real
        with unrecorded():
            try:
                return _apart(partial(_ungraded, original, _replaced(function, change), *sizes, device))
            except _NoValues:
                _miss_values()
            return _apart(partial(torch.ones, sizes, dtype=torch.bool, device=device))  # which nothing reads

    return call


def _not_recorded(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with unrecorded():
            return _apart(partial(_ungraded, partial(original, *args, **kwargs)))

    return call


def _apart(work: Callable[[], Any]) -> Any:
    from costproof.patches import input_values

    return input_values.apart(work)


def _empty_made(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(query: Any, key: Any) -> Any:
        import torch

        with unrecorded():  # only the device is read
            return _apart(lambda: original(*(torch.empty(0, device=t.device) for t in (query, key))))

    return call


def _also_on_meta(original: Callable[..., Any]) -> Callable[..., Any]:
    def check(query: Any, key: Any, value: Any) -> None:
        if query.device.type != "meta":
            original(query, key, value)

    return check


PATCHES: Final = (
    Patch(
        f"{_MODULE}:flex_attention_hop",
        _whole,
        "a tracer sees two products over all pairs and mapped functions of indices, and no count of the kept pairs",
        _TEST,
        missing="skip",
    ),
    Patch(
        f"{_MODULE}:_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG",
        lambda original: True,
        "torch compiles each call, which hides it from tracers",
        _TEST,
        missing="skip",
    ),
    Patch(
        f"{_MODULE}:_validate_device", _also_on_meta, "it refuses meta, which needs no kernel", _TEST, missing="skip"
    ),
    *(
        Patch(f"{_MODULE}:{name}", make, "the tensors of a block mask are not work of the model", _TEST, missing="skip")
        for name, make in (
            ("create_mask", _mask_made), ("_convert_mask_to_block_mask", _not_recorded),
            ("_create_sparse_block_from_block_mask", _not_recorded),
            ("_compute_dq_write_order_from_block_mask", _not_recorded),
        )
    ),
    Patch(f"{_MODULE}:_create_empty_block_mask", _empty_made, "as create_mask", _TEST, missing="skip"),
)  # fmt: skip
