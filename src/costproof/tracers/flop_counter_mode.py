"""Count the FLOPs of a run by torch's own formulas at the dispatcher, as a check of our operator rules.

Export and trace are costed by the same rules, so an error in a rule shows in no difference between them. This count
shares only the shapes with the rules. Its formulas are those of ``torch.utils.flop_counter``, except for fused
attention and for operators without one there, whose formulas are written from the definition of the operator. A formula
that fails leaves its operator uncounted, with the reason. The count sees what the dispatcher sees: composite operators
as the operators that they consist of, and products in a TorchScript function in the module that runs it.

The FLOPs of fused attention follow from the definition of each operator, in the layout that it takes: torch's
registry reads ``_flash_attention_forward`` and ``_efficient_attention_forward`` as (B, H, S, D), although both take
(B, S, H, D); before 2.13 it refuses grouped key and value heads; and it lacks the operators of the CPU, of cuDNN below
the dispatcher, and of other back ends. Layouts are those of ``aten/src/ATen/native/transformers``.
"""

from __future__ import annotations

import operator
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any, Final, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from costproof.ledger.errors import first_line
from costproof.opgraph.rules.attention import FLEX, NESTED
from costproof.patches.export import value_dependent_tags
from costproof.patches.flex_attention import mask_of_call
from costproof.patches.nested import KIND
from costproof.patches.patch import patched
from costproof.patches.tensor import COMPLEX_CONVOLUTIONS, EINSUM, READ_VALUES, TO_NUMPY
from costproof.tracers.flop_counter_ledger import CallStack, DispatchedFlops
from costproof.tracers.kept_pairs import PRODUCTS, KeptPairs, RunValues, band, broadcast_pairs

_ROWS: Final = ("_addmm_activation", "_int_mm", "_weight_int8pack_mm", "_weight_int4pack_mm")
_NO_FORMULA: Final = ("_trilinear", "mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn", "_sparse_addmm", "_cdist_forward")
"""Torch operators that multiply matrices inside and for which only our own rules have a formula."""
_VECTORS: Final = ("linalg_vector_norm", "linalg_cross")
"""Operators of torch.linalg without a matrix product, so without headline FLOPs."""
_MASKS: Final = (torch.bool, torch.uint8)
_BRANCHES: Final = (
    "equal", "is_nonzero", "_nested_tensor_from_mask", "_nested_tensor_from_mask_left_aligned", "_pack_padded_sequence",
)  # fmt: skip
"""Operators whose result size, or a branch, depends on values, although torch does not tag them so."""
_VALUE_DEPENDENT: Final = value_dependent_tags()
_AT_ONCE: Final = 2**20
"""Number of query-key pairs for which a mask function of flex_attention is evaluated in one call."""
_MOST_TRIED: Final = 2**28
"""Maximum number of query-key pairs of a flex_attention mask function that are counted."""
_PAD: Final = "aten.constant_pad_nd"
_OWN: Final = ("aten", "prims", "prim", "profiler", "_c10d_functional", "c10d", "_dtensor")
"""Namespaces of operators that multiply no matrices unless torch's FLOP counter has a formula for them."""


