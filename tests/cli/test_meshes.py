"""Every command with a mesh, as a new user types it: numbers by hand, and errors that say what to do."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Final

import pytest

from tests.support.running import costproof

LLAMA = "llama-3.1-70b"


def test_a_sweep_over_tp(tmp_path: Path) -> None:
    """A step of a token sends 2 (n - 1) / n of 161 x 16,384 bytes and (n - 1) / n of 256,512; one device nothing."""
    found = costproof("sweep", LLAMA, "--text-tokens", "1", "--new-tokens", "0", "--over", "tp=1,2,3,4,8",
                      "--metric", "comm_bytes", "--metric", "messages", cwd=tmp_path)  # fmt: skip
    rows = list(csv.DictReader(io.StringIO(found.stdout[found.stdout.index("tp,") :])))
    sent = {int(r["tp"]): (int(r["comm_bytes"]), int(r["messages"])) for r in rows}
    assert sent == {n: ((n - 1) * (2 * 161 * 16_384 + 256_512) // n, 162 if n > 1 else 0) for n in (1, 2, 4, 8)}
    assert "one rank of the devices of each point" in rows[0]["counted"]
    assert "tensor parallelism must divide the attention heads" in found.stderr + found.stdout


def test_a_sweep_of_one_device_sends_nothing(tmp_path: Path) -> None:
    found = costproof("-q", "sweep", "bert", "--over", "batch=1,2", "--metric", "comm_bytes", cwd=tmp_path)
    assert [line.split(",")[:2] for line in found.stdout.splitlines() if line[:1] in "12"] == [["1", "0"], ["2", "0"]]


def test_explain_has_the_formula_of_each_collective(tmp_path: Path) -> None:
    line = ("-q", "explain", LLAMA, "decode", "--metric", "comm_bytes")
    text = costproof(*line, "--tp", "8", cwd=tmp_path).stdout
    assert "formula  N*b*(2*tp - 2)*ceiling(B*text_hidden/tp)" in text
    assert "result   28,672 x 80 modules = 2,293,760 bytes" in text
    refused = costproof(*line, cwd=tmp_path)
    assert (refused.code, "one device has no collectives" in refused.stderr) == (2, True)


LAYER = 8192 * (8 + 8 + 1 + 1) * 128 + 3 * 8192 * 3584 + 2 * 8192
"""A rank's parameters of a layer: 8 of 64 heads, 1 of 8 key/value heads, 3,584 of 28,672 columns, two whole norms."""
WEIGHTS = 2 * (80 * LAYER + 2 * 16_032 * 8192 + 8192)
TOKEN = 80 * 128 * 2 * 2
"""Keys and values of one head in 80 layers."""
BUFFERS = 2 * 64 * 4
"""Two tables of 64 frequencies, in float32."""


def test_a_rank_of_llama_70b_fits_an_h100(tmp_path: Path) -> None:
    found = json.loads(costproof("fits", LLAMA, "--tp", "8", "--on", "h100-sxm", "-f", "json", cwd=tmp_path).stdout)
    assert found["weights_bytes"] == WEIGHTS == 17_640_734_720
    assert (found["token_bytes"], found["cache_bytes"]) == (TOKEN, 513 * TOKEN)
    assert (found["rank"], found["binding_ranks"]) == (0, list(range(8)))


