"""How often numbers that no mistake made get a cause: ``python -m benchmarks.false_claims``.

Kinds of numbers, each about every stage of DeepSeek-OCR, exact and with four digits: within 1 %, 10 % and a
factor of 2 of the truth; products of the model's own sizes; random expressions in them, which are claimed as formulas
too where their number fits; the truth of another stage, at this and other workloads. Beside them exact multiples of
what all parts of the truth are multiples of. Numbers are drawn in blocks; a block that is
in FILE is not judged again, so that it can be stopped and go on, and a FILE of other sources is refused. Exit 0 if of
exact numbers of each kind one in a thousand is named at most, and of rounded ones not more than their own chances
say; 3 if blocks are left.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import cache
from math import gcd
from pathlib import Path

from tests import oracles
from tests.oracles.claims import MISTAKES, Planted, case_of, judged_in, world
from tests.oracles.wrong_models import flops

import costproof
from costproof.claims.explaining import CHANCE
from costproof.claims.judge import judge_claim
from costproof.claims.types import Formula, PublishedClaim

BLOCK = 500
RARE = 1_000
"""Of so many exact numbers one may get a cause."""
DIGITS = (0, 4)
_TERMS = 4
_AFFINE = 0.2
_WRITTEN = "random expressions"
_MULTIPLES = "multiples of the grain"
"""Rounded they are numbers like all others."""
_STAGES = tuple(MISTAKES)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A number that no mistake made, and the expression that it is the value of."""

    value: int
    formula: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """Numbers of one kind, printed with so many digits (0: all), and what became of them."""

    state: str
    seed: int
    kind: str
    digits: int
    first: int
    numbers: int
    different: int
    named: int
    fits: int
    """Shown to fit, and not called evidence."""
    stated: str
    """Sum of the chances that the judgements state, each up to the one with which nothing is named any more."""
    formulas: int
    """Expressions that got a cause as formulas."""


@cache
def truths() -> Mapping[str, int]:
    """What each stage costs."""
    return {stage: int(flops(world()[1], stage, frozenset())) for stage in MISTAKES}


@cache
def sizes() -> Mapping[str, int]:
    """The model's own."""
    return {name: value for name, value in sorted(world()[1].d.items()) if value > 1}


def product(rng: random.Random, least: int) -> int:
    """Sizes multiplied until there is enough."""
    value, known = 2, sorted(set(sizes().values()))
    while value < least:
        value *= rng.choice(known)
    return value


def expression(rng: random.Random, about: int) -> Drawn:
    """A sum of products of sizes, with coefficients, sums as factors and halves, of some such size."""
    text, value = "", 0
    for _ in range(rng.randint(1, _TERMS)):
        least = about // rng.choice((2, 4, 16, 64, 256))
        factors, term = [str(coefficient := rng.choice((1, 2, 3, 4, 6, 8)))], coefficient
        while term < least:
            if rng.random() < _AFFINE:
                (a, x), (b, y) = rng.sample(sorted(sizes().items()), 2)
                sign = rng.choice("+-") if x > y else "+"
                factors.append(f"({a} {sign} {b})")
                term *= x + y if sign == "+" else x - y
            else:
                name, size = rng.choice(sorted(sizes().items()))
                factors.append(name)
                term *= size
        minus = value > term and rng.random() < _AFFINE
        text += (" - " if minus else " + " if text else "") + "*".join(factors)
        value += -term if minus else term
    return Drawn(value, text)


def elsewhere(rng: random.Random, stage: str) -> int:
    """What another stage costs, at this workload or another one."""
    model = world()[1]
    other = rng.choice([s for s in MISTAKES if s != stage])
    if rng.random() < 1 / len(MISTAKES):
        return truths()[other]
    rows, columns, batch, text = rng.randint(1, 4), rng.randint(1, 4), rng.randint(1, 8), rng.randint(1, 256)
    # The geometry by hand: a global view of 1024, crops of 640, newlines and a separator.
    vision = 16 * 17 + 1 + (rows * 10) * (columns * 10 + 1)
    views = {"global": (batch, 1024), "crops": (batch * rows * columns, 640)}
    prompt = vision + text
    there = replace(model, views=views, batch=batch, prompt=prompt, positions=prompt, steps=rng.randint(1, 512),
                    vision_tokens=vision)  # fmt: skip
    return int(flops(there, other, frozenset()))


def multiple(rng: random.Random, stage: str) -> int:
    """A multiple of what all parts of the truth are multiples of."""
    grain = gcd(*(int(i.value) for i in case_of(world()[0], stage).terms if i.counted))
    return int(truths()[stage] * rng.uniform(0.7, 1.4)) // grain * grain


def near(factor: Callable[[random.Random], float]) -> Callable[[random.Random, str], Drawn]:
    """Numbers so far from the truth."""
    return lambda rng, stage: Drawn(int(truths()[stage] * factor(rng)))


