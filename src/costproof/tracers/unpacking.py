"""Count the vector FLOPs of quantised formats, and the bytes that reading weights in them saves.

Vector FLOPs are those of unpacking weights, quantising inputs, and scaling products. A model runs unquantised, so
neither a graph nor a run of it has this work. Each matrix is therefore unpacked separately, from the tensors that its
checkpoint stores, on meta; the operators are costed by the rules of all operators. The static source exports a
reference on whole matrices; the dynamic one runs separate code at the dispatcher, group by group as kernels do, or the
code of transformers. Integers are only made there, since their work is 0.

Bytes saved are what a module is smaller by, as it is stored, times the reads that the graph or the run has of it. The
size is that of the layout for the static source; for the dynamic one, of the module that transformers builds, or of
stand-ins.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, partial
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import sympy

from costproof.algebra.symbols import sym, text
from costproof.ledger.errors import Incomplete, Recount, check_recounts
from costproof.ledger.metrics import ARITHMETIC, UNPACKED, UNPACKING, Metric
from costproof.ledger.node import CostNode, Ledger
from costproof.ledger.workload import ITEM_BYTES, Dtype, Workload
from costproof.models.specs import ExportJob, Run, SymbolicSize
from costproof.models.target import Target
from costproof.opgraph.costed import cost_graph
from costproof.opgraph.merge import expression
from costproof.opgraph.rules.cost import OpCost
from costproof.storage import formats
from costproof.storage.formats import Format, LinearShape
from costproof.storage.scheme import UnknownFormat
from costproof.tracers.exported import export_graph
from costproof.tracers.format_runs import SCALE_BY_BLOCK, UNPACK_BY_GROUP, Tensors, torch_dtype
from costproof.tracers.headers import layout_of
from costproof.tracers.stored_module import StoredMatrix

if TYPE_CHECKING:
    from torch import nn

NOT_COUNTED: Final = "vector FLOPs of quantised weights are not known: "
_NOT_KNOWN: Final = {UNPACKING: NOT_COUNTED, UNPACKED: "bytes that quantised weights save are not known: "}
Matrices = Mapping[str, Collection[StoredMatrix]]
"""Matrices that a module multiplies by, by path of the module."""
_LARGEST: Final = 448.0
"""Largest number in E4M3; its value affects no count."""


@dataclass(frozen=True, slots=True)
class QuantisedModules:
    """Modules of a model with quantised weights, as a checkpoint stores them."""

    matrices: Matrices
    holders: Collection[str]
    """Paths of modules with parameters, their own or shared ones."""
    saved: Mapping[str, int] | None = None
    """Bytes by which a module is smaller than with weights in the run's dtype, by path; ``None`` if unknown."""


def with_formats(ledger: Ledger, modules: QuantisedModules, dtype: Dtype, *, in_symbols: bool = False) -> Ledger:
    """Add the vector FLOPs of quantised formats and the bytes saved to a ledger, or a note on why they are unknown.

    How often a matrix is unpacked, and how many rows it multiplies, follow from the bytes and FLOPs of the ledger.

    Args:
        in_symbols: whether to add formulas too, for a proof, if the bytes and FLOPs have formulas.
    """
    if not modules.matrices:
        return ledger
    given: dict[tuple[str, str, str], list[CostNode]] = defaultdict(list)
    for node in ledger.nodes:
        if node.invocation:
            given[node.stage, node.invocation, node.module].append(node)
    run = ledger.source != "static"

    def flops(module: str, costs: Callable[[], Sums]) -> sympy.Expr:
        of = modules.matrices.get(module)
        return _flops(of, ITEM_BYTES[dtype], costs(), run=run) if of else sympy.Integer(0)

    def saved(module: str, costs: Callable[[], Sums]) -> sympy.Expr:
        if module in modules.holders and module not in modules.matrices:
            return sympy.Integer(0)
        return _saved(modules, module, ITEM_BYTES[dtype], costs())

    found: dict[tuple[str, str, str], CostNode] = {}
    metrics, notes = list[Metric](), list[str]()
    for metric, count in ((UNPACKING, flops), *(((UNPACKED, saved),) if modules.saved is not None else ())):
        more: dict[tuple[str, str, str], CostNode] = {}
        try:
            for place, nodes in given.items():
                number = int(count(place[2], partial(_sums, nodes, CostNode.cost)))
                symbolic = number and in_symbols and any(n.exprs for n in nodes)
                form = count(place[2], partial(_sums, nodes, expression)) if symbolic else None
                exprs = {metric: text(form)} if form is not None and form.free_symbols else {}
                if number:
                    node = found.get(place) or CostNode(*place, "", {})
                    more[place] = node.with_costs({**node.costs, metric: number}, {**node.exprs, **exprs})
        except (Incomplete, _Unknown) as error:
            notes.append(_NOT_KNOWN[metric] + (error.line if isinstance(error, Incomplete) else str(error)))
        else:
            found |= more
            metrics.append(metric)
    nodes = []
    for node in ledger.nodes if run else _as_multiplied(ledger.nodes, modules.matrices):
        one = None if node.kind else found.pop((node.stage, node.invocation, node.module), None)
        nodes.append(node if one is None else node.with_costs({**node.costs, **one.costs}, {**node.exprs, **one.exprs}))
    nodes += found.values()
    check_recounts(_recounts(nodes, metrics, modules, dtype, run=run))
    return replace(ledger, nodes=tuple(nodes), metrics=(*ledger.metrics, *metrics), notes=(*ledger.notes, *notes))


