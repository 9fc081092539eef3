"""Define known mistakes in bytes, caches, formats, ranks and peaks, and the terms of a claim about a peak."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from math import comb
from typing import Final

from costproof.algebra.evaluation import compile_expression
from costproof.algebra.identity import free_symbols
from costproof.algebra.symbols import parse, text
from costproof.claims.effects import (
    CACHE,
    IN_BYTES,
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
from costproof.claims.terms import ClaimTerm, nodes_of, tokens_of
from costproof.claims.types import TOTAL, PublishedClaim
from costproof.ledger.capture import Capture
from costproof.ledger.errors import Incomplete
from costproof.ledger.mesh import on_one_device
from costproof.ledger.metrics import COMM, METRICS, PEAK_METRICS, UNPACKING, Metric
from costproof.ledger.node import Ledger, total
from costproof.ledger.peaks import CallPeaks, Peak
from costproof.ledger.workload import FLOAT_BYTES, ITEM_BYTES

# --- Bytes and caches ------------------------------------------------------------------------------------------------

_TYPES: Final = {
    1: ("element size forgotten", "elements are counted, or have one byte each"),
    2: ("two bytes each", "elements have two bytes each, as in bfloat16"),
    4: ("four bytes each", "elements have four bytes each, as in float32"),
}
_ELEMENTS: Final = frozenset(m for m, info in METRICS.items() if info.unit == "elements")


def _every(_: ClaimTerm) -> bool:
    return True


def _counted(term: ClaimTerm) -> bool:
    return term.counted


def _layer(term: ClaimTerm) -> bool:
    return term.counted and term.within("layer")


def _stepping(term: ClaimTerm) -> bool:
    return _layer(term) and {"N", "P"} <= term.values.keys()


def _call(term: ClaimTerm) -> tuple[str, str, str]:
    return term.tower, term.stage, term.invocation


def _prefix(p: str, decimal: int, binary: int) -> Iterator[Mistake]:
    """Yield the mistakes of confusing binary and decimal prefixes, such as GiB and GB."""
    for given, meant, factor in ((f"{p}iB", f"{p}B", Fraction(decimal, binary)),
                                 (f"{p}B", f"{p}iB", Fraction(binary, decimal))):  # fmt: skip
        what = "the number is in the first unit and called the second"
        yield Mistake(f"{given} for {meant}", "unit", what, (times(_every, factor),))


def _cache_of_one_layer(terms: ClaimTerms, _: Mapping[str, int]) -> Iterator[Mistake]:
    layers = {c: sum(t.count for t in terms if _layer(t) and _call(t) == c) for c in map(_call, terms)}
    alone = TermChange(_layer, lambda t: Fraction(1, layers[_call(t)]))
    yield Mistake("one layer", "depth", "the cache of one layer is counted", (alone,))


_PREFIXES: Final = (*_prefix("M", 10**6, 2**20), *_prefix("G", 10**9, 2**30))

BYTES_AND_CACHES: Final[MistakeTable] = (
    *(Mistake(f"bytes, {size} each", "unit", f"bytes are counted, {size} for each element", (times(_counted, size),),
              metrics=_ELEMENTS) for size in (2, 4)),
    *(Mistake(cause, "type", what, (substituted(lambda t: "b" in t.values, b=str(size)),), metrics=IN_BYTES)
      for size, (cause, what) in _TYPES.items()),
    *(Mistake(f"{bits}-bit cache", "type", f"K/V are cached in {bits} bits each, without scales",
              (substituted(lambda t: "b" in t.values, b=f"{bits}/8"),), metrics=CACHE) for bits in (8, 4)),
    *(Mistake(f"{bits}-bit cache", "type", f"K/V are cached in {bits} bits each",
              (substituted(lambda t: "b" in t.values, b=f"{bits // 8}"),), metrics=CACHE) for bits in (32, 16)),
    *(replace(row, metrics=IN_BYTES) for row in _PREFIXES),
    Mistake("whole tables", "tables", "tables of embeddings are read whole, not the looked-up rows",
            (left_out(lambda t: t.counted and t.part == "embedding"),), adds=stands_for("tables"),
            metrics=frozenset({"weight_read_bytes"})),
    Mistake("keys or values alone", "cache", "only keys or only values are counted", (times(_layer, Fraction(1, 2)),),
            metrics=CACHE),
    MistakeSeries("one layer", "the cache of one layer is counted", _cache_of_one_layer, CACHE),
    Mistake("whole cache", "length",
            "the whole cache at the end is counted, not what steps append",
            (TermChange(_stepping, lambda t: Fraction(t.values["P"] + t.values["N"], t.values["N"])),),
            metrics=frozenset({"kv_cache_bytes"})),
    Mistake("decode context frozen", "length", "every step reads what the first one does",
            (TermChange(_stepping, lambda t: Fraction(2 * t.values["P"], 2 * t.values["P"] + t.values["N"] - 1)),),
            metrics=frozenset({"kv_read_bytes"})),
    Mistake("one layer", "depth",
            "one of several equal layers is counted",
            (TermChange(_layer, lambda t: Fraction(1, t.count)),),
            metrics=(IN_BYTES & NOT_STAGE_WIDE) - CACHE - frozenset(COMM)),
)  # fmt: skip


# --- Vector work of formats of weights -------------------------------------------------------------------------------

_OF_FORMATS: Final = frozenset[Metric]({UNPACKING})


def _unpacked(term: ClaimTerm) -> bool:
    """Return whether a term is the unpacking of whole quantised matrices: its formula has no number of tokens."""
    names = free_symbols(term.expr) if term.counted and term.expr else frozenset({"S"})
    return names.isdisjoint({"B", "S", "L"}) or f"{term.tower}_experts" in names


def _for_each_token(term: ClaimTerm) -> Fraction | None:
    """Return the factor on an unpacking term if each token unpacks its matrix again; ``None`` if unknown."""
    tokens = tokens_of(term.values)
    if tokens is None or (term.part == "lm_head" and "L" in term.values):
        return None if tokens is None else Fraction(term.values["B"] * term.values["L"])
    each = tokens // term.values.get("N", 1)
    return substitute(term, experts=f"experts * {each}") if term.part == "experts" else Fraction(each)


FORMATS: Final[MistakeTable] = (
    Mistake("unpacked for each token", "format", "quantised weights are unpacked per token, not per call",
            (TermChange(_unpacked, _for_each_token),), metrics=_OF_FORMATS),
    Mistake("unpacked when loaded", "format", "quantised weights are unpacked before the run, not per call",
            (left_out(_unpacked),), metrics=_OF_FORMATS),
)  # fmt: skip


# --- Ranks of several devices ----------------------------------------------------------------------------------------

_HELD_BY_RANKS: Final = frozenset[Metric]({"params", "params_active", "weight_bytes", "weight_read_bytes"})
_SENT: Final = frozenset[Metric]({"comm_bytes"})
UNDIVIDED: Final = "one device"
"""Key of the claimed metric of the whole model on one device, next to a claim's symbols, for a pipeline stage."""
STAGE_LAYERS: Final = "layers of the stage"
"""Key of the number of layers of the counted rank's pipeline stage."""
_OF_COLLECTIVES: Final = frozenset(COMM)
_SHARED_HEADS: Final = (".attention", ".attention.k", ".attention.v")
"""Ends of the roles of modules with only one key/value head per rank if there are more ranks than heads."""


