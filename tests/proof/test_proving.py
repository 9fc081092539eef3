"""A proof as a user makes it: interrupted and taken up again, repeated, refuted."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast
from unittest import mock

import pytest

from costproof.analytic.attention import Attention
from costproof.compare.proof.certificate import LATER, Settings, differences
from costproof.compare.proof.judge import Answer
from costproof.ledger.errors import BadInput
from costproof.ledger.workload import Workload
from costproof.models.families.deepseek_ocr import proof as ocr_proof
from costproof.models.proof import Piece, Provable
from costproof.reports.outputs import variants
from costproof.run import proof as proving
from costproof.run.proof import ProofCheckpoint
from costproof.run.proof_pieces import assemble_certificate, carry_out_piece
from costproof.run.request import request
from tests.support.planted import planted
from tests.support.running import Result, costproof, files

CONFIG = {
    "model_type": "unlimited_ocr",
    "image_token_id": 1,
    "vision_config": {
        "sam_config": {
            "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "mlp_dim": 12, "image_size": 64,
            "patch_size": 2, "window_size": 3, "global_attn_indexes": [0], "output_channels": 4,
            "downsample_channels": [6, 10],
        },
        "encoder_config": {
            "hidden_size": 10, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 14,
            "image_size": 9, "patch_size": 3,
        },
    },
    "text_config": {
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
        "mlp_layer_types": ["dense"], "intermediate_size": 24, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 16, "n_shared_experts": 1, "vocab_size": 64,
    },
}  # fmt: skip

Found = list[tuple[str, str, Answer | str]]


def in_this_process(pieces: Sequence[Piece[Provable]], kept: object, processes: int, progress: object) -> Found:
    """The identities alone: enough for a verdict, and a test can plant a mistake here."""
    return [(p.phase, p.id, carry_out_piece(p)) for p in pieces if p.id == "identity: text"]


CONTRADICTIONS: Final[list[tuple[tuple[str, ...], Callable[[Any], Any], str]]] = [
    (("settings", "samples"), lambda _: 3000, "coverage.samples"),
    (("settings", "chosen", "sides"), lambda _: "8-64", "coverage.sizes"),
    (("settings", "config"), lambda text: json.dumps({**json.loads(text), "image_token": 7}), "target.config_hash"),
    (("verdict",), lambda _: "incomplete", "verdict"),
    (("claims",), lambda claims: [*claims, claims[0]], "claims"),
    (("coverage", "tried_sizes"), lambda sizes: sizes[1:], "coverage.tried_sizes"),
]
"""What is changed in a certificate, and where it is found to contradict itself."""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Result]:
    """``costproof prove`` of a tiny model, with one identity."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    monkeypatch.setattr(ocr_proof, "variants", lambda: (Workload("text", 12, 4),))
    monkeypatch.setattr(proving, "_carry_out", in_this_process)
    return lambda *arguments: costproof("prove", *arguments, cwd=tmp_path)


