"""Group the cost nodes of a claim into terms, which known mistakes change.

A term is a group of equal nodes of one metric. It is *on* if the truth counts it. Terms that are *off* represent work
that a wrong model may count: the embedding as a matrix product, norms, biases, or dense layers in place of experts. A
cause switches terms on and multiplies their values. The role of a term names its place in the model, as the formulas
do: ``text.layer.mlp.gate``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import count, takewhile
from types import MappingProxyType

import sympy

from costproof.algebra.evaluation import compile_expression, shared_values
from costproof.algebra.identity import free_symbols
from costproof.algebra.series import CACHED
from costproof.algebra.symbols import parse
from costproof.claims.types import TOTAL, PublishedClaim
from costproof.compare.patterns import Mask, matches, template
from costproof.ledger.capture import Capture
from costproof.ledger.mesh import ON_ONE_DEVICE, on_one_device
from costproof.ledger.metrics import KEPT_FLOPS, Metric
from costproof.ledger.node import CostNode, Ledger, bearing, total
from costproof.ledger.workload import FLOAT_BYTES

BIASED = frozenset({"linear", "conv2d", "patch_embedding"})
"""Names of the formulas of layers that may have a bias."""

MESH = tuple(ON_ONE_DEVICE)
"""Symbols that describe one of several ranks and have one value in all calls."""
SHARED_TABLE = "shared"
"""Role of an embedding table that an encoder and a decoder read."""
_ATTENTION = frozenset({"attention", "latent_attention", "packed_attention"})
"""Names of the formulas of attention's scores and weighted sum over full keys and values."""

LONGEST_NEW = "longest row"
LONGEST_CONTEXT = "longest context of a row"
"""Keys of two sizes next to a batch's symbols: the most new tokens of a row, and the most with its past."""

CallValues = Mapping[tuple[str, str], Mapping[str, int]]
"""Values of the symbols by (stage, invocation); ``("", "")`` has those with one value in all invocations."""
Windows = Mapping[tuple[str, str], int]
"""Attention window, or chunk size, of a layer in tokens, by (stage, module)."""


@dataclass(frozen=True, slots=True)
class ClaimTerm:
    """A summand of a claimed quantity: equal cost nodes, or uncounted work that a wrong cost model may count."""

    stage: str
    invocation: str
    role: str
    owner: str
    kind: str
    value: Fraction
    """The metric, summed over the nodes."""
    expr: str
    """Expression for the cost of one node, proportional to ``value``; empty if unknown."""
    values: Mapping[str, int]
    """Values of the symbols in the term's invocation."""
    count: int
    """Number of cost nodes."""
    evidence: tuple[str, ...]
    """Ids of the cost nodes."""
    counted: bool = True
    """Whether the true number includes the term."""
    stands_for: str = ""
    """Name of the work that an uncounted term represents."""
    products: bool = True
    """Whether the value counts multiply-accumulates, so that counting in MACs halves it."""
    window: int = 0
    """Attention window of the layer in tokens, with the query's own, if shorter than the run; 0 without a limit."""
    kept: Fraction = Fraction(1)
    """Fraction of the term's FLOPs that masks leave; 1 for other metrics, or if it is unknown."""
    chunk: int = 0
    """Size in tokens of the chunks within which a prompt's tokens attend; 0 without chunks."""

    @property
    def tower(self) -> str:
        """Return the tower (submodel) of the term, also the prefix of its symbols: ``text``."""
        return self.role.partition(".")[0]

    @property
    def part(self) -> str:
        """Return the last component of the term's role: ``gate`` for ``text.layer.mlp.gate``."""
        return self.role.rpartition(".")[2]

    @property
    def table(self) -> bool:
        """Return whether the term is a cost of an embedding table, according to its role."""
        return self.part == "embedding" or self.role == SHARED_TABLE

    @property
    def shared_experts(self) -> bool:
        """Return whether the term is a cost of experts that process every token (shared experts)."""
        return self.within("shared") and self.role != SHARED_TABLE

    def within(self, *words: str) -> bool:
        """Return whether any of these words is a component of the term's role."""
        return not set(words).isdisjoint(self.role.split("."))

    @property
    def norm(self) -> bool:
        """Return whether the term belongs to a normalisation layer."""
        return is_norm(self.owner)

    @property
    def scores(self) -> bool:
        """Return whether the term is attention's scores and weighted sum, in a formula or as graph operators."""
        return self.products and (
            self.owner in _ATTENTION or "scaled_dot_product" in self.kind or (self.kept != 1 and not self.role)
        )

    @property
    def prompt_scores(self) -> bool:
        """Return whether the term is the S x S scores and the weighted sum of a prompt's attention."""
        return self.scores and "S" in self.values and (self.part == "attention" or self.kept != 1)

    @property
    def past(self) -> int:
        """Return the number of cached tokens that a prompt's attention reads; a layer with a window W keeps W - 1."""
        cached = self.values.get(CACHED.name, 0)
        return min(cached, self.window - 1) if self.window else cached

    @property
    def pairs(self) -> int:
        """Return the number of query-key pairs of a prompt, including masked ones: S (S + past)."""
        return self.values["S"] * (self.values["S"] + self.past)

    @property
    def in_rows(self) -> bool:
        """Return whether the term belongs to a batch of unequal rows, packed into S tokens."""
        return "R_1" in self.values

    def over_rows(self, name: str) -> int:
        """Return a count summed over batch rows: ``B`` sequences, ``SS`` and ``SC`` pairs of new and cached tokens."""
        kinds = takewhile(self.values.__contains__, (f"{name}_{kind}" for kind in count(1)))
        return sum(self.values[symbol] for symbol in kinds)

    @property
    def text(self) -> bool:
        """Return whether the term belongs to a decoder, in a prompt or in decode steps."""
        return tokens_of(self.values) is not None

    @property
    def mixture(self) -> bool:
        """Return whether the term belongs to a mixture: routed experts, shared experts or router."""
        return self.within("experts", "router") or self.shared_experts