def test_the_longest_text_and_the_largest_batch_of_a_rank(tmp_path: Path) -> None:
    """A run of 512 + 1 tokens a sequence; all that 20 GB leave to the cache is 57,599 tokens, or 112 sequences.

    The live peak is known too and binds first, so that the sentences give what the cache leaves in brackets.
    """
    line = ("fits", LLAMA, "--tp", "8", "--memory", "20GB")
    left = 20 * 10**9 - WEIGHTS - BUFFERS
    assert (left // TOKEN, left // (513 * TOKEN)) == (57_599, 112)
    solved = json.loads(costproof(*line, "-f", "json", cwd=tmp_path).stdout)["limits"]
    limits = {x["setting"]: x["at"] for x in solved if x["held"] == "weights and cache"}
    assert limits == {"text_tokens": 57_599, "batch": 113}  # one token is new
    text = costproof(*line, cwd=tmp_path).stdout
    assert "All 8 ranks hold the same weights and cache: these bytes and limits are of rank 0." in text
    assert "(by the cache alone 112)." in text
    assert "(by the cache alone 57,598)." in text


def test_the_ranks_that_bind(tmp_path: Path) -> None:
    """102 entries on 4 ranks are 26, 26, 26 and 24, of 2 tables of 4,096 elements of 2 bytes."""
    line = ("fits", "llama-3.1-8b,vocab=102", "--tp", "4", "--memory", "80GB")
    first, last = (json.loads(costproof(*line, "--rank", r, "-f", "json", cwd=tmp_path).stdout) for r in "03")
    assert first["weights_bytes"] - last["weights_bytes"] == 2 * 2 * 4096 * 2
    assert (first["rank"], last["rank"]) == (0, 3)
    assert first["binding_ranks"] == last["binding_ranks"] == [0, 1, 2]
    text = costproof(*line, "--rank", "3", cwd=tmp_path).stdout
    assert "of rank 3, which holds less: of 4 ranks, ranks 0 to 2 hold the most" in text


def test_a_token_of_a_data_parallel_rank(tmp_path: Path) -> None:
    """4 of 8 key/value heads of 128 elements in 32 layers, in each of the rank's sequences."""
    line = ("fits", "llama-3.1-8b,batch=4", "--tp", "2", "--dp", "2", "--memory", "80GB", "-f", "json")
    assert json.loads(costproof(*line, cwd=tmp_path).stdout)["token_bytes"] == 32 * 4 * 128 * 2 * 2


def test_roofline_takes_a_mesh(tmp_path: Path) -> None:
    line = ("-f", "json", "--on", "h100-sxm")
    option = costproof("roofline", LLAMA, "--tp", "8", *line, cwd=tmp_path).stdout
    assert option == costproof("roofline", f"{LLAMA},tp=8", *line, cwd=tmp_path).stdout
    assert json.loads(option)["workload"]["inputs"]["tp"] == 8


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("llama --tp 5", "tensor parallelism must divide the attention heads"),
        ("llama --tp 0", "at least 1"),
        ("llama --tp 4 --ep 4", "1, since no layer has experts"),
        ("llama --ep 2", "a multiple of tp 1 that divides tp x cp x dp = 1"),
        ("llama --tp 4 --rank 4", "0 to 3"),
        ("llama --rank 1", "0, since there is one device"),
        ("llama --tp 2 --rows 3,4", "one device, or equal sequences"),
        ("llama --pp 33", "fewer layers than pipeline stages"),
        ("llama --cp-plan ring", "--cp of 2 or more"),
        ("llama --dp 4", "fewer sequences than data-parallel ranks"),
        ("gpt2 --tp 2", "ranks of this model are not counted"),
        ("bert --tp 2", "ranks of this model are not counted"),
    ],
)
def test_meshes_that_cannot_be(line: str, said: str, tmp_path: Path) -> None:
    found = costproof("-q", "capture", *line.split(), "--sources", "analytic", "-o", "x.json", cwd=tmp_path)
    assert (found.code, said in found.stderr, list(tmp_path.iterdir())) == (2, True, []), found.stderr


def test_a_proof_of_pages_is_of_one_device(tmp_path: Path) -> None:
    found = costproof("-q", "prove", "deepseek-ocr", "--tp", "2", cwd=tmp_path)
    assert (found.code, "is one of a single device" in found.stderr) == (2, True), found.stderr
    assert "ranks of this model are not counted" not in found.stderr


def test_a_model_without_a_plan_is_no_wrong_key(tmp_path: Path) -> None:
    found = costproof("-q", "roofline", "gpt2", "--tp", "2", "--on", "h100-sxm", cwd=tmp_path)
    assert (found.code, "ranks of this model are not counted" in found.stderr) == (2, True), found.stderr


