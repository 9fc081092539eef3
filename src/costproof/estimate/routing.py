"""Replace the upper bound of expert weight traffic by the traffic of an assumed or given routing.

A token chooses k different experts out of E. T tokens together touch at most min(E, T k) experts, whatever the router
does. If every choice of k experts is equally likely and tokens choose independently, a token leaves out one given
expert with probability 1 - k/E, and all tokens do with probability (1 - k/E)^T, so that on average

    E (1 - (1 - k/E)^T)

experts are touched. A trained router does neither; the experts that it touches are counted from its choices. Of the
E/g experts of one of g ranks, whose tokens are T together, (E/g) (1 - (1 - k/E)^T) are touched on average: the same for
each rank, whatever groups the router is limited to, since it needs only that a token leaves out each expert alike. The
time of a rank is a sum of maxima of products and bytes, convex in both, so that its mean is at least the time of these
means (Jensen's inequality), and so is the mean time of the slowest rank.

If ranks share experts, a token is sent to those that it chose. Of g ranks (or nodes) with E/g experts each, a token
reaches a given one with probability 1 - C(E - E/g, k) / C(E, k) if every choice is equally likely. If its experts are
first limited to some groups, the same holds among the experts of these groups.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from hashlib import sha256
from math import ceil, comb
from pathlib import Path
from typing import Any, Final, Literal

from costproof.algebra.symbols import parse
from costproof.estimate.hardware import machine
from costproof.ledger.baseline import Folded
from costproof.ledger.errors import BadInput
from costproof.ledger.files import content, json_in, read_json
from costproof.ledger.mesh import DISPATCH, EP_BATCHES, PAIRS, Dispatch, Mesh, own_batch, pairs_of, shard
from costproof.ledger.metrics import FLOOR, UNFUSED, UNPACKED, Metric
from costproof.ledger.node import CostNode, Ledger, exact_sum
from costproof.ledger.workload import Workload

Routing = Literal["bound", "uniform", "given"]
ROUTINGS: Final[tuple[Routing, ...]] = ("bound", "uniform")
"""Names of the routing assumptions that need no file."""
EXPERTS: Final = "experts"
"""Last component of the role of a layer's routed experts."""
READ: Final[Metric] = "weight_read_bytes"


@dataclass(frozen=True, slots=True)
class TouchedExperts:
    """The number of experts that one layer reads in one stage."""

    stage: str
    part: str
    layer: int
    """Index among the layers with experts, from 0."""
    experts: int
    """Experts that the rank holds."""
    top_k: int
    tokens: int
    """Tokens per call that choose among the experts: of all batches that ranks with the other experts have."""
    calls: int
    touched: str
    """Mean number of experts that a call reads, as an exact text: ``64*(1 - (29/32)**913)``, ``127/2``."""
    bytes: int
    """Weight bytes that all calls read, rounded up."""


@dataclass(frozen=True, slots=True)
class ExpertLoad:
    """What the tokens of a given routing choose of the experts of one rank, in one call of a layer."""

    pairs: int
    """Pairs of a token and an expert of the rank."""
    touched: int
    """Number of the rank's experts that at least one token chooses."""


@dataclass(frozen=True, slots=True)
class RoutedRank:
    """Work of the routed experts of one rank, and what it sends, under a given routing; all calls of a stage."""

    stage: str
    rank: int
    pairs: int
    """Pairs of a token and an expert that the rank's experts process, in all layers and calls."""
    touched: str
    """Mean number of the rank's experts whose weights a layer reads in a call, as an exact fraction: ``127/2``."""
    read_bytes: int
    """Bytes of routed experts' weights that are read, in all layers and calls together."""
    expert_flops: int
    """FLOPs of the matrix products of routed experts, in all layers and calls together."""
    sent: dict[str, int] = field(default_factory=dict)
    """Dispatch method -> bytes that the rank sends, both to dispatch tokens to experts and to combine results.

    Empty if all ranks have the same tokens, so that none are sent.
    """


