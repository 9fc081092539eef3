"""The live peak by formula equals that of the exported graph, to the byte, at the sizes of the run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from costproof.analytic.compose import ModulePart, StackCall
from costproof.analytic.embedding import Embedding
from costproof.analytic.layer_memory import CopyBranches, LayerTape
from costproof.ledger.workload import FLOAT_BYTES, AttentionKind, Workload
from costproof.models.families.deepseek_ocr.target import DeepseekOcr
from costproof.models.families.deepseek_ocr2.target import DeepseekOcr2
from costproof.models.families.qwen2_5_vl import Qwen25Vl, Qwen25VlConfig, Qwen25VlTextConfig, Qwen25VlVisionConfig
from costproof.models.families.qwen3_vl_vision import Qwen3VlVision, Qwen3VlVisionConfig
from costproof.models.families.t5 import T5, T5Config
from costproof.models.pages.page import views
from costproof.models.proof import Piece, Provable, WithProof
from costproof.models.registry import load_target
from costproof.models.specs import ExportJob
from costproof.models.target import Exportable, WithMemory
from costproof.parametric.targets import live_peaks
from costproof.run.fits import fits
from costproof.run.operands import target_with_settings
from costproof.tracers.exporting import with_sizes
from costproof.tracers.peaks.calls import calls, graph_timeline, released_peaks
from tests.models.test_flash_attention import needs_flash
from tests.tracers.realistic import small_ocr
from tests.tracers.small import PAGE

SMALL = "layers=2,hidden=32,intermediate=48,heads=4,kv_heads=2,head_dim=12,vocab=64,max_positions=4096"
LATENT = (
    "layers=2,hidden=32,heads=4,vocab=64,kv_rank=8,expert_width=8,intermediate=16,config.experts=4,top_k=2,rope=4,nope=4,"
    "dense_layers=1"
)
TEXT = "layers=2,hidden=32,intermediate=48,heads=4,vocab=64"
IMAGE = "layers=2,hidden=32,intermediate=48,heads=4,image=16,patch=8,batch=2"
RUNS = {
    "llama": f"llama@chat,batch=2,text_tokens=24,new_tokens=2,{SMALL}",
    "llama, eager": f"llama@chat,batch=2,text_tokens=24,new_tokens=2,attention=eager,{SMALL}",
    "llama, one sequence": f"llama@chat,text_tokens=24,new_tokens=2,attention=eager,{SMALL}",
    "llama, float32": f"llama@chat,batch=2,text_tokens=24,dtype=float32,logits=last,attention_bias=true,{SMALL}",
    "llama, narrow MLP": f"llama@chat,batch=3,text_tokens=7,new_tokens=2,{SMALL.replace('=48', '=8')}",
    "qwen3": f"qwen3@chat,batch=2,text_tokens=24,new_tokens=2,{SMALL}",
    "mistral, window": f"mistral@chat,batch=2,text_tokens=24,new_tokens=2,window=16,{SMALL}",
    "mistral, eager": f"mistral@chat,batch=2,text_tokens=24,new_tokens=2,window=16,attention=eager,{SMALL}",
    "gemma": f"gemma@chat,batch=2,text_tokens=24,new_tokens=2,{SMALL}",
    "gemma2": f"gemma2@chat,batch=2,text_tokens=24,new_tokens=2,attention=eager,{SMALL}",
    "gemma3": f"gemma3@chat,batch=2,text_tokens=24,new_tokens=2,window=16,{SMALL.replace('layers=2', 'layers=6')}",
    "gpt2": "gpt2@chat,batch=2,text_tokens=24,new_tokens=2,layers=2,hidden=32,heads=4,vocab=64",
    "gpt-oss": f"gpt-oss@chat,batch=2,text_tokens=24,new_tokens=2,{SMALL},config.experts=4,top_k=2",
    "mixtral": f"mixtral@chat,batch=2,text_tokens=24,new_tokens=2,{SMALL},config.experts=4,top_k=2",
    "qwen3-moe": f"qwen3-moe@chat,batch=2,text_tokens=24,{SMALL},config.experts=4,top_k=2,expert_width=16",
    "qwen3-moe, batched": f"qwen3-moe@chat,batch=2,text_tokens=24,experts=batched_mm,{SMALL},config.experts=4,top_k=2",
    "deepseek-v3": f"deepseek-v3@chat,batch=2,text_tokens=24,{LATENT},value=8,q_rank=8,groups=2,best_groups=1",
    "deepseek-v3, unfused": f"deepseek-v3@chat,batch=2,text_tokens=24,{LATENT},value=6,q_rank=8,groups=2,best_groups=1",
    "deepseek-v3, eager": (
        f"deepseek-v3@chat,batch=2,text_tokens=24,attention=eager,{LATENT},value=6,groups=2,best_groups=1"
    ),
    "deepseek-v2, absorbed, eager": (
        f"deepseek-v2-lite@chat,batch=2,text_tokens=24,decoding=absorbed,attention=eager,{LATENT},value=8"
    ),
    "deepseek-v2, absorbed": f"deepseek-v2-lite@chat,batch=2,text_tokens=24,decoding=absorbed,{LATENT},value=8",
    "bert": f"bert@text,batch=2,seq_len=5,{TEXT}",
    "bert, eager": f"bert@text,batch=2,seq_len=5,attention=eager,{TEXT}",
    "bert, one token": f"bert@text,batch=3,seq_len=1,attention=eager,{TEXT}",
    "roberta, one text": f"roberta@text,seq_len=7,attention=eager,{TEXT}",
    "distilbert, float32": f"distilbert@text,batch=2,seq_len=5,dtype=float32,attention=eager,{TEXT}",
    "vit": f"vit@image,image_size=27,{IMAGE}",
    "vit, eager": f"vit@image,attention=eager,{IMAGE}",
    "clip-vision": f"clip-vision@image,image_size=27,{IMAGE}",
    "dinov2, gated": f"dinov2@image,image_size=27,gated=true,mlp_ratio=2,{IMAGE.replace('intermediate=48,', '')}",
    "siglip-vision": f"siglip-vision@image,{IMAGE}",
    "siglip-vision, one image": f"siglip-vision@image,{IMAGE.replace('batch=2', 'batch=1')}",
}
TEXTS = "text.hidden=32,text.intermediate=48,text.layers=2,text.heads=4,text.kv_heads=2,text.head_dim=8,text.vocab=64"
RUNS |= {
    "one key/value head": (
        f"gemma@chat,batch=2,text_tokens=24,new_tokens=2,attention=eager,{SMALL.replace('kv_heads=2', 'kv_heads=1')}"
    ),
    "llava": (
        "llava@question,batch=2,image_token=3,vision.hidden=24,vision.intermediate=40,vision.layers=2,vision.heads=4,"
        f"vision.image=28,vision.patch=14,{TEXTS}"
    ),
}
IMPLIED = {"qwen3-moe", "t5, one text"}
"""Its other kernel of experts, and Mixtral with this one; long texts, and other texts of one token."""
QUICK = {"llama", "llama, eager", "mistral, window", "gpt-oss", "bert, eager", "dinov2, gated", "siglip-vision"}
QUICK |= {"t5, one head", "t5, long text"}
STACKS = "hidden=32,head_dim=6,intermediate=48,layers=2,decoder_layers=3,vocab=64,buckets=8,new_tokens=3"
RUNS |= {
    "t5, one text": f"t5@sentence,seq_len=7,dtype=float32,heads=3,{STACKS}",
    "t5, long text": f"t5@sentence,seq_len=50,heads=4,{STACKS.replace('=48', '=2000')}",
    "t5, one token": f"t5@sentence,batch=3,seq_len=1,heads=2,{STACKS}",
    "t5, one head": f"t5@sentence,batch=2,seq_len=5,heads=1,{STACKS}000",
}


def marked(run: str) -> Any:
    mark = pytest.mark.thorough if run in IMPLIED else pytest.mark.slow
    return pytest.param(run, marks=() if run in QUICK else mark)


@pytest.mark.parametrize("run", [marked(name) for name in RUNS])
def test_a_live_peak_is_that_of_the_graph(run: str) -> None:
    target, work = target_with_settings(RUNS[run])
    assert isinstance(target, WithMemory)
    assert isinstance(target, Exportable)
    tapes, config = target.memory(work), target.info().symbols
    sizes = {(c.stage, c.id): {**config, **c.symbols} for c in target.invocations(work)}
    for invocation, job in calls(target, work):
        values = sizes[job.stage, invocation]
        last = {**values, "P": values["P"] + values["N"] - 1} if "P" in values else values
        assert tapes[job.stage, invocation, job.id].peak_bytes(last) == held(job)


def held(job: ExportJob) -> int:
    """The graph peak of a job at its own sizes."""
    return max(graph_timeline(job, {}).held())


def peak(run: str) -> int:
    """The live peak by formula of a run with one call, whose inputs are held."""
    target, work = target_with_settings(run)
    assert isinstance(target, WithMemory)
    (found,) = live_peaks(target, work).values()
    return found


def test_the_live_peak_of_a_text_encoder_is_that_by_hand() -> None:
    """10 tokens of 32 elements and 2 bytes: hidden states x take 640 bytes; so do q, k, v. Ids take 80.

    Fused: x, q, k, v and the result, and its 4 x 10 log-sums in float32. Eager: x, q, k, v, copies of q and k by head,
    and 2 x 4 x 5 x 5 scores. With an inner width of 480, x, and the MLP before and after its activation.
    """
    assert peak(RUNS["bert"]) == 80 + 5 * 640 + 4 * 10 * 4
    assert peak(RUNS["bert, eager"]) == 80 + 6 * 640 + 2 * 4 * 5 * 5 * 2
    assert peak(RUNS["bert, eager"].replace("=48", "=480")) == 80 + 640 + 2 * 10 * 480 * 2


def test_the_live_peak_of_an_image_encoder_is_that_by_hand() -> None:
    """2 images of 3 x 16 x 16 elements are held; 2 x 4 tokens of 32 elements take 512 bytes.

    With one head the pooling decides: tokens, the query, and keys with values before and after their bias (2 x 1,024).
    A layer has x, q, k, v and the result, and 8 log-sums. Dinov2 has 2 x 5 tokens: x, and twice the MLP of 64.
    """
    images = 2 * 3 * 16 * 16 * 2
    assert peak(f"siglip-vision@image,{IMAGE.replace('heads=4', 'heads=1')}") == images + 512 + 128 + 2 * 1024
    assert 512 + 128 + 2 * 1024 > 5 * 512 + 8 * 4
    wide = IMAGE.replace("intermediate=48,", "")
    assert peak(f"dinov2@image,mlp_ratio=20,{wide}") == images + 640 + 2 * 10 * 640 * 2


def test_the_live_peak_of_a_projector_is_that_by_hand() -> None:
    """2 images of 4 tokens: 24 elements each come in, 32 before and after the activation."""
    target, work = target_with_settings(RUNS["llava"])
    assert isinstance(target, WithMemory)
    assert live_peaks(target, work)["projector", "images", "projector"] == 8 * (24 + 2 * 32) * 2


def page_peaks(target: DeepseekOcr | DeepseekOcr2, work: Workload, parts: str = "") -> dict[tuple[str, str], int]:
    """(part, invocation) -> the live peak by formula of every part, after comparing it with that of its graph.

    Args:
        parts: begin of the names of those that are compared.
    """
    found = {(part, call): n for (_, call, part), n in live_peaks(target, work).items()}
    compared = [(invocation, job) for invocation, job in calls(target, work) if job.id.startswith(parts)]
    assert compared
    for invocation, job in compared:
        assert found[job.id, invocation] == held(job), (job.id, invocation)
    return found


@pytest.mark.parametrize(
    ("batch", "attention"),
    [
        (2, "sdpa"), (1, "eager"),
        pytest.param(1, "sdpa", marks=pytest.mark.thorough), pytest.param(2, "eager", marks=pytest.mark.thorough),
    ],
)  # fmt: skip
def test_the_live_peak_of_a_page_model_is_that_by_hand(batch: int, attention: AttentionKind) -> None:
    """A wide MLP decides that of SAM: pixels, hidden states, and the MLP before and after its activation."""
    target = small_ocr()
    target = replace(target, config=replace(target.config, sam=replace(target.config.sam, mlp=10**5)))
    sam = target.config.sam
    work = replace(PAGE, attention=attention, batch=batch, new_tokens=2)
    side = views(work)[0][2]
    grid = (side // sam.patch) ** 2
    whole = 3 * side**2 + grid * sam.hidden + 2 * grid * 10**5
    narrow = replace(small_ocr(), config=replace(target.config, sam=replace(sam, mlp=1)))
    page_peaks(narrow, work)  # attention decides
    wide = page_peaks(target, work, "sam")  # the other parts are those of above
    assert wide[f"sam@{side}", "global"] == batch * whole * FLOAT_BYTES[work.dtype]


def test_the_live_peak_of_an_encoder_of_queries_is_that_by_hand() -> None:
    """A wide gated MLP decides: features, hidden states, the boolean mask, cosines and sines, and three products."""
    piece = next(p for p in load_pieces("deepseek-ocr2") if p.workload.attention == "sdpa" and p.workload.inputs)
    drawn = piece.target
    assert isinstance(drawn, DeepseekOcr2)
    inner = 10**5
    encoder = replace(drawn.config.encoder, layers=2, intermediate=inner)
    target = replace(drawn, config=replace(drawn.config, encoder=encoder))
    (call, count, side), *_ = views(piece.workload)
    tokens = (side // target.config.sam.stride) ** 2
    width, item = encoder.hidden, FLOAT_BYTES[piece.workload.dtype]
    both = tokens + (144 if tokens <= 144 else 256)
    elements = count * (tokens * width + both * width + 3 * both * inner) + 2 * both * encoder.head_dim
    found = page_peaks(target, piece.workload)
    assert found[f"encoder@{side}", call] == elements * item + count * both**2


def test_the_live_peak_of_a_tower_with_windows_is_that_by_hand() -> None:
    """64 patches of 24 elements: positions and order of tokens, float32 cosines and sines of 8, hidden states of 32.

    A gated MLP of 4,000 decides, with its three products.
    """
    vision = Qwen25VlVisionConfig(
        32, 4000, 2, 4, out=32, patch=2, frames=2, merge=2, channels=3, window=8, whole=(1,)
    )  # fmt: skip
    text = Qwen25VlTextConfig(32, 48, 2, 4, 2, 8, 64, max_positions=4096, sections=(1, 1, 2))
    target = Qwen25Vl(Qwen25VlConfig(vision, text, 3))
    work = target.workload("question", images=1, image_size=16, text_tokens=5, new_tokens=1)
    inputs = 64 * 24 * 2 + 64 * 2 * 8 + 16 * 8
    peaks = live_peaks(target, work)
    assert peaks["vision", "images", "vision"] == inputs + 2 * 64 * 8 * 4 + 64 * 32 * 2 + 3 * 64 * 4000 * 2
    for invocation, job in calls(target, work):
        assert peaks[job.stage, invocation, job.id] == held(job)


@pytest.mark.parametrize("setting", [{}, {"attention": "eager", "dtype": "float32"}])
def test_the_live_peak_of_a_tower_with_several_mergers_is_that_by_hand(setting: dict[str, str]) -> None:
    """16 patches of 96 elements: 4 table rows, 4 float32 weights and 2 coordinates each.

    In the fourth of five layers, an MLP of 4,000 decides: float32 cosines and sines of 8, three results of 4 tokens of
    200, hidden states of 32, and the MLP before and after its activation.
    """
    config = Qwen3VlVisionConfig(32, 4000, 5, 4, out=200, patch=4, table=16, deep=(0, 1, 2))
    target = Qwen3VlVision(config)
    work = target.workload("image", image_size=16, **setting)
    item = FLOAT_BYTES[work.dtype]
    inputs = 16 * (96 * item + 4 * 8 + 4 * 4 + 2 * 8)
    elements = 3 * 4 * 200 + 16 * 32 + 2 * 16 * 4000
    (peak,) = live_peaks(target, work).values()
    assert peak == inputs + 2 * 16 * 8 * 4 + elements * item
    ((_, job),) = calls(target, work)
    assert peak == held(job)


def test_the_live_peak_of_a_merger_is_that_by_hand() -> None:
    """4 tokens of 4,000 decide, with the 128 elements that each comes from, and the patches, which are returned too."""
    target = Qwen3VlVision(Qwen3VlVisionConfig(32, 4, 1, 4, out=4000, patch=4, table=16, deep=()))
    work = target.workload("image", image_size=16)
    (peak,) = live_peaks(target, work).values()
    assert peak == 16 * (96 * 2 + 4 * 8 + 4 * 4 + 2 * 8) + (16 * 32 + 4 * 128 + 4 * 4000) * 2
    ((_, job),) = calls(target, work)
    assert peak == held(job)


def test_the_live_peak_of_distances_is_that_by_hand() -> None:
    """One head of 2, a layer of width 4, 50 tokens; 300 steps. For each pair five int64 and a boolean, four in a step.

    In the encoder with ids, hidden states, queries, keys and values; in a step with what it is given (states, an id,
    both caches), the cache of 301 tokens, a query and hidden states.
    """
    target = T5(T5Config(4, 2, 5, 1, 1, 1, 7, 8))
    work = target.workload("sentence", batch=1, seq_len=50, new_tokens=300)
    found = live_peaks(target, work)
    assert found["encode", "input", "encode"] == 50 * (8 + 4 * 2 + 3 * 2 * 2) + 50 * 50 * (5 * 8 + 1)
    given = 50 * 4 * 2 + 8 + (300 + 50) * 2 * 2 * 2
    assert found["decode", "steps", "step"] == given + 301 * 2 * 2 * 2 + (2 + 4) * 2 + 301 * (4 * 8 + 1)
    assert found == {(job.stage, call, job.id): held(job) for call, job in calls(target, work)}


def test_the_live_peak_of_two_stacks_is_that_by_hand() -> None:
    """2 texts of 5 tokens of 32 elements (640 bytes), 4 heads of 6; of 2 layers each.

    An MLP of 4,000 decides in the encoder: 10 ids, biases of 4 x 5 x 5, hidden states, and the MLP before and after its
    activation. Logits decide in the decoder. A layer caches 2 x 24 elements a token: 1 and 5 per text at first; 3 and
    then 4, and 5 in the last of 3 steps. In a run a call releases ids, and a step its own shorter caches.
    """
    target = T5(T5Config(32, 6, 4000, 2, 2, 4, 20_000, 8))
    work = target.workload("sentence", batch=2, seq_len=5, new_tokens=3)
    token, logits = 2 * 2 * 2 * 24 * 2, 2 * 32 * 2 + 2 * 20_000 * 2
    encode = 80 + 4 * 5 * 5 * 2 + 640 + 2 * 10 * 4000 * 2
    prefill = 640 + 16 + (1 + 5) * token + logits
    found = live_peaks(target, work)
    assert list(found.values()) == [encode, prefill, 640 + 16 + (3 + 4 + 5) * token + logits]
    assert found == {(job.stage, call, job.id): held(job) for call, job in calls(target, work)}
    run = {stage: peak for (stage, _, _), peak in live_peaks(target, work, inputs_held=False).items()}
    assert run == {"encode": encode - 80, "prefill": prefill - 16, "decode": 640 + (4 + 5) * token + logits}
    assert run == released_peaks(target, work)


def load_pieces(family: str) -> list[Piece[Provable]]:
    """The random draws of a proof about a family that have a formula."""
    target = load_target(family)
    assert isinstance(target, WithProof)
    draws = (p for p in target.proof(6, 11).pieces if p.phase == "draws")
    return [p for p in draws if p.workload.experts != "eager"]


def test_an_encoder_fits_by_the_formula_of_its_live_peak() -> None:
    """As by hand above, with ids that are released; a batch of 3 has 1.5 times as much, and no torch is needed."""
    held = 5 * 640 + 4 * 10 * 4
    found = fits(RUNS["bert"], memory="1MB")
    assert (found.live_bytes, found.live_source, found.verdict) == (held, "formula", "fits")
    assert found.lasting_bytes is not None
    tight = fits(RUNS["bert"], memory=found.lasting_bytes + held)
    (batch, _) = tight.limits
    assert (batch.setting, batch.held, batch.at) == ("batch", "weights and live peak", 3)
    assert [point.bytes - found.lasting_bytes for point in batch.points] == [held, held * 3 // 2]


def test_a_layer_whose_memory_is_not_recorded_is_an_error() -> None:
    tape = LayerTape(StackCall(2, 3, 2), CopyBranches(False, False, False, False, False))
    with pytest.raises(TypeError, match="Embedding"):
        tape.sequence([ModulePart("x", (Embedding(2, 3, 4, 2),))], tape.tape.give(8))


def with_four_heads(hidden: int) -> DeepseekOcr:
    """A small model whose decoder has 4 heads."""
    target = small_ocr()
    text = replace(target.config.text, hidden=hidden, heads=4, kv_heads=4)
    return replace(target, config=replace(target.config, text=text))


@pytest.mark.parametrize("hidden", [48, 64])
def test_the_live_peak_of_flash_attention_is_that_by_hand(hidden: int) -> None:
    """A step of 4 heads of 12 behind a prompt of 17; a token is 96 bytes, and 128 with heads padded to 16 elements.

    The peak is where values are padded: an id, the caches of two layers as given, the new tokens of both, hidden states
    and padded queries, and in the last layer joined values beside padded keys and padded values. With heads of 16, keys
    and values are joined, then the result, 4 log-sums in float32 and two int64 are made.
    """
    work = replace(PAGE, attention="flash_attention_2", dtype="bfloat16", new_tokens=1)
    token, given = 2 * hidden, 8 + 4 * 17 * 2 * hidden + 4 * 2 * hidden
    peak = {48: 96 + 128 + 18 * (96 + 2 * 128), 64: 2 * token + 18 * 2 * token + token + 4 * 4 + 16}
    assert live_peaks(with_four_heads(hidden), work)["decode", "steps", "step"] == given + peak[hidden]


@needs_flash
@pytest.mark.parametrize(
    ("hidden", "batch", "length"),
    [
        (48, 2, 40), (64, 1, 7),
        pytest.param(48, 1, 7, marks=pytest.mark.thorough), pytest.param(64, 2, 40, marks=pytest.mark.thorough),
    ],
)  # fmt: skip
def test_a_live_peak_with_flash_attention_is_that_of_the_graph(hidden: int, batch: int, length: int) -> None:
    """Of the prompt and of a step, with heads of 12 elements, which are padded, and of 16."""
    target = with_four_heads(hidden)
    work = replace(PAGE, attention="flash_attention_2", batch=batch, text_tokens=length, new_tokens=3)
    found = live_peaks(target, work)
    decoder = [(call, job) for call, job in calls(target, work) if job.id in ("prefill", "step")]
    assert [found[job.stage, call, job.id] for call, job in decoder] == [held(job) for _, job in decoder]


@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    ["llama", "gpt-oss", "bert", "dinov2", "siglip-vision", "llava", "qwen3-vl-vision", "t5"]
    + [
        pytest.param(name, marks=pytest.mark.thorough)
        for name in (
            "gemma3", "mixtral", "roberta", "distilbert", "xlm-roberta", "vit", "clip-vision",
            "qwen2-5-vl", "deepseek-ocr", "deepseek-ocr2",  # by hand above, compared with all graphs
        )
    ],
)  # fmt: skip
def test_a_live_peak_is_that_of_the_graph_of_any_configuration(family: str, request: pytest.FixtureRequest) -> None:
    """For random configurations, as a proof draws them: three with ``--thorough``, of which one has a batch of 1."""
    compared, pieces = 0, load_pieces(family)
    for piece in pieces[:3] if request.config.getoption("--thorough") else pieces[1:2]:
        drawn, work = piece.target, piece.workload
        assert isinstance(drawn, WithMemory)
        tapes, config = drawn.memory(work), drawn.info().symbols
        calls = {(c.stage, c.id): c.symbols for c in drawn.invocations(work)}
        for job in drawn.export_jobs(drawn.build(work), work):
            for invocation in job.invocations:
                values = {**config, **calls[job.stage, invocation]}
                assert tapes[job.stage, invocation, job.id].peak_bytes(values) == held(with_sizes(job, values))
                compared += 1
    assert compared
