"""Time and memory of ``costproof report`` beside the plain tracing that it contains.

``python -m benchmarks.report`` prints one table. Every row is a fresh process, run three times in
turn, so that caches and noise fall on all alike; shown are the medians of wall time and the
largest peak memory of a process and of its children. Exports are kept in a folder of the benchmark, which
one more run of each row that reads them fills before. ``--beside CHECKOUT`` runs each row of ours once more with
the code of another commit, in turn with this one's.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from costproof.tracers.cache import FOLDER

RUNS = 3
ROOT = Path(__file__).resolve().parent.parent

AGAIN = ", again"
"""Ends the name of a row that finds exports kept; what follows are its own options."""
KEPT = f"costproof report deepseek-ocr{AGAIN}"
PROOF = "costproof prove deepseek-ocr"
"""Minutes, so it runs once."""
PLAIN = "from benchmarks.plain import {0}; {0}()"


def commands(folder: str) -> dict[str, list[str]]:
    """Name -> command line. ``folder`` holds a finished report for the commands that read one."""
    python, ours = sys.executable, [sys.executable, "-m", "costproof"]
    out = str(Path(folder) / "report")
    capture, report = str(Path(out) / "capture.json"), [*ours, "report", "-o", out]
    known, long = [*report, "deepseek-ocr"], [*report, "llama-3.1-8b", "--seq-len", "8192"]
    return {
        "costproof report deepseek-ocr, for the first time": [*known, "--no-cache"],
        KEPT: known,
        KEPT + " --sources analytic,static": [*known, "--sources", "analytic,static"],
        "  tracing alone: the same torch.export calls": [python, "-c", PLAIN.format("exports")],
        "  tracing alone: plain TorchLens, page and one decode step": [python, "-c", PLAIN.format("torchlens_page")],
        "  plain FlopCounterMode, page and one decode step": [python, "-c", PLAIN.format("flop_counter")],
        "  import torch, transformers, torchlens": [python, "-c", "import torch, transformers, torchlens"],
        "costproof report llama-3.1-8b --seq-len 8192, for the first time": [*long, "--no-cache"],
        "costproof report deepseek-v3, for the first time": [*report, "deepseek-v3", "--no-cache"],
        "costproof.count of a module of 100 layers": [python, "-c", PLAIN.format("count_layers")],
        "  tracing alone: plain TorchLens": [python, "-c", PLAIN.format("torchlens_layers")],
        f"costproof diff of two grids of deepseek-ocr{AGAIN}": [
            *ours, "diff", "deepseek-ocr@gundam:2x2", "deepseek-ocr@gundam:3x3",
        ],
        f"costproof derive llama-3.1-8b prefill{AGAIN}": [*ours, "derive", "llama-3.1-8b", "prefill"],
        PROOF: [*ours, "prove", "deepseek-ocr", "-o", str(Path(folder) / "proof")],
        "costproof explain deepseek-ocr prefill": [*ours, "explain", "deepseek-ocr", "prefill"],
        "costproof compare capture.json": [*ours, "compare", capture],
        "costproof render capture.json -f static-md": [*ours, "render", capture, "-f", "static-md"],
        "costproof --help": [*ours, "--help"],
    }  # fmt: skip


def measure(command: list[str], code: Path | None = None) -> tuple[float, float]:
    """Wall seconds and peak MiB (largest single process of the tree) of one run, with the code of a checkout."""
    probe = (
        "import resource,subprocess,sys,time\n"
        "b=time.monotonic()\n"
        "r=subprocess.run(sys.argv[1:],stdout=subprocess.DEVNULL,stderr=subprocess.PIPE,text=True)\n"
        "w=time.monotonic()-b\n"
        "sys.stderr.write(r.stderr if r.returncode else '')\n"
        "print(w, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, r.returncode)\n"
    )
    around = {**os.environ, "PYTHONPATH": str(code / "src")} if code is not None else None
    done = subprocess.run(
        [sys.executable, "-c", probe, *command],
        capture_output=True,
        text=True,
        cwd=code or ROOT,
        env=around,
        check=True,
    )
    wall, kibibytes, status = done.stdout.split()
    if status != "0":
        raise SystemExit(f"{' '.join(command)} ended with {status}\n{done.stderr}")
    return float(wall), int(kibibytes) / 1024


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT", help="another commit of costproof, to pair with")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--only", action="append", metavar="TEXT", help="rows that hold this text")
    args = parser.parse_args()
    beside: Path | None = args.beside.resolve() if args.beside else None
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        # Each has a folder of its own: what one commit keeps the other cannot read.
        places = {"": ROOT, **({f"{beside.name}: ": beside} if beside else {})}
        rows: dict[str, tuple[list[str], Path]] = {}
        for label, code in places.items():
            for name, command in commands(str(Path(folder) / (label.strip(": ") or "ours"))).items():
                if name.startswith("costproof") or not label:
                    rows[label + name] = (command, code)
        if args.only:
            rows = {name: row for name, row in rows.items() if any(text in name for text in args.only)}
        os.environ[FOLDER] = str(Path(folder) / "kept")
        for name, (command, code) in rows.items():
            if AGAIN in name:
                measure(command, code)
        results: dict[str, list[tuple[float, float]]] = {name: [] for name in rows}
        for turn in range(args.runs):
            for name, (command, code) in rows.items():
                if turn == 0 or PROOF not in name:
                    print(f"run {turn + 1} of {args.runs}: {name.strip()}", file=sys.stderr)
                    results[name].append(measure(command, code))
    table = Table(title=f"median of {args.runs} runs, {os.cpu_count()} cores")
    for heading in ("command", "wall s", "min", "max", "peak MiB"):
        table.add_column(heading, justify="left" if heading == "command" else "right")
    for name, runs in results.items():
        walls = [w for w, _ in runs]
        table.add_row(
            name,
            f"{statistics.median(walls):.2f}",
            f"{min(walls):.2f}",
            f"{max(walls):.2f}",
            f"{max(m for _, m in runs):.0f}",
        )
    console.print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