def apply_routing(
    folded: Folded,
    ledger: Ledger,
    sizes: Mapping[tuple[str, str], Mapping[str, int]],
    routing: str | os.PathLike[str],
) -> tuple[Folded, Routing, tuple[TouchedExperts, ...]]:
    """Return the counts of a run in which only the expert weights that a routing reads are counted as read.

    Args:
        ledger: the formulas of the run, in symbols.
        sizes: (stage, invocation) -> the values of its symbols.
        routing: ``uniform``, or a JSON file as :func:`given_experts` reads it.

    Returns:
        The counts, the kind of the routing, and the experts that each layer touches.

    Raises:
        BadInput: the run has no routed experts, or the file is not a routing of it.
    """
    data = None if routing in ROUTINGS else read_json(Path(routing), what="routing")
    found = _touched_experts(ledger, sizes, data, os.fspath(routing))
    if not found:
        raise BadInput("the model has no routed experts", where="--routing", fix="leave out --routing")
    return with_reads(folded, found), "uniform" if data is None else "given", tuple(found)


def with_reads(folded: Folded, found: Sequence[TouchedExperts]) -> Folded:
    """Return the counts of a run in which layers read these experts.

    Raises:
        BadInput: the counts do not separate the routed experts.
    """
    rows = {stage: dict(parts) for stage, parts in folded.rows.items()}
    for stage, part in dict.fromkeys((t.stage, t.part) for t in found):
        read = sum(t.bytes for t in found if (t.stage, t.part) == (stage, part))
        kinds = rows.get(stage, {}).get(part, {})
        if READ not in kinds.get("", {}):
            raise BadInput(
                "the counts of this source do not separate the routed experts",
                where=f"{stage}, {part}",
                fix="--source analytic",
            )
        before = kinds[""][READ]
        more = None if before is None else read - before
        rows[stage][part] = {**kinds, "": {**_increase(kinds[""], UNFUSED, more), READ: read}}
        if (spared := kinds[""].get(UNPACKED)) and before:  # experts that are not read need no unpacking
            rows[stage][part][""][UNPACKED] = spared * read // before
        # These bytes also cross the boundary of the stage, which one row of the stage reports.
        rows[stage] = {
            one: {kind: _increase(costs, FLOOR, more) for kind, costs in others.items()}
            for one, others in rows[stage].items()
        }
    return replace(folded, rows=rows)


def no_formulas_error() -> BadInput:
    """Return the error for a run whose expert weights cannot be separated from its other weights."""
    fix = "leave out --routing: then each call reads min(experts, tokens x top_k) experts"
    return BadInput("no formulas describe this run, so its routing cannot be changed", where="--routing", fix=fix)


def has_experts(ledger: Ledger) -> bool:
    """Return whether formulas have routed experts."""
    return any(node.role.rpartition(".")[2] == EXPERTS for node in ledger.nodes)


def _increase(costs: Mapping[Metric, int | None], metric: Metric, more: int | None) -> dict[Metric, int | None]:
    """Return the costs with an amount added to one metric, if the costs have that metric."""
    return {m: exact_sum((x, more)) if m == metric else x for m, x in costs.items()}


def _touched_experts(
    ledger: Ledger, sizes: Mapping[tuple[str, str], Mapping[str, int]], data: Any, where: str
) -> list[TouchedExperts]:
    layers: dict[str, list[CostNode]] = {}
    for node in ledger.nodes:
        called = (node.stage, node.invocation) in sizes  # formulas of an uneven batch have stages that never are
        if called and node.role.rpartition(".")[2] == EXPERTS and not node.kind and READ in node.exprs:
            layers.setdefault(node.stage, []).append(node)
    if layers and data is not None:
        check_stages(data, layers, where)
    found = []
    for stage, nodes in layers.items():
        for layer, node in enumerate(nodes):
            values = sizes[stage, node.invocation]
            held, rows, per_expert, rest = _weight_line(node.exprs[READ], values)
            tower, calls = node.role.partition(".")[0], values.get("N", 1)
            experts, top_k = values[f"{tower}_experts"], values[f"{tower}_topk"]
            if calls == 0:
                continue
            tokens = rows // top_k
            if data is None:
                mean, text = uniform_experts(experts, top_k, tokens, held), uniform_text(experts, top_k, tokens, held)
            else:
                mean = given_experts(data, stage, (layer, len(nodes)), (experts, top_k, tokens, calls), where)
                text = str(mean)
            read = ceil(per_expert * mean + rest)
            found.append(TouchedExperts(stage, node.role, layer, held, top_k, tokens, calls, text, read))
    return found


