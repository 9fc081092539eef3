"""Every text begins with what its numbers leave out, and JSON says the same; the first layers are not the model."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from costproof import api
from costproof.ledger.baseline import BASELINE, fold_capture
from costproof.ledger.workload import counted_line
from tests.support.running import costproof
from tests.support.toy import toy
from tests.support.written import dump

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "vocab_size": 100,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "torch_dtype": "float32",
    "initializer_range": 0.02,
    "quantization_config": {"quant_method": "fp8"},
}
BERT: dict[str, Any] = {
    "model_type": "bert", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2,
    "vocab_size": 50, "max_position_embeddings": 40,
    **{key: LLAMA[key] for key in ("torch_dtype", "initializer_range", "quantization_config")},
}  # fmt: skip
"""The same of the model with the fewest things to prove."""
TARGET = "hf:llama.json"
CUT = "decoder layers 1 of 3"
POLICY = "costproof_policy: 1\nlimits:\n- {metric: flops, increase: 0}\n"
CLAIMS = "costproof_claims: 1\nclaims:\n- {id: a, stage: prefill, params: '1'}\n"


def line(layers: str = "all layers") -> str:
    """What the first lines say of :data:`LLAMA`."""
    return (
        f"weights and cache float32, sdpa attention, {layers}, "
        "1 key of the configuration not used (target.waived in JSON); weight and traffic bytes "
        "as if all weights were float32, "
        "the checkpoint is quantised: weights in fp8 ($.quantization_config)"
    )


FORMAT = "fp8 ($.quantization_config)"


def stored(how: str) -> str:
    """What a command says of :data:`LLAMA` that takes its weights as they are stored."""
    counted, _, _ = line().partition("; weight and traffic bytes as if")
    return f"{counted}; weights as stored: {how}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration, a policy, claims, a report and one of the first layer."""
    made = tmp_path_factory.mktemp("counted")
    (made / "llama.json").write_text(json.dumps(LLAMA))
    (made / "policy.yaml").write_text(POLICY)
    (made / "claims.yaml").write_text(CLAIMS)
    for name, options in (("whole", ()), ("cut", ("--layers", "1"))):
        done = costproof("report", TARGET, "--sources", "analytic", "-o", name, *options, cwd=made)
        assert done.code == 3, done.stderr
    return made


def words(text: str) -> str:
    return " ".join(unescape(text).replace("\\", "").replace("`", "").split())


@pytest.mark.parametrize("kind", ["", "-f md"])
@pytest.mark.parametrize(
    "command",
    [
        f"fits {TARGET} --memory 1GB",
        f"roofline {TARGET} --on h100-sxm",
        f"diff {TARGET} {TARGET},batch=2",
        f"gate {TARGET} {TARGET} --policy policy.yaml",
        f"check claims.yaml {TARGET}",
        f"explain {TARGET} prefill",
        "compare whole/capture.json",
        f"sweep {TARGET} --over batch=1,2",
        f"sweep {TARGET} --over batch=1,2 --dry-run",
    ],
)
def test_every_text_begins_with_what_is_left_out(folder: Path, command: str, kind: str) -> None:
    options = [] if command.startswith("sweep") else kind.split()
    done = costproof(*command.split(), *options, cwd=folder, columns=400)
    text = done.stderr if command.startswith("sweep") else done.stdout
    first = words("\n".join(text.splitlines()[:8]))
    if command.startswith("fits"):
        assert stored("fp8, one scale") in first, text or done.stderr
    elif command.startswith("roofline"):
        assert stored(FORMAT) in first, text or done.stderr
    else:
        assert line() in first, text or done.stderr


@pytest.mark.parametrize("kind", ["csv", "svg"])
def test_a_table_and_a_picture_say_it_themselves(folder: Path, kind: str) -> None:
    done = costproof("-q", "roofline", TARGET, "--on", "h100-sxm", "-f", kind, cwd=folder)
    shown = " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", done.stdout)) if kind == "svg" else done.stdout
    assert (done.code, stored(FORMAT) in unescape(shown), done.stderr) == (0, True, "")


def test_a_table_of_a_diff_says_it_of_both_sides(folder: Path) -> None:
    done = costproof("-q", "diff", TARGET, f"{TARGET},dtype=float16", "-f", "csv", cwd=folder)
    rows = list(csv.DictReader(done.stdout.splitlines()))
    assert {row["base_counted"] for row in rows} == {f"Counted: {line()}"}
    assert {row["head_counted"] for row in rows} == {f"Counted: {line()}".replace("float32", "float16")}