def _of_one_device(term: ClaimTerm) -> Fraction:
    """Return a term's cost on one device divided by its cost on the rank."""
    whole = substitute(term, **on_one_device(term.values))
    return _copied_heads(term) if whole is None else whole


def _copied_heads(term: ClaimTerm) -> Fraction:
    """Return the number of key/value heads per head of the rank if ranks duplicate heads; else 1."""
    copied = _several(term) and term.owner in ("attention", "linear") and term.role.endswith(_SHARED_HEADS)
    heads = f"{term.tower}_kv_heads"
    named = free_symbols(term.expr) if copied and term.expr else frozenset()
    return Fraction(term.values[heads] if copied and heads not in named and heads in term.values else 1)


def _several(term: ClaimTerm) -> bool:
    return term.counted and term.values.get("tp", 1) > 1


def _of_vocabulary(term: ClaimTerm) -> bool:
    return _several(term) and any(name.endswith("_vocab_rank") for name in free_symbols(term.expr or "0"))


def _replicated(part: str, term: ClaimTerm) -> bool:
    """Return whether ranks hold a term whole: norms if ``part`` is empty, else modules whose role ends with it."""
    own = term.norm if not part else term.part == part or term.part.endswith(f"_{part}")
    return _several(term) and own and _of_one_device(term) == 1


