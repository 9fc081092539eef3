"""What the ledger of the whole model contains: stages, invocations, modules, calls."""

from __future__ import annotations

import pytest

from costproof.algebra.symbols import parse
from costproof.analytic.costs import formula_docs
from costproof.ledger.errors import BadInput
from costproof.ledger.evaluate import evaluate_ledger
from costproof.models.families.deepseek_ocr.formulas import SYMBOLS, ocr_ledger
from costproof.models.families.deepseek_ocr.names import NATIVE_NAMES
from costproof.models.pages.formulas import PageStructure
from tests.analytic.published import CONFIG, counted, page


def test_calls_of_a_page_with_crops() -> None:
    result = counted(page(1024, 640), prompt=800, steps=5)
    calls = {(n.stage, n.invocation, n.module): n.costs["calls"] for n in result.nodes if "calls" in n.costs}
    # per SAM layer: itself, 2 norms, attention with 2 linears, MLP with 3 children: 10
    # beside them: encoder, patch embedding and its convolution, neck and 4 children, downsampling and 2 children: 11
    assert sum(1 for s, i, _ in calls if (s, i) == ("sam", "global")) == 12 * 10 + 11
    # per CLIP layer: itself, 2 norms, attention with 4 linears, MLP with 3 children: 12
    # beside them: tower, embeddings, first norm, encoder; the position table is called only where it fits
    assert sum(1 for s, i, _ in calls if (s, i) == ("clip", "crops")) == 24 * 12 + 4
    assert sum(1 for s, i, _ in calls if (s, i) == ("clip", "global")) == 24 * 12 + 5
    assert {m for s, i, m in calls if (s, i) == ("projector", "crops")} == {
        "model.vision_tower",
        "model.multi_modal_projector",
    }
    # decoder: root, model, language_model, embedding, rotary, last norm, lm_head: 7
    # per layer itself, 2 norms, attention with 4 linears: 8; a dense MLP: 5
    # a mixture: itself, router, experts and their activation, shared experts and 4 children: 9
    assert sum(1 for s, *_ in calls if s == "prefill") == 7 + 12 * 8 + 5 + 11 * 9
    assert {c for (s, *_), c in calls.items() if s != "decode"} == {1}
    assert {c for (s, *_), c in calls.items() if s == "decode"} == {5}


def test_without_a_page_the_towers_hold_parameters_and_do_nothing() -> None:
    result = counted(PageStructure())
    towers = [n for n in result.nodes if n.stage in ("sam", "clip", "projector")]
    assert {n.invocation for n in towers} == {""}
    assert sum(n.costs.get("params") or 0 for n in towers) == 95_569_152 + 302_575_616 + 2_622_720
    (glue,) = (n for n in result.nodes if (n.stage, n.invocation, n.module) == ("prefill", "prompt", "model"))
    assert glue.costs == {"calls": 1}


def test_without_decode_steps_there_is_no_decode_invocation() -> None:
    assert {n.invocation for n in ocr_ledger(PageStructure(decode=False)).nodes if n.stage == "decode"} == {""}


def test_node_ids_are_unique() -> None:
    ids = [n.id for n in ocr_ledger(page(1024, 640)).nodes]
    assert len(ids) == len(set(ids))


def test_zeros_are_left_out_and_costs_are_empty() -> None:
    for node in ocr_ledger(page(1024, 640)).nodes:
        # An attention block holds nothing itself, but a checkpoint may store scales of its cache.
        assert node.exprs or (node.role.endswith("attention") and not node.invocation), node.id
        assert not node.costs
        assert "0" not in node.exprs.values(), node.id


def test_window_and_global_layers() -> None:
    result = counted(page(640), base=640)

    def scores(layer: int) -> int:
        module = f"model.vision_tower.sam_encoder.layers.{layer}.attn"
        value = result.total("flops", lambda n: n.module == module and n.kind == "attention")
        assert value is not None
        return value // (4 * 64)

    # 40 x 40 patches: 12 heads of 1600² scores, or 9 windows of 196²
    assert [scores(i) for i in range(12)] == [
        12 * 1600**2 if i in (2, 5, 8, 11) else 12 * 9 * 196**2 for i in range(12)
    ]


def test_every_owner_is_a_documented_layer() -> None:
    nodes = [n for n in ocr_ledger(page(1024, 640)).nodes if n.exprs]
    docs = formula_docs(nodes)
    assert set(docs) == {n.owner for n in nodes}
    for name, doc in docs.items():
        assert doc.title, name
        assert doc.source, name
        assert len(doc.derivation) > 60, name


def test_every_symbol_is_documented() -> None:
    symbols = {
        s.name for n in ocr_ledger(page(1024, 640)).nodes for e in n.exprs.values() for s in parse(e).free_symbols
    }
    assert symbols <= set(SYMBOLS)
    assert symbols >= {"B", "n", "H", "S", "P", "N", "b", "H_g", "H_c", "grid_w", "grid_h"}
    assert set(CONFIG) <= set(SYMBOLS)


def test_another_implementation_has_other_paths() -> None:
    names = {role: "vendor." + path for role, path in NATIVE_NAMES.items()}
    assert all(n.module.startswith("vendor.") for n in ocr_ledger(page(1024), names).nodes)


def test_an_implementation_must_name_every_part() -> None:
    names = {role: path for role, path in NATIVE_NAMES.items() if role != "text.norm"}
    with pytest.raises(BadInput, match="names no module for a role of the formulas") as caught:
        ocr_ledger(PageStructure(), names)
    assert caught.value.where == "text.norm"


def test_a_missing_value_is_an_error() -> None:
    with pytest.raises(BadInput, match="without a value"):
        evaluate_ledger(ocr_ledger(PageStructure(decode=False)), {("prefill", "prompt"): {"B": 1, "b": 2}}, CONFIG)


def test_every_node_says_its_role_in_words_of_no_implementation() -> None:
    roles = {n.module: n.role for n in ocr_ledger(page(1024, 640)).nodes}
    text = "model.language_model.layers"
    assert roles[f"{text}.0.mlp.gate_proj"] == "text.layer.mlp.gate"
    assert roles[f"{text}.7.mlp.gate"] == "text.layer.router"
    assert roles[f"{text}.7.mlp.experts"] == "text.layer.experts"
    assert roles[f"{text}.3.self_attn.q_proj"] == roles[f"{text}.0.self_attn.q_proj"] == "text.layer.attention.q"
    assert (roles[""], roles["lm_head"]) == ("root", "lm_head")
    assert roles["model.vision_tower.sam_encoder.neck.layer_norm1"] == "sam.neck.norm1"
    assert all(roles.values())
