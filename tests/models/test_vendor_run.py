"""The whole of it on a remote-code package of our own: it runs, reconciles, and is left as it was."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.utils import logging

from costproof import api
from costproof.ledger.capture import Capture
from costproof.ledger.errors import BadInput
from costproof.ledger.progress import silent
from costproof.ledger.run import run_options
from costproof.models.families.deepseek_ocr import vendor, vendor_code
from costproof.models.families.deepseek_ocr.vendor import RemoteCodeOcr
from costproof.models.families.deepseek_ocr.vendor_code import read_snapshot
from costproof.reports.graph.view import GraphChoice, graph_view
from costproof.tracers import sources
from costproof.tracers.dynamic import dynamic_ledger
from costproof.views.results import stage_words
from tests.models.vendor import SMALL, SNAPSHOT, copied, tree
from tests.support.pools import Here

LENGTH = 15
LAYERS, DENSE, EXPERTS, TOPK, HIDDEN, INNER, HEADS, HEAD = 3, 1, 12, 3, 40, 24, 5, 8
"""As tests/vendor_like/config.json has them."""


def target() -> RemoteCodeOcr:
    return RemoteCodeOcr.from_folder(SNAPSHOT, trusted=True)


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    snapshot = copied(tmp_path_factory.mktemp("vendor"))
    before = tree(snapshot)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "Pool", Here)
        found = api.capture(str(snapshot), trust_remote_code=True, **SMALL)
    assert tree(snapshot) == before
    return found


def test_three_sources_agree(capture: Capture) -> None:
    found = api.compare(capture).discrepancy
    assert found.verdict == "exact"
    assert capture.trace_check is not None
    assert capture.trace_check.differences == ()
    static = capture.ledger("static")
    assert static is not None
    assert static.stages == ("sam", "clip", "projector")
    assert all("unfused_bytes" in ledger.metrics for ledger in capture.ledgers)
    assert [n.split(":")[0] for n in static.notes] == ["prefill is not covered", "decode is not covered"]
    assert [i.id for i in capture.invocations] == ["crops"] * 3 + ["global"] * 3 + ["prompt", "steps"]


@pytest.mark.parametrize(
    ("settings", "verdict"),
    [
        pytest.param(
            {"preset": "base", "base_size": 192, "text_tokens": 3, "new_tokens": 1, "dtype": "bfloat16"},
            "exact",
            marks=pytest.mark.thorough,
        ),
        # The static source exports no tower here, so it does not see the towers' parameters.
        pytest.param(
            {"preset": "text-only", "text_tokens": 9, "new_tokens": 3, "dtype": "float32"},
            "explained",
            marks=pytest.mark.thorough,
        ),
        # 448 pixels are 28 patches, two whole windows: nothing is padded.
        pytest.param(
            {"base_size": 448, "image_size": 64, "grid": "1x2", "text_tokens": 0, "new_tokens": 1, "dtype": "float32"},
            "exact",
            marks=pytest.mark.thorough,
        ),
    ],
    ids=["no crops", "no page", "whole windows"],
)
def test_other_workloads_agree(settings: dict[str, Any], verdict: str) -> None:
    found = api.compare(api.capture(str(SNAPSHOT), trust_remote_code=True, **settings)).discrepancy
    assert found.verdict == verdict
    assert not any(f.residual for f in found.findings)


def test_known_numbers(capture: Capture) -> None:
    ledger = capture.ledger("dynamic")
    assert ledger is not None
    prompt = {(n.module, n.kind): n.costs for n in ledger.nodes if n.invocation == "prompt"}
    # Angles by a product of [4, 1] and [1, 15] in every layer.
    assert prompt["model.layers.2.self_attn.rotary_emb", "__matmul__"]["flops"] == 2 * (HEAD // 2) * LENGTH
    rows = LENGTH * TOPK
    assert prompt["model.layers.1.mlp.experts", "linear"]["flops"] == 3 * 2 * rows * HIDDEN * INNER
    assert prompt["model.layers.1.mlp.experts", ""]["weight_read_bytes"] == min(EXPERTS, rows) * 3 * HIDDEN * INNER * 4
    # One call of the step reads 3 of 12 experts.
    steps = {(n.module, n.kind): n.costs for n in ledger.nodes if n.invocation == "steps"}
    assert steps["model.layers.1.mlp.experts", ""]["weight_read_bytes"] == 2 * TOPK * 3 * HIDDEN * INNER * 4
    held = {n.module: n.costs for n in ledger.nodes if n.stage == "prefill" and not n.invocation}
    assert held["model.layers.1.mlp.experts"]["params"] == EXPERTS * 3 * HIDDEN * INNER
    assert held["model.layers.1.mlp.experts"]["params_active"] == TOPK * 3 * HIDDEN * INNER
    # Keys and values of 5 heads of 8, 4 bytes, for the prompt and two steps.
    assert ledger.total("kv_cache_bytes") == LAYERS * 2 * HEADS * HEAD * 4 * (LENGTH + 2)


def test_calls_of_experts_are_those_that_the_router_chose(capture: Capture) -> None:
    """The router's own choice, watched without a tracer, against call counts and findings."""
    model = target()
    workload = model.workload(**SMALL)
    built = model.build_run(workload, silent).model
    chosen: Counter[str] = Counter()
    idle: set[tuple[str, str]] = set()
    for run in model.runs(built, workload):
        reached: set[str] = set()
        handles = []
        for i in range(DENSE, LAYERS):
            path = f"model.layers.{i}.mlp"

            def note(module: Any, args: Any, output: Any, path: str = path, reached: set[str] = reached) -> None:
                reached |= {f"{path}.experts.{e}" for e in output[0].flatten().tolist()}

            handles.append(built.get_submodule(f"{path}.gate").register_forward_hook(note))
        with torch.no_grad(), run.around():
            built(**run.kwargs)
        for handle in handles:
            handle.remove()
        chosen.update(reached)
        if run.context is None:
            every = {f"model.layers.{i}.mlp.experts.{e}" for i in range(DENSE, LAYERS) for e in range(EXPERTS)}
            idle = {("prefill", path) for path in every - reached}
    assert capture.callgraph is not None
    counts = {k: v for k, v in capture.callgraph.call_counts.items() if k.rpartition(".")[0].endswith(".experts")}
    assert counts == dict(chosen)
    assert idle, "the workload must leave an expert without tokens"
    findings = api.compare(capture).discrepancy.findings
    skipped = [f for f in findings if f.status == "not-executed" and f.stage == "prefill"]
    assert sum(f.count for f in skipped) == len(idle)
    assert all(f.values == {"dynamic": 0} and f.metric == "calls" for f in skipped)
    ran = [f for f in findings if f.status == "dynamic-only"]
    assert sum(f.values["dynamic"] or 0 for f in ran) == sum(chosen.values())
    # What only the run can tell says nothing against the stage.
    assert {stage_words(api.compare(capture).discrepancy, s) for s in ("prefill", "decode")} == {"exact"}