def is_norm(owner: str) -> bool:
    """Return whether the name of a formula or module class is that of a norm."""
    return "norm" in owner.lower()


def is_table(node: CostNode) -> bool:
    """Return whether a node belongs to an embedding table, by role or module class."""
    return node.role.endswith(".embedding") or node.role == SHARED_TABLE or node.owner == "Embedding"


def tokens_of(values: Mapping[str, int]) -> int | None:
    """Return the number of tokens that a decoder processes in an invocation: B S for a prompt, B N for N steps.

    ``None`` if the symbols are not those of a decoder.
    """
    each = values.get("S", values.get("N"))
    return None if each is None else values["B"] * each


def in_scope(node: CostNode, claim: PublishedClaim) -> bool:
    """Return whether a claim covers a node, by stage, invocation and module."""
    return (
        (claim.stage in (TOTAL, node.stage))
        and (not claim.invocation or node.invocation in ("", claim.invocation))
        and (not claim.module or matches(node.module, claim.module))
    )


def nodes_of(ledger: Ledger, claim: PublishedClaim, metric: Metric) -> list[CostNode]:
    """Return the nodes that a claim covers and that have a cost.

    A module that occurs in two stages is returned once if the metric belongs to the module, such as parameters.
    """
    return [n for n in bearing((n for n in ledger.nodes if in_scope(n, claim)), metric) if n.cost(metric) != 0]


def terms_of(capture: Capture, ledger: Ledger, claim: PublishedClaim) -> tuple[ClaimTerm, ...]:
    """Return all terms of a claim: those in the true number, and those that a wrong cost model may count."""
    values = _values(capture)
    windows, chunks = _windows(capture, ledger, values)
    nodes = nodes_of(ledger, claim, claim.metric)
    real = _grouped(nodes, claim.metric, values, windows, chunks)
    extras: list[ClaimTerm] = []
    if claim.metric == "flops":
        extras += _vector(capture, ledger, claim, values)
        extras += _embedding(ledger, claim, values)
        extras += _biases(ledger, nodes, values)
        extras += _rules(ledger, claim, values)
    if claim.metric == "weight_read_bytes":
        extras += _tables(ledger, nodes, values)
    extras += _in_place(dense_terms(real), (i for i in real if i.part == "experts"), "dense for mixture")
    extras += _in_place((i for i in real if i.mixture), dense_terms(real), "mixture for dense")
    if claim.metric == "kv_cache_bytes":
        extras += _beyond(ledger, claim, values, windows)
    if claim.metric == "comm_bytes":
        payloads = nodes_of(ledger, claim, "comm_payload_bytes")
        extras += _off(_grouped(payloads, "comm_payload_bytes", values), "payload")
    if claim.metric == "params":
        extras += _unexecuted(capture, ledger, claim)
    return (*real, *extras)


