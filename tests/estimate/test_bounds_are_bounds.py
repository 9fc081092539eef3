"""No floor is above what a kernel that knows the mask, the dtypes and the storage has to do, counted by brute force."""

from __future__ import annotations

import importlib
import json
import random
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, product
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from costproof import api
from costproof.estimate.arithmetic import Arithmetic, arithmetic_of
from costproof.estimate.hardware import Device, DeviceFigure, DevicePeak
from costproof.estimate.roofline import Roofline, bounds, roof
from costproof.ledger.baseline import Folded, RowTree
from costproof.ledger.errors import Bug
from costproof.ledger.metrics import ARITHMETIC
from costproof.opgraph.account import _multiplied_in, arithmetic_dtype, skippable_flops
from costproof.opgraph.costed import cost_graph
from costproof.opgraph.graph import Graph, OpCall, Value
from costproof.opgraph.kept import FirstKnown, kept_work
from costproof.opgraph.mask_bands import band_pairs
from costproof.reports.roofline import floor_sentence, module_bound_sentence, omission_notes, peak_notes
from tests.support.opcalls import call, value

account_module: Any = importlib.import_module("costproof.opgraph.account")
RATES: Final = {"float32": 10**9, "bfloat16": 4 * 10**9, "float16": 5 * 10**9}
FREE: Final = Device(
    "free", "a published one", "published", {},
    tuple(DevicePeak(dtype, rate, "dense", "matrix", ()) for dtype, rate in RATES.items()), DeviceFigure(10**18, ()),
)  # fmt: skip
"""Products alone take time."""
BUSY: Final = Device(
    "busy", "a published one", "published", {},
    tuple(DevicePeak(dtype, 10**25, "dense", "matrix", ()) for dtype in RATES), DeviceFigure(10**9, ()),
)  # fmt: skip
"""Bytes alone do."""


def seconds(found: Roofline, stage: int = 0) -> Fraction:
    return Fraction(found.stages[stage].floor.seconds or "-1")


def pairs(queries: int, past: int, window: int = 0) -> int:
    """A causal mask, each pair tried."""
    return sum(
        1
        for i, j in product(range(queries), range(past + queries))
        if j <= past + i and (not window or past + i - j < window)
    )


@settings(max_examples=60)
@given(
    q=st.integers(1, 12), k=st.integers(1, 12), left=st.integers(0, 6) | st.none(), right=st.integers(0, 6) | st.none()
)
def test_pairs_under_a_flag(q: int, k: int, left: int | None, right: int | None) -> None:
    assert band_pairs(q, k, None, 0, at_end=False) == sum(1 for i, j in product(range(q), range(k)) if j <= i)
    ends = [
        (i + k - q - (k + q if left is None else left), i + k - q + (k + q if right is None else right))
        for i in range(q)
    ]
    assert band_pairs(q, k, left, right, at_end=True) == sum(
        1 for low, high in ends for j in range(k) if low <= j <= high
    )


HEADS, DIM, WIDTH = 2, 4, 8


@pytest.mark.parametrize(("window", "tokens"), [(0, 1), (0, 7), (0, 30), (5, 4), (5, 5), (5, 6), (5, 23)])
def test_a_decoder_takes_the_scores_that_its_mask_leaves(window: int, tokens: int) -> None:
    keys = f"layers=2,heads={HEADS},kv_heads=1,head_dim={DIM},hidden={WIDTH},intermediate=16,vocab=32"
    keys += f",window={window}" if window else ""
    target = "mistral" if window else "llama"
    steps = 3
    found = api.roofline(f"{target}@chat,{keys},text_tokens={tokens},new_tokens={steps},dtype=bfloat16", on=FREE)
    layer = 2 * (WIDTH * HEADS * DIM * 2 + 2 * WIDTH * DIM + 3 * WIDTH * 16)
    score = 4 * HEADS * DIM
    prompt = 2 * (tokens * layer + score * pairs(tokens, 0, window)) + 2 * tokens * WIDTH * 32
    assert seconds(found) == Fraction(prompt, RATES["bfloat16"])
    own = sum(2 * (layer + score * pairs(1, tokens + i, window)) + 2 * WIDTH * 32 for i in range(steps))
    assert seconds(found, 1) == Fraction(own, RATES["bfloat16"])


