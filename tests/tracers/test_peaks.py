"""Peaks of live activations: on paper for small modules, and against the allocator of real runs for small models."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from benchmarks.allocations import allocated
from benchmarks.peaks import CASES
from benchmarks.real_jobs import as_exported, as_written, with_numbers
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map

from costproof.algebra.evaluation import evaluate
from costproof.api import count
from costproof.ledger.errors import Bug
from costproof.ledger.peaks import CallPeaks
from costproof.ledger.workload import AttentionKind
from costproof.models.families.deepseek_ocr.target import DeepseekOcr
from costproof.models.families.llama import Llama, LlamaConfig
from costproof.models.families.mistral import Mistral, MistralConfig
from costproof.models.families.qwen3_moe import Qwen3Moe, Qwen3MoeConfig
from costproof.models.generic.live_module import at_hand
from costproof.models.image_text.modules import PartModule
from costproof.models.specs import ExportJob, SymbolicSize
from costproof.models.target import Exportable
from costproof.patches.inference import inference_context
from costproof.snapshots.copies import alike
from costproof.tracers.peaks.calls import SymbolicPeak, call_peaks, calls, peaks_of, symbolic_peak, with_symbolic_peak
from tests.support.variants import with_variants
from tests.tracers.small import PAGE, SmallTarget


def job(module: nn.Module, *shape: int) -> ExportJob:
    """A job of a module on one float32 input."""
    x = torch.empty(shape, device="meta")
    return ExportJob("part", "stage", ("call",), PartModule(module.to("meta")).eval(), {"part": "model"}, {"x": x})


def sizes(found: CallPeaks) -> tuple[int, int]:
    """Graph peak and eager peak."""
    assert found.graph is not None, found.notes
    assert found.eager is not None, found.notes
    for peak in (found.graph, found.eager):
        assert sum(t.bytes for t in peak.alive) == peak.bytes
    assert found.residual == 0
    return found.graph.bytes, found.eager.bytes


def gap(found: CallPeaks) -> list[tuple[str, int, str, tuple[str, ...]]]:
    return [(p.kind, p.bytes, p.tensor.name if p.tensor else p.where, p.holders) for p in found.gap]


class Mlp(nn.Module):
    """Two products and an activation between, each result under a name of its own."""

    def __init__(self, activation: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.up, self.down, self.activation = nn.Linear(4, 16), nn.Linear(16, 4), activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.up(x)
        active = self.activation(wide)
        narrow: torch.Tensor = self.down(active)
        return narrow


def test_an_mlp_on_paper() -> None:
    """x [2, 3, 4] float32 is 96 bytes, and so is the result; both tensors of width 16 are 384.

    Graph: x + wide + active = 96 + 384 + 384 = 864 while the activation runs; then wide is gone, and
    x + active + narrow = 96 + 384 + 96 = 576. The module's variable ``wide`` stays: 96 + 384 + 384 + 96 = 960.
    """
    found = peaks_of(job(Mlp(functional.gelu), 2, 3, 4))
    assert sizes(found) == (96 + 384 + 384, 96 + 384 + 384 + 96)
    assert gap(found) == [("held", 384, "addmm", ("Mlp.forward: wide",)), ("elsewhere", 576 - 864, "model", ())]
    assert found.graph is not None
    assert found.graph.operator == "aten.gelu.default"
    assert found.eager is not None
    assert found.eager.module == "model.down"


def test_a_result_in_place_takes_no_memory() -> None:
    """The activation writes over ``wide``: x + wide + narrow = 96 + 384 + 96, and no variable holds more."""
    found = peaks_of(job(Mlp(torch.relu_), 2, 3, 4))
    assert sizes(found) == (576, 576)
    assert found.gap == ()


class Scores(nn.Module):
    """Two heads of width 4."""

    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8, bias=False) for _ in range(4))
        self.fused = fused

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part(x).view(1, -1, 2, 4).transpose(1, 2) for part in (self.q, self.k, self.v))
        if self.fused:
            y = functional.scaled_dot_product_attention(q, k, v)
        else:
            y = torch.softmax(q @ k.transpose(-1, -2) * 0.5, -1) @ v
        out: torch.Tensor = self.o(y.transpose(1, 2).reshape(1, -1, 8))
        return out


def test_attention_with_its_scores_on_paper() -> None:
    """S = 16: x, q, k, v, y and the result are 16 x 8 x 4 = 512 bytes each; S^2 scores of two heads are 2048.

    Graph: the scores are made of x, q, k, v: 4 x 512 + 2048 = 4096. Then q and k are gone, and scores stand beside
    scaled scores: x + v + 2 x 2048 = 5120; so do those beside their softmax. The module's variables keep q and k:
    4 x 512 + 2 x 2048 = 6144.
    """
    found = peaks_of(job(Scores(fused=False), 1, 16, 8))
    assert sizes(found) == (2 * 512 + 2 * 2048, 4 * 512 + 2 * 2048)
    assert gap(found) == [
        ("held", 512, "mm", ("Scores.forward: q",)),
        ("held", 512, "mm", ("Scores.forward: k",)),
    ]


def test_fused_attention_on_paper() -> None:
    """The same without scores: the operator makes y, and one float32 per head and position for itself, 2 x 16 x 4.

    Graph: x + q + k + v + y + 128 = 2688. At the last product the graph holds x, y and the result, 1536, and the
    module q, k and v too: 6 x 512 = 3072.
    """
    found = peaks_of(job(Scores(fused=True), 1, 16, 8))
    assert sizes(found) == (5 * 512 + 128, 6 * 512)
    assert gap(found) == [
        ("held", 512, "mm", ("Scores.forward: q",)),
        ("held", 512, "mm", ("Scores.forward: k",)),
        ("held", 512, "mm", ("Scores.forward: v",)),
        ("elsewhere", 3 * 512 - 2688, "model", ()),
    ]


def test_peaks_in_symbols_on_paper() -> None:
    """The same by hand for any size.

    The MLP holds 4 + 16 + 16 numbers for each of B*S rows. A row of the attention is 8 numbers, 32 bytes: x, q, k, v, y
    and 8 bytes for fused attention; without it x, q, k, v beside 2*S**2 scores, or x, v beside twice these, which is
    more from S = 8 on.
    """

    def form(module: nn.Module, *where: tuple[int, str]) -> SymbolicPeak:
        sizes = tuple(SymbolicSize(("x",), dim, name) for dim, name in where)
        shape = (2, 3, 4) if isinstance(module, Mlp) else (1, 16, 8)
        return symbolic_peak(replace(job(module, *shape), sizes=sizes))

    assert form(Mlp(functional.gelu), (0, "B")) == SymbolicPeak(f"{3 * 36 * 4}*B", f"{3 * 4 * 4}*B")
    assert form(Mlp(functional.gelu), (0, "B"), (1, "S")) == SymbolicPeak("144*B*S", "16*B*S")
    assert form(Scores(fused=True), (1, "S")) == SymbolicPeak("168*S", "32*S")
    assert form(Scores(fused=False), (1, "S")) == SymbolicPeak("Max(8*S**2 + 128*S, 16*S**2 + 64*S)", "32*S")


class Kept(nn.Module):
    """Holds what it made in a list; the exporter drops what nobody reads."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = [x + 1]
        kept.append(kept[-1] * 2)
        mask = torch.ones(3, dtype=torch.bool)
        del mask
        return kept[-1].exp()