def test_the_experts_are_drawn_with_what_they_cost(capture: Capture) -> None:
    """Their costs are on the list that holds them, which nobody calls: 12 experts of 3 matrices in each layer."""
    for heavy in (False, True):
        nodes = graph_view(capture, GraphChoice(heavy=heavy)).nodes
        (family,) = (n for n in nodes if re.fullmatch(r"model\.layers\.\S+\.mlp\.experts\.\[\S+\]", n.pattern))
        layers = LAYERS - DENSE
        assert len(family.instances) == layers * EXPERTS
        assert family.params == layers * EXPERTS * 3 * HIDDEN * INNER
        # Prompt and two steps; each row passes the experts that the router chose.
        assert family.flops == layers * (LENGTH + 2) * TOPK * 3 * 2 * HIDDEN * INNER


def test_events(capture: Capture) -> None:
    assert capture.callgraph is not None
    marks = {e.name: e.data for e in capture.callgraph.events if e.event == "mark"}
    assert marks["vision_inputs"] == {"images": 1, "crops": (2,), "columns": (2,), "rows": (1,)}
    assert marks["llm_stack"]["layers"] == LAYERS
    contexts = [e.data["context"] for e in capture.callgraph.events if e.name == "decode_step"]
    assert contexts == [LENGTH, LENGTH + 1]


