"""``costproof check``: verdict as exit code, formats, and what it says of bad files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from costproof.ledger.capture import read_capture
from costproof.ledger.node import total
from tests.conftest import Golden
from tests.models.test_config import shallow_config
from tests.support.running import costproof, files
from tests.support.toy import toy
from tests.support.written import write_capture

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "src" / "costproof" / "schemas" / "claims.schema.json"
# One view of 256 features through 2048 x 1280 weights.
PROJECTOR = 256 * 2048 * 1280

HEAD = "costproof_claims: 1\ntitle: T\ntarget: deepseek-ocr\nworkload: {preset: base}\nclaims:\n"


def claims(folder: Path, body: str, head: str = HEAD) -> None:
    """``c.yaml`` in the folder."""
    (folder / "c.yaml").write_text(head + body, encoding="utf-8")


def test_explained_ends_with_0(tmp_path: Path, golden: Golden) -> None:
    claims(tmp_path, f"- {{stage: projector, flops: {PROJECTOR}}}\n- {{stage: projector, params: 2_622_720}}\n")
    result = costproof("check", "c.yaml", "deepseek-ocr", cwd=tmp_path)
    assert (result.code, result.stderr) == (0, "")
    golden("cli/check.md", result.stdout)


def test_equally_simple_causes_are_all_named(tmp_path: Path) -> None:
    """Half of the FLOPs at batch 2: by the unit, or of one of the two images."""
    head = HEAD.replace("preset: base", "preset: base, batch: 2")
    claims(tmp_path, f"- {{stage: projector, flops: {2 * PROJECTOR}}}\n", head)
    done = costproof("check", "c.yaml", "-f", "md", cwd=tmp_path)
    assert done.code == 0
    assert "mac or fvcore or batch forgotten" in done.stdout.replace("`", ""), done.stdout


def test_unexplained_ends_with_1(tmp_path: Path) -> None:
    claims(tmp_path, f"- {{stage: projector, flops: {PROJECTOR + 3}}}\n")
    result = costproof("check", "c.yaml", "deepseek-ocr", cwd=tmp_path)
    assert result.code == 1
    assert "unexplained" in result.stdout


def test_refuted_ends_with_1(tmp_path: Path, golden: Golden) -> None:
    # A row of another model whose FLOPs fit no prompt, and a formula that is right for one view alone.
    row = "- {stage: prefill, params: 454.49 M, flops: 487.23 G}\n"
    formula = "- {id: view, stage: projector, flops: 1342177280*n}\n"
    claims(tmp_path, row + formula)
    result = costproof("check", "c.yaml", "deepseek-ocr", cwd=tmp_path)
    assert (result.code, result.stderr) == (1, "")
    golden("cli/check-refuted.md", result.stdout)


def test_json_follows_the_schema(tmp_path: Path) -> None:
    claims(tmp_path, f"- {{stage: projector, flops: {PROJECTOR}}}\n")
    result = costproof("check", "c.yaml", "deepseek-ocr", "-o", "out.json", cwd=tmp_path)
    assert (result.code, result.stdout) == (0, "")
    data = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8"))).validate(data)
    assert data["schema"] == "costproof/claims"
    (judged,) = data["judgements"]
    assert [s["cause"] for s in judged["explanations"][0]["steps"]] == ["mac"]
    assert judged["truth"] == 2 * PROJECTOR


def test_json_of_what_is_refuted_follows_the_schema(tmp_path: Path) -> None:
    claims(tmp_path, "- {stage: decode, flops: 0.49 G}\n")
    result = costproof("check", "c.yaml", "deepseek-ocr", "-f", "json", cwd=tmp_path)
    assert result.code == 1
    data = json.loads(result.stdout)
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8"))).validate(data)
    assert (data["verdict"], data["judgements"][0]["status"]) == ("refuted", "refuted")
    (lengths,) = data["judgements"][0]["lengths"]
    assert [r["above"]["length"] for r in lengths["readings"]] == [0, 0]


def test_options_go_before_the_file(tmp_path: Path) -> None:
    # small: a view of 640 has 100 features.
    claims(tmp_path, f"- {{stage: projector, flops: {2 * 100 * 2048 * 1280}}}\n")
    assert costproof("check", "c.yaml", "deepseek-ocr", "--preset", "small", cwd=tmp_path).code == 0


def test_hostile_names_do_not_reach_the_report(tmp_path: Path) -> None:
    claims(tmp_path, '- {id: "<b>|\\u202e`x`", stage: projector, flops: 7}\n', HEAD.replace("T\n", '"[x](http://y)"\n'))
    result = costproof("check", "c.yaml", "deepseek-ocr", cwd=tmp_path)
    assert result.code == 1
    assert "<b>" not in result.stdout
    assert "\u202e" not in result.stdout
    assert "](http" not in result.stdout


MODULE = """
import torch

def make(middle=16):
    layers = torch.nn.Linear(8, middle), torch.nn.ReLU(), torch.nn.Linear(middle, 4)
    return torch.nn.Sequential(*layers), (torch.zeros(2, 8),)
