"""Export a forward to ONNX, and count the resulting graph, which an ONNX runtime executes, by our own rules.

Every node has the path of its module. Products, convolutions and einsums are counted by the rules of those operators;
attention is decomposed into products. The other operators listed here have no FLOPs by the conventions of this package;
an operator that is not listed is an error.
"""

from __future__ import annotations

import ast
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from costproof.ledger.counter import UNATTRIBUTED
from costproof.ledger.errors import Incomplete, first_line
from costproof.opgraph.graph import OpCall, Value
from costproof.opgraph.rules.cost import OpCost
from costproof.opgraph.rules.registry import cost_of
from costproof.tracers.counters.protocol import Counted, Row, counted
from costproof.tracers.counters.tools import Positional, inner_path

OPSET: Final = 20
"""The last ONNX opset without an attention operator."""
_SCOPES: Final = "pkg.torch.onnx.name_scopes"
_PRODUCTS: Final[Mapping[str, str]] = {
    "MatMul": "aten.matmul.default",
    "Gemm": "aten.matmul.default",
    "Conv": "aten.convolution.default",
    "ConvTranspose": "aten.convolution.default",
    "Einsum": "aten.einsum.default",
}
_OTHERS: Final = """
Abs Acos Add And ArgMax ArgMin AveragePool BatchNormalization BitShift BitwiseAnd BitwiseNot BitwiseOr Cast CastLike
Ceil Clip Compress Concat ConcatFromSequence Constant ConstantOfShape Cos CumSum DepthToSpace Div Dropout Elu Equal
Erf Exp Expand EyeLike Flatten Floor Gather GatherElements GatherND Gelu GlobalAveragePool GlobalMaxPool Greater
GreaterOrEqual GridSample GroupNormalization HardSigmoid HardSwish Identity InstanceNormalization IsInf IsNaN
LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax Max MaxPool Mean Min Mish Mod Mul Neg NonZero Not OneHot
Or PRelu Pad Pow Range Reciprocal ReduceL1 ReduceL2 ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd
ReduceSum ReduceSumSquare Relu Reshape Resize Round ScatterElements ScatterND Selu SequenceAt SequenceConstruct
Shape Sigmoid Sign Sin Size Slice Softmax Softplus Softsign SpaceToDepth Split SplitToSequence Sqrt Squeeze Sub Sum
Tan Tanh ThresholdedRelu Tile TopK Transpose Trilu Unsqueeze Where Xor
"""
_NO_FLOPS: Final = frozenset(_OTHERS.split())


def onnx(model: Positional, args: tuple[Tensor, ...]) -> Counted:
    """Count the graph of ``torch.onnx.export``, in rows by (module, exported operator).

    Raises:
        Incomplete: an operator is unknown here, or a product has no shapes.
    """
    proto = _proto(model, args)
    shapes = {v.name: v for v in (*proto.graph.value_info, *proto.graph.input, *proto.graph.output)}
    # The same name may have another meaning in another domain.
    named = {f"{n.domain}::{n.op_type}" if n.domain else n.op_type for n in proto.graph.node}
    unknown = sorted(named - _NO_FLOPS - set(_PRODUCTS))
    if unknown:
        raise Incomplete(
            "this counter has no rule for operators of the ONNX graph",
            got=", ".join(unknown),
            fix="leave this counter out with --only",
        )
    rows = list(_rows([n for n in proto.graph.node if n.op_type in _PRODUCTS], shapes))
    return counted(sum(row.value for row in rows), rows)


def _proto(model: Positional, args: tuple[Tensor, ...]) -> Any:
    """Return the ONNX graph with the shapes of all tensors; parameters become inputs, since they have no values."""
    import onnx as package
    import onnx_ir

    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            found = torch.onnx.export(
                model, args, dynamo=True, optimize=False, opset_version=OPSET, verbose=False, export_params=False
            )
    except Exception as error:  # the exporter reports the cause last
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise Incomplete("torch.onnx cannot export the model", got=first_line(cause)) from error
    finally:
        logging.disable(before)
    assert found is not None
    graph = found.model.graph
    for name, value in list(graph.initializers.items()):
        known: Any = value.const_value
        value.shape = value.shape or onnx_ir.Shape(known.shape)
        value.const_value = None
        del graph.initializers[name]
        graph.inputs.append(value)
    return package.shape_inference.infer_shapes(onnx_ir.to_proto(found.model), data_prop=True)


def _rows(nodes: list[Any], shapes: Mapping[str, Any]) -> Iterator[Row]:
    for number, node in enumerate(nodes):
        attrs = {a.name: a for a in node.attribute}
        # A bias after two operands adds no FLOPs, and the shape of some is unknown.
        inputs = node.input if node.op_type == "Einsum" else node.input[:2]
        reads = tuple(_value(name, shapes, node) for name in inputs)
        if node.op_type == "Gemm":
            left, right = (
                _turned(v) if attrs.get(flag) and attrs[flag].i else v
                for v, flag in zip(reads, ("transA", "transB"), strict=False)
            )
            reads = (left, right)
        more: dict[str, Any] = {"transposed": node.op_type == "ConvTranspose"}
        if "equation" in attrs:
            more = {"equation": attrs["equation"].s.decode()}
        if "group" in attrs:
            more["groups"] = attrs["group"].i
        outputs = tuple(_value(name, shapes, node) for name in node.output)
        cost = cost_of(OpCall(f"onnx{number}", _PRODUCTS[node.op_type], "", 1, reads, outputs, more))
        if not isinstance(cost, OpCost):
            raise Incomplete("a product of the ONNX graph cannot be counted", where=node.name, got=cost.why)
        yield Row(*_place(node), int(cost.flops))


def _value(name: str, shapes: Mapping[str, Any], node: Any) -> Value:
    known = shapes.get(name)
    dims = [] if known is None else known.type.tensor_type.shape.dim
    if known is None or any(not d.HasField("dim_value") for d in dims):
        raise Incomplete("an operand of a product in the ONNX graph has no shape", where=node.name, got=name)
    return Value(name, tuple(int(d.dim_value) for d in dims), "float32")


def _turned(value: Value) -> Value:
    return Value(value.id, value.shape[::-1], value.dtype)


def _place(node: Any) -> tuple[str, str]:
    """Return the innermost module of an ONNX node, and the torch operator that it was exported from."""
    said = next((p.value for p in node.metadata_props if p.key == _SCOPES), "")
    scopes = ast.literal_eval(said) if said else []
    if len(scopes) < 2:
        return UNATTRIBUTED, node.op_type
    return inner_path(f"Positional.{scopes[-2]}"), re.sub(r"_\d+$", "", scopes[-1])
