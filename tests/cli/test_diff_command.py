"""``costproof diff``: sides of every kind, formats, exit codes."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from jsonschema import Draft202012Validator

import costproof as cp
from costproof.compare.diff.diff import adds_up
from costproof.compare.diff.diff import diff as honest
from costproof.compare.diff.types import Diff
from costproof.models.families.deepseek_ocr.target import DeepseekOcr
from tests.docs.test_command_lines import small
from tests.support.running import Result, costproof

BASE = "deepseek-ocr@base"


@pytest.fixture(autouse=True)
def _small_model() -> object:
    with mock.patch.object(DeepseekOcr, "default", return_value=DeepseekOcr(small())):
        yield


def run(*arguments: str, cwd: Path) -> Result:
    return costproof("-q", "diff", *arguments, cwd=cwd)


def test_targets_with_settings_and_keys(tmp_path: Path) -> None:
    """Top-k 3 -> 2 by hand: per routed layer 2 x tokens x 3 products of hidden x width less; the router is the same."""
    text = small().text
    done = run(BASE, BASE + ",text.topk=2,batch=2", "-f", "json", cwd=tmp_path)
    assert done.code == 0, done.stderr
    found = json.loads(done.stdout)
    Draft202012Validator(cp.schema("diff")).validate(found)
    assert (found["schema"], found["format_version"], found["complete"]) == ("costproof/diff", "1.2", True)
    assert found["config"]["changed"] == [{"key": "text.topk", "base": text.topk, "head": 2}]
    assert found["workload"]["changed"] == [{"key": "workload.batch", "base": 1, "head": 2}]
    tokens = cp.capture("deepseek-ocr", preset="base", sources=["analytic"]).invocations
    prompt = next(i.symbols["S"] for i in tokens if i.stage == "prefill")
    one = 2 * prompt * 3 * text.hidden * text.moe_intermediate * (text.layers - text.dense_layers) * (2 - text.topk)
    prefill = next(s for s in found["stages"] if s["id"] == "prefill")["totals"]["flops"]
    terms = {tuple(t["keys"]): t["amount"] for t in prefill["terms"]}
    assert terms["text.topk",] == one
    assert terms["text.topk", "workload.batch"] == one
    assert sum(terms.values()) == sum(prefill["shares"].values()) == prefill["delta"]


MODULE = """
import torch

def narrow(middle=16):
    layers = torch.nn.Linear(8, middle), torch.nn.ReLU(), torch.nn.Linear(middle, 4)
    return torch.nn.Sequential(*layers), (torch.zeros(2, 8),)

def wide():
    return narrow(32)
"""
OPT = {
    "model_type": "opt", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64,
    "word_embed_proj_dim": 32, "max_position_embeddings": 64,
}  # fmt: skip


def flops(base: str, head: str, cwd: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The whole report, and what it says of a forward's or a prompt's FLOPs."""
    done = run(base, head, "-f", "json", cwd=cwd)
    assert done.code == 0, done.stderr
    found = json.loads(done.stdout)
    return found, next(s for s in found["stages"] if s["id"] in ("forward", "prefill"))["totals"]["flops"]


