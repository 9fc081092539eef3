"""Add formulas of the stored and resident bytes of modules, by the quantisation scheme of a checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import lcm
from typing import Final

import sympy

from costproof.algebra.evaluation import evaluate
from costproof.algebra.series import OF_EACH, STEPS
from costproof.algebra.symbols import parse, sym, text
from costproof.analytic.collectives import AllReduce, ReduceScatter
from costproof.analytic.compose import HeldNode
from costproof.analytic.costs import Layer, Matrix, Size, costs_of
from costproof.analytic.linear import LmHead
from costproof.analytic.quantised import MatrixShape, Sizes, cache_scales, parts_of, scaling, unpacking
from costproof.ledger.attributes import attribute
from costproof.ledger.metrics import EVERY_METRIC, OF_CHECKPOINT, OF_QUANTISED, STORAGE, UNPACKED, UNPACKING, Metric
from costproof.ledger.node import CostNode, Ledger
from costproof.ledger.workload import FLOAT_BYTES, Dtype
from costproof.storage.formats import Format
from costproof.storage.scheme import CheckpointLayout, LinearModule, Scheme, UnknownFormat, in_numbered_layer

_ITEM: Final = sym("b")
UNPACKING_NOT_KNOWN: Final = (
    "vector FLOPs of quantised weights are not known: the arithmetic of a format is not, or the data chooses between "
    "experts in several formats"
)
"""Note on a ledger without the FLOPs of unpacking."""
_RUNS_CACHE: Final = ".self_attn"
"""Last part of the path of modules with the scales of a quantised cache."""


@dataclass(frozen=True, slots=True)
class Storage:
    """Storage of a target's modules in its checkpoint: scheme, dtype and tied tensors."""

    scheme: Scheme
    dtype: Dtype
    """Dtype of unquantised tensors."""
    layout: CheckpointLayout
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Values of the configuration's symbols, which rules of the scheme may use."""
    in_parts: bool = False
    """Whether a rank stores parts of parameters: without padding in its checkpoint, with padding in memory."""


@dataclass(frozen=True, slots=True)
class _Sum:
    """Sum of the stored and resident bytes of a module; ``None`` for an unknown sum."""

    stored_bytes: Size | None = 0
    stored_elements: Size | None = 0
    resident_bytes: Size | None = 0

    def plus(self, parts: Sizes, count: Size = 1) -> _Sum:
        """Return the sums with the parts of ``count`` quantised matrices added."""
        return _Sum(
            _added(self.stored_bytes, count * sum(size for _, size in parts.values())),
            _added(self.stored_elements, count * sum(elements for elements, _ in parts.values())),
            _added(
                self.resident_bytes, count * sum(size for part, (_, size) in parts.items() if part != "description")
            ),
        )


def _times(count: Size, size: Size | None) -> Size | None:
    return None if size is None else count * size


def _added(a: Size | None, b: Size | None) -> Size | None:
    return None if a is None or b is None else a + b


def with_storage(ledger: Ledger, storage: Storage | None, why: str = "") -> Ledger:
    """Return the analytic ledger with storage metrics added, as formulas.

    Args:
        storage: ``None``: the format of the checkpoint is not known, or there is none.
        why: reason why the format is not known, for a note.
    """
    notes = (*ledger.notes, why) if why else ledger.notes
    if storage is None:
        return replace(ledger, nodes=_with_costs(map(_plain_node, ledger.nodes)), notes=notes)
    try:
        every = {id(node): _matrices(node, storage) for node in ledger.nodes if isinstance(node, HeldNode)}
        formats = {key: tuple((m, of) for m, of in found if of is not None) for key, found in every.items()}
        nodes = _with_costs(
            _costed(node, formats[id(node)], storage) if isinstance(node, HeldNode) else node for node in ledger.nodes
        )
        if storage.scheme.rules:
            mixed = {i for i, found in every.items() if _is_mixed(found)}
            nodes = tuple(_as_run(ledger, nodes, formats, mixed, storage))
    except UnknownFormat as error:
        return with_storage(ledger, None, f"stored bytes are not known: {error.name}: {error.why}")
    unknown = {m for node in nodes for m in OF_CHECKPOINT if m in node.costs}
    unknown |= set() if storage.scheme.rules else {*OF_QUANTISED}
    if UNPACKING in unknown and storage.scheme.rules:
        notes += (UNPACKING_NOT_KNOWN,)
    notes += tuple(
        f"stored bytes are not known of {item}" for item in _undetermined(storage.scheme) if "stored_bytes" in unknown
    )
    metrics = tuple(m for m in EVERY_METRIC if m in ledger.metrics or (m in OF_CHECKPOINT and m not in unknown))
    return replace(ledger, nodes=nodes, metrics=metrics, notes=notes).without(unknown)