def dense_terms(terms: Iterable[ClaimTerm]) -> list[ClaimTerm]:
    """Return the terms of dense MLPs in towers that also have experts."""
    terms = list(terms)
    mixed = {i.tower for i in terms if i.part == "experts"}
    return [i for i in terms if i.counted and i.owner == "linear" and i.within("mlp") and i.tower in mixed]


def shared_symbols(capture: Capture) -> dict[str, int]:
    """Return the values of the configuration's symbols, and of symbols that are equal in all invocations."""
    return {**capture.target.symbols, **shared_values(i.symbols for i in capture.invocations)}


def _values(capture: Capture) -> CallValues:
    everywhere = shared_symbols(capture)
    common = {
        n: everywhere[n] for n in (*capture.target.symbols, "B", "b", *on_one_device(everywhere)) if n in everywhere
    }
    found: dict[tuple[str, str], Mapping[str, int]] = {(i.stage, i.id): capture.values(i) for i in capture.invocations}
    if rows := capture.workload.rows:
        longest = {LONGEST_NEW: max(r.new for r in rows), LONGEST_CONTEXT: max(r.past + r.new for r in rows)}
        found = {place: {**known, **longest} for place, known in found.items()}
    return {("", ""): common, **found}


def _windows(capture: Capture, ledger: Ledger, values: CallValues) -> tuple[Windows, Windows]:
    """Return the attention windows of modules with a window, and the chunk sizes of modules with chunked prompts.

    A formula contains the window. In a graph, the pairs of a query and a key that the mask leaves must be those of a
    window or chunk that the configuration names.
    """
    windows: dict[tuple[str, str], int] = {}
    chunks: dict[tuple[str, str], int] = {}
    sizes = capture.target.symbols
    for node in ledger.nodes:
        name, place = f"{node.role.partition('.')[0]}_window", (node.stage, node.module)
        if name in sizes and any(name in free_symbols(e) for e in node.exprs.values()):
            windows[place] = sizes[name]
        known = values.get((node.stage, node.invocation), {})
        tokens, cached = known.get("S", 0), known.get(CACHED.name, 0)
        share = Fraction(1) if node.role else _kept(node, "flops")
        for name, size in sizes.items() if share != 1 else ():
            limits = 1 < size < tokens + cached
            kept = min(cached, size - 1)  # a window's layer may keep no more of the past
            seen = {share * tokens * (tokens + past) for past in (cached, kept)}
            if limits and "window" in name and band(tokens, size, cached) in seen:
                windows[place] = size
            if limits and "chunk" in name and share * tokens * (tokens + cached) == triangles(tokens, size, cached):
                chunks[place] = size
    return windows, chunks


def causal(tokens: int, past: int = 0) -> int:
    """Return the number of query-key pairs of causal attention by n tokens after a past of p: n p + n (n + 1) / 2."""
    return tokens * past + tokens * (tokens + 1) // 2


def band(tokens: int, window: int, past: int = 0) -> int:
    """Return the number of (query, key) pairs if each query sees itself and at most ``window`` - 1 tokens before it.

    Each query sees ``window`` keys, itself included; the first queries see fewer, unless a past is before them.
    """
    short = max(0, min(tokens, window - 1 - past))
    return causal(short, past) + (tokens - short) * window


def triangles(tokens: int, chunk: int, past: int = 0) -> int:
    """Return the number of query-key pairs of causal attention within chunks; the first and last may be shorter."""

    def until(end: int) -> int:
        whole, rest = divmod(end, chunk)
        return whole * causal(chunk) + causal(rest)

    return until(past + tokens) - until(past)


def _grouped(
    nodes: Iterable[CostNode],
    metric: Metric,
    values: CallValues,
    windows: Windows = MappingProxyType({}),
    chunks: Windows = MappingProxyType({}),
) -> list[ClaimTerm]:
    groups: dict[tuple[str, str, Mask, str, str, str, int, int, int, Fraction], list[CostNode]] = {}
    for node in nodes:
        if (one := node.cost(metric)) is None:
            continue  # no truth to compare with
        mask, _ = template(node.module)
        place = node.stage, node.module
        key = (node.stage, node.invocation, mask, node.kind, node.owner, node.exprs.get(metric, ""), one,
               windows.get(place, 0), chunks.get(place, 0), _kept(node, metric))  # fmt: skip
        groups.setdefault(key, []).append(node)
    return [
        ClaimTerm(
            stage=stage,
            invocation=invocation,
            role=members[0].role,
            owner=owner,
            kind=kind,
            value=Fraction(one * len(members)),
            expr=expr,
            values=values.get((stage, invocation), values["", ""]),
            count=len(members),
            evidence=(f"{members[0].id} x {len(members)}" if len(members) > 1 else members[0].id,),
            window=window,
            chunk=chunk,
            kept=kept,
        )
        for (stage, invocation, _, kind, owner, expr, one, window, chunk, kept), members in groups.items()
    ]