def test_what_a_list_holds_is_found() -> None:
    """x and three results of 40 bytes: the graph holds x and two of them, the module's list all."""
    found = peaks_of(job(Kept(), 10))
    assert sizes(found) == (3 * 40, 4 * 40)
    assert gap(found) == [("held", 40, "add", ("Kept.forward: kept",))]


class Table(nn.Module):
    """Reads a plain tensor of its own, which is no buffer, and keeps a result in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.kept = torch.zeros(10, 100, device="meta"), list[torch.Tensor]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept = [x * 2]
        return self.table.view(100, 10) + self.kept[0]


def test_attributes_of_a_module_hold_what_they_hold() -> None:
    """Names of the model alone: 4000 bytes of the table that a view shows."""
    holders = [held for *_, held in gap(peaks_of(job(Table(), 10)))]
    assert ("Table.forward: self.table",) in holders
    assert not any("Storages" in name or "Part." in name for held in holders for name in held)


class Summed(nn.Module):
    """Reads every number of a plain tensor of its own, which a run on shapes does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.zeros(1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table.sum()


def test_numbers_of_an_attribute_are_not_read() -> None:
    """x and the result have 40 bytes, the sum 4; the table is apart. The process ended with a segmentation fault."""
    assert sizes(peaks_of(job(Summed(), 10)))[0] == 40 + 4 + 40


class Looks(nn.Module):
    """Asks for a number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x.sum().item() if x.sum().item() > 0 else x


def test_a_module_that_looks_at_numbers_has_no_peak() -> None:
    found = peaks_of(job(Looks(), 4))
    assert (found.graph, found.eager, found.gap_bytes, found.residual) == (None, None, None, None)
    assert [note.partition(":")[0] for note in found.notes] == ["graph peak not known", "eager peak not known"]


class Sparse(nn.Module):
    """Returns from an operator what has no memory of one piece."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to_sparse().to_dense()


def test_memory_that_is_not_known_makes_no_peak() -> None:
    found = peaks_of(job(Sparse(), 4, 4))
    assert found.eager is None
    assert found.graph is None
    assert any("not known" in note for note in found.notes)


def test_an_export_that_stands_for_something_else_has_no_peak() -> None:
    found = peaks_of(replace(job(Kept(), 10), conventions={"expert_kernel": "grouped_mm"}))
    assert (found.graph, found.eager) == (None, None)
    assert found.notes == ("not what runs: the export has expert_kernel grouped_mm",)


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: Mlp(functional.gelu), (2, 3, 4)),
    "attention": (lambda: Scores(fused=False), (1, 16, 8)),
    "fused attention": (lambda: Scores(fused=True), (1, 16, 8)),
    "list": (Kept, (10,)),
}


