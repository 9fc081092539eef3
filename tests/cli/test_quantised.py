"""Quantised checkpoints: one behaviour of all commands, whether formulas describe the model or not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from costproof import compare
from costproof.ledger.capture import Capture
from costproof.reports.summary import summary_text
from tests.support.running import Result, costproof
from tests.support.toy import incomplete, toy, wrong

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 100,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024,
}  # fmt: skip
OPT = {
    "model_type": "opt", "hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
    "vocab_size": 50, "max_position_embeddings": 64, "word_embed_proj_dim": 32,
}  # fmt: skip
FP8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
AS_IF = "weight and traffic bytes as if all weights were bfloat16, the checkpoint is quantised: weights in fp8"
WEIGHTS = 2 * (2 * 100 * 64 + 64 + 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64))
"""Two tables; of two layers Q and O, K and V of half the width, three matrices of the MLP, and the norms."""
POLICY = "costproof_policy: 1\nlimits:\n- {metric: weight_bytes, increase: 0}\n"
CLAIMS = "costproof_claims: 1\nclaims:\n- {id: a, stage: prefill, METRIC: VALUE}\n"


def written(folder: Path, **keys: Any) -> str:
    (folder / "model.json").write_text(json.dumps({**LLAMA, **keys}), encoding="utf-8")
    return "hf:model.json"


@pytest.mark.parametrize(
    "line",
    [
        "sweep TARGET --over batch=1,2",
        "diff TARGET TARGET,batch=2",
        "gate TARGET TARGET --policy policy.yaml",
        "report TARGET --sources analytic -o out",
        "check bytes.yaml TARGET",
    ],
)
def test_answers_about_bytes_of_a_quantised_checkpoint_are_incomplete(tmp_path: Path, line: str) -> None:
    target = written(tmp_path, **FP8)
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "bytes.yaml").write_text(CLAIMS.replace("METRIC", "weight_bytes").replace("VALUE", f"'{WEIGHTS}'"))
    done = costproof(*line.replace("TARGET", target).split(), cwd=tmp_path)
    assert done.code == 3, done.stderr
    assert AS_IF in " ".join((done.stdout + done.stderr).split())


def test_sources_that_agree_are_incomplete_of_a_quantised_checkpoint() -> None:
    found = compare(replace(toy(), target=replace(toy().target, quantised={"weights": "fp8"})))
    assert (compare(toy()).exit_code, found.exit_code, found.verdict) == (0, 3, "incomplete")
    assert AS_IF in found.sentence


def without_rule() -> Capture:
    formulas = wrong().by_source["analytic"]
    return replace(wrong(), ledgers=(formulas, *(x for x in incomplete().ledgers if x.source != "analytic")))


@pytest.mark.parametrize("why", ["quantised", "no rule"])
def test_a_difference_is_a_finding_whatever_else_is_unknown(why: str) -> None:
    """The formula of the two linear layers of ``wrong`` is half of what both graphs have."""
    quantised = replace(toy().target, quantised={"weights": "fp8"})
    found = compare(without_rule() if why == "no rule" else replace(wrong(), target=quantised))
    assert (found.exit_code, found.verdict) == (1, "unexplained")
    assert found.sentence.startswith("Unexplained: of ")
    assert ". Incomplete: " in found.sentence
    assert (found.figures.verdict, bool(found.discrepancy.incomplete)) == ("unexplained", True)
    total = next(line for line in summary_text(found, 200).splitlines() if line.lstrip().startswith("total"))
    assert "unexplained, incomplete" in total
    for form in ("discrepancy-md", "discrepancy-short", "summary", "html"):
        text = found.render(form)
        assert "Unexplained: of " in text
        assert "Incomplete: " in text


def test_what_does_not_depend_on_the_format_is_still_an_answer(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(CLAIMS.replace("METRIC", "params").replace("VALUE", f"'{WEIGHTS // 2}'"))
    assert costproof("check", "params.yaml", written(tmp_path, **FP8), cwd=tmp_path).code == 0


def test_a_refuted_claim_is_a_finding_although_bytes_are_unknown(tmp_path: Path) -> None:
    claims = CLAIMS.replace("METRIC", "params").replace("VALUE", "'1'")
    (tmp_path / "both.yaml").write_text(claims + f"- {{id: b, stage: prefill, weight_bytes: '{WEIGHTS}'}}\n")
    assert costproof("check", "both.yaml", written(tmp_path, **FP8), cwd=tmp_path).code == 1


def test_fits_takes_what_is_stored_where_its_layout_is_known(tmp_path: Path) -> None:
    """In fp8 every matrix of a layer has one byte an element, and one scale of four bytes: none is over 128 wide."""
    target = written(tmp_path, **FP8)
    matrices = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128)
    for memory, code in (("1GB", 0), ("1kB", 1)):
        done = costproof("fits", target, "--memory", memory, "-f", "json", cwd=tmp_path)
        found = json.loads(done.stdout)
        assert (done.code, found["weights_bytes"]) == (code, WEIGHTS)
        assert found["stored_bytes"] == WEIGHTS - 2 * matrices + matrices + 4 * 2 * 7
        assert found["target"]["quantised"] == {"weights": "fp8, blocks of 128 x 128 ($.quantization_config)"}
        told = costproof("fits", target, "--memory", memory, cwd=tmp_path).stdout
        assert "weights as stored: fp8, scales for blocks" in told.splitlines()[1]


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize(
    "scheme",
    [
        {"activation_scheme": "dynamic"},
        {"activation_scheme": "static", "weight_block_size": None},
    ],
)
def test_scales_that_transformers_makes_otherwise_have_a_cause(tmp_path: Path, scheme: dict[str, object]) -> None:
    """Checkpoints without blocks have one scale a matrix; the class has blocks, or scales of inputs in float32."""
    target = written(tmp_path, quantization_config={"quant_method": "fp8", **scheme})
    done = costproof("report", target, "--seq-len", "4", "--new-tokens", "1", cwd=tmp_path)
    made = "of the module as transformers builds it" if "weight_block_size" in scheme else "of stand-in modules"
    assert f"stored and resident bytes are {made}" in " ".join(done.stdout.split())
    assert done.code == 0
    assert "unexplained" not in done.stdout


def test_fits_has_no_number_of_weights_in_an_unknown_format(tmp_path: Path) -> None:
    for keys in ({"quantization_config": {"quant_method": "hqq", "bits": 4}}, {**FP8, "expert_dtype": "fp4"}):
        for run in ("", ",pp=2"):  # ranks too
            target = written(tmp_path, **keys) + run
            done = costproof("fits", target, "--memory", "1GB", "-f", "json", cwd=tmp_path)
            found = json.loads(done.stdout)
            assert (done.code, found["weights_bytes"], found["stored_bytes"], found["limits"]) == (3, None, None, [])
            assert [rank["weights_bytes"] for rank in found["ranks"]] == ([None] * 2 if run else [])
    for form in ("text", "md"):
        told = costproof("fits", target, "--memory", "1GB", "-f", form, cwd=tmp_path).stdout
        assert f"{WEIGHTS:,}" not in told


def test_bytes_of_a_cache_in_an_unknown_format_say_what_they_assume(tmp_path: Path) -> None:
    """Keys and values of half the width, in 2 layers, for 512 tokens of the prompt and 1 step, of 2 bytes."""
    target = written(tmp_path, **FP8, kv_cache_dtype="fp8")
    for memory in ("1GB", "1kB"):
        done = costproof("fits", target, "--memory", memory, cwd=tmp_path)
        named = next(line for line in done.stdout.splitlines() if f"{2 * 2 * 32 * 513 * 2:,}" in line)
        assert (done.code, named.startswith("cache when the run ends, as if the cache were bfloat16")) == (3, True)


@pytest.mark.parametrize(
    ("keys", "where", "got"),
    [
        ({"torch_dtype": 16}, "$.torch_dtype", "16"),
        ({"rope_theta": "x"}, "$.rope_theta", '"x"'),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": True}},
         "$.quantization_config", "both are true"),
    ],
)  # fmt: skip
def test_values_that_no_key_takes_are_refused(tmp_path: Path, keys: dict[str, Any], where: str, got: str) -> None:
    for command in (("fits", "--memory", "1GB"), ("stored",)):
        done = costproof(command[0], written(tmp_path, **keys), *command[1:], cwd=tmp_path)
        told = " ".join(done.stderr.split())
        assert (done.code, f"where: {where} " in told, f"got: {got}" in told) == (2, True, True), told


def test_null_is_no_quantisation(tmp_path: Path) -> None:
    done = costproof("fits", written(tmp_path, quantization_config=None), "--memory", "1GB", cwd=tmp_path)
    assert (done.code, "quantised" in done.stdout) == (0, False)


def test_a_file_beside_the_configuration_counts(tmp_path: Path) -> None:
    (tmp_path / "hf_quant_config.json").write_text(
        '{"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}'
    )
    done = costproof("fits", written(tmp_path), "--memory", "1GB", cwd=tmp_path)
    assert done.code == 0
    assert "weights bfloat16, cache fp8" in done.stdout
    assert "as if" not in done.stdout
    assert "weights as stored: fp8, one scale" in done.stdout


# The larger one has the same file but for layers and experts; storage/test_published.py has the bytes of all three.
@pytest.mark.parametrize(
    "target", ["gpt-oss-20b", *(pytest.param(n, marks=pytest.mark.thorough) for n in ("gpt-oss-120b", "deepseek-v3"))]
)
def test_published_models_that_are_quantised_are_so_by_name(tmp_path: Path, target: str) -> None:
    done = costproof("fits", target, "--memory", "1GB", cwd=tmp_path)
    assert (done.code, "weights as stored: " in done.stdout) == (1, True)
    done = costproof("roofline", target, "--on", "h100-sxm", cwd=tmp_path)
    assert (done.code, "weights as stored: " in done.stdout, "as if" in done.stdout) == (0, True, False)


def test_a_configuration_without_formulas_is_treated_alike(tmp_path: Path) -> None:
    (tmp_path / "opt.json").write_text(json.dumps({**OPT, **FP8}))
    done = costproof("roofline", "hf:opt.json,seq-len=4", "--on", "h100-sxm", cwd=tmp_path)
    assert (done.code, AS_IF in done.stdout) == (0, False), done.stderr
    assert "weights as stored: fp8, blocks of 128 x 128" in done.stdout
    unknown = {"quantization_config": {"quant_method": "hqq", "nbits": 4}}
    (tmp_path / "opt.json").write_text(json.dumps({**OPT, **unknown}))
    done = costproof("roofline", "hf:opt.json,seq-len=4", "--on", "h100-sxm", cwd=tmp_path)
    assert (done.code, "hqq" in done.stdout) == (3, True), done.stderr
    assert "No bound of the checkpoint: bytes" in done.stdout
    assert "nothing is faster" not in done.stdout
    (tmp_path / "opt.json").write_text(json.dumps({**OPT, "quantization_config": None, "torch_dtype": "float32"}))
    done = costproof("diff", "hf:opt.json,seq-len=4", "hf:opt.json,seq-len=4", "-f", "json", cwd=tmp_path)
    assert (done.code, "weights and cache float32" in json.loads(done.stdout)["base"]["counted"]) == (0, True)


@pytest.mark.parametrize(("options", "dtype", "element"), [((), "float32", 4), ((",dtype=bfloat16",), "bfloat16", 2)])
def test_the_dtype_of_the_file_counts_unless_another_is_asked_for(
    tmp_path: Path, options: tuple[str, ...], dtype: str, element: int
) -> None:
    target = written(tmp_path, torch_dtype="float32") + "".join(options)
    done: Result = costproof("fits", target, "--memory", "1GB", cwd=tmp_path)
    assert f"Counted: weights and cache {dtype}, " in done.stdout.splitlines()[1]
    assert f"{element * WEIGHTS // 2:,}" in done.stdout


PUBLISHED: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("published_quantisation.json").read_text(encoding="utf-8")
)
"""Model -> what its published configuration says of the format of its weights; long lists have their first two."""


LAYOUTS = {
    "DeepSeek-R1", "DeepSeek-V3", "DeepSeek-V3.2", "Devstral-Small-2-24B-FP8", "Kimi-K2", "Llama-3.1-8B-bnb-4bit",
    "Llama-3.1-8B-w4a16-ct", "Llama-4-Scout-FP8-dynamic", "MiMo-V2-Flash", "MiniMax-M2.5", "Qwen2.5-7B-AWQ",
    "Qwen3-30B-A3B-FP8", "Qwen3-32B-FP8",
}  # fmt: skip
"""Those of them whose layout is known of a Llama."""


@pytest.mark.parametrize("model", PUBLISHED)
def test_every_published_description_of_quantised_weights_is_told(model: str, tmp_path: Path) -> None:
    """Of a small Llama of whole groups, since formats do not depend on the model: 16 real files have such a key."""
    target = f"{written(tmp_path, hidden_size=128, **PUBLISHED[model])},text_tokens=8"
    done = costproof("roofline", target, "--on", "h100-sxm", cwd=tmp_path)
    told = " ".join(done.stdout.split())
    method = next(m for v in PUBLISHED[model].values() for m in [v["quant_method"] if isinstance(v, dict) else v])
    as_if = "weight and traffic bytes as if all weights were bfloat16, the checkpoint is quantised: weights in "
    assert (done.code, as_if in told) == ((0, False) if model in LAYOUTS else (3, True))
    assert ("weights as stored: " in told) == (model in LAYOUTS)
    assert method in told