def _kept(node: CostNode, metric: Metric) -> Fraction:
    """Return the fraction of a node's FLOPs that masks leave; 1 for other metrics, or if unknown."""
    every, kept = node.cost("flops"), node.cost(KEPT_FLOPS) if KEPT_FLOPS in node.costs else None
    return Fraction(kept, every) if metric == "flops" and every and kept is not None else Fraction(1)


def _off(terms: Iterable[ClaimTerm], extra: str) -> list[ClaimTerm]:
    """Return uncounted copies of terms, which stand for additional work named ``extra``."""
    return [replace(i, counted=False, stands_for=extra, products=False) for i in terms]


def _vector(capture: Capture, ledger: Ledger, claim: PublishedClaim, values: CallValues) -> list[ClaimTerm]:
    """Return uncounted terms of element-wise work, with norms also at 1 and at 5 FLOPs per element."""
    nodes = nodes_of(ledger, claim, "vector_flops")
    norms = _grouped((n for n in nodes if is_norm(n.owner)), "vector_flops", values)
    rest = _grouped((n for n in nodes if not is_norm(n.owner)), "vector_flops", values)
    written = {(n.stage, n.invocation, n.module): n.cost("output_bytes") for n in ledger.nodes if not n.kind}
    ones, fives = {}, []
    for node in (n for n in nodes if is_norm(n.owner)):
        place = node.stage, node.invocation, node.module
        if (out := written.get(place)) is None:
            continue
        elements = out // FLOAT_BYTES[capture.workload.dtype]
        ones[place] = replace(node, costs={"vector_flops": elements}, exprs={})
        if node.owner == "layer_norm":
            fives.append(replace(node, costs={"vector_flops": 5 * elements}))
    found = _off(norms, "norms") + _off(rest, "vector") + _off(_grouped(fives, "vector_flops", values), "norms at 5")
    return found + _off(_grouped(ones.values(), "vector_flops", values), "norms at 1")


def _extra(node: CostNode, value: Fraction, known: Mapping[str, int], extra: str) -> ClaimTerm:
    """Return an uncounted term in the module of a node, which represents the work ``extra``."""
    return ClaimTerm(
        node.stage, node.invocation, node.role, node.owner, "", value, "", known, 1, (node.id,),
        counted=False, stands_for=extra,
    )  # fmt: skip


def _embedding(ledger: Ledger, claim: PublishedClaim, values: CallValues) -> list[ClaimTerm]:
    """Return an uncounted term for an embedding as a matrix product: 2 x tokens x entries x width FLOPs."""
    tables = {(n.stage, n.module): n for n in ledger.nodes if n.role.endswith(".embedding") and n.cost("params")}
    places = [
        (replace(node, invocation=invocation), known, tokens)
        for node in tables.values()
        for (stage, invocation), known in values.items()
        if stage == node.stage and (tokens := tokens_of(known)) is not None
    ]
    return [
        _extra(node, Fraction(2 * tokens * (node.cost("params") or 0)), known, "embedding")
        for node, known, tokens in places
        if in_scope(node, claim)
    ]


def _tables(ledger: Ledger, nodes: Iterable[CostNode], values: CallValues) -> list[ClaimTerm]:
    """Return uncounted terms for reading whole embedding tables in every step, like other weights."""
    size = {n.module: weight for n in ledger.nodes if (weight := n.cost("weight_bytes"))}
    read = [(n, values.get((n.stage, n.invocation), values["", ""])) for n in nodes if n.role.endswith(".embedding")]
    return [_extra(n, Fraction(known.get("N", 1) * size.get(n.module, 0)), known, "tables") for n, known in read]


