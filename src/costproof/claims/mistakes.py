"""Define the known mistakes for every model: units, training, decoders, experts, views and parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from math import prod
from typing import Final

from costproof.algebra.evaluation import compile_expression
from costproof.algebra.identity import free_symbols
from costproof.claims.effects import (
    FLOPS,
    NOT_FLOPS,
    NOT_STAGE_WIDE,
    ClaimTerms,
    Mistake,
    MistakeSeries,
    MistakeTable,
    TermChange,
    left_out,
    stands_for,
    substitute,
    substituted,
    times,
)
from costproof.claims.terms import BIASED, RULES, ClaimTerm, bias_of, causal, dense_terms, is_table, tokens_of
from costproof.claims.types import PublishedClaim
from costproof.compare.patterns import template
from costproof.ledger.capture import Capture
from costproof.ledger.metrics import COMM, Metric
from costproof.ledger.node import CostNode, Ledger, total
from costproof.ledger.workload import FLOAT_BYTES

ONE_STEP: Final = "one decode step"
TRIANGLE: Final = "causal triangle"
HALVES: Final = ("causal half", "causal 1.8")
RECOMPUTE: Final = "full recompute"
RECOMPUTED: Final = Fraction(4)
"""Cost of training with activation recomputation, in forward passes."""


def _every(_: ClaimTerm) -> bool:
    return True


def _part(name: str) -> Callable[[ClaimTerm], bool]:
    return lambda term: term.part == name


# --- Units -----------------------------------------------------------------------------------------------------------


def units(written_out: frozenset[str]) -> MistakeTable:
    """Return the mistakes of counting in other units, such as multiply-accumulates.

    Args:
        written_out: roles of norms written in primitive operators, where tools do not recognize a norm.
    """
    half = times(lambda t: t.products, Fraction(1, 2))
    norms = stands_for("norms at 5")
    return (
        Mistake("mac", "unit", "a multiply-accumulate is counted as one", (half,), metrics=FLOPS),
        Mistake(
            "doubled", "unit", "each FLOP is counted as two operations", (times(_every, 2),),
            metrics=FLOPS,
        ),
        Mistake(
            "fvcore", "unit",
            "fvcore's conventions: a multiply-accumulate is one, attention kernels are left out, "
            "a layer norm is 5 per element",
            (half, TermChange(lambda t: t.kind == "einsum", _einsum_of_fvcore), left_out(lambda t: t.scores)),
            adds=lambda t: norms(t) and t.role not in written_out, metrics=FLOPS,
        ),
    )  # fmt: skip


def _einsum_of_fvcore(term: ClaimTerm) -> Fraction:
    """Return fvcore's count of an einsum as a factor on the term: half of NumPy's estimate, to four digits."""
    each = term.value / term.count / 2
    rounded = Fraction(f"{int(each):.3e}") / 2 if each.denominator == 1 else each / 2
    return Fraction(int(rounded)) / each


# --- Training --------------------------------------------------------------------------------------------------------

_UNITS: Final = ("mac", "doubled", "fvcore")
"""Causes excluded for training, whose passes are counted in FLOPs; with them too many numbers would fit."""
_RULES: Final = tuple(f"2ND: {name}" for name, _ in RULES)


def _recompute(cause: str, *excludes: str) -> Mistake:
    what = "four forward passes: activations are computed twice"
    four = (times(_every, RECOMPUTED),)
    return Mistake(RECOMPUTE, "training", what, four, metrics=FLOPS, requires=cause, excludes=(*excludes, *_UNITS))


def _passes(cause: str, what: str, every: Fraction, scores: Fraction) -> Mistake:
    changes = (times(_every, every), times(lambda t: t.scores, scores))
    # These causes leave no pass of attention to multiply.
    excludes = ("attention missing", *_RULES, *_UNITS)
    return Mistake(
        cause, "training", what, changes, metrics=FLOPS, excludes=excludes, if_any=lambda t: t.counted and t.scores
    )


TRAINING: Final[MistakeTable] = (
    Mistake("6ND", "training", "three forward passes: forward and backward of training", (times(_every, 3),),
            metrics=FLOPS),
    Mistake("backward alone", "training", "two forward passes: the backward of training", (times(_every, 2),),
            metrics=FLOPS),
    # Four times the truth is a plain ratio, so recomputation is a cause only in combination with another one.
    *(_recompute(cause) for cause in (TRIANGLE, *HALVES, *_RULES)),
    *(_recompute(cause, TRIANGLE, *HALVES)
      for cause in ("window S x W", "window band", "chunk S x C", "chunk triangles")),
    _passes("6ND, fused attention", "three forward passes, 3.5 of attention: a fused backward has five products for "
            "two", Fraction(3), Fraction(7, 2)),
    _passes("full recompute, fused attention", "four forward passes, 4.5 of attention: a fused backward has five "
            "products for two", RECOMPUTED, Fraction(9, 2)),
    _passes("attention recomputed", "three forward passes, four of attention: scores are computed twice",
            Fraction(3), Fraction(4)),
)  # fmt: skip


# --- Decoders --------------------------------------------------------------------------------------------------------


def keys(term: ClaimTerm) -> int:
    """Return the total number of keys that N decode steps attend to: P + 1, P + 2, ..., P + N."""
    steps, past = term.values["N"], term.values["P"]
    return steps * past + steps * (steps + 1) // 2


def _scores(*needed: str) -> Callable[[ClaimTerm], bool]:
    return lambda t: t.part == t.owner == "attention" and t.products and set(needed) <= t.values.keys()


def _of_prompt(term: ClaimTerm) -> bool:
    return term.part == "lm_head" and "L" in term.values


def _causal(cause: str, form: str, factor: Callable[[ClaimTerm], Fraction | None]) -> Mistake:
    what = f"causal attention has {form}"
    return Mistake(
        cause, "attention", what, (TermChange(lambda t: t.counted and t.prompt_scores, factor),), metrics=FLOPS
    )  # fmt: skip


def _triangle(term: ClaimTerm) -> Fraction | None:
    if term.in_rows:
        return None if term.window else term.kept
    return Fraction(causal(term.values["S"], term.past), term.pairs)


def _other_mask(term: ClaimTerm) -> bool:
    """Return whether a mask in a graph is neither causal nor that of a window or chunk."""
    triangle = term.prompt_scores and term.kept == _triangle(term)
    return _masked(term) and not (triangle or term.window or term.chunk)


def _masked(term: ClaimTerm) -> bool:
    return term.counted and not term.role and term.kept != 1


def _context(cause: str, what: str, seen: Callable[[ClaimTerm], int]) -> Iterator[Mistake]:
    """Yield two records of one mistake in the context length of decode steps: for all N steps and for a single one."""
    several = TermChange(_scores("N", "P"), lambda t: Fraction(t.values["N"] * seen(t), keys(t)))
    single = TermChange(_scores("N", "P"), lambda t: Fraction(seen(t), t.values["P"] + 1))
    yield Mistake(cause, "attention", what, (several,), metrics=FLOPS, excludes=(ONE_STEP,))
    yield Mistake(cause, "attention", what, (single,), metrics=FLOPS, requires=ONE_STEP)


def _own_token(cause: str, what: str, more: int) -> Mistake:
    moved = TermChange(_scores("N", "P"), lambda t: 1 + Fraction(more * t.values["N"], keys(t)))
    return Mistake(cause, "attention", what, (moved,), metrics=FLOPS, excludes=(ONE_STEP,))


def _rule(name: str, what: str) -> Iterator[Mistake]:
    """Yield the mistakes of counting a decoder by 2 x parameters x tokens, with and without attention scores."""

    def replaced(t: ClaimTerm) -> bool:
        return t.text and not t.stands_for.startswith("2ND")

    added = stands_for(f"2ND {name}")
    yield Mistake(f"2ND: {name}", "rule", f"2 N D with N = {what}", (left_out(replaced),), adds=added, metrics=FLOPS)
    yield Mistake(
        f"2ND and attention: {name}", "rule",
        f"2 N D with N = {what}, and attention",
        (left_out(lambda t: replaced(t) and not t.scores),),
        adds=added, metrics=FLOPS, if_any=lambda t: replaced(t) and t.scores,
    )  # fmt: skip


_head: Final = _part("lm_head")
_routed: Final = _part("experts")


def _shared(term: ClaimTerm) -> bool:
    return term.shared_experts


def _experts_of(term: ClaimTerm) -> int:
    tower = "text" if term.tower == "lm_head" else term.tower
    return term.values.get(f"{tower}_experts", 0)


def _repeated(term: ClaimTerm) -> bool:
    """Return whether a counted term is outside the routed experts and router of a tower with several experts."""
    return term.counted and not _routed(term) and term.part != "router" and _experts_of(term) > 1


def _dense_for_experts(terms: ClaimTerms, _: Mapping[str, int]) -> Iterator[Mistake]:
    """Yield common mistakes of published numbers about dense MLPs in towers that also have experts."""
    dense = {id(t) for t in dense_terms(terms)}
    gone, every = left_out(lambda t: id(t) in dense), stands_for("mixture for dense")
    yield Mistake("dense-first ignored", "layers", "every layer is taken to have experts", (gone,), adds=every)
    yield Mistake(
        "dense MLPs as experts", "layers", "every layer has only the routed experts, each as wide as a dense layer",
        (gone, left_out(_shared), substituted(_routed, moe="intermediate")), adds=every,
    )  # fmt: skip


DECODER: Final[MistakeTable] = (
    Mistake("lm_head missing", "lm_head", "lm_head is left out", (left_out(_head),)),
    Mistake("lm_head only", "only", "only lm_head is counted",
            (left_out(lambda t: t.counted and not _head(t)),), if_any=_head),
    Mistake("lm_head halved", "lm_head", "lm_head is counted in multiply-accumulates",
            (times(_head, Fraction(1, 2)),), metrics=NOT_STAGE_WIDE - frozenset(COMM)),
    Mistake("lm_head last token", "lm_head", "lm_head maps only the last position",
            (TermChange(_of_prompt, lambda t: Fraction(t.over_rows("B") or 1, t.values["L"])),),
            metrics=NOT_STAGE_WIDE),
    Mistake("lm_head all tokens", "lm_head", "lm_head maps every position",
            (TermChange(_of_prompt, lambda t: Fraction(t.values["S"], t.values["L"])),), metrics=NOT_STAGE_WIDE),
    Mistake("tied head counted", "lm_head", "weights that embedding and lm_head share are counted twice",
            (times(lambda t: t.counted and t.table, 2),),
            metrics=frozenset({"params", "params_active", "weight_bytes"}),
            unless_any=lambda t: _head(t) and bool(t.value)),
    _causal(TRIANGLE, "S (S + 1) / 2 scores, and all of a past", _triangle),
    _causal("causal half", "S² / 2 scores", lambda t: Fraction(1, 2)),
    _causal("causal 1.8", "S² / 1.8 scores", lambda t: Fraction(5, 9)),
    Mistake("kept scores", "attention", "only the scores that masks leave are counted",
            (TermChange(_masked, lambda t: t.kept),), metrics=FLOPS, if_any=_other_mask,
            excludes=("window S x W", "window band", "chunk S x C", "chunk triangles")),
    *_context("context attention missing", "decode steps attend only to the new token", lambda t: 1),
    *_context("decode context frozen", "every decode step attends only to the prompt", lambda t: t.values["P"]),
    *_context("decode context of the last step", "every decode step attends to as much as the last",
              lambda t: t.values["P"] + t.values["N"]),
    _own_token("new token not attended to", "a decode step does not attend to its own token", -1),
    _own_token("new token attended to twice", "a decode step attends to one token too many", 1),
    *(row for name, what in RULES for row in _rule(name, what)),
    Mistake("embedding as a GEMM", "embedding", "the embedding is counted as a matrix product",
            adds=stands_for("embedding"), metrics=FLOPS),
    Mistake(ONE_STEP, "steps", "one decode step is counted, not all",
            (substituted(lambda t: "N" in t.values, N="1"),)),
    Mistake("top-k missing", "routing", "each token passes one routed expert",
            (substituted(_routed, topk="1", experts="1"),)),
    Mistake("all experts", "routing", "each token passes every expert", (substituted(_routed, topk="experts"),)),
    Mistake("active experts only", "routing", "only active experts are counted",
            (substituted(_routed, experts="topk"),)),
    Mistake("routed experts missing", "routing", "routed experts are left out", (left_out(_routed),)),
    Mistake("expert width = dense width", "expert width", "routed and shared experts are as wide as a dense layer",
            (substituted(lambda t: _routed(t) or _shared(t), moe="intermediate"),)),
    Mistake("routed width = dense width", "expert width", "routed experts are as wide as a dense layer",
            (substituted(_routed, moe="intermediate"),)),
    Mistake("shared experts missing", "shared", "shared experts are left out", (left_out(_shared),)),
    Mistake("one shared expert", "shared", "one shared expert is counted, not all",
            (substituted(_shared, shared="1"),)),
    Mistake("shared experts times top-k", "shared", "shared experts are counted top-k times",
            (substituted(_shared, shared="topk*shared"),)),
    Mistake("as many models as experts", "routing", "attention, norms and tables are counted once per expert: "
            "8 x 7.24e9",
            (TermChange(_repeated, lambda t: Fraction(_experts_of(t))), left_out(_part("router"))),
            metrics=frozenset({"params", "weight_bytes"}), if_any=_routed),
    Mistake("router missing", "router", "the router is left out", (left_out(_part("router")),)),
    Mistake("MoE as a dense FFN", "layers", "layers with experts are counted as dense layers",
            (left_out(lambda t: t.mixture),), adds=stands_for("dense for mixture")),
    MistakeSeries("dense-first ignored, dense MLPs as experts", "every layer has experts", _dense_for_experts),
    Mistake("gate matrix missing", "gate", "MLPs have two matrices, no gate",
            (left_out(_part("gate")), times(_routed, Fraction(2, 3)))),
)  # fmt: skip


# --- Views, batch, sizes ---------------------------------------------------------------------------------------------


def _views(terms: ClaimTerms, _: Mapping[str, int]) -> Iterator[Mistake]:
    """Yield the mistakes of omitting or doubling a call outside of the decoder, such as a view of an image."""
    calls = sorted({t.invocation for t in terms if not t.text and t.counted})
    for name in calls:

        def inside(t: ClaimTerm, name: str = name) -> bool:
            return not t.text and t.invocation == name

        if len(calls) > 1 or any(t.text for t in terms):
            what = f"the {name} view is not counted"
            yield Mistake(f"view missing: {name}", f"view {name}", what, (left_out(inside),))
        what = f"the {name} view is counted twice"
        yield Mistake(f"view twice: {name}", f"view {name}", what, (times(inside, 2),))


def _one_of_batch(term: ClaimTerm) -> Fraction | None:
    """Return the cost of one sample as a factor on the batch's; the views ``n`` of all samples are divided by B."""
    return substitute(term, B="1", n="n / B") if term.expr else Fraction(1, term.values["B"])


