"""Does it fit on several devices: the smallest mesh, each rank, its quantised weights, and the smallest limits."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any, Final

import pytest

import costproof
from costproof.estimate.memory import Fits, MemoryLimit
from costproof.estimate.roofline import Roofline
from costproof.ledger.errors import Bug
from costproof.ledger.mesh import Duplicate, RankCosts
from costproof.reports.fits import _plain_lines, _rank_line, _tried_rows

fits_module = importlib.import_module("costproof.run.fits")


def limits(found: Fits) -> dict[tuple[str, str], int | None]:
    """The limits of a run by setting and what is held."""
    return {(x.setting, x.held): x.at for x in found.limits}


def test_the_smallest_mesh() -> None:
    """Qwen3-30B has 61 GB of weights: with a quarter on each of four L4 of 24 GB it fits, with half it does not."""
    found = costproof.fits("qwen3-30b-a3b@chat,text_tokens=64,new_tokens=0", on="8xl4")
    assert [(t.tp, t.ep, t.verdict) for t in found.tried] == [
        (1, 1, "does not fit"), (2, 1, "does not fit"), (2, 2, "does not fit"),
        (3, 1, None), (3, 3, None), (4, 1, "fits"),
    ]  # fmt: skip
    assert (found.count, found.workload.inputs["tp"], found.exit_code) == (8, 4, 0)
    one, half, _, _, _, quarter = (t.weights_bytes or 0 for t in found.tried)
    assert one > 2 * 24 * 10**9 < 2 * half
    assert quarter < 24 * 10**9
    none = costproof.fits("qwen3-30b-a3b@chat,text_tokens=64,new_tokens=0", on="2xl4")
    assert (none.verdict, len(none.tried), none.workload.inputs["ep"]) == ("does not fit", 3, 2)


def test_a_mesh_that_the_model_does_not_take_is_named() -> None:
    """14 query heads in two groups: seven ranks would share the two key/value heads."""
    found = costproof.fits("qwen2.5-0.5b@chat,text_tokens=8,new_tokens=0", on="7xl4")
    assert [(t.tp, t.verdict) for t in found.tried] == [(1, "fits")]
    assert 2**25 * 896 * 2 > 2 * 24 * 10**9  # half of its table fits on no device
    found = costproof.fits(f"qwen2.5-0.5b@chat,text_tokens=8,new_tokens=0,vocab={2**25}", on="7xl4")
    assert [(t.tp, t.verdict) for t in found.tried if t.verdict] == [(1, "does not fit"), (2, "does not fit")]
    refused = found.tried[-1]
    assert (refused.tp, refused.verdict) == (7, None)
    assert refused.why


@pytest.mark.parametrize(
    ("devices", "runs", "idle"),
    [(7, 3, "1 of them is"), (3, 1, "1 of them is"), (6, 3, "none of them is"), (12, 6, "none of them is")],
)
def test_a_mesh_of_fewer_ranks_than_devices(devices: int, runs: int, idle: str) -> None:
    """Llama 3.1 70B has 141 GB of weights: half fits into 80 GB, on any number of devices from 2 on."""
    found = costproof.fits("llama-3.1-70b@chat", on=f"{devices}xh100-sxm")
    assert [(t.tp, t.ep, t.verdict) for t in found.tried] == [(1, 1, "does not fit"), (2, 1, "fits")]
    assert (found.count, found.workload.mesh.world, found.verdict) == (devices, 2, "fits")
    assert found.name.endswith(f"on {devices} x h100-sxm")
    # 80 layers, half of the table and head, 161 norms
    layer = 8192 * (64 + 8 + 8 + 64) // 2 * 128 + 3 * 8192 * 14_336
    assert found.weights_bytes == 2 * (80 * layer + 2 * 64_128 * 8192 + 161 * 8192)
    said = f"The {devices} devices hold {runs} such run{'s' if runs > 1 else ''} of 2 ranks; {idle} idle."
    assert said in _plain_lines(found)


def test_numbers_in_words_are_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks of 1,500 bytes and one of 1,200 are 4,200; 300 and 400 of them are copies, so 3,500 of one device.

    Seven devices hold three runs of two ranks, and one is idle: three and none idle are six.
    """
    found = costproof.fits("qwen2.5-0.5b@chat,text_tokens=8,new_tokens=0,tp=2", memory="10GB")
    rows = tuple(RankCosts(ranks, {"": {"resident_bytes": n}}) for ranks, n in (((0, 1), 1_500), ((2,), 1_200)))
    copies = tuple(
        Duplicate(what, "", metric, n, n)
        for what, metric, n in (("norms", "resident_bytes", 300), ("routers", "resident_bytes", 400),
                                ("norms", "stored_bytes", 50))
    )  # fmt: skip
    found = replace(found, count=7, next_token_modules=2, next_token_ranks=rows, next_token_copies=copies)
    lines = _plain_lines(found)
    assert "The 7 devices hold 3 such runs of 2 ranks; 1 of them is idle." in lines
    said = "2 MTP modules on all ranks: 4.20 kB, those of one device 3.50 kB"
    assert f"{said} and copies: norms 300 B, routers 400 B." in lines
    for name, wrong in (
        ("_copies", "The 7 devices hold 3 such runs of 2 ranks; none of them is idle."),
        ("_copies", "The 7 devices hold 2 such runs of 2 ranks; 3 of them are idle."),
        ("_further_line", said.replace("4.20", "2.70")),
        ("_further_line", said.replace("3.50", "4.20")),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"costproof.reports.fits.{name}", lambda _, wrong=wrong: wrong)
            with pytest.raises(Bug):
                _plain_lines(found)