@pytest.mark.parametrize("which", MODULES)
def test_real_runs_hold_as_much(which: str) -> None:
    make, shape = MODULES[which]
    of = job(make(), *shape)
    check_against_runs(of)


def check_against_runs(of: ExportJob) -> None:
    """Both peaks equal what operators returned in a real run, by the allocator; what is beyond that has names.

    That of the module is also what torch's own tracker of memory states.
    """
    mine, its = sizes(peaks_of(of))
    real = with_numbers(of)
    for peak, run in ((mine, as_exported(real)), (its, as_written(real))):
        found = allocated(run.run)
        assert peak == found.tensors + run.inputs
        assert found.peak == found.tensors_then + sum(found.workspaces.values())
    assert its == by_torch(of)


def by_torch(of: ExportJob) -> int:
    """The peak of a real run by torch's own tracker of memory, parameters and buffers apart."""
    real = with_numbers(of)
    tracker = MemTracker()
    tracker.track_external(real.module, *tree_iter(real.args))
    with inference_context(real.module), tracker:
        real.module(**real.args)
    apart = sum(t.untyped_storage().nbytes() for t in (*real.module.parameters(), *real.module.buffers()))
    return int(tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]) - apart


class Held(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The most bytes that operators returned and that were alive at once, by the memory that their results are in."""

    def __init__(self, apart: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.apart = [t.untyped_storage() for t in apart]
        self.known = {s._cdata for s in self.apart}
        self.now = self.peak = 0

    def see(self, values: object) -> None:
        """Count the tensors in some values, those that are given before a run too."""
        for tensor in tree_iter(values):
            if isinstance(tensor, torch.Tensor) and (memory := tensor.untyped_storage())._cdata not in self.known:
                self.known.add(memory._cdata)
                self.now += memory.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(memory, self._gone, memory._cdata, memory.nbytes())

    def _gone(self, key: int, size: int) -> None:
        self.known.remove(key)
        self.now -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.see(result)
        return result


class Times(nn.Module):
    """Two arguments."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * y


class Attends(nn.Module):
    """torch's own attention, which makes one product of the three where its arguments are one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(8, 2, bias=False, batch_first=True)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(q, k, v, need_weights=False)[0]
        return out


class InOrder(nn.Module):
    """Copies what does not lie in order, and adds 1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.contiguous()
        return y + 1


class Lists(nn.Module):
    """A list of tensors, and another one."""

    def forward(self, xs: list[torch.Tensor], y: torch.Tensor) -> torch.Tensor:
        return xs[0] * xs[1] + xs[2] + y


ONE, SQUARE, OTHER = torch.ones(64), torch.ones(64, 64), torch.ones(64)
ROWS = torch.ones(2, 100, 8)
GIVEN: dict[str, tuple[Callable[[], nn.Module], tuple[object, ...], int, int, int | None]] = {
    # x and the result, 256 bytes each
    "one tensor twice": (Times, (ONE, ONE), 256, 512, 512),
    # 64 x 64 x 4 = 16384: x, read as it lies and turned, in one piece of memory, and the result
    "two views of one memory": (Times, (SQUARE, SQUARE.t()), 2 * 16384, 3 * 16384, 2 * 16384),
    # parts that do not overlap: as two tensors
    "two halves of one memory": (Times, tuple(ONE.chunk(2)), 256, 384, 384),
    # x, z, and two results of three, one made of the other
    "in a list and beside it": (Lists, ([ONE, OTHER, ONE], ONE), 512, 768, 1024),
    # x and the result are 2 x 100 x 8 x 4 = 6400, the weights 4 x 8 x 8 x 4 = 1024; the peak is that of a real run
    "attention of one tensor": (Attends, (ROWS, ROWS, ROWS), 6400, 6400 + 6400 + 1024, None),
    # x, the copy and the result, 128 bytes each; floor and traffic know no copies
    "turned": (InOrder, (torch.ones(8, 4).t(),), 128, 256, 384),
    # 2 x 3 x 8 x 8 x 4 = 1536
    "channels last": (InOrder, (torch.ones(2, 3, 8, 8).to(memory_format=torch.channels_last),), 1536, 3072, 3 * 1536),
    # 4 numbers, seen 1000 times: 16 bytes, then twice 16000
    "repeated": (InOrder, (torch.ones(1, 4).expand(1000, 4),), 16000, 32000, 32016),
}


@pytest.mark.parametrize("which", GIVEN)
@pytest.mark.parametrize("meta", [False, True], ids=["with numbers", "on meta"])
def test_inputs_are_held_as_they_lie_in_memory(which: str, meta: bool) -> None:
    """A tensor that is given twice is one, views of one memory are held once, strides stay: as in a run of the call."""
    make, args, inputs, floor, peak = GIVEN[which]
    args = tree_map(alike(args, lambda tensor: tensor.to("meta")), args) if meta else args
    module = make().eval()
    report = count(module, *args)
    for source in ("static", "dynamic"):
        ledger = report.capture.ledger(source)
        assert ledger.stage_total("forward", "input_bytes") == inputs
        assert ledger.stage_total("forward", "floor_bytes") == floor
    with at_hand(module, args, {}) as target:
        (found,) = call_peaks(target, target.workload())
    with inference_context(module), Held(module.parameters()) as held:
        held.see(GIVEN[which][1])
        module(*GIVEN[which][1])
    assert sizes(found)[1] == held.peak == (peak or held.peak)
    assert any("layers of attention" in note for note in found.notes) is (make is Attends)


def test_a_decoder_of_windows_alone_holds_one_mask() -> None:
    """As transformers' own forward, which makes its masks itself: S^2 numbers in the prompt, as many as keys in a step.

    The prompt of 40 tokens is longer than the window of 16, so a step sees the 15 keys of the cache and its own.
    """
    target = Mistral(MistralConfig(32, 64, 2, 4, 1, 8, 64, 4096, window=16))
    run = target.workload(text_tokens=40, new_tokens=1, attention="eager")
    prompt, step = (of for _, of in calls(target, run))
    assert {n: tuple(t.shape) for n, t in prompt.args.items() if "mask" in n} == {"window_mask": (1, 1, 40, 40)}
    assert {n: tuple(t.shape) for n, t in step.args.items() if "mask" in n} == {"window_mask": (1, 1, 1, 16)}
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.MistralConfig(
        **sizes, num_key_value_heads=1, head_dim=8, vocab_size=64, sliding_window=16, attn_implementation="eager"
    )
    model = transformers.MistralForCausalLM(config).to(torch.bfloat16).eval()
    ids = torch.zeros(1, 40, dtype=torch.long)
    with torch.no_grad(), Held((*model.parameters(), *model.buffers())) as held:
        held.see(ids)
        model(input_ids=ids, use_cache=True)
    found = peaks_of(prompt).eager
    assert found is not None
    assert found.bytes == held.peak


DECODERS: dict[str, Callable[[], Exportable]] = {
    "llama": lambda: Llama(LlamaConfig(32, 48, 1, 4, 2, 12, 64, 4096)),
    "qwen3-moe": lambda: Qwen3Moe(Qwen3MoeConfig(32, 48, 1, 4, 2, 12, 64, 4096, experts=4, top_k=2, expert_width=16)),
}


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["eager", pytest.param("sdpa", marks=pytest.mark.thorough)])
def test_every_stage_of_a_small_ocr_model_holds_what_a_run_holds(attention: AttentionKind, thorough: bool) -> None:
    """SAM, CLIP and the projector on a global view; with --thorough also crops, what joins them, prefill, last step."""
    target, run = SmallTarget(), replace(PAGE, attention=attention)
    found = list(calls(target, run))
    assert [job.stage for _, job in found] == ["sam", "clip", "projector"] * 2 + ["prefill", "prefill", "decode"]
    for _, job in found if thorough else found[:3]:
        check_against_runs(job)