def _sizes(terms: ClaimTerms, _: Mapping[str, int]) -> Iterator[Mistake]:
    """Yield the mistakes of confusing two sizes of the configuration, for each tower with both."""
    prefixes = sorted({n.removesuffix("_head_dim") for t in terms for n in t.values if n.endswith("_head_dim")})
    for p in prefixes:

        def here(t: ClaimTerm, tower: str = p) -> bool:
            return t.tower == tower

        what = f"{p} heads are taken to be hidden / heads wide"
        wide = substituted(here, head_dim="hidden / heads")
        yield Mistake(f"head_dim = hidden / heads: {p}", "head_dim", what, (wide,))
        what = "every query head has its own K/V"
        yield Mistake(f"GQA ignored: {p}", "gqa", what, (substituted(here, kv_heads="heads"),))


VIEWS: Final[MistakeTable] = (
    MistakeSeries("view missing: VIEW, view twice: VIEW", "a view is not counted, or twice", _views, NOT_STAGE_WIDE),
    Mistake("batch forgotten", "batch", "one of the batch is counted, not all",
            (TermChange(lambda t: "B" in t.values, _one_of_batch),), metrics=NOT_STAGE_WIDE),
    MistakeSeries("head_dim = hidden / heads: TOWER, GQA ignored: TOWER",
                  "heads are hidden / heads wide; every query head has its own K/V", _sizes),
)  # fmt: skip


