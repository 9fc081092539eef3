"""The whole way on a small model: count three ways, compare, write, read again, explain."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from costproof.ledger.metrics import STORAGE
from costproof.tracers import sources
from tests.models.test_config import shallow_config
from tests.support.pools import Here
from tests.support.running import costproof, files

pytestmark = pytest.mark.slow

REPORTS = [
    "callgraph.json",
    "capture.json",
    "discrepancy-short.md",
    "discrepancy.json",
    "discrepancy.md",
    "manifest.json",
    "report.html",
    "static_compute.json",
    "static_compute.md",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the small model's configuration, and a report on a page with crops in ``r``."""
    from PIL import Image
    from transformers import UnlimitedOcrConfig

    made = tmp_path_factory.mktemp("small")
    told = UnlimitedOcrConfig(**shallow_config().native()).to_dict()
    (made / "m.json").write_text(json.dumps(told), encoding="utf-8")
    sizes = ("--base-size", "256", "--image-size", "128", "--image", "page.png", "--new-tokens", "3")
    # Half as wide as high: the grids 1 x 2 and 2 x 4 are as close, and 8 crops are more than twice its pixels.
    Image.new("1", (130, 260)).save(made / "page.png")
    line = ("report", "deepseek-ocr", "--config", "m.json", "--preset", "gundam", *sizes, "-o", "r")
    with pytest.MonkeyPatch.context() as patch:  # in a process of its own: test_second_target.py
        patch.setattr(sources, "Pool", Here)
        done = costproof(*line, cwd=made)
    (made / "stdout").write_text(done.stdout, encoding="utf-8")
    (made / "stderr").write_text(done.stderr, encoding="utf-8")
    assert done.code == 0, done.stderr
    return made


def test_the_verdict_is_exact(folder: Path) -> None:
    data = json.loads((folder / "r" / "discrepancy.json").read_text(encoding="utf-8"))
    assert data["verdict"] == "exact"
    assert {f["residual"] for f in data["findings"]} <= {0, None}


def test_every_file_is_there_and_named(folder: Path) -> None:
    assert files(folder / "r") == REPORTS
    said = (folder / "stderr").read_text(encoding="utf-8").splitlines()
    assert sorted(line for line in said if line.startswith("Wrote")) == [f"Wrote r/{n}" for n in REPORTS]


def test_phases_are_announced_once(folder: Path) -> None:
    said = (folder / "stderr").read_text(encoding="utf-8").splitlines()
    steps = re.compile(r"\w+: \d+ of \d+(, about \d+:\d\d left)?")  # where a machine is slow
    phases = [x.partition(":")[0] for x in said if not x.startswith("Wrote") and not steps.fullmatch(x)]
    assert sorted(phases) == sorted(["load", "analytic", "static", "dynamic", "compare", "write"])


def test_the_sources_agree_in_the_file(folder: Path) -> None:
    data = json.loads((folder / "r" / "static_compute.json").read_text(encoding="utf-8"))
    assert [s["id"] for s in data["stages"]] == ["sam", "clip", "projector", "prefill", "decode"]
    for stage in data["stages"]:
        said = stage["sources"]
        for metric in ("params", "flops", "vector_flops", "output_bytes", "input_bytes", "weight_read_bytes"):
            assert stage[metric] == said["analytic"][metric] == said["static"][metric] == said["dynamic"][metric]
    flops = [s["flops"] for s in data["stages"]]
    assert data["totals"]["flops"] == sum(flops)
    assert all(flops)


@pytest.mark.parametrize("name", ["static-md", "discrepancy-json", "discrepancy-md", "static-json"])
def test_a_capture_renders_to_the_same_bytes(name: str, folder: Path) -> None:
    file = {"static": "static_compute", "discrepancy": "discrepancy"}[name.split("-")[0]] + "." + name.split("-")[1]
    again = costproof("render", "r/capture.json", "-f", name, cwd=folder)
    assert again.code == 0
    assert again.stdout == (folder / "r" / file).read_text(encoding="utf-8")


def test_explain_finds_the_graph_nodes(folder: Path) -> None:
    told = costproof("explain", "deepseek-ocr", "sam", "--capture", "r/capture.json", "--module", "*mlp*", cwd=folder)
    assert told.code == 0
    graph = [line for line in told.stdout.splitlines() if line.strip().startswith("graph")]
    assert graph
    assert all("equal" in line for line in graph)


def test_the_image_decided_the_grid(folder: Path) -> None:
    workload = json.loads((folder / "r" / "capture.json").read_text(encoding="utf-8"))["workload"]
    assert (workload["name"], workload["inputs"]["grid"]) == ("custom", [1, 2])