def _biases(ledger: Ledger, nodes: Iterable[CostNode], values: CallValues) -> list[ClaimTerm]:
    """Return uncounted terms for bias additions."""
    owned = {n.module: n for n in ledger.nodes if n.exprs.get("params") and not n.invocation}
    found = []
    for node in nodes:
        parts = bias_of(owned[node.module].exprs["params"]) if node.module in owned else None
        if parts is None or node.owner not in BIASED:
            continue
        known = values[node.stage, node.invocation]
        weights, bias = (Fraction(compile_expression(p).run(known)) for p in parts)
        added = Fraction(node.cost("flops") or 0) / (2 * weights) * bias
        # The expression remains that of the matrix product: both are proportional to the rows, and only ratios matter.
        found.append(replace(node, costs={"flops": int(added)}))
    return _off(_grouped(found, "flops", values), "biases")


@lru_cache(maxsize=1024)
def bias_of(expr: str) -> tuple[sympy.Expr, sympy.Expr] | None:
    """Split a layer's parameter formula into weights (terms of the highest degree) and biases (all other terms)."""
    addends = sympy.Add.make_args(sympy.expand(parse(expr)))
    degrees = [sympy.Poly(t).total_degree() for t in addends if t.free_symbols]
    if len(addends) != len(degrees) or len(set(degrees)) < 2:
        return None
    top = max(degrees)
    weights = sympy.Add(*(t for t, d in zip(addends, degrees, strict=True) if d == top))
    return weights, sympy.Add(*addends) - weights


def _in_place(given: Iterable[ClaimTerm], taken: Iterable[ClaimTerm], extra: str) -> list[ClaimTerm]:
    """Return uncounted terms for as many ``given`` layers as there are ``taken`` ones, as experts for dense MLPs."""
    layers = {(i.stage, i.invocation): i.count for i in taken}
    return [
        replace(i, value=i.value * layers[i.stage, i.invocation] / i.count, counted=False, stands_for=extra)
        for i in given
        if (i.stage, i.invocation) in layers
    ]


RULES: tuple[tuple[str, str], ...] = (
    ("all", "all parameters of the decoder"),
    ("all but embedding", "all parameters of the decoder but the embedding"),
    ("active", "active parameters of the decoder"),
    ("active but embedding", "active parameters of the decoder but the embedding"),
)


def _rules(ledger: Ledger, claim: PublishedClaim, values: CallValues) -> list[ClaimTerm]:
    """Return uncounted terms of 2 x parameters x tokens, for a claim on whole stages of a decoder."""
    found = []
    for (stage, invocation), known in values.items():
        tokens = tokens_of(known)
        if claim.module or tokens is None or claim.stage not in (TOTAL, stage):
            continue
        owned = [n for n in ledger.nodes if n.stage == stage]
        table = total((n for n in owned if is_table(n)), "params")
        every, active = total(owned, "params"), total(owned, "params_active")
        if table is None or every is None or active is None:
            continue
        for (name, _), parameters in zip(RULES, (every, every - table, active, active - table), strict=True):
            found.append(
                ClaimTerm(
                    stage, invocation, "", "rule", "", Fraction(2 * tokens * parameters), "", known, 1,
                    (f"{stage}[{invocation}]",), counted=False, stands_for=f"2ND {name}",
                )
            )  # fmt: skip
    return found


def _beyond(ledger: Ledger, claim: PublishedClaim, values: CallValues, windows: Windows) -> list[ClaimTerm]:
    """Return uncounted terms for cache growth in layers whose window is already full.

    The truth counts none, because such a layer drops one token for each that it appends.
    """
    found = []
    for node in nodes_of(ledger, claim, "kv_read_bytes"):
        window, known = windows.get((node.stage, node.module), 0), values.get((node.stage, node.invocation), {})
        read = node.cost("kv_read_bytes")
        # Each step reads the whole window except the token that it computes itself.
        if window > 1 and read and known.get("P", 0) >= window - 1:
            found.append(replace(node, costs={"kv_cache_bytes": read // (window - 1)}, exprs={}))
    return _off(_grouped(found, "kv_cache_bytes", values), "beyond the window")


def _unexecuted(capture: Capture, ledger: Ledger, claim: PublishedClaim) -> list[ClaimTerm]:
    """Return uncounted terms for checkpoint parameters that no code runs."""
    checkpoint = capture.by_source.get("checkpoint")
    known = {n.module for n in ledger.nodes if n.cost("params")}
    return [
        replace(_extra(n, Fraction(n.cost("params") or 0), {}, "unexecuted"), evidence=(f"checkpoint: {n.id}",))
        for n in (nodes_of(checkpoint, claim, "params") if checkpoint is not None else ())
        if n.module not in known
    ]