def _with_costs(nodes: Iterable[CostNode]) -> tuple[CostNode, ...]:
    """Return the nodes except stage-wide ones without any cost."""
    return tuple(node for node in nodes if node.invocation or node.exprs or node.costs)


def _is_mixed(found: Iterable[tuple[Matrix, Format | None]]) -> bool:
    """Return whether experts are stored in more than one format, unquantised included.

    Branches: counts formats, not sizes.
    """
    return len({of for matrix, of in found if matrix.kind == "Expert"}) > 1


_Quantised = tuple[tuple[Matrix, Format], ...]
"""Quantised matrices of a module, with their formats."""


def _as_run(
    ledger: Ledger,
    nodes: Iterable[CostNode],
    formats: Mapping[int, _Quantised],
    mixed: Collection[int],
    storage: Storage,
) -> Iterator[CostNode]:
    """Yield the nodes with the FLOPs of unpacking, the bytes that quantisation saves, and FLOPs by dtype for bounds.

    How much a call reads of a quantised table, of a module with several formats, or of another module's quantised
    weights is not known; then all of it counts as saved, so that a bound leaves these reads out.

    Args:
        formats: id of a node of the ledger -> the quantised matrices of its module.
        mixed: nodes of experts in several formats, among which the data chooses; their unpacking is not known.

    Branches: of several formats in a module the fastest arithmetic bounds its products; no size is compared.
    """
    shares: dict[tuple[str, str], tuple[sympy.Expr, sympy.Expr]] = {}
    products: dict[str, str] = {}
    work: dict[tuple[str, str], _FormatWork] = {}
    for node in ledger.nodes:
        if isinstance(node, HeldNode):
            quantised = formats[id(node)]
            products[node.module] = max((of.products for _, of in quantised), default="")
            tied = _with_tied(quantised, node, storage)
            as_it_is = not tied and any(isinstance(layer, LmHead) and layer.tied for layer in node.layers)
            share = _NOTHING if as_it_is else _read_share(quantised, node.layers, storage.dtype)
            shares[node.stage, node.module] = share
            of_all = _FormatWork(None, None) if id(node) in mixed else _work(tied, node.layers, storage.dtype)
            work[node.stage, node.module] = of_all
    for node in nodes:
        exprs, costs = dict(node.exprs), dict(node.costs)
        for metric, of_metric in work.get((node.stage, node.module), _FormatWork()).shares():
            if metric in exprs and of_metric is None:
                costs[UNPACKING] = None
            elif metric in exprs and of_metric is not None and of_metric[0] is not sympy.S.Zero:
                exprs[UNPACKING] = _of_read(exprs[metric], *of_metric)
        if "weight_read_bytes" in exprs:
            less, of = shares.get((node.stage, node.module), _ALL)
            exprs[UNPACKED] = _of_read(exprs["weight_read_bytes"], less, of)
        if "flops" in exprs and products.get(node.module):
            exprs[f"{products[node.module]}_flops"] = exprs["flops"]
        yield node.with_costs(costs, {metric: expr for metric, expr in exprs.items() if expr != "0"})


_Share = tuple[sympy.Expr, sympy.Expr]


@dataclass(frozen=True, slots=True)
class _FormatWork:
    """Vector FLOPs of unpacking a format: (FLOPs, bytes read) or (FLOPs, headline FLOPs); ``None`` if unknown."""

    of_read: _Share | None = (sympy.Integer(0), sympy.Integer(1))
    of_products: _Share | None = (sympy.Integer(0), sympy.Integer(1))

    def shares(self) -> tuple[tuple[Metric, _Share | None], ...]:
        """Return (metric, share) for both shares: that of reads, and that of products."""
        return ("weight_read_bytes", self.of_read), ("flops", self.of_products)


def _with_tied(quantised: _Quantised, node: HeldNode, storage: Storage) -> _Quantised:
    """Return a module's quantised matrices, including the table that a tied output projection reads."""
    for head in node.layers:
        if isinstance(head, LmHead) and head.tied and (of := _format_of_tied(head, node, storage)) is not None:
            return (*quantised, (Matrix(head.vocabulary, head.hidden), of))
    return quantised