class FlopCounterJudge(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that counts the FLOPs of a model by torch's formulas, without changing the run.

    Args:
        calls: the active module calls, maintained by module hooks: (path, number, anything).
        root: the name of the root in these calls.
    """

    supports_higher_order_operators = True

    def __init__(self, calls: Sequence[tuple[str, int, Any]], root: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls, self.root, self.seen = calls, root, DispatchedFlops()
        self._known: dict[Any, tuple[_Attention | Callable[..., Any] | bool | None, str]] = {}
        self._padded: dict[int, tuple[Any, int]] = {}
        """Weak reference and unpadded last size of a tensor that was padded with zeros, by ``id`` of the tensor."""
        self._in_einsum = self._reading = self._in_complex = False
        self.values = RunValues()
        """Computed values of meta tensors: masks, and lengths of sequences."""
        self.pairs = KeptPairs(self.values, self.seen.kept, self.seen.hidden, self.seen.unread)

    def where(self) -> CallStack:
        """Return the running module calls as (path, number of the call), outermost first."""
        return tuple(("" if path == self.root else path, number) for path, number, _ in self.calls)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in self._known:
            self._known[func] = _formula(func), _name(func)
        formula, name = self._known[func]
        if formula is True:
            with self:
                return func.decompose(*args, **kwargs)
        self.seen.by_values = self.seen.by_values or _reads_values(func, name, args)
        result = func(*args, **kwargs)
        if self._in_einsum and name == "aten.mul":
            formula, name = _multiplied, "aten.einsum"
        if self._in_complex and name == "aten.convolution":
            self._in_complex, formula = False, partial(_twice, formula)  # the first of three, for four products
        if name == _PAD and isinstance(result, torch.Tensor) and args[1][0] == 0 and not any(args[2:]):
            self._padded[id(result)] = weakref.ref(result), int(args[0].shape[-1])
        self._reading = True  # values, for masks: not a read of the model
        try:
            self._judged(func, name, formula, args, kwargs, result)
        finally:
            self._reading = False
        return result

    def _judged(self, func: Any, name: str, formula: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Add the FLOPs of an operator call, and track mask values and attention scores through its tensors."""
        if formula is False:
            self.seen.unjudged[self.where(), name] += 1
        elif formula is not None:
            self._count(func, name, formula, args, kwargs, result)
        if not isinstance(func, torch._ops.HigherOrderOperator):
            product, plain = formula not in (None, False), name.removeprefix("aten.")
            if not isinstance(formula, _Attention):
                flops = 2 * result.numel() * int(args[-1].shape[-2]) if plain in PRODUCTS else 0
                self.pairs.follow((self.where(), name), func, plain, args, kwargs, result, flops)
            try:
                self.values.follow(func, plain, args, kwargs, result, product=product)
            except Exception as error:
                self.values.forget(result)
                self.seen.unread[plain] = first_line(error)

    def _count(self, func: Any, name: str, formula: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Add the FLOPs of an operator call, or record why the formula failed, since other packages add formulas."""
        try:
            if isinstance(formula, _Attention):
                given = {n: self.values.get(value) for n, value in _arguments(func, args, kwargs).items()}
                flops = formula.flops(given, self._width)
                self.pairs.fused((self.where(), name), flops, partial(fused_pairs, name, given, self.values))
            else:
                flops = operator.index(formula(*args, **kwargs, out_val=result))
            if flops < 0:
                raise ValueError(f"{flops} FLOP")
        except Exception as error:
            mine = isinstance(error, Uncounted)
            failed = f"its formula failed: {first_line(error)}"
            self.seen.unjudged[self.where(), name] += 1
            self.seen.reasons[name] = str(error) if mine else failed
        else:
            if flops:  # one complex product is four real ones
                pairs = any(isinstance(t, torch.Tensor) and t.is_complex() for t in tree_leaves(result))
                # and an element of 4-bit floats is two numbers
                halves = any(isinstance(t, torch.Tensor) and str(t.dtype).endswith("fn_x2") for t in args[:2])
                self.seen.flops[self.where(), name] += (4 if pairs else 2 if halves else 1) * flops

    def _width(self, tensor: torch.Tensor) -> int:
        """Return a tensor's last dimension before attention padded it; on CUDA it is padded to a multiple of 8."""
        padded = self._padded.get(id(tensor))
        return padded[1] if padded is not None and padded[0]() is tensor else int(tensor.shape[-1])

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count while the block runs, and record work that the dispatcher does not see.

        These are conversions of tensors to NumPy or to lists, and which elementwise multiplications are products of an
        ``einsum`` over no index, or over indices of size 1, and which convolutions are parts of one of complex numbers.
        """
        with (
            patched(READ_VALUES, context=(self._note_read,)),
            patched(*TO_NUMPY, context=(self._note_numpy,)),
            patched(EINSUM, context=(partial(setattr, self, "_in_einsum"),)),
            patched(*COMPLEX_CONVOLUTIONS, context=(partial(setattr, self, "_in_complex"),)),
            self,
        ):
            yield

    def _note_read(self, tensor: torch.Tensor) -> None:
        self.seen.by_values = self.seen.by_values or not self._reading

    def _note_numpy(self, tensor: torch.Tensor) -> None:
        if self._reading:
            return
        self.seen.by_values = True
        if tensor.numel() > 1 and (tensor.is_floating_point() or tensor.is_complex()):
            self.seen.left[self.where()] += 1


class CountingMode(FlopCounterJudge):  # type: ignore[no-untyped-call]
    """FLOP counting mode that also counts, by module, the elements of all floating-point results."""

    def __init__(self, running: list[tuple[str, int, Any]], root: str) -> None:
        super().__init__(running, root)
        self.running, self.elements = running, Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        tensors = (t for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.is_floating_point())
        self.elements[self.running[-1][0] if self.running else ""] += sum(t.numel() for t in tensors)
        return result


class LocalJudge(FlopCounterJudge):  # type: ignore[no-untyped-call]
    """FLOP counting mode for distributed or nested tensors, which counts operators on local tensors and rows only.

    Operators on distributed and nested tensors run others, and those on fake tensors only find out a layout.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kinds = {kind.__name__ for kind in types}
        if kinds & {"DTensor", KIND}:
            return NotImplemented
        if "FakeTensor" in kinds:
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)


def _reads_values(func: Any, name: str, args: Any) -> bool:
    """Return whether tensor values decide the size of an operator's result, or a branch."""
    if name == "aten.index":  # tagged because of masks
        return any(isinstance(t, torch.Tensor) and t.dtype in _MASKS for t in args[1])
    return any(tag in getattr(func, "tags", ()) for tag in _VALUE_DEPENDENT) or name.partition(".")[2] in _BRANCHES


def _twice(formula: Any, *args: Any, **more: Any) -> int:
    return 2 * int(formula(*args, **more))


def _multiplied(*args: Any, out_val: Any, **more: Any) -> int:
    """Return the FLOPs of an einsum's elementwise product: 2 per element."""
    return 2 * int(out_val.numel())


def _name(func: Any) -> str:
    return str(func.name() if callable(func.name) else func.name).partition(".")[0].replace("::", ".")


class _Attention(NamedTuple):
    """FLOP formula of a fused attention operator, on the arguments of a call by name."""

    flops: Callable[[Arguments, Width], int]


def _arguments(func: Any, args: Any, kwargs: Any) -> Arguments:
    """Return the arguments of an operator call by name."""
    schema = getattr(func, "_schema", None)
    names = ("query", "key", "value") if schema is None else [a.name for a in schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _formula(func: Any) -> _Attention | Callable[..., Any] | bool | None:
    """Return an operator's FLOP formula, or ``None``: no products; ``False``: formula missing; ``True``: composite."""
    packet = getattr(func, "_overloadpacket", func)
    space, _, name = _name(func).partition(".")
    if space == "aten" and name.endswith("_"):  # in-place variants do the same work
        name = name.rstrip("_")
        packet = getattr(torch.ops.aten, name, packet)
    attention = attention_formula(f"{space}.{name}" if space and name else _name(func))
    if attention is not None and not _is_composite(func):
        return _Attention(attention)
    found = flop_registry.get(packet) or _MISSING.get(f"{space}.{name}")
    if found is not None:
        return found
    if isinstance(func, torch._ops.HigherOrderOperator):
        return False
    if _is_composite(func):
        return True
    factors = name.startswith("linalg_") and name not in _VECTORS
    return False if name in _NO_FORMULA or "attention" in name or factors or space not in _OWN else None


def _is_composite(func: Any) -> bool:
    """Return whether the dispatcher may decompose an operator into others."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return not isinstance(func, torch._ops.HigherOrderOperator) and func.has_kernel_for_dispatch_key(key)


def _rows(first: Any, second: Any, *rest: Any, out_val: Any, **more: Any) -> int:
    """Return the FLOPs of a matrix product: 2 for each result element and column of the first matrix."""
    return 2 * int(out_val.numel()) * int(first.shape[-1])


def _added_rows(added: Any, first: Any, *rest: Any, out_val: Any, **more: Any) -> int:
    return _rows(first, None, out_val=out_val)


def _every_number(matrix: Any, *rest: Any, **more: Any) -> int:
    """Return the FLOPs of a matrix-vector product: 2 for each element of the matrix."""
    return 2 * int(matrix.numel())


def _batches_added(added: Any, first: Any, second: Any, **more: Any) -> int:
    return 2 * int(first.numel()) * int(second.shape[-1])


def _grouped(first: Any, second: Any, *rest: Any, out_val: Any, **more: Any) -> int:
    """Return the FLOPs of a grouped matrix product.

    With rows or columns in groups, a number of the result is one inner product; with the inner dimension in groups, a
    number of the first matrix is multiplied with every column of the second.
    """
    if first.dim() == second.dim() == 2:
        return 2 * int(first.numel()) * int(second.shape[1])
    return _rows(first, second, out_val=out_val)


_MISSING: Final[dict[str, Callable[..., int]]] = {
    "aten._grouped_mm": _grouped,
    "aten._scaled_grouped_mm": _grouped,
    "transformers.grouped_mm_fallback": _grouped,
    "aten.affine_grid_generator": _rows,
    "aten.mv": _every_number,
    "aten.dot": _every_number,
    "aten.vdot": _every_number,
    "aten.addmv": lambda added, matrix, *rest, **more: _every_number(matrix),
    "aten.addbmm": _batches_added,
    **{f"aten.{name}": _added_rows if name.startswith("_addmm") else _rows for name in _ROWS},
}
"""FLOP formulas of operators that torch's registry lacks, written from the operators' definitions."""


Arguments = Mapping[str, Any]
"""Values of a call's arguments, by their names in the operator's schema."""
Width = Callable[[torch.Tensor], int]
"""Function that returns the head dimension of a tensor without padding."""

_HEADS_FIRST: Final = (
    "aten._scaled_dot_product_flash_attention", "aten._scaled_dot_product_flash_attention_for_cpu",
    "aten._scaled_dot_product_efficient_attention", "aten._scaled_dot_product_cudnn_attention",
    "aten._scaled_dot_product_fused_attention_overrideable", "aten._scaled_dot_product_attention_math",
    "aten._scaled_dot_product_attention_math_for_mps", "aten._triton_scaled_dot_attention", "aten._cudnn_attention",
    "flex_attention", FLEX,
)  # fmt: skip
"""Operators on (B, H, S, D), without the suffixes of their variants; cuDNN's lowest operator also takes packed rows."""
_SEQUENCE_FIRST: Final = (
    "aten._flash_attention", "aten._efficient_attention", "torch_attn._varlen_attn", "flash_attn._flash_attn_varlen",
    NESTED,
)  # fmt: skip
"""Operators on (B, S, H, D); packed rows are (T, H, D), or (1, T, H, D) for ``_efficient_attention``."""
_SUFFIXES: Final = ("_forward", "_backward", "_no_dropout_inplace", "_out")
_STARTS: Final = (("cum_seq_q", "cum_seq_k"), ("cu_seqlens_q", "cu_seqlens_k"), ("cu_seq_q", "cu_seq_k"))
"""Names of the arguments with the first row of each packed sequence."""
_LONGEST: Final = (("max_q", "max_k"), ("max_seqlen_q", "max_seqlen_k"))
_USED: Final = ("seqused_k", "seqlen_k")
"""Names of the argument with the number of cached keys that each sequence uses."""
_LAYERS: Final = ("aten._native_multi_head_attention", "aten._triton_multi_head_attention")


def _stem(name: str) -> str:
    """Return an operator's name without the suffixes of its variants."""
    for _ in _SUFFIXES:
        name = next((name.removesuffix(s) for s in _SUFFIXES if name.endswith(s)), name)
    return name


class Uncounted(Exception):
    """Raised for a call whose FLOPs depend on unknown values."""


def attention_formula(name: str) -> Callable[[Arguments, Width], int] | None:
    """Return the FLOP formula of a fused attention operator; ``None`` for another operator.

    Args:
        name: with its namespace, without the overload: ``aten._flash_attention_forward``.
    """
    if name in _LAYERS:
        return _layer
    if name == "aten._transformer_encoder_layer_fwd":
        return _encoder_layer
    stem = _stem(name)
    if stem not in (*_HEADS_FIRST, *_SEQUENCE_FIRST):
        return None
    backward = "_backward" in name

    def formula(given: Arguments, width_of: Width) -> int:
        width, value_width = width_of(_tensor(given, "query")), width_of(_tensor(given, "value"))
        # QKᵀ and PV; backward QKᵀ again, and the gradients of P, V, Q and K.
        per_score = 3 * width + 2 * value_width if backward else width + value_width
        return 2 * _scores(given, stem) * per_score

    return formula


def _scores(given: Arguments, stem: str) -> int:
    """Return the number of query-key pairs in all query heads, including pairs that a causal flag hides."""
    grids, sequences = _grids(given, stem)
    return grids * sum(queries * keys for queries, keys in sequences)


def _grids(given: Arguments, stem: str) -> tuple[int, list[tuple[int, int]]]:
    """Return the number of query-key matrices per sequence, and (queries, keys) of each sequence.

    Args:
        stem: the operator without its suffixes.

    Raises:
        Uncounted: the lengths of packed sequences or of a cache are not known.
    """
    query, key = _tensor(given, "query"), _tensor(given, "key")
    starts = next(((given[q], given.get(k)) for q, k in _STARTS if given.get(q) is not None), None)
    used = next((given[name] for name in _USED if given.get(name) is not None), None)
    partly = used is not None or given.get("block_table") is not None
    if query.is_nested or (partly and (used is None or starts is None)):
        raise Uncounted("the lengths are in a tensor's values")
    if starts is None or (query.dim() == 4 and stem != "aten._efficient_attention"):
        axis = -2 if stem in _HEADS_FIRST else -3
        grids = prod(query.shape[:-1]) // max(1, int(query.shape[axis]))
        return grids, [(int(query.shape[axis]), int(key.shape[axis]))]
    longest = next(((given.get(q), given.get(k)) for q, k in _LONGEST if q in given), (None, None))
    queries = _lengths(starts[0], int(query.shape[-3]), longest[0])
    key_starts = starts[0] if starts[1] is None else starts[1]
    keys = _lengths(key_starts, int(key.shape[-3]), longest[1]) if used is None else _numbers(used)
    return int(query.shape[-2]), list(zip(queries, keys, strict=True))


_AT_START: Final = tuple(name for name in (*_HEADS_FIRST, NESTED) if name not in ("flex_attention", FLEX))
"""Operators whose causal flag aligns the first query with the first key; others align the last query and key."""


def fused_pairs(name: str, given: Arguments, values: RunValues) -> tuple[int, int | None]:
    """Return the query-key pairs of a fused attention call, and those that its mask keeps; ``None``: unknown."""
    stem = _stem(name)
    if stem not in (*_HEADS_FIRST, *_SEQUENCE_FIRST):
        return 0, None
    grids, sequences = _grids(given, stem)
    pairs = grids * sum(q * k for q, k in sequences)
    if stem == FLEX:
        return pairs, _flexible(given, pairs)
    flag = any(given.get(n) not in (None, False, 0) for n in ("is_causal", "causal"))
    kind, size = given.get("custom_mask_type") or 0, given.get("window_size")
    mask = next((m for n in ("attn_mask", "attn_bias", "bias", "mask") if (m := given.get(n)) is not None), None)
    both = size if isinstance(size, list | tuple) and len(size) == 2 else (-1, -1)
    left, right = (given.get(f"window_size_{n}", w) for n, w in zip(("left", "right"), both, strict=True))
    left, right = (None if n is None or n < 0 else int(n) for n in (left, right))
    at_start = stem in _AT_START or kind == 1
    right = 0 if flag or kind else right
    if mask is not None:
        known = values.known(mask)
        plain = known is not None and len(sequences) == 1 and right is None and left is None and not kind
        return pairs, broadcast_pairs(known, pairs) if plain and known is not None else None
    open_end = stem == "aten._efficient_attention" and flag and not kind and any(q != k for q, k in sequences)
    if open_end or (size is not None and not isinstance(size, list | tuple)):
        return pairs, None
    kept = (band(q, k, left, right, 0 if at_start else k - q) for q, k in sequences)
    return pairs, pairs if left is None and right is None else grids * sum(kept)


def _flexible(given: Arguments, pairs: int) -> int | None:
    """Return the pairs that the mask function of a flex_attention call keeps, evaluated on all pairs."""
    mask, query, key = mask_of_call(given["call"]), given["query"], given["key"]
    if mask is None:
        return pairs
    batch, heads, queries = map(int, query.shape[:-1])
    keys, found = int(key.shape[-2]), 0
    step = max(1, _AT_ONCE // max(1, batch * heads * keys))
    if pairs > _MOST_TRIED:
        return None
    with suppress(Exception), torch.no_grad():
        for first in range(0, queries, step):
            each = [range(batch), range(heads), range(first, min(first + step, queries)), range(keys)]
            index = [torch.tensor(list(n)).view([-1 if i == at else 1 for i in range(4)]) for at, n in enumerate(each)]
            left = mask(*index)
            found += int(left.count_nonzero()) * (prod(map(len, each)) // left.numel())
        return found
    return None


def _tensor(given: Arguments, name: str) -> torch.Tensor:
    """Return the queries, keys or values of a call; some schemas name them ``q``, ``k`` and ``v``."""
    found: torch.Tensor = given[name] if name in given else given[name[0]]
    return found


def _lengths(starts: torch.Tensor, rows: int, longest: int | None) -> list[int]:
    """Return the lengths of packed sequences: from the shapes if they are equal, else from the start offsets."""
    sequences = len(starts) - 1
    if sequences == 1:
        return [rows]
    if sequences * (longest or 0) == rows:
        return [rows // sequences] * sequences
    return [end - start for start, end in pairwise(_numbers(starts))]


def _numbers(vector: torch.Tensor) -> list[int]:
    """Return the elements of a vector of integers, read one by one, since a mode may be active."""
    if vector.is_meta or type(vector) is not torch.Tensor:
        raise Uncounted("the lengths are in a tensor's values")
    host = vector.cpu()
    return [int(host[i]) for i in range(len(host))]


def _layer(given: Arguments, width_of: Width) -> int:
    """Return the FLOPs of an operator that fuses attention on (B, S, E) with its projections."""
    batch, queries, width = map(int, given["query"].shape)
    keys = int(given["key"].shape[1])
    projected = 2 * batch * width * width * (queries + 2 * keys)
    attention = 2 * batch * queries * keys * 2 * width
    return projected + attention + 2 * batch * queries * width * int(given["proj_weight"].shape[0])


def _encoder_layer(given: Arguments, width_of: Width) -> int:
    """Return the FLOPs of an operator that fuses attention, its projections, and two linear layers after them."""
    source = given["src"]
    rows, width = prod(source.shape[:-1]), int(source.shape[-1])
    forward: int = 2 * rows * width * (int(given["ffn_weight_1"].shape[0]) + int(given["ffn_weight_2"].shape[1]))
    return _layer({"query": source, "key": source, "proj_weight": given["proj_weight"]}, width_of) + forward
