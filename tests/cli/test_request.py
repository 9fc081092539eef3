"""A run as data: read, written, changed, prepared; wrong ones are told before anything is traced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import costproof
from costproof import RunRequest
from costproof.ledger.errors import BadInput, Incomplete, Problems
from costproof.ledger.run import ALL_SOURCES, RunOptions
from costproof.run.prepare import prepare
from costproof.run.request import NamedSettings, request
from costproof.run.request_file import request_from, request_yaml
from tests.support.running import costproof as command

NAME = "deepseek-ocr"
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "batch": st.integers(1, 9),
        "text_tokens": st.integers(0, 999),
        "grid": st.sampled_from(["2x3", "9x1"]),
        "dtype": st.sampled_from(["float32", "bfloat16"]),
        "image": st.sampled_from(["page.png", "a folder/ä: #.png", "null.png"]),
    },
)
OPTIONS = st.builds(
    RunOptions,
    device=st.sampled_from(["meta", "cpu", "cuda"]),
    weights=st.sampled_from(["random", "some folder: of/weights"]),
    seed=st.integers(0, 10**9),
    layers=st.none() | st.integers(1, 12),
    profile=st.integers(0, 3),
    convention=st.none() | st.just("fvcore-macs"),
)
REQUESTS = st.builds(
    RunRequest,
    target=st.just(NAME),
    config=st.none() | st.sampled_from(["m.json", "- x.json"]),
    workload=st.builds(NamedSettings, st.none() | st.sampled_from(["tiny", "gundam:3x2"]), SETTINGS)
    | st.just(costproof.workload(NAME, "gundam", grid="3x2", batch=4)),
    sources=st.lists(st.sampled_from(ALL_SOURCES), min_size=1, unique=True).map(tuple),
    run=OPTIONS,
    all_calls=st.booleans(),
    peaks=st.booleans(),
    counters=st.sampled_from([(), ("all",), ("fvcore", "torch.profiler")]),
    rules=st.sampled_from([(), ("my rules.py",)]),
    trust_remote_code=st.booleans(),
    prove=st.fixed_dictionaries({}, optional={"samples": st.integers(0, 9), "sides": st.just("64-128")}),
    derive=st.fixed_dictionaries({}, optional={"stage": st.just("sam"), "points": st.integers(0, 9)}),
)


@settings(max_examples=60)
@given(REQUESTS)
def test_a_request_is_what_its_file_says(asked: RunRequest) -> None:
    from costproof.ledger.document import read_document

    data = read_document(request_yaml(asked), where="f")
    assert request_from(data, where="f", rules=asked.rules, trust_remote_code=asked.trust_remote_code) == asked


def test_the_file_is_short_and_plain() -> None:
    asked = request(NAME, preset="gundam", grid="3x2", batch="4", run="cpu", layers=2, counters="all")
    assert request_yaml(asked).splitlines() == [
        "target: deepseek-ocr",
        "workload:", "  preset: gundam", "  grid: 3x2", "  batch: 4",
        "sources:", "- analytic", "- static", "- dynamic",
        "run:", "  device: cpu", "  weights: random", "  seed: 0", "  layers: 2",
        "counters:", "- all",
    ]  # fmt: skip


def test_the_line_goes_before_the_file(tmp_path: Path) -> None:
    text = "target: deepseek-ocr\nworkload: {preset: gundam, batch: 4}\nrun: {layers: 2}\n"
    (tmp_path / "run.yaml").write_text(text)
    line = ("report", "--request", "run.yaml", "--batch", "2", "--sources", "analytic", "--dry-run")
    done = command(*line, cwd=tmp_path)
    assert (done.code, done.stderr) == (0, "")
    (tmp_path / "again.yaml").write_text(done.stdout)
    again = costproof.read_request(tmp_path / "again.yaml")
    assert again.workload == NamedSettings("gundam", {"batch": 2})
    assert (again.sources, again.run.layers) == (("analytic",), 2)
    for name in ("capture", "counters", "prove"):
        assert command(name, "--request", "again.yaml", "--dry-run", cwd=tmp_path).code == 0
    assert {p.name for p in tmp_path.iterdir()} == {"run.yaml", "again.yaml"}


def test_proofs_and_derivations_are_runs_too(tmp_path: Path) -> None:
    text = "target: deepseek-ocr\nprove: {samples: 9, sides: 64-128}\nderive: {stage: sam, points: 2}\n"
    (tmp_path / "run.yaml").write_text(text)
    for line, expected in (
        (("prove", "--seed", "3", "--samples", "1"), {"samples": 1, "seed": 3, "sides": "64-128"}),
        (("prove", "--sides", "640"), {"samples": 9, "sides": "640"}),
        (("derive", "deepseek-ocr", "clip"), {"stage": "clip", "points": 2}),
        (("derive", "--points", "0"), {"stage": "sam", "points": 0}),
    ):
        done = command(*line, "--request", "run.yaml", "--dry-run", cwd=tmp_path)
        assert (done.code, done.stderr) == (0, "")
        (tmp_path / "again.yaml").write_text(done.stdout)
        again = costproof.read_request(tmp_path / "again.yaml")
        assert getattr(again, line[0]) == expected
        assert again.run.seed == 0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (("prove", "llama", "--sides", "64"), "no such option '--sides'"),
        (("prove", "deepseek-ocr", "--sides", "9-7"), "no side to enumerate"),
        (("prove", "--request", "run.yaml"), "$.prove.side"),
        (("derive", "deepseek-ocr", "sma"), "did you mean sam?"),
        (("derive", "deepseek-ocr", "sam", "--points", "1001"), "--points out of range"),
        (("derive", "hf:m.json", "--config", "m.json"), "this model has its own configuration"),
        (("derive",), "missing argument 'TARGET'"),
        (("prove", "llama", "-o", "x", "--seed", "1", "--verify", "c.json"), "TARGET, -o, --dry-run, --seed"),
    ],
)
def test_what_cannot_be_proved_or_derived(line: tuple[str, ...], said: str, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("target: deepseek-ocr\nprove: {side: 64}\n")
    (tmp_path / "m.json").write_text('{"model_type": "llama"}')
    done = command(*line, "--dry-run", cwd=tmp_path)
    assert done.code == 2
    assert said in done.stderr


BAD = """\
target: deepseek-ocr
workload: {preset: gundan, gird: 2x3, batch: four, dtype: fp8}
run: {device: tpu, seeds: 3, layers: -1}
source: [analytic]
sources: [analytc]
all_calls: maybe
"""


def test_everything_that_is_wrong_with_a_file_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(BAD)
    with pytest.raises(Problems) as error:
        costproof.read_request(tmp_path / "run.yaml")
    assert {p.where: p.fix for p in error.value.problems} == {
        "$.source": "did you mean sources?",
        "$.sources": "did you mean analytic?",
        "$.run.seeds": "did you mean seed?",
        "$.run.device": None,
        "$.run.layers": None,
        "$.all_calls": None,
        "$.workload.preset": "did you mean gundam?",
        "$.workload.gird": "did you mean grid?",
        "$.workload.batch": None,
        "$.workload.dtype": None,
    }


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("- a list\n", "$ in f"),
        ("sources: [static]\n", "$.target in f"),
        ("target: nobody\n", "nobody"),
        ("target: deepseek-ocr\nworkload: {name: x, text_tokens: many}\n", "$.workload.text_tokens"),
        ("target: deepseek-ocr\ncounters: {a: 1}\n", "$.counters"),
    ],
)
def test_files_that_are_none(text: str, where: str) -> None:
    from costproof.ledger.document import read_document

    with pytest.raises(BadInput) as error:
        request_from(read_document(text, where="f"), where="f")
    told = error.value.problems if isinstance(error.value, Problems) else [error.value]
    assert [e.where for e in told] == [where]


def test_python_keywords_are_checked_like_options() -> None:
    with pytest.raises(Problems) as error:
        costproof.workload(NAME, "gundam", grids="3x2", batch="x")
    assert [p.where for p in error.value.problems] == ["--grids", "--batch"]
    with pytest.raises(BadInput, match="no counter"):
        request(NAME, counters=[])


@pytest.mark.parametrize(
    ("choices", "error", "said"),
    [
        ({"run": "cpu", "weights": "none"}, BadInput, "there is no such folder"),
        ({"run": "cuda"}, Incomplete, "no GPU"),
        ({"rules": "none.py"}, BadInput, "no such Python file"),
        ({"counters": "fvcor"}, BadInput, "no such counter"),
        ({"config": "none.json"}, BadInput, "cannot read the configuration"),
        ({"layers": 13}, BadInput, "cannot be cut"),
        ({"profile": 2, "run": "cpu", "sources": "static"}, BadInput, "--profile needs the dynamic source"),
    ],
)
def test_what_cannot_run_is_told_before_anything_is_traced(
    choices: dict[str, Any], error: type[Exception], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(error, match=said):
        prepare(request(NAME, **choices))


def test_a_checkpoint_with_a_shard_missing_is_told_first(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}'
    )
    (tmp_path / "1.safetensors").write_text("")
    with pytest.raises(Problems, match="is incomplete") as error:
        prepare(request(NAME, run="cpu", weights=tmp_path))
    assert [p.where for p in error.value.problems] == [str(tmp_path / "2.safetensors")]


@pytest.mark.parametrize(
    ("target", "verb", "choices", "where"),
    [
        ("llava", "prove", {"tp": 2}, "--tp"),
        ("llama", "derive", {"tp": 2}, "--tp"),
        ("llama", "prove", {"text_tokens": 5}, "--text-tokens"),
        ("llama", "prove", {"preset": "chat"}, "--preset"),
    ],
)
def test_proofs_refuse_settings_that_they_would_ignore(
    target: str, verb: str, choices: dict[str, Any], where: str
) -> None:
    with pytest.raises(BadInput) as refused:
        costproof.request(target, verb=verb, **choices)
    assert refused.value.where == where


def test_the_mesh_of_a_request_is_not_ignored_by_a_proof() -> None:
    of_two = costproof.request("llama", tp=2, text_tokens=5)
    with pytest.raises(BadInput):
        costproof.request(of_two, verb="prove")
    assert costproof.request(of_two, verb="prove", tp=2).prove == {"tp": 2}
    assert costproof.request(costproof.request("llama", text_tokens=5), verb="prove", tp=2).prove == {"tp": 2}
