"""Threads that count at once: they wait for each other, and leave torch as it was."""

from __future__ import annotations

import os
import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from costproof.foreign import contained
from costproof.ledger.errors import BadInput
from costproof.opgraph.graph import OpCall, Value
from costproof.opgraph.rules import registry
from costproof.opgraph.rules.cost import OpCost
from costproof.opgraph.rules.names import canonical
from costproof.processes import template
from costproof.run import capture, proof
from costproof.run import count_lock as lock


def test_one_count_goes_on_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    inside: list[int] = []
    most: list[int] = []

    def counted(*_: object, **__: object) -> Any:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.02)
        inside.pop()
        torch.set_default_dtype(before)
        return SimpleNamespace(name="", config={}, fixed={}), ()

    asked = cast("Any", SimpleNamespace(rules=(), no_cache=True))
    monkeypatch.setattr(capture, "_count_all", counted)
    monkeypatch.setattr("costproof.models.generic.live_module.at_hand", lambda *_: nullcontext(counted()))
    monkeypatch.setattr(proof, "request", lambda *_, **__: asked)
    monkeypatch.setattr(proof, "prepare_derivation", lambda _: (5, lambda: counted()[0]))
    monkeypatch.setattr("costproof.tracers.derive.closed.derive", counted)
    monkeypatch.setattr(proof, "closed_form", lambda *_: None)
    calls = (lambda: capture.count_sources(asked), lambda: proof.derive("x"), lambda: _refused(capture))
    threads = [threading.Thread(target=calls[i % 3]) for i in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(most) == {1}
    assert len(most) == 12  # a derivation builds its subject, and counts
    assert torch.get_default_dtype() == torch.float32


def _refused(of: Any) -> None:
    with pytest.raises(AttributeError):  # what stands for a target is none
        of.count(torch.nn.Linear(1, 1), torch.zeros(1, 1))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked")
def test_locks_that_another_thread_has_are_free_in_a_forked_child() -> None:
    def taken() -> list[Any]:
        return [lock._lock, registry._lock]

    held, go_on = threading.Event(), threading.Event()

    def holds() -> None:
        with taken()[0], taken()[1]:
            held.set()
            go_on.wait(60)

    thread = threading.Thread(target=holds)
    thread.start()
    assert held.wait(60)
    child = os.fork()
    if not child:
        os._exit(sum(not found.acquire(blocking=False) for found in (*taken(), template._lock)))
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert not any(found.acquire(blocking=False) for found in taken())
    go_on.set()
    thread.join()
    assert ended == 0


def test_a_thread_may_count_within_its_own_count() -> None:
    with lock.count_lock(), lock.count_lock():
        pass


def test_a_rule_of_another_package_waits_for_no_thread_that_guards_foreign_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The guarding thread may wait for the one that applies the rule, whose failure is named as ever."""

    def halves(op: OpCall) -> OpCost:
        return OpCost(flops=int(op.outputs[0].shape[0]) // 2)

    def exits(op: OpCall) -> OpCost:
        raise SystemExit(3)

    info = next(info for info in registry.rule_table() if info.operator == "relu")
    op = OpCall("relu", "aten.relu.default", "", 1, (), (Value("x", (8,), "float32"),))
    found: list[object] = []

    def apply() -> None:
        try:
            found.append(registry.cost_of(op))
        except BadInput as error:
            found.append((error.what, error.got))

    for rule in (halves, exits):
        monkeypatch.setitem(registry._rules, canonical(op.name), (rule, info))
        thread = threading.Thread(target=apply, daemon=True)
        with contained("the factory failed", "here"):
            thread.start()
            thread.join(10)
            waiting = thread.is_alive()
        assert not waiting
    assert found[0] == OpCost(flops=4)
    assert found[1][0].startswith("the rule for relu failed")  # type: ignore[index]
