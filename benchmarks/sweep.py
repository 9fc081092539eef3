"""Sweeps: points per second on one core, exactness on a million adversarial points, and memory over a hundred million.

``python -m benchmarks.sweep [speed|exact|memory]`` prints the tables of docs/sweeps.md.
"""

from __future__ import annotations

import os
import random
import resource
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import sympy

from costproof.algebra.symbols import parse, sym
from costproof.models.registry import load_target
from costproof.parametric.evaluator import Evaluator
from costproof.parametric.exact_arrays import Int128Array
from costproof.run.sweep import Sweep, sweep
from costproof.run.sweep_parts import PART_POINTS

BATCHES, TOKENS = range(1, 1001), range(1, 10_001)
"""Ten million points of Llama 3.1 8B."""


def main(words: list[str]) -> None:
    """Run the parts that are named, or all."""
    print(f"load average before: {os.getloadavg()[0]:.2f}")
    for name, part in {"speed": speed, "exact": exact, "memory": memory}.items():
        if not words or name in words:
            part()
    print(f"load average after: {os.getloadavg()[0]:.2f}")


def rate(made: Sweep) -> float:
    """Points per second, after the shapes are known."""
    for part in made.parts():
        if part.points:
            break
    points, begun = 0, perf_counter()
    for part in made.parts():
        points += part.points
    return points / (perf_counter() - begun)


def by_hand(b: Any, s: Any) -> Any:
    """Headline FLOPs of a prefill of Llama 3.1 8B: 32 layers 4096 wide, 32 heads of 128, 8 of them with keys."""
    projections = 2 * 4096 * (4096 + 2 * 1024 + 4096) + 3 * 2 * 4096 * 14336
    return b * s * (32 * projections + 2 * 4096 * 128256 + 32 * 4 * 4096 * s)


def hand_rate() -> float:
    """Points per second of :func:`by_hand`, with a column for what varies as a table has it."""
    s, begun = np.array(TOKENS), perf_counter()
    step = PART_POINTS // len(TOKENS)
    for at in range(0, len(BATCHES), step):
        b = np.arange(BATCHES.start + at, min(BATCHES.start + at + step, BATCHES.stop))
        by_hand(np.repeat(b, len(s)), np.tile(s, len(b)))
    return len(BATCHES) * len(TOKENS) / (perf_counter() - begun)


def sympy_rate() -> float:
    """Points per second of ``subs`` on the formula of that stage, summed and expanded."""
    target: Any = load_target("llama-3.1-8b")
    ledger = target.formulas(target.workload())
    nodes = [n.exprs["flops"] for n in ledger.nodes if n.stage == "prefill" and "flops" in n.exprs]
    values = {sym(k): v for k, v in target.info().symbols.items()}
    formula = sympy.expand(sympy.Add(*map(parse, nodes)).subs(values))
    begun = perf_counter()
    for s in range(1, 201):
        at = {sym("B"): 3, sym("S"): s, sym("L"): s}
        assert int(formula.subs(at)) == int(by_hand(np.array([3]), np.array([s]))[0])
    return 200 / (perf_counter() - begun)


def speed() -> None:
    """The table of speeds."""
    over = {"batch": BATCHES, "text_tokens": TOKENS}
    one = sweep("llama-3.1-8b", over, metrics=["flops"], stages=["prefill"])
    one.cells = (("prefill", "flops"),)
    all_ = sweep("llama-3.1-8b", over)
    over_ocr = {"grid": "2x2,3x3", "base_size": "512:1024:64", "batch": "1:64", "text_tokens": "1:900"}
    ocr = sweep("deepseek-ocr", over_ocr)
    over_long = {"layers": [126], "batch": BATCHES, "text_tokens": range(121_001, 131_001)}
    long = sweep("llama-3.1-8b", over_long, metrics=["flops"])
    long.cells = (("prefill", "flops"),)
    wide = [isinstance(part.costs["prefill.flops"], Int128Array) for part in long.parts()]
    first = next(iter(one.parts()))
    want = by_hand(first.varied["batch"], first.varied["text_tokens"])
    assert np.array_equal(first.costs["prefill.flops"], want)  # type: ignore[arg-type]
    rows: list[tuple[str, Callable[[], float]]] = [
        ("llama-3.1-8b, FLOPs of the prefill", lambda: rate(one)),
        ("the same, NumPy by hand", hand_rate),
        ("the same, sympy subs", sympy_rate),
        (
            f"the same with 126 layers and 121,001 to 131,000 tokens, {100 * sum(wide) // len(wide)} % beyond 2^63",
            lambda: rate(long),
        ),
        ("llama-3.1-8b, all stages x FLOPs, weights, KV, bytes", lambda: rate(all_)),
        ("deepseek-ocr, all stages x FLOPs, weights, KV, bytes", lambda: rate(ocr)),
    ]
    # In turns, so that what else the machine does meets all of them; the best of five.
    best = dict.fromkeys((name for name, _ in rows), 0.0)
    for _ in range(5):
        for name, run in rows:
            best[name] = max(best[name], run())
    print("| | points per second |\n|---|---|")
    for name, found in best.items():
        print(f"| {name} | {found:,.0f} |")


