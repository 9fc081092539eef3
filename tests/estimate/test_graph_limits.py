"""Limits of a model without formulas, read off its graphs. Expected values are worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final, cast

import pytest

import costproof
from costproof.algebra.conditions import Condition
from costproof.algebra.evaluation import evaluate
from costproof.algebra.symbols import parse
from costproof.estimate.memory import Fits, MemoryLimit
from costproof.ledger.errors import BadInput, Bug, Incomplete
from costproof.ledger.metrics import Metric
from costproof.ledger.node import CostNode, Ledger
from costproof.ledger.peaks import CallPeaks
from costproof.ledger.workload import Invocation, Workload
from costproof.models.target import Exportable
from costproof.run.graph_limits import GraphRun
from costproof.run.operands import read_operand
from costproof.tracers.peaks.calls import released_peaks

OLMO2: dict[str, Any] = {
    "model_type": "olmo2", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 4, "vocab_size": 64, "max_position_embeddings": 128, "pad_token_id": 0, "eos_token_id": 1,
}  # fmt: skip


ROOM: Final = 46_000
PHASES: Final = set[str]()
"""Phases that a progress bar has been told."""
WIDE: Final = 240_000
"""Room for a text as long as the context."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the configuration."""
    made = tmp_path_factory.mktemp("olmo2")
    (made / "c.json").write_text(json.dumps(OLMO2))
    return made


@cache
def answer(folder: Path, own: str, memory: int = ROOM) -> Fits:
    """Return whether the run fits; two tests look at it."""
    return costproof.fits(f"hf:{folder}/c.json,{own}", memory=memory, progress=lambda phase, *_: PHASES.add(phase))


@cache
def live(folder: Path, batch: int, text_tokens: int) -> int:
    """Return the largest live peak of the graphs of a run, each exported once for all tests."""
    target = read_operand(f"hf:{folder}/c.json,seq-len=10").origin
    assert isinstance(target, Exportable)
    workload = replace(answer(folder, "seq-len=10").workload, batch=batch, text_tokens=text_tokens)
    return max(released_peaks(target, workload).values())


@pytest.mark.usefixtures("one_process")
def test_a_model_without_formulas_has_the_limits_of_its_graphs(folder: Path) -> None:
    found = answer(folder, "batch=2,seq-len=10", WIDE)
    assert {"static", "peaks"} <= PHASES
    # Two tables, four matrices of attention, three of the MLP, five norms.
    weights = 2 * (2 * 64 * 32 + 4 * 32 * 32 + 3 * 32 * 48 + 5 * 32)
    assert found.weights_bytes == weights
    held, token = weights + (found.buffers_bytes or 0), 2 * 32 * 2
    assert found.cache_bytes == 2 * 11 * token  # a prompt of ten and a step
    assert found.token_bytes == token
    batch, tokens = (x for x in found.limits if x.held == "weights and cache")
    first = (WIDE - held) // (11 * token) + 1
    assert (batch.setting, batch.outcome, batch.at) == ("batch", "from", first)
    assert [(p.at, p.bytes) for p in batch.points] == [(n, held + n * 11 * token) for n in (first - 1, first)]
    longest = (WIDE - held) // (2 * token) - 1
    assert (tokens.setting, tokens.outcome, tokens.at) == ("text_tokens", "refused", longest + 1)
    assert "longer than the model's context" in tokens.why


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("own", ["batch=2,seq-len=10", "seq-len=10"])
def test_a_limit_of_the_live_peak_is_that_of_a_search_by_graphs(folder: Path, own: str) -> None:
    """Graphs on both sides of each limit; a batch of 1 is a number in its own graph."""
    found = answer(folder, own)

    def fit(batch: int = found.workload.batch, text_tokens: int = 10) -> bool:
        return (found.lasting_bytes or 0) + live(folder, batch, text_tokens) <= ROOM

    batch, tokens = (x for x in found.limits if x.held == "weights and live peak")
    assert batch.at is not None
    assert batch.at > 3
    assert [fit(batch=n) for n in (batch.at - 1, batch.at)] == [True, False]
    assert tokens.at is not None
    assert [fit(text_tokens=n) for n in (tokens.at - 1, tokens.at)] == [True, False]
    assert [(p.at, p.bytes <= ROOM) for p in batch.points] == [(batch.at - 1, True), (batch.at, False)]


