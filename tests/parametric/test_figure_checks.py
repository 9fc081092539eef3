"""Times, memory and limits are counted again: by hand here, and a planted mistake ends the command that shows it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

import costproof
from costproof.estimate import links
from costproof.ledger.errors import Bug
from costproof.ledger.mesh import Mesh, Schedule
from costproof.models import cache_dtype
from costproof.parametric.memory_checks import _in_use
from costproof.parametric.time_checks import run_schedule

fits_module: Any = importlib.import_module("costproof.run.fits")
roofline_module: Any = importlib.import_module("costproof.run.roofline")


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


def _fits(target: str, memory: str = "3GB") -> Callable[[], object]:
    return lambda: costproof.fits(target, memory=memory)


def _after(owner: Any, name: str, change: Callable[[Any], Any]) -> tuple[Any, str, object]:
    """Return a replacement of a function that changes its result."""
    right = getattr(owner, name)
    return owner, name, lambda *args, **given: change(right(*args, **given))


PLANTED: dict[str, tuple[tuple[Any, str, object], Callable[[], object]]] = {
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
        _after(roofline_module, "mean_of_experts",
               lambda of: replace(of, rows={s: {p: {k: {**c, "unfused_bytes": (c.get("unfused_bytes") or 0) // 2}
                                                    for k, c in kinds.items()} for p, kinds in parts.items()}
                                            for s, parts in of.rows.items()})),
        _roofline(QWEN),
    ),
    "exposed by the links": (
        _after(roofline_module, "_with_links", lambda of: replace(of, exposed_s=of.seconds)),
        _roofline(f"{LLAMA},tp=2"),
    ),
    "overlapped by the links": (
        _after(roofline_module, "_with_links", lambda of: replace(of, overlapped_s=of.seconds)),
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
    "the run of the first rank": (
        (fits_module, "baseline_by_formulas",
         lambda target, work, right=fits_module.baseline_by_formulas: right(
             target, replace(work, inputs={**work.inputs, "rank": 0}))),
        _fits(f"{LLAMA},batch=3,dp=2"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, command = PLANTED[name]
    monkeypatch.setattr(*plant)
    with pytest.raises(Bug, match="counted in another way"):
        command()
