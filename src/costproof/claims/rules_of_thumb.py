"""Apply the rule 2 N D (N parameters, D tokens or input elements) to models other than decoders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from math import prod
from typing import Final

from costproof.algebra.evaluation import compile_expression
from costproof.algebra.identity import free_symbols
from costproof.claims.effects import FLOPS, Mistake, MistakeTable, left_out, stands_for, times
from costproof.claims.terms import ClaimTerm, is_table, tokens_of
from costproof.claims.types import PublishedClaim
from costproof.compare.patterns import template
from costproof.ledger.capture import Capture
from costproof.ledger.metrics import Metric
from costproof.ledger.node import CostNode, Ledger, total
from costproof.ledger.workload import FLOAT_BYTES

_DIGITS: Final = 24
"""Binary digits of a float32."""
_CLASSES: Final = ("", ", two classes")
"""Suffixes of the causes' names: for the model's own number of classes, and for two, the default in transformers."""


def rule_terms(capture: Capture, ledger: Ledger, claim: PublishedClaim) -> list[ClaimTerm]:
    """Return the values of rules of thumb, such as 2 FLOPs per parameter, for a claim about a one-stage model."""
    calls = capture.invocations
    if claim.metric != "flops" or claim.module or len(calls) != 1 or tokens_of(calls[0].symbols) is not None:
        return []
    (call,) = calls
    held, tables = total(ledger.nodes, "params"), total((n for n in ledger.nodes if is_table(n)), "params")
    if not held or tables is None or not call.inputs:
        return []
    place = f"{call.stage}[{call.id}]"

    def item(extra: str, value: int, evidence: tuple[str, ...] = (place,)) -> ClaimTerm:
        found = ClaimTerm(call.stage, call.id, "", "rule", "", Fraction(value), "", call.symbols, 1, evidence)
        return replace(found, counted=False, stands_for=extra)

    found, elements = [], prod(call.inputs[0].shape)
    for classes, fewer in zip(_CLASSES, (0, _more_than_two_classes(capture, ledger)), strict=True):
        weights = held - tables - fewer
        if not classes or fewer:
            found.append(item(f"2NE{classes}", 2 * weights * elements))
            found.append(item(f"total_flos{classes}", _in_float32(6 * weights * elements)))
    rows = _rows(capture, ledger)
    work: Counter[int] = Counter()
    for node, count in rows:
        work[count] += node.cost("flops") or 0
    if work:
        ((most, _),) = work.most_common(1)
        inside = [n for n, count in rows if count == most and template(n.module)[1]]
        found.append(item("2NT", 2 * most * held))
        matrices = sum(n.cost("flops") or 0 for n in inside)
        found.append(item("2NT layers", matrices, tuple(n.id for n in inside[:4])))
    return found


def _replaced(extra: str, cause: str, what: str) -> Mistake:
    """Return the mistake of using a rule of thumb in place of the whole count."""
    rule = stands_for(extra)
    return Mistake(cause, "rule", what, (left_out(_no_rule),), adds=rule, metrics=FLOPS, if_any=rule)


def _no_rule(term: ClaimTerm) -> bool:
    return term.owner != "rule"


def _total_flos(classes: str) -> Iterator[Mistake]:
    extra = f"total_flos{classes}"
    rule = stands_for(extra)
    what = f"6 N D with D = elements of the input, as pixels, summed in float32 as trainers print {extra}"
    for cause, said, part in (
        (extra, what, Fraction(1)),
        (f"total_flos of one pass{classes}", f"a third of it: {what}", Fraction(1, 3)),
    ):
        yield Mistake(
            cause, "rule", said, (left_out(_no_rule), times(rule, part)), adds=rule, metrics=FLOPS, if_any=rule,
            excludes=("6ND", "backward alone", "doubled", "mac"),
        )  # fmt: skip


RULES_OF_THUMB: Final[MistakeTable] = (
    _replaced("2NT", "2ND: all", "2 N D with N = all parameters, and D = tokens"),
    _replaced("2NT layers", "2ND: matrices of layers", "2 N D with N = matrices of the layers that work on tokens"),
    *(
        _replaced(
            f"2NE{c}", f"2ND: elements of the input for tokens{c}",
            f"2 N D with D = elements of the input, as pixels{c}",
        )
        for c in _CLASSES
    ),
    *(row for c in _CLASSES for row in _total_flos(c)),
)  # fmt: skip


def _more_than_two_classes(capture: Capture, ledger: Ledger) -> int:
    """Return how many parameters fewer the model has if its classifiers have two classes each."""
    fewer = 0
    for node in ledger.nodes:
        expr = node.exprs.get("params", "")
        labels = {n: 2 for n in free_symbols(expr) if n.endswith("_labels")} if expr else {}
        if labels:
            fewer += (node.cost("params") or 0) - int(
                compile_expression(expr).run({**capture.target.symbols, **labels})
            )
    return fewer


def _in_float32(number: int) -> int:
    """Round to the nearest float32: 24 binary digits, ties to even."""
    cut = max(number.bit_length() - _DIGITS, 0)
    whole, rest = divmod(number, 1 << cut)
    half = 1 << cut >> 1
    up = rest > half or (rest == half and whole % 2 == 1 and cut > 0)
    return (whole + up) << cut


def _rows(capture: Capture, ledger: Ledger) -> list[tuple[CostNode, int]]:
    """Return matrix products of layers with their weights, each with its number of rows.

    The rows follow from the layer's parameters and the elements that it writes.
    """
    size = FLOAT_BYTES[capture.workload.dtype]

    def of_modules(metric: Metric) -> dict[str, int]:
        return {n.module: n.cost(metric) or 0 for n in ledger.nodes if not n.kind and n.cost(metric)}

    held, written = of_modules("params"), of_modules("output_bytes")
    found = []
    for node in ledger.nodes:
        products, elements = node.cost("flops") or 0, written.get(node.module, 0) // size
        weights = held.get(node.module, 0)
        if not products or not elements or not weights or products % (2 * elements):
            continue
        inner = products // (2 * elements)
        # With a bias, a column of the matrix has one weight more.
        outer = next((weights // w for w in (inner + 1, inner) if not weights % w and not elements % (weights // w)), 0)
        if outer:
            found.append((node, elements // outer))
    return found
