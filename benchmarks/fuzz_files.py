"""Damaged files for everything that reads JSON: captures, configurations, baselines.

``python -m benchmarks.fuzz_files`` changes a good file in one to four random places (a value, a key, a part taken out,
put twice or moved) and does with it what the commands do: a capture is read, compared and rendered in every format, a
configuration is read and counted by its formulas, a baseline is read. Each ends in a result or one of our errors,
within ten seconds and in bounded memory. Exit 1 otherwise.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import resource
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tests.reports.toy import asked, hostile, incomplete, toy, wrong

from costproof import api
from costproof.ledger.baseline import BASELINE, baseline_of, read_baseline
from costproof.ledger.capture import CAPTURE
from costproof.ledger.errors import CostproofError
from costproof.ledger.schema import to_data

VALUES: Final[tuple[Any, ...]] = (
    None, True, False, 0, 1, -1, 2, 7, 10**6, 10**12, 10**18, 10**40, 10**299, 1.5, 1e300, "", "x", "0", "7", [], {},
    "prefill", "sam", "analytic", "flops", "calls", "params", "prompt", "(root)", "a.b", "../../x", "<script>", "`|`",
    "\x1b[31m", "\u202e", "n", "H**2", "zzz", "1/0", "ceiling(n/3)", "(n+H+b)**64", "-n", "n/7", "x" * 300, [1], [None],
    {"a": 1}, [[[]]], "gelu", "sdpa", "eager", "float32",
)  # fmt: skip
CAPTURES: Final = (toy, wrong, incomplete, hostile, asked)
CONFIGS: Final[dict[str, dict[str, Any]]] = {
    "gpt2": {"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": 50},
    "llama": {
        "model_type": "llama", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "vocab_size": 50,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64, "head_dim": 8,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
}  # fmt: skip


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) below a value."""
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places(value[key])


def damaged(good: Any, draw: random.Random) -> Any:
    """A copy with one to four changes."""
    made = copy.deepcopy(good)
    for _ in range(draw.randint(1, 4)):
        known = list(places(made))
        if not known:
            break
        inside, key = draw.choice(known)
        kind = draw.randrange(6)
        if kind == 0:
            del inside[key]
        elif kind == 1:
            other, there = draw.choice(known)
            inside[key] = copy.deepcopy(other[there])
        elif kind == 2 and isinstance(inside, list):
            inside.insert(key, copy.deepcopy(inside[key]))
        elif kind == 2:
            inside[str(draw.choice(VALUES))] = inside[key]
        elif kind == 3 and isinstance(inside[key], int) and not isinstance(inside[key], bool):
            inside[key] = draw.choice(
                (inside[key] + 1, inside[key] - 1, -inside[key], inside[key] * 2, inside[key] // 2)
            )
        else:
            inside[key] = copy.deepcopy(draw.choice(VALUES))
    return made


def use_capture(path: Path) -> None:
    """Read, compare, render, draw, explain, list."""
    made = api.read(path)
    found = api.compare(made)
    assert found.sentence
    for name in api.formats():
        refused(lambda name=name: found.render(name))  # type: ignore[misc]
    for stage in made.target.stages[:2]:
        refused(lambda stage=stage: api.explain(made, stage))  # type: ignore[misc]
    for kind in ("dot", "svg", "mmd"):
        refused(lambda kind=kind: api.graph(made, kind))  # type: ignore[misc]


def use_config(path: Path) -> None:
    """Count by the formulas."""
    target = json.loads(path.read_text())
    name = target.get("model_type") if isinstance(target, dict) else None
    known = next((k for k in CONFIGS if k == name), "gpt2")
    api.capture(known, config=path, sources=("analytic",), text_tokens=4)


def use_baseline(path: Path) -> None:
    """Read."""
    read_baseline(path)


def refused(work: Callable[[], object]) -> bool:
    """Whether work ended in an error of ours."""
    try:
        work()
    except CostproofError as error:
        return bool(str(error))
    return False


KINDS: Final[dict[str, tuple[Callable[[], list[Any]], Callable[[Path], None]]]] = {
    "captures": (lambda: [to_data(CAPTURE, made()) for made in CAPTURES], use_capture),
    "configurations": (lambda: list(CONFIGS.values()), use_config),
    "baselines": (lambda: [to_data(BASELINE, baseline_of(made())) for made in (toy, wrong)], use_baseline),
}
"""Kind -> good files, and what is done with a damaged one."""


def fuzzed(kind: str, inputs: int, seed: int, path: Path) -> tuple[Counter[str], float, list[str]]:
    """How so many damaged files of a kind ended, the seconds of the slowest, and tracebacks."""
    made, use = KINDS[kind]
    files, draw, ends, slowest, traces = made(), random.Random(seed), Counter[str](), 0.0, []
    for _ in range(inputs):
        path.write_text(json.dumps(damaged(draw.choice(files), draw)), encoding="utf-8")
        began = time.process_time()
        try:
            ends["refused" if refused(lambda: use(path)) else "accepted"] += 1
        except Exception:
            ends["a bug of ours"] += 1
            traces.append("\n  ".join(traceback.format_exc().splitlines()[-7:]))
        slowest = max(slowest, time.process_time() - began)
    return ends, slowest, traces


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000, help="for each kind")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    bad = 0
    with TemporaryDirectory() as folder:
        for kind in KINDS:
            ends, slowest, traces = fuzzed(kind, chosen.inputs, chosen.seed, Path(folder) / "x.json")
            said = ", ".join(f"{count:,} {how}" for how, count in ends.most_common())
            print(f"{kind}: {said}; the slowest took {slowest:.1f} s", *traces[:5], sep="\n  ", flush=True)
            bad += len(traces) + (slowest > 10)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"peak memory {peak} MiB")
    return 1 if bad or peak > 1024 else 0


if __name__ == "__main__":
    sys.exit(main())
