"""How many planted errors the comparison finds and locates.

``python -m benchmarks.mutations`` counts two workloads with costproof's own static and dynamic sources
(once; later runs read the captures from ``out/mutations``), plants errors of every kind into the
formulas of every analytic layer, one at a time, and compares. *Found*: the verdict is unexplained.
*Located*: the findings name exactly the stage, the invocation, the modules, the operator kind and the
metric that were hit, and the size of the error as the same expression. Exit 1 unless both are 100 %.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.oracles.mutations import run, table

import costproof
from costproof.ledger.capture import Capture
from costproof.ledger.writing import write_texts

FOLDER = Path("out/mutations")


WORKLOADS: dict[str, dict[str, object]] = {
    # Sizes pairwise different, so that one dimension cannot pass for another.
    "page": {"preset": "dsocr-standard-v1", "grid": "3x2", "batch": 2, "new_tokens": 5},
    "text-only": {"preset": "text-only", "batch": 3, "new_tokens": 1, "logits": "last"},
}


def captured(name: str, fresh: bool) -> Capture:
    """The capture of a workload: static and dynamic from the cache, analytic always from today's formulas."""
    settings = WORKLOADS[name]
    path = FOLDER / f"{name}.json"
    if fresh or not path.exists():
        print(f"{name}: counting (a minute or so)", file=sys.stderr)
        made = costproof.capture("deepseek-ocr", **settings)  # type: ignore[arg-type]
        write_texts({path: costproof.render(made, "capture-json")})
    cached = costproof.read(path)
    today = costproof.capture("deepseek-ocr", sources=("analytic",), **settings)  # type: ignore[arg-type]
    others = tuple(x for x in cached.ledgers if x.source != "analytic")
    return replace(cached, ledgers=(*(x for x in today.ledgers if x.source == "analytic"), *others))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if everything is found and located."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.mutations", description=__doc__)
    options.add_argument("--most", type=int, default=2, help="errors per formula, that is layer, kind and metric (2)")
    options.add_argument("--all", action="store_true", help="every error at every site")
    options.add_argument("--fresh", action="store_true", help="count again instead of reading out/mutations")
    options.add_argument("--capture", type=Path, action="append", default=[], help="use this capture file instead")
    given = options.parse_args(arguments)
    captures = {p.stem: costproof.read(p) for p in given.capture} or {n: captured(n, given.fresh) for n in WORKLOADS}
    start = time.perf_counter()
    outcomes = [o for name, c in captures.items() for o in run(name, c, None if given.all else given.most)]
    seconds = time.perf_counter() - start
    print(table(outcomes))
    missed = [o for o in outcomes if not o.located]
    for o in missed[:20]:
        site = o.planted.site
        print(
            f"{'not found' if not o.found else 'not located'}: {o.workload}, {site.owner}: {o.planted.operation} "
            f"({o.planted.what}) in {site.stage}[{site.invocation}]/{o.planted.modules[0]}:{site.kind}#{site.metric}; "
            f"said: {o.said}"
        )
    total = len(outcomes)
    if total == 0:
        print("nothing planted")
        return 1
    found, located = sum(o.found for o in outcomes), sum(o.located for o in outcomes)
    print(
        f"planted {total}, found {found} ({100 * found / total:.1f} %), "
        f"located {located} ({100 * located / total:.1f} %), {1000 * seconds / total:.0f} ms each"
    )
    return 0 if found == located == total and total >= 60 else 1


if __name__ == "__main__":
    sys.exit(main())
