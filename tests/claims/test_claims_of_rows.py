"""Claims about batches of rows: right ones, and the mistakes of tools that count them, each by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

import costproof
from tests.oracles.claims import causes

CONFIG: Final = {
    "model_type": "llama", "hidden_size": 1000, "intermediate_size": 2816, "num_hidden_layers": 2,
    "num_attention_heads": 20, "num_key_value_heads": 4, "vocab_size": 32003, "max_position_embeddings": 4096,
}  # fmt: skip
"""Heads of 50 elements."""
ROWS: Final = "700, 3x1+80, 20+30/all"
NEW: Final = 700 + 3 + 20
LINEAR: Final = 2 * 2 * (2 * 1000 * 1000 + 2 * 1000 * 200 + 3 * 1000 * 2816)
"""FLOPs of a token in the linear layers of two layers."""
PAIR: Final = 2 * 4 * 20 * 50
"""FLOPs of a pair of a query and a key in two layers."""
HEAD: Final = 2 * 1000 * 32003
"""FLOPs of a position with logits."""
FULL: Final = 700 * 700 + 3 * 81 + 20 * 50
KEPT: Final = 700 * 701 // 2 + 3 * 81 + 20 * 30 + 20 * 21 // 2

CLAIMS: Final[dict[str, tuple[int, set[str]]]] = {
    "right": (NEW * LINEAR + FULL * PAIR + 24 * HEAD, set()),
    "causal": (NEW * LINEAR + KEPT * PAIR + 24 * HEAD, {"causal triangle"}),
    "one sequence": (NEW * LINEAR + NEW**2 * PAIR + 24 * HEAD, {"rows as one sequence"}),
    "one causal sequence": (
        NEW * LINEAR + NEW * (NEW + 1) // 2 * PAIR + 24 * HEAD, {"rows as one sequence", "causal triangle"},
    ),
    "no prefix": (NEW * LINEAR + (700**2 + 3 + 20**2) * PAIR + 24 * HEAD, {"pairs of the prefix missing"}),
    "no prefix, causal": (
        NEW * LINEAR + (700 * 701 // 2 + 3 + 20 * 21 // 2) * PAIR + 24 * HEAD,
        {"pairs of the prefix missing", "causal triangle"},
    ),
    "padded": (5 * 700 * LINEAR + 5 * 700 * 700 * PAIR + 24 * HEAD, {"rows padded to the longest"}),
    "padded, causal": (
        5 * 700 * LINEAR + 5 * (700 * 701 // 2) * PAIR + 24 * HEAD, {"rows padded to the longest", "causal triangle"},
    ),
    "all logits": (NEW * LINEAR + FULL * PAIR + NEW * HEAD, {"lm_head all tokens"}),
    "last logits": (NEW * LINEAR + FULL * PAIR + 5 * HEAD, {"lm_head last token"}),
    "MACs": ((NEW * LINEAR + FULL * PAIR + 24 * HEAD) // 2, {"mac"}),
}  # fmt: skip


def check(folder: Path, lines: str, rows: str = ROWS, **config: int) -> dict[str, costproof.Judgement]:
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}), encoding="utf-8")
    claims = folder / "claims.yaml"
    text = f'costproof_claims: 1\nworkload: {{rows: "{rows}"}}\nclaims:\n{lines}'
    claims.write_text(text, encoding="utf-8")
    found = costproof.check(claims, "llama", config=folder / "config.json")
    return {judged.id: judged for judged in found.judgements}


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, costproof.Judgement]:
    lines = "".join(f"- {{id: '{name}', stage: prefill, flops: {value}}}\n" for name, (value, _) in CLAIMS.items())
    return check(tmp_path_factory.mktemp("claims"), lines)


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_about_rows_is_explained(name: str, judged: dict[str, costproof.Judgement]) -> None:
    found, (_, expected) = judged[name], CLAIMS[name]
    assert found.status == ("explained" if expected else "right")
    assert (causes(found) if expected else []) == ([expected] if expected else [])


def test_published_pairs_of_an_engine_are_explained(tmp_path: Path) -> None:
    """Two prompts of 100 tokens are 10,100 pairs, for which 20,100 were counted: those of 200 tokens.

    64 Ki tokens in chunks of 8 Ki are 2,147,516,416 pairs, for which 268,468,224 were counted: without the prefixes.
    """
    heads = 2 * 20
    right, wrong = (check(tmp_path, f"- {{id: a, stage: prefill, kept_scores: {heads * n}}}\n", "2x100")["a"]
                    for n in (10_100, 20_100))  # fmt: skip
    assert right.status == "right"
    assert causes(wrong) == [{"rows as one sequence"}]
    chunks = ", ".join(f"8192+{8192 * i}" if i else "8192" for i in range(8))
    counted = 8 * (8192 * 8193 // 2)
    line = f"- {{id: a, stage: prefill, kept_scores: {heads * counted}}}\n"
    found = check(tmp_path, line, chunks, max_position_embeddings=131_072)["a"]
    assert causes(found) == [{"pairs of the prefix missing"}]


def test_no_length_is_tried_for_rows(tmp_path: Path) -> None:
    found = check(tmp_path, f"- {{id: a, stage: prefill, flops: {NEW * LINEAR + 1}}}\n")["a"]
    assert found.status in ("unexplained", "refuted")
    assert found.lengths == ()


def test_a_formula_in_sums_over_rows_is_right(tmp_path: Path) -> None:
    """The symbols that ``costproof explain`` lists: of each kind of rows SS and SC, and S of all."""
    pairs = "SS_1 + SS_2 + SC_2 + SS_3 + SC_3"  # the first kind has no past
    layer = f"{PAIR // 2}*({pairs})"
    lines = (
        f"- {{id: right, stage: prefill, module: 'model.layers.[0-1].self_attn', flops: '2*{layer}'}}\n"
        f"- {{id: wrong, stage: prefill, module: 'model.layers.[0-1].self_attn', flops: '2*{PAIR // 2}*S**2'}}\n"
    )
    found = check(tmp_path, lines)
    assert found["right"].status == "right"
    assert found["wrong"].status != "right"
