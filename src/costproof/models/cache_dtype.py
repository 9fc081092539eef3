"""Replace the key/value cache bytes of a ledger, counted in the dtype of the run, by those of another cache format."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any, Final

import sympy

from costproof.algebra.symbols import parse, sym, text
from costproof.ledger.attributes import attribute
from costproof.ledger.errors import BadInput, CostproofError
from costproof.ledger.metrics import FLOOR, UNFUSED, Metric
from costproof.ledger.node import CostNode, Ledger
from costproof.ledger.workload import FLOAT_BYTES, KV_DTYPE, Workload
from costproof.models.target import Setting, Target
from costproof.storage.cache_formats import CACHE_FORMATS, LATENT_FORMATS, cache_tensors, latent_bytes
from costproof.storage.tensors import Size

RUN: Final = "run"
SETTING: Final = Setting(
    KV_DTYPE,
    "Format of the key/value cache, with its scales; by default that of the configuration, else the run's dtype.",
    "choice",
    (RUN, *CACHE_FORMATS),
)
_CACHE: Final[tuple[Metric, ...]] = ("kv_read_bytes", "kv_cache_bytes")


def with_cache_format(workload: Workload, given: Any, default: str | None) -> Workload:
    """Return the workload with the format of its key/value cache: the requested one, else that of the configuration.

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


def cache_share(workload: Workload, *, latent: bool) -> Size:
    """Return the bytes of a cache in the format of the workload as a share of those in its dtype, in symbols.

    Args:
        latent: whether the cache holds latents and rotated keys (MLA) instead of keys and values.
    """
    chosen = workload.inputs.get(KV_DTYPE)
    if chosen is None:
        return 1
    if latent:
        rank, rope = sym("text_kv_rank"), sym("text_rope")
        return latent_bytes(rank, rope) / ((rank + rope) * sym("b"))
    width = sym("text_head_dim")
    return CACHE_FORMATS[str(chosen)].head_bytes(width) / (width * sym("b"))


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
    """Return a number of elements or bytes as an integer; a layout never gives a fraction of one."""
    assert size.denominator == 1, (node.id, size)
    return int(size)