def _of_stages(terms: ClaimTerms, everywhere: Mapping[str, int]) -> Iterator[Mistake]:
    """Yield the mistakes in the share of a pipeline stage."""
    if UNDIVIDED not in everywhere:
        return
    whole, stages, tp = everywhere[UNDIVIDED], everywhere["pp"], everywhere.get("tp", 1)
    own = sum(t.value for t in terms if t.counted)
    if own:
        name = "all / pp" if tp == 1 else "all / (tp x pp)"
        share = times(_counted, Fraction(whole, stages * tp) / own)
        yield Mistake(name, "stages", "stages are taken as equal parts of the whole model", (share,))
        if tp == 1:
            every = times(_counted, whole / own)
            yield Mistake("all stages", "stages", "the whole model is counted in place of a stage", (every,))
    of_decoder = next(n for name, n in everywhere.items() if name.removeprefix("text_") == "layers")
    layers = Fraction(of_decoder, stages * everywhere[STAGE_LAYERS])
    equal = times(lambda t: _counted(t) and t.within("layer"), layers)
    yield Mistake("layers / pp", "stages", "stages are taken to have equally many layers", (equal,))


def _in_parts(term: ClaimTerm) -> bool:
    """Return whether ranks shard the parameters of a term and all-gather them (FSDP)."""
    return term.counted and term.values.get("fsdp", 1) > 1


def _of_sequence(symbol: str) -> Callable[[ClaimTerm], bool]:
    """Return a predicate for terms whose formula contains ``symbol``, in a run with context parallelism (cp > 1)."""
    return lambda t: t.counted and t.values.get("cp", 1) > 1 and bool(t.expr) and symbol in free_symbols(t.expr)


def _latents(term: ClaimTerm) -> bool:
    return "latent" in term.owner or "absorbed" in term.owner


def _share_of_all(term: ClaimTerm) -> Fraction:
    """Return 1/tp of a term's cost on one device, divided by its cost on the rank."""
    return _of_one_device(term) / term.values["tp"]


def _collective(kind: str, *parts: str) -> Callable[[ClaimTerm], bool]:
    return lambda t: t.counted and t.kind == kind and (not parts or t.role.endswith(parts))


def _all_reduce(stated: str, what: str) -> Mistake:
    """Return the known mistake of counting an all-reduce of M bytes as ``stated``, an expression in M and n ranks.

    Sums along ``cp`` are those of attention to the parts of a sequence.
    """
    number = compile_expression(text(parse(stated.replace(" M", "*M"))))

    def factor(term: ClaimTerm) -> Fraction:
        ranks = term.values.get("cp", 1) if term.part == "attention" else 1
        ranks = ranks if ranks > 1 else term.values["tp"]
        return Fraction(number.run({"n": ranks, "M": ranks}), 2 * (ranks - 1))  # of 2 (n - 1) / n M

    changes = (TermChange(_collective("all_reduce"), factor),)
    return Mistake(f"all-reduce = {stated}", "all-reduce", what, changes, metrics=_SENT)


def _payload(kind: str) -> Callable[[ClaimTerm], bool]:
    of = stands_for("payload")
    return lambda t: of(t) and t.kind == kind


def _sharing(term: ClaimTerm) -> bool:
    """Return whether several ranks share the experts of a term."""
    return term.counted and max(term.values.get("tp", 1), term.values.get("ep", 1)) > 1


def _dispatch(*kinds: str) -> Callable[[ClaimTerm], bool]:
    """Return a predicate for terms of the collectives that send tokens to the experts of other ranks."""
    return lambda t: t.counted and t.kind in kinds and t.part == "experts"


