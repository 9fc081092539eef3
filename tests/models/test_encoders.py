"""The families of encoders: three sources agree on small configurations of each, and planted errors are found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import costproof
from costproof.compare.compare import compare
from costproof.compare.proof.certificate import degrees
from costproof.ledger.errors import BadInput, CostproofError, Problems
from costproof.ledger.run import RunOptions
from costproof.models.encoding.target import EncoderTarget
from costproof.models.families.bert import Bert
from costproof.models.families.clip_vision import ClipVision
from costproof.models.families.dinov2 import Dinov2, Dinov2Config
from costproof.models.families.distilbert import DistilBert
from costproof.models.families.qwen3_vl_vision import Qwen3VlVision
from costproof.models.families.roberta import Roberta
from costproof.models.families.siglip_vision import SiglipVision, SiglipVisionConfig
from costproof.models.families.t5 import T5, T5Config
from costproof.models.families.vit import Vit, VitConfig
from costproof.models.families.xlm_roberta import XlmRoberta
from costproof.models.registry import load_target
from costproof.parametric.targets import evaluate_formulas
from costproof.run.proof_pieces import carry_out_piece
from costproof.tracers.dynamic import dynamic_ledger
from tests.models.test_families import SOURCES
from tests.oracles.mutations import run as planted
from tests.support.variants import with_variants

pytestmark = pytest.mark.usefixtures("one_process")

SIZES: Final = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
# 50 pixels are 6 patches of 8, and 2 pixels that no patch has.
IMAGE: Final = {**SIZES, "image_size": 50, "patch_size": 8}
WIDE: Final = {key: size for key, size in IMAGE.items() if key != "intermediate_size"}
TEXT: Final = {**SIZES, "vocab_size": 64, "max_position_embeddings": 40}
SHORT_KEYS: Final = {
    "dim": 32,
    "hidden_dim": 48,
    "n_layers": 2,
    "n_heads": 4,
    "vocab_size": 64,
    "max_position_embeddings": 40,
}
FILES: Final[dict[str, dict[str, Any]]] = {
    "vit": {"model_type": "vit", **IMAGE, "num_labels": 5},
    "clip-vision": {"model_type": "clip_vision_model", **IMAGE},
    "siglip-vision": {"model_type": "siglip_vision_model", **IMAGE},
    "dinov2": {"model_type": "dinov2", **WIDE, "mlp_ratio": 3},
    "bert": {
        "model_type": "bert", **TEXT, "type_vocab_size": 3, "architectures": ["BertForMaskedLM"],
    },
    # 40 rows of positions are 36 behind the padding id.
    "roberta": {"model_type": "roberta", **TEXT, "pad_token_id": 3, "architectures": ["RobertaForMaskedLM"]},
    "distilbert": {
        "model_type": "distilbert", **SHORT_KEYS, "architectures": ["DistilBertForMaskedLM"],
    },
}  # fmt: skip

ONE: Final = {"num_hidden_layers": 1}
"""Where errors are planted: each costs a comparison."""

# Family, its file beside that of FILES, and the run.
CASES: Final[dict[str, tuple[str, dict[str, Any], dict[str, Any]]]] = {
    "vit": ("vit", ONE, {"batch": 2}),
    "vit, larger image, eager": (
        "vit", {"qkv_bias": False, "hidden_act": "relu"}, {"image_size": 96, "attention": "eager", "dtype": "float32"},
    ),
    "vit with a pooler": ("vit", {"architectures": ["ViTModel"], "pooler_output_size": 7}, {"batch": 3}),
    "clip": ("clip-vision", {}, {"batch": 2}),
    "clip with its projection, larger image": (
        "clip-vision", {"architectures": ["CLIPVisionModelWithProjection"], "projection_dim": 7}, {"image_size": 65},
    ),
    "siglip-vision": ("siglip-vision", ONE, {"batch": 2}),
    "siglip without a head, smaller image, eager": (
        "siglip-vision", {"vision_use_head": False}, {"image_size": 33, "attention": "eager"},
    ),
    "dinov2, larger image": ("dinov2", {"qkv_bias": False, "use_mask_token": False}, {"image_size": 65}),
    "dinov2, gated, eager": ("dinov2", {"use_swiglu_ffn": True}, {"attention": "eager", "batch": 2}),
    "bert": ("bert", ONE, {"batch": 2, "seq_len": 19}),
    "bert with a pooler, eager": (
        "bert", {"architectures": ["BertModel"], "hidden_act": "relu"}, {"attention": "eager", "dtype": "float32"},
    ),
    "bert with classes": ("bert", {"architectures": ["BertForSequenceClassification"], "num_labels": 5}, {"batch": 3}),
    "roberta": ("roberta", ONE, {"batch": 2, "seq_len": 19}),
    "roberta with a pooler, eager": (
        "roberta", {"architectures": ["RobertaModel"], "hidden_act": "relu"},
        {"attention": "eager", "dtype": "float32"},
    ),
    "roberta with classes": (
        "roberta", {"architectures": ["RobertaForSequenceClassification"], "num_labels": 5}, {"batch": 3},
    ),
    # Its class makes the head before the encoder, so the table of words is the head's.
    "xlm-roberta": (
        "xlm-roberta", {**ONE, "model_type": "xlm-roberta", "architectures": ["XLMRobertaForMaskedLM"]}, {"batch": 2},
    ),
    "distilbert": ("distilbert", {"n_layers": 1}, {"batch": 2, "seq_len": 19}),
    "distilbert alone, eager": (
        "distilbert", {"architectures": ["DistilBertModel"], "activation": "relu"},
        {"attention": "eager", "dtype": "float32"},
    ),
    "distilbert with classes": (
        "distilbert", {"architectures": ["DistilBertForSequenceClassification"], "num_labels": 5}, {"batch": 3},
    ),
}  # fmt: skip
FAMILIES: Final[tuple[type[EncoderTarget[Any]], ...]] = (
    Vit,
    ClipVision,
    SiglipVision,
    Dinov2,
    Bert,
    Roberta,
    XlmRoberta,
    DistilBert,
)


TWO_STACKS: Final = {
    "model_type": "t5", "d_model": 32, "d_kv": 12, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 64,
}  # fmt: skip


def _written(folder: Path, name: str, **changes: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**FILES[name], **changes}), encoding="utf-8")
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", with_variants(CASES, FILES, "siglip without a head, smaller image, eager", "xlm-roberta")
)
def test_three_sources_agree(case: str, tmp_path: Path, *, thorough: bool) -> None:
    """All are run in :func:`test_a_run_with_numbers_counts_the_same`: where time is short, one of each kind is here."""
    name, more, run = CASES[case]
    sources = SOURCES if thorough or case in ("vit", "bert") else SOURCES[:2]
    file = _written(tmp_path, name.removeprefix("xlm-"), **more)
    capture = costproof.capture(name, config=file, sources=sources, **run)
    compared = compare(capture)
    wrong = [f for f in compared.findings if f.status != "exact"]
    assert (compared.verdict, wrong[:3]) == ("exact", [])
    assert {len(f.values) for f in compared.findings} == {len(sources)}
    if case in FILES:
        sample = 30 if case in ("vit", "bert") else 10
        outcomes = planted(name, capture, 1, None if thorough else sample)
        assert [(o.planted.operation, o.planted.what, o.said) for o in outcomes if not o.located] == []
        assert len(outcomes) >= sample


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_run_with_numbers_counts_the_same(name: str, tmp_path: Path, *, thorough: bool) -> None:
    """On meta too for a tower with a head and a text; :func:`test_three_sources_agree` has others."""
    one = {"n_layers": 1} if name == "distilbert" else ONE
    target = load_target(name, _written(tmp_path, name, **({} if thorough else one)))
    assert isinstance(target, EncoderTarget)
    workload = target.workload(batch=2)
    found = dynamic_ledger(target.with_options(RunOptions(device="cpu")), workload)
    ledgers = [found.ledger, evaluate_formulas(target, workload)]
    if thorough or name in ("siglip-vision", "roberta"):
        ledgers.append(dynamic_ledger(target, workload).ledger)
    assert found.trace_check.differences == ()
    for metric in ("flops", "vector_flops", "params", "input_bytes", "output_bytes"):
        assert len({ledger.total(metric) for ledger in ledgers}) == 1, metric


@pytest.mark.parametrize("name", FILES)
def test_the_flop_counter_counts_the_same(name: str, tmp_path: Path) -> None:
    target = load_target(name, _written(tmp_path, name))
    assert isinstance(target, EncoderTarget)
    workload = target.workload(batch=2, attention="eager")
    model = target.build(workload)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        for run in target.runs(model, workload):
            model(**run.kwargs)
    assert evaluate_formulas(target, workload).total("flops") == counter.get_total_flops()


def test_parameters_and_flops_of_vit_by_hand() -> None:
    # Patches 3 * 16 * 16 * 768 and a bias, class token, 197 positions; a layer: four projections, the MLP, two norms;
    # the last norm, the classifier.
    layer = 4 * (768 * 768 + 768) + 2 * 768 * 3072 + 3072 + 768 + 4 * 768
    assert 768 * 769 + 768 + 197 * 768 + 12 * layer + 2 * 768 + 769_000 == 86_567_656
    ledger = evaluate_formulas(Vit(), Vit().workload(batch=2))
    assert ledger.total("params") == 86_567_656
    # 2 FLOPs for every weight of a linear layer and token, 4 * 768 for every pair of tokens.
    tokens = 12 * (197 * 2 * (4 * 768 * 768 + 2 * 768 * 3072) + 197 * 197 * 4 * 768)
    assert ledger.total("flops") == 2 * (2 * 196 * 768 * 768 + tokens + 2 * 768 * 1000)


def test_parameters_of_the_towers_by_hand() -> None:
    def layer(width: int, inner: int) -> int:
        return 4 * (width * width + width) + 2 * width * inner + inner + width + 4 * width

    clip, siglip, dino = (load_target(name) for name in ("clip-l-336", "siglip-so400m", "dinov2-l"))
    # Patches of 14 without a bias, class token, 24 x 24 positions and the class's, two norms.
    assert analytic(clip) == 588 * 1024 + 1024 + 577 * 1024 + 24 * layer(1024, 4096) + 4 * 1024
    # 384 pixels are 27 patches of 14. Behind the last norm a probe, four projections, a norm and an MLP.
    pooling = 1152 + layer(1152, 4304) - 2 * 1152
    assert analytic(siglip) == 589 * 1152 + 729 * 1152 + 27 * layer(1152, 4304) + 2 * 1152 + pooling
    # 518 pixels are 37 patches; class and mask token, two scales in every layer.
    scaled = 24 * (layer(1024, 4096) + 2 * 1024)
    assert analytic(dino) == 589 * 1024 + 2 * 1024 + 1370 * 1024 + scaled + 2 * 1024


def analytic(target: object) -> int | None:
    """Parameters of a model, by the formulas."""
    assert isinstance(target, EncoderTarget)
    return evaluate_formulas(target, target.workload()).total("params")


def test_pooling_by_attention_by_hand() -> None:
    # One layer, 16 patches of 3 images, width 32, 4 heads of 8.
    target = SiglipVision(SiglipVisionConfig(32, 48, 1, 4, image=32, patch=8))
    ledger = evaluate_formulas(target, target.workload(batch=3))
    found = {n.kind: n.cost("flops") or n.cost("vector_flops") for n in ledger.nodes if n.module == "head.attention"}
    products = 2 * 3 * 32 * 32 * (1 + 16 + 16 + 1)  # the query, 16 keys and values, the result
    assert (found["linear"], found["attention"]) == (products, 3 * 4 * (2 + 2) * 16 * 8)
    assert (found["softmax"], found["mean"], found["elementwise"]) == (5 * 3 * 4 * 16, 3 * 4 * 16, 3 * 32)


def test_the_inner_width_of_dinov2() -> None:
    # Two thirds of 1536 * 4, rounded up to a multiple of 8.
    assert [Dinov2Config(hidden=1536, heads=24, gated=g).intermediate for g in (False, True)] == [6144, 4096]
    assert Dinov2Config(hidden=32, heads=4, mlp_ratio=3, gated=True).intermediate == 64


def test_an_image_of_another_size_by_hand() -> None:
    target = Vit(VitConfig(hidden=32, intermediate=48, layers=1, heads=4, image=50, patch=8))
    (call,) = target.invocations(target.workload(image_size=101))
    assert (call.symbols["H"], call.symbols["G"], call.inputs[0].shape) == (101, 12, (1, 3, 101, 101))
    ledger = evaluate_formulas(target, target.workload(image_size=101))
    # The bicubic resampling of 12 x 12 positions takes 31 operations an element; the table has 6 x 6 and the class.
    assert sum(n.cost("vector_flops") or 0 for n in ledger.nodes if n.kind == "resample") == 31 * 144 * 32
    assert target.workload(image_size=50) == target.workload()


@pytest.mark.parametrize("family", FAMILIES, ids=lambda t: t.__name__)
def test_draws_are_configurations_that_the_classes_take(family: type[EncoderTarget[Any]]) -> None:
    made = family.default().proof(20, 3)
    drawn = [piece for piece in made.pieces if piece.sizes]
    assert len(drawn) == 20
    for piece in drawn:
        target = piece.target
        assert isinstance(target, family)
        assert target.config.contradictions() == []
        assert target.problems(piece.workload) == []
        assert family.from_normalised(target.normalised()).config == target.config
        symbols = {**target.info().symbols, **target.invocations(piece.workload)[0].symbols}
        assert symbols.keys() <= target.symbol_docs().keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", with_variants(FILES, ("bert", "siglip-vision")))
def test_a_proof_of_a_small_model_holds(name: str, tmp_path: Path) -> None:
    target = load_target(name, _written(tmp_path, name))
    assert isinstance(target, EncoderTarget)
    first, *_, draw = target.proof(1, 5).pieces
    for piece in (first, draw):
        found = carry_out_piece(piece)
        assert found.counterexamples == ()
        assert sum(found.rows.values()) > 50


@pytest.mark.parametrize("family", [*FAMILIES, T5, Qwen3VlVision], ids=lambda t: t.__name__)
def test_draws_catch_a_mistake_in_every_size(family: Any) -> None:
    made = family.default().proof(8, 1)
    ledgers = [evaluate_formulas(p.target, p.workload) for p in made.pieces if p.sizes]
    formulas = {e for ledger in ledgers for n in ledger.nodes for e in n.exprs.values()}
    for name, degree in degrees(sorted(formulas), made.independent).items():
        assert name in {*made.ranges, "N"}, name
        assert name == "N" or degree < made.ranges[name], name


def test_what_a_proof_shows_of_images_it_claims_size_by_size() -> None:
    made = Vit(VitConfig(32, 48, 1, 4, image=32, patch=8)).proof(0, 1)
    assert (made.sizes, made.sized) == ((32, 40), ("forward",))
    assert Bert().proof(0, 1).sized == ()


def wrong(name: str, **changes: Any) -> list[str]:
    """Where a configuration is wrong."""
    problems: list[CostproofError] = []
    target = load_target(name)
    assert isinstance(target, EncoderTarget)
    given = {k: v for k, v in {**FILES[name], **changes}.items() if v != "absent"}
    type(target.config).read(given, problems)
    return [str(p.where) for p in problems if isinstance(p, BadInput)]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"model_type": "mamba"}, "$.model_type"),
        ({"hidden_sise": 4}, "$.hidden_sise"),
        ({"hidden_act": "mish"}, "$.hidden_act"),
        ({"num_attention_heads": 5}, "$.num_attention_heads"),
        ({"num_hidden_layers": 0}, "$.num_hidden_layers"),
        ({"architectures": ["OtherModel"]}, "$.architectures"),
    ],
)
def test_a_file_that_lies(name: str, changes: dict[str, Any], where: str) -> None:
    assert where in wrong(name, **changes)
    assert wrong(name) == []


@pytest.mark.parametrize(("changes", "where"), [({"image_size": 7}, "$.image_size"), ({"qkv_bias": 1}, "$.qkv_bias")])
def test_a_vit_that_lies(changes: dict[str, Any], where: str) -> None:
    assert wrong("vit", **changes) == [where]


@pytest.mark.parametrize(
    ("changes", "where"), [({"is_decoder": True}, "$.is_decoder"), ({"vocab_size": None}, "$.vocab_size")]
)
def test_a_bert_that_lies(changes: dict[str, Any], where: str) -> None:
    assert wrong("bert", **changes) == [where]


@pytest.mark.parametrize(("padding", "where"), [(-1, ["$.pad_token_id"]), (39, ["$.pad_token_id"]), (38, [])])
def test_a_padding_id_of_roberta(padding: int, where: list[str]) -> None:
    assert wrong("roberta", pad_token_id=padding) == where


@pytest.mark.parametrize(
    ("name", "changes", "where"),
    [
        ("distilbert", {"tie_word_embeddings": False}, "$.tie_word_embeddings"),
        ("distilbert", {"hidden_size": 4}, "$.hidden_size"),
        ("roberta", {"type_vocab_size": 0}, "$.type_vocab_size"),
    ],
)
def test_an_encoder_of_text_that_lies(name: str, changes: dict[str, Any], where: str) -> None:
    assert wrong(name, **changes) == [where]


def test_what_a_file_of_vit_says() -> None:
    problems: list[CostproofError] = []
    file = {"model_type": "vit", "image_size": [384, 384], "id2label": {"0": "a", "1": "b", "2": "c"}}
    config = VitConfig.read(file, problems)
    assert (problems, config.image, config.labels, config.hidden) == ([], 384, 3, 768)
    assert VitConfig.read({"model_type": "vit", "architectures": ["ViTModel"]}, problems).pooled == 768
    assert wrong("vit", image_size=[384, 224]) == ["$.image_size"]


@pytest.mark.parametrize("name", ["vit", "bert", "distilbert", "roberta"])
def test_how_many_classes_a_file_names(name: str) -> None:
    from transformers import AutoConfig  # slow to load

    target = load_target(name)
    assert isinstance(target, EncoderTarget)
    family = type(target.config)
    classifier = {"architectures": [next(a for a, classifies in family.architectures.items() if classifies)]}
    problems: list[CostproofError] = []
    cases: list[tuple[dict[str, Any], int]] = [
        ({}, 2), ({"id2label": None}, 2), ({"id2label": {"0": "a"}}, 1), ({"num_labels": 3}, 3),
        ({"id2label": {"0": "a"}, "num_labels": 3}, 3), ({"id2label": {}, "num_labels": 5}, 5),
    ]  # fmt: skip
    for keys, expected in cases:
        # As transformers reads the same keys.
        assert AutoConfig.for_model(name, **keys).num_labels == expected
        assert family.read({"model_type": name, **classifier, **keys}, problems).labels == expected
    assert problems == []
    # Transformers leaves the classifier out, or makes one without columns.
    assert wrong(name, **classifier, id2label={}, num_labels="absent") == ["$.id2label"]
    bare = {"architectures": [next(a for a, classifies in family.architectures.items() if not classifies)]}
    assert wrong(name, **bare, id2label={}, num_labels="absent") == []


def test_a_class_that_no_formulas_describe_has_no_family(tmp_path: Path) -> None:
    named = ("ViTModel", "ViTForMaskedImageModeling")
    found = [load_target(f"hf:{_written(tmp_path, 'vit', architectures=[name])}") for name in named]
    assert [isinstance(target, Vit) for target in found] == [True, False]


@pytest.mark.parametrize("named", [[{"a": 1}], {"a": 1}, [[]], 5, "VitModel"])
def test_a_class_of_another_type_is_refused(named: Any) -> None:
    problems: list[CostproofError] = []
    VitConfig.read({"model_type": "vit", "architectures": named}, problems)
    assert [p.where for p in problems if isinstance(p, BadInput)] == ["$.architectures"]


@pytest.mark.parametrize(
    ("given", "where"), [({"batch": 0}, "--batch"), ({"image_size": 3}, "--image-size"), ({"seq_len": 3}, "--seq-len")]
)
def test_a_run_that_vit_cannot_make(given: dict[str, Any], where: str) -> None:
    with pytest.raises(Problems, match="cannot be run") as caught:
        Vit().workload(**given)
    assert [p.where for p in caught.value.problems if isinstance(p, BadInput)] == [where]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "run"),
    [
        pytest.param(
            {"num_decoder_layers": 1}, {"batch": 2, "seq_len": 11, "new_tokens": 3}, marks=pytest.mark.thorough
        ),
        (
            {"num_layers": 1, "num_decoder_layers": 2, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
            {"seq_len": 9, "new_tokens": 1, "dtype": "float32"},
        ),
    ],
    ids=["as published", "gated, not scaled"],
)
def test_three_sources_agree_on_t5(changes: dict[str, Any], run: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**TWO_STACKS, **changes}), encoding="utf-8")
    capture = costproof.capture("t5", config=file, **run)
    compared = compare(capture)
    wrong = [f for f in compared.findings if f.status != "exact"]
    assert (compared.verdict, wrong[:3]) == ("exact", [])
    assert {len(f.values) for f in compared.findings} == {3}
    assert isinstance(load_target(f"hf:{file}"), T5)


def test_parameters_and_flops_of_t5_by_hand() -> None:
    # One table of 32128 words; in every layer the attentions' 4 * 512 * 512, the MLP, norms without a shift; in
    # both stacks a last norm, and in each first layer 32 buckets for 8 heads.
    attention, mlp = 4 * 512 * 512, 2 * 512 * 2048
    layers = 6 * (attention + mlp + 2 * 512) + 6 * (2 * attention + mlp + 3 * 512)
    assert 32128 * 512 + layers + 2 * (512 + 32 * 8) == 60_506_624
    target = T5()
    workload = target.workload(seq_len=10, new_tokens=3)
    ledger = evaluate_formulas(target, workload)
    assert ledger.total("params") == 60_506_624
    tokens = 6 * 10 * 2 * (attention + mlp)
    assert ledger.stage_total("encode", "flops") == tokens + 6 * 10 * 10 * 4 * 512
    # One token, and the keys and values of 10; then three steps that see 2, 3 and 4 tokens of their own.
    one = 6 * 2 * (attention + attention // 2 + mlp) + 2 * 512 * 32128
    memory = 6 * 10 * 2 * attention // 2
    assert ledger.stage_total("prefill", "flops") == one + memory + 6 * 4 * 512 * (1 + 10)
    assert ledger.stage_total("decode", "flops") == 3 * one + 6 * 4 * 512 * (2 + 3 + 4 + 3 * 10)


@pytest.mark.thorough
def test_a_proof_of_t5_holds(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(TWO_STACKS), encoding="utf-8")
    for piece in T5.from_file(file).proof(1, 5).pieces[::2]:
        assert carry_out_piece(piece).counterexamples == ()


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"feed_forward_proj": "gated-mish"}, "$.feed_forward_proj"),
        ({"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu"}, "$.dense_act_fn"),
        ({"is_gated_act": True}, "$.is_gated_act"),
        ({"architectures": ["T5EncoderModel"]}, "$.architectures"),
        ({"relative_attention_num_buckets": 3}, "$.relative_attention_num_buckets"),
        ({"d_modle": 3}, "$.d_modle"),
        ({"is_encoder_decoder": False}, "$.is_encoder_decoder"),
    ],
)
def test_a_t5_that_lies(changes: dict[str, Any], where: str) -> None:
    problems: list[CostproofError] = []
    T5Config.read({**TWO_STACKS, **changes}, problems)
    assert [str(p.where) for p in problems if isinstance(p, BadInput)] == [where]


@pytest.mark.parametrize("given", [{"new_tokens": -1}, {"seq_len": 0}, {"dtype": "float16"}, {"attention": "eager"}])
def test_a_run_that_t5_cannot_make(given: dict[str, Any]) -> None:
    with pytest.raises(Problems, match="cannot be run"):
        T5().workload(**given)
