"""What each command does with good input, on captures that need no tracer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from costproof import api
from costproof.ledger.capture import read_capture
from costproof.ledger.peaks import CallPeaks, LiveTensor, Peak
from costproof.reports.outputs import OUTPUTS, variants
from costproof.reports.report import Report
from tests.conftest import Golden
from tests.support.running import costproof, files
from tests.support.toy import incomplete, toy, wrong
from tests.support.written import write_capture

explanation_page = variants("explain")["html"].text


@pytest.fixture
def captures(tmp_path: Path) -> Path:
    """A folder with a good, a wrong and an incomplete capture."""
    write_capture(tmp_path / "toy.json", toy())
    write_capture(tmp_path / "wrong.json", wrong())
    write_capture(tmp_path / "incomplete.json", incomplete())
    return tmp_path


@pytest.mark.parametrize(("name", "code"), [("toy", 0), ("wrong", 1), ("incomplete", 3)])
def test_the_exit_code_is_the_verdict(name: str, code: int, captures: Path) -> None:
    assert costproof("compare", f"{name}.json", cwd=captures).code == code
    assert costproof("render", f"{name}.json", "-f", "summary", cwd=captures).code == code
    assert costproof("render", f"{name}.json", "-f", "callgraph-json", cwd=captures).code == 0


def test_compare_writes_to_stdout_and_nothing_else(captures: Path) -> None:
    result = costproof("compare", "toy.json", cwd=captures)
    assert result.stdout == api.compare(toy()).render("summary")
    assert result.stderr == ""


@pytest.mark.parametrize(("format_", "output"), [("md", "discrepancy-md"), ("modules", "modules")])
def test_compare_prints_more_on_request(captures: Path, format_: str, output: str) -> None:
    result = costproof("compare", "toy.json", "-f", format_, cwd=captures)
    assert result.stdout == api.compare(toy()).render(output)


def test_compare_takes_the_format_from_the_file(captures: Path) -> None:
    result = costproof("compare", "wrong.json", "-o", "d.json", cwd=captures)
    assert (result.code, result.stdout, result.stderr) == (1, "", "Wrote d.json\n")
    data = json.loads((captures / "d.json").read_text(encoding="utf-8"))
    assert data["schema"] == "costproof/discrepancy"
    assert data["verdict"] == "unexplained"


TOY = [o.name for o in OUTPUTS if o.of_capture and not o.name.startswith(("macs", "counters"))]


@pytest.mark.parametrize("name", TOY)
def test_render(name: str, captures: Path) -> None:
    assert costproof("render", "toy.json", "-f", name, cwd=captures).stdout == api.compare(toy()).render(name)
    assert costproof("render", "toy.json", "-f", name, "-o", "x/y.txt", cwd=captures).stderr == "Wrote x/y.txt\n"
    assert (captures / "x" / "y.txt").read_text(encoding="utf-8") == api.compare(toy()).render(name)


def test_render_lists_its_formats(captures: Path, golden: Golden) -> None:
    golden("cli/render-list.txt", costproof("render", "--list", cwd=captures).stdout)


def test_lists(tmp_path: Path, golden: Golden) -> None:
    for command in ("targets", "workloads", "schema"):
        result = costproof(command, cwd=tmp_path)
        assert (result.code, result.stderr) == (0, "")
        golden(f"cli/{command}.txt", result.stdout)


def test_schema_prints_one(tmp_path: Path) -> None:
    result = costproof("schema", "discrepancy", cwd=tmp_path)
    assert json.loads(result.stdout)["title"] == "costproof/discrepancy"


def test_ops_lists_rules(tmp_path: Path) -> None:
    result = costproof("ops", "--filter", "*scaled_dot*", cwd=tmp_path)
    assert result.code == 0
    assert "scaled_dot_product_attention" in result.stdout
    assert all(line.endswith("(rules/attention.py)") for line in result.stdout.splitlines()[:-1])
    assert "linear" not in result.stdout.split()


def test_ops_of_a_capture(captures: Path, golden: Golden) -> None:
    good = costproof("ops", "--capture", "toy.json", cwd=captures)
    assert good.code == 0
    golden("cli/ops-toy.txt", good.stdout)
    bad = costproof("ops", "--capture", "incomplete.json", cwd=captures)
    assert bad.code == 3
    golden("cli/ops-incomplete.txt", bad.stdout)


def test_explain_a_capture(captures: Path, golden: Golden) -> None:
    result = costproof("explain", "toy", "sam", "--capture", "toy.json", cwd=captures)
    assert result.code == 0
    golden("reports/explain-sam.txt", result.stdout)


def test_explain_a_peak(captures: Path) -> None:
    held = Peak(9, "", "", (LiveTensor("x", (9,), "uint8", 9, "", ""),))
    write_capture(captures / "peaked.json", replace(toy(), peaks=(CallPeaks("sam", "global", "", held, held),)))
    line = ("explain", "toy", "sam", "--metric", "graph_peak_bytes", "--capture")
    found = costproof(*line, "peaked.json", cwd=captures)
    assert (found.code, "alive at both peaks" in found.stdout) == (0, True)
    half = CallPeaks("sam", "global", "", held, None, notes=("eager peak not known: why",))
    write_capture(captures / "half.json", replace(toy(), peaks=(half,)))
    found = costproof(*line, "half.json", cwd=captures)
    assert (found.code, "alive at the graph peak" in found.stdout) == (3, True)
    assert costproof(*line, "toy.json", cwd=captures).code == 3
    alone = costproof(*line, "peaked.json", "--module", "*", cwd=captures)
    assert (alone.code, "a peak is of a whole stage" in alone.stderr) == (2, True)
    # The folder of a report may hold another workload than the one that is asked for.
    (captures / "out" / "toy").mkdir(parents=True)
    write_capture(captures / "out" / "toy" / "capture.json", replace(toy(), peaks=(half,)))
    assert costproof(*line[:-1], cwd=captures).code == 2
    assert costproof(*line, "peaked.json", "--preset", "tiny", cwd=captures).code == 2


def test_explain_as_a_page(captures: Path) -> None:
    line = ("explain", "toy", "sam", "--capture", "toy.json")
    assert costproof(*line, "-o", "e.html", cwd=captures).stderr == "Wrote e.html\n"
    assert (captures / "e.html").read_text(encoding="utf-8") == explanation_page(api.explain(toy(), "sam"))
    drawn = costproof(*line, "-o", "e.svg", cwd=captures)  # only the operators of --graph are
    assert (drawn.code, drawn.stdout) == (2, "")
    assert "formulas are not drawn" in drawn.stderr


def test_explain_a_target(tmp_path: Path) -> None:
    result = costproof(
        "explain", "deepseek-ocr", "projector", "--preset", "tiny", "--module", "*projector*", cwd=tmp_path
    )
    # 512 / 64 = 8 x 8 tokens, 1024 + 1024 features to 1280: 2 * 64 * 2048 * 1280
    assert f"{2 * 64 * 2048 * 1280:,} FLOP" in result.stdout
    assert result.code == 0


def test_explain_ignores_a_capture_of_something_else(tmp_path: Path) -> None:
    write_capture(tmp_path / "out" / "deepseek-ocr" / "capture.json", toy())
    result = costproof("explain", "deepseek-ocr", "projector", cwd=tmp_path)
    assert result.code == 0
    assert "graph" not in [line.strip().split(" ")[0] for line in result.stdout.splitlines()]


def test_doctor_names_every_source(tmp_path: Path) -> None:
    result = costproof("doctor", cwd=tmp_path)
    assert result.code == 0
    assert all(f"{s}:" in result.stdout for s in ("analytic", "static", "dynamic", "flash", "cuda", "counters"))


def test_capture_and_report_write_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def counted(*args: object, **kwargs: object) -> Report:
        return Report(wrong())

    monkeypatch.setattr("costproof.run.report.count_sources", counted)
    done = costproof("report", "deepseek-ocr", "-o", "r", "--progress", "never", cwd=tmp_path)
    assert done.code == 1
    names = [
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
    assert files(tmp_path / "r") == names
    assert sorted(done.stderr.splitlines()) == [f"Wrote r/{n}" for n in names]
    assert done.stdout == api.compare(wrong()).render("summary") + "Reports: r/\n"
    quiet = costproof("-q", "report", "deepseek-ocr", "-o", "r", cwd=tmp_path)
    assert (quiet.stdout, quiet.stderr) == (api.compare(wrong()).render("summary"), "")
    assert read_capture(tmp_path / "r" / "capture.json") == wrong()
    made = costproof("capture", "deepseek-ocr", "-o", "c.json", cwd=tmp_path)
    assert made.code == 0
    assert "load: " in made.stderr
    assert read_capture(tmp_path / "c.json") == wrong()


def test_an_operator_without_a_rule_makes_a_capture_incomplete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("costproof.run.report.count_sources", lambda *_, **__: Report(incomplete()))
    made = costproof("capture", "deepseek-ocr", "-o", "c.json", "--progress", "never", cwd=tmp_path)
    assert made.code == 3
    assert "no cost rule for aten.mystery" in made.stderr
    assert read_capture(tmp_path / "c.json") == incomplete()


def test_a_report_without_the_dynamic_source_has_no_callgraph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("costproof.run.report.count_sources", lambda *_, **__: Report(replace(toy(), callgraph=None)))
    assert costproof("report", "deepseek-ocr", "-o", "r", "--sources", "analytic,static", cwd=tmp_path).code == 0
    assert "callgraph.json" not in files(tmp_path / "r")


def test_analytic_alone_proves_nothing(tmp_path: Path) -> None:
    made = costproof(
        "capture", "deepseek-ocr", "-o", "c.json", "--sources", "analytic", "--preset", "tiny", cwd=tmp_path
    )
    assert made.code == 0
    assert costproof("compare", "c.json", cwd=tmp_path).code == 3


def test_version(tmp_path: Path) -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    assert costproof("--version", cwd=tmp_path).stdout == f"costproof {project['project']['version']}\n"


def test_what_other_commands_take_in_place_of_a_target(tmp_path: Path) -> None:
    """A side of diff is told as options, a baseline as no target."""
    for verb in (("explain",), ("report",), ("sweep",)):
        line = (*verb, "bert-base@text,batch=2", "forward")
        said = costproof(*line, cwd=tmp_path)
        assert (said.code, said.stdout) == (2, "")
        assert "this command takes settings of the workload as options" in said.stderr
        assert f"costproof {verb[0]} bert-base --workload text --batch 2" in said.stderr
    assert (
        costproof("capture", "bert-base", "--sources", "analytic", "-f", "baseline", "-o", "b.json", cwd=tmp_path).code
        == 0
    )
    said = costproof("explain", "b.json", "forward", cwd=tmp_path)
    assert said.code == 2
    assert "got:      a file of the kind costproof/baseline" in said.stderr
    assert "hf:b.json" not in said.stderr
