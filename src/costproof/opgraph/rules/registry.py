"""Register operator rules and graph transforms, and dispatch each call to the rule of its operator.

Rules are looked up by canonical name. Built-in rules are imported on the first look-up, to keep ``import costproof``
cheap. Other distributions add rules through the entry-point group ``costproof.rules``: a module that registers them
when it is imported.

A module of rules may also register a transform. It rewrites every graph before it is costed into an equivalent one: it
removes the padding of heads, or rewrites a loop over experts into parts of a grouped product.
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
from costproof.opgraph.rules.cost import OpCost, Uncountable, invalid_part
from costproof.opgraph.rules.names import canonical
from costproof.plugins import Plugin, Registry

RuleFunction = Callable[[OpCall], OpCost]

_ROOM: Final = __name__.rpartition(".")[0] + "."

GraphTransform = Callable[[Graph], Graph]
"""Function that rewrites a graph and keeps the order of execution."""

_BUILT_IN: Final = {
    "matmul": "matrix products, recurrent layers",
    "conv": "convolutions",
    "attention": "fused attention, FlashAttention",
    "experts": "grouped expert products",
    "elementwise": "elementwise arithmetic, activations, random draws",
    "reduction": "reductions, normalizations, sorting, losses",
    "linalg": "linear systems, factorizations, norms, distances, Fourier transforms",
    "resample": "pooling, interpolation",
    "lookup": "look-ups and indexed writes",
    "collectives": "exchanges between the ranks of a group",
    "movement": "views, casts, copies, factories, metadata",
}
"""Modules with built-in rules, and the operators that each module covers."""

RULES: Final[Registry[object]] = Registry(
    "rules",
    "module of operator rules",
    tuple(
        Plugin(n, what, partial(importlib.import_module, f"costproof.opgraph.rules.{n}"))
        for n, what in _BUILT_IN.items()
    ),
    command="costproof ops",
)


@dataclass(frozen=True, slots=True)
class RuleInfo:
    """An operator with a cost rule, the owner of the rule, and a one-line summary of its count."""

    operator: str
    owner: str
    summary: str


@dataclass(frozen=True, slots=True)
class UnknownCost:
    """Result for an operator call that cannot be counted."""

    why: str
    bound: Size | None
    """Upper bound of the call's FLOPs, if a rule states one."""


_rules: dict[str, tuple[RuleFunction, RuleInfo]] = {}
_transforms: dict[str, GraphTransform] = {}
_lock = threading.RLock()


def _renew_lock() -> None:
    """Replace the lock in a forked child, which lacks the thread that may have held it."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def operator_rule(
    *names: str, owner: str | None = None, summary: str | None = None
) -> Callable[[RuleFunction], RuleFunction]:
    """Register a rule for operators: ``@operator_rule("mylib.fused_mlp")``.

    Args:
        names: operator names in any variant; custom operators with their namespace.
        owner: name of the rule in the error on a clash (default: the function's full name).
        summary: one line about what the rule counts (default: the first line of its docstring).

    Raises:
        BadInput: another rule is registered for one of the names; the error names both owners.
    """

    def register(rule: RuleFunction) -> RuleFunction:
        mine = owner or _full_name(rule)
        line = summary or (rule.__doc__ or "").strip().split("\n")[0]
        with _lock:
            if mine.partition(".")[0] != "costproof":
                _load_built_in()  # so that a user's rule for a built-in operator clashes now, not at first use
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


def graph_transform(transform: GraphTransform) -> GraphTransform:
    """Register a transform that is applied to every graph before it is costed."""
    with _lock:
        _transforms[_full_name(transform)] = transform
    return transform


def unregister(*names: str) -> None:
    """Remove rules and transforms by name, for tests and notebooks."""
    with _lock:
        for name in names:
            _rules.pop(canonical(name), None)
            _transforms.pop(name, None)


def registered() -> frozenset[str]:
    """Return the names of all operators with a rule and of all transforms."""
    _load()
    return frozenset((*_rules, *_transforms))


def transforms() -> tuple[GraphTransform, ...]:
    """Return all graph transforms in the order of application."""
    _load()
    return tuple(
        t if (t.__module__ or "").startswith(_ROOM) else partial(_contained_transform, t) for t in _transforms.values()
    )


def _contained_transform(transform: GraphTransform, graph: Graph) -> Graph:
    """Apply a third-party graph transform; its failures become errors that name it."""
    with contained("the transform of graphs failed", _source_place(transform), state=False):
        found: object = transform(graph)
    if not isinstance(found, Graph):
        expected, got = "the Graph, changed or not", type(found).__name__
        raise BadInput("the transform returns no graph", where=_source_place(transform), expected=expected, got=got)
    return found


def rule_table() -> tuple[RuleInfo, ...]:
    """Return all operators with a cost rule, sorted by name."""
    _load()
    return tuple(_rules[name][1] for name in sorted(_rules))


def subject_of(operator: str) -> str:
    """Return the built-in module with an operator's rule, such as ``matmul``; empty if no built-in module has one."""
    _load()
    entry = _rules.get(canonical(operator))
    room, _, subject = ("", "", "") if entry is None else entry[0].__module__.rpartition(".")
    return subject if subject in _BUILT_IN and room == __name__.rpartition(".")[0] else ""


def cost_of(op: OpCall) -> OpCost | UnknownCost:
    """Return the cost of an operator call, or the reason why it is unknown; without a rule it is unknown, not 0."""
    _load()
    entry = _rules.get(canonical(op.name))
    if entry is None:
        return UnknownCost(NO_RULE, None)
    rule, info = entry
    if (rule.__module__ or "").startswith(_ROOM):
        return _apply(rule, op)
    with contained(f"the rule for {info.operator} failed", _source_place(rule), state=False):
        cost = _apply(rule, op)
    if isinstance(cost, UnknownCost):
        return cost
    wrong = invalid_part(cost)
    if wrong is not None:
        expected = "an OpCost; Uncountable is raised for a call that cannot be counted"
        raise BadInput(
            f"the rule for {info.operator} returns an invalid cost",
            where=_source_place(rule),
            expected=expected,
            got=wrong,
        )
    return cost


def _apply(rule: RuleFunction, op: OpCall) -> OpCost | UnknownCost:
    try:
        return rule(op)
    except Uncountable as error:
        return UnknownCost(error.why, error.bound)


def _source_place(rule: RuleFunction | GraphTransform) -> str:
    """Return the name, file and line of a rule's or transform's code."""
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
                unregister(*({*_rules, *_transforms} - before))  # the module failed partway through