SMALL = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
         "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 102}  # fmt: skip
COUNT = ("--text-tokens", "8", "--new-tokens", "2")


def captured(folder: Path, name: str, *options: str) -> str:
    """Write a capture of a small Llama, by formulas, and return its path."""
    (folder / "config.json").write_text(json.dumps(SMALL))
    line = ("capture", "llama", "--config", "config.json", *COUNT, *options, "--sources", "analytic", "-o", name)
    assert costproof("-q", *line, cwd=folder).code == 0
    return name


def policy(folder: Path, *lines: str) -> str:
    (folder / "policy.yaml").write_text("\n".join(("costproof_policy: 1", *lines, "")))
    return "policy.yaml"


def test_a_gate_over_a_mesh(tmp_path: Path) -> None:
    """A step of 2 sends (n - 1) / n of 2 x 5 x 128 bytes, and parts of 51 or 26 columns; a prompt of 8 eight times."""
    two, four = captured(tmp_path, "2.json", "--tp", "2"), captured(tmp_path, "4.json", "--tp", "4")
    one, tokens = captured(tmp_path, "1.json"), 8 + 2
    sent = {n: tokens * ((n - 1) * 2 * 5 * 128 // n + (n - 1) * -(-102 // n) * 2) for n in (2, 4)}
    limit = "  - {metric: comm_bytes, increase: 0}"
    changed = costproof("-q", "gate", two, four, "--policy", policy(tmp_path, "limits:", limit), cwd=tmp_path)
    assert (changed.code, "tp: 2 → 4" in changed.stdout) == (1, True)
    file = policy(tmp_path, "inputs: any", "limits:", limit)
    assert costproof("-q", "gate", four, two, "--policy", file, cwd=tmp_path).code == 0
    for base, before in ((two, sent[2]), (one, 0)):  # one device sends nothing, which is known
        over = costproof("-q", "gate", base, four, "--policy", file, "-f", "json", cwd=tmp_path)
        (check,) = json.loads(over.stdout)["checks"]
        assert (over.code, check["base"], check["head"]) == (1, before, sent[4])


def test_a_diff_between_one_device_and_several(tmp_path: Path) -> None:
    one, two = captured(tmp_path, "1.json"), captured(tmp_path, "2.json", "--tp", "2")
    found = json.loads(costproof("-q", "diff", one, two, "-f", "json", cwd=tmp_path).stdout)
    total = found["totals"]["comm_bytes"]
    assert (total["base"], total["head"]) == (0, 10 * (5 * 128 + 51 * 2))
    assert found["incomplete"] == []


REPORT: Final = "report {} --sources analytic -o out"


@pytest.mark.parametrize(
    ("line", "plan"),
    [
        *((REPORT, plan) for plan in ("vllm", "megatron", "plan.yaml")),
        ("fits {} --on h100-sxm", "vllm"),
        ("roofline {} --on 2xh100-sxm", "plan.yaml"),
        ("explain {} decode", "vllm"),
        ("sweep {} --over batch=1,2 --metric flops", "vllm"),
    ],
)
def test_every_command_names_the_plan_that_it_counted(line: str, plan: str, tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text("model.embed_tokens: vocabulary\nlm_head: vocabulary\n")
    words = line.format("llama-3.1-8b").split()
    found = costproof("-q", *words, "--tp", "2", "--plan", plan, cwd=tmp_path)
    said = "a given plan" if plan == "plan.yaml" else f"plan {plan}"
    assert f"rank 0 of 2 devices (tp 2, {said})" in " ".join(found.stdout.split())
    if words[0] == "report":
        data = json.loads((tmp_path / "out/static_compute.json").read_text())
        stored = "model.embed_tokens: vocabulary; lm_head: vocabulary" if plan == "plan.yaml" else plan
        assert data["workload"]["inputs"]["plan"] == stored


def test_a_diff_has_all_communication_of_a_mesh(tmp_path: Path) -> None:
    """Two ranks reduce 65 states of 4,096 elements a token, after the embedding and twice a layer, and gather logits.

    A prompt of 4 and two steps are 6 tokens in 3 calls. Of a payload M an all-reduce of two ranks sends M, an
    all-gather M / 2. One device has zeros in the place of all three.
    """
    states, logits = 65 * 6 * 4096 * 2, 6 * 128_256 * 2
    head = {"comm_bytes": states + logits // 2, "comm_payload_bytes": states + logits, "messages": 3 * 66}
    one = "llama-3.1-8b,text-tokens=4,new-tokens=2,logits=all"
    for sides, sign in (((one, f"{one},tp=2"), 1), ((f"{one},tp=2", one), -1)):
        line = ("-q", "diff", *sides)
        found = json.loads(costproof(*line, "-f", "json", cwd=tmp_path).stdout)
        ends = ("base", "head")[::sign]
        for metric, size in head.items():
            assert tuple(found["totals"][metric][end] for end in (*ends, "delta")) == (0, size, sign * size)
            rows = [row for row in found["rows"] if row["metric"] == metric]
            assert sum(row["delta"] for row in rows) == sign * size
        assert (found["complete"], found["not_comparable"]) == (True, {})
        for form in ("md", "text"):
            text = costproof(*line, "-f", form, cwd=tmp_path).stdout
            lines = [line.replace("*", "").replace("|", " ").split() for line in text.splitlines()]
            first = [words for words in lines if words[:1] == ["total"]][1:4]
            sent, payload, calls = (" ".join(words) for words in first)
            assert ("bytes sent" in sent, "payload of collectives" in payload) == (True, True)
            assert ("total collectives" in calls, f"{sign * 198:+}" in calls) == (True, True)
        table = costproof(*line, cwd=tmp_path).stdout
        for metric, size in head.items():
            numbers = ("0", f"{size:,}")[::sign]
            assert f"| total | {metric} | {sign * size:+,} | {numbers[0]} | {numbers[1]} |" in table


def test_a_sweep_over_stages(tmp_path: Path) -> None:
    """The first stage has ceil or floor of 80 / p layers and the embedding, and sends 8192 x 2 bytes a token."""
    line = ("-q", "sweep", LLAMA, "--text-tokens", "3", "--new-tokens", "0", "--over", "pp=1,2,3,5")
    found = costproof(*line, "--metric", "params", "--metric", "comm_bytes", cwd=tmp_path)
    rows = list(csv.DictReader(io.StringIO(found.stdout[found.stdout.index("pp,") :])))
    layer, table = 8192 * (64 + 64 + 8 + 8) * 128 + 3 * 8192 * 28_672 + 2 * 8192, 128_256 * 8192
    held = {1: 80 * layer + 2 * table + 8192, **{p: n * layer + table for p, n in ((2, 40), (3, 27), (5, 16))}}
    assert {int(r["pp"]): (int(r["params"]), int(r["comm_bytes"])) for r in rows} == {
        p: (size, 0 if p == 1 else 3 * 8192 * 2) for p, size in held.items()
    }


def test_how_long_stages_wait(tmp_path: Path) -> None:
    """3 of 8 + 3 slots; interleaved 3 of 2 x 8 + 3, and the last stage sends what its first part returns."""
    line = ("roofline", LLAMA, "--on", "h100-sxm", "--pp", "4", "--microbatches", "8")
    notes = json.loads(costproof(*line, "-f", "json", cwd=tmp_path).stdout)["notes"]
    (said,) = (note for note in notes if "microbatches" in note)
    assert "each waits 3/11 of a pass" in said
    assert "sends hidden states 8 times" in said
    text = " ".join(costproof(*line, "--schedule", "interleaved:2", "--rank", "3", cwd=tmp_path).stdout.split())
    assert "each waits 3/19 of a pass" in text
    assert "sends hidden states 8 times in the forwards; layers are counted as contiguous stages have them" in text
    refused = costproof("-q", *line, "--schedule", "interleaved:21", cwd=tmp_path)
    assert (refused.code, "4 x 21 = 84 parts" in refused.stderr, "80 layers" in refused.stderr) == (2, True, True)
    refused = costproof("-q", *line, "--schedule", "zero", cwd=tmp_path)
    assert (refused.code, "there is no such pipeline schedule" in refused.stderr) == (2, True)


def test_a_mesh_of_both_sides_of_a_diff(tmp_path: Path) -> None:
    """The options are settings of both operands, which may have settings of their own, but not the same ones."""
    small = ("llama-3.2-1b@chat,layers=1", "llama-3.2-1b@chat,layers=2")
    by_option = costproof("-q", "diff", *small, "--tp", "2", "--rank", "1", "-f", "json", cwd=tmp_path)
    by_setting = costproof("-q", "diff", *(f"{x},tp=2,rank=1" for x in small), "-f", "json", cwd=tmp_path)
    assert (by_option.code, by_option.stdout) == (0, by_setting.stdout)
    assert costproof("-q", "diff", *small, "-f", "json", cwd=tmp_path).stdout != by_option.stdout
    twice = costproof("-q", "diff", small[0], f"{small[1]},tp=4", "--tp", "2", cwd=tmp_path)
    assert (twice.code, "set twice" in twice.stderr) == (2, True)


def test_a_graph_of_a_rank(tmp_path: Path) -> None:
    run = "llama-3.2-1b@chat,layers=1,text_tokens=4,new_tokens=0"
    by_option = costproof("-q", "graph", run, "--tp", "2", "--rank", "1", cwd=tmp_path)
    assert (by_option.code, "rank 1 of 2 devices (tp 2)" in by_option.stdout) == (0, True)


@pytest.mark.parametrize("command", ["graph", "roofline", "diff"])
def test_a_file_takes_no_mesh(command: str, tmp_path: Path) -> None:
    others = {"diff": ("gpt2@text",), "roofline": ("--on", "h100-sxm")}.get(command, ())
    found = costproof("-q", command, "capture.json", *others, "--tp", "2", "--dp", "2", cwd=tmp_path)
    assert found.code == 2
    assert "a file has the mesh of its own run\n  where:    --tp, --dp\n  got:      capture.json" in found.stderr


def test_a_command_without_options_of_a_mesh_names_the_setting(tmp_path: Path) -> None:
    found = costproof("-q", "gate", "a.json", "llama-3.2-1b", "--policy", "p.yaml", "--tp", "2", cwd=tmp_path)
    assert (found.code, "fix:      a target takes it as a setting: TARGET@PRESET,tp=2" in found.stderr) == (2, True)


@pytest.mark.parametrize(
    "line", [("fits", "qwen3-8b"), ("roofline", "qwen3-8b"), ("diff", "a.json", "gpt2"), ("graph", "gpt2")]
)
def test_a_command_without_options_of_a_run_says_where_settings_stand(line: tuple[str, ...], tmp_path: Path) -> None:
    found = costproof("-q", *line, "--kv-dtype", "fp8", cwd=tmp_path)
    fix = "fix:      if it is a setting of the target, name it there: TARGET@PRESET,kv_dtype=VALUE; or see costproof"
    assert (found.code, fix in found.stderr) == (2, True), found.stderr


def test_pairs_without_a_dispatch_name_it(tmp_path: Path) -> None:
    line = ("capture", "mixtral-8x7b", "--layers", "1", "--dp", "2", "--ep", "2", "--batch", "2")
    found = costproof("-q", *line, "--pairs", "20,12;16,16", "--sources", "analytic", "-o", "x.json", cwd=tmp_path)
    assert (found.code, "fix:      --dispatch all-to-all, which sends these pairs" in found.stderr) == (2, True)