@pytest.mark.usefixtures("one_process")
def test_each_estimate_tells_how_far_exports_are(folder: Path) -> None:
    target, policy = f"hf:{folder}/c.json,seq-len=10", folder / "policy.yaml"
    policy.write_text("costproof_policy: 1\nlimits:\n  - {metric: flops, increase: 0}\n")
    phases: list[str] = []

    def say(phase: str, *_: int) -> None:
        phases.append(phase)

    calls: dict[str, Callable[[], object]] = {
        "roofline": lambda: costproof.roofline(target, on="h100-sxm", progress=say),
        "diff": lambda: costproof.diff(target, target, progress=say),
        "gate": lambda: costproof.gate(target, target, policy=policy, progress=say),
        "sweep": lambda: costproof.sweep(target.partition(",")[0], {"seq_len": [10]}).stream(lambda _: None, say),
    }
    for name, call in calls.items():
        phases.clear()
        call()
        assert "static" in phases, name


@pytest.mark.usefixtures("one_process")
def test_a_live_limit_of_other_bytes_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As without the weights: its graphs have other sizes than the limit has."""
    right = GraphRun.live_limit
    monkeypatch.setattr(GraphRun, "live_limit", lambda self, setting, lasting, room: right(self, setting, 0, room))
    with pytest.raises(Bug, match="weights and live peak: bytes at batch"):
        costproof.fits(f"hf:{folder}/c.json,batch=2,seq-len=10", memory=ROOM)


@pytest.mark.usefixtures("one_process")
def test_each_stage_has_the_peak_of_its_own_graph(folder: Path) -> None:
    found = answer(folder, "batch=2,seq-len=10")
    target = read_operand(f"hf:{folder}/c.json,seq-len=10").origin
    assert isinstance(target, Exportable)
    peaks = released_peaks(target, found.workload)
    assert {stage.id: stage.live_bytes for stage in found.stages} == peaks
    assert peaks["prefill"] > peaks["decode"]
    assert (found.live_source, found.live_bytes) == ("graph", peaks["prefill"])


WITH_IMAGES: Final[dict[str, Any]] = {
    "model_type": "mistral3", "architectures": ["Mistral3ForConditionalGeneration"], "image_token_index": 10,
    "spatial_merge_size": 2, "vision_feature_layer": -1,
    "text_config": {
        "model_type": "mistral", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 512,
        "sliding_window": None,
    },
    "vision_config": {
        "model_type": "pixtral", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8,
        "num_attention_heads": 4, "image_size": 56, "patch_size": 14,
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
def test_stages_inside_the_graph_of_another_have_its_peak(tmp_path: Path) -> None:
    """The prompt's graph has the tower and the projector."""
    (tmp_path / "c.json").write_text(json.dumps(WITH_IMAGES))
    at = f"hf:{tmp_path}/c.json,seq_len=24"
    one = costproof.fits(at, memory=130_000)
    peaks = [(s.id, s.live_bytes) for s in one.stages]
    assert [name for name, peak in peaks if peak is None] == ["vision_tower", "multi_modal_projector"]
    assert one.live_bytes == max(peak or 0 for _, peak in peaks)
    assert (one.verdict, one.exit_code) == ("does not fit", 1)
    held = (one.lasting_bytes or 0) + (one.live_bytes or 0)
    assert costproof.fits(at, memory=held).verdict == "fits"


@pytest.mark.usefixtures("one_process")
def test_a_longest_text_of_the_model_is_shown_to_fit(folder: Path) -> None:
    """The context of 128 positions ends a text of 127 and a step, for which a graph is exported."""
    found = answer(folder, "batch=2,seq-len=10", WIDE)
    (tokens,) = (x for x in found.limits if x.held == "weights and live peak" and x.setting == "text_tokens")
    assert tokens.outcome == "refused"
    assert [(p.at, p.bytes <= WIDE) for p in tokens.points] == [(127, True)]