def _recounts(
    nodes: Iterable[CostNode], metrics: Collection[Metric], modules: QuantisedModules, dtype: Dtype, *, run: bool
) -> Iterator[Recount]:
    """Yield checks of what formats add to linear layers, from their calls and the bytes that enter and leave them.

    A call reads the matrix once, and multiplies one row of it for each row of its inputs. The unpacking of a graph is
    compared with that of a run. Left out are tables and experts, of which a call reads what its data chooses.
    """
    sums: defaultdict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
    unknown = set[tuple[str, str, str]]()
    for node in nodes:
        sums[node.stage, node.module, node.invocation].update({m: node.cost(m) or 0 for m in node.costs})
        unknown |= {(node.stage, node.module, node.invocation)} if None in node.costs.values() else set()
    for place, costs in sums.items():
        stage, module, call = place
        of = tuple(modules.matrices.get(module, ()))
        if call and not of and module in modules.holders:
            yield from (Recount(stage, module, metric, costs[metric], 0) for metric in metrics)
        if place in unknown or len(of) != 1 or of[0].kind != "Linear" or of[0].count != 1 or of[0].format is None:
            continue
        made, linear, calls = of[0].format, replace(of[0].linear, bias=False), costs["calls"]
        rows = Fraction(costs["input_bytes"], linear.columns * ITEM_BYTES[dtype])
        if not calls or costs["flops"] != 2 * rows * linear.rows * linear.columns:
            continue  # operators of other modules multiply by the matrix, or in another dtype
        if UNPACKED in metrics and modules.saved is not None:
            # All of a table that another module holds, too.
            own = modules.saved.get(module)
            again = costs["weight_read_bytes"] if own is None else calls * own
            yield Recount(stage, module, UNPACKED, costs[UNPACKED], again)
        if UNPACKING in metrics and not run:
            work = int(_count(made, linear, int(rows) if made.products else None, run=True))
            yield Recount(stage, module, UNPACKING, costs[UNPACKING], work * (1 if made.products else calls))
        if made.products and not run:
            others = sum(costs[f"{kind}_flops"] for kind in ARITHMETIC if kind != made.products)
            yield Recount(
                stage, module, f"{made.products}_flops", costs[f"{made.products}_flops"] + others, costs["flops"]
            )


def _as_multiplied(nodes: Iterable[CostNode], matrices: Matrices) -> Iterator[CostNode]:
    """Yield the nodes; those of modules with quantised weights with their FLOPs by the dtype of the formats.

    Of several formats in a module the fastest arithmetic bounds its products, as in the formulas.
    """
    products = {
        module: max((matrix.format.products for matrix in of if matrix.format is not None), default="")
        for module, of in matrices.items()
    }
    for node in nodes:
        by_dtype = f"{products.get(node.module, '')}_flops"
        other = any(f"{dtype}_flops" in node.costs for dtype in ARITHMETIC)
        if by_dtype == "_flops" or not node.cost("flops") or other:
            yield node
        else:
            form = {by_dtype: node.exprs["flops"]} if "flops" in node.exprs else {}
            yield node.with_costs({**node.costs, by_dtype: node.cost("flops")}, {**node.exprs, **form})


