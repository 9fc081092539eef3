"""Lifetimes on graphs that are written by hand: every number can be added up on paper."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costproof.ledger.peaks import CallPeaks, LiveTensor
from costproof.opgraph.liveness import (
    LayerStack,
    MemoryEvent,
    MemoryProgram,
    ProgramStep,
    Timeline,
    composed,
    gap_parts,
    peak_of,
    released_peak,
    timeline,
)


def tensor(name: str, size: int, module: str = "") -> LiveTensor:
    """A tensor of so many bytes."""
    return LiveTensor(name, (size,), "uint8", size, "" if name == "x" else f"aten.{name}.default", module)


def made(number: int) -> MemoryEvent:
    return MemoryEvent(number, made=True)


def gone(number: int) -> MemoryEvent:
    return MemoryEvent(number, made=False)


X, A, B, C = (tensor(name, size) for name, size in (("x", 10), ("a", 100), ("b", 20), ("c", 5)))


def test_a_result_stands_beside_the_arguments_that_it_is_made_of() -> None:
    """x 10, a 100 of x, b 20 of a: 130 while b is made, then 30; c 5 of b: 35."""
    steps = (ProgramStep((0, 1), (made(1),)), ProgramStep((1, 2), (made(2),)), ProgramStep((2, 3), (made(3),)))
    found = timeline(MemoryProgram((X, A, B, C), (0,), steps, (3,)))
    assert found.held() == [10, 110, 130, 30, 35, 15]
    assert peak_of(found).bytes == 10 + 100 + 20
    assert [t.name for t in peak_of(found).alive] == ["x", "a", "b"]
    assert peak_of(found).operator == "aten.b.default"


def test_a_peak_without_the_inputs_that_are_read() -> None:
    """x 10 makes a 100, of which c 5 is made; b 104 of c: c and b, 109, are fewer than 110; with x kept they are more.

    An output that is read stays: with c 5 and b 104, a is 209.
    """
    wide = tensor("b", 104)
    steps = (ProgramStep((0, 1), (made(1),)), ProgramStep((1, 2), (made(2),)), ProgramStep((2, 3), (made(3),)))
    program = MemoryProgram((X, A, C, wide), (0,), steps, (3,))
    assert released_peak(program) == 10 + 100
    assert max(timeline(program).held()) == 10 + 5 + 104
    assert released_peak(replace(program, outputs=(1, 3))) == 100 + 5 + 104
    # of a block that the operator alone holds, and of an input that nothing reads, which stays
    hidden = (ProgramStep((0, 2), (made(1), made(2), gone(1))),)
    assert released_peak(MemoryProgram((X, A, B), (0,), hidden, (2,))) == 10 + 100 + 20
    assert released_peak(MemoryProgram((X, A, B), (0, 2), steps[:1], (1,))) == 10 + 20 + 100


def test_inputs_and_outputs_stay() -> None:
    """What the caller owns is not given back: x after its last reader, the output a to the end."""
    steps = (ProgramStep((0, 1), (made(1),)), ProgramStep((1, 2), (made(2),)))
    found = timeline(MemoryProgram((X, A, B), (0,), steps, (1, 2)))
    assert found.events == (made(0), made(1), made(2))
    assert found.held()[-1] == 130


def test_a_view_keeps_the_memory_that_it_is_in() -> None:
    """The second operator returns a view of a, which nothing else shows: a lives until the last reader of the view."""
    steps = (
        ProgramStep((0, 1), (made(1),)),
        ProgramStep((1,), ()),
        ProgramStep((0, 2), (made(2),)),
        ProgramStep((1, 3), (made(3),)),
    )
    found = timeline(MemoryProgram((X, A, B, C), (0,), steps, (3,)))
    assert found.held() == [10, 110, 130, 110, 115, 15]  # b, which nothing reads, is gone before c is made


def test_what_an_operator_holds_for_a_moment_counts() -> None:
    """An operator that is made of two: b 20 of a hidden copy a of 100 bytes."""
    steps = (ProgramStep((0, 2), (made(1), made(2), gone(1))),)
    found = timeline(MemoryProgram((X, A, B), (0,), steps, (2,)))
    assert peak_of(found).bytes == 10 + 100 + 20
    assert found.held()[-1] == 30


def test_the_curve_has_every_event_of_a_short_run() -> None:
    """x 10, a 110, b 130, a gone 30, c 35, b gone 15; what runs is the module that made the last piece."""
    tensors = (X, A, tensor("b", 20, "mlp"), tensor("c", 5, "out"))
    found = peak_of(Timeline(tensors, (made(0), made(1), made(2), gone(1), made(3), gone(2))))
    assert [(m.event, m.bytes, m.module) for m in found.curve] == [
        (0, 10, ""), (1, 110, ""), (2, 130, "mlp"), (3, 30, "mlp"), (4, 35, "out"), (5, 15, "out"),
    ]  # fmt: skip
    assert found.events == 6


def test_a_long_run_is_folded_and_keeps_its_peak() -> None:
    """301 pieces of 1, 2, … 301 bytes, each gone before the next is made, but the first: 602 events, 120 stretches.

    Held after piece n is made: 1 + n, so the peak is 302, after event 600 (the first, then made and gone in turn).
    602 * i // 120: the first stretches end at 5, 10, 15. Piece n + 1 is made in event 2 n - 1: in events 0 to 4 pieces
    2 and 3, at most 1 + 3, in event 3; in 5 to 9 pieces 4, 5 and 6, at most 1 + 6, in 9. Piece 301 is made in 599.
    """
    tensors = tuple(tensor(f"t{n}", n) for n in range(1, 302))
    turns = [event for i in range(1, 301) for event in (made(i), gone(i))]
    found = peak_of(Timeline(tensors, (made(0), *turns, gone(0))))
    assert (found.events, len(found.curve)) == (602, 120)
    assert [(m.event, m.bytes) for m in (found.curve[0], found.curve[1], found.curve[-1])] == [
        (3, 4),
        (9, 7),
        (599, 302),
    ]
    assert found.bytes == max(m.bytes for m in found.curve) == 302


def test_nothing_at_all_has_a_peak_of_nothing() -> None:
    assert peak_of(Timeline((), ())).bytes == 0


def test_the_gap_is_told_tensor_by_tensor() -> None:
    """The module keeps a (100) while b and c are made, and a mask of 7 that the graph does not have.

    Graph: x, a, b at 130, its peak; at c it holds x, b, c: 35. Module: x, mask, a, b, c: 142 at c. The gap of 12 is
    a 100 and the mask 7, less the 95 by which the graph is below its own peak there.
    """
    mask = tensor("mask", 7)
    graph = Timeline((X, A, B, C), (made(0), made(1), made(2), gone(1), made(3), gone(2)))
    eager = Timeline((X, mask, A, B, C), (made(0), made(1), made(2), made(3), made(4), gone(3)))
    parts = gap_parts(graph, eager, lambda event, wanted: {2: ("f: a",)} if event == 4 else {})
    assert [(p.kind, p.bytes, p.tensor and p.tensor.name, p.holders) for p in parts] == [
        ("held", 100, "a", ("f: a",)),
        ("eager only", 7, "mask", ()),
        ("elsewhere", -95, None, ()),
    ]
    call = CallPeaks("s", "i", "p", peak_of(graph), peak_of(eager), parts)
    assert (call.gap_bytes, call.residual) == (12, 0)


def test_equal_tensors_have_their_holders_in_one_order() -> None:
    """A model that loops over a set creates the two masks in any order."""
    mask = tensor("mask", 7)
    graph, eager = Timeline((X,), (made(0),)), Timeline((X, mask, mask), (made(0), made(1), made(2)))
    near, far = ("f: near",), ("f: far", "g: x")
    found = gap_parts(graph, eager, lambda event, wanted: {1: near, 2: far})
    assert [p.holders for p in found] == [far, near]
    assert found == gap_parts(graph, eager, lambda event, wanted: {1: far, 2: near})


def test_what_the_graph_alone_holds_is_subtracted() -> None:
    """The module frees b before c, the graph after: 10 + 100 + 5 against 10 + 100 + 20 + 5."""
    graph = Timeline((X, A, B, C), (made(0), made(1), made(2), made(3), gone(2)))
    eager = Timeline((X, A, B, C), (made(0), made(2), gone(2), made(1), made(3)))
    parts = gap_parts(graph, eager, lambda event, wanted: {})
    assert sum(p.bytes for p in parts) == (10 + 100 + 5) - (10 + 100 + 20 + 5)


def two_layers() -> MemoryProgram:
    """x 10 becomes a 100; each of two layers reads a mask 7 and a state 3, keeps c 5 and makes o 100; then y 40."""
    given = [tensor("x", size) for size in (10, 7, 3, 3)]
    layers = [tensor(name, size, f"h.{i}") for i in range(2) for name, size in (("c", 5), ("o", 100))]
    steps = (
        ProgramStep((0, 4), (made(4),), "embed"),
        ProgramStep((4, 1, 2, 5), (made(5),), "h.0"),
        ProgramStep((4, 5, 6), (made(6),), "h.0"),
        ProgramStep((6, 1, 3, 7), (made(7),), "h.1"),
        ProgramStep((6, 7, 8), (made(8),), "h.1"),
        ProgramStep((8, 9), (made(9),), "head"),
    )
    return MemoryProgram((*given, tensor("a", 100), *layers, tensor("y", 40)), (0, 1, 2, 3), steps, (5, 7, 9))


def test_a_program_of_four_layers_from_one_of_two() -> None:
    """The inputs are x 10, the mask 7 and four states of 3: 29. The mask goes where the last layer has read it."""
    found = composed(two_layers(), [LayerStack("h", 2, (0, 0, 0, 0))])
    assert found is not None
    embed = [29, 129, 119]  # a, then without x
    first = [124, 121, 221, 121]  # c, without the state, o, without a
    second, third = [126, 123, 223, 123], [128, 125, 225, 125]  # each keeps 5 and gives back 3
    last = [130, 123, 120, 220, 120]  # the mask goes, and then the state
    head = [160, 60]  # y, without the last o: four times c and y remain
    whole = timeline(found.program, inputs_held=False)
    assert whole.held()[len(found.program.inputs) - 1 :] == [*embed, *first, *second, *third, *last, *head]
    kept = [(found.program.tensors[i].name, found.program.tensors[i].module) for i in found.program.outputs]
    assert sorted(kept) == [*(("c", f"h.{i}") for i in range(4)), ("y", "")]


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({3: ProgramStep((6, 1, 3, 5, 7), (made(7),), "h.1")}, id="reads more than the other"),
        pytest.param({3: ProgramStep((6, 3, 7), (made(7),), "h.1")}, id="reads less than the other"),
        pytest.param({5: ProgramStep((8, 6, 9), (made(9),), "head")}, id="the head reads another layer"),
    ],
)
def test_a_program_whose_layers_differ(changed: dict[int, ProgramStep]) -> None:
    program = two_layers()
    steps = tuple(changed.get(at, step) for at, step in enumerate(program.steps))
    assert composed(replace(program, steps=steps), [LayerStack("h", 2, (0, 0, 0, 0))]) is None


def test_a_program_with_one_layer_of_an_omitted_kind() -> None:
    assert composed(two_layers(), [LayerStack("h", 2, (0, 1, 0, 1))]) is None