def test_a_graph_that_contradicts_the_peak_in_symbols_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs of 500 tokens and more hold 8,000 bytes, which the form of those below does not have."""
    workload = Workload("custom", text_tokens=10, new_tokens=0, batch=2)
    run = GraphRun(cast(Exportable, Toy()), workload, Ledger("static", (), (), ()))

    def forms(_: object, at: Workload, _stages: object) -> tuple[CallPeaks, ...]:
        form = "8*B*S + 8000" if at.text_tokens >= 500 else "8*B*S"
        return (CallPeaks("prefill", "prompt", "", None, None, form=form),)

    def peaks(_: object, at: Workload, *_more: object) -> dict[str, int]:
        return {"prefill": 8 * at.batch * at.text_tokens + (8_000 if at.text_tokens >= 500 else 0)}

    monkeypatch.setattr("costproof.tracers.peaks.calls.released_forms", forms)
    monkeypatch.setattr("costproof.tracers.peaks.calls.released_peaks", peaks)
    (found,) = run.live_limit("text_tokens", 100, 100 + 16 * 600)
    assert (found.outcome, found.at) == ("from", 500)
    assert [(p.at, p.bytes) for p in found.points] == [(499, 100 + 16 * 499), (500, 100 + 16_000)]


def test_a_batch_whose_peak_has_no_symbols_is_found_by_its_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """5,000 bytes, 80 for each row, and 16 more at every fourth: 4 q + r rows take 5,000 + 336 q + 80 r.

    100 rows take 13,400. For 10**9, q = 2,976,175 leaves 200, two rows: 11,904,702.
    """

    def peak(batch: int) -> int:
        return 5_000 + 80 * batch + 16 * (batch // 4)

    def no_forms(_: object, at: Workload, _stages: object) -> tuple[CallPeaks, ...]:
        tried.append(at)
        raise Incomplete("the model's code loops over the tokens")

    def count(_: object, at: Workload, *_more: object) -> dict[str, int]:
        counted.append(at.batch)
        return {"prefill": peak(at.batch)}

    tried, counted = list[Workload](), list[int]()
    monkeypatch.setattr("costproof.tracers.peaks.calls.released_forms", no_forms)
    monkeypatch.setattr("costproof.tracers.peaks.calls.released_peaks", count)
    workload = Workload("custom", text_tokens=10, new_tokens=0, batch=1)
    for room, first in ((13_399, 100), (13_400, 101), (5_160, 3), (5_079, 1), (10**9, 11_904_703)):
        run = GraphRun(cast(Exportable, Toy()), workload, Ledger("static", (), (), ()))
        counted.clear()
        (found,) = run.live_limit("batch", 100, 100 + room)
        assert (found.outcome, found.at) == ("from", first)
        expected = [(n, 100 + peak(n)) for n in (first - 1, first) if n]
        assert [(p.at, p.bytes) for p in found.points] == expected
        assert {first - 1, first} - {0} <= {*counted}
        assert len(counted) <= 6
    # A longer text would need a graph for every loop, so none is looked for.
    assert len(tried) == 5
    (longest,) = run.live_limit("text_tokens", 100, 20_000)
    assert (longest.outcome, longest.at, longest.why) == ("not solved", None, "the model's code loops over the tokens")
    assert len(tried) == 5


def two_stages(
    monkeypatch: pytest.MonkeyPatch, prefill: str, decode: str, room: int
) -> tuple[MemoryLimit, list[tuple[str, ...]], list[tuple[int, tuple[str, ...]]]]:
    """Return the limit of the text of two rows of 10 tokens, whose stages hold these bytes, beside 100 constant ones.

    Also returned are the stages of the exports in symbols, and (length, stages) of those with constant sizes.
    """
    held = {"prefill": prefill, "decode": decode}
    in_symbols, constant = list[tuple[str, ...]](), list[tuple[int, tuple[str, ...]]]()

    def forms(_: object, at: Workload, stages: tuple[str, ...] = ()) -> tuple[CallPeaks, ...]:
        in_symbols.append(stages)
        return tuple(CallPeaks(s, "prompt", "", None, None, form=held[s]) for s in stages or held)

    def peaks(_: object, at: Workload, progress: object, confirmed: object, stages: Sequence[str]) -> dict[str, int]:
        constant.append((at.text_tokens, tuple(stages)))
        return {s: evaluate(parse(held[s]), {"B": at.batch, "S": at.text_tokens}) for s in stages or held}

    def invocations(_: Toy, workload: Workload) -> tuple[Invocation, ...]:
        sizes = {"B": workload.batch, "S": workload.text_tokens}
        return tuple(Invocation(s, "prompt", 1, sizes, ()) for s in held)

    monkeypatch.setattr(Toy, "invocations", invocations)
    monkeypatch.setattr("costproof.tracers.peaks.calls.released_forms", forms)
    monkeypatch.setattr("costproof.tracers.peaks.calls.released_peaks", peaks)
    workload = Workload("custom", text_tokens=10, new_tokens=0, batch=2)
    run = GraphRun(cast(Exportable, Toy()), workload, Ledger("static", (), (), ("prefill", "decode")))
    (found,) = run.live_limit("text_tokens", 100, 100 + room)
    return found, in_symbols, constant


def test_the_stage_that_decides_is_looked_at_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 bytes a token of the prompt: 600 fit into 9,615, and 601 do not. A step holds 4, so 2,404 at 601 at most."""
    found, in_symbols, constant = two_stages(monkeypatch, "8*B*S", "2*B*S", 9_615)
    assert (found.outcome, found.at) == ("from", 601)
    assert [(p.at, p.bytes) for p in found.points] == [(600, 100 + 9_600), (601, 100 + 9_616)]
    assert in_symbols == [("prefill",)]
    assert constant == [(10, ()), (601, ()), (600, ("prefill",))]