Sums = Mapping[Metric, sympy.Expr]
"""Weight reads, FLOPs and calls of a module."""


def _sums(nodes: Iterable[CostNode], cost: Callable[[CostNode, Metric], Any]) -> Sums:
    """Return the weight reads, FLOPs and calls of a module, as numbers or expressions."""
    found = {m: [cost(n, m) for n in nodes] for m in ("weight_read_bytes", "flops", "calls")}
    if any(None in sizes for sizes in found.values()):
        raise _Unknown("a module has unknown reads or FLOPs")
    return {metric: sympy.Integer(0) + sum(sizes) for metric, sizes in found.items()}


def quantised_modules(
    target: Target, model: nn.Module, workload: Workload, saved: Mapping[str, int] | None
) -> QuantisedModules:
    """Return the modules with quantised weights; none if nothing is quantised or the layout is unknown.

    Args:
        saved: bytes by which a module is smaller than with weights in the run's dtype, by path.
    """
    try:
        modules = [] if workload.mesh.fsdp > 1 else layout_of(target, model, workload)[1]
    except UnknownFormat:
        modules = []
    holders = {name.rpartition(".")[0] for name, _ in model.named_parameters(remove_duplicate=False)}
    return QuantisedModules({m.path: m.matrices for m in modules if m.matrices}, holders, saved)


class _Unknown(Exception):
    """Raised if the work of a module's formats is unknown."""


def _flops(matrices: Collection[StoredMatrix], item: int, costs: Sums, *, run: bool = False) -> sympy.Expr:
    """Return the vector FLOPs of quantised formats in a module's calls, as a number or in the symbols of its costs."""
    read, flops, _ = costs.values()
    first = next(iter(matrices))
    if first.kind == "Embedding":
        rows = _whole(read, first.linear.columns * item)
        if not rows.is_Integer:
            raise _Unknown("a call looks up rows of a quantised table, which have a count but no formula")
        linear = replace(first.linear, rows=int(rows), bias=False)
        return _count(_format(first), linear, None, run=run) if rows else sympy.Integer(0)
    if first.kind == "Expert" and len({one.format for one in matrices}) > 1:
        raise _Unknown("a call reads experts in several formats, which the data chooses")
    of = _format(first)
    each, rows = _each(matrices), _rows(matrices, flops)
    if of.products:
        if rows.is_Integer:
            return sum((n * _count(of, linear, int(rows), run=run) for linear, n in each if rows), sympy.Integer(0))
        return sum((n * _count(of, linear, _ROWS, run=run) for linear, n in each), sympy.Integer(0)).subs(_ROWS, rows)
    reads = _reads(matrices, item, costs)
    return sympy.expand(reads * sum(n * _count(of, linear, None, run=run) for linear, n in each))


def _saved(modules: QuantisedModules, module: str, item: int, costs: Sums) -> sympy.Expr:
    """Return the bytes that a module's calls save by reading quantised weights; see ``unpacked_bytes``."""
    matrices, read = modules.matrices.get(module, ()), costs["weight_read_bytes"]
    saved = (modules.saved or {}).get(module)
    looked_up = any(one.kind == "Embedding" for one in matrices)
    if saved is None or looked_up or len({one.format for one in matrices}) != 1:
        return read
    return sympy.expand(_reads(matrices, item, costs) * sympy.Rational(saved, _experts(matrices)))


def _experts(matrices: Collection[StoredMatrix]) -> int:
    """Return the number of experts whose matrices these are; 1 for those of another module."""
    return min(one.count for one in matrices) if next(iter(matrices)).kind == "Expert" else 1


