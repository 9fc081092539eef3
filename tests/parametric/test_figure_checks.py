"""Times, memory and limits are counted again: by hand here, and a planted mistake ends the command that shows it."""

from __future__ import annotations

import csv
import importlib
import io
import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import costproof
from costproof.analytic.latent_attention import LatentBlock
from costproof.analytic.layer_memory import LayerTape
from costproof.analytic.memory_tape import MemoryTape
from costproof.estimate import links
from costproof.estimate.arithmetic import FUSED, Arithmetic
from costproof.ledger.baseline import Folded
from costproof.ledger.errors import Bug
from costproof.ledger.mesh import Mesh, Schedule
from costproof.models import cache_dtype
from costproof.models import settings as settings_module
from costproof.models.decoding import sharding
from costproof.models.families.deepseek_ocr.target import DeepseekOcr
from costproof.models.families.llama import Llama
from costproof.models.families.mistral import Mistral
from costproof.parametric.cache_checks import _in_use
from costproof.parametric.memory_checks import graph_recounts
from costproof.parametric.targets import evaluate_formulas
from costproof.parametric.time_checks import run_schedule
from costproof.reports.roofline import roofline_csv
from costproof.run.capture import _padding
from costproof.storage import formats

settings: Any = settings_module
decoding_module: Any = importlib.import_module("costproof.models.decoding.target")
estimate_module: Any = importlib.import_module("costproof.estimate.roofline")
fits_module: Any = importlib.import_module("costproof.run.fits")
layout_module: Any = importlib.import_module("costproof.tracers.stored_module")
memory_module: Any = importlib.import_module("costproof.estimate.memory")
pages_module: Any = importlib.import_module("costproof.models.pages.target")
peaks_module: Any = importlib.import_module("costproof.run.peaks")
quantised_module: Any = importlib.import_module("costproof.analytic.quantised")
report_module: Any = importlib.import_module("costproof.reports.roofline")
operands_module: Any = importlib.import_module("costproof.run.operands")
roofline_module: Any = importlib.import_module("costproof.run.roofline")
routing_module: Any = importlib.import_module("costproof.estimate.routing")
storage_module: Any = importlib.import_module("costproof.analytic.storage")
stored_module: Any = importlib.import_module("costproof.run.stored")


def test_a_schedule_step_by_step() -> None:
    # 1F1B, 2 stages, 2 microbatches: stage 0 F0 F1 . B0 . B1, stage 1 . F0 B0 F1 B1 . : 6 steps, 4 of them busy.
    assert run_schedule("1f1b", 2, 2, 1) == (6, [2, 0])
    # GPipe: F0 F1 . . B0 B1 and . F0 F1 B0 B1 . : as long.
    assert run_schedule("gpipe", 2, 2, 1) == (6, [2, 0])
    # Two parts a stage: a stage has 8 steps of work and waits for one part forwards and one backwards, of half a step.
    assert run_schedule("interleaved", 2, 2, 2) == (10, [4, 2])


def test_blocks_that_hold_a_token_in_use() -> None:
    # Behind 40 tokens, a query with a window of 24 needs the tokens 17 to 40: blocks 1 and 2 of 16.
    assert _in_use(40, 1, 24, 16) == (2, 24)
    # Behind 39 it needs 16 to 39: the same blocks. Behind 38, 15 to 38: block 0 too.
    assert _in_use(39, 1, 24, 16) == (2, 24)
    assert _in_use(38, 1, 24, 16) == (3, 24)
    assert _in_use(10_000, 6, 0, 16) == (626, 10_006)  # 10,006 / 16 = 625.4


LLAMA = "llama-3.1-8b@chat,text_tokens=500,new_tokens=2,layers=1"
QWEN = "qwen3-30b-a3b@chat,text_tokens=4,new_tokens=2,layers=1,tp=2,ep=2"
MISTRAL = "mistral@chat,window=24,layers=1,text_tokens=40,new_tokens=7,kv_block=16"
OSS = "gpt-oss-20b@chat,text_tokens=12,new_tokens=2,layers=1"


def _roofline(target: str, **given: Any) -> Callable[[], object]:
    return lambda: costproof.roofline(target, on="h100-sxm", **given)