def test_a_stage_that_decides_elsewhere_is_looked_at_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 10 tokens the prompt holds 160 bytes and a step 100; of 100 it holds 1,600 and the step 10,000, all of it."""
    found, in_symbols, constant = two_stages(monkeypatch, "8*B*S", "S*S", 10_000)
    assert (found.outcome, found.at) == ("from", 101)
    assert [(p.at, p.bytes) for p in found.points] == [(100, 100 + 10_000), (101, 100 + 10_201)]
    assert in_symbols == [("prefill",), ()]  # 16 bytes a token propose 626
    assert constant == [(10, ()), (626, ()), (625, ("decode",)), (101, ()), (100, ("decode",))]


def test_stages_whose_peaks_are_close_are_looked_at_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step holds 8 bytes more than a prompt: 9,608 of 600 tokens, less than the 9,616 of a prompt of 601."""
    found, _, constant = two_stages(monkeypatch, "8*B*S", "8*B*S + 8", 9_615)
    assert (found.outcome, found.at) == ("from", 601)
    assert [(p.at, p.bytes) for p in found.points] == [(600, 100 + 9_608), (601, 100 + 9_624)]
    assert constant == [(10, ()), (601, ()), (600, ("decode",)), (600, ("prefill",))]


class Toy:
    """A target whose cache has 8 bytes for each token of each row."""

    def invocations(self, workload: Workload) -> tuple[Invocation, ...]:
        return (Invocation("prefill", "prompt", 1, {"B": workload.batch, "S": workload.text_tokens}, ()),)

    def check(self, workload: Workload) -> None:
        if workload.text_tokens > 1_000:
            raise BadInput("too long a text")


def limit(
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
    room: int,
    *,
    free: str = "BS",
    conditions: tuple[Condition, ...] = (),
    form: str = "8*B*S",
    **own: int,
) -> MemoryLimit:
    monkeypatch.setattr(GraphRun, "_graphs", lambda self: [("prefill", frozenset(free), conditions)])
    (found,) = toy_run(form, **own).limits(setting, 100, room)
    return found


def toy_run(form: str, **own: int) -> GraphRun:
    """Return a run whose graph has this formula of the cache bytes; of an unknown cache, if there is none."""
    exprs: dict[Metric, str] = {"kv_cache_bytes": form} if form else {}
    node = CostNode("prefill", "prompt", "a", "", {} if form else {"kv_cache_bytes": None}, exprs)
    ledger = Ledger(source="static", nodes=(node,), metrics=("kv_cache_bytes",), stages=("prefill",))
    workload = replace(Workload("custom", text_tokens=10, new_tokens=0, batch=2), **cast("dict[str, Any]", own))
    return GraphRun(cast(Exportable, Toy()), workload, ledger)


def test_a_cache_that_grows_in_steps_has_no_bytes_of_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 8 bytes a token the next one takes 8; with one entry of 4 tokens the twelfth takes 16, the eleventh 8."""
    monkeypatch.setattr(GraphRun, "_graphs", lambda self: [("prefill", frozenset("BS"), ())])
    assert toy_run("8*B*S").token_bytes() == 8
    for text in (10, 11):
        assert toy_run("B*(8*S + 8*floor(S/4))", text_tokens=text).token_bytes() is None


def test_a_limit_is_where_one_more_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    found = limit(monkeypatch, "text_tokens", 100 + 8 * 2 * 999)
    assert (found.outcome, found.at, [p.bytes for p in found.points]) == ("from", 1_000, [100 + 15_984, 100 + 16_000])
    first = limit(monkeypatch, "text_tokens", 100 + 15)
    assert (first.outcome, first.at) == ("not solved", None)  # a graph of ten need not be that of one
    alone = limit(monkeypatch, "text_tokens", 99)  # the weights take 100, whatever the cache of one token is
    assert (alone.outcome, alone.at, alone.points) == ("from", 1, ())


def test_a_run_that_the_model_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found = limit(monkeypatch, "text_tokens", 100 + 8 * 2 * 1_000)
    assert (found.outcome, found.at, found.why) == ("refused", 1_001, "too long a text")
    assert [(p.at, p.bytes) for p in found.points] == [(1_000, 100 + 8 * 2 * 1_000)]  # the last that is accepted


def test_without_an_accepted_value_below_none_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class that takes texts of 5 tokens and more; 16 bytes a token, and room for 3, then for none."""

    def check(_: Toy, workload: Workload) -> None:
        if workload.text_tokens < 5:
            raise BadInput("too short a text")

    form = CallPeaks("prefill", "prompt", "", None, None, form="8*B*S")
    monkeypatch.setattr(Toy, "check", check)
    monkeypatch.setattr("costproof.tracers.peaks.calls.released_forms", lambda *_: (form,))
    monkeypatch.setattr(
        "costproof.tracers.peaks.calls.released_peaks",
        lambda _, at, *_more: {"prefill": 8 * at.batch * at.text_tokens},
    )
    workload = Workload("custom", text_tokens=10, new_tokens=0, batch=2)
    for room in (100 + 16 * 3, 100 + 15):
        run = GraphRun(cast(Exportable, Toy()), workload, Ledger("static", (), (), ()))
        for found in (limit(monkeypatch, "text_tokens", room), *run.live_limit("text_tokens", 100, room)):
            assert (found.outcome, found.at, found.why) == ("from", 5, "")
            assert [(p.at, p.bytes) for p in found.points] == [(5, 100 + 16 * 5)]