SMALL_V3: Final[dict[str, Any]] = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "torch_dtype": "bfloat16",
    "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 128,
    "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 8, "n_shared_experts": 1,
    "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "vocab_size": 320,
    "num_nextn_predict_layers": 1, "tie_word_embeddings": False, "max_position_embeddings": 4096,
}  # fmt: skip


def test_one_of_several_devices_holds_the_mtp_module(tmp_path: Path) -> None:
    """DeepSeek-V3 with a dense layer and one of 8 experts, each of 64 x 48, and an MTP module of such a layer.

    One of two devices holds both, and has no room for them where the module would have 50,000 bytes.
    """
    (tmp_path / "config.json").write_text(json.dumps(SMALL_V3))
    q, kv = 64 * 24 + 24 + 24 * 4 * (16 + 8), 64 * (128 + 8) + 128 + 128 * 4 * (16 + 16)
    attention = q + kv + 4 * 16 * 64 + 2 * 64  # with both norms of the layer
    mixture = 2 * (8 * 64 + (8 + 1) * 3 * 64 * 48) + 4 * 8  # a float32 for each expert in the router
    tables = 2 * 2 * 320 * 64
    main = 2 * (2 * attention + 3 * 64 * 96 + 64) + mixture + tables
    module = 2 * (attention + 2 * 64 * 64 + 3 * 64) + mixture + tables  # its projection, three norms, own tables
    rotary = 2 * 4 * 4  # frequencies of 8 dimensions, twice
    for memory, verdict in (("1GB", "fits"), (main + rotary + 50_000, "does not fit")):
        found = costproof.fits(f"hf:{tmp_path}@chat,text_tokens=2", memory=memory, on="2xl4", next_token=1)
        assert (found.tried[0].weights_bytes, found.tried[0].verdict) == (main + module + rotary, verdict)


def test_the_last_stage_holds_most_by_its_mtp_module(tmp_path: Path) -> None:
    """Its mixture and head, with the module, are more than the dense layer and the table of the first stage."""
    (tmp_path / "config.json").write_text(json.dumps(SMALL_V3))
    for meshes, ranks in (({"pp": 2}, (1,)), ({"pp": 2, "tp": 2}, (2, 3))):
        mesh = "".join(f",{name}={n}" for name, n in meshes.items())
        found = costproof.fits(f"hf:{tmp_path}@chat,text_tokens=5{mesh}", memory="1GB", next_token=1)
        assert found.binding_ranks == ranks