@lru_cache(maxsize=8192)
def _work(quantised: _Quantised, layers: tuple[Layer, ...], dtype: Dtype) -> _FormatWork:
    """Return the vector FLOPs of the storage formats of a module, whose experts must all have the same format.

    A call unpacks once each matrix that it reads, and each row of a table that it looks up.
    """
    if not quantised:
        return _FormatWork()
    costs = [costs_of(layer) for layer in layers]
    whole = sympy.sympify(sum(c.weight_read_bytes for c in costs))
    read: Size | None = 0
    scaled: Size | None = 0
    products: Size = 0
    for matrix, of in quantised:
        shape = MatrixShape(matrix.rows, matrix.columns, False, dtype)
        if matrix.kind == "Embedding":
            read = _added(read, unpacking(of, replace(shape, o=whole / (matrix.columns * _ITEM))))
        elif of.products:
            scaled = _added(scaled, _times(matrix.count, scaling(of, shape)))
        else:
            read = _added(read, _times(matrix.count if matrix.read is None else matrix.read, unpacking(of, shape)))
        products += 2 * matrix.count * matrix.rows * matrix.columns
    of_products = None if scaled is None else (sympy.sympify(scaled), sympy.sympify(products))
    return _FormatWork(None if read is None else (sympy.sympify(read), whole), of_products)


_ALL: Final = (sympy.Integer(1), sympy.Integer(1))
_NOTHING: Final = (sympy.Integer(0), sympy.Integer(1))


@lru_cache(maxsize=8192)
def _read_share(quantised: _Quantised, layers: tuple[Layer, ...], dtype: Dtype) -> tuple[sympy.Expr, sympy.Expr]:
    """Return, for one call of a module, (bytes saved by reading the stored formats, bytes read if unpacked)."""
    costs = [costs_of(layer) for layer in layers]
    matrices = [matrix for c in costs for matrix in c.matrices]
    if not quantised:
        params = sum(c.params for c in costs)
        return _ALL if sympy.sympify(params).is_zero else _NOTHING
    gone = sum(m.elements for m in matrices) - sum(matrix.elements for matrix, _ in quantised)
    some = any(m.kind == "Expert" for m in matrices) and sympy.expand(gone) != 0
    looked_up = any(m.kind == "Embedding" for m in matrices)
    if some or looked_up or {of for _, of in quantised}.difference([quantised[0][1]]):
        return _ALL
    less: Size = 0
    for matrix, of in quantised:
        read = matrix.count if matrix.read is None else matrix.read
        less += read * sympy.sympify(matrix.elements * _ITEM - _held_bytes(matrix, of, dtype)) / matrix.count
    less += _biases_after_sums(layers) * (_ITEM - FLOAT_BYTES[dtype])
    whole = sum(c.weight_read_bytes for c in costs)
    return sympy.sympify(less), sympy.sympify(whole)


@lru_cache(maxsize=8192)
def _of_read(read: str, less: sympy.Expr, of: sympy.Expr) -> str:
    """Return the bytes that reading quantised weights saves in all calls, as an expression.

    The number of reads is ``read / of``, and each saves ``less``. If decode steps differ, both are means over steps.

    Args:
        read: unquantised bytes of weights that all calls read.
        less: bytes by which the quantised weights are smaller.
        of: unquantised bytes of one read.
    """
    less, of = (size.xreplace({OF_EACH: 1 / STEPS}) for size in (less, of))
    return text(sympy.expand(sympy.cancel(parse(read) / of) * less))


def _biases_after_sums(layers: tuple[Layer, ...]) -> Size:
    """Return the biases that are added after a sum over ranks; those of a quantised matrix keep their stored dtype."""
    biases: tuple[Size, ...] = tuple(layer.bias for layer in layers if isinstance(layer, AllReduce | ReduceScatter))
    return sum(biases)


def _held_bytes(matrix: Matrix, of: Format, dtype: Dtype) -> Size:
    """Return the bytes of a loaded matrix in its stored format."""
    return _Sum(resident_bytes=0).plus(_parts(matrix, of, dtype), matrix.count).resident_bytes


def _parts(matrix: Matrix, of: Format, dtype: Dtype) -> Sizes:
    return parts_of(of, MatrixShape(matrix.rows, matrix.columns, matrix.bias, dtype, matrix.digits or 0))


def _undetermined(scheme: Scheme) -> tuple[str, ...]:
    return tuple(dict.fromkeys(item for rule in scheme.rules for item in rule.format.undetermined()))


def _plain_node(node: CostNode) -> CostNode:
    return node.with_costs(node.costs, node.exprs) if isinstance(node, HeldNode) else node


