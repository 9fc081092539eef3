"""``python -m benchmarks.zoo``: model types of transformers, each counted at a tiny configuration, and checked.

Every outcome goes to a file as it comes, and what is in the file is not counted again; the page is made of the file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.zoo_count import OUTCOMES, WORKLOAD, Row, counted
from costproof.ledger.environment import environment
from costproof.processes import Limits, Pool

LIMITS: Final = Limits(seconds=600, memory_bytes=6 * 2**30)
PAGE: Final = Path("docs/zoo.md")
_HEAD: Final = """\
Made by `python -m benchmarks.zoo`; not to be edited. Every type for which transformers has a model is counted as `hf:`
counts it, at a tiny configuration that one rule (`benchmarks/tiny.py`) makes of a published one, where
`tests/models/configs` has one, or else of its default one: by an export, and by a run on shapes. Both are compared
module by module, and the total with torch's `FlopCounterMode` on plain runs that take the same way through
transformers, with rules for what it leaves out: attention on the CPU, grouped products, products with a vector,
recurrent layers, einsum over one.
Some default configurations do not build, or not run, as they are: `benchmarks/completed.py` has the values that these
lack, and a model with them is called completed. A model whose own code takes one element alone is run with batch 1.
What was counted once is not counted again: the last column has the commit of each row. Those with a published shape
were made by another run than the others."""
_AGREED: Final = ("exact", "explained", "equal")


def model_types() -> list[str]:
    """The types for which transformers has a model."""
    import transformers

    from costproof.models.generic.huggingface import auto_class

    found = []
    for name, config in transformers.CONFIG_MAPPING.items():
        try:
            auto_class(config)
        except Exception:  # a type without a model, or whose code is not there
            continue
        found.append(name)
    return sorted(found)


def rows(names: Sequence[str], processes: int) -> Iterable[Row]:
    """Count types, several in a process one after the other; one that dies takes only itself."""
    with Pool[Row](processes, LIMITS) as pool:
        for outcome in pool.results({name: partial(counted, name) for name in names}):
            row = outcome.answer
            yield row if row is not None else Row(outcome.name, "not counted", why=str(outcome.error))


def read(file: Path) -> dict[str, Row]:
    """The rows of a file by type; of several the last."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    found = (Row(**json.loads(line)) for line in lines)
    return {row.name: row for row in found}


def page(names: Sequence[str], known: Mapping[str, Row]) -> str:
    """The page of all types."""
    every = [known.get(name, Row(name, "not run")) for name in names]
    tally = Counter(row.outcome for row in every)
    built = sum(tally.values()) - tally["not built"] - tally["not run"]
    agreed = sum(tally[o] for o in _AGREED)
    part = sum(1 for row in every if row.outcome in _AGREED and row.unused)
    used = environment()
    versions = ", ".join(f"{name} {used[name]}" for name in ("torch", "transformers", "torchlens"))
    sizes = ", ".join(f"{name} {value}" for name, value in WORKLOAD.items())
    lines = [
        "# Model types of transformers",
        "",
        _HEAD,
        "",
        f"{versions}; {sizes}, as far as a model takes them. FLOPs are the total of all stages.",
        "",
        f"Of {len(names)} types {built} were built and tried; of these {agreed} ({agreed / max(built, 1):.1%})",
        f"have the same FLOPs from all three. In {part} of them the inputs leave modules unused, which the last column",
        "names: what is counted there is the rest of the model. Together the rows took",
        f"{sum(row.seconds for row in every) / 60:.0f} minutes of one process.",
        "",
        "| outcome | types | |",
        "| --- | ---: | --- |",
        *(f"| {outcome} | {tally[outcome]} | {what} |" for outcome, what in OUTCOMES.items() if tally[outcome]),
        "",
        "| type | model | outcome | stages | FLOPs | s | MiB | why; unused modules | commit |",
        "| --- | --- | --- | --- | ---: | ---: | ---: | --- | --- |",
        *(_line(row) for row in every if row.outcome != "not run"),
    ]
    left = [row.name for row in every if row.outcome == "not run"]
    if left:
        lines += ["", f"Not run: {', '.join(left)}."]
    return "\n".join(lines) + "\n"


def _line(row: Row) -> str:
    flops = "" if row.flops is None else f"{row.flops:,}"
    why = "; ".join(filter(None, (row.why, f"unused: {row.unused}" if row.unused else ""))).replace("|", "\\|")
    return (
        f"| {row.name} | {row.what} | {row.outcome} | {row.stages} | {flops} "
        f"| {row.seconds:.1f} | {row.peak_mib} | {why.replace('<', '&lt;')} | {row.commit} |"
    )


def _commit() -> str:
    """The commit that is checked out."""
    done = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def main() -> None:
    """Count what is not in the file yet, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo", description=__doc__)
    parser.add_argument("names", nargs="*", help="model types; all if none is named")
    parser.add_argument("--every", type=int, default=1, help="only every n-th by name")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rows", type=Path, default=Path("out/zoo.jsonl"), help="the file of the outcomes")
    args = parser.parse_args()
    every = model_types()
    known, commit = read(args.rows), _commit()
    args.rows.parent.mkdir(parents=True, exist_ok=True)
    for row in rows([n for n in args.names or every[:: args.every] if n not in known], args.processes):
        row = replace(row, commit=commit)
        print(f"{row.name}: {row.outcome} {row.seconds:.1f} s {row.why}", flush=True)
        known[row.name] = row
        with args.rows.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(row)) + "\n")
    PAGE.write_text(page(every, known), encoding="utf-8")
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
