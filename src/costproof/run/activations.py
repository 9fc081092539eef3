"""An upper bound of the activations that a run holds at once, as a sum of formulas.

While a model runs, one layer of it runs at a time. What is alive is then

* what modules that have ended returned: at most all that crosses the border of a module, ``output_bytes``;
* what the operators of the layer that runs, and of modules outside of layers, take and make: each such tensor is read
  or written by an operator of its own, so they are at most the ``unfused_bytes`` less the weights. With scores that are
  written out, those of one layer are among them;
* copies, which move nothing in these counts: casts and tensors made contiguous, each as large as what a module takes
  or returns (``input_bytes`` and ``output_bytes`` once more), keys and values of the past repeated for every head of
  queries, which have as many elements as a step's attention has multiply-accumulates;
* masks of every query and key of a prompt, which do not count as activations where they are booleans: two of them as
  numbers, a copy of one, and four booleans that they are made of.

Attention of two widths has its scores beside these (:mod:`costproof.run.written_scores`). The cache is apart. Tests
hold this to the peaks of modules as written (``tests/estimate/test_activations.py``).
"""

from __future__ import annotations

from functools import partial
from typing import Final

from costproof.ledger.metrics import UNFUSED
from costproof.ledger.node import CostNode
from costproof.run.along import OfCalls, Sum, Term, grows

_MASKS: Final = "(3*b + 4)*B*S**2"
"""Bytes in a call with B sequences of S tokens, b bytes an element."""
_ATTENTION: Final = "attention"


def activations(element: int, stage: str | None = None) -> Sum:
    """The bound of one call of a stage, of steps the last; or of all stages together.

    Args:
        element: bytes of a number.
    """

    def here(node: CostNode) -> bool:
        return stage in (None, node.stage)

    def past(node: CostNode) -> bool:
        return here(node) and node.kind == _ATTENTION and grows(node.exprs["flops"])

    inside = partial(Term, nodes=here, take="last step", layers="one of each kind")
    return (
        Term("output_bytes", here, take="last step"),
        inside(UNFUSED),
        inside("weight_read_bytes", factor=-1),
        inside("input_bytes"),
        inside("output_bytes"),
        Term("flops", past, factor=-(-element // 2), take="last step", layers="one of each kind"),
        OfCalls(_MASKS, stage),
    )
