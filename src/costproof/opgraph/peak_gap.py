"""Why a module as written holds more than its exported graph at the worst moment, tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from difflib import SequenceMatcher

from costproof.ledger.peaks import GapPart, LiveTensor
from costproof.opgraph.liveness import Timeline


def gap_parts(
    graph: Timeline, eager: Timeline, holders: Callable[[int, Collection[int]], Mapping[int, tuple[str, ...]]]
) -> tuple[GapPart, ...]:
    """The parts of the eager peak less the graph peak; they sum to it.

    The graph is looked at where it makes the tensor at which the module has its peak, or the last one before that
    the two have in common. What the module holds there and the graph does not, and the other way round, are the parts;
    and how far the graph is from its own peak there.

    Args:
        holders: (event of the module's run, numbers of tensors) -> the variables that hold them then.
    """
    same = _same(graph, eager)
    at = eager.highest()
    here = max((_made(graph)[same[e.tensor]] for e in eager.events[: at + 1] if e.tensor in same), default=-1)
    mine, its = eager.alive(at), set(graph.alive(here))
    common = {n: same[n] for n in mine if same.get(n) in its}
    held = [n for n in mine if n in same and n not in common]
    by = holders(at, [n for n in mine if n not in common])
    parts = [GapPart("held", eager.tensors[n].bytes, eager.tensors[n], tuple(by.get(n, ()))) for n in held]
    alone = [n for n in mine if n not in same]
    parts += [GapPart("eager only", eager.tensors[n].bytes, eager.tensors[n], tuple(by.get(n, ()))) for n in alone]
    others = sorted(its - set(common.values()))
    parts += [GapPart("graph only", -graph.tensors[n].bytes, graph.tensors[n]) for n in others]
    top = graph.highest()
    beyond = (graph.held()[here] if here >= 0 else 0) - (graph.held()[top] if top >= 0 else 0)
    if beyond:
        parts.append(GapPart("elsewhere", beyond, None, where=graph.tensors[graph.events[top].tensor].module))
    return tuple(parts)


def _made(line: Timeline) -> dict[int, int]:
    """Tensor -> the event that makes it."""
    return {e.tensor: at for at, e in enumerate(line.events) if e.made}


def _same(graph: Timeline, eager: Timeline) -> dict[int, int]:
    """Tensors of the run -> tensors of the graph that the same operator makes at the same place of the same order."""
    mine, its = (tuple(map(_key, line.tensors)) for line in (eager, graph))
    return dict(_pairs(SequenceMatcher(None, mine, its, autojunk=False)))


def _pairs(found: SequenceMatcher[tuple[object, ...]]) -> Iterator[tuple[int, int]]:
    for block in found.get_matching_blocks():
        yield from ((block.a + i, block.b + i) for i in range(block.size))


def _key(tensor: LiveTensor) -> tuple[object, ...]:
    return (tensor.module, tensor.operator, tensor.name, tensor.shape, tensor.dtype, tensor.bytes)
