"""The promise itself: presets and random workloads of the published configuration, counted three ways.

Widths, experts and page sizes are the published ones, with three layers of every part, so that each kind is there.
``pytest tests/test_every_workload.py --thorough --workloads 100`` takes every preset, all layers, and as many random
workloads. The comparison is made twice, by ``compare`` and, independently of it, by adding up the raw ledgers here.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from costproof.ledger.capture import Capture
from costproof.ledger.metrics import METRICS
from costproof.ledger.node import Ledger
from costproof.models.families.deepseek_ocr.config import DEFAULT_PRESET, PRESETS, make_workload
from costproof.models.families.deepseek_ocr.target import DeepseekOcr
from costproof.parametric.targets import evaluate_formulas
from costproof.run.capture import count_sources
from costproof.run.prepare import Prepared

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "callgraph.mmd"
SIDES = (512, 640, 896, 1024)
KERNELS = (
    {"dtype": "bfloat16", "attention": "sdpa", "logits": "all", "experts": "grouped_mm"},
    {"dtype": "bfloat16", "attention": "eager", "logits": "last", "experts": "batched_mm"},
    {"dtype": "float16", "attention": "sdpa", "logits": "last", "experts": "grouped_mm"},
    {"dtype": "float32", "attention": "eager", "logits": "all", "experts": "batched_mm"},
)
"""What decides the graphs beside sizes: few sets that hold every choice, so that workloads share kept exports."""


def drawn(seed: int) -> dict[str, Any]:
    """Settings of one random workload."""
    rng = random.Random(seed)
    settings: dict[str, Any] = {
        "preset": rng.choice(("base", "gundam", "gundam", "text-only")),
        "text_tokens": rng.randint(1, 1500),
        "new_tokens": rng.choice((1, 1, 1, 2, 3, 7)),
        "batch": rng.randint(1, 4),
        **KERNELS[seed % len(KERNELS)],
    }
    if settings["preset"] != "text-only":
        settings["base_size"] = rng.choice(SIDES)
    if settings["preset"] == "gundam":
        columns = rng.randint(1, 4)
        settings["grid"] = (columns, rng.randint(1 if columns > 1 else 2, 9 // columns))
        settings["image_size"] = rng.choice(SIDES)
    return settings


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Presets, and as many random workloads as asked for."""
    if "name" not in metafunc.fixturenames:
        return
    seeds = range(metafunc.config.getoption("--workloads"))
    cases = {name: {"preset": name} for name in PRESETS} | {f"random-{seed}": drawn(seed) for seed in seeds}
    alike = {*PRESETS} - {DEFAULT_PRESET}  # they run as the default does, at other sizes or without a part of it
    marked = [pytest.param(*case, marks=[pytest.mark.thorough] if case[0] in alike else []) for case in cases.items()]
    metafunc.parametrize(("name", "settings"), marked, ids=cases)


@pytest.mark.usefixtures("one_process")
def test_the_three_counts_are_one(name: str, settings: dict[str, Any], request: pytest.FixtureRequest) -> None:
    thorough = request.config.getoption("--thorough")
    target = DeepseekOcr() if thorough else DeepseekOcr(DeepseekOcr().first_layers(3)[0])
    found = count_sources(Prepared(target, make_workload(**settings)))
    capture = found.capture
    assert found.verdict in ("exact", "explained")
    assert found.exit_code == 0
    assert [f.id for f in found.discrepancy.findings if f.residual not in (0, None)] == []
    assert {f.status for f in found.discrepancy.findings} <= {"exact", "explained", "not-executed"}
    assert {c.kind for f in found.discrepancy.findings for c in f.causes} <= {
        "unexecuted_parameters",
        "decomposition",
        "expert_kernel",
    }
    assert capture.trace_check is not None
    assert capture.trace_check.differences == ()
    sums = {source: added_up(capture, source) for source in ("analytic", "static", "dynamic")}
    assert len(sums["analytic"]) > (300 if thorough else 100)
    assert sums["analytic"] == sums["static"] == sums["dynamic"]
    if name == DEFAULT_PRESET and thorough:
        shown = [line.rstrip() for line in found.render("summary").splitlines()]
        assert "\n".join(shown).strip() in (ROOT / "README.md").read_text()
        drawn = found.render("graph-mmd")
        assert len([line for line in drawn.splitlines() if '["' in line]) <= 60
        if request.config.getoption("--update-goldens"):
            PICTURE.write_text(drawn, encoding="utf-8")
        assert drawn == PICTURE.read_text(encoding="utf-8"), "pytest --thorough --update-goldens draws it anew"


def test_the_table_of_the_readme_has_the_totals_of_the_formulas() -> None:
    """All layers; that the graph and the run have as much is thorough, as they are the same layers over again."""
    table = (ROOT / "README.md").read_text(encoding="utf-8")
    ledger = evaluate_formulas(DeepseekOcr(), make_workload(preset=DEFAULT_PRESET))
    for stage in ("sam", "clip", "projector", "prefill", "decode"):
        params, flops = (ledger.stage_total(stage, metric) for metric in ("params", "flops"))
        assert re.search(rf"^ {stage} +{params:,} .*FLOP( +{flops:,}){{3}} ", table, flags=re.MULTILINE), stage


def added_up(capture: Capture, source: str) -> dict[tuple[str, ...], int]:
    """(metric, stage, invocation, module) -> sum over operator kinds, without zeros."""
    ledger: Ledger | None = capture.ledger(source)
    assert ledger is not None
    running = {i.stage for i in capture.invocations}
    sums: Counter[tuple[str, ...]] = Counter()
    for node in ledger.nodes:
        for metric, value in node.costs.items():
            if metric not in METRICS:
                continue  # what bounds of time leave out is no quantity of all sources
            assert value is not None, (node.id, metric)
            # Parameters of a stage that does not run are known to the formulas alone.
            if node.stage in running or not METRICS[metric].stage_wide:
                sums[metric, node.stage, node.invocation, node.module] += value
    return {k: v for k, v in sums.items() if v}