def test_grids_of_as_many_crops_are_told_apart() -> None:
    def grid(images_spatial_crop: list[int]) -> Any:
        images = [(torch.ones(4, 1), torch.ones(1, 1))]
        told = {"images": images, "images_spatial_crop": torch.tensor([images_spatial_crop])}
        return vendor._vision_inputs(None, (), {"input_ids": torch.ones(1, 9), **told})

    assert grid([2, 2]) == {"images": 1, "crops": (4,), "columns": (2,), "rows": (2,)}
    assert grid([4, 1]) == {"images": 1, "crops": (4,), "columns": (4,), "rows": (1,)}


def test_a_snapshot_is_profiled_with_its_patches() -> None:
    """Outside of ``run.around()`` the code would ask for CUDA."""
    timed = target().with_options(run_options({"run": "cpu", "profile": 1}))
    found = dynamic_ledger(timed, timed.workload(**{**SMALL, "new_tokens": 1}))
    assert found.measured is not None
    stages = [("sam", "crops"), ("sam", "global"), ("clip", "crops"), ("clip", "global"), ("projector", "crops")]
    assert {(t.stage, t.invocation) for t in found.measured.stages if t.run == "page"} == {
        *stages, ("projector", "global"), ("prefill", "prompt"),
    }  # fmt: skip
    # Every module that the hooks saw has its time, those too that are called past their __call__.
    assert {m.module: m.calls for m in found.measured.modules} == found.callgraph.call_counts
    assert "host_name" not in json.loads(found.chrome_trace)


def test_random_weights_follow_the_seed_and_the_name() -> None:
    def built(**options: Any) -> torch.nn.Module:
        made = target().with_options(run_options({"run": "cpu", **options}))
        return made.build_run(made.workload(**SMALL), silent).model

    first, again, other, cut = (dict(built(**o).named_parameters()) for o in ({}, {}, {"seed": 1}, {"layers": 2}))
    assert all(torch.equal(p, again[name]) for name, p in first.items())
    assert all(torch.equal(first[name], p) for name, p in cut.items())
    assert len(cut) < len(first)
    assert not any(torch.equal(p, other[name]) for name, p in first.items() if p.dim() > 1)


def test_patches_stand_in_the_capture(capture: Capture) -> None:
    assert capture.run is not None
    assert [n.split(" (")[0].split(": norms")[0] for n in capture.run.notes] == [
        "the vendor's code with random weights, seed 0",
        "patched while it ran: torch.Tensor.cuda",
        "patched while it ran: deepencoder.quick_gelu",
    ]


def test_transformers_keeps_its_advice_unless_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    before, usual = logging.get_verbosity(), logging.WARNING
    logging.set_verbosity(usual)  # another test of this process may have asked for less
    monkeypatch.delenv("TRANSFORMERS_VERBOSITY", raising=False)
    with vendor_code.patched(()):
        assert logging.get_verbosity() == logging.ERROR
    assert logging.get_verbosity() == usual
    monkeypatch.setenv("TRANSFORMERS_VERBOSITY", "info")
    with vendor_code.patched(()):
        assert logging.get_verbosity() == usual
    logging.set_verbosity(before)


class Boom(Exception):
    """Raised in the middle of a run."""