KINDS: Mapping[str, Callable[[random.Random, str], Drawn]] = {
    "within 1 % of the truth": near(lambda rng: 1 + rng.uniform(-0.01, 0.01)),
    "within 10 %": near(lambda rng: 1 + rng.uniform(-0.1, 0.1)),
    "within a factor of 2": near(lambda rng: 2.0 ** rng.uniform(-1, 1)),
    "products of the model's own sizes": lambda rng, stage: Drawn(product(rng, truths()[stage] // 2)),
    _WRITTEN: lambda rng, stage: expression(rng, truths()[stage]),
    "the truth of another stage": lambda rng, stage: Drawn(elsewhere(rng, stage)),
    _MULTIPLES: lambda rng, stage: Drawn(multiple(rng, stage)),
}


def judged_block(state: str, seed: int, kind: str, digits: int, first: int, numbers: int) -> Block:
    """Draw and judge the numbers of a block."""
    rng = random.Random(f"{seed} {kind} {digits} {first}")
    capture = world()[0]
    named, fits, formulas, stated, seen = 0, 0, 0, Fraction(0), set()
    for number in range(numbers):
        stage = _STAGES[number % len(_STAGES)]
        drawn = KINDS[kind](rng, stage)
        judged = judged_in(capture, Planted(stage, frozenset(), drawn.value, digits))
        seen.add((stage, judged.low, judged.high))
        stated += min(Fraction(judged.coincidences), CHANCE)
        fits += judged.status == "undetermined"
        if judged.status == "explained":
            named += 1
            causes = " | ".join(" + ".join(s.cause for s in e.steps) for e in judged.explanations)
            print(f"{kind}, {digits or 'all'} digits, {stage}: {judged.claimed}: {causes} "
                  f"(chance {judged.coincidences})", file=sys.stderr)  # fmt: skip
        # A formula is explained by sets that lead to its number: one whose number fits none is not.
        if drawn.formula and not digits and judged.status not in ("refuted", "unexplained"):
            claim = PublishedClaim("c", "$", stage, "flops", Formula(drawn.formula))
            formulas += judge_claim(case_of(capture, stage).claiming(claim)).status == "explained"
    return Block(state, seed, kind, digits, first, numbers, len(seen), named, fits, str(stated), formulas)


def state() -> str:
    """A short hash of the sources that judge and draw."""
    digest = hashlib.sha256()
    for folder in (Path(costproof.__file__).parent, Path(__file__).parent, Path(oracles.__file__).parent):
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def table(blocks: Sequence[Block]) -> tuple[list[str], bool]:
    """The rows of docs/claims.md, and whether all rates are as they should be."""
    lines = ["| numbers | printed | judged | different | named | by the stated chances | fits, not evidence |",
             "|---|---|---:|---:|---:|---:|---:|"]  # fmt: skip
    good = True
    for kind, digits in itertools.product(KINDS, DIGITS):
        found = [b for b in blocks if (b.kind, b.digits) == (kind, digits)]
        if not found:
            continue
        asked, named = sum(b.numbers for b in found), sum(b.named for b in found)
        stated = float(sum(Fraction(b.stated) for b in found))
        good &= named <= stated if digits else named * RARE < asked
        cells = (kind, f"{digits} digits" if digits else "exact", f"{asked:,}", f"{sum(b.different for b in found):,}",
                 f"{named:,}", f"{stated:.1f}", f"{sum(b.fits for b in found):,}")  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
        if kind == _WRITTEN and not digits:
            formulas = sum(b.formulas for b in found)
            good &= formulas * RARE < asked
            lines.append(f"| {kind}, as formulas | exact | {asked:,} | | {formulas} | | |")
    return lines, good


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge what the file lacks, and print the table."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.false_claims", description=__doc__)
    options.add_argument(
        "--results",
        type=Path,
        metavar="FILE",
        help="blocks that are judged: those that are there, and the others after them",
    )
    options.add_argument("--numbers", type=int, default=10_000, help="of each kind (10,000)")
    options.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many, and go on next time")
    options.add_argument("--only", default="", metavar="KIND", help="kinds whose name begins like this")
    options.add_argument("--digits", type=int, nargs="*", default=DIGITS, help="digits printed; 0: all")
    options.add_argument("--seed", type=int, default=7)
    given = options.parse_args(arguments)
    here, start, left = state(), time.perf_counter(), 0
    kept: Path = given.results or Path(os.devnull)
    lines = kept.read_text(encoding="utf-8").splitlines() if kept.exists() else []
    blocks = [Block(**json.loads(line)) for line in lines]
    if any((b.state, b.seed) != (here, given.seed) for b in blocks):
        print(f"{kept}: judged by other sources, or another seed; write to a new file")
        return 2
    known = {(b.kind, b.digits, b.first) for b in blocks}
    with kept.open("a", encoding="utf-8") as results:
        for digits, kind, first in itertools.product(given.digits, KINDS, range(0, given.numbers, BLOCK)):
            if not kind.startswith(given.only) or (kind, digits, first) in known or (kind == _MULTIPLES and digits):
                continue
            if time.perf_counter() - start > given.seconds:
                left += 1
                continue
            block = judged_block(here, given.seed, kind, digits, first, min(BLOCK, given.numbers - first))
            blocks.append(block)
            print(json.dumps(asdict(block)), file=results, flush=True)
    lines, good = table(blocks)
    print("\n".join(lines))
    print(f"{left} blocks left" if left else f"sources {here}, seed {given.seed}")
    return 3 if left else 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
