"""The convention of fvcore without fvcore, against fvcore itself: operator by operator, stage by stage."""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fvcore.nn import ActivationCountAnalysis, FlopCountAnalysis
from torch import Tensor, nn

from costproof.compare.kinds import kind_of
from costproof.ledger.metrics import FVCORE
from costproof.ledger.node import Ledger
from costproof.ledger.run import RunOptions
from costproof.ledger.workload import Workload
from costproof.models.families.deepseek_ocr import native
from costproof.models.pages.page import Page, page_workload, with_page
from costproof.models.specs import ExportJob
from costproof.opgraph.costed import cost_graph
from costproof.opgraph.fvcore_macs import fvcore_nodes
from costproof.opgraph.graph import Graph
from costproof.patches.patch import patched
from costproof.patches.tensor import JIT_ON_META
from costproof.tracers.counters.tools import positional, renamed
from costproof.tracers.dynamic import dynamic_ledger
from costproof.tracers.exported import export_graph
from costproof.tracers.exporting import with_sizes
from costproof.tracers.isolated import isolated_ledger, stage_nodes, trace_stage
from costproof.tracers.static import static_ledger
from costproof.tracers.torchlens_trace import trace_forward
from tests.tracers import small

PAGE = page_workload("page", Page(128, 64), text_tokens=7, new_tokens=2)
"""2x2 features of one view, 4 + 2 + 1 = 7 vision tokens, S = 14."""
X = {"x": torch.empty(2, 5, 6, device="meta")}

Counts = tuple[int | None, int]
"""MACs, ``None`` where the tool fails, and activations."""