def touched_of_rank(
    ledger: Ledger,
    sizes: Mapping[tuple[str, str], Mapping[str, int]],
    layers: RoutedLayers,
    loads: Mapping[str, Sequence[Sequence[ExpertLoad]]],
    tokens: Mapping[str, int],
    first: int = 0,
) -> list[TouchedExperts]:
    """Return the experts that the layers of a rank read under a given routing.

    Args:
        ledger: the formulas of the rank, in symbols.
        sizes: (stage, invocation) -> the values of its symbols.
        layers: sizes of the layers, all experts of all ranks among them.
        loads: stage -> call -> layer with experts -> load of the rank.
        tokens: stage -> tokens of a call that choose among the experts of the rank and others.
        first: number of layers with experts in pipeline stages before the rank's.
    """
    found = []
    for stage, calls in loads.items():
        nodes = [n for n in ledger.nodes if n.stage == stage and n.role.rpartition(".")[2] == EXPERTS and not n.kind]
        for layer, node in enumerate(n for n in nodes if READ in n.exprs):
            held, _, per_expert, rest = _weight_line(node.exprs[READ], sizes[stage, node.invocation])
            mean = Fraction(sum(call[layer].touched for call in calls), len(calls))
            of_call = layers.top_k, tokens[stage], len(calls)
            read = ceil(per_expert * mean + rest)
            found.append(TouchedExperts(stage, node.role, first + layer, held, *of_call, str(mean), read))
    return found


def _weight_line(source: str, values: Mapping[str, int]) -> tuple[int, int, Fraction, Fraction]:
    """Return the weight bytes of all calls as a linear function of the number of experts that a call reads.

    The formula contains min(experts, rows) as the bound of the experts that a call touches, or of unequal steps the sum
    of these bounds.

    Returns:
        Experts, rows of a call (0 of unequal ones), bytes per touched expert of a call, and the remaining bytes.
    """
    import sympy

    expr = parse(source)
    for sums in [s for s in expr.free_symbols if s.name.startswith("text_experts_read")]:
        known = {s: values[s.name] for s in expr.free_symbols - {sums}}
        rest, one = (int(expr.xreplace({**known, sums: sympy.Integer(n)})) for n in (0, 1))
        return values["text_experts"] // values["ep"], 0, Fraction((one - rest) * values["N"]), Fraction(rest)
    (bound,) = expr.atoms(sympy.Min)
    touched = sympy.Symbol("touched")
    numbers = {s: values[s.name] for s in expr.free_symbols}
    of_tokens = {"B", "ep_sequences", "slice_tokens"}
    grows = [a for a in bound.args if not of_tokens.isdisjoint(s.name for s in a.free_symbols)]
    held = [a for a in bound.args if a not in grows]
    line = sympy.Poly(expr.xreplace({bound: touched}).subs(numbers), touched)
    per_expert, rest = (line.coeff_monomial(touched**n) for n in (1, 0))
    return (
        int(held[0].subs(numbers)),
        int(grows[0].subs(numbers)),
        Fraction(int(per_expert.p), int(per_expert.q)),
        Fraction(int(rest.p), int(rest.q)),
    )


def uniform_experts(experts: int, top_k: int, tokens: int, held: int | None = None) -> Fraction:
    """Return E_r (1 - (1 - k/E)^T), the mean number of a rank's E_r experts that uniform routing of T tokens reads.

    Args:
        experts: number of experts E among which tokens choose.
        top_k: experts k of a token.
        tokens: number of tokens T, those of all ranks that send some to the rank.
        held: number of experts E_r of the rank; ``None`` for all.
    """
    return (experts if held is None else held) * (1 - Fraction(experts - top_k, experts) ** tokens)


def uniform_text(experts: int, top_k: int, tokens: int, held: int | None = None) -> str:
    """Return :func:`uniform_experts` as an unevaluated text, since the exact value has as many digits as tokens."""
    left = Fraction(experts - top_k, experts)
    return f"{experts if held is None else held}*(1 - ({left})**{tokens})"


