"""Define the domain of a proof about a decoder: symbolic lengths, random configurations, batches of rows, meshes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import gcd
from typing import Any, Final, TypeVar, cast

import sympy

from costproof.algebra.series import CACHED, CONTEXT
from costproof.algebra.symbols import sym, text
from costproof.analytic.elementwise import ACTIVATION_FLOPS
from costproof.compare.proof.certificate import Settings
from costproof.estimate.routing import PROMPT, routed_call
from costproof.ledger.errors import BadInput, Problems
from costproof.ledger.mesh import ALL_GATHER, AXES, CP_PLAN, DISPATCH, PAIRS, PLAN, RANK, Mesh
from costproof.ledger.metrics import EVERY_METRIC, FLOOR, KEPT_FLOPS, KEPT_SCORES, STAGE_WIDE
from costproof.ledger.workload import (
    FLOAT_BYTES,
    AttentionKind,
    BatchRow,
    Dtype,
    ExpertKernel,
    Logits,
    SettingValue,
    Workload,
)
from costproof.models.decoding.config import LEAST_WINDOW, DecoderConfig, MixtureConfig, WindowedConfig
from costproof.models.decoding.latent import LatentConfig
from costproof.models.decoding.names import batch_of, rows_in_symbols
from costproof.models.decoding.plans import ENGINES, OWN, by_heads, stored_plan
from costproof.models.native import Native
from costproof.models.proof import Piece, Proof, Provable, RowIdentity, SymbolicRun, reasons

VARIANTS: Final = (
    Workload("text", 512, 4),
    Workload("text, eager, last logits", 512, 4, 1, "float32", "eager", "last"),
)

_ATTENTIONS: Final[tuple[AttentionKind, ...]] = ("sdpa", "eager")
_DECODING: Final = "decoding"
"""Name of the setting that selects between two implementations of decode steps; its first choice is the default."""
_KERNELS: Final[tuple[ExpertKernel, ...]] = ("grouped_mm", "batched_mm")
GROUPED_ROW: Final = 8
"""Random widths are multiples of this for grouped GEMMs, whose rows must be multiples of 16 bytes (8 x bfloat16)."""

# Parameter -> its values, drawn uniformly and independently of all others.
_RUN: Final[Mapping[str, range]] = {"S": range(1, 41), "B": range(1, 33), "b": range(2, 6, 2), "P": range(1, 65)}
CONFIG: Final[Mapping[str, range]] = {
    "text_kv_heads": range(1, 9),
    "text_groups": range(1, 7),
    "text_head_halves": range(1, 21),
    "text_share": range(1, 21),
    "text_intermediate": range(1, 201),
    "text_vocab": range(16, 516),
}
INDEPENDENT: Final[Mapping[str, str]] = {
    "text_heads": "text_kv_heads*text_groups",
    "text_head_dim": "2*text_head_halves",
    "text_hidden": "text_kv_heads*text_groups*text_share",
}
"""Expressions of symbols in drawn parameters, by symbol; rotary heads are even, and heads divide the width."""
_NOT_VARIED: Final = (
    "kernels other than sdpa and eager",
    "1 to 3 decode steps at a drawn past, each exported by itself; in runs of their own there are 2 to 12",
)
LEAST_CONTEXT: Final = 128
"""Shortest context of a drawn configuration, in tokens; longer than any drawn run."""
_NOT_OF_CHUNKS: Final = (
    "that chunks cost as much as their prompt in other metrics than kept scores, kept FLOPs and added cache: each "
    "reads weights and its prefix again, and its kernels may compute hidden scores"
)
_NOT_OF_LATENTS: Final = (
    "that the kept FLOPs of chunks of latent attention sum to those of the prompt: each expands the latents of its "
    "prefix again"
)
_ONE: Final = "the configuration: identities hold for this one"
STEPS: Final = (1, 1, 1, 2, 3)
"""Numbers of decode steps to draw from; repeated numbers are more likely."""
_FEW: Final = (1, 1, 1, 2, 2)
_DEEP: Final = 33
"""Remainder modulo 64 of the numbers of those draws that have more layers than the target."""


def layers(rng: random.Random, number: int, target: int) -> int:
    """Return the number of layers of a random configuration: 1 or 2, but once in 64 one more than the target has."""
    few = rng.choice(_FEW)
    return target + 1 if number % 64 == _DEEP else few


Drawn = tuple[Provable, Mapping[str, bool]]
"""Target with a random configuration, and whether the configuration has each feature, by feature."""
T = TypeVar("T", bound=DecoderConfig)


def random_config(config_type: type[T], sizes: Mapping[str, int], rng: random.Random) -> T:
    """Return a configuration with the given sizes and with random flags, window and activation.

    The window is either longer than the drawn run, or no longer than its prompt and its cache.
    """
    heads = sizes["text_kv_heads"] * sizes["text_groups"]
    more: dict[str, Any] = {name: rng.random() < 0.5 for name in config_type.flag_names()}
    if issubclass(config_type, WindowedConfig):
        filled = min(sizes["S"], sizes["P"]) + 1
        short = filled >= LEAST_WINDOW and rng.random() < 0.5
        window = rng.randint(LEAST_WINDOW, filled) if short else max(_RUN["S"].stop, _RUN["P"].stop) + max(STEPS)
        more |= {"pattern": rng.choice(config_type.patterns), "window": window}
    common = {
        "hidden": heads * sizes["text_share"],
        "intermediate": sizes["text_intermediate"],
        "layers": sizes["layers"],
        "heads": heads,
        "kv_heads": sizes["text_kv_heads"],
        "head_dim": 2 * sizes["text_head_halves"],
        "vocab": sizes["text_vocab"],
        "max_positions": rng.randint(LEAST_CONTEXT, 2 * LEAST_CONTEXT),
        "activation": rng.choice(tuple(ACTIVATION_FLOPS)),
    }
    return config_type(**{**common, **more, **config_type.draw_fields(sizes, rng)})


def features(config: DecoderConfig) -> dict[str, bool]:
    """Return whether a configuration has each feature, for features that are not sizes in a formula."""
    windows = config.windows()
    routed = config.routed() if isinstance(config, MixtureConfig) else ()
    return {
        "shared key/value heads": config.kv_heads < config.heads,
        "biases in attention": getattr(config, "attention_bias", False),
        "biases in the MLP": getattr(config, "mlp_bias", False),
        "a tied output projection": config.tied,
        "another activation than SiLU": config.activation != "silu",
        "heads as wide as the width in all": config.heads * config.head_dim == config.hidden,
        "layers with a window": any(windows),
        "layers with and without a window": any(windows) and not all(windows),
        "layers with experts": any(routed),
        "dense layers beside those with experts": any(routed) and not all(routed),
    }


Draw = Callable[[Mapping[str, int], random.Random], Drawn | None]
"""Function from parameter values and a random generator to a configuration; ``None`` if the family draws none."""


def proof(target: Provable, own: DecoderConfig, config: str, samples: int, seed: int, draw: Draw) -> Proof:
    """Return the proof: exports in symbolic batch, prompt, context and steps, and exports of random configurations.

    Args:
        own: the target's configuration.
        config: the same, normalised, as JSON.
        draw: draws a configuration of the family.
    """
    kind, choices = type(own), {s.name: s.choices for s in target.settings()}
    variants = [v if v.attention in choices["attention"] else replace(v, attention="eager") for v in VARIANTS]
    if "experts" in choices:
        variants[-1] = replace(variants[-1], experts=_KERNELS[1])
    for other in choices.get(_DECODING, ())[1:]:
        variants.append(replace(variants[0], name=f"text, {other} decoding", inputs={_DECODING: other}))
    ranges = {**CONFIG, **kind.ranges, **_RUN}
    depth = target.info().symbols["text_layers"]
    made = [m for number in range(samples) if (m := _drawn(draw, seed, number, choices, ranges, depth)) is not None]
    count = len(made)
    return Proof(
        pieces=(
            *(Piece(f"identity: {w.name}", "identities", target, w) for w in variants),
            *(piece for piece, _ in made),
            *(piece for w in variants for piece in row_identities(target, own, w)),
            *(counted_pairs(piece, seed) for piece, _ in made),
        ),
        settings=Settings(count, seed, config),
        usual=variants[0],
        ranges={name: len(values) for name, values in ranges.items()} if count else {},
        independent={**INDEPENDENT, **kind.derived} if count else {},
        choices=Counter(name for _, present in made for name, is_present in present.items() if is_present),
        not_varied=(*_NOT_VARIED, *reasons(kind)) if count else (_ONE, _NOT_VARIED[0]),
        not_claimed=(_NOT_OF_CHUNKS, *((_NOT_OF_LATENTS,) if issubclass(kind, LatentConfig) else ())),
    )


def _drawn(
    draw: Draw, seed: int, number: int, choices: Mapping[str, Sequence[str]], ranges: Mapping[str, range], depth: int
) -> tuple[Piece[Provable], Mapping[str, bool]] | None:
    """Return the proof piece of random configuration ``number``, and its features; ``None`` if the family draws none.

    It depends only on seed and number, so it is equal on every machine.
    """
    rng = random.Random(f"costproof:{seed}:{number}")
    p = {name: rng.choice(values) for name, values in ranges.items()}
    p["layers"] = layers(rng, number, depth)
    attention: AttentionKind = rng.choice([a for a in _ATTENTIONS if a in choices["attention"]])
    logits: Logits = rng.choice(("all", "last"))
    dtype: Dtype = "bfloat16" if p["b"] == FLOAT_BYTES["bfloat16"] else "float32"
    steps = rng.choice(STEPS)
    work = Workload(f"draw {number}", p["S"], steps, p["B"], dtype, attention, logits)
    if "experts" in choices:
        work = replace(work, experts=rng.choice(_KERNELS))
        p["row"] = GROUPED_ROW if work.experts == "grouped_mm" else 1
    drawn = draw(p, rng)
    if drawn is None:
        return None
    target, present = drawn
    of_run = {
        "eager attention": attention == "eager",
        "the last logits alone": logits == "last",
        "several decode steps": steps > 1,
    }
    if "experts" in choices:
        of_run["grouped GEMMs"] = work.experts == "grouped_mm"
    if _DECODING in choices:
        default, other = choices[_DECODING]
        decoding = rng.choice((default, other))
        work = work if decoding == default else replace(work, inputs={_DECODING: decoding})
        of_run[f"{other} decoding"] = decoding == other
    piece = Piece(f"draws: {number}", "draws", target, work, sizes={"P": p["P"], "N": steps})
    return piece, {**present, **of_run}


# --- Ranks of a mesh -------------------------------------------------------------------------------------------------

_ATTEMPTS: Final = 60
"""Maximum number of draws of a configuration and a mesh until a pair is valid."""
_OF_RANKS: Final = (
    "that runs equal the graphs of ranks, and their live peaks: costproof report compares runs of ranks",
    "the bounds of links, which costproof roofline counts again",
)
_ORDERS: Final = ("ring", "ulysses")
"""Plans of context parallelism other than zigzag, the default."""
_NO_STEPS: Final = "decode steps, which are not counted on this mesh"
_ONE_PROMPT: Final = "other prompts than {length} tokens, of which the identities export a rank"
_NO_BOUND: Final = "a bound of the chance to miss a mistake: widths that a mesh divides are not drawn independently"


def mesh_proof(
    made: Proof, target: Provable, draw: Draw, mesh: Mesh, plan: str | None, cp_plan: str | None, dispatch: str | None
) -> Proof:
    """Return a proof over a mesh: ranks in symbols, sums over ranks, random configurations on random parts of the mesh.

    Args:
        made: the proof for one device, whose variants and number of draws it has.
        draw: draws a configuration of the family.
        mesh: the devices.
        plan: by which ranks share the model; ``None`` for that of the class, and draws with plans of engines too.
        cp_plan: how ranks share a sequence; ``None`` for zigzag order, and draws with the others too.
        dispatch: how tokens reach experts of other ranks; the proof draws pairs for ``all-to-all``.

    Raises:
        Problems: the target cannot be spread over the mesh.
    """
    if problems := mesh.problems(more=AXES):
        raise Problems("the workload cannot be run", problems)
    given: dict[str, Any] = {axis: n for axis in AXES if (n := getattr(mesh, axis)) > 1}
    if plan is not None and mesh.tp > 1 and (stored := stored_plan(plan)) != OWN:
        given[PLAN] = stored
    given |= {} if cp_plan is None else {CP_PLAN: cp_plan}
    given |= {} if dispatch in (None, ALL_GATHER) else {DISPATCH: dispatch}
    name = ", ".join(f"{key} {value}" for key, value in given.items())
    pieces: list[Piece[Provable]] = []
    alike: dict[object, str] = {}
    variants: list[Workload] = []
    for piece in (p for p in made.pieces if p.phase == "identities"):
        w = piece.workload
        w = replace(w, name=f"{w.name} on {name}", inputs={**w.inputs, **given})
        unit = w.mesh.tp * (2 * w.mesh.cp if w.mesh.cp > 1 else 1)  # zigzag parts are halves of a rank's
        w = replace(w, batch=2 * w.mesh.dp * w.mesh.fsdp)
        # A prompt of the usual length may be longer than the context, or a shorter one end within a window.
        tried = [
            _fitting(target, replace(w, text_tokens=length), made.settings.seed) for length in _lengths(target, w, unit)
        ]
        fitting = next((found for found in tried if not isinstance(found, Problems)), tried[0])
        if isinstance(fitting, Problems):
            raise fitting
        if all(replace(fitting, name=other.name) != other for other in variants):
            variants.append(fitting)
    for variant in variants:
        for rank in range(variant.mesh.world):
            run = replace(variant, name=f"{variant.name}, rank {rank}", inputs={**variant.inputs, RANK: rank})
            calls = tuple((c.stage, *sorted(c.symbols.items())) for c in target.invocations(run))
            key = (variant is variants[0] or rank, run.mesh.coordinates(rank).pp, calls)
            if (variant is variants[0] or rank == 0) and key not in alike:
                alike[key] = run.name
                pieces.append(Piece(f"identity: {run.name}", "identities", target, run))
        pieces.append(Piece(f"ranks: {variant.name}", "ranks", target, variant))
    masked = any(cast(Native[Any], target).config.windows()) or any(w.attention == "eager" for w in variants)
    fixed = "ulysses" if masked else "zigzag"
    of_one_length = (
        DISPATCH in given
        or given.get(PLAN) == "megatron"
        or (mesh.cp > 1 and (cp_plan or "zigzag") in ("zigzag", fixed))
    )
    left_out, choices = 0, Counter[str]()
    for number in range(made.settings.samples):
        found = _drawn_on_mesh(target, draw, made.settings.seed, number, given, own_plan=plan is None)
        if found is None:
            left_out += 1
        else:
            piece, present = found
            pieces += [piece, replace(piece, id=f"ranks: {piece.workload.name}", phase="ranks")]
            choices.update(feature for feature, has in present.items() if has)
    return replace(
        made, pieces=tuple(pieces), usual=variants[0], ranges={}, independent={}, choices=choices,
        settings=replace(made.settings, chosen={axis: str(n) for axis, n in given.items()}),
        not_varied=(_NOT_VARIED[0], *reasons(type(cast(Native[Any], target).config))) if choices else made.not_varied,
        not_claimed=(*_OF_RANKS, _NO_BOUND, *([_NO_STEPS] if not any(w.new_tokens for w in variants) else ()),
                     *([_ONE_PROMPT.format(length=variants[0].text_tokens)] if of_one_length else ()),
                     *([f"{left_out} draws without a legal mesh"] if left_out else ())),
    )  # fmt: skip


def _lengths(target: Provable, workload: Workload, unit: int) -> list[int]:
    """Return the lengths of a prompt to try, multiples of ``unit``: the usual one if the context has room, or shorter.

    Raises:
        BadInput: the context has no room for any.
    """
    most = cast(Native[Any], target).config.max_positions
    room = most - workload.new_tokens
    found = [length // unit * unit for length in (workload.text_tokens, room, most // 2, most // 4)]
    if not any(0 < length <= room for length in found):
        what = "the context of the model has no room for a prompt that these ranks can share"
        least = unit + workload.new_tokens
        raise BadInput(what, where=workload.mesh.text, expected=f"at least {least} positions", got=most)
    return [length for length in found if 0 < length <= room]


def _fitting(target: Provable, workload: Workload, seed: int) -> Workload | Problems:
    """Return the workload with the changes that its mesh requires, or the reasons why none of them makes it valid.

    Ranks that share a sequence run sdpa, unless by heads, and return all logits; of a prompt only if steps are refused.
    Ranks that send each other pairs run a prompt, with pairs of a routing that is drawn.
    """
    run, mesh = workload, workload.mesh
    if DISPATCH in run.inputs:
        run = replace(run, new_tokens=0, inputs={**run.inputs, PAIRS: drawn_pairs(target, run, seed)})
    elif mesh.cp > 1:
        attention = run.attention if by_heads(cast(Native[Any], target).config, run) else "sdpa"
        name = run.name.replace("eager, last logits", "eager" if attention == "eager" else run.dtype)
        run = replace(run, name=name, attention=attention, logits="all")
    problems = target.problems(run)  # type: ignore[attr-defined]
    if problems and mesh.cp > 1:
        run = replace(run, new_tokens=0, inputs={k: v for k, v in run.inputs.items() if k != _DECODING})
        problems = target.problems(run)  # type: ignore[attr-defined]
    return Problems("the workload cannot be run", problems) if problems else run


def drawn_pairs(target: Provable, workload: Workload, seed: int) -> str:
    """Return the numbers of (token, expert) pairs that ranks send each other under a random routing of a prompt."""
    rng, mesh = random.Random(f"costproof:pairs:{seed}:{workload.name}"), workload.mesh
    top_k = target.info().symbols.get("text_topk", 0)
    rows = []
    for each in (tokens * top_k for tokens in routed_call(workload, PROMPT).sends(mesh)):
        cut = sorted(rng.randint(0, each) for _ in range(mesh.ep - 1))
        rows.append(",".join(str(b - a) for a, b in pairwise((0, *cut, each))))
    return ";".join(rows)


def _drawn_on_mesh(
    target: Provable, draw: Draw, seed: int, number: int, given: Mapping[str, Any], *, own_plan: bool
) -> tuple[Piece[Provable], Mapping[str, bool]] | None:
    """Return the piece of a random configuration on a random sub-mesh, and its features; ``None`` if none is drawn.

    Widths are multiples of the ranks that divide them. If 60 attempts are not legal the draw is left out.
    """
    kind = type(cast(Native[Any], target).config)
    choices = {s.name: s.choices for s in target.settings()}
    ranges = {**CONFIG, **kind.ranges, **_RUN}
    for attempt in range(_ATTEMPTS):
        rng = random.Random(f"costproof:mesh:{seed}:{number}:{attempt}")
        p = {name: rng.choice(values) for name, values in ranges.items()}
        axes = {axis: rng.choice([n for n in range(1, given.get(axis, 1) + 1) if given.get(axis, 1) % n == 0])
                for axis in ("tp", "dp", "pp")}  # fmt: skip
        tp, dp = axes["tp"], axes["dp"]
        axes["ep"] = rng.choice([n for n in sorted({1, tp, tp * dp}) if given.get("ep", 1) % n == 0])
        for axis in AXES[4:]:
            if axis in given:
                axes[axis] = rng.choice([n for n in range(1, given[axis] + 1) if given[axis] % n == 0])
        cp, sharing = axes.get("cp", 1), dp * axes.get("fsdp", 1)
        inputs: dict[str, SettingValue] = {axis: n for axis, n in axes.items() if n > 1}
        engines = (None, *ENGINES) if own_plan else (given.get(PLAN),)
        if tp > 1 and (engine := rng.choice(engines)) is not None:
            inputs[PLAN] = engine
        order = (rng.choice((None, *_ORDERS)) if CP_PLAN not in given else given[CP_PLAN]) if cp > 1 else None
        inputs |= {} if order is None else {CP_PLAN: order}
        inputs |= {DISPATCH: given[DISPATCH]} if DISPATCH in given and axes["ep"] > 1 else {}
        p["text_kv_heads"] *= tp * cp if order == "ulysses" else 1
        p["layers"] = max(rng.choice(_FEW), axes["pp"])
        p["text_intermediate"] *= tp
        p["text_groups"] *= tp // gcd(tp, p["text_kv_heads"] * p["text_groups"])
        p["S"] *= tp * (2 * cp if cp > 1 else 1)
        attention: AttentionKind = rng.choice([a for a in _ATTENTIONS if a in choices["attention"]])
        dtype: Dtype = "bfloat16" if p["b"] == FLOAT_BYTES["bfloat16"] else "float32"
        batch = max(1, p["B"] // sharing) * sharing + rng.randrange(sharing)
        logits: Logits = rng.choice(("all", "last"))
        inputs[RANK] = rng.randrange(tp * sharing * cp * axes["pp"])
        work = Workload(f"draw {number}", p["S"], rng.choice(STEPS), batch, dtype, attention, logits, inputs=inputs)
        if "experts" in choices:
            work = replace(work, experts=rng.choice(_KERNELS))
            p["row"] = GROUPED_ROW * tp if work.experts == "grouped_mm" else 1
        drawn = draw(p, rng)
        if drawn is None:
            return None
        fitting = _fitting(drawn[0], work, seed)
        if work.mesh.one or isinstance(fitting, Problems):
            continue
        work = fitting
        features = {**drawn[1], **{f"{axis} above 1": n > 1 for axis, n in axes.items()},
                    **{f"plan {engine}": inputs.get(PLAN) == engine for engine in ENGINES},
                    **({f"cp plan {order}": True} if order else {}), "pairs": DISPATCH in inputs}  # fmt: skip
        # The context of ranks that share a sequence is their part of it.
        sizes = {**({"P": p["P"]} if cp == 1 else {}), "N": work.new_tokens}
        return Piece(f"draws: {number}", "draws", drawn[0], work, sizes=sizes), features
    return None


_CHUNK: Final = (KEPT_SCORES, "kv_cache_bytes")
"""Metrics that add up over the chunks of a prompt; others do not, as chunks compute all scores and read the cache."""
_STEP: Final = ("flops", KEPT_FLOPS, KEPT_SCORES, "kv_read_bytes", "kv_cache_bytes")
"""Metrics of decode steps that add up over sequences; others do not, as weights and positions are shared."""
_ONE_STEP: Final = tuple(m for m, info in EVERY_METRIC.items() if m not in {*STAGE_WIDE, FLOOR} and not info.convention)
"""Metrics of one decode step that are compared module by module."""


def row_identities(target: Provable, config: DecoderConfig, workload: Workload) -> Iterator[Piece[Provable]]:
    """Yield identities between batches of rows; each holds for all sizes on its example's side of each window.

    * Chunks of C and S - C tokens are the prompt of S tokens: applied again, chunks of any lengths are.
    * S tokens after a prefix of C are the prompt of C + S without the pairs of the first C tokens.
    * B steps at a context of P tokens and one at C are the decode formula at P and at C.

    Latent attention expands the latents of a past again for each chunk, so that kept FLOPs do not add up.
    """
    windows, latent = sorted({*config.windows()} - {0}), isinstance(config, LatentConfig)
    b, s = sym("B"), sym("S")
    item = {"b": FLOAT_BYTES[workload.dtype]}
    last, chunk = replace(workload, logits="last"), (*_CHUNK, *(() if latent else (KEPT_FLOPS,)))

    def piece(name: str, *identity: Any) -> Piece[Provable]:
        return Piece(f"rows: {name}, {workload.name}", "rows", target, workload, identity=RowIdentity(*identity))

    def rows(*given: tuple[BatchRow, tuple[Any, Any, Any]]) -> tuple[SymbolicRun, ...]:
        return (rows_in_symbols(config, last, given),)

    def prompt(length: int, size: sympy.Expr) -> tuple[SymbolicRun, ...]:
        run = replace(last, text_tokens=length, new_tokens=0)
        return (SymbolicRun(run, "prefill", {"B": "1", "S": text(size), "L": "1"}),)

    def sized(length: int, size: sympy.Expr) -> sympy.Expr:
        """Return the symbol, or the number for a prompt of window - 1 tokens, which has its own formula."""
        return sympy.Integer(length) if length + 1 in windows else size

    def step(context: int, size: sympy.Expr, batch: sympy.Expr) -> SymbolicRun:
        run = replace(last, text_tokens=context, new_tokens=1)
        return SymbolicRun(run, "decode", {"B": text(batch), "P": text(size), "N": "1"})

    for first, whole in _examples(windows):
        new, at = whole - first, {CACHED.name: first, str(s): whole, **item}
        c, all_tokens = sized(first, CACHED), sized(whole, s)
        row = BatchRow(first, logits=0), (1, c, 0)
        chunks, one = rows(row, (BatchRow(new, first), (1, all_tokens - c, c))), prompt(whole, all_tokens)
        yield piece(f"chunks {first} and {new}+{first} are a prompt of {whole}", chunks, one, chunk, at)
        below = tuple(text(-_pairs_below(first, w).subs(CACHED, c)) for w in config.windows() or (0,) * config.layers)
        hit = rows((BatchRow(new, first), (1, all_tokens - c if all_tokens.is_Integer else s, c)))
        name = f"{new}+{first} is a prompt of {whole} less the pairs of {first}"
        yield piece(name, hit, prompt(whole, sized(whole, c + s)), _CHUNK[:1], {**at, str(s): new}, below)
    for first, after in _examples(windows, gap=1):
        c = sized(first, CACHED)
        row, at = (BatchRow(first, logits=0), (1, c, 0)), {CACHED.name: first, **item}
        chunks = rows(row, (BatchRow(1, first), (1, 1, c)))
        yield piece(
            f"chunks {first} and 1+{first} are a prompt of {after}",
            chunks,
            prompt(after, sized(after, c + 1)),
            chunk,
            at,
        )
        # Two tokens below a window is a size of its own: the token of the step fills the cache.
        p, end = (sympy.Integer(n) if n + 2 in windows else x for n, x in ((first, CONTEXT), (after, CACHED)))
        steps = rows((BatchRow(1, first, 3), (b, 1, p)), (BatchRow(1, after), (1, 1, end)))
        both = step(first, p, b), step(after, end, sympy.Integer(1))
        at = {CONTEXT.name: first, CACHED.name: after, "B": 3, **item}
        yield piece(f"3x1+{first} and 1+{after} are steps at {first} and {after}", steps, both, _STEP, at)
        one, at = (step(first, p, sympy.Integer(1)),), {CONTEXT.name: first, **item}
        yield piece(f"1+{first} is a step at {first}", rows((BatchRow(1, first), (1, 1, p))), one, _ONE_STEP, at)


def _examples(windows: Sequence[int], gap: int = 0) -> Iterator[tuple[int, int]]:
    """Yield pairs of an earlier and a later length, one for each combination of sides of the windows.

    Args:
        gap: how much longer the later is (default: 2 or more).
    """
    ends = sorted({2, 37, *(w + k for w in windows for k in (-3, -2, -1, 0, 1, 40)), 100 + 2 * max(windows, default=0)})
    pairs = ((a, a + gap) for a in ends) if gap else ((a, b) for a in ends for b in ends if b - a > 1)
    found: dict[object, tuple[int, int]] = {}
    for one, other in pairs:
        sides = tuple(end >= w for end in (one, one + 1, other, other + 1) for w in windows)
        found.setdefault(sides, (one, other)) if one > 1 else None
    yield from found.values()


def _pairs_below(length: int, window: int) -> sympy.Expr:
    """Return the number of query-key pairs of C causal queries: 1 + 2 + ... with at most ``window`` keys per query.

    Args:
        length: an example of C, on the same side of the window.
        window: keys that a query sees at most; 0 for all.
    """
    if not window or length + 1 < window:
        return CACHED * (CACHED + 1) / 2
    return sympy.Integer(window * (window + 1) // 2) + window * (CACHED - window)


def counted_pairs(piece: Piece[Provable], seed: int) -> Piece[Provable]:
    """Return a proof piece that compares the kept scores of a random batch of rows with a one-by-one count.

    Args:
        piece: a random configuration, which runs the batch.
        seed: of the proof.
    """
    rng = random.Random(f"costproof:rows:{seed}:{piece.id}")
    rows = [
        BatchRow(rng.choice((1, rng.randint(2, 40))), rng.choice((0, rng.randint(1, 60))), rng.randint(1, 4))
        for _ in range(rng.randint(1, 5))
    ]
    batch = batch_of(piece.workload, rows)
    (call,) = piece.target.invocations(batch)
    assert isinstance(piece.target, Native)
    config: DecoderConfig = piece.target.config
    pairs = {w: str(sum(row.count * _seen(row, w) for row in rows)) for w in {*config.windows(), 0}}
    each = tuple(pairs[w] for w in config.windows() or (0,) * config.layers)
    run = SymbolicRun(batch, call.stage, {name: str(size) for name, size in call.symbols.items()})
    identity = RowIdentity((run,), (), (KEPT_SCORES,), call.symbols, each)
    return Piece(f"rows: of {piece.workload.name}", "rows", piece.target, batch, sizes={}, identity=identity)


def _seen(row: BatchRow, window: int) -> int:
    """Count the query-key pairs of one sequence that its causal mask and window keep, one by one."""
    length = row.past + row.new
    return sum(
        k <= q and (not window or q - k < window) for q in range(row.past, length) for k in range(length)
    )  # fmt: skip