def exact(count: int = 1_000_000) -> None:
    """Random and extreme points of every size up to 2^31, each against Python's integers."""
    points, rng, part = Evaluator.of("llama-3.1-8b"), random.Random(10), 8192
    edges = [2**b + d for b in range(1, 31) for d in (-1, 0, 1)]
    keys = {"vocab": 1, "intermediate": 1, "max_positions": 2**31 - 1}
    shape, _ = points.regime(points.choices(keys, None, {"batch": 1, "text_tokens": 3}))
    cells = [("", "params"), ("", "flops"), ("prefill", "kv_cache_bytes")]
    wrong = done = wide = python = 0
    while done < count:
        b, s, vocab, inner = (np.array([_drawn(rng, edges) for _ in range(part)]) for _ in range(4))
        b, s = b % 1024 + 1, s % (2**31 - 2) + 1
        most = np.full(part, 2**31 - 1)
        values = {"setting:batch": b, "setting:text_tokens": s, "key:vocab": vocab, "key:intermediate": inner}
        values["key:max_positions"] = most
        inside = np.broadcast_to(shape.mask(values), (part,))
        values = {n: v[inside] for n, v in values.items()}
        columns = shape.columns(cells, values, (int(inside.sum()),))
        wide += sum(isinstance(c, Int128Array) for c in columns)
        python += sum(not isinstance(c, Int128Array) and c.dtype == object for c in columns)
        found = zip(*((c.python() if isinstance(c, Int128Array) else c).tolist() for c in columns), strict=True)
        sizes = zip(*(v.tolist() for v in list(values.values())[:4]), strict=True)
        for got, size in zip(found, sizes, strict=True):
            wrong += got != _by_hand(*size)
            done += 1
    print(f"{done:,} points x {len(cells)} columns, {wrong} wrong; of the columns of {part:,} points {wide} had")
    print(f"128 bits, {python} took Python's integers, the others int64")


def _drawn(rng: random.Random, edges: list[int]) -> int:
    return rng.choice(edges) if rng.random() < 0.5 else rng.randrange(1, 2**30)


def _by_hand(b: int, s: int, vocab: int, inner: int) -> tuple[int, int, int]:
    """Parameters, FLOPs of prefill and of one step, bytes of the cache; with another MLP and vocabulary."""
    layer = 2 * 4096 * (4096 + 2 * 1024 + 4096) + 3 * 2 * 4096 * inner
    prefill = b * s * (32 * layer + 2 * 4096 * vocab + 32 * 4 * 4096 * s)
    decode = b * (32 * layer + 2 * 4096 * vocab + 32 * 4 * 4096 * (s + 1))
    params = 2 * 4096 * vocab + 32 * (4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * inner + 2 * 4096) + 4096
    return params, prefill + decode, 32 * 2 * b * s * 1024 * 2


def memory(points: int = 100_000_000) -> None:
    """Resident memory over a sweep of a hundred million points."""
    made = sweep(
        "llama-3.1-8b", {"batch": range(1, 1001), "text_tokens": range(1, points // 1000 + 1)}, metrics=["flops"]
    )
    done, begun, seen = 0, perf_counter(), []
    for part in made.parts():
        done += part.points
        if done % 10_000_000 < PART_POINTS:
            seen.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
    seconds = perf_counter() - begun
    print(f"{done:,} points in {seconds:.1f} s; peak resident memory after each ten million: {seen} MiB")


if __name__ == "__main__":
    main(sys.argv[1:])