def check_stages(data: Any, stages: Iterable[str], where: str) -> None:
    """Check that a routing file has entries only for stages with routed experts.

    Raises:
        BadInput: there is one.
    """
    known = tuple(stages)
    if isinstance(data, dict) and (more := [key for key in data if key not in known]):
        expected = " or ".join(known)
        raise BadInput("unknown stage, or it has no routed experts", where=where, expected=expected, got=more[0][:60])


def given_experts(
    data: Any, stage: str, place: tuple[int, int], sizes: tuple[int, int, int, int], where: str
) -> Fraction:
    """Return the mean number of experts that a layer reads per call, according to a routing file.

    Args and errors are those of :func:`given_choices`.
    """
    every = [*given_choices(data, stage, place, sizes, where)]
    return Fraction(sum(len({expert for row in rows for expert in row}) for rows in every), len(every))


def given_choices(
    data: Any, stage: str, place: tuple[int, int], sizes: tuple[int, int, int, int], where: str
) -> Iterator[list[list[int]]]:
    """Yield, for each call of a stage, the experts of every token in a layer, according to a routing file.

    Args:
        data: stage -> calls -> layers with experts -> tokens -> the numbers of the experts that the token passes.
        place: index of the layer, and number of layers.
        sizes: experts, top-k, tokens of a call, calls.
        where: the file, for errors.

    Raises:
        BadInput: the routing does not match the run.
    """
    layer, layers = place
    experts, top_k, tokens, calls = sizes
    if not isinstance(data, dict) or stage not in data:
        raise BadInput(
            "the routing has no entry for this stage", where=f"{where}, $.{stage}", expected="a list of calls"
        )
    for i, call in enumerate(_list(data[stage], calls, "calls", f"{where}, $.{stage}")):
        at = f"{where}, $.{stage}[{i}]"
        mine = _list(call, layers, "layers with experts", at)[layer]
        rows = _list(mine, tokens, "tokens", f"{at}[{layer}]")
        for j, row in enumerate(rows):
            _check_choice(row, experts, top_k, f"{at}[{layer}][{j}]")
        yield rows


def _list(value: Any, length: int, what: str, where: str) -> list[Any]:
    if not isinstance(value, list) or len(value) != length:
        got = f"{len(value):,}" if isinstance(value, list) else type(value).__name__
        raise BadInput(f"wrong number of {what}", where=where, expected=f"{length:,}", got=got)
    return value


def _check_choice(row: Any, experts: int, top_k: int, where: str) -> None:
    """Check the list of experts that a routing file gives for one token."""
    if (
        not isinstance(row, list)
        or len(row) != top_k
        or not all(type(e) is int and 0 <= e < experts for e in row)
        or len({*row}) < top_k
    ):
        expected = f"{top_k} different numbers from 0 to {experts - 1}"
        raise BadInput("invalid choice of experts", where=where, expected=expected, got=str(row)[:60])


