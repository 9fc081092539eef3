"""Which rule counts which operator: built-in rules, a user's own, and those of other distributions.

Rules are found by canonical name. Modules with rules are imported on the first question, so that importing
costproof stays cheap. Other distributions add rules through the entry-point group ``costproof.rules``: a module
that registers them when it is imported.

A module of rules may bring a transform too: what gives every graph, before it is costed, another form of the same
work (padding of heads taken off, a loop over experts seen as the grouped product that it is).
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final

from costproof.foreign import contained
from costproof.ledger.errors import BadInput
from costproof.ledger.node import NO_RULE
from costproof.opgraph.graph import Graph, OpCall, Size
from costproof.opgraph.rules.cost import OpCost, Uncountable, wrong_in
from costproof.opgraph.rules.names import canonical
from costproof.plugins import Plugin, Registry

Rule = Callable[[OpCall], OpCost]

_ROOM: Final = __name__.rpartition(".")[0] + "."

Transform = Callable[[Graph], Graph]
"""Keeps the order of execution."""

_OURS: Final = {
    "matmul": "products of matrices", "chain": "products of several matrices", "conv": "convolutions",
    "attention": "fused attention",
    "flash": "FlashAttention", "padding": "heads padded for a kernel, taken as they are",
    "experts": "grouped products", "elementwise": "arithmetic by element",
    "activation": "activation functions", "reduction": "sums and the like", "norm": "normalisation",
    "distance": "norms of vectors, distances", "fourier": "Fourier transforms", "linalg": "systems and factorisations",
    "recurrent": "recurrent layers", "loss": "losses",
    "pool": "pooling", "resample": "interpolation", "lookup": "look-ups", "select": "sorting and selecting",
    "move": "copies", "draw": "random numbers", "alias": "views and casts", "free": "what touches no data",
}  # fmt: skip

RULES: Final[Registry[object]] = Registry(
    "rules",
    "module of operator rules",
    tuple(
        Plugin(n, what, partial(importlib.import_module, f"costproof.opgraph.rules.{n}")) for n, what in _OURS.items()
    ),
    command="costproof ops",
)


@dataclass(frozen=True, slots=True)
class RuleInfo:
    """One operator with a cost rule: whose rule, and how it counts, in a sentence."""

    operator: str
    owner: str
    summary: str


@dataclass(frozen=True, slots=True)
class UnknownCost:
    """A call that cannot be counted."""

    why: str
    bound: Size | None
    """Upper bound of its FLOPs, from a rule that knows one; else ``None``."""


_rules: dict[str, tuple[Rule, RuleInfo]] = {}
_transforms: dict[str, Transform] = {}
_lock = threading.RLock()


def _renew_lock() -> None:
    """Free the lock in a forked process: a thread that had it is not there."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def operator_rule(*names: str, owner: str | None = None, summary: str | None = None) -> Callable[[Rule], Rule]:
    """Register a rule for operators, in any variant of their names: ``@operator_rule("mylib.fused_mlp")``.

    Args:
        names: operators; custom ones with their namespace.
        owner: whose rule it is, for the error on a clash; the function's full name by default.
        summary: the first line of the docstring by default.

    Raises:
        BadInput: another rule has one of the names already; both owners are named.
    """

    def register(rule: Rule) -> Rule:
        mine = owner or _full_name(rule)
        line = summary or (rule.__doc__ or "").strip().split("\n")[0]
        with _lock:
            if mine.partition(".")[0] != "costproof":
                _load_built_in()  # a user's rule for an operator that has one clashes at once, not at first use
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


def graph_transform(transform: Transform) -> Transform:
    """Register a transform, to be applied to every graph before it is costed."""
    with _lock:
        _transforms[_full_name(transform)] = transform
    return transform


def unregister(*names: str) -> None:
    """Take rules and transforms out again: for tests and notebooks that try one."""
    with _lock:
        for name in names:
            _rules.pop(canonical(name), None)
            _transforms.pop(name, None)


def registered() -> frozenset[str]:
    """Names of all operators with a rule, and of all transforms."""
    _load()
    return frozenset((*_rules, *_transforms))


def transforms() -> tuple[Transform, ...]:
    """All transforms, in the order in which they are applied."""
    _load()
    return tuple(
        t if (t.__module__ or "").startswith(_ROOM) else partial(_transformed, t) for t in _transforms.values()
    )


def _transformed(transform: Transform, graph: Graph) -> Graph:
    with contained("the transform of graphs failed", _place(transform), state=False):
        found: object = transform(graph)
    if not isinstance(found, Graph):
        expected, got = "the Graph, changed or not", type(found).__name__
        raise BadInput("the transform returns no graph", where=_place(transform), expected=expected, got=got)
    return found


def rule_table() -> tuple[RuleInfo, ...]:
    """All operators with a cost rule, by name."""
    _load()
    return tuple(_rules[name][1] for name in sorted(_rules))


def subject_of(operator: str) -> str:
    """Which file of our rules an operator has its rule in, ``matmul``; empty where it has none, or another's."""
    _load()
    entry = _rules.get(canonical(operator))
    room, _, subject = ("", "", "") if entry is None else entry[0].__module__.rpartition(".")
    return subject if subject in _OURS and room == __name__.rpartition(".")[0] else ""


def cost_of(op: OpCall) -> OpCost | UnknownCost:
    """What a call costs, or why that is not known: an operator without a rule is never free."""
    _load()
    entry = _rules.get(canonical(op.name))
    if entry is None:
        return UnknownCost(NO_RULE, None)
    rule, info = entry
    if (rule.__module__ or "").startswith(_ROOM):
        return _counted(rule, op)
    with contained(f"the rule for {info.operator} failed", _place(rule), state=False):
        cost = _counted(rule, op)
    if isinstance(cost, UnknownCost):
        return cost
    wrong = wrong_in(cost)
    if wrong is not None:
        expected = "an OpCost; Uncountable is raised for a call that cannot be counted"
        raise BadInput(
            f"the rule for {info.operator} returns no cost", where=_place(rule), expected=expected, got=wrong
        )
    return cost


def _counted(rule: Rule, op: OpCall) -> OpCost | UnknownCost:
    try:
        return rule(op)
    except Uncountable as error:
        return UnknownCost(error.why, error.bound)


def _place(rule: Rule | Transform) -> str:
    """Name, file and line of a rule."""
    code = getattr(rule, "__code__", None)
    return _full_name(rule) + (f" in {code.co_filename}:{code.co_firstlineno}" if code is not None else "")


def _full_name(function: Callable[..., object]) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', function)}"


@lru_cache(maxsize=1)
def _load_built_in() -> None:
    for plugin in RULES.ours:
        plugin.load()


@lru_cache(maxsize=1)
def _load() -> None:
    with _lock:
        _load_built_in()
        for plugin in RULES.all().values():
            before = {*_rules, *_transforms}
            for _ in RULES.usable([plugin]):
                break
            else:
                unregister(*({*_rules, *_transforms} - before))  # of a module that failed half way