def _without_routing(
    self: Any, workload: Any, folded: Any = None, right: Any = operands_module.LayerRouting.of_rank
) -> Any:
    """Return what a rank counts under a routing, of other ranks than the first with the experts of the bound."""
    found = right(self, workload, folded)
    if workload.rank == 0:
        return found
    counts = operands_module.baseline_by_formulas(self.target, workload).sources["analytic"]
    return replace(found, folded=operands_module.mean_counts(counts, workload))


def _fits(target: str, memory: str = "3GB", reserve: str | None = None) -> Callable[[], object]:
    return lambda: costproof.fits(target, memory=memory, reserve=reserve)


def _after(owner: Any, name: str, change: Callable[[Any], Any]) -> tuple[Any, str, object]:
    """Return a replacement of a function that changes its result."""
    right = getattr(owner, name)
    return owner, name, lambda *args, **given: change(right(*args, **given))


def _with_symbol(name: str, value: int, stage: str = "") -> Callable[[Any], Any]:
    """Return a change of calls in which a symbol has another value."""
    return lambda calls: tuple(
        replace(call, symbols={**call.symbols, name: value})
        if name in call.symbols and call.stage.startswith(stage) else call
        for call in calls
    )  # fmt: skip


def _formulas(family: Any, preset: str | None = None, **given: Any) -> Callable[[], object]:
    return lambda: evaluate_formulas(model := family.default(), model.workload(preset, **given))


def _never_freed(tape: MemoryTape, inputs_held: bool, right: Any = MemoryTape._each_event) -> Any:
    return right(tape, True)


def _freed_early(tape: MemoryTape, inputs_held: bool, right: Any = MemoryTape._each_event) -> Any:
    """Yield releases before the allocation of the last reader."""
    events = [*right(tape, inputs_held)]
    ends = [i for i in range(len(events) - 1) if events[i][1] > 0 > events[i + 1][1]]
    for i in ends:
        events[i], events[i + 1] = events[i + 1], events[i]
    yield from events


def _without_numbers(
    self: LayerTape, elements: Any, rows: Any, reads: Any, *mask: Any, right: Any = LayerTape._fused
) -> Any:
    return right(self, elements, rows, (*reads, *(piece for piece in mask[:1] if piece is not None)))