# --- Tokens for the experts of other ranks ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RoutedLayers:
    """Sizes of identical mixture-of-experts layers, and rules by which their router selects experts."""

    layers: int
    experts: int
    top_k: int
    hidden: int
    inner: int
    """Inner width of an expert."""
    groups: int = 1
    """Number of groups of consecutive experts."""
    best_groups: int = 1
    """Number of groups from which the experts of a token are selected."""

    def nested(self, units: int) -> bool:
        """Return whether expert groups and ``units`` equal shares of the experts are nested: one divides the other."""
        group, share = self.experts // self.groups, self.experts // units
        return not (group % share and share % group)

    def reached(self, units: int) -> Fraction:
        """Return the probability that a token selects an expert in a given one of ``units`` nested, equal shares.

        Every set of :attr:`best_groups` groups is equally likely, and so is every set of ``top_k`` of their experts.
        """
        group, share = self.experts // self.groups, self.experts // units
        among, within = self.best_groups * group, max(1, share // group)
        missed = Fraction(0)
        for chosen in range(min(within, self.best_groups) + 1):
            ways = comb(within, chosen) * comb(self.groups - within, self.best_groups - chosen)
            left = among - chosen * min(share, group)
            missed += Fraction(ways * comb(left, self.top_k), comb(self.groups, self.best_groups))
        return 1 - missed / comb(among, self.top_k)

    def most_units(self, units: int) -> int:
        """Return the maximum number of ``units`` equal shares of the experts in which a token selects an expert."""
        limit = self.best_groups * max(1, units // self.groups) if self.nested(units) else units
        return min(self.top_k, units, limit)


@dataclass(frozen=True, slots=True)
class RoutedCall:
    """Tokens that the ranks of a mesh route to experts in each call of a stage.

    A rank sends a slice of the tokens that it shares with the others of its group along ``tp``.
    """

    stage: str
    invocation: str
    batches: tuple[int, ...]
    """Tokens of the batch of each rank of a pipeline stage in a call; ranks along ``tp`` have the same batch."""
    calls: int

    def sends(self, mesh: Mesh) -> tuple[int, ...]:
        """Return the number of tokens in a call that each rank sends to experts, by rank."""
        slices = (shard(tokens, mesh.tp, rank % mesh.tp) for rank, tokens in enumerate(self.batches))
        return tuple(behind - first for first, behind in slices)


@dataclass(frozen=True, slots=True)
class DispatchForm:
    """A method of sending tokens to the experts of other ranks and their results back."""

    name: str
    unit: Literal["batch", "expert", "rank", "node"]
    """Receiver of a separate copy of a token: all ranks, each selected expert, or each rank or node with one."""
    source: str
    header: int = 0
    """Bytes before the hidden state in each copy of a token."""

    def units(self, mesh: Mesh, node: int) -> int:
        """Return the number of receivers among which the experts of an ``ep`` group are divided: ranks, or nodes."""
        return mesh.ep // node if self.unit == "node" else mesh.ep

    def copies(self, sizes: RoutedLayers, mesh: Mesh, node: int, *, uniform: bool) -> Fraction:
        """Return the copies of a token that leave its rank or node: the mean for uniform routing, or the maximum.

        The most is reached if the token chooses none of its own rank's experts, unless it must.

        Args:
            node: number of ranks per node.
        """
        if self.unit == "batch":
            return Fraction(mesh.batches - 1)
        units = self.units(mesh, node)
        if uniform:
            return (units - 1) * self.arriving(sizes, mesh, node, uniform=True)
        if self.unit == "expert":
            return Fraction(min(sizes.top_k, sizes.experts - sizes.experts // units))
        return Fraction(min(sizes.most_units(units), units - 1))

    def arriving(self, sizes: RoutedLayers, mesh: Mesh, node: int, *, uniform: bool) -> Fraction:
        """Return the copies of a token of another rank that reach a given receiver: their mean, or the maximum."""
        units = self.units(mesh, node)
        if self.unit == "expert":
            return Fraction(sizes.top_k, units) if uniform else Fraction(min(sizes.top_k, sizes.experts // units))
        return sizes.reached(units) if uniform else Fraction(1)

    def partners(self, mesh: Mesh, rank: int, node: int) -> tuple[int, ...]:
        """Return the other ranks from which a rank receives copies, and to which it returns results.

        Between nodes these are the ranks with the same place in their node, which pass copies on inside it.
        """
        group, step = mesh.group("ep", rank), node if self.unit == "node" else 1
        return tuple(other for other in group if other != rank and (other - rank) % step == 0)


NODES_OF: Final = "h100-sxm"
"""Device whose node size the dispatch method by-node assumes if no device is named."""
DISPATCHES: Final = (
    DispatchForm("all-gather", "batch", "vLLM all2all AgRsAll2AllManager, its default; TensorRT-LLM for few ranks"),
    DispatchForm("all-to-all", "expert", "transformers distributed.expert_parallel AllToAllEP"),
    DispatchForm("low-latency", "expert", "DeepEP low-latency kernels", header=16),
    DispatchForm("by-rank", "rank", "DeepEP normal kernels, within a node"),
    DispatchForm("by-node", "node", "DeepEP normal kernels, between nodes"),
)


def node_size() -> int:
    """Return the number of ranks per node of the device :data:`NODES_OF`, from its device file."""
    found = machine(NODES_OF).node
    assert found is not None
    return found.value


def fp8_bytes(hidden: int) -> int:
    """Return the bytes of a hidden state in fp8 with a float32 scale for each 128 elements."""
    return hidden + 4 * -(-hidden // 128)


def dispatch_rows(
    sizes: RoutedLayers, mesh: Mesh, rank: int, every: Iterable[RoutedCall], item: int, routing: str = "",
    node: int | None = None,
) -> Iterator[Dispatch]:  # fmt: skip
    """Yield the bytes and FLOPs of a rank for each dispatch method: of a given and of uniform routing, and at most.

    The gathered form is exact: its kernel gets all pairs of a token and an expert, and parts of unequal size travel as
    in :class:`~costproof.analytic.collectives.GatheredTokens`. In other forms a rank sends copies of its own tokens,
    and returns a result for each copy that it receives.

    Args:
        every: calls of all stages.
        item: bytes of an element.
        routing: a routing as :func:`stored_routing` returns it, if one is given.
        node: number of ranks per node; ``None`` if all are in one.

    Raises:
        BadInput: the routing does not match the run.
    """
    size = node or mesh.world
    group, wide, narrow = mesh.group("ep", rank), sizes.hidden * item, fp8_bytes(sizes.hidden)
    place, row = group.index(rank), 6 * sizes.hidden * sizes.inner
    for call in every:
        sends, times = call.sends(mesh), sizes.layers * call.calls
        tokens = sum(sends[other] for other in group)
        for form in DISPATCHES:
            if form.unit == "node" and (mesh.ep <= size or mesh.ep % size):
                continue
            ahead, partners = form.header + wide, form.partners(mesh, rank, size)
            routings = ("given", "bound", "uniform") if routing else ("bound", "uniform")
            for assumed in ("any",) if form.unit == "batch" else routings:
                uniform, sent_to = assumed == "uniform", tuple[int, ...]()
                if uniform and form.unit in ("rank", "node") and not sizes.nested(form.units(mesh, size)):
                    continue
                if form.unit == "batch":
                    copies, pairs = (
                        form.copies(sizes, mesh, size, uniform=False),
                        Fraction(times * tokens * sizes.top_k),
                    )
                    ring = mesh.group(EP_BATCHES, rank)
                    before, after = (ring[(ring.index(rank) + i) % len(ring)] for i in (-1, 1))
                    # Dispatched and returned bytes that are sent, then those that are received.
                    moved = [Fraction(times * (tokens - call.batches[r])) for r in (after, rank, rank, before)]
                elif assumed == "given":
                    found = copies_in(routing, call, sizes, mesh, form.unit, size)
                    own = place // size if form.unit == "node" else place
                    sent_to = found[rank]
                    out, into = sum(sent_to) - sent_to[own], sum(found[other][own] for other in partners)
                    mine = times * sends[rank]
                    copies, moved = Fraction(out, mine or 1), [Fraction(n) for n in (out, into, into, out)]
                    to_experts = copies_in(routing, call, sizes, mesh, "expert")
                    pairs = Fraction(sum(to_experts[other][place] for other in group))
                else:
                    copies = form.copies(sizes, mesh, size, uniform=uniform)
                    each = form.arriving(sizes, mesh, size, uniform=uniform)
                    leave, arrive = times * sends[rank] * copies, times * sum(sends[r] for r in partners) * each
                    moved = [leave, arrive, arrive, leave]
                    most = Fraction(min(sizes.top_k, sizes.experts // mesh.ep))
                    pairs = times * tokens * (Fraction(sizes.top_k, mesh.ep) if uniform else most)
                sent, received = (ceil(out * ahead + back * wide) for out, back in (moved[:2], moved[2:]))
                sent_fp8 = ceil(moved[0] * (form.header + narrow) + moved[1] * wide)
                yield Dispatch(
                    call.stage, call.invocation, form.name, assumed, str(copies), sent, sent_fp8, ceil(pairs * row),
                    received, sent_to, size if form.unit == "node" else None,
                )  # fmt: skip


# --- A given routing of the tokens of all ranks ----------------------------------------------------------------------

_DIGEST: Final = " sha256:"
_READ: Final[dict[str, Any]] = {}
"""Last routings that were read, by digest."""
_MOST_READ: Final = 4


def is_table(text: str) -> bool:
    """Return whether a text states pairs of ranks as numbers, rather than the path of a routing file."""
    return {*text} <= {*"0123456789,;+ "} or not (_DIGEST in text or Path(text).suffix or os.path.exists(text))


def stored_routing(text: str) -> str:
    """Return a routing file as a workload stores it: its path, and the beginning of the digest of its content.

    Args:
        text: the path of a JSON file as :func:`given_choices` reads it, or the stored form.

    Raises:
        BadInput: the file cannot be read, is not JSON, or is not the one that was stored.
    """
    path, _, known = text.partition(_DIGEST)
    if known in _READ:
        return text
    raw = content(Path(path), what="routing")
    digest = sha256(raw).hexdigest()[:16]
    if known and known != digest:
        raise BadInput(
            "the routing is not the one of this run", where=path, expected=f"sha256 {known}…", got=f"{digest}…",
            fix="count the run again with the file as it is",
        )  # fmt: skip
    if not raw.strip():
        raise BadInput("the routing is an empty file", where=path, expected='JSON: {"prefill": [..]}')
    data = json_in(raw, where=path, what="routing")
    for old in [*_READ][: 1 - _MOST_READ]:
        del _READ[old]
    _READ[digest] = data
    return f"{path}{_DIGEST}{digest}"


def routing_data(text: str) -> Any:
    """Return the content of a routing file by its stored form.

    Raises:
        BadInput: as :func:`stored_routing`.
    """
    return _READ[stored_routing(text).partition(_DIGEST)[2]]


@lru_cache(maxsize=8)
def _choices(routing: str, call: RoutedCall, sizes: RoutedLayers, mesh: Mesh) -> list[list[list[list[int]]]]:
    """Return the checked choices of the tokens of all ranks: layers with experts -> calls -> tokens -> experts."""
    data, where, tokens = routing_data(routing), routing.partition(_DIGEST)[0], sum(call.sends(mesh))
    of_layer = sizes.experts, sizes.top_k, tokens, call.calls
    found = []
    for layer in range(sizes.layers):
        found.append([*given_choices(data, call.stage, (layer, sizes.layers), of_layer, where)])
        for i, rows in enumerate(found[-1] if sizes.best_groups < sizes.groups else ()):
            for j, row in enumerate(rows):
                groups = len({expert * sizes.groups // sizes.experts for expert in row})
                if groups > sizes.best_groups:
                    raise BadInput(
                        "the router chooses no such experts", where=f"{where}, $.{call.stage}[{i}][{layer}][{j}]",
                        expected=f"experts of at most {sizes.best_groups} of the {sizes.groups} groups",
                        got=f"{row}, of {groups} groups",
                    )  # fmt: skip
    return found


@lru_cache(maxsize=16)
def expert_loads(
    routing: str, call: RoutedCall, sizes: RoutedLayers, mesh: Mesh
) -> tuple[tuple[tuple[ExpertLoad, ...], ...], ...]:
    """Return what a routing sends to the experts of each rank: call -> layer with experts -> rank -> load.

    Tokens are those of the whole batch in the order of :func:`copies_by_call`. Ranks of different ``ep`` groups have
    the same experts, and the tokens of their own group.

    Raises:
        BadInput: the routing does not match the run.
    """
    senders = [rank for rank, tokens in enumerate(call.sends(mesh)) for _ in range(tokens)]
    first = [mesh.group("ep", rank)[0] for rank in range(mesh.world)]
    layers = []
    for of_calls in _choices(routing, call, sizes, mesh):
        calls = []
        for rows in of_calls:
            pairs, touched = [0] * mesh.world, [set[int]() for _ in range(mesh.world)]
            for rank, row in zip(senders, rows, strict=True):
                for expert in row:
                    holder = first[rank] + expert * mesh.ep // sizes.experts
                    pairs[holder] += 1
                    touched[holder].add(expert)
            calls.append(tuple(ExpertLoad(n, len(of)) for n, of in zip(pairs, touched, strict=True)))
        layers.append(calls)
    return tuple(zip(*layers, strict=True))


@lru_cache(maxsize=16)
def copies_by_call(
    routing: str, call: RoutedCall, sizes: RoutedLayers, mesh: Mesh, unit: str, node: int = 1
) -> tuple[tuple[tuple[tuple[int, ...], ...], ...], ...]:
    """Return the number of token copies that ranks send, by call, layer with experts, sender and receiver.

    The result is indexed [call][layer][rank][receiver]. Receivers are the ranks of the sender's ``ep`` group, or the
    nodes among which it is divided; copies that stay with the sender count too. In the file come the tokens of the
    first rank, then those of the next; ranks along ``tp`` have slices of the tokens that they share.

    Args:
        unit: ``expert`` for a copy for each chosen expert, ``rank`` or ``node`` for one for each of these with any.
        node: number of ranks per node.

    Raises:
        BadInput: the routing does not match the run.
    """
    units = mesh.ep // node if unit == "node" else mesh.ep
    senders = [rank for rank, tokens in enumerate(call.sends(mesh)) for _ in range(tokens)]
    layers = []
    for of_calls in _choices(routing, call, sizes, mesh):
        calls = []
        for rows in of_calls:
            found = [[0] * units for _ in range(mesh.world)]
            for rank, row in zip(senders, rows, strict=True):
                receivers = [expert * units // sizes.experts for expert in row]
                for receiver in receivers if unit == "expert" else {*receivers}:
                    found[rank][receiver] += 1
            calls.append(tuple(map(tuple, found)))
        layers.append(calls)
    return tuple(zip(*layers, strict=True))


def copies_in(
    routing: str, call: RoutedCall, sizes: RoutedLayers, mesh: Mesh, unit: str, node: int = 1
) -> tuple[tuple[int, ...], ...]:
    """Return the sums of :func:`copies_by_call` over calls and layers: rank -> receiver -> copies."""
    every = [layer for layers in copies_by_call(routing, call, sizes, mesh, unit, node) for layer in layers]
    return tuple(tuple(map(sum, zip(*of_rank, strict=True))) for of_rank in zip(*every, strict=True))


Splits = tuple[tuple[int, ...], tuple[int, ...]]
"""Numbers of (token, expert) pairs that a rank sends to, and receives from, each rank of its ``ep`` group."""


PROMPT: Final = "prefill"


def routed_call(workload: Workload, stage: str) -> RoutedCall:
    """Return how many tokens each rank of a pipeline stage has in the prefill, or in one decode step."""
    mesh, prompt = workload.mesh, stage == PROMPT
    length = workload.text_tokens if prompt else 1
    tokens = tuple(length * own_batch(workload.batch, mesh, rank) for rank in range(mesh.world // mesh.pp))
    return RoutedCall(stage, "", tokens, 1 if prompt else workload.new_tokens)


def pairs_sent(
    workload: Workload, layers: int, experts: int, top_k: int, stage: str = PROMPT
) -> tuple[tuple[tuple[tuple[int, ...], ...], ...], ...]:
    """Return call -> layer with experts -> rank -> rank of its ``ep`` group -> pairs that it sends there.

    Ranks are those of the pipeline stage that has the layer. A table of pairs holds for every layer, and has one call.
    Empty if no routing is given.

    Args:
        layers: number of layers with experts.
        stage: ``prefill`` or ``decode``.

    Raises:
        BadInput: the text is not such a table, or the file does not match the run.
    """
    given = str(workload.inputs.get(PAIRS, ""))
    if is_table(given):
        return ((pairs_of(workload.inputs),) * layers,) if given else ()
    sizes, call = RoutedLayers(layers, experts, top_k, 0, 0), routed_call(workload, stage)
    return copies_by_call(given, call, sizes, replace(workload.mesh, pp=1), "expert")


def splits_of(
    workload: Workload, layers: int, experts: int, top_k: int, stage: str = PROMPT
) -> tuple[tuple[Splits, ...], ...]:
    """Return the pairs that the counted rank sends and receives: call -> layer with experts; empty if it gathers.

    Args and errors are those of :func:`pairs_sent`.
    """
    if DISPATCH not in workload.inputs:
        return ()
    mesh = replace(workload.mesh, pp=1)
    rank = workload.rank % mesh.world
    group, place = mesh.group("ep", rank), mesh.coordinates(rank).ep
    return tuple(
        tuple((pairs[rank], tuple(pairs[other][place] for other in group)) for pairs in call)
        for call in pairs_sent(workload, layers, experts, top_k, stage)
    )


def steps_differ(workload: Workload, layers: int, experts: int, top_k: int) -> bool:
    """Return whether decode steps send unequal numbers of pairs, from any rank to any, in any layer."""
    if DISPATCH not in workload.inputs or not workload.new_tokens:
        return False
    return len({*pairs_sent(workload, layers, experts, top_k, "decode")}) > 1