def test_a_planted_mistake_is_refuted_with_its_term(
    quick: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    arguments = ("deepseek-ocr", "--config", "config.json", "--samples", "0", "--sides", "8-8", "-o", "out")
    proved = quick(*arguments)
    assert (proved.code, [line.partition(":")[0] for line in proved.stdout.splitlines()[-2:]]) == (
        0,
        ["proved", "Counted"],
    )
    assert files(tmp_path / "out") == ["certificate.html", "certificate.json", "certificate.md"]
    again = quick("--verify", "out/certificate.json")
    assert (again.code, again.stdout) == (0, "proved; the certificate holds\n")

    with mock.patch.object(proving, "_carry_out", side_effect=AssertionError("it is proved before it is looked at")):
        for keys, value, place in CONTRADICTIONS:
            made = json.loads((tmp_path / "out" / "certificate.json").read_text())
            inside = made
            for key in keys[:-1]:
                inside = inside[key]
            inside[keys[-1]] = value(inside[keys[-1]])
            (tmp_path / "c.json").write_text(json.dumps(made))
            refused = quick("--verify", "c.json")
            assert (refused.code, refused.stdout) == (2, "")
            assert f"$.{place}" in refused.stderr

    # A step attends to the past alone, not to its own token.
    with planted(Attention, lambda layer: layer if layer.past == 0 else replace(layer, past=layer.past - 1)):
        refuted = quick(*arguments)
    # 2 products of 2, 2 heads, 8 wide, one key too few in each step of each sequence: 4*2*8 B N.
    assert refuted.code == 1
    assert "decode/model.language_model.layers.0.self_attn attention flops: -64*B*N" in refuted.stdout
    text = (tmp_path / "out" / "certificate.md").read_text()
    assert "**Refuted: at least one formula differs from the graph.**" in text
    assert "- missing in the formula: `64*B*N`" in text
    assert "- smallest sizes that show it: `B` = 1, `N` = 1" in text


def test_an_interrupted_proof_goes_on(tmp_path: Path) -> None:
    target = ocr_proof.draw(1, 0).target
    run = Workload("text", 12, 4)
    tasks = [Piece(f"draws: {i}", "draws", target, run, stages=("none",), sizes={}) for i in range(6)]
    settings = Settings(6, 1, "{}")
    kept = ProofCheckpoint(tmp_path, "t", settings)
    first: list[tuple[str, int, int]] = []
    whole = proving._carry_out(tasks, None, 1, lambda *step: first.append(step))
    assert first == [("draws", done, 6) for done in range(7)]

    def interrupt(phase: str, done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), kept:
        proving._carry_out(tasks, kept, 1, interrupt)
    with kept.path.open("a") as out:
        out.write('{"id": "cut off in the mid')
    seen: list[int] = []
    with kept:
        found = proving._carry_out(tasks, kept, 1, lambda _, done, __: seen.append(done))
    assert seen == [2, 3, 4, 5, 6]
    assert found == whole
    with kept:
        assert len(kept.read()) == 6


@pytest.mark.parametrize(
    ("target", "changed"),
    [
        ("t", {"seed": 2}),
        ("t", {"samples": 7}),
        ("t", {"config": "[]"}),
        ("t", {"chosen": {"sides": "1-3"}}),
        ("another", {}),
    ],
)
def test_answers_belong_to_the_whole_request(tmp_path: Path, target: str, changed: dict[str, Any]) -> None:
    settings = Settings(6, 1, "{}", {"sides": "1-2"})
    with ProofCheckpoint(tmp_path, "t", settings) as kept:
        assert kept.read() == []
        kept.add("draws: 0-1", Answer({}, (), ()))
    with ProofCheckpoint(tmp_path, "t", settings) as kept:
        assert kept.read() == [("draws: 0-1", Answer({}, (), ()))]
    with ProofCheckpoint(tmp_path, target, replace(settings, **changed)) as kept:
        assert kept.read() == []


def test_a_folder_has_one_proof_at_a_time(tmp_path: Path) -> None:
    """The answers of the second would be taken for those of the first."""
    with ProofCheckpoint(tmp_path, "t", Settings(6, 1, "{}")) as first:
        first.read()
        with (
            pytest.raises(BadInput, match="another proof is being made"),
            ProofCheckpoint(tmp_path, "t", Settings(6, 2, "{}")),
        ):
            pass
        first.add("draws: 0-1", Answer({}, (), ()))
        first.remove()
        with ProofCheckpoint(tmp_path, "t", Settings(6, 2, "{}")) as second:  # it is finished
            assert second.read() == []


@pytest.mark.parametrize("kind", ["file", "link", "pipe"])
def test_a_file_of_the_user_with_that_name_stays(tmp_path: Path, kind: str) -> None:
    kept = ProofCheckpoint(tmp_path, "t", Settings(6, 1, "{}"))
    if kind == "pipe":
        os.mkfifo(kept.path)
    elif kind == "link":
        (tmp_path / "mine").write_bytes(b"")
        kept.path.symlink_to("mine")
    else:
        kept.path.write_text("my notes\n")
    with pytest.raises(BadInput, match="a file of this name exists, and costproof did not write it"), kept:
        pass
    if kind == "file":
        assert kept.path.read_text() == "my notes\n"
    assert (kept.path.is_symlink(), kept.path.is_fifo()) == (kind == "link", kind == "pipe")


def test_a_first_line_that_was_cut_off_is_ours(tmp_path: Path) -> None:
    kept = ProofCheckpoint(tmp_path, "t", Settings(6, 1, "{}"))
    kept.path.write_bytes(kept.head[:5])
    with kept:
        assert kept.read() == []


def test_a_proof_of_a_file_is_repeated_with_its_formats(tmp_path: Path) -> None:
    """A format without a name beside the configuration, GPTQ in it, and a key that no formula uses."""
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 64,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 64,
        "max_position_embeddings": 64, "dtype": "float16", "rms_norm_eps": 0.5,
    }  # fmt: skip
    gptq = {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32}}
    file = tmp_path / "config.json"
    (tmp_path / "model.gguf").touch()
    for more, named in (({}, "model.gguf"), (gptq, "gptq, 4 bits")):
        file.write_text(json.dumps(config | more), encoding="utf-8")
        asked = request("llama-3.1-8b", verb="prove", config=file, samples=0)
        target, proof = proving.prepare_proof(asked)
        old = assemble_certificate([], target, proof)
        assert named in old.target.quantised["weights"]
        file.unlink()  # a certificate contains all that it takes
        again: Any
        again, repeated = proving.prepare_repeat(old)
        assert again.stored == replace(cast(Any, target).stored, folder="")
        assert again.info().quantised == target.info().quantised
        new = assemble_certificate([], again, repeated)
        assert old.target.waived != new.target.waived == {}
        assert differences(old, new) == ()
        # A certificate from before a quantity was counted does not say that it does not claim it.
        before = replace(old, not_claimed=tuple(text for text in old.not_claimed if text not in LATER))
        assert before != old
        assert differences(before, new) == ()
        assert LATER[0] in variants("certificate")["md"].text(before)
        assert differences(replace(old, not_claimed=old.not_claimed[1:]), new) != ()