def test_targets_without_formulas_are_exported(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(MODULE, encoding="utf-8")
    # Two rows; 16 columns more of both matrices.
    whole, work = flops("own.py:narrow", "own.py:wide", tmp_path)
    assert (whole["source"], work["base"], work["delta"]) == ("static", 2 * 2 * 16 * (8 + 4), 2 * 2 * 16 * (8 + 4))
    done = run("own.py:narrow,layers=2", "own.py:wide", cwd=tmp_path)
    assert (done.code, "no such setting" in done.stderr) == (2, True)
    assert "takes its configuration from its file: change a key in a copy" in done.stderr


def test_the_sizes_of_a_configuration_without_formulas_are_what_changed(tmp_path: Path) -> None:
    for width in (64, 96):
        (tmp_path / f"{width}.json").write_text(json.dumps({**OPT, "ffn_dim": width}), encoding="utf-8")
    whole, work = flops("hf:64.json,seq-len=8", "hf:96.json,seq-len=8", tmp_path)
    assert whole["config"]["changed"] == [{"key": "ffn_dim", "base": 64, "head": 96}]
    # Two layers, 8 tokens, two matrices.
    assert work["delta"] == work["shares"]["ffn_dim"] == 2 * 8 * 2 * 2 * 32 * (96 - 64)
    # How many layers there are is no number of this configuration: the key does not get what the layers add.
    (tmp_path / "deep.json").write_text(json.dumps({**OPT, "ffn_dim": 96, "num_hidden_layers": 3}), encoding="utf-8")
    whole, work = flops("hf:64.json,seq-len=8", "hf:deep.json,seq-len=8", tmp_path)
    assert {"key": "model.decoder.layers.*", "base": 2, "head": 3} in whole["modules"]["changed"]
    wide = (3 * 96 - 2 * 64) * 2 * 8 * 32
    assert [work["shares"][f"model.decoder.layers.*.{name}"] for name in ("fc1", "fc2")] == [wide, wide]


def test_a_side_with_formulas_is_exported_beside_one_without(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "vit.json").write_text(json.dumps({
        "model_type": "vit", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "image_size": 16,
        "num_attention_heads": 4, "patch_size": 8, "architectures": ["ViTModel"],
    }))  # fmt: skip
    whole, work = flops("own.py:narrow", "hf:vit.json", tmp_path)
    formulas = cp.capture(f"hf:{tmp_path / 'vit.json'}", sources=["analytic"]).by_source["analytic"]
    assert (whole["source"], work["base"], work["head"]) == ("static", 768, formulas.stage_total("forward", "flops"))


def test_files_of_every_kind_are_sides(tmp_path: Path) -> None:
    report = cp.report("deepseek-ocr", preset="base", sources=["analytic"], out=tmp_path / "out")
    (tmp_path / "base.json").write_text(report.render("baseline"))
    for side in ("out", "out/capture.json", "out/static_compute.json", "base.json"):
        assert run(side, BASE, cwd=tmp_path).stdout.startswith("✅ No cost changed"), side
        changed = run(side, BASE + ",batch=2", "-f", "json", cwd=tmp_path)
        found = json.loads(changed.stdout)
        assert found["workload"]["changed"] == [{"key": "workload.batch", "base": 1, "head": 2}], side
        assert found["rows"], side
        assert found["totals"]["flops"]["shares"] == {"workload.batch": found["totals"]["flops"]["delta"]}, side


def test_a_file_in_git(tmp_path: Path) -> None:
    made = cp.report("deepseek-ocr", preset="base", sources=["analytic"])
    (tmp_path / "base.json").write_text(made.render("baseline"))
    name = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    for words in (("init", "-q", "-b", "main"), ("add", "base.json"), (*name, "commit", "-q", "-m", "x")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    (tmp_path / "base.json").unlink()
    assert run("main:base.json", BASE, cwd=tmp_path).stdout.startswith("✅")
    gone = run("main:gone.json", BASE, cwd=tmp_path)
    assert (gone.code, "git does not have this file" in gone.stderr) == (2, True)


def test_a_configuration_file(tmp_path: Path) -> None:
    changed = small().native()
    changed["text_config"]["vocab_size"] += 64
    (tmp_path / "mine.json").write_text(json.dumps(changed))
    done = run("deepseek-ocr", "deepseek-ocr", "--config", "mine.json", "-f", "json", cwd=tmp_path)
    assert [c["key"] for c in json.loads(done.stdout)["config"]["changed"]] == ["text.vocab", "text.sliding_window"]


@pytest.mark.parametrize(
    ("side", "said"),
    [
        ("deepseek-orc", "did you mean deepseek-ocr?"),
        ("deepseek-ocr@bsae", "there is no such workload"),
        ("deepseek-ocr,text.topkk=8", "no such key"),
        ("deepseek-ocr,topk", "this is not a setting"),
        ("deepseek-ocr,text.topk=many", "a key cannot have this value"),
        ("deepseek-ocr,sam.downsample=[512]", "there must be two stride-2 convolutions"),
        ("deepseek-ocr,text.rope_theta=Infinity", "a key cannot have this value"),
        ("deepseek-ocr,text.rope_theta=1e999", "a key cannot have this value"),
        ("deepseek-ocr,text.topk=" + 5000 * "[", "a key cannot have this value"),
        ("deepseek-ocr,topk=2,text.topk=1", "this is set twice"),
        ("-x:file", "no such option"),
        ("rev:file:x", "git does not have this file"),
    ],
)
def test_what_is_no_side(side: str, said: str, tmp_path: Path) -> None:
    done = run(BASE, side, cwd=tmp_path)
    assert done.code == 2
    assert said in done.stderr.lower()


def test_the_formats_say_the_same(tmp_path: Path) -> None:
    sides = (BASE, BASE + ",text.topk=2")
    texts = {kind: run(*sides, "-f", kind, cwd=tmp_path).stdout for kind in ("md", "json", "csv", "text")}
    assert texts["md"] == run(*sides, cwd=tmp_path).stdout  # the same bytes again
    delta = json.loads(texts["json"])["totals"]["flops"]["delta"]
    assert f"| total | {delta:+,} | `text.topk` |" in texts["md"]
    assert any(
        line.startswith("analytic,total,,,,flops,") and f",{delta}," in line for line in texts["csv"].splitlines()
    )
    assert "text.topk 3 → 2 takes" in texts["text"]


def test_in_python() -> None:
    found = cp.diff("deepseek-ocr", cp.capture("deepseek-ocr", preset="text-only", sources=["analytic"]))
    assert found.verdict == "changed"
    assert list(adds_up(found)) == []
    assert repr(found).startswith("Diff(deepseek-ocr at dsocr-standard-v1 -> deepseek-ocr at text-only: changed")


def test_a_key_with_the_name_of_a_setting() -> None:
    """``experts`` is the kernel; ``config.experts`` is how many there are."""
    found = cp.diff("mixtral", "mixtral,config.experts=4,experts=batched_mm")
    assert [(c.key, c.head) for c in found.config.changed] == [("experts", 4)]
    assert ("experts", "batched_mm") in [(c.key, c.head) for c in found.implementation.changed]
    frame = cp.sweep("mixtral", {"config.experts": [4, 8]}, metrics=["params"]).frame()
    # One expert holds three matrices of width x intermediate in each of 32 layers.
    assert frame["params"][1] - frame["params"][0] == 32 * (4 * 3 * 4096 * 14336 + 4 * 4096)


def test_a_difference_that_does_not_add_up_is_a_bug_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def wrong(*sides: Any) -> Diff:
        found = honest(*sides)
        total = found.totals["flops"]
        found.totals["flops"] = replace(total, shares={k: n + 1 for k, n in total.shares.items()})
        return found

    monkeypatch.setattr("costproof.run.diff.compared", wrong)
    done = run(BASE, BASE + ",text.topk=2", cwd=tmp_path)
    assert (done.code, done.stdout) == (70, "")
    assert "a difference does not add up" in done.stderr
