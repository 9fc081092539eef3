"""Sizes from two places: what a target says for its calls, and the shapes of what goes into them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from costproof.compare.compare import compare
from costproof.compare.verdict import exit_code, verdict_sentence
from costproof.ledger.capture import Capture
from costproof.ledger.workload import Invocation, Workload
from costproof.models.decoding import target as causal
from costproof.models.decoding.names import invocations
from costproof.models.proof import WithProof
from costproof.models.registry import load_target
from costproof.run.capture import count_sources
from costproof.run.prepare import Prepared
from costproof.tracers.static import input_sizes
from tests.recorded import families
from tests.support import builders as b

FAMILIES = families()


def sizes(target: Any, workload: Workload) -> dict[str, dict[str, int]]:
    return input_sizes(target, target.build(workload), workload)


def test_sizes_of_a_prompt_and_its_steps() -> None:
    target: Any = load_target("llama").with_keys({"layers": 1})  # type: ignore[attr-defined]
    found = sizes(target, Workload("text", 9, 4, 2))
    assert found == {"prefill[prompt]": {"B": 2, "S": 9}, "decode[steps]": {"B": 2, "P": 9, "N": 4}}
    assert sizes(target, Workload("text", 9, 0)) == {"prefill[prompt]": {"B": 1, "S": 9}}


def test_sizes_of_a_page_with_crops() -> None:
    """A view of 1024 has 16 rows of 16 and a newline, and a separator; 2 x 2 crops of 640 have 20 of 20 + 1."""
    target = load_target("deepseek-ocr")
    found = sizes(target, target.workload())
    assert found["prefill[prompt]"]["S"] == 16 * 17 + 1 + 20 * 21 + 512 == found["decode[steps]"]["P"]
    assert (found["sam[global]"], found["sam[crops]"]) == ({"n": 1}, {"n": 4})


def test_sizes_of_an_encoder_with_a_decoder() -> None:
    found = sizes(load_target("t5-small"), Workload("text", 11, 3, 2))
    assert found["encode[input]"] == {"B": 2, "S": 11}
    assert found["decode[steps]"] == {"B": 2, "P": 1, "N": 3}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_formulas_are_evaluated_at_these_sizes(family: str) -> None:
    target = FAMILIES[family]
    assert isinstance(target, WithProof)
    drawn = next(p for p in target.proof(1, 1).pieces if p.phase == "draws")
    said = {f"{i.stage}[{i.id}]": i.symbols for i in drawn.target.invocations(drawn.workload)}
    for call, found in sizes(drawn.target, drawn.workload).items():
        assert found.items() <= said[call].items(), call


def one_too_many(workload: Workload, call: int, *symbols: str) -> tuple[Invocation, ...]:
    """Return the calls of a run on text, of which one has sizes that are one too large."""
    right = list(invocations(workload))
    known = right[call].symbols
    right[call] = replace(right[call], symbols=known | {symbol: known[symbol] + 1 for symbol in symbols})
    return tuple(right)


def test_a_prompt_one_too_long_is_found_without_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    target = FAMILIES["llama"]
    assert isinstance(target, WithProof)
    pieces = (p for p in target.proof(16, 1).pieces if p.phase == "draws")
    drawn = min(pieces, key=lambda p: sum(p.target.info().symbols.values()))
    run = Prepared(drawn.target, drawn.workload, ("analytic", "static"))
    length = drawn.workload.text_tokens
    # With as many positions of logits; of other numbers the evaluation of formulas itself says that they differ.
    monkeypatch.setattr(causal, "invocations", lambda workload, _: one_too_many(workload, 0, "S", "L"))
    found = compare(count_sources(run).capture)
    assert (found.verdict, exit_code(found)) == ("unexplained", 1)
    place = f"S of prefill[prompt] is {length + 1:,} where costs are evaluated, {length:,} in the inputs of the static"
    assert place in verdict_sentence(found)


@pytest.mark.parametrize(("call", "symbol"), [(0, "B"), (1, "B"), (1, "P"), (1, "N")])
def test_every_size_of_a_call_is_compared(call: int, symbol: str) -> None:
    target: Any = load_target("llama").with_keys({"layers": 1})  # type: ignore[attr-defined]
    workload = Workload("text", 9, 4, 2)
    static = replace(b.static(), sizes=sizes(target, workload))

    def of(calls: tuple[Invocation, ...]) -> Capture:
        whole = b.capture((b.analytic(), static, b.dynamic()))
        return replace(whole, target=replace(whole.target, stages=("prefill", "decode")), invocations=calls)

    assert not compare(of(invocations(workload))).select(level="source")
    (wrong,) = compare(of(one_too_many(workload, call, symbol))).select(level="source")
    assert (wrong.id.partition("#")[2], wrong.status) == (symbol, "unexplained")
    assert [c.kind for c in wrong.causes] == ["input_sizes"]