# --- Vector work and parameters --------------------------------------------------------------------------------------


def _positions(term: ClaimTerm) -> bool:
    return term.part == "positions" or term.owner in ("position_embedding", "class_and_positions")


def _without_bias(term: ClaimTerm) -> Fraction | None:
    parts = bias_of(term.expr) if term.expr else None
    if parts is None:
        return None
    weights, bias = (Fraction(compile_expression(p).run(term.values)) for p in parts)
    return weights / (weights + bias)


REST: Final[MistakeTable] = (
    Mistake("norms counted", "vector", "norms are counted as FLOPs", adds=stands_for("norms"), metrics=FLOPS),
    Mistake("norms at 1", "vector", "norms are counted as one operation per element",
            adds=stands_for("norms at 1"), metrics=FLOPS),
    Mistake("vector work counted", "vector", "norms, softmax, activations, rotary and residuals are counted as FLOPs",
            adds=stands_for("norms", "vector"), metrics=FLOPS),
    Mistake("biases counted", "biases", "biases are counted as FLOPs", adds=stands_for("biases"),
            metrics=FLOPS),
    Mistake("attention missing", "attention", "scores and weighted sum of attention are left out",
            (left_out(lambda t: t.scores),), metrics=FLOPS),
    Mistake("embedding missing", "embedding missing", "the embedding is left out", (left_out(lambda t: t.table),),
            metrics=NOT_FLOPS),
    Mistake("norms missing", "norms missing", "norms are left out", (left_out(lambda t: t.norm),), metrics=NOT_FLOPS),
    Mistake("position tables missing", "position tables missing", "position tables are left out",
            (left_out(_positions),), metrics=NOT_FLOPS),
    Mistake("biases missing", "biases", "biases are left out",
            (TermChange(lambda t: t.owner in BIASED, _without_bias),),
            metrics=NOT_FLOPS),
    Mistake("unexecuted counted", "unexecuted", "parameters that nothing runs are counted",
            adds=stands_for("unexecuted"), metrics=NOT_FLOPS),
)  # fmt: skip