def test_published_lengths() -> None:
    """By hand: Llama 3.1 8B, 131,000 tokens, prefill; gpt-oss-20b, of whose 24 layers 12 have a window of 128."""
    n, peak = 131_000, 989 * 10**12
    layer = 2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 4096 * 14336
    whole = 2 * n * (32 * layer + 128256 * 4096) + 32 * 4 * 32 * 128 * n * (n + 1) // 2
    found = api.roofline("llama-3.1-8b@chat,text_tokens=131000,new_tokens=1", on="h100-sxm").stages[0]
    assert Fraction(found.floor.seconds or "-1") == Fraction(whole, peak)
    assert f"{whole / peak:.3f}" == "6.537"
    assert found.full is not None
    assert f"{float(Fraction(found.full.seconds or '-1')):.3f}" == "11.085"
    band = 128 * n - 128 * 127 // 2
    scores = 12 * 4 * 64 * 64 * (n * (n + 1) // 2 + band)
    layer = 2880 * (64 * 64 * 2 + 2 * 8 * 64) + 2880 * 32 + 4 * 3 * 2880 * 2880
    whole = 2 * n * (24 * layer + 201088 * 2880) + scores
    oss = api.roofline("gpt-oss-20b@chat,text_tokens=131000,new_tokens=1", on="h100-sxm").stages[0]
    assert Fraction(oss.floor.compute_s or "-1") == Fraction(whole, peak)
    assert f"{whole / peak:.3f}" == "2.665"


def latent(rng: random.Random) -> dict[str, int]:
    return {
        "heads": rng.randint(1, 3), "nope": 2 * rng.randint(1, 6), "rope": 2 * rng.randint(1, 3),
        "value": rng.randint(1, 12), "kv_rank": 2 * rng.randint(1, 16),
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(10))
def test_latent_attention_takes_the_less_of_two_ways(seed: int) -> None:
    rng = random.Random(seed)
    # Of the narrowest heads there are, the shortest step is less work where it expands.
    sizes = latent(rng) if seed else {"heads": 2, "nope": 2, "rope": 2, "value": 1, "kv_rank": 32}
    heads, nope, rope, width, rank = sizes.values()
    tokens, steps, batch = rng.randint(1, 9) if seed else 1, rng.randint(1, 3), rng.randint(1, 2)
    given_sizes = ",".join(f"{name}={n}" for name, n in sizes.items())
    common = f"deepseek-v3@chat,layers=1,dense_layers=1,hidden=8,q_rank=0,intermediate=8,vocab=16,{given_sizes}"
    run = f"{common},text_tokens={tokens},new_tokens={steps},batch={batch},dtype=bfloat16"
    rest = 8 * (heads * (nope + rope) + rank + rope + heads * width + 3 * 8 + 16)

    def ways(queries: int, past: int) -> tuple[int, int]:
        seen, up = pairs(queries, past) * heads, rank * heads * (nope + width)
        expanded = seen * (nope + rope + width) + (past + queries) * up
        return expanded, seen * (2 * rank + rope) + queries * up

    prompt = 2 * batch * (tokens * rest + min(ways(tokens, 0)))
    step = sum(2 * batch * (rest + min(ways(1, tokens + i))) for i in range(steps))
    for decoding in ("expanded", "absorbed"):
        found = api.roofline(f"{run},decoding={decoding}", on=FREE)
        for stage, exact in enumerate((prompt, step)):
            assert seconds(found, stage) <= Fraction(exact, RATES["bfloat16"])
            if nope + width >= 4 and (stage or decoding == "expanded"):
                assert seconds(found, stage) == Fraction(exact, RATES["bfloat16"])
        assert any("Latent attention" in line and "expan" in line for line in omission_notes(found))


class Packed(nn.Module):
    """Weights in integers, dequantised in the forward: their bytes are read once."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.register_buffer("packed", torch.zeros(width, width, dtype=torch.uint8))
        self.scale = nn.Parameter(torch.ones(width, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        packed = self.get_buffer("packed")
        return functional.linear(x, packed.to(x.dtype) * self.scale.to(x.dtype))


class Mixed(nn.Module):
    """Attention under some mask, and a projection before and behind it in dtypes of their own."""

    def __init__(self, inner: torch.dtype, outer: torch.dtype, mask: str, *, packed: bool) -> None:
        super().__init__()
        self.before = nn.Linear(WIDTH, 3 * WIDTH, bias=False, dtype=inner)
        self.packed = Packed(WIDTH).to(outer) if packed else None
        self.behind = nn.Linear(WIDTH, WIDTH, bias=False, dtype=outer)
        self.mask = mask

    def forward(self, x: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
        tokens = x.shape[0]
        parts = self.before(x).view(tokens, 3, HEADS, DIM).permute(1, 2, 0, 3).unsqueeze(1)
        query, key, value = parts.unbind(0)
        if self.mask == "written":
            scores = (query @ key.transpose(-1, -2)).masked_fill(~allowed, float("-inf"))
            found = torch.softmax(scores, -1) @ value
        else:
            found = functional.scaled_dot_product_attention(
                query, key, value,
                attn_mask=allowed if self.mask == "given" else None, is_causal=self.mask == "causal",
            )  # fmt: skip
        found = found.transpose(1, 2).reshape(tokens, WIDTH).to(self.behind.weight.dtype)
        found = found if self.packed is None else self.packed(found)
        out: torch.Tensor = self.behind(found)
        return out


CASES: Final = [
    (torch.bfloat16, torch.float32, "causal", False),
    (torch.float32, torch.bfloat16, "given", True),
    (torch.float16, torch.bfloat16, "none", True),
    (torch.float32, torch.float32, "written", False),
]


@pytest.mark.parametrize(("inner", "outer", "mask", "packed"), CASES, ids=str)
def test_a_module_of_any_dtypes_and_mask(inner: torch.dtype, outer: torch.dtype, mask: str, packed: bool) -> None:
    tokens = 11
    # Documents of 3, 5 and 3 tokens: the fewest pairs that any mask of a caller might leave are those of one key.
    lengths = torch.repeat_interleave(torch.arange(3), torch.tensor([3, 5, 3]))
    allowed = (lengths[:, None] == lengths[None]) & torch.ones(tokens, tokens).tril().bool()
    module = Mixed(inner, outer, mask, packed=packed).eval()
    x = torch.ones(tokens, WIDTH, dtype=inner)
    capture = api.count(module, x, allowed).capture
    left = {"causal": pairs(tokens, 0), "none": tokens**2}.get(mask, int(allowed.sum()))
    inner_name, outer_name = (str(d).removeprefix("torch.") for d in (inner, outer))
    work = [(inner_name, 2 * tokens * WIDTH * 3 * WIDTH), (inner_name, 4 * HEADS * DIM * left)]
    work += [(outer_name, 2 * tokens * WIDTH * WIDTH * (2 if packed else 1))]
    least = sum(Fraction(flops, RATES[dtype]) for dtype, flops in work)
    item = {torch.float32: 4, torch.bfloat16: 2, torch.float16: 2}
    stored = (
        3 * WIDTH * WIDTH * item[inner]
        + WIDTH * WIDTH * item[outer]
        + (WIDTH**2 + WIDTH * item[outer] if packed else 0)
    )
    moved = stored + tokens * WIDTH * (item[inner] + item[outer])
    for source in ("static", "dynamic"):
        found = api.roofline(capture, on=FREE, source=source)
        assert 0 < seconds(found) <= least, source
        if mask in ("causal", "none"):
            assert seconds(found) == least, source
        assert seconds(api.roofline(capture, on=BUSY, source=source)) <= Fraction(moved, 10**9)


def op(name: str, *dtypes: str, out: str, **attrs: Any) -> OpCall:
    tensors = tuple(Value(f"t{i}", (4, 4), dtype) for i, dtype in enumerate(dtypes))
    return OpCall("o", name, "", 1, tensors, (Value("out", (4, 4), out),), attrs)


@pytest.mark.parametrize(
    ("one", "dtype"),
    [
        (op("aten.mm", "bfloat16", "bfloat16", out="float32"), "bfloat16"),
        (op("aten._scaled_mm", "float8_e4m3fn", "float8_e4m3fn", "float32", out="bfloat16"), "float8"),
        (op("aten._weight_int8pack_mm", "bfloat16", "int8", "bfloat16", out="bfloat16"), "bfloat16"),
        (op("aten._int_mm", "int8", "int8", out="int32"), "int8"),
        (op("aten.mm", "int32", "int32", out="int32"), "other"),
        (op("aten.mm", "int8", "int32", out="int32"), "other"),
        (op("aten.linear", "float32", "float32", out="float32", autocast="bfloat16"), "bfloat16"),
        (op("aten.linear", "float64", "float64", out="float64", autocast="bfloat16"), "float64"),
        (op("aten.mm", "complex64", "complex64", out="complex64"), "float32"),
        (op("aten.mm", "complex32", "bfloat16", out="complex32"), "float16"),
        (op("aten.mm", "float4_e2m1fn_x2", "float4_e2m1fn_x2", out="bfloat16"), "float4"),
        (op("aten.mm", "float6_e3m2", "bfloat16", out="bfloat16"), "other"),
    ],
    ids=str,
)
def test_the_dtype_of_an_operator(one: OpCall, dtype: str) -> None:
    assert arithmetic_dtype(one) == dtype
    assert _multiplied_in(one) == dtype


class Narrow(nn.Module):
    """Products in float8, in int8, and under autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            wide = self.up(x)
        one, octets = torch.ones((), device=x.device), torch.ones(32, 16, dtype=torch.int8, device=x.device)
        eighths, weights = wide.to(torch.float8_e4m3fn), self.up.weight.to(torch.float8_e4m3fn)
        scaled = torch._scaled_mm(eighths, weights.t(), one, one, out_dtype=torch.bfloat16)
        return scaled.float() + torch._int_mm(wide.to(torch.int8), octets).float().sum()


def _widest(one: OpCall) -> str:
    found = {v.dtype.partition("_")[0] for v in (*one.tensors, *one.outputs)}
    return next(dtype for dtype in ARITHMETIC if dtype in found)


@pytest.mark.parametrize(
    "wrong",
    [_widest, lambda one: one.outputs[0].dtype, lambda one: of if (of := arithmetic_dtype(one)) != "int8" else "other"],
    ids=["the widest", "that of the result", "int8 as other integers"],
)
def test_a_mistaken_dtype_is_found(wrong: Callable[[OpCall], str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Graph and trace share the dtype of an operator, so that they agree on a mistaken one."""
    x = torch.zeros(32, 32)
    costs = [n.costs for ledger in api.count(Narrow(), x).capture.ledgers for n in ledger.nodes]
    # Two products of 32 x 32 x 32 and one of 32 x 32 x 16, each 2 FLOPs, by export and by trace.
    summed = {dtype: sum(of.get(f"{dtype}_flops") or 0 for of in costs) for dtype in ("bfloat16", "float8", "int8")}
    assert summed == {"bfloat16": 2 * 65_536, "float8": 2 * 65_536, "int8": 2 * 32_768}
    monkeypatch.setattr(account_module, "arithmetic_dtype", wrong)
    with pytest.raises(Bug, match="counted in another way"):
        api.count(Narrow(), x)


def folded(**costs: int | None) -> Folded:
    rows: RowTree = {"s": {"p": {"mm": {"flops": 12, **costs}, "": {"floor_bytes": 0}}}}
    return Folded(("flops", "floor_bytes"), ("s",), rows, bounds=True)


OCTETS: Final = Device(
    "octets", "a published one", "published", {},
    (*(DevicePeak(dtype, 10**25, "dense", "matrix", ()) for dtype in RATES),
     DevicePeak("int8", 10**9, "dense", "matrix", ())), DeviceFigure(10**18, ()),
)  # fmt: skip
"""Products of int8 alone take time."""
ROWS: Final = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
EACH_TOKEN: Final = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": True}
OF_INT8: Final[dict[str, dict[str, Any]]] = {
    "bitsandbytes": {"quant_method": "bitsandbytes", "load_in_8bit": True},
    "W8A8": {"quant_method": "compressed-tensors", "format": "int-quantized", "ignore": ["lm_head"],
             "config_groups": {"a": {"targets": ["Linear"], "weights": ROWS, "input_activations": EACH_TOKEN}}},
}  # fmt: skip


@pytest.mark.parametrize("name", OF_INT8)
def test_products_of_int8_take_the_time_of_int8(name: str, tmp_path: Path) -> None:
    """Of 7 tokens in a layer of q and o 64 x 64, k and v 64 x 32, and three of 64 x 96; the head has bfloat16."""
    (tmp_path / "m.json").write_text(json.dumps({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 40,
        "dtype": "bfloat16", "tie_word_embeddings": False, "quantization_config": OF_INT8[name],
    }))  # fmt: skip
    target = f"hf:{tmp_path / 'm.json'},text_tokens=7,new_tokens=0"
    took = seconds(api.roofline(target, on=OCTETS))
    expected = Fraction(2 * 7 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96), 10**9)
    assert expected <= took < expected + Fraction(1, 10**12)
    said = peak_notes(api.roofline(target, on="h200-sxm"))
    assert "No source gives a dense peak for products in int8: they take no time here." in said


def test_several_dtypes_in_one_row() -> None:
    def took(of: Folded) -> Fraction:
        arithmetic, main = arithmetic_of(of, "float32")
        run, _, _ = bounds(of, roof(FREE, main), arithmetic)
        return Fraction(run.floor.compute_s or "-1")

    assert took(folded(bfloat16_flops=8)) == Fraction(4, 10**9) + Fraction(8, 4 * 10**9)
    # What may be left out is taken off the slowest dtype.
    assert took(folded(bfloat16_flops=8, skippable_flops=4)) == Fraction(8, 4 * 10**9)
    assert took(folded(other_flops=8)) == Fraction(4, 10**9)
    # Unknown is not 0: nothing is certain of it then.
    assert took(folded(skippable_flops=None)) == 0
    assert took(folded(bfloat16_flops=None)) == 0


def test_what_does_not_say_what_may_be_left_out_is_called_no_bound() -> None:
    counted = api.capture("llama", sources=["analytic"])
    found = api.roofline(counted, on=FREE)
    assert floor_sentence(found).startswith("Floor: nothing is faster")
    (ledger,) = counted.ledgers
    plain = ledger.without({"skippable_flops", "kept_flops", "kept_scores"})
    old = api.roofline(replace(counted, ledgers=(replace(plain, bounds=False),)), on=FREE)
    assert seconds(old) > seconds(found)
    for said in (floor_sentence(old), module_bound_sentence(old)):
        assert "nothing is faster" not in said
        assert "full convention" in said
    measured = api.roofline(counted, on=replace(FREE, origin="measured"))
    assert "nothing is faster" not in floor_sentence(measured) + module_bound_sentence(measured)


LLAMA4: Final = {
    "model_type": "llama4_text", "hidden_size": 32, "intermediate_size": 32, "intermediate_size_mlp": 64,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 64,
    "num_local_experts": 8, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 512, "attention_chunk_size": 256,
}  # fmt: skip


@pytest.mark.usefixtures("one_process")
def test_the_floor_of_a_class_that_runs_all_experts_is_no_bound(tmp_path: Path) -> None:
    """One expert of eight computes the result of a token: three matrices of 32 x 32, of which the class runs eight."""
    file = tmp_path / "llama4.json"
    file.write_text(json.dumps(LLAMA4))
    target = f"hf:{file},seq_len=4,new_tokens=0"
    found, again = api.roofline(target, on=FREE), api.roofline(api.capture(f"hf:{file}", seq_len=4), on=FREE)
    assert (found.run.floor.taken or 0) >= 8 * 4 * 3 * 2 * 32 * 32
    for one in (found, again):
        for said in (floor_sentence(one), module_bound_sentence(one)):
            assert "nothing is faster" not in said
            assert "one that leaves them out is faster" in said
    dense = json.loads(file.read_text()) | {"num_experts_per_tok": 8}
    file.write_text(json.dumps(dense))
    assert floor_sentence(api.roofline(target, on=FREE)).startswith("Floor: nothing is faster")


def test_the_floor_of_routed_experts_is_that_of_tokens_that_all_choose_alike() -> None:
    """Of the routings of tokens, 2 of 8 experts each, the least reads 2 experts, and the counts of 4 have 8 a layer."""
    choices = list(combinations(range(8), 2))
    least = min(len({0, 1, *a, *b}) for a, b in product(choices, repeat=2))
    layers, steps, expert = 32, 1, 3 * 4096 * 14336 * 2
    bound, alike = (api.roofline("mixtral-8x7b@chat,batch=4", on=BUSY, routing=r) for r in ("bound", "uniform"))
    decode = next(s for s in bound.stages if s.id == "decode")
    assert least == 2
    assert decode.full is not None
    assert (decode.full.bytes or 0) - (decode.floor.bytes or 0) == layers * steps * (8 - least) * expert
    for said in (module_bound_sentence(bound), module_bound_sentence(alike), floor_sentence(alike)):
        assert ": nothing is faster with as many experts read that" in said
    assert floor_sentence(bound).startswith("Floor: nothing is faster that computes the same result")
    dense = api.roofline("llama", on=FREE)
    assert "as many experts" not in floor_sentence(dense) + module_bound_sentence(dense)


MIXTRAL: Final = {
    "model_type": "mixtral", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 32, "num_local_experts": 8,
    "num_experts_per_tok": 2, "sliding_window": None,
}  # fmt: skip


@pytest.mark.usefixtures("one_process")
def test_every_source_has_the_floor_of_the_experts_of_one_token(tmp_path: Path) -> None:
    """3 steps of one layer: 3 sequences choose 2 of 8 experts each, 6 at most, 2 at least, of three 8 x 16 matrices."""
    file = tmp_path / "mixtral.json"
    file.write_text(json.dumps(MIXTRAL))
    counted = api.capture("mixtral", config=file, batch=3, text_tokens=2, new_tokens=3)
    for source in ("analytic", "static", "dynamic"):
        found = api.roofline(counted, on=BUSY, source=source)
        decode = next(s for s in found.stages if s.id == "decode")
        assert decode.full is not None
        assert (decode.full.bytes or 0) - (decode.floor.bytes or 0) == 3 * (6 - 2) * 3 * 8 * 16 * 2


MIXED: Final = """
import torch
from torch import nn
import torch.nn.functional as F
B = torch.bfloat16
class NormFirst(nn.Module):
    def __init__(s):
        super().__init__(); s.n = nn.LayerNorm(1024, dtype=torch.float32); s.a = nn.Linear(1024, 4096, dtype=B)
        s.b = nn.Linear(4096, 1024, dtype=B)
    def forward(s, x): return s.b(F.gelu(s.a(s.n(x.float()).to(B))))
def norm32():
    with torch.device("meta"): return NormFirst(), (torch.empty(8192, 1024, dtype=B),)
class Auto(nn.Module):
    def __init__(s): super().__init__(); s.a = nn.Linear(1024, 4096); s.b = nn.Linear(4096, 1024)
    def forward(s, x):
        with torch.autocast("cpu", B): return s.b(F.gelu(s.a(x)))
def autocast(): return Auto(), (torch.ones(8192, 1024),)
class Causal(nn.Module):
    def forward(s, q, k, v): return F.scaled_dot_product_attention(q, k, v, is_causal=True)
def causal():
    t = torch.empty(1, 16, 16384, 128, dtype=B, device="meta"); return Causal(), (t, t.clone(), t.clone())
"""


@pytest.mark.usefixtures("one_process")
def test_the_peak_is_that_of_each_operator(tmp_path: Path) -> None:
    path = tmp_path / "mixed.py"
    path.write_text(MIXED)
    for name in ("norm32", "autocast"):
        found = api.roofline(f"{path}:{name}", on="h100-sxm")
        # 2 x 8192 x 1024 x 4096 twice, at 989 TFLOP/s: 138.97 us.
        assert found.run.floor.seconds == str(Fraction(4 * 8192 * 1024 * 4096, 989 * 10**12)), name
    found = api.roofline(f"{path}:causal", on="a100-sxm-80gb")
    scores = 4 * 16 * 128 * 16384
    assert found.run.floor.seconds == str(Fraction(scores * (16384 + 1) // 2, 312 * 10**12))
    assert found.run.full is not None
    assert found.run.full.seconds == str(Fraction(scores * 16384, 312 * 10**12))  # 7.05 ms
    assert (found.math, found.workload.dtype) == ("bfloat16", "bfloat16")


def test_arithmetic_in_place_of_the_run_s() -> None:
    taken = Arithmetic("float32", True, {"float32": "tf32"}).of_kinds({"mm": {"flops": 6, "bfloat16_flops": 2}})
    assert taken.least == {"tf32": 4, "bfloat16": 2}


def latents(past_rows: int, rank: int, heads: int, both: int) -> Graph:
    """A step: one new latent joined with a cache of them, expanded by a weight, and attention in the module around."""
    cache, new = value(1, past_rows, rank, origin="cache"), value(1, 1, rank)
    joined, weight = value(1, past_rows + 1, rank), value(heads * both, rank, origin="param", name="up")
    expanded = value(1, past_rows + 1, heads * both)
    query, keys = value(1, heads, 1, both // 2), value(1, heads, past_rows + 1, both // 2)
    ops = [
        call("aten.cat.default", [cache, new], [joined], module="attn"),
        call("aten.linear.default", [joined, weight], [expanded], module="attn.up"),
        call("aten.view.default", [expanded], [keys], module="attn"),
        call("aten.scaled_dot_product_attention.default", [query, keys, keys], [query], module="attn"),
    ]
    return Graph(tuple(ops), (), (), ())


@pytest.mark.parametrize(("rank", "both"), [(8, 16), (8, 4), (2, 24)])
def test_a_graph_that_expands_latents_of_a_cache(rank: int, both: int) -> None:
    past, heads = 10, 3
    costed = cost_graph(latents(past, rank, heads, both))
    found = skippable_flops(costed, kept_work(costed, FirstKnown(())))
    scores = 2 * heads * (past + 1) * both
    left = 2 * (past + 1) * rank * heads * both + scores - sum(map(int, found.values()))
    expanded = (past + 1) * rank * heads * both + heads * (past + 1) * both
    absorbed = rank * heads * both + heads * (past + 1) * 2 * rank
    assert left == 2 * min(expanded, absorbed) == 2 * absorbed
    # Heads wider than two latents have less work on scores too.
    assert (3 in found) == (both > 2 * rank)


def test_without_a_cache_nothing_is_absorbed() -> None:
    graph = latents(10, 8, 3, 16)
    own = replace(graph.ops[0], tensors=(value(1, 10, 8), graph.ops[0].tensors[1]))
    costed = cost_graph(replace(graph, ops=(own, *graph.ops[1:])))
    assert not skippable_flops(costed, kept_work(costed, FirstKnown(())))


LOWER: Final = torch.ones(11, 11).tril().bool()


def scores(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return query @ key.transpose(-1, -2)


class Masked(nn.Module):
    """Attention that is written out in one of several ways, under one mask."""

    WAYS: Final = ("added", "where", "triangle", "retention", "sigmoid", "after")

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.register_buffer("lower", LOWER)

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        lower = self.get_buffer("lower")
        if self.way == "added":
            added = torch.zeros(11, 11).masked_fill(~lower, -1e9)
            return torch.baddbmm(added, query, key.transpose(-1, -2)).softmax(-1) @ value
        if self.way == "where":
            found = torch.where(lower, scores(query, key), -1e9)
            found = (found - found.amax(-1, keepdim=True)).exp()
            return (found / found.sum(-1, keepdim=True)) @ value
        if self.way == "triangle":
            return scores(query, key).tril() @ value
        if self.way == "retention":
            return (scores(query, key) * lower) @ value
        if self.way == "sigmoid":
            return scores(query, key).masked_fill(~lower, -1e9).sigmoid() @ value
        return (scores(query, key).softmax(-1) * lower) @ value


@pytest.mark.parametrize("way", Masked.WAYS)
def test_a_mask_without_the_usual_softmax(way: str) -> None:
    inputs = [torch.ones(3, 11, DIM) for _ in range(3)]
    found = api.roofline(api.count(Masked(way), *inputs).capture, on=FREE)
    kept = 4 * 3 * DIM * int(LOWER.sum()) if way != "after" else 2 * 3 * DIM * (121 + int(LOWER.sum()))
    assert seconds(found) <= Fraction(kept, RATES["float32"])


class Expert(nn.Module):
    """Products of activations that no mask meets: rows of weights, and angles of a rotation."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(4, DIM, DIM)), nn.Parameter(torch.ones(4, 1, DIM))
        self.register_buffer("rates", torch.ones(1, DIM))

    def forward(self, x: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
        angles = torch.arange(x.shape[1], dtype=x.dtype)[:, None] @ self.get_buffer("rates")
        x = x * angles.cos()
        found = (x @ self.weight[which] + self.bias[which]).relu()
        return functional.scaled_dot_product_attention(found, found, found) @ self.weight[which]


def test_products_that_no_mask_meets_stay() -> None:
    inputs = (torch.ones(2, 11, DIM), torch.tensor([0, 3]))
    found = api.roofline(api.count(Expert(), *inputs).capture, on=FREE)
    kept = 2 * 2 * (2 * 11 * DIM * DIM + 2 * 11 * 11 * DIM) + 2 * 11 * DIM
    assert seconds(found) == Fraction(kept, RATES["float32"])


@pytest.mark.parametrize(
    ("module", "shape", "least"),
    [
        # A result of a convolution takes at least one product for each channel, whatever the algorithm.
        (nn.Conv2d(4, 6, 3, padding=1, bias=False), (2, 4, 8, 8), 2 * 2 * 64 * 4 * 6),
        (nn.Conv2d(4, 6, 3, padding=1, bias=False), (2, 4, 1, 1), 2 * 2 * 4 * 6),
        (nn.Conv1d(4, 6, 5, stride=2, groups=2, bias=False), (2, 4, 11), 2 * 2 * 4 * 2 * 6),
        (nn.ConvTranspose2d(4, 6, 3, padding=1, bias=False), (2, 4, 5, 5), 2 * 2 * 25 * 4 * 6),
        # Windows that do not overlap share nothing.
        (nn.Conv2d(4, 6, 2, stride=2, bias=False), (2, 4, 8, 8), 2 * 2 * 16 * 4 * 6 * 4),
        (nn.Conv2d(4, 6, 1, bias=False), (2, 4, 8, 8), 2 * 2 * 64 * 4 * 6),
    ],
)
def test_convolutions(module: nn.Module, shape: tuple[int, ...], least: int) -> None:
    found = api.roofline(api.count(module, torch.ones(*shape)).capture, on=FREE)
    assert sum((found.run.floor.least or {"": found.run.floor.flops or 0}).values()) == least


def test_float32_on_units_of_tf32() -> None:
    """Recurrent layers and fused attention run there by default, as convolutions do; plain products do not."""
    peaks = {"float32": 10**9, "tf32": 6 * 10**9}
    device = replace(FREE, peaks=tuple(DevicePeak(d, rate, "dense", "matrix", ()) for d, rate in peaks.items()))
    one, of = Arithmetic("float32"), roof(device, "float32")
    for kind, rate in {
        "aten.lstm": 6, "aten.gru": 6, "aten.conv2d": 6, "aten.scaled_dot_product_attention": 2, "attention": 2,
        "aten.gru_cell": 1, "aten.mm": 1, "linear": 1,
    }.items():  # fmt: skip
        assert of.work(one.of_kinds({kind: {"flops": 12 * 10**9}}), 0).compute_s == str(Fraction(12, rate)), kind


class Kept(nn.Module):
    """A step over a cache of a fixed length."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if self.how == "written":
            return (scores(query, key) + mask).softmax(-1) @ value
        given = mask if self.how == "mask" else None
        causal = self.how == "flag"
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=given, is_causal=causal)


@pytest.mark.parametrize("how", ["written", "mask", "flag", "none"])
def test_keys_that_a_mask_hides_need_not_be_read(how: str) -> None:
    rows, width = 64, HEADS * DIM * 4
    mask = torch.full((1, 1, 1, rows), float("-inf"))
    mask[..., 0] = 0
    inputs = (*(torch.ones(1, HEADS, n, DIM) for n in (1, rows, rows)), mask)
    counted = api.count(Kept(how), *inputs).capture
    # A query, a result; of the keys and values only the first is filled, or all are.
    needed = 2 * width + 2 * width * (rows if how == "none" else 1)
    for source in ("static", "dynamic"):
        found = api.roofline(counted, on=BUSY, source=source)
        assert seconds(found) <= Fraction(needed + (rows * 4 if how in ("written", "mask") else 0), 10**9), source
        assert found.run.modules.bytes is not None
        assert (found.run.modules.bytes == needed) == (how == "none")


class OwnMask(nn.Module):
    """Attention under a mask that the module owns, as flags or as numbers that are added to scores."""

    mask: torch.Tensor

    def __init__(self, mask: torch.Tensor, how: str) -> None:
        super().__init__()
        self.how = how
        numbers = torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))
        self.register_buffer("mask", numbers if how == "numbers" else mask)

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        mask = self.mask
        if self.how == "made":
            mask = torch.zeros(mask.shape, device=query.device).masked_fill(~mask, float("-inf"))
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)


@pytest.mark.parametrize("how", ["flags", "made", "numbers"])
@pytest.mark.parametrize("rows", ["111 111", "101 101", "100 110", "101 010", "001 001"])
def test_a_floor_under_a_mask_tensor_key_by_key(rows: str, how: str) -> None:
    """Two queries and results, and the keys and values that some query sees, are all that a kernel needs.

    Numbers that hide nothing are added to scores: a kernel reads all six of them.
    """
    flags = [[flag == "1" for flag in row] for row in rows.split()]
    seen = sum(any(row[key] for row in flags) for key in range(3))
    least = HEADS * DIM * 4 * (2 + 2 + 2 * seen) + (6 * 4 if how == "numbers" and "0" not in rows else 0)
    inputs = (torch.ones(1, HEADS, n, DIM) for n in (2, 3, 3))
    counted = api.count(OwnMask(torch.tensor(flags), how), *inputs).capture
    for source in ("static", "dynamic"):
        found = api.roofline(counted, on=BUSY, source=source)
        assert found.run.floor.bytes is not None
        assert found.run.floor.bytes <= least, source
        kept = counted.by_source[source].total("kept_scores")
        assert kept in (None, HEADS * sum(map(sum, flags))), source
        if source == "static" and how == "flags":  # whose numbers an export has
            assert kept is not None
            assert (found.run.floor.bytes == least) == (seen == 3 and "0" not in rows)


AUTO: Final = """
import torch
from torch import nn
class Auto(nn.Module):
    def __init__(self, device): super().__init__(); self.a = nn.Linear(16, 512, bias=False); self.device = device
    def forward(self, x):
        with torch.autocast(self.device, torch.bfloat16): return self.a(x)
class After(Auto):
    def __init__(self):
        super().__init__("cpu"); self.o = nn.Linear(512, 8)
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            y = self.a(x)
            with torch.autocast("cpu", enabled=False): y = y + self.a(x)
        return self.o(y.float())
def after(): return After(), (torch.ones(3, 16),)
def cpu():
    with torch.device("meta"): return Auto("cpu"), (torch.ones(512, 16),)
def cuda(): return Auto("cuda"), (torch.ones(512, 16),)
"""


@pytest.mark.usefixtures("one_process")
def test_only_operators_in_the_region_of_autocast_are_narrow(tmp_path: Path) -> None:
    """Of two calls of a, one is under autocast; the one where it is off, and o after it, multiply in float32."""
    path = tmp_path / "auto.py"
    path.write_text(AUTO)
    counted = api.capture(f"{path}:after")
    for ledger in counted.ledgers:
        found = {n.module: flops for n in ledger.nodes if (flops := n.cost("bfloat16_flops"))}
        assert found == {"a": 2 * 3 * 16 * 512}, ledger.source
    assert [ledger.source for ledger in counted.ledgers] == ["static", "dynamic"]


@pytest.mark.usefixtures("one_process")
@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_autocast_makes_results_narrow(tmp_path: Path, device: str) -> None:
    """An export on meta, and one without the device, has results in float32."""
    path = tmp_path / "auto.py"
    path.write_text(AUTO)
    counted = api.capture(f"{path}:{device}")
    moved = 4 * 512 * 16 * 2 + 2 * 512 * 512
    for source in ("static", "dynamic"):
        found = api.roofline(counted, on="h100-sxm", source=source)
        assert (found.math, found.run.floor.bytes, found.run.modules.bytes) == ("bfloat16", moved, moved), source