@pytest.mark.parametrize("to", ["stdout", "file"])
def test_a_table_of_a_sweep_says_it_in_its_first_row(folder: Path, to: str) -> None:
    options = () if to == "stdout" else ("-o", "s.csv", "--no-plot")
    done = costproof("-q", "sweep", TARGET, "--over", "batch=1,2,3", *options, cwd=folder)
    text = done.stdout if to == "stdout" else (folder / "s.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    assert [row["counted"] for row in rows] == [f"Counted: {line()}", "", ""]
    assert [int(row["batch"]) for row in rows] == [1, 2, 3]
    if to == "file":
        drawn = costproof("plot", "s.csv", "-o", "drawn", cwd=folder)
        assert drawn.code == 0, drawn.stderr


NOTE = "every token passes all 16 experts"


def test_what_a_source_notes_stands_in_all_that_is_read_from_a_baseline(tmp_path: Path) -> None:
    """The report prints it, and so do gate, diff, roofline and fits, as text and as JSON."""
    capture = api.capture("gpt2", sources=["analytic"])
    noted = replace(capture, ledgers=(replace(capture.ledgers[0], notes=(NOTE,)),))
    for name, one in (("base.json", capture), ("head.json", noted)):
        dump(tmp_path / name, BASELINE, fold_capture(one))
    (tmp_path / "policy.yaml").write_text(POLICY)
    for command, where in (
        ("gate base.json head.json --policy policy.yaml", "head"),
        ("diff base.json head.json", "head"),
        ("roofline head.json --on h100-sxm", ""),
        ("fits head.json --memory 1GB", ""),
    ):
        text, data = (costproof("-q", *command.split(), "-f", kind, cwd=tmp_path) for kind in ("text", "json"))
        assert f"Note{where and ' on the head'}: {NOTE}" in text.stdout.splitlines(), text.stdout or text.stderr
        found = json.loads(data.stdout)
        assert (found[where] if where else found)["notes"] == [NOTE]


@pytest.mark.parametrize(("notation", "comment"), [("text", ""), ("yaml", "# "), ("python", "# "), ("latex", "% ")])
def test_a_derived_form_says_it_in_every_notation(folder: Path, notation: str, comment: str) -> None:
    done = costproof("derive", TARGET, "prefill", "--points", "0", "-f", notation, cwd=folder)
    assert f"{comment}Counted: {line()}" in done.stdout.splitlines()[:2], done.stderr


@pytest.mark.usefixtures("proof_in_this_process")
def test_a_proof_says_it_on_the_console_and_in_its_files(folder: Path) -> None:
    (folder / "bert.json").write_text(json.dumps(BERT))
    done = costproof("prove", "bert", "--config", "bert.json", "--samples", "1", "--jobs", "1", "-o", "p", cwd=folder)
    _, runs, rest = line().split(", ", 2)
    said = f"Counted: dtypes and {runs.removeprefix('sdpa ')} of the runs of the domain, {rest}"
    said = said.replace("were float32", "were in the dtype of the run")
    assert said in done.stdout.splitlines(), done.stderr
    for name in ("certificate.md", "certificate.html"):
        assert said in words((folder / "p" / name).read_text(encoding="utf-8"))
    target = json.loads((folder / "p" / "certificate.json").read_text())["target"]
    assert (target["cut"], list(target["waived"]), list(target["quantised"])) == (
        {}, ["$.initializer_range"], ["weights"],
    )  # fmt: skip


@pytest.mark.parametrize(
    "command",
    [
        f"fits {TARGET} --memory 1GB",
        f"roofline {TARGET} --on h100-sxm",
        f"check claims.yaml {TARGET}",
        "render whole/capture.json -f static-json",
        "render whole/capture.json -f discrepancy-json",
        "render whole/capture.json -f capture-json",
    ],
)
def test_json_says_the_same(folder: Path, command: str) -> None:
    options = [] if command.startswith("render") else ["-f", "json"]
    done = costproof(*command.split(), *options, cwd=folder)
    found = json.loads(done.stdout)
    target = found["target"]
    assert found["workload"]["dtype"] == "float32"
    assert found["workload"]["attention"] == "sdpa"
    assert target["quantised"] == {"weights": "fp8 ($.quantization_config)"}
    assert list(target["waived"]) == ["$.initializer_range"]
    assert target["cut"] == {}


@pytest.mark.parametrize("side", ["base", "head"])
@pytest.mark.parametrize("command", [f"diff {TARGET} {TARGET}", f"gate {TARGET} {TARGET} --policy policy.yaml"])
def test_json_of_two_sides_has_the_line_of_each(folder: Path, command: str, side: str) -> None:
    found = json.loads(costproof(*command.split(), "-f", "json", cwd=folder).stdout)
    assert found[side]["counted"] == f"Counted: {line()}"


@pytest.mark.parametrize("name", ["static_compute.md", "discrepancy.md", "discrepancy-short.md", "report.html"])
def test_every_file_of_a_report_says_it_and_that_it_is_cut(folder: Path, name: str) -> None:
    whole, cut = ((folder / which / name).read_text(encoding="utf-8") for which in ("whole", "cut"))
    if name.endswith(".md"):
        assert CUT in cut.splitlines()[0]
        whole, cut = ("\n".join(text.splitlines()[:10]) for text in (whole, cut))
    assert line().split(" (target")[0] in words(whole)
    assert line(f"cut to {CUT}").split(" (target")[0] in words(cut)


@pytest.mark.parametrize(
    "command",
    [
        "fits cut --memory 1GB",
        "roofline cut --on h100-sxm",
        "diff cut whole",
        "gate whole cut --policy policy.yaml",
        "check claims.yaml --capture cut/capture.json llama",
    ],
)
def test_the_first_layers_are_not_planned_as_the_model(folder: Path, command: str) -> None:
    done = costproof(*command.split(), cwd=folder)
    assert done.code == 2, done.stdout
    assert CUT in done.stderr


def test_two_sides_that_are_cut_alike_are_compared_and_say_so(folder: Path) -> None:
    done = costproof("diff", "cut", "cut", cwd=folder)
    assert CUT in done.stdout.splitlines()[0]


def test_formulas_say_the_whole_model_of_which_the_first_layers_were_counted(folder: Path) -> None:
    whole = json.loads((folder / "cut" / "capture.json").read_text())["whole"]
    # Two tables; of three layers Q and O, K and V of half the width, three matrices of the MLP, norms; the last norm.
    params = 2 * 100 * 64 + 3 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64) + 64
    assert whole["totals"]["params"] == params
    assert whole["totals"]["weight_bytes"] == 4 * params


def test_nothing_is_said_of_keys_that_nobody_looked_at() -> None:
    target = toy().target
    assert counted_line(replace(target, waived={}), toy().workload).endswith("all layers")
    assert counted_line(replace(target, waived={}, config={}), toy().workload).endswith(
        "every key of the configuration used"
    )