def test_stored_bytes_of_ranks_with_parts_and_buffers(tmp_path: Path) -> None:
    """Routers of two ranks along tp: 8 x 64 of two bytes more, and the 8 float32 of their correction among buffers."""
    (tmp_path / "config.json").write_text(json.dumps(SMALL_V3 | {"num_nextn_predict_layers": 0}))
    run: dict[str, Any] = {"text_tokens": 8, "new_tokens": 3, "batch": 4, "fsdp": 2, "tp": 2}
    found = costproof.capture(f"hf:{tmp_path}", sources="analytic", **run).parallel
    assert found is not None
    amounts = {(d.what, d.metric): d.amount for d in found.duplicates if not d.stage}
    assert amounts["routers", "stored_bytes"] == 2 * 8 * 64
    assert amounts["buffers", "stored_bytes"] == 3 * 4 * 8  # on four ranks


def test_a_dense_model_has_no_experts_to_share() -> None:
    """In float32, 282 GB: a quarter fits; three ranks would divide 64 heads. What cannot be is one row of the table."""
    found = costproof.fits("llama-3.1-70b@chat,dtype=float32", on="7xh100-sxm")
    assert [(t.tp, t.ep, t.verdict) for t in found.tried] == [
        (1, 1, "does not fit"), (2, 1, "does not fit"), (3, 1, None), (4, 1, "fits"),
    ]  # fmt: skip
    assert "The 7 devices hold 1 such run of 4 ranks; 3 of them are idle." in _plain_lines(found)
    rows = [*_tried_rows(costproof.fits("qwen3-235b-a22b@chat", on="15xh100-sxm").tried)]
    assert [row[0] for row in rows] == [
        "tp 1", "tp 2", "tp 2, ep 2", "tp 3; tp 3, ep 3; tp 5; tp 5, ep 5; tp 6; tp 6, ep 6; tp 7; tp 7, ep 7",
        "tp 4", "tp 4, ep 4", "tp 8",
    ]  # fmt: skip


TOKEN = 32 * 4 * 128 * 2 * 2
"""Keys and values of 4 of 8 heads in 32 layers of Llama 3.1 8B."""


def test_limits_of_uneven_parts_of_a_batch() -> None:
    """Two parts: the first has 507 of 1,013 sequences, and 506 of 513 tokens are all that fit beside the weights."""
    found = costproof.fits("llama-3.1-8b@chat,batch=3,tp=2,dp=2,vocab=102", on="4xl4")
    lasting = (found.weights_bytes or 0) + (found.buffers_bytes or 0)
    most = (24 * 10**9 - lasting) // (513 * TOKEN)
    assert most == 506
    assert limits(found)["batch", "weights and cache"] == 2 * most + 1
    assert [(r.ranks, r.cache_bytes) for r in found.ranks] == [((0, 1), 2 * 513 * TOKEN), ((2, 3), 513 * TOKEN)]
    last = costproof.fits("llama-3.1-8b@chat,batch=3,tp=2,dp=2,vocab=102,rank=2", on="4xl4")
    assert (last.ranks, last.rank) == ((), 2)
    assert limits(last)["batch", "weights and cache"] == 2 * most + 2
    (point,) = (
        p for x in found.limits for p in x.points if (x.setting, x.held, p.at) == ("batch", "weights and cache", 1013)
    )
    assert point.bytes == lasting + 507 * 513 * TOKEN