@pytest.mark.parametrize("case", ["ocr-tiny", "ocr-base"])
def test_the_benchmark_cuts_the_decoder_alone(case: str) -> None:
    target, _ = CASES[case]()
    assert isinstance(target, DeepseekOcr)
    assert (target.config.sam.layers, target.config.clip.layers, target.config.text.layers) == (12, 24, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", with_variants(DECODERS, ("llama",)))
def test_a_peak_in_symbols_is_that_of_other_sizes(name: str) -> None:
    """By the graphs of another run, each exported at its own sizes."""
    target = DECODERS[name]()
    run, other = (
        target.workload(batch=b, text_tokens=s, new_tokens=n, dtype="float32", attention="eager")
        for b, s, n in ((2, 24, 2), (3, 41, 5))
    )
    known = {i.stage: {**target.info().symbols, **i.symbols} for i in target.invocations(other)}
    found = [*call_peaks(target, run, eager=False)]
    forms = {call.stage: call.form for call in found}
    given = {call.stage: call.given for call in found}
    for _, of in calls(target, other):
        graph = peaks_of(of, eager=False).graph
        assert graph is not None
        assert evaluate(forms[of.stage], known[of.stage]) == graph.bytes
        inputs = sum(tensor.bytes for tensor in graph.alive if not tensor.operator)
        assert evaluate(given[of.stage], known[of.stage]) == inputs


def test_a_peak_in_symbols_that_does_not_hold_here_is_not_told() -> None:
    found = peaks_of(job(Mlp(functional.gelu), 2, 3, 4))
    kept = with_symbolic_peak(found, SymbolicPeak("432*B", "48*B"), {"B": 2})
    assert (kept.form, kept.given, kept.notes) == ("432*B", "48*B", ())
    with pytest.raises(Bug, match="given"):  # an input of 2 x 3 x 4 numbers in float32
        with_symbolic_peak(found, SymbolicPeak("432*B", "44*B"), {"B": 2})
    other = with_symbolic_peak(found, SymbolicPeak("432*B", "48*B"), {"B": 3})
    assert other.form == ""
    unknown = with_symbolic_peak(found, SymbolicPeak("432*B", "48*B"), {"S": 2})
    assert unknown.form == ""
    assert "symbols without a value" in unknown.notes[0]
    assert other.notes[0].endswith(
        "at these sizes the model takes another branch than its graph in symbols, with 1,296 bytes"
    )


@pytest.mark.slow
@pytest.mark.parametrize("attention", [pytest.param("sdpa", marks=pytest.mark.thorough), "eager"])
@pytest.mark.parametrize("name", with_variants(DECODERS, ("qwen3-moe",)))
def test_decoders_hold_what_a_run_holds(name: str, attention: AttentionKind) -> None:
    """Prefill and the last of two steps, in float32, where shapes alone take another way for experts than numbers."""
    target = DECODERS[name]()
    run = target.workload(batch=2, text_tokens=24, new_tokens=2, dtype="float32", attention=attention)
    for _, of in calls(target, run):
        check_against_runs(of)
