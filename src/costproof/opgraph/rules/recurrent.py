"""Recurrent layers: every weight matrix meets every row once; gates are vector work.

FLOPs: 2 * rows * elements of each matrix, rows = batch * steps, in each direction. Biases are part of the products.
Vector work per row and hidden unit, by the definitions in torch.nn (sums of the two products included):

- LSTM 13: four gates (add), three sigmoids, tanh; c = f c + i g (3), tanh(c), times o
- GRU 11: two gates (add, sigmoid), n = tanh(a + r b) (3), h = (1 - z) n + z h (4)
- RNN 2: add, tanh or relu
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from costproof.opgraph.graph import OpCall, Value
from costproof.opgraph.rules.cost import OpCost, Uncountable
from costproof.opgraph.rules.names import canonical
from costproof.opgraph.rules.operands import attr
from costproof.opgraph.rules.registry import operator_rule
from costproof.opgraph.rules.sizes import numel, prod, total

_CELLS: Final = {"lstm": (4, 13, 2), "gru": (3, 11, 1), "rnn_tanh": (1, 2, 1), "rnn_relu": (1, 2, 1)}
"""Gates, vector FLOPs per row and hidden unit, tensors of the state."""


@operator_rule(*_CELLS, *(f"{name}_cell" for name in _CELLS))
def recurrent(op: OpCall) -> OpCost:
    """2 * rows * elements of every weight matrix; per row and hidden unit LSTM 13, GRU 11, RNN 2 vector FLOPs."""
    gates, each, states = _CELLS[canonical(op.name).removesuffix("_cell")]
    if attr(op, "train", default=False) and attr(op, "dropout", default=0.0):
        raise Uncountable("a recurrent layer with dropout in training")
    given = [t for t in op.tensors if t.floating]
    data, state = given[0], given[1 : 1 + states]
    matrices = [t for t in given[1 + states :] if len(t.shape) == 2]
    rows = prod(data.shape[:-1])
    hidden = [t.shape[0] for t in _recurrent_matrices(matrices, state)]
    units = [h // gates if isinstance(h, int) else h / gates for h in hidden]
    return OpCost(
        flops=total(prod((2, rows, numel(t))) for t in matrices),
        vector=total(prod((each, rows, u)) for u in units),
        role="matmul",
    )


def _recurrent_matrices(matrices: Sequence[Value], state: Sequence[Value]) -> Sequence[Value]:
    """One of each layer and direction: input, hidden and, where the state is narrower than the cell, a projection."""
    group = 3 if len(state) == 2 and state[0].shape[-1] != state[1].shape[-1] else 2
    if not matrices or len(matrices) % group:
        raise Uncountable("weights of a recurrent layer that come in no groups")
    return matrices[::group]


@operator_rule("_pack_padded_sequence", "_pad_packed_sequence")
def pack(op: OpCall) -> OpCost:
    """0 FLOP: rows are copied."""
    return OpCost(role="move")