def test_a_batch_that_the_model_refuses_is_no_limit_of_its_parts() -> None:
    """Of 33 tokens, 80 GB hold over 10,000 sequences a part: four parts are more than the 1,024 that a run takes.

    The model counts the whole batch, not a part, so that 1,024 of a part are not "the largest batch".
    """
    found = costproof.fits("llama-3.1-8b@chat,text_tokens=32,tp=2,dp=4,batch=8", on="8xh100-sxm")
    lasting = (found.weights_bytes or 0) + (found.buffers_bytes or 0)
    most = (80 * 10**9 - lasting) // (33 * TOKEN)
    (limit,) = (x for x in found.limits if (x.setting, x.held) == ("batch", "weights and cache"))
    assert (limit.outcome, limit.at) == ("refused", 4 * most + 1)
    assert limit.why.endswith(f"got {4 * most + 1}")
    assert all(p.at <= 1024 for x in found.limits for p in x.points if x.setting == "batch")
    assert _rank_line(found).startswith("All 8 ranks hold the same")
    uneven = costproof.fits("llama-3.1-8b@chat,batch=4,dp=3", on="3xh100-sxm")
    assert _rank_line(uneven).startswith("Of 3 ranks, rank 0 holds the most")


def blocks(rows: int, columns: int) -> int:
    """Bytes of a matrix in float8 with a float32 scale for each 128 x 128 elements."""
    return rows * columns + 4 * ceil(rows / 128) * ceil(columns / 128)


def test_a_checkpoint_that_is_loaded_in_float32() -> None:
    """Of gpt-oss what MXFP4 leaves in bfloat16 has twice the bytes: embedding and head, of a layer all but experts."""
    attention = 2 * 2880 * 4096 + 2 * 2880 * 512 + 4096 + 2 * 512 + 2880 + 64
    left = 2 * 201_088 * 2880 + attention + 32 * 2880 + 32 + 2 * 2880 + 2880
    run = "gpt-oss-20b@chat,layers=1"
    held = [costproof.fits(f"{run}{more}", on="h100-sxm").stored_bytes or 0 for more in ("", ",dtype=float32")]
    assert held[1] - held[0] == 2 * left
    assert costproof.fits(f"{run},dtype=float32", on="2xh100-sxm").verdict == "fits"


def test_a_checkpoint_without_formulas_that_is_loaded_in_float32(tmp_path: Path) -> None:
    """What fp8 leaves in bfloat16 has twice the bytes: the table, the head and the norms, four in the layer."""
    config = {
        "model_type": "olmo2", "architectures": ["Olmo2ForCausalLM"], "hidden_size": 128, "intermediate_size": 256,
        "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 512, "max_position_embeddings": 512,
        "torch_dtype": "bfloat16", "quantization_config": {
            "quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"],
        },
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    linear = 4 * 128**2 + 3 * 128 * 256 + (4 + 3 * 2) * 4  # in fp8, a scale in float32 for each block
    left = 2 * 512 * 128 + 4 * 128 + 128
    # It does not fit, so that no limits are searched.
    for dtype, size in (("bfloat16", 2), ("float32", 4)):
        found = costproof.fits(f"hf:{tmp_path}/config.json,seq-len=4,new-tokens=0,dtype={dtype}", memory="100kB")
        assert found.stored_bytes == linear + size * left
        assert any("are in float32, unlike stored" in note for note in found.notes) is (size == 4)


def test_a_stage_between_gathers_its_layers_alone() -> None:
    """A layer of Llama-3.2-1B in bfloat16, gathered and in its buffer; the stage has no embedding and no head."""
    layer = 2 * 2048**2 + 2 * 2048 * 512 + 3 * 2048 * 8192 + 2 * 2048
    run = "llama-3.2-1b,layers=3,pp=3,fsdp=2,batch=2,text-tokens=8,new-tokens=0,rank=2"
    assert costproof.fits(run, on="h100-sxm").unpacked_bytes == 2 * 2 * layer


