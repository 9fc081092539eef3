"""Every command on a target that no general room knows: Llama, small, from a configuration file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.models.test_llama import SMALL
from tests.support.running import costproof

pytestmark = pytest.mark.slow

CLAIMS = """\
costproof_claims: 1
target: llama
workload: {text_tokens: 20, new_tokens: 5}
claims:
  - {id: right, stage: prefill, flops: 4*B*S**2*text_layers*text_heads*text_head_dim + 2*B*S*(text_hidden*text_vocab
      + text_layers*text_hidden*(2*text_heads*text_head_dim + 2*text_kv_heads*text_head_dim + 3*text_intermediate))}
  - {id: multi-head, stage: prefill, module: "*.k_proj", flops: 122880}
"""
CONFIG = ("llama", "--config", "m.json")
RUN = ("--text-tokens", "20", "--new-tokens", "5")
# Per token: two layers of q and out 32*48, k and v 32*24, MLP 3*32*48, and the output projection 32*64, 2 FLOPs each;
# per pair of tokens 4*48 in each layer.
PER_TOKEN = 2 * (2 * (2 * 32 * 48 + 2 * 32 * 24 + 3 * 32 * 48) + 32 * 64)
PREFILL = 20 * PER_TOKEN + 2 * 4 * 48 * 20 * 20
DECODE = 5 * PER_TOKEN + 2 * 4 * 48 * (21 + 22 + 23 + 24 + 25)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration, claims, and a report in ``r``."""
    made = tmp_path_factory.mktemp("llama")
    (made / "m.json").write_text(json.dumps(SMALL), encoding="utf-8")
    (made / "claims.yaml").write_text(CLAIMS, encoding="utf-8")
    done = costproof("report", *CONFIG, *RUN, "-o", "r", cwd=made)
    assert done.code == 0, done.stderr
    assert "Exact: analytic, static and dynamic agree" in done.stdout
    assert "None" not in done.stdout
    return made


def test_report(folder: Path) -> None:
    stages = json.loads((folder / "r" / "static_compute.json").read_text(encoding="utf-8"))["stages"]
    found = {s["id"]: [s["sources"][n]["flops"] for n in ("analytic", "static", "dynamic")] for s in stages}
    assert found == {"prefill": [PREFILL] * 3, "decode": [DECODE] * 3}


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("explain", *CONFIG, "prefill", *RUN), f"= {PREFILL:,} FLOP"),
        (("compare", "r/capture.json"), "Exact"),
        (("graph", "r/capture.json", "-f", "mmd"), "for 2: LlamaDecoderLayer"),
        # 2 layers of 4 * 48 for a pair of tokens; a token: 2 layers of 2 * (2 * 32 * 48 + 2 * 32 * 24 + 3 * 32 * 48)
        # = 384 * 48, and the head, 2 * 32 * 64 = 384 * 32 / 3: 128 * (3 * 96 + 32) with both.
        (("derive", "hf:m.json", "prefill"), "total = 128*B*S*(3*S + 320)"),
        pytest.param(
            ("counters", *CONFIG, *RUN, "--only", "FlopCounterMode"),
            "closed formulas in 2 of 2",
            marks=pytest.mark.thorough,
            id="counters",
        ),
        (("workloads", "llama"), "a prompt of"),
    ],
    ids=lambda x: x[0] if isinstance(x, tuple) else "",
)
def test_a_command(folder: Path, command: tuple[str, ...], said: str) -> None:
    done = costproof(*command, cwd=folder)
    assert done.code == 0, done.stderr
    assert said in done.stdout
    assert "None" not in done.stdout


def test_check(folder: Path) -> None:
    done = costproof("check", "claims.yaml", *CONFIG, cwd=folder)
    assert done.code == 1, done.stderr + done.stdout
    assert "undetermined: 2 claims, 1 right, 1 undetermined." in done.stdout
    # 2 layers of 2 * 20 * 32 * 48 where the heads share half as many: 2 * 20 * 32 * 24 each is the truth.
    assert (
        "| `multi-head` | flops | `122880` | 61,440 | +61,440 | undetermined: `doubled` or `backward alone` or "
        "`GQA ignored: text` fits, not evidence" in done.stdout
    )
    # Of sizes so small too many products are near: nothing is evidence, and all that fits is named.
    assert "the same here: backward alone, GQA ignored" in done.stdout