class Calls(nn.Module):
    """A function of up to three tensors as a module."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, y: Tensor | None = None, z: Tensor | None = None) -> Tensor:
        return self.function(*(t for t in (x, y, z) if t is not None))


def function(call: Callable[..., Tensor], *shapes: tuple[int, ...]) -> tuple[nn.Module, dict[str, Tensor]]:
    return Calls(call).eval(), dict(zip("xyz", (torch.ones(s) for s in shapes), strict=False))


def module(made: nn.Module, *shape: int) -> tuple[nn.Module, dict[str, Tensor]]:
    return made.eval(), {"input": torch.ones(shape)}


# Name -> what is run, and what fvcore's table says of it by hand.
CASES: dict[str, tuple[tuple[nn.Module, dict[str, Tensor]], Counts]] = {
    "linear": (module(nn.Linear(4, 5), 2, 3, 4), (6 * 4 * 5, 30)),
    "linear of a vector": (module(nn.Linear(4, 5), 4), (4 * 5, 5)),
    "matmul, the batch of the first alone": (function(lambda x, y: x @ y, (4, 5), (3, 5, 2)), (4 * 5 * 2, 24)),
    "matmul, vector by matrix": (function(torch.matmul, (4,), (4, 3)), (4 * 3, 3)),
    "matmul by a vector, which fvcore cannot": (function(torch.matmul, (3, 4), (4,)), (None, 0)),
    "linalg.matmul": (function(torch.linalg.matmul, (3, 4), (4, 6)), (3 * 4 * 6, 18)),
    "mm has no activations": (function(torch.mm, (3, 4), (4, 6)), (3 * 4 * 6, 0)),
    "bmm": (function(torch.bmm, (2, 3, 4), (2, 4, 6)), (2 * 3 * 4 * 6, 36)),
    "addmm": (function(lambda x, y, z: torch.addmm(z, x, y), (3, 4), (4, 6), (3, 6)), (3 * 4 * 6, 18)),
    "baddbmm": (function(lambda x, y, z: torch.baddbmm(z, x, y), (2, 3, 4), (2, 4, 6), (2, 3, 6)), (0, 0)),
    "tensordot": (function(lambda x, y: torch.tensordot(x, y, 1), (2, 4), (4, 3)), (0, 0)),
    # 2 * 3*4*5*6*7 + 1 = 5,041 prints as 5.041e+03.
    "einsum": (function(lambda x, y: torch.einsum("bhwc,hkc->bhwk", x, y), (3, 4, 5, 6), (4, 7, 6)), (2520, 420)),
    # 2 * 33*44*55*6*7 + 1 = 6,708,241 prints as 6.708e+06.
    "einsum to four digits": (
        function(lambda x, y: torch.einsum("b...c,dc->b...d", x, y), (33, 44, 55, 6), (7, 6)), (3_354_000, 559_020)
    ),
    "einsum abc,abd->acd": (
        function(lambda x, y: torch.einsum("bqk,bqd->bkd", x, y), (30, 41, 57), (30, 41, 71)),
        (30 * 41 * 57 * 71, 30 * 57 * 71),
    ),
    "einsum abc,adc->adb": (
        function(lambda x, y: torch.einsum("bqk,bnk->bnq", x, y), (30, 41, 57), (30, 71, 57)),
        (30 * 41 * 57 * 71, 30 * 71 * 41),
    ),
    # (ij,jk),kl: 2*3*4*50 + 2*3*50*6 = 3,000; ij,(jk,kl): 2*4*50*6 + 2*3*4*6 = 2,544, and 1.
    "einsum of three": (
        function(lambda x, y, z: torch.einsum("ij,jk,kl->il", x, y, z), (3, 4), (4, 50), (50, 6)), (1272, 18)
    ),
    "conv2d": (module(nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), 2, 4, 9, 9), (50 * 6 * 2 * 9, 300)),
    "conv1d": (module(nn.Conv1d(4, 6, 3), 2, 4, 9), (2 * 7 * 6 * 4 * 3, 84)),
    "transposed": (module(nn.ConvTranspose2d(4, 6, 3, stride=2), 2, 4, 5, 5), (2 * 25 * 4 * 6 * 9, 2 * 6 * 121)),
    "layer_norm": (module(nn.LayerNorm(4), 2, 3, 4), (5 * 24, 0)),
    "layer_norm without scale": (module(nn.LayerNorm(4, elementwise_affine=False), 2, 3, 4), (4 * 24, 0)),
    "layer_norm of a vector, which fvcore cannot": (module(nn.LayerNorm(4), 4), (None, 0)),
    "group_norm": (module(nn.GroupNorm(2, 4), 2, 4, 4), (5 * 32, 0)),
    "batch_norm": (module(nn.BatchNorm2d(4), 2, 4, 3, 3), (2 * 72, 0)),
    "instance_norm": (module(nn.InstanceNorm2d(4, affine=True), 2, 4, 3, 3), (5 * 72, 0)),
    "rms_norm": (function(lambda x: F.rms_norm(x, (4,)), (2, 4)), (0, 0)),
    "nearest": (function(lambda x: F.interpolate(x, scale_factor=2), (2, 3, 4, 4)), (384, 0)),
    "bilinear": (function(lambda x: F.interpolate(x, size=(7, 7), mode="bilinear"), (2, 3, 4, 4)), (4 * 294, 0)),
    "bilinear, antialiased": (
        function(lambda x: F.interpolate(x, size=(7, 7), mode="bilinear", antialias=True), (2, 3, 4, 4)), (0, 0)
    ),
    "linear in one dimension": (function(lambda x: F.interpolate(x, size=7, mode="linear"), (2, 3, 4)), (0, 0)),
    "pooling": (module(nn.AdaptiveAvgPool2d(2), 2, 3, 4, 4), (96, 0)),
    "fused attention": (function(F.scaled_dot_product_attention, *[(2, 3, 4, 4)] * 3), (0, 0)),
    "softmax": (function(lambda x: torch.softmax(x, -1), (2, 4)), (0, 0)),
}  # fmt: skip


@contextmanager
def quiet() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(before)


def analysed(model: nn.Module, args: tuple[Tensor, ...]) -> tuple[Any, Any]:
    """fvcore on one forward."""
    with quiet(), patched(*JIT_ON_META):
        made = FlopCountAnalysis(model, args), ActivationCountAnalysis(model, args)
        for analysis in made:
            analysis.unsupported_ops_warnings(False)
            analysis.uncalled_modules_warnings(False)
            analysis.total()
    return made


def ours(graph: Graph) -> Counts:
    nodes = fvcore_nodes(graph, lambda path, call: ("stage", "once"))
    macs = [n.costs["fvcore_macs"] for n in nodes]
    known = [m for m in macs if m is not None]
    activations = sum(n.costs.get("fvcore_activations") or 0 for n in nodes)
    return (sum(known) if len(known) == len(macs) else None), activations


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_an_operator(name: str) -> None:
    (model, args), expected = CASES[name]
    if expected[0] is None:
        with pytest.raises((IndexError, AssertionError)):
            analysed(model, tuple(args.values()))
    else:
        flops, activations = analysed(model, tuple(args.values()))
        assert (flops.total(), activations.total()) == expected
    assert ours(trace_forward(model, args, name).graph) == expected
    assert ours(export_graph(ExportJob("j", "stage", ("once",), model, {"": ""}, args)).graph) == expected


@cache
def fewer_layers() -> nn.Module:
    """The small model with one layer of each kind, whatever kernel the experts shall have: that of the export."""
    config = copy.deepcopy(small.CONFIG)
    config["vision_config"]["encoder_config"]["num_hidden_layers"] = 1
    return native.build_model(config, dtype="bfloat16", attention="sdpa", experts="grouped_mm")


@dataclass(frozen=True, slots=True)
class Asked(small.SmallTarget):
    """The small model, asked for the convention."""

    def build(self, workload: Workload) -> nn.Module:
        """Fewer layers."""
        return fewer_layers()

    @property
    def options(self) -> RunOptions:
        """On meta, with the convention."""
        return RunOptions(convention="fvcore-macs")


Spot = tuple[str, str, str, str]
"""Stage, invocation, module, common kind of operator."""


def theirs(target: small.SmallTarget) -> tuple[Counter[Spot], Counter[Spot]]:
    """What fvcore says of every cut at the sizes of the page, decode step by step."""
    model = target.build(PAGE)
    values = {(i.stage, i.id): i.symbols for i in target.invocations(PAGE)}
    macs, activations = Counter[Spot](), Counter[Spot]()
    for job in target.export_jobs(model, PAGE):
        for invocation in job.invocations:
            known = values[job.stage, invocation]
            for step in range(known.get("N", 1)):
                args = with_sizes(job, {**known, "P": known.get("P", 0) + step}).args
                for analysis, sums in zip(analysed(*positional(job.module, args)), (macs, activations), strict=True):
                    for (path, kind), value in own(analysis).items():
                        sums[job.stage, invocation, renamed(path, job.prefix), kind_of(kind)] += value
    return macs, activations


def own(analysis: Any) -> Counter[tuple[str, str]]:
    """Figures of each module without those of its children."""
    found = analysis.by_module_and_operator()
    rows = Counter[tuple[str, str]]()
    for path, kinds in found.items():
        children = [p for p in found if p and p.rpartition(".")[0] == path and p != path]
        for kind, value in kinds.items():
            inside = path.partition("inner")[2].removeprefix(".")
            rows[inside, kind] += int(value) - sum(int(found[c].get(kind, 0)) for c in children)
    return rows


def by_spot(ledger: Ledger, metric: str) -> Counter[Spot]:
    found = Counter[Spot]()
    for n in ledger.nodes:
        found[n.stage, n.invocation, n.module, kind_of(n.kind)] += n.costs.get(metric) or 0
    return found


@pytest.fixture(scope="module")
def ledgers(request: pytest.FixtureRequest) -> dict[str, Ledger]:
    target = Asked()
    found = {"static": static_ledger(target, PAGE)}
    if request.config.getoption("--thorough"):
        found |= {"isolated": isolated_ledger(target, PAGE), "dynamic": dynamic_ledger(target, PAGE).ledger}
    return found


def test_every_operator_of_every_module_of_every_stage(ledgers: dict[str, Ledger]) -> None:
    macs, activations = theirs(Asked())
    assert {spot[0] for spot in +macs} == set(small.STAGES)
    assert {spot[3] for spot in +macs} == {"linear", "conv", "einsum", "layer_norm"}
    for ledger in ledgers.values():
        assert +by_spot(ledger, "fvcore_macs") == +macs
        assert +by_spot(ledger, "fvcore_activations") == +activations


def test_by_hand(ledgers: dict[str, Ledger]) -> None:
    # Projector: 64 + 64 -> 80 on 4 positions.
    for ledger in ledgers.values():
        assert ledger.stage_total("projector", "fvcore_macs") == 4 * 128 * 80
        assert ledger.stage_total("projector", "fvcore_activations") == 4 * 80
        # S = 14, then two steps; vocabulary 96.
        heads = {n.invocation: n.costs.get("fvcore_macs") for n in ledger.nodes if n.module == "lm_head" and n.kind}
        assert heads == {"prompt": 14 * 80 * 96, "steps": 2 * 80 * 96}


def test_it_is_counted_on_request_alone() -> None:
    run = ExportJob("toy", "stage", ("once",), small.Wrapper(small.toy()), {"part": ""}, X)
    traced = trace_stage(run)
    plain, _ = stage_nodes(run, traced, cost_graph(traced.graph))
    asked, _ = stage_nodes(run, traced, cost_graph(traced.graph), "fvcore-macs")
    assert {m for n in asked for m in n.costs} - {m for n in plain for m in n.costs} == set(FVCORE)
    # A linear layer of 6 by 6, twice on 2 x 5 rows.
    assert [n.costs["fvcore_macs"] for n in asked if "fvcore_macs" in n.costs] == [2 * 10 * 36]
    assert not any(set(FVCORE) & set(n.costs) for n in plain)


def test_no_export_speaks_for_a_loop_over_experts() -> None:
    text = with_page(PAGE, None, new_tokens=0, experts="eager")
    assert "fvcore_macs" not in static_ledger(Asked(), text).metrics


class Written(Asked):
    """All layers, with attention as the workload has it."""

    def build(self, workload: Workload) -> nn.Module:
        """The small model."""
        return small.SmallTarget.build(self, workload)


@pytest.mark.thorough
def test_steps_that_grow_with_the_context() -> None:
    """Attention written out: at 7 to 10 tokens in the cache, one query meets 8 + 9 + 10 + 11 keys."""
    text = page_workload("text", None, text_tokens=7, new_tokens=4, attention="eager")
    ledger = static_ledger(Written(), text)
    found = [n for n in ledger.nodes if n.stage == "decode" and n.module.endswith("self_attn") and n.kind]
    # 2 layers, 5 heads of 16 dimensions, in two products.
    assert sum(n.costs.get("fvcore_macs") or 0 for n in found) == 2 * 2 * 5 * 16 * (8 + 9 + 10 + 11)