def _copies(count: Callable[[int, int, int], Fraction]) -> tuple[TermChange, ...]:
    """Return the change of the number of copies sent per token, computed by ``count`` from top-k, experts, ranks.

    The gathered form sends one to each batch; others send a share of the tokens that ranks along ``tp`` have in common.
    """

    def factor(term: ClaimTerm) -> Fraction | None:
        names = (f"{term.tower}_topk", f"{term.tower}_experts", "ep", "tp")
        if not term.values.keys() >= {*names}:
            return None
        top_k, experts, ep, tp = (term.values[name] for name in names)
        return count(top_k, experts, ep) / (tp * (ep // tp - 1))

    return (TermChange(_dispatch("all_gather", "reduce_scatter"), factor),)


def _by_rank(top_k: int, experts: int, ranks: int) -> Fraction:
    missed = Fraction(comb(experts - experts // ranks, top_k), comb(experts, top_k))
    return (ranks - 1) * (1 - missed)


def _wire(size: Callable[[int, int, Fraction], Fraction | int]) -> tuple[TermChange, ...]:
    """Return the change of the bytes that are gathered per token.

    Args:
        size: function of the width of hidden states, the size of an element, and the bytes of the token's choices.
    """

    def factor(term: ClaimTerm) -> Fraction | None:
        values = term.values
        tokens = values["B"] * values.get("S", values.get("N", 1))
        sent = tokens * term.count * (values["ep"] // values["tp"] - 1)
        width, item = values[f"{term.tower}_hidden"], values["b"]
        return size(width, item, term.value / sent - width * item) * sent / term.value

    return (TermChange(_dispatch("all_gather"), factor),)


def _padded_vocabulary(term: ClaimTerm) -> Fraction | None:
    """Return the factor on a term if the vocabulary is padded to a multiple of 64; ``None`` without a vocabulary."""
    name = next((name for name in term.values if name.endswith("_vocab")), None)
    if name is None:
        return None
    whole = -(-term.values[name] // 64) * 64
    share = -(-whole // term.values.get("tp", 1))
    return substitute(term, **{name: str(whole), f"{name}_rank": str(share)})


RANKS: Final[MistakeTable] = (
    Mistake("K/V heads / tp", "ranks", "K/V heads are divided by tp, though ranks hold copies of them",
            (TermChange(lambda t: _several(t) and not _latents(t) and t.role.endswith(_SHARED_HEADS), _share_of_all),),
            metrics=CACHE | _HELD_BY_RANKS | {"flops"}),
    Mistake("K/V heads not / tp", "ranks", "keys and values of all heads are counted on each rank",
            (TermChange(lambda t: _several(t) and not _latents(t) and t.role.endswith(_SHARED_HEADS), _of_one_device),),
            metrics=CACHE | _HELD_BY_RANKS),
    Mistake("vocabulary not / tp", "ranks", "embedding and output projection are counted whole on each rank",
            (TermChange(_of_vocabulary, _of_one_device),), metrics=_HELD_BY_RANKS | {"flops"}),
    Mistake("latents / tp", "ranks", "the cache of latents is divided by tp, though ranks hold it whole",
            (TermChange(lambda t: _several(t) and _latents(t), _share_of_all),), metrics=CACHE),
    Mistake("all / tp", "ranks", "all is divided by tp, even norms, routers, latents and copies of heads",
            (TermChange(_several, _share_of_all),), metrics=_HELD_BY_RANKS | {"flops"}),
    *(Mistake(f"{name} / tp", f"{name} of ranks", f"{name} are divided by tp, though ranks hold them whole",
              (TermChange(partial(_replicated, part), _share_of_all),), metrics=_HELD_BY_RANKS | {"flops"},
              excludes=("all / tp", "one device"))
      for name, part in (("routers", "router"), ("norms", ""), ("projections to latents", "down"))),
    Mistake("experts not / ep", "ranks", "routed experts are not divided among the ranks",
            (TermChange(lambda t: _sharing(t) and t.part == "experts", _of_one_device),), metrics=_HELD_BY_RANKS),
    Mistake("one device", "ranks", "one device is counted in place of a rank",
            (TermChange(_sharing, _of_one_device),), metrics=CACHE | _HELD_BY_RANKS | {"flops"}),
    MistakeSeries("all / pp, layers / pp, all stages",
                  "all parameters or layers are divided by pp, or those of all stages are counted", _of_stages,
                  CACHE | _HELD_BY_RANKS | {"flops"}),
    Mistake("vocabulary padded to 64", "vocabulary", "the vocabulary is padded to a multiple of 64, then split",
            (TermChange(_counted, _padded_vocabulary),), metrics=_HELD_BY_RANKS | {"flops"} | _SENT),
    Mistake("tokens sent to their experts", "dispatch",
            "a token is sent to each chosen expert of another rank, not once to every rank",
            _copies(lambda k, _, g: Fraction(k * (g - 1), g)), metrics=_SENT),
    Mistake("min(top-k, ep - 1) copies", "dispatch",
            "a token is sent min(top-k, ep - 1) times, for experts of its own rank too",
            _copies(lambda k, _, g: Fraction(min(k, g - 1))), metrics=_SENT),
    Mistake("top-k copies", "dispatch",
            "a token is sent once for each chosen expert, for those of its own rank too",
            _copies(lambda k, _, __: Fraction(k)), metrics=_SENT),
    Mistake("tokens sent by rank", "dispatch",
            "a token is sent to each rank with a chosen expert, the mean of uniform routing",
            _copies(_by_rank), metrics=_SENT),
    Mistake("choices not sent", "wire", "numbers and weights of the chosen experts are not sent",
            _wire(lambda width, item, _: width * item), metrics=_SENT),
    Mistake("fp8 dispatch", "wire", "tokens are sent in fp8 with a scale per 128 elements, without choices",
            _wire(lambda width, _, __: width + 4 * -(-width // 128)), metrics=_SENT),
    Mistake("fp8 dispatch without scales", "wire", "tokens are sent in fp8, without scales and choices",
            _wire(lambda width, _, __: width), metrics=_SENT),
    Mistake("fp8 dispatch with choices", "wire", "tokens are sent in fp8 with scales and choices",
            _wire(lambda width, _, choices: width + 4 * -(-width // 128) + choices), metrics=_SENT),
    Mistake("fp8 dispatch without scales, with choices", "wire", "tokens are sent in fp8 with choices, without scales",
            _wire(lambda width, _, choices: width + choices), metrics=_SENT),
    Mistake("all-reduce = M", "all-reduce", "an all-reduce is its payload M, not 2 (n - 1) / n M",
            (left_out(_collective("all_reduce")),), adds=_payload("all_reduce"), metrics=_SENT),
    _all_reduce("(n - 1) / n M", "only the sums of an all-reduce are counted"),
    _all_reduce("2 M", "an all-reduce is twice its payload M"),
    _all_reduce("(n - 1) M", "in an all-reduce each rank sends all to every other"),
    Mistake("gather = M", "gather", "an all-gather is its payload M, not (n - 1) / n M",
            (left_out(_collective("all_gather")),), adds=_payload("all_gather"), metrics=_SENT),
    Mistake("gather of logits missing", "gather", "the gather of logits is left out",
            (left_out(_collective("all_gather", "lm_head")),), metrics=_OF_COLLECTIVES),
    Mistake("parameters whole (ZeRO-2)", "parts", "each rank stores all parameters, not its part",
            (TermChange(_in_parts, _of_one_device),), metrics=frozenset({"params", "weight_bytes"})),
    Mistake("only parts are read", "parts", "a rank reads its own part, not the gathered parameters",
            (left_out(lambda t: _in_parts(t) and t.role not in ("root", "text.layer")),),
            metrics=frozenset({"weight_read_bytes"})),
    Mistake("root not gathered", "gather of the root", "only the parameters of layers are gathered",
            (left_out(lambda t: _in_parts(t) and _collective("all_gather", "root")(t)),), metrics=_OF_COLLECTIVES),
    Mistake("gathered once", "gathers of steps", "parameters are gathered once for all steps",
            (TermChange(lambda t: _in_parts(t) and {"N", "P"} <= t.values.keys() and t.kind == "all_gather",
                        lambda t: Fraction(1, t.values["N"])),), metrics=_OF_COLLECTIVES),
    Mistake("gathers of training", "passes", "parameters are gathered twice, gradients scattered",
            (times(lambda t: _in_parts(t) and t.kind == "all_gather", 3),), metrics=_SENT),
    Mistake("all-reduce for gather (ZeRO-2)", "passes", "an all-reduce is counted for each gather",
            (times(lambda t: _in_parts(t) and t.kind == "all_gather", 2),), metrics=_SENT),
    Mistake("positions not / cp", "positions", "a rank has all positions of a sequence, not its part",
            (substituted(_of_sequence("S"), S="cp*S", cp="1", cp_place="1"),), metrics=CACHE | {"flops"}),
    Mistake("mean of the ranks", "positions", "each rank of a ring attends to the mean number of parts",
            (substituted(_of_sequence("cp_place"), cp_place="(cp + 1)/2"),), metrics=frozenset({"flops"})),
    Mistake("every part attended to", "positions", "each rank of a ring attends to all parts, as the last",
            (substituted(_of_sequence("cp_place"), cp_place="cp"),), metrics=frozenset({"flops"})),
    Mistake("ring of cp sends", "ring", "K/V are sent cp times, not cp - 1",
            (TermChange(lambda t: _of_sequence("cp")(t) and _collective("send", ".attention")(t),
                        lambda t: Fraction(t.values["cp"], t.values["cp"] - 1)),), metrics=_OF_COLLECTIVES),
    Mistake("all-to-all = M", "all-to-all", "an all-to-all is its payload M, not (n - 1) / n M",
            (left_out(_collective("all_to_all", ".attention")),),
            adds=lambda t: _payload("all_to_all")(t) and t.role.endswith(".attention"), metrics=_SENT),
    Mistake("one all-reduce a layer", "all-reduces", "attention has no all-reduce",
            (left_out(_collective("all_reduce", ".attention.out")),), metrics=_OF_COLLECTIVES),
    Mistake("embedding's all-reduce missing", "all-reduce of the embedding",
            "the embedding's all-reduce is left out",
            (left_out(_collective("all_reduce", ".embedding")),), metrics=_OF_COLLECTIVES),
    Mistake("shared experts' all-reduce missing", "all-reduce of shared experts",
            "shared and routed experts have one all-reduce",
            (left_out(_collective("all_reduce", ".shared.down")),), metrics=_OF_COLLECTIVES),
)  # fmt: skip


# --- Peaks -----------------------------------------------------------------------------------------------------------

_GRAPH, _EAGER = PEAK_METRICS
_OF_PEAKS: Final = frozenset(PEAK_METRICS)
_RUN: Final = "the run's type"
"""Kind of terms in the dtype of the run, whose element size is the symbol ``b``."""
_WEIGHTS_ALONE: Final = "weights alone"


def peak_of(capture: Capture, claim: PublishedClaim) -> Peak:
    """Return the memory peak that a claim is about, the largest of the stage's calls.

    Raises:
        Incomplete: the capture lacks the peaks of one of these calls.
    """
    calls = [c for c in capture.peaks if c.stage == claim.stage and claim.invocation in ("", c.invocation)]
    found = _largest(calls, claim.metric)
    if found is None:
        raise Incomplete(
            "the peak is unknown here, so the claim cannot be checked",
            where=f"{claim.where}: {claim.stage}, {claim.metric}",
            expected="a capture with the peaks of all calls of the stage",
            got="; ".join(n for c in calls for n in c.notes) or "no peak",
            fix=f"costproof capture {capture.target.name} --peaks, or costproof peaks {capture.target.name}",
        )
    return found


def peak_terms(capture: Capture, ledger: Ledger, claim: PublishedClaim) -> tuple[ClaimTerm, ...]:
    """Return the terms of a claim about a peak: live tensors, and as uncounted terms other peaks and weights."""
    known = next((capture.values(i) for i in capture.invocations if i.stage == claim.stage), {})
    blank = ClaimTerm(claim.stage, claim.invocation, "", "peak", "", Fraction(0), "", known, 1, ())
    own = _tensors(blank, peak_of(capture, claim))
    kind = next(m for m in PEAK_METRICS if m != claim.metric)
    others: dict[str, list[CallPeaks]] = {}
    for call in capture.peaks:
        if call.stage != claim.stage:
            others.setdefault(f"another stage: {call.stage}", []).append(call)
        elif claim.invocation and call.invocation != claim.invocation:
            others.setdefault(f"another call: {call.invocation}", []).append(call)
    mine = [c for c in capture.peaks if c.stage == claim.stage and claim.invocation in ("", c.invocation)]
    found = {name: _largest(calls, claim.metric) for name, calls in others.items()}
    found[_other(claim.metric)] = _largest(mine, kind)
    off = [t for name, peak in found.items() if peak is not None for t in _tensors(blank, peak, name)]
    every = [_peak(c, claim.metric) for c in mine]
    if len(every) > 1:
        off += [t for p in every if p is not None for t in _tensors(blank, p, "calls added up")]
    sums = {
        "sum for peak": total(nodes_of(ledger, claim, "output_bytes"), "output_bytes"),
        "weights": total(nodes_of(ledger, claim, "weight_bytes"), "weight_bytes"),
        "all weights": total(nodes_of(ledger, replace(claim, stage=TOTAL), "weight_bytes"), "weight_bytes"),
    }
    return (*own, *off, *(
        replace(blank, kind=_RUN, value=Fraction(v), evidence=(name,), counted=False, stands_for=name)
        for name, v in sums.items() if v
    ))  # fmt: skip


def _instead(cause: str, what: str, name: str = "") -> Mistake:
    """Return the mistake of reporting another quantity in place of the peak."""
    other = stands_for(name or cause)
    return Mistake(
        cause, "what", what, (left_out(_counted),), adds=other, metrics=_OF_PEAKS, if_any=other
    )  # fmt: skip


def _others(terms: ClaimTerms, _: Mapping[str, int]) -> Iterator[Mistake]:
    for name in sorted({t.stands_for for t in terms if t.stands_for.startswith("another ")}):
        yield _instead(name, f"the peak of {name}")


def _sized(size: int) -> Callable[[ClaimTerm], Fraction | None]:
    def factor(term: ClaimTerm) -> Fraction | None:
        own = term.values.get("b") if term.kind == _RUN else ITEM_BYTES.get(term.kind)
        # One byte per element means that the element size was forgotten, for integers too.
        return Fraction(size, own) if own and (size == 1 or term.kind in (_RUN, *FLOAT_BYTES)) else None

    return factor


_OTHER_PEAK: Final = (
    "the other peak: a graph frees a tensor after its last reader, the module's variables may hold it longer"
)

PEAKS: Final[MistakeTable] = (
    _instead("sum for peak", "all written activations are added up, as if none were freed"),
    _instead("calls added up", "the peaks of all calls are added up"),
    _instead("graph peak for eager peak", _OTHER_PEAK),
    _instead("eager peak for graph peak", _OTHER_PEAK),
    MistakeSeries("another stage: STAGE, another call: CALL", "the peak of another stage, or call", _others,
                  _OF_PEAKS),
    _instead(_WEIGHTS_ALONE, "weights are counted in place of activations", "weights"),
    Mistake("weights included", "weights", "the stage's weights are counted too", adds=stands_for("weights"),
            metrics=_OF_PEAKS, excludes=(_WEIGHTS_ALONE,)),
    Mistake("weights of all stages included", "weights", "the weights of the whole model are counted too",
            adds=stands_for("all weights"), metrics=_OF_PEAKS, excludes=(_WEIGHTS_ALONE,)),
    Mistake("inputs left out", "inputs", "the inputs of the stage are left out",
            (left_out(lambda t: t.counted and t.part == "input"),), metrics=_OF_PEAKS),
    *(Mistake(cause, "type", what, (TermChange(_every, _sized(size)),), metrics=_OF_PEAKS)
      for size, (cause, what) in _TYPES.items()),
    *(replace(row, metrics=_OF_PEAKS) for row in _PREFIXES),
)  # fmt: skip


def _other(metric: Metric) -> str:
    return "graph peak for eager peak" if metric == _EAGER else "eager peak for graph peak"


def _peak(call: CallPeaks, metric: Metric) -> Peak | None:
    return call.eager if metric == _EAGER else call.graph


def _largest(calls: Iterable[CallPeaks], metric: Metric) -> Peak | None:
    """Return the largest peak of the calls; ``None`` without calls or with an unknown peak."""
    found = [_peak(c, metric) for c in calls]
    known = [p for p in found if p is not None]
    return max(known, key=lambda p: p.bytes) if known and len(known) == len(found) else None


def _tensors(blank: ClaimTerm, peak: Peak, stands_for: str = "") -> list[ClaimTerm]:
    return [
        replace(
            blank, role="result" if t.operator else "input", kind=t.dtype, value=Fraction(t.bytes),
            counted=not stands_for, stands_for=stands_for,
            evidence=(f"{t.module or '(root)'}: {t.name} {list(t.shape)} {t.dtype}",),
        )
        for t in peak.alive
    ]  # fmt: skip