"""


def test_a_target_without_formulas_is_held_against_its_graph(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(MODULE, encoding="utf-8")
    # 2 x 2 rows x (8 x 16 + 16 x 4), and both biases.
    body = ("- {id: flops, stage: forward, flops: 768}", "- {id: macs, stage: forward, flops: 384}",
            "- {id: weights, stage: forward, params: 212}", "- {id: last, stage: total, flops: 256}",
            "- {id: formula, stage: forward, flops: 2*B*192}", '- {id: two, stage: forward, module: "2", flops: 256}',
            "- {id: other, stage: forward, flops: 192*B**2}")  # fmt: skip
    claims(tmp_path, "\n".join(body), "costproof_claims: 1\ntitle: T\nclaims:\n")
    result = costproof("check", "c.yaml", "own.py:make", "-f", "json", cwd=tmp_path)
    assert result.code == 1, result.stderr
    found = json.loads(result.stdout)
    assert found["truth"].startswith("the exported graph of the target (static), which has no formulas")
    judged = {j["id"]: j for j in found["judgements"]}
    assert {name: j["status"] for name, j in judged.items() if name != "last"} == {
        "flops": "right", "macs": "explained", "weights": "right", "formula": "right", "two": "right",
        # Right at two rows, and nowhere else.
        "other": "unexplained",
    }  # fmt: skip
    assert [s["cause"] for s in judged["macs"]["explanations"][0]["steps"]] == ["mac"]
    assert (judged["last"]["truth"], judged["last"]["delta"]) == (768, -512)


BAD = {
    "claims missing": (None, HEAD),
    "claims that are a bomb": ("- &a {stage: sam, flops: 1}\n- *a\n", HEAD),
    "claims with code for a formula": ("- {stage: sam, flops: \"__import__('os').system('true')\"}\n", HEAD),
    "claims with many problems": ("- {stage: sam, flpos: 1}\n- {flops: 1}\n- {stage: sam, flops: 2 **}\n", HEAD),
    "claims on an unknown stage": ("- {stage: sma, flops: 1}\n", HEAD),
    "claims with an unknown symbol": ("- {stage: prefill, flops: 2*B*Q}\n", HEAD),
    "claims at another workload": ("- {stage: projector, flops: n, at: {H: 640}}\n", HEAD),
    "claims at no integer": ("- {stage: projector, flops: n, at: {H: x}}\n", HEAD),
    "claims on another target": ("- {stage: sam, flops: 1}\n", HEAD.replace("target: deepseek-ocr", "target: gpt")),
    "claims with an unknown setting": ("- {stage: sam, flops: 1}\n", HEAD.replace("preset:", "prest:")),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files(name: str, tmp_path: Path, golden: Golden) -> None:
    body, head = BAD[name]
    if body is not None:
        claims(tmp_path, body, head)
    before = files(tmp_path)
    result = costproof("check", "c.yaml", "deepseek-ocr", "-o", "out/x.md", cwd=tmp_path)
    assert (result.code, result.stdout) == (2, "")
    golden(f"bad-input/{name.replace(' ', '-')}.txt", result.stderr)
    assert files(tmp_path) == before


def test_a_capture_that_is_no_truth(tmp_path: Path, golden: Golden) -> None:
    write_capture(tmp_path / "c.json", replace(toy(), ledgers=toy().ledgers[:1], callgraph=None, trace_check=None))
    claims(tmp_path, "- {stage: sam, flops: 1}\n", HEAD.replace("target: deepseek-ocr\n", ""))
    result = costproof("check", "c.yaml", toy().target.name, "--capture", "c.json", cwd=tmp_path)
    assert (result.code, result.stdout) == (3, "")
    golden("bad-input/claims-against-an-unproved-capture.txt", result.stderr)


def test_a_capture_has_its_own_workload(tmp_path: Path) -> None:
    write_capture(tmp_path / "c.json", toy())
    claims(tmp_path, "- {stage: sam, flops: 1}\n", HEAD.replace("target: deepseek-ocr\n", ""))
    result = costproof("check", "c.yaml", toy().target.name, "--capture", "c.json", "--batch", "2", cwd=tmp_path)
    assert result.code == 2


def test_check_needs_no_torch() -> None:
    from tests.cli.test_help import _imported

    code = (
        "from costproof.cli.main import run\n"
        f"run(['check', {str(ROOT / 'docs/examples/published-table.yaml')!r}, 'deepseek-ocr', '-f', 'json'])"
    )
    assert not _imported(code) & {"torch", "transformers", "torchlens", "pandas"}


@pytest.mark.usefixtures("one_process")
def test_against_a_capture_with_the_mistakes_of_its_target(tmp_path: Path) -> None:
    """A capture read from a file names its target; what is known of that target's towers is found by the name."""
    (tmp_path / "small.json").write_text(json.dumps(shallow_config().native()))
    counted = costproof(
        "capture", "deepseek-ocr", "--config", "small.json", "--preset", "tiny", "--sources", "analytic,dynamic",
        "-o", "c.json", cwd=tmp_path,
    )  # fmt: skip
    assert counted.code == 0, counted.stderr
    found = read_capture(tmp_path / "c.json")
    ledger = found.ledger("analytic")
    assert ledger is not None
    whole = ledger.stage_total("sam", "flops")
    relative = total((n for n in ledger.nodes if n.stage == "sam" and n.kind == "einsum"), "flops")
    assert whole
    assert relative
    claims(tmp_path, f"- {{stage: sam, flops: {whole - relative}}}\n", HEAD.replace("workload: {preset: base}\n", ""))
    result = costproof("check", "c.yaml", "deepseek-ocr", "--capture", "c.json", "-f", "json", cwd=tmp_path)
    assert result.code == 0, result.stdout + result.stderr
    (judged,) = json.loads(result.stdout)["judgements"]
    assert [s["cause"] for s in judged["explanations"][0]["steps"]] == ["relative positions missing"]