def test_a_folder_stands_for_its_capture(folder: Path) -> None:
    done = costproof("compare", "r", "-f", "md", cwd=folder)
    assert (done.code, done.stdout) == (0, (folder / "r" / "discrepancy.md").read_text(encoding="utf-8"))
    drawn = costproof("graph", "r", "-f", "dot,svg,mmd", "--stage", "sam", "-o", "g", cwd=folder)
    assert (drawn.code, files(folder / "g")) == (0, ["callgraph.dot", "callgraph.mmd", "callgraph.svg"])
    told = costproof("ops", "--capture", "r", "--filter", "*linear*", cwd=folder)
    assert told.code == 0
    assert "aten.linear" in told.stdout


def test_claims_are_held_against_the_capture(folder: Path) -> None:
    stages = json.loads((folder / "r" / "static_compute.json").read_text(encoding="utf-8"))["stages"]
    flops = {s["id"]: s["flops"] for s in stages}
    rows = "".join(f"- {{stage: {s}, flops: {n}}}\n" for s, n in flops.items())
    (folder / "c.yaml").write_text(f"costproof_claims: 1\ntarget: deepseek-ocr\nclaims:\n{rows}", encoding="utf-8")
    done = costproof("check", "c.yaml", "--capture", "r/capture.json", cwd=folder)
    assert done.code == 0, done.stderr
    assert f"**right: {len(flops)} claims" in done.stdout
    # The formulas alone are at the workload that the options name; one new token is a third of the decode.
    size = ("--config", "m.json", "--preset", "gundam", "--base-size", "256", "--image-size", "128", "--grid", "1x2")
    alone = costproof("check", "c.yaml", *size, "-f", "json", cwd=folder)
    verdicts = {j["stage"]: j["status"] for j in json.loads(alone.stdout)["judgements"]}
    assert {s for s, v in verdicts.items() if v == "right"} == set(flops) - {"decode"}


def test_a_derived_form_is_right(folder: Path) -> None:
    done = costproof("derive", "deepseek-ocr", "projector", "--points", "2", "-f", "yaml", "-o", "d.yaml", cwd=folder)
    assert done.code == 0, done.stderr
    # Two at random, and one end of the range in which the form holds.
    assert "equal to a fresh count at 3 of 3 points" in done.stderr
    checked = costproof("check", "d.yaml", "deepseek-ocr", cwd=folder)
    assert checked.code == 0
    assert "**right: 1 claim" in checked.stdout


def test_no_machine_in_the_files(folder: Path) -> None:
    for name in REPORTS:
        text = (folder / "r" / name).read_text(encoding="utf-8")
        assert str(folder) not in text
        assert str(Path.home()) not in text
        assert "site-packages" not in text


def test_a_text_only_run_without_the_dynamic_source(folder: Path) -> None:
    settings = ("--preset", "text-only", "--text-tokens", "20", "--batch", "2")
    sources = ("--sources", "analytic,static", "--progress", "never")
    done = costproof("report", "deepseek-ocr", "--config", "m.json", *settings, *sources, "-o", "t", cwd=folder)
    assert done.code == 0, done.stderr
    assert "not-executed" in done.stdout
    assert "callgraph.json" not in files(folder / "t")


@pytest.mark.thorough
def test_every_stage_alone_as_a_fourth_source(folder: Path) -> None:
    settings = ("--preset", "text-only", "--text-tokens", "20", "--new-tokens", "2")
    sources = ("--sources", "analytic", "--convention", "fvcore-macs")  # which brings dynamic and isolated along
    done = costproof("report", "deepseek-ocr", "--config", "m.json", *settings, *sources, "-o", "i", cwd=folder)
    assert done.code == 0, done.stderr
    assert re.search(r"Exact: the sources agree to the integer on all [\d,]+ quantities", done.stdout)
    assert " from analytic, dynamic and isolated" in done.stdout
    assert "isolated: tracing every stage alone" in done.stderr
    text = (folder / "i" / "discrepancy.md").read_text(encoding="utf-8")
    assert "| Metric | Stage | analytic | dynamic | isolated | Delta | Residual | Status |" in text
    assert "Convention fvcore-macs: These are MACs" in done.stdout
    for stage in json.loads((folder / "i" / "static_compute.json").read_text(encoding="utf-8"))["stages"]:
        isolated, extracted = (stage["sources"][source] for source in ("isolated", "dynamic"))
        assert isolated == {k: v for k, v in extracted.items() if k not in STORAGE}
        for metric in ("fvcore_macs", "fvcore_activations"):
            assert isolated[metric] == extracted[metric]
            assert bool(isolated[metric]) == (stage["id"] in ("prefill", "decode"))