def _each(matrices: Collection[StoredMatrix]) -> list[tuple[LinearShape, int]]:
    """Return the shapes of a module's matrices without biases, or of one of its experts, with their number."""
    experts = _experts(matrices)
    return [(replace(one.linear, bias=False), one.count // experts) for one in matrices]


def _rows(matrices: Collection[StoredMatrix], flops: sympy.Expr) -> sympy.Expr:
    """Return the number of rows that calls with these FLOPs multiply."""
    return _whole(flops, 2 * sum(n * linear.rows * linear.columns for linear, n in _each(matrices)))


def _reads(matrices: Collection[StoredMatrix], item: int, costs: Sums) -> sympy.Expr:
    """Return how often calls read a module's matrices, or how many experts they read."""
    read, flops, calls = costs.values()
    biases = sum(n * one.linear.rows for one, (_, n) in zip(matrices, _each(matrices), strict=True) if one.linear.bias)
    if biases:  # those of experts are looked up row by row
        read -= item * biases * (_rows(matrices, flops) if sum(one.count for one in matrices) > 1 else calls)
    return _whole(read, item * sum(n * linear.rows * linear.columns for linear, n in _each(matrices)))


def _format(one: StoredMatrix) -> Format:
    if one.format is None:
        raise _Unknown("a call reads experts of which some are not quantised")
    return one.format


def _whole(size: sympy.Expr, unit: int) -> sympy.Expr:
    """Return ``size / unit`` if it is a whole number; a polynomial must be whole at all integer sizes.

    A polynomial of degree d in each symbol is whole everywhere if it is so for each of them from 0 to d.
    """
    found = sympy.expand(size / unit)
    if all(number.is_Integer for number in found.atoms(sympy.Rational)):
        return found
    symbols = sorted(found.free_symbols, key=str)
    if found.is_polynomial(*symbols):
        grid = product(*(range(sympy.degree(found, symbol) + 1) for symbol in symbols))
        if all(found.xreplace(dict(zip(symbols, map(sympy.Integer, at), strict=True))).is_Integer for at in grid):
            return found
    raise _Unknown(f"{size} is not a multiple of {unit:,}, what one call reads or multiplies")


_ROWS: Final = sym("R")
"""Symbol for the number of rows of a product."""


@lru_cache(maxsize=4096)
def _count(of: Format, linear: LinearShape, rows: int | sympy.Symbol | None, *, run: bool) -> sympy.Expr:
    """Return the vector FLOPs of unpacking a matrix, or of a product of ``rows`` with it in the format's dtype."""
    from costproof.tracers.dispatched_trace import trace_dispatched

    stored = {tensor.name: _empty(tensor.shape, tensor.dtype) for tensor in of.tensors(linear)}
    sizes = tuple[SymbolicSize, ...]()
    if rows is None:
        reference = (UNPACK_BY_GROUP if run else _UNPACK).get(type(of))
    else:
        reference = (SCALE_BY_BLOCK if run else _SCALE).get(type(of))
        if isinstance(rows, sympy.Symbol):
            sizes = tuple(SymbolicSize(("tensors", len(stored) + i), 0, str(rows)) for i in range(2))
        example = rows if isinstance(rows, int) else _EXAMPLE
        stored |= {"x": _empty((example, linear.columns), "BF16"), "y": _empty((example, linear.rows), "F32")}
    if reference is None:
        raise _Unknown(f"costproof does not know the arithmetic of {of.title}")
    # The names of the tensors are keys, not arguments.
    module = _module(of, linear, reference, tuple(stored))
    given = {"tensors": list(stored.values())}
    try:
        if run:
            graph = trace_dispatched(Run("unpacking", module, given, lambda path, call: ("", ""))).graph
        else:
            graph = export_graph(ExportJob("unpacking", "", (), module, {"": ""}, given, sizes)).graph
    except Incomplete as error:
        raise _Unknown(f"{of.title}: {error.line}") from error
    total = sympy.Integer(0)
    for op, cost in zip(graph.ops, cost_graph(graph).costs, strict=True):
        if not isinstance(cost, OpCost):
            raise _Unknown(f"{of.title}: {op.name} has no count")
        total += cost.vector
    return sympy.expand(total)


_EXAMPLE: Final = 37
"""Example number of rows for an export with symbolic rows; no size of a format equals it."""


def _empty(shape: Iterable[Any], dtype: str) -> Any:
    import torch

    return torch.empty(tuple(map(int, shape)), dtype=torch_dtype(dtype), device="meta")


def _module(of: Format, linear: LinearShape, reference: Callable[..., Any], names: tuple[str, ...]) -> nn.Module:
    """Return a module that applies a format's reference arithmetic to its tensors."""
    from torch.nn import Module

    class Reference(Module):
        def forward(self, tensors: list[Any]) -> Any:
            """Return the unpacked W [rows, columns], or the quantised input and the scaled product."""
            return reference(of, linear, dict(zip(names, tensors, strict=True)))

    return Reference()


def _integers(words: Any, bits: int, count: int) -> Any:
    """Unpack the first ``count`` integers of ``bits`` bits from each row of words."""
    import torch

    width = words.element_size() * 8
    in_words = (words.unsqueeze(-1) >> torch.arange(width, dtype=words.dtype, device=words.device)) & 1
    fields = in_words.flatten(-2)[..., : count * bits].unflatten(-1, (count, bits)).to(torch.int32)
    return (fields << torch.arange(bits, dtype=torch.int32, device=words.device)).sum(-1, dtype=torch.int32)


def _spread(scales: Any, size: int, count: int, dim: int = -1) -> Any:
    """Repeat each scale ``size`` times, and cut the result to ``count``."""
    return scales.repeat_interleave(size, dim).narrow(dim, 0, count)


def _gptq(of: formats.Gptq, w: LinearShape, t: Tensors) -> Any:
    numbers = _integers(t["qweight"].T, of.bits, w.columns).T
    zeros, scales = _integers(t["qzeros"], of.bits, w.rows), t["scales"]
    if of.indexed:
        return scales[t["g_idx"]] * (numbers - zeros[t["g_idx"]])
    zeros, scales = (_spread(one, of.group or w.columns, w.columns, 0) for one in (zeros, scales))
    return scales * (numbers - zeros)


def _awq(of: formats.Awq, w: LinearShape, t: Tensors) -> Any:
    if of.version == "marlin":  # integers of four bits with a sign
        numbers = _integers(t["qweight"], of.bits, 16 * w.rows).reshape(w.columns, w.rows)
        return (numbers - 8) * _spread(t["scales"], of.group, w.columns, 0)
    if of.version == "gemv_fast":
        numbers = _integers(t["qweight"], of.bits, 4 * w.columns).reshape(w.rows, w.columns)
        scales, zeros = (_spread(t[name].T, of.group, w.columns) for name in ("scales", "qzeros"))
        return numbers * scales + zeros
    if of.version == "gemv":
        zeros = _spread(_integers(t["qzeros"], of.bits, t["scales"].shape[1]), of.group, w.columns)
        return (_integers(t["qweight"], of.bits, w.columns) - zeros) * _spread(t["scales"], of.group, w.columns)
    zeros, scales = (
        _spread(one, of.group, w.columns, 0) for one in (_integers(t["qzeros"], of.bits, w.rows), t["scales"])
    )
    return (_integers(t["qweight"], of.bits, w.rows) - zeros) * scales


def _mlx(of: formats.Mlx, w: LinearShape, t: Tensors) -> Any:
    scales, offsets = (_spread(t[name], of.group, w.columns) for name in ("scales", "biases"))
    return _integers(t["weight"], of.bits, w.columns) * scales + offsets


def _four_bit(of: formats.FourBit, w: LinearShape, t: Tensors) -> Any:
    maxima, numbers = t["weight.absmax"], w.rows * w.columns
    if of.nested:
        outer = _spread(t["weight.nested_absmax"], formats.NESTED, maxima.shape[0])
        maxima = t["weight.nested_quant_map"][maxima.int()] * outer + 0.5  # and the mean of all maxima
    codes = _integers(t["weight"].flatten(), 4, numbers)
    return t["weight.quant_map"][codes] * _spread(maxima, formats.ABSMAX_BLOCK, numbers)


def _values(codes: Any) -> Any:
    """Return the E2M1 numbers of codes, looked up in a table."""
    import torch

    return torch.empty(16, dtype=torch.bfloat16, device=codes.device)[codes]


def _mxfp4(of: formats.Mxfp4, w: LinearShape, t: Tensors) -> Any:
    return (_values(_integers(t["blocks"], 4, 32)) * 2.0 ** (t["scales"].int() - 127).unsqueeze(-1)).flatten(-2)


def _compressed(of: formats.CompressedTensors, w: LinearShape, t: Tensors) -> Any:
    if of.inputs and not of.products:
        raise Incomplete("costproof does not know how inputs are quantised for 16-bit products", got=of.title)
    dtype, zeros = torch_dtype(w.dtype), None if of.symmetric else t["weight_zero_point"]
    scales = t["weight_scale"]
    if of.layout == "pack-quantized":
        numbers = _integers(t["weight_packed"], of.bits, w.columns)
        if zeros is not None and of.strategy != "tensor":
            zeros = _integers(zeros.T, of.bits, w.rows).T
    else:
        numbers = _values(_integers(t["weight_packed"], 4, w.columns)) if of.bits == 4 else t["weight"]
    if of.layout.startswith("mxfp"):
        scales = 2.0 ** (scales.int() - 127)
    if of.layout.startswith("nvfp4"):
        scales = scales.to(dtype) / t["weight_global_scale"]

    def over(one: Any) -> Any:
        if of.strategy == "block":
            return _spread(_spread(one, of.block[0], w.rows, 0), of.block[1], w.columns)
        return _spread(one, of.group, w.columns) if of.group else one

    numbers = numbers.to(dtype)
    return (numbers if zeros is None else numbers - over(zeros).to(dtype)) * over(scales)


def _torchao(of: formats.TorchaoEightBit, w: LinearShape, t: Tensors) -> Any:
    def over(one: Any) -> Any:
        return one if of.group is None else _spread(one, of.group, w.columns)

    numbers, scales = t["_weight_qdata"], over(t["_weight_scale"])
    if of.dtype == "I8":
        return (numbers.int() - over(t["_weight_zero_point"]).int()) * scales
    return numbers.to(scales.dtype) * scales


def _torchao_int4(of: formats.TorchaoInt4, w: LinearShape, t: Tensors) -> Any:
    if not of.tiled:
        scales, zeros = (_spread(t[f"_weight_{name}"], of.group, w.columns, 0).T for name in ("scale", "zero_point"))
        return _integers(t["_weight_qdata"], 4, w.columns) * scales + zeros
    pairs = t["_weight_scale_and_zero"]
    columns = pairs.shape[0] * of.group
    codes = _integers(t["_weight_qdata"].flatten(), 4, pairs.shape[1] * columns).unflatten(0, (-1, columns))
    scales, zeros = (_spread(one.T, of.group, columns) for one in pairs.unbind(-1))
    return codes * scales + zeros


_UNPACK: Final[Mapping[type, Callable[[Any, LinearShape, Tensors], Any]]] = {
    formats.Gptq: _gptq, formats.Awq: _awq, formats.Mlx: _mlx, formats.FourBit: _four_bit, formats.Mxfp4: _mxfp4,
    formats.CompressedTensors: _compressed, formats.TorchaoEightBit: _torchao,
    formats.TorchaoInt4: _torchao_int4,
}  # fmt: skip
"""Function by format class that unpacks W [rows, columns], or its transpose, from the stored tensors."""


def _grouped(x: Any, size: int) -> Iterator[Any]:
    """Yield the columns in whole groups, then the remaining columns as one more group."""
    whole = x.shape[-1] // size * size
    if whole:
        yield x[..., :whole].unflatten(-1, (-1, size))
    if whole < x.shape[-1]:
        yield x[..., whole:].unsqueeze(-2)


def _by_row(x: Any, *, rounded: bool = False) -> tuple[Any, Any]:
    """Quantise x to eight bits by rows; return the numbers and the scales."""
    scales = x.abs().amax(-1, keepdim=True) / _LARGEST
    return ((x / scales).round() if rounded else x / scales), scales


def _scaled(t: Tensors, inputs: tuple[Any, Any], weight: str) -> tuple[Any, Any]:
    """Return the quantised inputs, and the products multiplied by the scales of rows and columns."""
    return inputs[0], t["y"] * inputs[1] * t[weight].float().flatten()


def _fp8_product(of: formats.Fp8, w: LinearShape, t: Tensors) -> Any:
    import torch

    x, scales = t["x"], t[of.scale_name].float()
    if of.block is None:
        given = (x / t["activation_scale"], t["activation_scale"]) if of.static else _by_row(x)
        return _scaled(t, given, of.scale_name)
    parts = list(_grouped(x, of.block[1]))
    # The product with the columns of each block: [rows, blocks, output features].
    partial = t["y"].unsqueeze(1).expand(-1, sum(part.shape[-2] for part in parts), -1)
    of_weight = _spread(scales, of.block[0], w.rows, 0).T
    if of.static:
        return x / t["activation_scale"], (partial * of_weight).sum(1) * t["activation_scale"]
    made, of_input = [], []
    for part in parts:
        factors = part.abs().amax(-1, keepdim=True) / _LARGEST
        factors = 2.0 ** factors.log2().ceil() if of.powers else factors
        made.append(part / factors)
        of_input.append(factors.squeeze(-1))
    return made, (partial * torch.cat(of_input, -1).unsqueeze(-1) * of_weight).sum(1)


def _fp4_product(of: formats.Fp4, w: LinearShape, t: Tensors) -> Any:
    import torch

    made, of_input = [], []
    for part in _grouped(t["x"], formats.FP4_INPUT_GROUP):
        factors = part.abs().amax(-1, keepdim=True) / _LARGEST
        factors = 2.0 ** factors.log2().ceil() if of.powers else factors
        made.append(part / factors)
        of_input.append(factors.squeeze(-1))
    scales = t[of.scale_name]
    again = formats.FP4_INPUT_GROUP // formats.FP4_GROUP
    factors = _spread(torch.cat(of_input, -1), again, scales.shape[1]).unsqueeze(-1)
    partial = t["y"].unsqueeze(1).expand(-1, scales.shape[1], -1)
    return made, (partial * factors * scales.float().T).sum(1)


def _modelopt_product(of: formats.ModelOptFp8, w: LinearShape, t: Tensors) -> Any:
    return _scaled(t, (t["x"] / t["input_scale"], t["input_scale"]), "weight_scale")


def _int8_product(of: formats.LlmInt8, w: LinearShape, t: Tensors) -> Any:
    x, y = _scaled(t, _by_row(t["x"], rounded=True), "SCB")
    return x, y / (127 * 127)


def _two_levels(t: Tensors, size: int, inner: str, outer: str) -> Any:
    made = []
    for part in _grouped(t["x"], size):
        scales = part.abs().amax(-1, keepdim=True) / 6 / t[inner]
        made.append(part / (scales * t[inner]))
    return made, t["y"] * t[inner] * t[outer]


def _compressed_product(of: formats.CompressedTensors, w: LinearShape, t: Tensors) -> Any:
    if of.input_zero or not of.symmetric:
        raise Incomplete("costproof does not know how zero points enter a product of quantised inputs", got=of.title)
    if of.layout.startswith("nvfp4") and of.input_levels:
        return _two_levels(t, of.group, "input_global_scale", "weight_global_scale")
    if of.strategy not in ("tensor", "channel"):
        raise Incomplete("costproof does not know how group scales enter a product of quantised inputs", got=of.title)
    if of.inputs != "static":
        return _scaled(t, _by_row(t["x"], rounded=not of.is_float), "weight_scale")
    x = t["x"] / t["input_scale"]
    return _scaled(t, (x if of.is_float else x.round(), t["input_scale"]), "weight_scale")


def _torchao_product(of: formats.TorchaoEightBit, w: LinearShape, t: Tensors) -> Any:
    if of.whole or of.group is not None:
        raise Incomplete("costproof knows torchao's inputs only with one scale for each row", got=of.title)
    return _scaled(t, _by_row(t["x"], rounded=of.dtype == "I8"), "_weight_scale")


_SCALE: Final[Mapping[type, Callable[[Any, LinearShape, Tensors], Any]]] = {
    formats.Fp8: _fp8_product, formats.Fp4: _fp4_product, formats.ModelOptFp8: _modelopt_product,
    formats.LlmInt8: _int8_product,
    formats.Nvfp4: lambda of, w, t: _two_levels(t, of.unit[1], "input_scale", "weight_scale_2"),
    formats.CompressedTensors: _compressed_product, formats.TorchaoEightBit: _torchao_product,
}  # fmt: skip
"""Function by format class that quantises inputs and scales a product, as a reference."""