def _costed(node: HeldNode, quantised: _Quantised, storage: Storage) -> CostNode:
    """Return a module's node with its storage metrics; an unknown metric is ``None``."""
    cache = storage.scheme.cache if node.module.endswith(_RUNS_CACHE) else ""
    in_float32 = storage.scheme.float32 and storage.layout.loads_in_float32(node.module)
    dtype: Dtype = "float32" if in_float32 else storage.dtype
    found = _texts(node.layers, quantised, cache, dtype)
    if storage.in_parts:
        found = _texts_of_parts(node.layers, dtype, *(node.exprs.get(m, "0") for m in ("params", "weight_bytes")))
    known: dict[Metric, str] = {m: size for m, size in found if size is not None and size != "0"}
    unknown: dict[Metric, int | None] = {m: None for m, size in found if size is None}
    return node.with_costs({**node.costs, **unknown}, {**node.exprs, **known})


def _matrices(node: HeldNode, storage: Storage) -> tuple[tuple[Matrix, Format | None], ...]:
    """Return (matrix, format) for each weight matrix of a module, with ``None`` for an unquantised matrix.

    Raises:
        UnknownFormat: a tied output projection would be quantised apart from the table.
    """
    for head in node.layers:
        if isinstance(head, LmHead) and head.tied:
            _format_of_tied(head, node, storage)
    return tuple(
        (part, of)
        for layer in node.layers
        for matrix in costs_of(layer).matrices
        for of, part in _formats(node.module, matrix, storage, is_head=isinstance(layer, LmHead))
    )


def largest_quantised(ledger: Ledger, storage: Storage) -> int:
    """Return the number of weights of the largest quantised tensor of the modules in a ledger of formulas; 0: none.

    A stack of experts that the checkpoint stores in a single tensor counts whole, other experts one by one.

    Branches: the matrix that is largest at these sizes is asked for, not a formula of it.

    Raises:
        UnknownFormat: the format of a module is not known.
    """
    sizes = [0]
    for node in ledger.nodes:
        for matrix, of in _matrices(node, storage) if isinstance(node, HeldNode) else ():
            if of is not None:
                count = matrix.count if matrix.kind == "Expert" and storage.scheme.stacked else 1
                sizes.append(_number(matrix.rows * matrix.columns * count, storage.sizes))
    return max(sizes)


def _format_of_tied(head: LmHead, node: HeldNode, storage: Storage) -> Format | None:
    """Return the format of the table that a tied output projection reads."""
    if not storage.scheme.rules:
        return None
    columns, rows = (_number(size, storage.sizes) for size in (head.hidden, head.vocabulary))
    path = storage.layout.path(node.module)
    tied = LinearModule(path, "Linear", columns, True, False, node.module, rows=rows, is_tied=True)
    return storage.scheme.format_of(tied)


@lru_cache(maxsize=8192)
def _texts(
    layers: tuple[Layer, ...],
    quantised: _Quantised,
    cache: str,
    dtype: Dtype,
) -> tuple[tuple[Metric, str | None], ...]:
    """Return the storage metrics of a module as canonical formula text, memoized for equal modules.

    Args:
        quantised: its matrices that are quantised.
        cache: kind of the scales that it stores for its cache.
    """
    sums = _Sum().plus({"scale": cache_scales(cache, dtype)})
    after = _biases_after_sums(layers)
    for matrix, of in quantised:
        parts = _parts(matrix, of, dtype)
        # A bias that is added after a sum over ranks takes the place of the zero bias of a format.
        sums = sums.plus(parts if after == 0 or matrix.bias else {**parts, "bias": (0, 0)}, matrix.count)
        if of.undetermined() or (of.in_numbers and matrix.digits is None):
            sums = replace(sums, stored_bytes=None, stored_elements=None)
    costs = [costs_of(layer) for layer in layers]
    plain = sum(c.params for c in costs) - sum(matrix.elements for matrix, _ in quantised)
    kept = sum(c.persistent_bytes for c in costs), sum(c.persistent_elements for c in costs)
    resident: Size | None = None
    if not any({"weight_bytes", "buffer_bytes"} & c.unknown for c in costs):
        gone = sum(matrix.elements for matrix, _ in quantised) * _ITEM
        resident = sum(c.weight_bytes + c.buffer_bytes for c in costs) - gone
        resident += after * (FLOAT_BYTES[dtype] - _ITEM) if quantised else 0
    found: tuple[Size | None, ...] = (
        _added(sums.stored_bytes, plain * FLOAT_BYTES[dtype] + kept[0]),
        _added(sums.stored_elements, plain + kept[1]),
        _added(sums.resident_bytes, resident),
    )
    return tuple(
        (m, None if size is None else text(sympy.expand(size))) for m, size in zip(STORAGE, found, strict=True)
    )


