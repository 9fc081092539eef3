"""Count a key/value cache as engines keep it: in formats with fewer bits, and in blocks of tokens.

The sources count the cache in the dtype of the run; its bytes are replaced by those of another format. Blocks change no
metric: what they hold beyond the cache is named waste.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final

import sympy

from costproof.algebra.symbols import parse, sym, text
from costproof.analytic.costs import IN_DTYPE_OF_RUN, CacheShares
from costproof.ledger.attributes import attribute
from costproof.ledger.capture import BlockPadding
from costproof.ledger.errors import BadInput, CostproofError
from costproof.ledger.metrics import FLOOR, UNFUSED, Metric
from costproof.ledger.node import CostNode, Ledger
from costproof.ledger.workload import FLOAT_BYTES, KV_DTYPE, BatchRow, Workload
from costproof.models.decoding.names import STAGES
from costproof.models.target import Setting, Target
from costproof.storage.tensors import Size, StoredTensor, ceil_div


@dataclass(frozen=True, slots=True)
class CacheFormat:
    """Cache format that stores each key and value vector, of one head and token, quantised with its scales."""

    bits: int
    """Bits of an element."""
    scales: str
    """Granularity of the scales, in words."""
    scale_bytes: int = 0
    """Bytes of a scale; 0 if one scale serves a whole tensor and is stored outside of the cache."""
    group: int = 0
    """Elements that share a scale; 0 if all elements of a head share it."""

    def head_bytes(self, width: Size) -> Size:
        """Return the bytes of one key or value vector of ``width`` elements, scales included."""
        groups = ceil_div(width, self.group) if self.group else 1
        return ceil_div(width * self.bits, 8) + groups * self.scale_bytes


CACHE_FORMATS: Final[dict[str, CacheFormat]] = {
    "fp8": CacheFormat(8, "one scale a tensor"),
    "int8": CacheFormat(8, "a float32 scale a token and head", 4),
    "int4": CacheFormat(4, "a float32 scale a token and head", 4),
    "nvfp4": CacheFormat(4, "an 8-bit scale for 16 elements", 1, 16),
    "q8_0": CacheFormat(8, "a 16-bit scale for 32 elements", 2, 32),
    "q4_0": CacheFormat(4, "a 16-bit scale for 32 elements", 2, 32),
}
"""Formats by name; sources: vLLM ``v1/kv_cache_interface.py`` (fp8, per token and head, nvfp4), llama.cpp blocks."""
LATENT_FORMATS: Final[dict[str, str]] = {"fp8": "a float32 scale for 128 elements of a latent, rotated keys in 16 bits"}
"""Cache formats of latents (MLA): a description of their scales, by name."""


def latent_bytes(rank: Size, rope: Size) -> Size:
    """Return the fp8 cache bytes of a latent (MLA), per token and layer: 512 + 4 x 4 + 2 x 64 = 656 for DeepSeek-V3."""
    return rank + 4 * ceil_div(rank, 128) + 2 * rope


_HEAD: Final = 0
_LAYOUTS: Final[dict[str, tuple[tuple[str, int], ...]]] = {
    "fp8": (("F8_E4M3", 1),),
    "int8": (("I8", 1), ("F32", _HEAD)),
    "int4": (("U8", 2), ("F32", _HEAD)),
    "nvfp4": (("U8", 2), ("F8_E4M3", 16)),
    "q8_0": (("I8", 1), ("F16", 32)),
    "q4_0": (("U8", 2), ("F16", 32)),
}
"""Tensors that store one key or value vector, by format: (dtype, number of the vector's elements per number)."""


def cache_tensors(name: str, width: int, rope: int = 0) -> tuple[StoredTensor, ...]:
    """Return the tensors that store, in a format, one key or value vector, or one latent with its rotated key.

    Graph sources count these. They are a second description of the formats, apart from the closed forms above.

    Args:
        name: the format.
        width: elements of the head, or of the latent.
        rope: elements of the rotated key of a latent, which stay in 16 bits; 0 for keys and values.
    """
    shapes: tuple[tuple[str, int], ...]
    if rope:
        shapes = (("F8_E4M3", width), ("F32", -(-width // 128)), ("BF16", rope))
    else:
        shapes = tuple((dtype, -(-width // of) if of else 1) for dtype, of in _LAYOUTS[name])
    return tuple(StoredTensor(f"cache.{dtype}", dtype, (count,)) for dtype, count in shapes)


RUN: Final = "run"
SETTING: Final = Setting(
    KV_DTYPE,
    "Format of the key/value cache, with its scales; by default that of the configuration, else the run's dtype.",
    "choice",
    (RUN, *CACHE_FORMATS),
)
_CACHE: Final[tuple[Metric, ...]] = ("kv_read_bytes", "kv_cache_bytes")


def with_cache_format(workload: Workload, given: Any, default: str | None) -> Workload:
    """Return the workload with the requested format of its key/value cache; by default, the configuration's.

    Args:
        given: value of the setting, ``None`` without one.
        default: format that the configuration names.
    """
    others = {name: value for name, value in workload.inputs.items() if name != KV_DTYPE}
    chosen = default if given is None else given
    return replace(workload, inputs=others if chosen in (None, RUN) else {**others, KV_DTYPE: chosen})


def cache_problems(workload: Workload, *, latent: bool) -> list[CostproofError]:
    """Return an error if the requested cache format has no known layout for the latents of MLA."""
    chosen = workload.inputs.get(KV_DTYPE)
    if not latent or chosen is None or chosen in LATENT_FORMATS:
        return []
    expected = " or ".join((RUN, *LATENT_FORMATS))
    return [BadInput("no layout of latents is known in this format", where="--kv-dtype", expected=expected, got=chosen)]


def in_cache_format(ledger: Ledger, target: Target, workload: Workload) -> Ledger:
    """Return the ledger of a graph or a run with cache bytes counted in the cache format that the workload requests.

    The sources count cache bytes in the dtype of the run. Bytes read from and appended to the cache change, and with
    them ``floor_bytes`` and unfused bytes; the number of cached elements does not. The bytes are those of the tensors
    that hold a head in this format. Formulas derive them in closed form (:func:`cache_share`), so that an error in
    either is a difference.
    """
    chosen = workload.inputs.get(KV_DTYPE)
    if chosen is None:
        return ledger
    config = attribute(target, "config")
    rank, rope = attribute(config, "kv_rank", 0), attribute(config, "rope", 0)
    width = attribute(config, "head_dim", 0) or attribute(attribute(config, "text"), "head_dim")
    widths = (rank, rope) if rank else (width,)
    size = sum(tensor.bytes for tensor in cache_tensors(str(chosen), *widths))
    return _converted(ledger, Fraction(int(size), int(sum(widths)) * FLOAT_BYTES[workload.dtype]))


def cache_share(workload: Workload, *, latent: bool) -> CacheShares:
    """Return the symbolic ratios of a cache's bytes in the workload's cache format to those in the run's dtype.

    Args:
        latent: whether the cache holds latents and rotated keys (MLA) instead of keys and values.
    """
    chosen = workload.inputs.get(KV_DTYPE)
    if chosen is None:
        return IN_DTYPE_OF_RUN
    if latent:
        rank, rope = sym("text_kv_rank"), sym("text_rope")
        parts = latent_bytes(rank, rope), latent_bytes(rank, 0), latent_bytes(0, rope)
        return CacheShares(*(size / (of * sym("b")) for size, of in zip(parts, (rank + rope, rank, rope), strict=True)))
    width = sym("text_head_dim")
    return CacheShares(CACHE_FORMATS[str(chosen)].head_bytes(width) / (width * sym("b")))


@dataclass(frozen=True, slots=True)
class CachedLayers:
    """Group of decoder layers whose caches have equal sizes."""

    layers: int
    window: int
    """Number of keys that a query sees; 0 for all."""
    token_bytes: int
    """Bytes that one layer caches for a token."""


def blocks_held(past: int, new: int, window: int, size: int) -> tuple[int, int]:
    """Return the cache blocks that a sequence occupies in a layer during a call, and the tokens used in them.

    A layer without a window holds ceil((past + new) / size) blocks. One with a window w needs no token before the
    window of the first new one: max(0, past - w + 1) tokens, whose whole blocks are free. It holds at most
    ceil((w - 1 + new) / size) + 1 blocks (vLLM ``SlidingWindowSpec``).

    Args:
        past: tokens before the call.
        new: tokens that the call adds; 0 for what is kept between calls.
        window: number of keys that a query sees; 0 for all.
        size: tokens of a block.
    """
    free = max(0, past - window + 1) if window else 0
    return -(-(past + new) // size) - free // size, past + new - free


@dataclass(frozen=True, slots=True)
class BlockedCache:
    """Key/value cache that is allocated in blocks of tokens, as by paged attention."""

    size: int
    """Number of tokens of a block."""
    groups: tuple[CachedLayers, ...]

    def rows(self, workload: Workload) -> tuple[BlockPadding, ...]:
        """Return the blocks that each stage holds, by kind of layer, in the call that holds most."""
        return tuple(self._row(stage, group, rows) for stage, rows in self._calls(workload) for group in self.groups)

    def held(self, workload: Workload) -> int:
        """Return the cache bytes in the call that holds the most."""
        return max(self._held(rows) for _, rows in self._calls(workload))

    def surplus(self, workload: Workload) -> dict[str, int]:
        """Return, for each stage, the most unused bytes in blocks at any time of a call, which extends layers in turn.

        A layer that the call has not reached has its blocks and tokens from before the call, any other from after it.
        """
        return {
            stage: sum(
                row.count * group.layers * group.token_bytes * max(
                    self.size * blocks_held(row.past, new, group.window, self.size)[0]
                    - blocks_held(row.past + new, 0, group.window, self.size)[1]
                    for new in (0, row.new)
                )
                for row in rows
                for group in self.groups
            )
            for stage, rows in self._calls(workload)
        }  # fmt: skip

    def _calls(self, workload: Workload) -> Iterator[tuple[str, tuple[BatchRow, ...]]]:
        """Yield each stage with the batch rows of its call that holds the most blocks.

        Of decode steps it is one of the last ``size``: blocks only grow without a window, and repeat after ``size``
        steps with one.
        """
        batch, end = workload.batch, workload.context + workload.new_tokens
        yield STAGES[0], workload.rows or (BatchRow(workload.text_tokens, workload.past, batch),)
        if workload.new_tokens:
            steps = range(end - 1, end - 1 - min(workload.new_tokens, self.size), -1)
            yield STAGES[1], max(((BatchRow(1, past, batch),) for past in steps), key=self._held)

    def _held(self, rows: tuple[BatchRow, ...]) -> int:
        return sum(self._row("", group, rows).held_bytes for group in self.groups)

    def _row(self, stage: str, of: CachedLayers, rows: tuple[BatchRow, ...]) -> BlockPadding:
        each = [(row.count, *blocks_held(row.past, row.new, of.window, self.size)) for row in rows]
        blocks, tokens = (sum(count * found[i] for count, *found in each) for i in (0, 1))
        held, used = (of.layers * n * of.token_bytes for n in (blocks * self.size, tokens))
        return BlockPadding(
            stage, of.layers, of.window, self.size, blocks, tokens, of.token_bytes, held, used, held - used,
            str(Fraction(held - used, held or 1)),
        )  # fmt: skip


def _converted(ledger: Ledger, factor: Fraction) -> Ledger:
    """Return the ledger with cache bytes multiplied by ``factor``."""
    symbolic = sympy.Rational(factor.numerator, factor.denominator)
    less: dict[tuple[str, str, str], tuple[int | None, sympy.Expr]] = {}
    nodes: list[CostNode] = []
    for node in ledger.nodes:
        costs, exprs = dict(node.costs), dict(node.exprs)
        for metric in _CACHE:
            number, expr = costs.get(metric), exprs.get(metric)
            if number is None and expr is None:
                continue
            if number is not None:
                costs[metric] = _whole(number * factor, node)
            if expr is not None:
                exprs[metric] = text(sympy.expand(parse(expr) * symbolic))
            gone = None if number is None else number - (costs[metric] or 0)
            gone_expr = sympy.Integer(gone or 0) if expr is None else parse(expr) * (1 - symbolic)
            for place in ((node.stage, node.invocation, node.module), (node.stage, node.invocation, FLOOR)):
                before = less.get(place, (0, sympy.Integer(0)))
                sums = None if before[0] is None or gone is None else before[0] + gone
                less[place] = sums, before[1] + gone_expr
        nodes.append(replace(node, costs=costs, exprs=exprs))
    return replace(ledger, nodes=tuple(_without(node, less) for node in nodes))


def _without(node: CostNode, less: dict[tuple[str, str, str], tuple[int | None, sympy.Expr]]) -> CostNode:
    """Return the node with ``floor_bytes`` and unfused bytes lowered by the bytes that the cache format saves."""
    costs, exprs = dict(node.costs), dict(node.exprs)
    for metric, place in ((UNFUSED, node.module), (FLOOR, FLOOR)):
        number, expr = less.get((node.stage, node.invocation, place), (0, sympy.Integer(0)))
        if (own := costs.get(metric)) is not None:
            costs[metric] = None if number is None else own - number
        if metric in exprs:
            exprs[metric] = text(sympy.expand(parse(exprs[metric]) - expr))
    return replace(node, costs=costs, exprs=exprs)


def _whole(size: Fraction, node: CostNode) -> int:
    """Return an exact fraction as an integer; no layout has fractional elements or bytes."""
    assert size.denominator == 1, (node.id, size)
    return int(size)
