"""Ranks of published models: ``python -m benchmarks.ranks [MODEL …] [--layers N] [--plan PLAN] [--random N]``.

For each mesh the ranks are summed by the formulas, on all layers; the rest is one device and the named copies. Of each
group of equal ranks the first and the last are counted by formula, graph and run in every metric and collective, on the
first layers, in full width. ``--time`` prints instead the CPU seconds of a report on one and on eight devices, and
``--random N`` compares formulas and graphs of N random small configurations of a family on parts of each mesh, as
``costproof prove`` draws them, and counts their ranks again.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import costproof
from costproof.ledger.errors import Incomplete, Problems
from costproof.ledger.mesh import Parallel
from costproof.ledger.run import RunOptions
from costproof.ledger.workload import Workload
from costproof.models.registry import load_target
from costproof.parametric.targets import count_ranks, evaluate_formulas
from costproof.run.capture import count_sources
from costproof.run.prepare import Prepared
from costproof.run.proof_pieces import carry_out_piece

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
    refused = "no run: fewer key/value heads than ranks" if "48307" in missing else missing
    return f"{ran} ({refused})" if refused else ran


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


FAMILIES: Final = ("mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "mixtral", "gpt-oss", "qwen3-moe",
                   "deepseek-v2", "deepseek-v3", "llama")  # fmt: skip
SPREADS: Final[tuple[dict[str, int], ...]] = (
    {"tp": 2}, {"tp": 4}, {"dp": 2}, {"pp": 2}, {"tp": 2, "dp": 2}, {"tp": 2, "pp": 2}, {"tp": 2, "ep": 2},
    {"tp": 2, "dp": 2, "ep": 4}, {"dp": 4, "ep": 4}, {"tp": 4, "dp": 2, "pp": 2},
)  # fmt: skip


def drawn(family: str, mesh: dict[str, int], draws: int, seed: int) -> tuple[object, ...] | None:
    """Return the cells of random configurations of a family on parts of a mesh; ``None`` if it has no such mesh."""
    target: Any = load_target(family)
    if "ep" in mesh and "text_experts" not in target.info().symbols:
        return None
    pieces = [p for p in target.proof(draws, seed, **mesh).pieces if "draw" in p.id]
    wrong, compared, refused = 0, 0, 0
    for piece in pieces:
        try:
            answer = carry_out_piece(piece)
        except Incomplete as error:
            print(f"{family}, {_shown(mesh)}, {piece.id}: {error.line}", file=sys.stderr)
            refused += 1
            continue
        compared += sum(answer.rows.values())
        wrong += len(answer.counterexamples)
        for c in answer.counterexamples[:3]:
            shown = f"{c.stage}/{c.module} {c.metric}: {c.difference}"
            print(f"{family}, {_shown(mesh)}, {piece.id}, {piece.workload.inputs}: {shown}", file=sys.stderr)
    return family, _shown(mesh), sum(p.phase == "draws" for p in pieces), f"{compared:,}", wrong, refused


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table; 1 if a quantity differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--layers", type=int, default=2, metavar="N")
    parser.add_argument("--plan", metavar="PLAN")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--random", type=int, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    given = parser.parse_args(arguments)
    more = {"plan": given.plan} if given.plan else {}
    if given.random:
        print("| family | up to | configurations | quantities | differ | refused |\n|---|---|---:|---:|---:|---:|")
        wrong = 0
        for mesh in SPREADS:
            for family in given.models if given.models != MODELS else FAMILIES:
                if (found := drawn(family, mesh, given.random, given.seed)) is not None:
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