@pytest.mark.parametrize("error", [None, Boom, KeyboardInterrupt])
def test_patches_are_gone_however_a_run_ends(error: type[BaseException] | None) -> None:
    model = vendor_code.build_vendor(read_snapshot(SNAPSHOT), "float32", "cpu")
    needed = vendor_code.patches_for(model)
    places = [(p.target, p.attribute) for p in needed]
    before = [getattr(*place) for place in places]
    assert len(before) == 2

    own = "cuda" in vars(torch.Tensor)  # inherited, unless somebody has wrapped it before

    def run() -> None:
        with vendor_code.patched(needed):
            assert all(getattr(*place) is not old for place, old in zip(places, before, strict=True))
            if error is not None:
                raise error

    if error is None:
        run()
    else:
        with pytest.raises(error):
            run()
    assert all(getattr(*place) is old for place, old in zip(places, before, strict=True))
    assert ("cuda" in vars(torch.Tensor)) is own


def test_a_model_runs_alike_before_during_and_after(capture: Capture) -> None:
    """``expected`` comes from a run with the patches alone that the code cannot do without."""
    assert capture.trace_check is not None
    assert capture.trace_check.differences == ()
    model = target()
    workload = model.workload(**SMALL)
    built = model.build_run(workload, silent).model
    first, second = (model.runs(built, workload) for _ in range(2))
    assert len(first) == len(second) == 3
    for one, other in zip(first, second, strict=True):
        assert one.expected is not None
        assert other.expected is not None
        assert torch.equal(one.expected, other.expected)
    assert not any(m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m) for m in built.modules())


@pytest.mark.thorough
def test_a_patch_that_changes_a_bit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = vendor_code.patches_for

    def wrong(model: torch.nn.Module) -> tuple[vendor_code.VendorPatch, ...]:
        cuda, gelu = right(model)
        return cuda, vendor_code.VendorPatch(gelu.name, gelu.why, gelu.target, gelu.attribute, torch.tanh, needed=False)

    monkeypatch.setattr(vendor_code, "patches_for", wrong)
    monkeypatch.setattr(vendor, "patches_for", wrong)
    model = target()
    found = dynamic_ledger(model, model.workload(preset="base", base_size=128, text_tokens=2, dtype="float32"))
    assert "run page: traced forward 1 returned other logits than the untraced one" in found.trace_check.differences


def test_nothing_is_written_beside_the_code(tmp_path: Path) -> None:
    snapshot = copied(tmp_path)
    before = tree(snapshot)
    vendor_code.build_vendor(read_snapshot(snapshot), "float32", "meta")
    assert tree(snapshot) == before


@pytest.mark.parametrize("line", ["sys.exit(0)", "os._exit(0)", "raise KeyboardInterrupt"])
def test_code_that_ends_the_program_is_bad_input(line: str, tmp_path: Path) -> None:
    snapshot = copied(tmp_path)
    named = read_snapshot(snapshot)
    file = snapshot / f"{named.model_class.split('.')[0]}.py"
    changes = "import os, sys; os.chdir('/'); os.environ['LEFT'] = '1'; sys.path.insert(0, '/left')"
    text = file.read_text()
    file.write_text(f"{text}{changes}\n{line}\n")
    before = os.getcwd(), dict(os.environ), list(sys.path)
    with pytest.raises(BadInput, match="the code of the snapshot failed") as caught:
        vendor_code.build_vendor(named, "float32", "meta")
    assert f"({file.name}:{len(text.splitlines()) + 2})" in str(caught.value.got)
    assert (os.getcwd(), dict(os.environ), list(sys.path)) == before


@pytest.mark.thorough
def test_the_native_classes_load_after_the_snapshot() -> None:
    """transformers must not believe afterwards that a stand-in of the import is an installed package."""
    code = (
        "from pathlib import Path\n"
        "from costproof.models.families.deepseek_ocr import vendor_code\n"
        "from costproof.models.families.deepseek_ocr.vendor_code import read_snapshot\n"
        f"vendor_code.build_vendor(read_snapshot(Path({str(SNAPSHOT)!r})), 'float32', 'meta')\n"
        "from transformers.models.unlimited_ocr import modeling_unlimited_ocr\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