def test_the_quantised_weights_of_a_rank_are_its_own() -> None:
    """DeepSeek-V3 on eight: attention whole, an eighth of each MLP and expert; in all 94 of 673 GB."""
    attention = blocks(1536, 7168) + blocks(24576, 1536) + blocks(576, 7168) + blocks(32768, 512) + blocks(7168, 16384)
    norms = 2 * (2 * 7168 + 1536 + 512)
    dense = 2 * blocks(18432 // 8, 7168) + blocks(7168, 18432 // 8)
    narrow = 2 * blocks(2048 // 8, 7168) + blocks(7168, 2048 // 8)
    router = 2 * 256 * 7168
    tables = 2 * 2 * (129280 // 8) * 7168 + 2 * 7168
    rank = 61 * (attention + norms) + 3 * dense + 58 * (257 * narrow + router) + tables
    found = costproof.fits("deepseek-v3@chat,text_tokens=8,new_tokens=0", on="8xh200-sxm")
    assert [(t.tp, t.ep, t.verdict) for t in found.tried if t.verdict] == [
        (1, 1, "does not fit"), (2, 1, "does not fit"), (2, 2, "does not fit"), (4, 1, "does not fit"),
        (4, 4, "does not fit"), (8, 1, "fits"),
    ]  # fmt: skip
    assert found.stored_bytes is not None
    assert found.stored_bytes - rank == 0
    # The largest of them is the output projection of attention: an eighth of the wider MLP is smaller.
    assert found.unpacked_bytes == 2 * 7168 * 16384


SEQUENCE = 513 * 2 * 8 * 128 * 2 * 2
"""Keys and values of 512 + 1 tokens of all 8 heads in two layers of Llama 3.1 8B."""


def dealt_limit(parts: int, most: int, *, step: int = 1) -> int:
    """Return the first batch of which a rank gets more than ``most`` sequences, dealt one by one."""
    for batch in range(step, 10_000, step):
        if max(Counter(i % parts for i in range(batch)).values()) > most:
            return batch
    raise AssertionError


@pytest.mark.parametrize(("target", "parts", "most", "step"), [
    ("llama-3.1-8b@chat,layers=2,batch=3,dp=3", 3, 1, 1),
    ("llama-3.1-8b@chat,layers=2,batch=4,dp=3", 3, 5, 1),
    ("llama-3.1-8b@chat,layers=2,batch=3,dp=3", 3, 341, 1),  # 1,024, the most that it takes, is no multiple of 3
    ("llama-3.1-8b@chat,layers=2,batch=4,fsdp=2", 2, 4, 1),
    ("mixtral@chat,layers=2,batch=2,dp=2,ep=2", 2, 3, 2),  # ranks that gather tokens take equal batches
])  # fmt: skip
def test_the_largest_batch_of_ranks_that_share_it(target: str, parts: int, most: int, step: int) -> None:
    """Both models have 8 key/value heads of 128 elements; two layers of them."""
    free = costproof.fits(target, memory=10**12)
    lasting = (free.weights_bytes or 0) + (free.buffers_bytes or 0)
    found = costproof.fits(target, memory=lasting + most * SEQUENCE + SEQUENCE // 2)
    (limit,) = (x for x in found.limits if (x.setting, x.held) == ("batch", "weights and cache"))
    at = dealt_limit(parts, most, step=step)
    assert (limit.outcome, limit.at) == ("from", at)
    assert [(p.at, p.bytes - lasting) for p in limit.points] == [
        (at - step, most * SEQUENCE), (at, (most + 1) * SEQUENCE)
    ]  # fmt: skip


@pytest.mark.parametrize(("plan", "last", "first"), [("zigzag", 2000, 2004), ("ulysses", 2004, 2006)])
def test_the_longest_prompt_of_ranks_that_share_it(plan: str, last: int, first: int) -> None:
    """Two ranks have room for 1,002.5 positions, of which the last rank in zigzag order needs one for the new token.

    It keeps half of the prompt, which zigzag divides by 4. By heads each keeps half of all tokens. A context of 131,072
    is shorter than what 10 TB would hold.
    """
    target, position = f"llama-3.1-8b@chat,cp=2,cp_plan={plan},layers=2", 2 * 8 * 128 * 2 * 2
    free = costproof.fits(target, memory=10**13)
    lasting = (free.weights_bytes or 0) + (free.buffers_bytes or 0)
    found = costproof.fits(target, memory=lasting + 1002 * position + position // 2)
    (limit,) = (x for x in found.limits if (x.setting, x.held) == ("text_tokens", "weights and cache"))
    assert (limit.outcome, limit.at) == ("from", first)
    assert [(p.at, p.bytes - lasting) for p in limit.points] == [
        (at, (at + (1 if plan == "ulysses" else 2)) * position // 2) for at in (last, first)
    ]  # fmt: skip
    (refused,) = (x for x in free.limits if (x.setting, x.held) == ("text_tokens", "weights and cache"))
    assert "longer than the model's context" in refused.why


def test_a_wrong_limit_of_ranks_is_found_by_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest limit of all ranks in place of the smallest; a batch too late; a batch too early."""
    target, memory = "llama-3.1-8b@chat,batch=3,dp=2,layers=2", "4GB"
    with monkeypatch.context() as planted:
        planted.setattr(fits_module, "report_order", lambda found: -(found.at or 0))
        with pytest.raises(Bug, match="does not fit at"):
            costproof.fits(target, memory=memory)
    solve = fits_module.memory_limits
    for off in (2, -2):

        def moved(*of: Any, off: int = off) -> Iterator[MemoryLimit]:
            for x in solve(*of):
                points = tuple(replace(p, at=p.at + off) for p in x.points)
                yield x if x.at is None else replace(x, at=x.at + off, points=points)

        with monkeypatch.context() as planted:
            planted.setattr(fits_module, "memory_limits", moved)
            with pytest.raises(Bug, match=r"(bytes|does not fit) at"):
                costproof.fits(target, memory=memory)


def test_a_length_behind_the_window_is_found_from_accepted_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window of 4096 refuses longer texts after a past of 20, behind it a cache does not grow: 8,192 B a token do.

    One position more than fits is the first that does not: the past and the new token hold 21 of them.
    """
    target, room, token = "mistral@chat,past=20,attention=flash_attention_2,layers=2", 900 * 10**9, 2 * 2 * 8 * 128 * 2
    found = costproof.fits(target, memory=room)
    (limit,) = (x for x in found.limits if (x.setting, x.held) == ("text_tokens", "weights and cache"))
    lasting = (found.weights_bytes or 0) + (found.buffers_bytes or 0)
    assert (limit.outcome, limit.at) == ("refused", (room - lasting) // token + 1 - 21)
    assert [(p.at, p.bytes - lasting) for p in limit.points] == [(4096 - 20 - 3, (4096 - 2) * token)]
    solve = fits_module.memory_limits
    for off in (1, -1):

        def moved(*of: Any, off: int = off) -> Iterator[MemoryLimit]:
            for x in solve(*of):
                yield replace(x, at=(x.at or 0) + off) if x.setting == "text_tokens" and "cache" in x.held else x

        with monkeypatch.context() as planted:
            planted.setattr(fits_module, "memory_limits", moved)
            with pytest.raises(Bug, match="stops to fit at"):
                costproof.fits(target, memory=room)


def test_borders_of_ranks_that_share_a_batch() -> None:
    """A rank of three computes as one device does with its part: the first batch that gives the first rank 3 n + 1."""
    one = costproof.roofline("llama-3.1-8b@chat,batch=3", on="h100-sxm")
    three = costproof.roofline("llama-3.1-8b@chat,batch=3,dp=3", on="h100-sxm")

    def of(found: Roofline) -> dict[tuple[str, str], tuple[str, int | None]]:
        return {(b.stage, b.question): (b.outcome, b.at) for b in found.borders if b.setting == "batch"}

    alone, shared = of(one), of(three)
    assert alone
    for border, (outcome, at) in alone.items():
        if outcome == "from" and at is not None and 3 * (at - 1) + 1 <= 1024:
            assert shared[border] == ("from", max(3, 3 * (at - 1) + 1))