_DIGITS: Final = 24
"""Number of significant binary digits of a float32."""
_CLASSES: Final = ("", ", two classes")
"""Suffixes of causes: for the model's own number of classes, and for two classes, the transformers default."""


def rule_terms(capture: Capture, ledger: Ledger, claim: PublishedClaim) -> list[ClaimTerm]:
    """Return uncounted terms for rules of thumb, such as 2 FLOPs per parameter and token, for a one-stage model."""
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
    """Return the mistake of using a rule of thumb in place of the count."""
    rule = stands_for(extra)
    return Mistake(cause, "rule", what, (left_out(_no_rule),), adds=rule, metrics=FLOPS, if_any=rule)


def _no_rule(term: ClaimTerm) -> bool:
    return term.owner != "rule"


def _total_flos(classes: str) -> Iterator[Mistake]:
    extra = f"total_flos{classes}"
    rule = stands_for(extra)
    what = f"6 N D with D = elements of the input, summed in float32 as trainers do{classes}"
    for cause, said, part in (
        (extra, what, Fraction(1)),
        (f"total_flos of one pass{classes}", f"a third of total_flos{classes}", Fraction(1, 3)),
    ):
        yield Mistake(
            cause, "rule", said, (left_out(_no_rule), times(rule, part)), adds=rule, metrics=FLOPS, if_any=rule,
            excludes=("6ND", "backward alone", "doubled", "mac"),
        )  # fmt: skip


RULES_OF_THUMB: Final[MistakeTable] = (
    _replaced("2NT", "2ND: all", "2 N D with N = all parameters"),
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
    """Return the number of parameters that the model would lose with two-class classifiers."""
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
    """Return (node, rows) for each matrix product with weights in a layer.

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