def test_a_first_accepted_value_whose_graph_fits_is_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class that takes texts of 5 tokens and more, room for 3 of 16 bytes, and a graph of 5 that holds 40 < 48."""

    def check(_: Toy, workload: Workload) -> None:
        if workload.text_tokens < 5:
            raise BadInput("too short a text")

    form = CallPeaks("prefill", "prompt", "", None, None, form="8*B*S")
    monkeypatch.setattr(Toy, "check", check)
    monkeypatch.setattr("costproof.tracers.peaks.calls.released_forms", lambda *_: (form,))
    monkeypatch.setattr("costproof.tracers.peaks.calls.released_peaks", lambda *_: {"prefill": 40})
    workload = Workload("custom", text_tokens=10, new_tokens=0, batch=2)
    run = GraphRun(cast(Exportable, Toy()), workload, Ledger("static", (), (), ()))
    (found,) = run.live_limit("text_tokens", 100, 100 + 16 * 3)
    assert (found.outcome, found.at, found.points) == ("not solved", None, ())
    assert found.why == "its graph at 5, the first accepted value, contradicts that of others"


def test_beyond_the_conditions_of_an_export_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    window = (Condition("S <= 500", "500 - S"),)
    found = limit(monkeypatch, "text_tokens", 100 + 8 * 2 * 600, conditions=window)
    assert (found.outcome, found.why) == ("not solved", "the graph of prefill holds only where S <= 500")
    assert limit(monkeypatch, "text_tokens", 100 + 8 * 2 * 499, conditions=window).outcome == "from"
    flat = limit(monkeypatch, "text_tokens", 10_000, conditions=window, form="8*B")
    assert flat.outcome == "not solved"
    assert limit(monkeypatch, "text_tokens", 10_000, form="8*B").outcome == "never"


def test_never_is_claimed_only_where_nothing_varies(monkeypatch: pytest.MonkeyPatch) -> None:
    bounded = limit(monkeypatch, "text_tokens", 10_000, form="8*B*Min(S, 500)")
    assert (bounded.outcome, bounded.at, bounded.points[0].bytes) == ("not solved", None, 100 + 8 * 2 * 10)
    assert bounded.why == "it fits at every value tried, up to 1,099,511,627,776; larger ones were not looked at"
    # Met at 10 and at 2**40, and not between.
    gap = (Condition("(S - 20)**2 >= 1", "(S - 20)**2 - 1"),)
    assert limit(monkeypatch, "text_tokens", 10_000, form="8*B", conditions=gap).outcome == "not solved"
    apart = (Condition("B >= 2", "B - 2"),)
    assert limit(monkeypatch, "text_tokens", 10_000, form="8*B", conditions=apart).outcome == "never"


def test_a_cache_of_unknown_size_has_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    found = limit(monkeypatch, "text_tokens", 10_000, form="")
    assert (found.outcome, found.at, found.points, found.why) == ("not solved", None, (), "the cache of a is not known")


def test_a_size_that_the_export_has_as_a_number_is_not_varied(monkeypatch: pytest.MonkeyPatch) -> None:
    found = limit(monkeypatch, "batch", 1_000, free="S", form="8*S", batch=1)
    assert found.outcome == "not solved"
    assert "exported at batch 1, as a number" in found.why
