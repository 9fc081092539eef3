"""What a report at the default, reports at three odd workloads, and a proof each find of mistakes that hide.

``python -m benchmarks.proof_mutations`` plants mistakes into the formulas of DeepSeek-OCR that give the right number at
the published sizes, or in the sum: sizes that are equal there swapped, a size as the number that it is there, ceilings
one off, a size that stops to grow at its published value, costs moved between modules, a kind of vector work under
another name; and twelve planted by hand. Reports are of a tiny configuration in which the same sizes are equal, at
formulas and graphs; a proof is the draws of ``prove``, of which ``--draws`` takes the first and those with many layers.
*Found*: unexplained, or refuted. *Located*: in the modules that were touched, and no others. Exit 1 unless the proof
finds everything.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from tests.oracles.hidden_mistakes import Mistake, by_hand, generated
from tests.oracles.proof_mutations import DEFAULT, TINY

from costproof.compare.align import align
from costproof.compare.causes import context
from costproof.compare.diagnose import module_findings
from costproof.compare.patterns import expand
from costproof.ledger.capture import Capture
from costproof.ledger.errors import BadInput
from costproof.ledger.evaluate import evaluate_ledger
from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.families.deepseek_ocr.proof import DEEP, draw
from costproof.models.families.deepseek_ocr.target import DeepseekOcr
from costproof.models.pages.page import Page, page_workload
from costproof.models.proof import Piece, Provable
from costproof.run.capture import count_sources
from costproof.run.prepare import Prepared
from costproof.run.proof import with_runs
from costproof.run.proof_pieces import CountedPiece, count_piece

ODD: Final = (
    page_workload("three pages, eager", Page(80, 32, (3, 1)), 7, 3, 3, "float32", "eager", "last", "batched_mm"),
    page_workload("one view", Page(48, 32), 5, 2, 2),
    page_workload("text", None, 9, 5, 2, "bfloat16", "sdpa", "last"),
)


@dataclass(frozen=True, slots=True)
class Seen:
    """Whether a mistake was found, and placed where it is."""

    found: bool = False
    located: bool = False


@dataclass(frozen=True, slots=True)
class Reported:
    """One run of TINY, counted from formulas and graphs."""

    run: Workload
    capture: Capture
    right: Ledger

    @classmethod
    def of(cls, run: Workload) -> Reported:
        """Count it."""
        target = DeepseekOcr(TINY)
        return cls(run, count_sources(Prepared(target, run, ("analytic", "static"))).capture, target.formulas(run))

    def seen(self, mistake: Mistake) -> Seen:
        """What a report says of the modules that were touched; about all others it says what it said before."""
        wrong, touched = mistake.planted(self.right, self.run)
        values = {(i.stage, i.id): i.symbols for i in self.capture.invocations}
        analytic = evaluate_ledger(within(wrong, touched), values, self.capture.target.symbols)
        static = self.capture.by_source["static"]
        rows = align([Ledger("analytic", analytic.nodes, analytic.metrics, static.stages), within(static, touched)])
        found = module_findings(rows, context(self.capture, rows))
        return placed({f.module for f in found if f.status == "unexplained"}, touched)


def within(ledger: Ledger, modules: frozenset[str]) -> Ledger:
    """The nodes of some modules."""
    return replace(ledger, nodes=tuple(n for n in ledger.nodes if n.module in modules))


def placed(patterns: set[str], touched: frozenset[str]) -> Seen:
    """Found if anything was said; located if that is about modules that were touched."""
    modules = {m for pattern in patterns for m in expand(pattern)}
    return Seen(bool(modules), bool(modules) and modules <= touched)


def proved(mistake: Mistake, drawn: Sequence[tuple[CountedPiece, Ledger]]) -> Seen:
    """What the draws of a proof say, up to the first that says something."""
    for one, right in drawn:
        wrong, touched = mistake.planted(right, one.piece.workload)
        if not touched:
            continue
        try:
            answer = replace(one, static=within(one.static, touched)).judged(within(wrong, touched))
        except BadInput:  # a fraction here: it would say so, but a mistake that is a number has to be found too
            continue
        if answer.counterexamples:
            return placed({c.module for c in answer.counterexamples}, touched)
    return Seen()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if the draws of a proof find everything."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.proof_mutations", description=__doc__)
    options.add_argument("--draws", type=int, default=64, help="draws of the proof (64: all)")
    options.add_argument("--most", type=int, default=0, help="mistakes of a kind, chosen evenly (0: all)")
    given = options.parse_args(arguments)
    began = time.monotonic()
    proof = with_runs(DeepseekOcr(TINY).proof(given.draws, 1))
    pieces: list[Piece[Provable]] = [
        p for p in proof.pieces if p.phase in ("draws", "runs") or p.id == "identity: text"
    ]
    drawn = [count_piece(p, {}) for p in (*pieces, *(draw(1, number) for number in DEEP if number >= given.draws))]
    with_right = [(one, one.piece.target.formulas(one.piece.workload)) for one in drawn]
    reports = [Reported.of(run) for run in (DEFAULT, *ODD)]
    if any(one.judged(right).counterexamples for one, right in with_right):
        print("the formulas are wrong before anything is planted")
        return 1
    counted_in = time.monotonic() - began
    values = {k: v for k, v in TINY.symbols().items() if "layers" not in k} | {"B": 1, "N": 4}
    of_kind: dict[str, list[Mistake]] = {}
    for mistake in (*by_hand(), *generated(reports[0].right, values)):
        of_kind.setdefault(mistake.kind, []).append(mistake)
    print(f"{'kind':30}{'planted':>9}{'default':>16}{'odd runs':>16}{'proof':>16}   found/located")
    missed = total = 0
    for kind, mistakes in of_kind.items():
        step = max(1, len(mistakes) // given.most) if given.most and kind != "by hand" else 1
        tally: Counter[str] = Counter()
        for mistake in mistakes[::step]:
            at = [r.seen(mistake) for r in reports]
            odd = [s for s in at[1:] if s.found]
            seen = {"default": at[0], "odd": odd[0] if odd else Seen(), "proof": proved(mistake, with_right)}
            tally.update(
                f"{how} {what}" for how, s in seen.items() for what in ("found", "located") if getattr(s, what)
            )
            tally["planted"] += 1
            if not seen["proof"].found:
                missed += 1
                print(f"not found by the proof: {kind}: {mistake.what} in {sorted(mistake.places)[0]}", file=sys.stderr)
        total += tally["planted"]
        cells = "".join(f"{tally[f'{h} found']:>9}/{tally[f'{h} located']:<6}" for h in ("default", "odd", "proof"))
        print(f"{kind:30}{tally['planted']:>9}{cells}", flush=True)
    judged_in = time.monotonic() - began - counted_in
    print(f"planted {total}, missed by the proof {missed}")
    print(f"{len(drawn)} pieces of the proof, {len(reports)} reports: {counted_in:.0f} s; judged in {judged_in:.0f} s")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
