"""Ranks of published models: ``python -m benchmarks.ranks [MODEL …] [--layers N] [--plan PLAN] [--random N]``.

For each mesh the ranks are summed by the formulas, on all layers; the rest is one device and the named copies. Of each
group of equal ranks the first and the last are counted by formula, graph and run in every metric and collective, on the
first layers, in full width. ``--time`` prints instead the CPU seconds of a report on one and on eight devices, and
``--random N`` compares formula, graph and run of a random rank of N random small configurations of each family on ten
random meshes each, and sums the ranks of every mesh by the formulas.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

from tests.oracles import random_meshes

import costproof
from costproof.ledger.errors import Incomplete, Problems
from costproof.ledger.mesh import Parallel
from costproof.ledger.run import RunOptions
from costproof.ledger.workload import Workload
from costproof.models.registry import load_target
from costproof.parametric.targets import count_ranks, evaluate_formulas
from costproof.run.capture import count_sources
from costproof.run.prepare import Prepared

MODELS: Final = ("llama-3.1-70b", "qwen3-235b-a22b", "deepseek-v3", "gpt-oss-120b", "llava-1.5-7b")
MESHES: Final[tuple[dict[str, int], ...]] = (
    {}, {"tp": 2}, {"tp": 4}, {"tp": 8}, {"tp": 16}, {"tp": 8, "ep": 8},
    {"dp": 8, "ep": 8, "batch": 8}, {"tp": 2, "dp": 4, "ep": 8, "batch": 4}, {"tp": 4, "dp": 2, "ep": 8, "batch": 2},
)  # fmt: skip
RUN: Final = {"text_tokens": 48, "new_tokens": 2}
SOURCES: Final = ("analytic", "static", "dynamic")


def picked(found: Parallel | None) -> tuple[int, ...]:
    """Return the first and the last rank of each group of equal ranks."""
    return (
        (0,)
        if found is None
        else tuple(sorted({rank for row in found.ranks for rank in (row.ranks[0], row.ranks[-1])}))
    )


def rows(name: str, mesh: dict[str, int], layers: int, more: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    """Yield the cells of each counted rank of a model on a mesh."""
    whole: Any = load_target(name)
    try:
        work: Workload = whole.workload(**RUN, **mesh, **more)
    except Problems as error:
        where = str(error.problems[0].expected)
        yield name, _shown(mesh), "", "", f"not legal: {error.problems[0].what}, {where}", "", "", ""
        return
    found = count_ranks(whole, work, evaluate_formulas(whole, work)) if not work.mesh.one else None
    few = whole.with_options(RunOptions(layers=layers))
    for rank in picked(found):
        start, of = time.process_time(), {} if found is None else {"rank": rank}
        report = count_sources(Prepared(few, few.workload(**RUN, **mesh, **of, **more), SOURCES))
        spent = time.process_time() - start
        each = report.discrepancy.findings
        wrong = [f.id for f in each if f.status != "exact"]
        for line in wrong[:5]:
            print(line, file=sys.stderr)
        ran = " = ".join(x.source for x in report.capture.ledgers if x.source in SOURCES)
        missing = "; ".join(why for source, why in report.capture.lacking.items() if source in SOURCES)
        sent = 0 if found is None else sum(c.sent_bytes for c in found.collectives if c.stage == "prefill")
        held = evaluate_formulas(whole, whole.workload(**RUN, **mesh, **of, **more)).total("weight_bytes")
        counts = (f"{len(each):,}", f"{len(wrong)}", f"{spent:.0f}")
        yield name, _shown(mesh), rank, f"{held:,}", f"{sent:,}", _sources(ran, missing), *counts


def _sources(ran: str, missing: str) -> str:
    """Return the sources that were equal, and why one of them did not run."""
    return f"{ran} ({missing})" if missing else ran


def _shown(mesh: dict[str, int]) -> str:
    return ", ".join(f"{axis} {n}" for axis, n in mesh.items()) or "1 device"


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its children that have ended."""
    found = os.times()
    return found.user + found.system + found.children_user + found.children_system


def times(name: str, layers: int, more: dict[str, Any]) -> tuple[object, ...]:
    """Return the CPU seconds of a report of all sources, as text and JSON, on one device, on eight, and their ratio."""
    spent = []
    for mesh in ({}, {"tp": 8}) * 2:  # the first pair warms up
        start = _cpu_seconds()
        run: dict[str, Any] = {**RUN, **(mesh | more if mesh else {})}
        made = costproof.report(name, sources=SOURCES, layers=layers, no_cache=True, **run)
        made.render("static-md")
        made.render("static-json")
        spent.append(_cpu_seconds() - start)
    one, eight = spent[2:]
    return name, f"{one:.2f}", f"{eight:.2f}", f"{eight / one:.2f}"


def drawn(family: str, configurations: int) -> tuple[object, ...]:
    """Return the cells of random configurations of a family on random meshes: counts, and what differs."""
    rng, models = random.Random(f"{family} all"), random_meshes.configurations(family)
    meshes, quantities, wrong, refused = 0, 0, 0, Counter[str]()
    for model in islice(models, configurations):
        for work in islice(random_meshes.meshes(model, rng), random_meshes.MESHES):
            where = f"{family}, {model.config}, {work.inputs}"
            report = count_sources(Prepared(model, work, SOURCES))
            found = [f.id for f in report.discrepancy.findings if f.status != "exact"]
            found += [error.line for error in count_ranks(model, work, evaluate_formulas(model, work)).problems()]
            for line in found[:3]:
                print(f"{where}: {line}", file=sys.stderr)
            meshes, quantities, wrong = meshes + 1, quantities + len(report.discrepancy.findings), wrong + len(found)
            refused.update(source for source in SOURCES if source in report.capture.lacking)
    return family, configurations, meshes, f"{quantities:,}", wrong, refused["static"], refused["dynamic"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table; 1 if a quantity differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--layers", type=int, default=2, metavar="N")
    parser.add_argument("--plan", metavar="PLAN")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--random", type=int, metavar="N")
    given = parser.parse_args(arguments)
    more = {"plan": given.plan} if given.plan else {}
    if given.random:
        print("| family | configurations | meshes | quantities | differ | no graph | no run |")
        print("|---|---:|---:|---:|---:|---:|---:|")
        wrong = 0
        for family in given.models if given.models != MODELS else random_meshes.FAMILIES:
            found = drawn(family, given.random)
            wrong += found[4] != 0
            print("|", " | ".join(map(str, found)), "|", flush=True)
        return 1 if wrong else 0
    if given.time:
        print("| model | one device, s | tp 8, s | ratio |\n|---|---:|---:|---:|")
        for name in given.models:
            print("|", " | ".join(map(str, times(name, given.layers, more))), "|", flush=True)
        return 0
    print("| model | mesh | rank | weights of it, B | sent in the prefill, B | sources | quantities | differ | CPU s |")
    print("|---|---|---:|---:|---:|---|---:|---:|---:|")
    differ = 0
    for name in given.models:
        for mesh in MESHES:
            try:
                for cells in rows(name, mesh, given.layers, more):
                    differ += cells[-2] not in ("0", "")
                    print("|", " | ".join(map(str, cells)), "|", flush=True)
            except Incomplete as error:
                print("|", name, "|", _shown(mesh), "|", error.line, "|", flush=True)
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