@lru_cache(maxsize=8192)
def _texts_of_parts(
    layers: tuple[Layer, ...], dtype: Dtype, params: str, weight_bytes: str
) -> tuple[tuple[Metric, str | None], ...]:
    """Return :func:`_texts` of a module of which a rank stores ``params`` elements, and padding beyond them."""
    costs, own = [costs_of(layer) for layer in layers], parse(params)
    sizes = (
        own * FLOAT_BYTES[dtype] + sum(c.persistent_bytes for c in costs),
        own + sum(c.persistent_elements for c in costs),
        parse(weight_bytes) + sum(c.buffer_bytes for c in costs),
    )
    return tuple((m, text(sympy.expand(size))) for m, size in zip(STORAGE, sizes, strict=True))


def _formats(path: str, matrix: Matrix, storage: Storage, *, is_head: bool) -> Iterator[tuple[Format | None, Matrix]]:
    """Yield (format or ``None``, matrix) for a matrix, or for the projections of each expert in a stack."""
    scheme, layout = storage.scheme, storage.layout
    if not scheme.rules:
        return
    outside = layout.path(path)
    kinds = layout.classes(path) if matrix.kind == "Linear" and not is_head else (matrix.kind,)
    # The whole matrix decides; a rank has a part of it.
    whole = {**storage.sizes, **dict.fromkeys(("tp", "ep"), 1)} if _is_part(storage) else storage.sizes
    rows, columns = (_number(size, whole) for size in (matrix.rows, matrix.columns))
    if any(rule.format.in_numbers for rule in scheme.rules) and not _is_part(storage):
        matrix = replace(matrix, digits=len(str(rows)) + len(str(columns)))
    if matrix.kind != "Expert":
        place = LinearModule(
            outside, kinds[0], columns, is_head, in_numbered_layer(path), path, kinds, rows,
            layout.loads_in_float32(path),
        )  # fmt: skip
        yield _checked_part(scheme.format_of(place), matrix, outside, storage), matrix
        return
    names = layout.expert_layers[:2] if matrix.joined else layout.expert_layers[2:]
    if scheme.stacked:
        of = scheme.format_of(LinearModule(f"{outside}.0.{names[0]}", "Expert", columns, rows=rows))
        yield _checked_part(of, matrix, outside, storage), matrix
        return
    for name in names:
        rows_of = rows // len(names)
        part = replace(matrix, rows=rows_of if isinstance(matrix.rows, int) else matrix.rows / len(names))
        part = part if part.digits is None else replace(part, digits=len(str(rows_of)) + len(str(columns)))
        if not scheme.names_experts:
            of = scheme.format_of(LinearModule(f"{outside}.0.{name}", "Expert", columns, rows=rows_of))
            yield _checked_part(of, part, outside, storage), part
            continue
        for i in range(_number(matrix.count, storage.sizes)):
            of = scheme.format_of(LinearModule(f"{outside}.{i}.{name}", "Expert", columns, rows=rows_of))
            of = _checked_part(of, part, outside, storage)
            yield of, replace(part, count=1, read=None if part.read is None else part.read / part.count)


def _is_part(storage: Storage) -> bool:
    """Return whether the rank stores a part of each split matrix (``tp`` above 1), rather than whole matrices.

    Branches: on the number of ranks, of which one has whole matrices.
    """
    return storage.sizes.get("tp", 1) > 1


def _checked_part(of: Format | None, part: Matrix, path: str, storage: Storage) -> Format | None:
    """Return the format of a matrix, of whose groups a rank must have whole ones.

    Raises:
        UnknownFormat: the rank would have a part of a group, which no engine stores.
    """
    if of is None or not _is_part(storage):
        return of
    sizes = tuple(_number(size, storage.sizes) for size in (part.rows, part.columns))
    units = of.unit[0], lcm(of.unit[1], attribute(of, "group", None) or 1)
    if any(size % unit for size, unit in zip(sizes, units, strict=True)):
        why = f"{path[:60]} of a rank has {sizes[0]} x {sizes[1]}, and groups are of {units[0]} x {units[1]}"
        raise UnknownFormat(storage.scheme.method, why)
    return of


def _number(size: Size, values: Mapping[str, int]) -> int:
    if isinstance(size, int):
        return size
    return evaluate(size, values)