PLANTED: dict[str, tuple[tuple[Any, str, object], Callable[[], object]]] = {
    "softmax in the run's dtype": (
        (LayerTape, "_softmax", lambda self, weights, scores: self._narrow(
            self._make(scores, self._widen(weights, scores), weights), scores)),
        _fits(f"{LLAMA},attention=eager"),
    ),
    "a mask that is not made numbers": ((LayerTape, "_fused", _without_numbers), _fits(f"{LLAMA},past=301")),
    "inputs that stay": ((MemoryTape, "_each_event", _never_freed),
                         _fits("qwen3-8b@chat,text_tokens=20,past=30,layers=1")),
    "memory freed before the result exists": ((MemoryTape, "_each_event", _freed_early), _fits(LLAMA)),
    "masks of two bytes for three": ((memory_module, "_MASK_BYTES", "(2*b + 4)*"), _fits(LLAMA)),
    "T for P": ((memory_module, "_PREFIXES", "kMGPT"), _fits(LLAMA, "3TB")),
    "a window cached without its last token": (
        _after(Mistral, "blocked_cache", lambda of: replace(
            of, groups=tuple(replace(group, window=group.window - 1) for group in of.groups))),
        _fits(MISTRAL),
    ),
    "absorbing saves what it expands": (
        _after(LatentBlock, "_saved", lambda saved: saved + 1),
        _roofline("deepseek-v3@chat,text_tokens=4,past=20,new_tokens=1,layers=4"),
    ),
    "calls of one step": (
        _after(routing_module, "_touched_experts", lambda found: [replace(one, calls=1) for one in found]),
        _roofline(OSS, routing="uniform"),
    ),
    "an unpacked matrix of four bytes": (
        _after(fits_module, "_stored_weights",
               lambda of: (replace(of[0], largest_matrix=2 * of[0].largest_matrix), of[1])),
        _fits("gpt-oss-20b@chat,text_tokens=12"),
    ),
    "products in the dtype of the weights": (
        _after(estimate_module, "arithmetic_of", lambda of: (replace(of[0], instead={"float8": "float16"}), of[1])),
        _roofline("deepseek-v3@chat,text_tokens=4,new_tokens=1,layers=4"),
    ),
    "kept FLOPs of all scores": (
        _after(roofline_module, "bounds",
               lambda of: (replace(of[0], modules=replace(of[0].modules, kept=of[0].modules.flops)), *of[1:])),
        _roofline(LLAMA),
    ),
    "no time of what is skipped": (
        _after(roofline_module, "bounds", lambda of: (of[0], tuple(replace(s, full=None) for s in of[1]), of[2])),
        _roofline(OSS),
    ),
    "experts of all tokens but one": (
        _after(routing_module, "uniform_text", lambda text: f"{text}**2"), _roofline(OSS, routing="uniform"),
    ),
    "experts of a rank among all experts": (
        (routing_module, "uniform_experts", lambda experts, top_k, tokens, held, right=routing_module.uniform_experts:
         right(held, top_k, tokens)),
        _roofline(f"{OSS},tp=2,ep=2,batch=4", routing="uniform"),
    ),
    "tokens of one batch of the group": (
        (routing_module, "_weight_line", lambda source, values, right=routing_module._weight_line:
         (lambda held, rows, *line: (held, rows // 2, *line))(*right(source, values))),
        _roofline(f"{OSS},dp=2,ep=2,batch=4", routing="uniform"),
    ),
    "another rank reads all of its experts": (
        (operands_module.LayerRouting, "of_rank", _without_routing),
        _roofline(f"{OSS},tp=2,dp=2,ep=2,batch=3", routing="uniform"),
    ),
    "a send to the rank before": (
        _after(Mesh, "ranks_of", lambda ranks: (ranks[0], 3) if len(ranks) == 2 else ranks),
        _roofline("llama-3.1-8b@chat,text_tokens=12,layers=4,pp=4"),
    ),
    "idle of all but the own steps": (
        (Schedule, "idle", property(lambda self: Fraction(self.stages - 1, self.parts * self.microbatches))),
        _roofline("llama-3.1-8b@chat,text_tokens=12,layers=4,pp=2", microbatches=4),
    ),
    "sends of the last stage": (
        (Schedule, "sends", lambda self, stage: self.parts * self.microbatches),
        _roofline("llama-3.1-8b@chat,text_tokens=12,layers=4,pp=2", microbatches=4),
    ),
    "results of all experts": (
        (links, "by_rows", lambda metric: metric == "params_active" or metric.endswith("flops")), _roofline(QWEN),
    ),
    "unfused bytes of all experts": (
        _after(operands_module, "mean_of_experts",
               lambda of: replace(of, rows={s: {p: {k: {**c, "unfused_bytes": (c.get("unfused_bytes") or 0) // 2}
                                                    for k, c in kinds.items()} for p, kinds in parts.items()}
                                            for s, parts in of.rows.items()})),
        _roofline(QWEN),
    ),
    "exposed by the links": (
        _after(roofline_module, "with_links", lambda of: replace(of, exposed_s=of.seconds)),
        _roofline(f"{LLAMA},tp=2"),
    ),
    "overlapped by the links": (
        _after(roofline_module, "with_links", lambda of: replace(of, overlapped_s=of.seconds)),
        _roofline(f"{LLAMA},tp=2"),
    ),
    "seconds of the shorter clock": (
        _after(roofline_module, "bounds",
               lambda of: (replace(of[0], modules=replace(of[0].modules, seconds=of[0].modules.compute_s)), *of[1:])),
        _roofline(LLAMA),
    ),
    "gathered without the layer before": (
        _after(fits_module, "gathered_bytes", lambda n: n - 2), _fits(f"{LLAMA},batch=2,fsdp=2,rank=0", "9GB"),
    ),
    "a token of the batch": (
        _after(fits_module, "_token_bytes", lambda n: 2 * n), _fits(f"{LLAMA},batch=2"),
    ),
    "blocks without what they add": (
        _after(cache_dtype.BlockedCache, "surplus", lambda of: dict.fromkeys(of, 0)), _fits(f"{LLAMA},kv_block=16"),
    ),
    "a window that ends late": (
        (cache_dtype, "blocks_held", lambda past, new, window, size: (
            -(-(past + new) // size) - max(0, past - window) // size, past + new - max(0, past - window))),
        _fits(MISTRAL),
    ),
    "live limits without the unpacked matrix": (
        (fits_module, "memory_limits",
         lambda *of, right=fits_module.memory_limits: right(*of[:-1], 0)), _fits(OSS, "4GB"),
    ),
    "the largest packed matrix": (
        _after(fits_module, "stored_checkpoint", lambda of: replace(of, largest_matrix=of.largest_matrix // 8)),
        _fits(OSS, "4GB"),
    ),
    "a matrix of the whole model": (
        _after(fits_module, "_largest_matrix", lambda n: 2 * n), _fits(f"{OSS},tp=2,ep=2,rank=1", "4GB"),
    ),
    "another matrix by the formulas": (
        _after(fits_module, "largest_matrix", lambda n: n - 1), _fits(f"{OSS},tp=2,ep=2,rank=1", "4GB"),
    ),
    "logits of several sequences as those of one": (
        (sharding.Shards, "steps",
         lambda self, *of, right=sharding.Shards.steps: replace(right(self, *of), one_row=True)),
        _fits("llama-3.1-8b@chat,text_tokens=2,new_tokens=2,layers=1,batch=64,logits=last,tp=2,rank=1"),
    ),
    "a live peak of ranks that share tokens": (
        (sharding.Shards, "steps", lambda self, *of, right=sharding.Shards.steps: right(
            replace(self, plan=replace(self.plan, sequence=False)), *of)),
        _fits("llama-3.1-8b@chat,text_tokens=8,new_tokens=2,layers=1,tp=2,plan=megatron,rank=1"),
    ),
    "the run of the first rank": (
        (fits_module, "baseline_by_formulas",
         lambda target, work, right=fits_module.baseline_by_formulas: right(
             target, replace(work, inputs={**work.inputs, "rank": 0}))),
        _fits(f"{LLAMA},batch=3,dp=2"),
    ),
    "all of the memory in spite of a reserve": (
        (fits_module, "_Room",
         lambda device, room, kept, *more, right=fits_module._Room: right(device, room + kept, kept, *more)),
        _fits(LLAMA, reserve="0.1"),
    ),
    "half of the reserve": (_after(fits_module, "_reserve", lambda n: n // 2), _fits(LLAMA, reserve=".1")),
    "buffers twice": (_after(fits_module, "choose_source", lambda of: (of[0], _double(of[1], "buffer_bytes"))),
                      _fits(f"{LLAMA},tp=2,rank=1")),
    "weights of a rank with those of the next": (
        _after(fits_module, "choose_source", lambda of: (of[0], _double(of[1], "resident_bytes"))),
        _fits(f"{OSS},tp=2,rank=1"),
    ),
    "weights of a rank twice": (
        _after(fits_module, "choose_source", lambda of: (of[0], _double(of[1], "weight_bytes"))),
        _fits(f"{LLAMA},tp=2,rank=1"),
    ),
    "logits of all positions": (
        (fits_module._LiveMemory, "with_last_logits", lambda self: max(self.stages().values())),
        _fits(f"{LLAMA},tp=2,rank=1"),
    ),
    "few logits of the smallest stage": (
        (fits_module._LiveMemory, "with_last_logits", lambda self: min(self.stages(logits="last").values())),
        _fits(f"{LLAMA},tp=2"),
    ),
    "few logits where there are no others": (
        (fits_module._LiveMemory, "with_last_logits", lambda self: max(self.stages(logits="last").values())),
        _fits(f"{LLAMA},tp=2,logits=last"),
    ),
    "the live peak of one device": (
        (fits_module, "live_peaks",
         lambda model, work, right=fits_module.live_peaks, **given: right(
             model, replace(work, inputs={k: v for k, v in work.inputs.items() if k not in ("tp", "rank")}), **given)),
        _fits(f"{LLAMA},tp=2,rank=1"),
    ),
    "the cache of another stage": (
        _after(fits_module, "StageMemory",
               lambda of: replace(of, cache_bytes=of.cache_bytes + (2 if of.id == "prefill" else -2))),
        _fits(f"{LLAMA},tp=2"),
    ),
    "peaks gathered without the layer before": (
        _after(peaks_module, "gathered_bytes", lambda n: n - 2),
        lambda: costproof.peaks("llama-3.1-8b", text_tokens=4, new_tokens=0, layers=1, batch=2, fsdp=2),
    ),
    "scales of half the bytes": (
        (cache_dtype, "CACHE_FORMATS",
         {**cache_dtype.CACHE_FORMATS, "int8": replace(cache_dtype.CACHE_FORMATS["int8"], scale_bytes=2)}),
        _fits(f"{LLAMA},kv_dtype=int8"),
    ),
    "a latent without scales": (
        (cache_dtype, "latent_bytes", lambda rank, rope: rank + 2 * rope),
        _fits("deepseek-v2-lite@chat,text_tokens=4,layers=1,kv_dtype=fp8"),
    ),
    "a side of a border twice": (
        _after(roofline_module, "_borders", lambda of: [
            replace(b, points=tuple(replace(p, right=str(2 * Fraction(p.right))) for p in b.points)) for b in of]),
        _roofline(f"{LLAMA},tp=2"),
    ),
    "a border of all rows of shared experts": (
        (roofline_module, "mean_terms", lambda terms, ledger, shared: links.scaled(terms, shared)),
        _roofline(QWEN),
    ),
    "weights read unpacked, in borders": (
        (roofline_module, "UNPACKED", "kv_read_bytes"), _roofline(OSS),
    ),
    "sends of the stage with the number of the rank": (
        (roofline_module, "schedule_recounts", lambda of, mesh, rank, said, right=roofline_module.schedule_recounts:
         right(of, mesh, rank, of.sends(rank))),
        _roofline("llama-3.1-8b@chat,text_tokens=12,layers=4,tp=2,pp=2,rank=1", microbatches=4),
    ),
    "bytes of a part that is not packed": (
        (estimate_module, "UNPACKED", "buffer_bytes"), _roofline(OSS),
    ),
    "a floor that reads all experts": ((estimate_module, "_spared_experts", lambda rows: 0), _roofline(OSS)),
    "a faster peak of three products": (
        _after(roofline_module, "roof", lambda of: replace(of, peaks={**of.peaks, FUSED: of.peaks[FUSED] + 2})),
        _roofline(LLAMA),
    ),
    "unpacking twice": (
        _after(roofline_module, "unpacking_time", lambda of: replace(of, seconds=str(2 * Fraction(of.seconds)))),
        _roofline(OSS),
    ),
    "experts that less is read of": (
        _after(operands_module, "apply_routing",
               lambda of: (*of[:2], tuple(replace(one, bytes=one.bytes - 1) for one in of[2]))),
        _roofline(OSS, routing="uniform"),
    ),
    "float8 without a peak": (
        _after(estimate_module, "arithmetic_of", lambda of: (replace(of[0], unpacked=frozenset()), of[1])),
        lambda: costproof.roofline("deepseek-v3@chat,text_tokens=4,new_tokens=1,layers=4", on="a100-sxm-80gb"),
    ),
    "payload for what is sent": (
        (Folded, "total", lambda self, metric, stage=None, right=Folded.total:
         right(self, "comm_payload_bytes" if metric == "comm_bytes" else metric, stage)),
        lambda: costproof.roofline(f"{LLAMA},tp=4", on="rtx-4090"),
    ),
    "the smaller peak with last logits": (
        (fits_module._LiveMemory, "with_last_logits", lambda self: min(self.stages(logits="last").values())),
        _fits(f"{LLAMA},logits=all"),
    ),
    "weights of a mesh without buffers": (
        _after(fits_module, "_formula_weights", lambda n: n - 256),
        lambda: costproof.fits(LLAMA, on="2xh100-sxm"),
    ),
    "padding of one step": (
        _after(Llama, "token_padding", lambda of: tuple(replace(one, flops=one.flops // one.calls) for one in of)),
        lambda: _padding(llama := Llama.default(), llama.workload("chat", text_tokens=12, new_tokens=3, pad_to="16")),
    ),
    "padding of one sequence": (
        _after(Llama, "token_padding", lambda of: tuple(replace(one, tokens=1) for one in of)),
        lambda: _padding(llama := Llama.default(), llama.workload("chat", batch=2, new_tokens=3, pad_to="16")),
    ),
    "waste as a share of what is used": (
        _after(cache_dtype.BlockedCache, "rows", lambda of: tuple(replace(row, waste_share="1/7") for row in of)),
        lambda: _padding(llama := Llama.default(), llama.workload("chat", text_tokens=12, kv_block=16)),
    ),
    "elements of one of equal tensors": (
        (stored_module, "totals", lambda of, right=stored_module.totals: right(replace(one, count=1) for one in of)),
        lambda: costproof.stored("qwen3-30b-a3b"),
    ),
    "biases of experts twice": (
        _after(layout_module, "stored_modules", lambda of: [
            replace(m, plain=[t for one in m.plain for t in (one, one)[: 1 + (one.purpose == "bias")]],
                    quantised=[t for one in m.quantised for t in (one, one)[: 1 + (one.purpose == "bias")]])
            for m in of]),
        lambda: costproof.stored("gpt-oss-20b"),
    ),
    "bytes of a part twice": (
        _after(stored_module, "parts_of", lambda of: (replace(of[0], bytes=2 * of[0].bytes), *of[1:])),
        lambda: costproof.stored("qwen3-30b-a3b"),
    ),
    "elements of a part twice": (
        _after(stored_module, "parts_of", lambda of: (replace(of[0], elements=2 * of[0].elements), *of[1:])),
        lambda: costproof.stored("qwen3-30b-a3b"),
    ),
    "a ridge at half of the bandwidth": (
        _after(report_module, "_ridge", lambda of: 2 * of),
        lambda: report_module.device_line(costproof.roofline(LLAMA, on="h100-sxm")),
    ),
    "the largest matrix of all": (
        _after(stored_module, "StoredCheckpoint", lambda of: replace(of, largest_matrix=of.largest_matrix + 1)),
        lambda: costproof.stored("qwen3-30b-a3b"),
    ),
    "float32 attention at the peak of float32": (
        (Arithmetic, "named", lambda self, dtype, kind: dtype), _roofline(f"{LLAMA},dtype=float32"),
    ),
    "inputs of fp8 that are integers": (
        (formats.Fp8, "products", property(lambda self: "other")),
        _roofline("deepseek-v3@chat,text_tokens=4,new_tokens=1,layers=4"),
    ),
    "devices that share a sequence": (
        (roofline_module, "read_operand", lambda target, *of, right=roofline_module.read_operand, **given: right(
            target.replace(",tp=", ",cp="), *of, **given)),
        lambda: costproof.roofline(LLAMA, on="2xh100-sxm"),
    ),
    "pairs from the last rank on": (
        _after(routing_module, "pairs_of", lambda rows: rows[::-1]),
        _roofline("qwen3-30b-a3b@chat,text_tokens=1,new_tokens=0,layers=1,batch=2,dp=2,ep=2,dispatch=all-to-all,pairs=6+2;3+5"),
    ),
    "positions that all have logits": (
        _after(decoding_module, "invocations", _with_symbol("L", 12)),
        _formulas(Llama, text_tokens=12, logits="last"),
    ),
    "the context of a window without the prompt": (
        _after(decoding_module, "invocations", _with_symbol("P", 0)),
        _formulas(Mistral, text_tokens=5_000, new_tokens=2),
    ),
    "vision tokens without their separator": (
        _after(pages_module, "page_invocations", _with_symbol("V", 272)), _formulas(DeepseekOcr, preset="base"),
    ),
    "views of a batch": (
        _after(pages_module, "page_invocations", _with_symbol("B", 2, "sam")), _formulas(DeepseekOcr, preset="base"),
    ),
    "rows without a past": (
        _after(settings, "_written", lambda row: (row[0], 0, *row[2:])), lambda: settings.rows_of("5, 2x1+7", "last"),
    ),
    "equal rows once": (
        (settings, "_checked", lambda row, where, usual, right=settings._checked: (*right(row, where, usual)[:3], 1)),
        lambda: settings.rows_of("5,2x1+7/0,1", "last"),
    ),
}  # fmt: skip


def test_an_answer_of_graphs_is_counted_again() -> None:
    # Bytes of 8 key/value heads of 128 numbers: 4,096 for a token of a sequence, with two sequences 8,192.
    found = costproof.fits(f"{LLAMA},batch=2", memory="3GB")
    assert (found.token_bytes, found.cache_bytes) == (4_096, 2 * 502 * 4_096)
    by_cache, by_peak = (
        next(x for x in found.limits if (x.setting, x.held) == ("batch", f"weights and {held}"))
        for held in ("cache", "live peak")
    )

    def shifted(limit: Any, by: int) -> Any:
        return replace(limit, points=tuple(replace(point, bytes=point.bytes + by) for point in limit.points))

    def wrong(of: Any) -> set[str]:
        return {one.where for one in graph_recounts(of) if one.found != one.again}

    assert not wrong(found)
    assert wrong(replace(found, token_bytes=8_192)) == {"a token of a sequence"}
    assert by_cache.held in wrong(replace(found, limits=(shifted(by_cache, -4_096),)))
    # A model may compare each sequence with each other one, as CLIP does: then its peak grows with their square.
    lasting = found.lasting_bytes or 0
    pairs = tuple(replace(by_peak.points[0], at=n, bytes=lasting + n * n) for n in (1_000, 1_001))
    assert not wrong(
        replace(found, memory_bytes=lasting + 1_000_000, limits=(replace(by_peak, at=1_001, points=pairs),))
    )


def test_rows_of_a_step_are_counted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = {
        "num_scheduled_tokens": {"a": 5, "b": 1, "c": 3}, "scheduled_spec_decode_tokens": {"c": [1, 2]},
        "scheduled_new_reqs": [{"req_id": "a", "num_computed_tokens": 4}],
        "scheduled_cached_reqs": {"req_ids": ["b", "c"], "num_computed_tokens": [7, 9]},
    }  # fmt: skip
    (tmp_path / "step.json").write_text(json.dumps(step), encoding="utf-8")
    (tmp_path / "rows.csv").write_text("new,past,count,logits\n3,7,2,\n5,,1,2\n", encoding="utf-8")
    assert [row.text for row in settings.rows_of(str(tmp_path / "step.json"), "last")] == ["5+4/1", "1+7", "3+9/3"]
    assert [row.text for row in settings.rows_of(str(tmp_path / "rows.csv"), "last")] == ["2x3+7/1", "5/2"]
    monkeypatch.setattr(*_after(settings, "_step", lambda rows: rows and [(n, p, None, k) for n, p, _, k in rows]))
    with pytest.raises(Bug, match="counted in another way"):
        settings.rows_of(str(tmp_path / "step.json"), "last")
    monkeypatch.setattr(*_after(settings, "_named", lambda row: (*row[:3], 1)))
    with pytest.raises(Bug, match="counted in another way"):
        settings.rows_of(str(tmp_path / "rows.csv"), "last")


def _double(of: Any, metric: str) -> Any:
    """Return counts of which one metric is doubled."""
    rows = {stage: {part: {kind: {m: 2 * n if m == metric else n for m, n in costs.items()}
                           for kind, costs in kinds.items()} for part, kinds in parts.items()}
            for stage, parts in of.rows.items()}  # fmt: skip
    return replace(of, rows=rows)


def test_a_cache_format_of_the_configuration_that_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scheme = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor", "dynamic": False}
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
    described = {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "kv_cache_scheme": scheme,
        "ignore": ["lm_head"], "config_groups": {"a": {"targets": ["Linear"], "weights": weights}},
    }  # fmt: skip
    data = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 64,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 64,
        "max_position_embeddings": 64, "dtype": "bfloat16", "quantization_config": described,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(data), encoding="utf-8")
    target = f"hf:{tmp_path / 'config.json'}@chat,text_tokens=7,new_tokens=1"
    # Eight tokens, keys and values of 32 numbers, of one byte.
    assert costproof.fits(target, memory="1MB").cache_bytes == 8 * 2 * 32
    assert costproof.fits(f"{target},kv_dtype=run", memory="1MB").cache_bytes == 2 * 8 * 2 * 32
    monkeypatch.setattr(cache_dtype, "with_cache_format", lambda workload, given, default: workload)
    with pytest.raises(Bug, match="as the configuration names it"):
        costproof.fits(target, memory="1MB")


QUANTISED: dict[str, tuple[type, Callable[[Any, Any], Any], dict[str, Any]]] = {
    "nested maxima without their products": (
        formats.FourBit, lambda of, m: m.o * m.i,
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
         "bnb_4bit_use_double_quant": True, "llm_int8_skip_modules": ["lm_head"]},
    ),
    "groups without their zero points": (
        formats.Mlx, lambda of, m: m.o * m.i, {"group_size": 64, "bits": 4, "mode": "affine"},
    ),
    "a scale and a zero point": (
        formats.Gptq, lambda of, m: 2 * m.o * m.i,
        {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": False},
    ),
}  # fmt: skip
"""Formats whose unpacking no module shows without its library: class, mistaken FLOPs, settings."""


def test_the_work_of_another_arithmetic_is_not_known(tmp_path: Path) -> None:
    """An A100 has no peak of float8: weights are unpacked there, which needs other work than the scales of products."""
    data = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 128, "intermediate_size": 192,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 64,
        "max_position_embeddings": 64, "dtype": "bfloat16", "tie_word_embeddings": False,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(data), encoding="utf-8")
    target = f"hf:{tmp_path / 'config.json'}@chat,text_tokens=7,new_tokens=2"
    found = costproof.roofline(target, on="a100-sxm-80gb")
    assert [(own.stage, own.flops, own.seconds) for own in found.unpacking] == [
        ("prefill", None, None), ("decode", None, None),
    ]  # fmt: skip
    assert None not in {own.flops for own in costproof.roofline(target, on="h100-sxm").unpacking}


@pytest.mark.parametrize("name", QUANTISED)
def test_unpacking_is_counted_again(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, wrong, settings_of = QUANTISED[name]
    data = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 128, "intermediate_size": 192,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 64,
        "max_position_embeddings": 64, "dtype": "float16", "tie_word_embeddings": False,
        "quantization" if kind is formats.Mlx else "quantization_config": settings_of,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(data), encoding="utf-8")
    target = f"hf:{tmp_path / 'config.json'}@chat,text_tokens=7,new_tokens=2"
    # Of 128 x 128 twice, 64 x 128 twice and 192 x 128 three times: with a product for each weight, two for each block.
    weights = 2 * 128 * 128 + 2 * 64 * 128 + 3 * 192 * 128
    each = weights + (2 * weights // 64 if kind is formats.FourBit else 0)
    found = costproof.roofline(target, on="h100-sxm")
    if kind is not formats.Mlx:  # which quantises the tables too
        assert [own.flops for own in found.unpacking] == [each, 2 * each]
        rows = [row for row in csv.DictReader(io.StringIO(roofline_csv(found))) if row["level"] == "stage unpacking"]
        shown = [(row["stage"], row["unpacking_flops"], row["at_vector_peak_s"]) for row in rows]
        vector = 67 * 10**12  # float32, of the H100's data sheet
        assert shown == [("prefill", str(each), str(Fraction(each, vector))),
                         ("decode", str(2 * each), str(Fraction(2 * each, vector)))]  # fmt: skip
    monkeypatch.setitem(quantised_module._UNPACKING, kind, wrong)
    _forget_formulas()
    # Formulas of equal configurations are kept elsewhere, too.
    (tmp_path / "config.json").write_text(json.dumps(data | {"hidden_size": 256}), encoding="utf-8")
    with pytest.raises(Bug, match="unpacking"):
        costproof.roofline(target, on="h100-sxm")
    _forget_formulas()


def _forget_formulas() -> None:
    for kept in vars(storage_module).values():
        if hasattr(kept, "cache_clear"):
            kept.cache_clear()


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, command = PLANTED[name]
    monkeypatch.setattr(*plant)
    with pytest.raises(Bug, match="counted in another way"):
        command()


def test_bytes_that_are_not_sent_in_time() -> None:
    """Of Llama 70B on 8 ranks and one token, 161 sums of 8,192 numbers: 2 x 7 / 8 x 16,384 B each, and the logits."""
    found = costproof.roofline("llama-3.1-70b@chat,text_tokens=1,new_tokens=0,tp=8", on="rtx-4090")
    assert found.links is None
    assert any(f": {161 * 28_672 + 7 * 2 * 128_256 // 8:,} B in tp 8" in note for note in found.notes)
