"""Which rule counts which operator: built-in rules, a user's own, and those of other distributions.

Rules are found by canonical name. Modules with rules are imported on the first question, so that
importing costproof stays cheap. Other distributions add rules through the entry-point group
``costproof.operator_rules``: a module, or a function without arguments, that registers them.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from typing import Final

from costproof.graph.graph import OpCall, Size
from costproof.graph.rules.cost import OpCost, Uncountable
from costproof.graph.rules.names import canonical
from costproof.graph.rules.sizes import numel, prod
from costproof.ledger.errors import BadInput, first_line
from costproof.ledger.node import NO_RULE

Rule = Callable[[OpCall], OpCost]

GROUP: Final = "costproof.operator_rules"

_BUILT_IN: Final = (
    "matmul", "conv", "attention", "flash", "experts", "elementwise", "activation", "reduction", "norm", "pool",
    "resample", "lookup", "select", "move", "alias", "free",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RuleInfo:
    """One operator that is ruled: who rules it, and how, in a sentence."""

    operator: str
    owner: str
    summary: str


@dataclass(frozen=True, slots=True)
class Unruled:
    """A call that cannot be counted."""

    why: str
    bound: Size | None
    """Upper bound of its FLOPs from its shapes, or ``None``."""


_rules: dict[str, tuple[Rule, RuleInfo]] = {}
_lock: Final = threading.RLock()


def operator_rule(*names: str, owner: str | None = None, summary: str | None = None) -> Callable[[Rule], Rule]:
    """Register a rule for operators, in any spelling: ``@operator_rule("mylib.fused_mlp")``.

    Args:
        names: operators; custom ones with their namespace.
        owner: who rules it, for the error on a clash; the function's full name by default.
        summary: the first line of the docstring by default.

    Raises:
        BadInput: another rule has one of the names already; both owners are named.
    """

    def register(rule: Rule) -> Rule:
        mine = owner or f"{rule.__module__}.{getattr(rule, '__qualname__', rule)}"
        line = summary or (rule.__doc__ or "").strip().split("\n")[0]
        with _lock:
            if mine.partition(".")[0] != "costproof":
                _load_built_in()  # a user's rule for a ruled operator clashes at once, not at first use
            keys = [canonical(name) for name in names]
            for key in keys:
                if key in _rules:
                    raise BadInput(
                        "two rules for one operator",
                        where=key,
                        expected=f"one owner; {_rules[key][1].owner} has it",
                        got=mine,
                        fix="remove one of the two, or give the operator its own name",
                    )
            for key in keys:
                _rules[key] = (rule, RuleInfo(key, mine, line))
        return rule

    return register


def unregister(*names: str) -> None:
    """Take rules out again: for tests and notebooks that try one."""
    with _lock:
        for name in names:
            _rules.pop(canonical(name), None)


def find_rule(name: str) -> Rule | None:
    """The rule of an operator in any spelling, or ``None``."""
    _load()
    entry = _rules.get(canonical(name))
    return entry[0] if entry else None


def rule_table() -> tuple[RuleInfo, ...]:
    """All ruled operators, by name."""
    _load()
    return tuple(_rules[name][1] for name in sorted(_rules))


def cost_of(op: OpCall) -> OpCost | Unruled:
    """What a call costs, or why that is not known: an operator without a rule is never free."""
    rule = find_rule(op.name)
    if rule is None:
        return Unruled(NO_RULE, bound_flops(op))
    try:
        return rule(op)
    except Uncountable as error:
        return Unruled(error.why, error.bound if error.bound is not None else bound_flops(op))


def bound_flops(op: OpCall) -> Size | None:
    """Upper bound of the FLOPs of a product of two tensors with these shapes: 2 x outputs x longest inner dimension.

    Every element of such an output sums over at most one dimension of an argument. ``None`` without
    shapes, or where the longest of symbolic dimensions is not known.
    """
    if not op.outputs or not op.tensors:
        return None
    dims = [d for t in op.tensors for d in t.shape]
    if not all(isinstance(d, int) for d in dims):
        return None
    longest = max((d for d in dims if isinstance(d, int)), default=1)
    return prod((2, max((numel(o) for o in op.outputs), key=lambda n: n if isinstance(n, int) else 0), longest))


@lru_cache(maxsize=1)
def _load_built_in() -> None:
    for module in _BUILT_IN:
        importlib.import_module(f"costproof.graph.rules.{module}")


@lru_cache(maxsize=1)
def _load() -> None:
    with _lock:
        _load_built_in()
        for point in sorted(metadata.entry_points(group=GROUP), key=lambda p: (p.name, p.value)):
            try:
                plugin = point.load()
                if callable(plugin):
                    plugin()
            except BadInput:
                raise
            except Exception as error:
                raise BadInput(
                    "cannot load operator rules of another distribution",
                    where=f"entry point {point.name} = {point.value}",
                    got=first_line(error),
                    fix="mend or uninstall that distribution",
                ) from error
