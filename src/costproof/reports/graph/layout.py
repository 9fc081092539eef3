"""Lay out a directed graph in layers from left to right, without external tools.

Sugiyama's method: cycles are broken, each node gets the rank of the longest path to it, arrows over several ranks
get a bend in each, ranks are ordered by barycenters as long as that saves crossings, and the nodes of a rank move
towards their neighbours without changing order or overlapping (least squares, pool adjacent violators).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import pairwise

_SWEEPS = 12
_MOVES = 40
COLUMN_GAP = 70
"""Pixels between the ranks (columns) of the layout."""
_ROW_GAP = 12
_BEND = 4
"""Pixels between the nodes of a rank, and height of the room for an arrow that passes the rank."""

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Layout:
    """Positions of nodes and of arrow bends, in pixels from the top left."""

    x: tuple[int, ...]
    y: tuple[int, ...]
    """Top left corner of each node."""
    ranks: tuple[int, ...]
    bends: Mapping[Pair, tuple[Pair, ...]]
    """(left end, y) and (right end, y) of the arrow's way through each rank that it passes, by arrow."""
    width: int
    height: int


def layout(sizes: Sequence[Pair], arrows: Iterable[Pair], gap: int = COLUMN_GAP, *, late: bool = False) -> Layout:
    """Assign positions to nodes of the given sizes (width, height).

    Args:
        sizes: in the order that siblings should have from top to bottom.
        arrows: (source, target) by index; to oneself and in circles is allowed.
        gap: between ranks.
        late: a node stands as near as it can to the first that it leads to; otherwise to the last that leads to it.
    """
    count = len(sizes)
    forward = _acyclic(count, sorted({(a, b) for a, b in arrows if a != b}))
    ranks = _ranks(count, forward)
    if late:
        ranks = _late(ranks, forward)
    rows, segments, chains = _with_bends(count, forward, ranks)
    rows = _fewest_crossings(rows, segments)
    heights = [sizes[i][1] if i < count else _BEND for row in rows for i in row]
    height_of = dict(zip((i for row in rows for i in row), heights, strict=True))
    centers = _straighten(rows, segments, height_of)
    widths = [max((sizes[i][0] for i in row if i < count), default=0) for row in rows]
    lefts = [sum(widths[:r]) + r * gap for r in range(len(rows))]
    top = min((centers[i] - height_of[i] / 2 for i in centers), default=0.0)
    middle = {i: round(c - top) for i, c in centers.items()}
    at = {i: r for r, row in enumerate(rows) for i in row}
    return Layout(
        x=tuple(lefts[ranks[i]] for i in range(count)),
        y=tuple(middle[i] - sizes[i][1] // 2 for i in range(count)),
        ranks=tuple(ranks),
        bends={
            pair: tuple(
                p for i in chain for p in ((lefts[at[i]], middle[i]), (lefts[at[i]] + widths[at[i]], middle[i]))
            )
            for pair, chain in chains.items()
        },
        width=(lefts[-1] + widths[-1]) if rows else 0,
        height=max((middle[i] + height_of[i] // 2 + 1 for i in middle), default=0),
    )


def crossings(rows: Sequence[Sequence[int]], segments: Iterable[Pair]) -> int:
    """Return the number of crossing pairs of arrows between neighboring ranks."""
    place = {i: p for row in rows for p, i in enumerate(row)}
    rank = {i: r for r, row in enumerate(rows) for i in row}
    between: dict[int, list[Pair]] = {}
    for a, b in segments:
        between.setdefault(rank[a], []).append((place[a], place[b]))
    return sum(
        1
        for lines in between.values()
        for i, (a, b) in enumerate(lines)
        for c, d in lines[i + 1 :]
        if (a - c) * (b - d) < 0
    )


def _acyclic(count: int, arrows: Sequence[Pair]) -> list[Pair]:
    """Return the arrows without those that close a cycle."""
    targets: dict[int, list[int]] = {i: [] for i in range(count)}
    called = set()
    for a, b in arrows:
        targets[a].append(b)
        called.add(b)
    state = [0] * count
    kept: list[Pair] = []
    for start in [*(i for i in range(count) if i not in called), *range(count)]:
        if state[start]:
            continue
        state[start] = 1
        stack = [(start, iter(targets[start]))]
        while stack:
            node, rest = stack[-1]
            target = next(rest, None)
            if target is None:
                state[node] = 2
                stack.pop()
            elif state[target] != 1:
                kept.append((node, target))
                if not state[target]:
                    state[target] = 1
                    stack.append((target, iter(targets[target])))
    return kept


def _ranks(count: int, arrows: Sequence[Pair]) -> list[int]:
    before: dict[int, list[int]] = {i: [] for i in range(count)}
    for a, b in arrows:
        before[b].append(a)
    ranks = [0] * count
    for node in TopologicalSorter(before).static_order():
        ranks[node] = max((ranks[a] + 1 for a in before[node]), default=0)
    return ranks


def _late(ranks: Sequence[int], arrows: Sequence[Pair]) -> list[int]:
    """Return the rank of each node, moved to just before the node's first successor."""
    after: dict[int, list[int]] = {}
    for a, b in arrows:
        after.setdefault(a, []).append(b)
    moved = list(ranks)
    for node in sorted(after, key=lambda i: -ranks[i]):
        moved[node] = min(moved[b] for b in after[node]) - 1
    return moved


def _with_bends(
    count: int, arrows: Sequence[Pair], ranks: Sequence[int]
) -> tuple[list[list[int]], list[Pair], dict[Pair, tuple[int, ...]]]:
    """Return the ranks with a placeholder node in every rank that a long arrow passes."""
    new = count
    segments: list[Pair] = []
    chains: dict[Pair, tuple[int, ...]] = {}
    rank = dict(enumerate(ranks))
    for a, b in arrows:
        chain = tuple(range(new, new + ranks[b] - ranks[a] - 1))
        new += len(chain)
        rank |= {i: ranks[a] + 1 + k for k, i in enumerate(chain)}
        if chain:
            chains[a, b] = chain
        segments += pairwise((a, *chain, b))
    targets: dict[int, list[int]] = {}
    # A bend stands where the node that it leads to would, so that siblings keep their order.
    leads = {i: b for (_, b), chain in chains.items() for i in chain}
    for a, b in sorted(segments, key=lambda s: leads.get(s[1], s[1])):
        targets.setdefault(a, []).append(b)
    rows: list[list[int]] = [[] for _ in range(max(rank.values(), default=-1) + 1)]
    seen: set[int] = set()
    reached = {b for _, b in segments}
    todo = [i for i in range(count - 1, -1, -1) if i not in reached]
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            rows[rank[node]].append(node)
            todo += reversed(targets.get(node, []))
    return rows, segments, chains


def _fewest_crossings(rows: list[list[int]], segments: Sequence[Pair]) -> list[list[int]]:
    before: dict[int, list[int]] = {}
    after: dict[int, list[int]] = {}
    for a, b in segments:
        after.setdefault(a, []).append(b)
        before.setdefault(b, []).append(a)
    best, least = rows, crossings(rows, segments)
    current = [list(row) for row in rows]
    for sweep in range(_SWEEPS):
        if least == 0:
            break
        down = sweep % 2 == 0
        order = range(1, len(current)) if down else range(len(current) - 2, -1, -1)
        for r in order:
            fixed = {i: p for p, i in enumerate(current[r - 1 if down else r + 1])}
            neighbours = before if down else after
            current[r] = _by_barycenter(current[r], {i: [fixed[j] for j in neighbours.get(i, ())] for i in current[r]})
        found = crossings(current, segments)
        if found < least:
            best, least = [list(row) for row in current], found
    return best


def _by_barycenter(row: list[int], around: Mapping[int, Sequence[int]]) -> list[int]:
    """Sort a rank by the mean position of neighbours; a node without neighbours follows its predecessor."""
    keys: dict[int, float] = {}
    last = -1.0
    for node in row:
        places = around[node]
        last = sum(places) / len(places) if places else last
        keys[node] = last
    return sorted(row, key=lambda i: keys[i])


def _straighten(
    rows: Sequence[Sequence[int]], segments: Sequence[Pair], heights: Mapping[int, int]
) -> dict[int, float]:
    """Return the centre of each node, close to the mean of its neighbours, with order and minimum gaps kept."""
    around: dict[int, list[int]] = {i: [] for row in rows for i in row}
    for a, b in segments:
        around[a].append(b)
        around[b].append(a)
    offsets: dict[int, float] = {}
    for row in rows:
        at = 0.0
        for k, i in enumerate(row):
            at += (heights[row[k - 1]] + heights[i]) / 2 + _ROW_GAP if k else 0.0
            offsets[i] = at
    middle = dict(offsets)
    for move in range(_MOVES):
        # The last move goes from right to left, so that a caller ends beside the middle of what it calls.
        for row in rows if move % 2 == 0 else reversed(rows):
            wanted = [sum(middle[j] for j in around[i]) / len(around[i]) if around[i] else middle[i] for i in row]
            placed = _ascending([w - offsets[i] for w, i in zip(wanted, row, strict=True)])
            middle |= {i: p + offsets[i] for p, i in zip(placed, row, strict=True)}
    return middle


def _ascending(values: Sequence[float]) -> list[float]:
    """Return the non-decreasing sequence nearest to the values in least squares (pool adjacent violators)."""
    pools: list[tuple[float, int]] = []
    for value in values:
        mean, size = value, 1
        while pools and pools[-1][0] > mean:
            other, more = pools.pop()
            mean, size = (mean * size + other * more) / (size + more), size + more
        pools.append((mean, size))
    return [mean for mean, size in pools for _ in range(size)]
