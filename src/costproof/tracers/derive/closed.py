"""Derive the closed form of a model stage from its symbolic graph, and compare it with independent counts.

A separate count sees every operator of one forward at the dispatcher with its real shapes, inside the active module. It
shares the rules with the exports, but neither shapes nor structure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from costproof.algebra.conditions import Condition, all_hold
from costproof.algebra.evaluation import evaluate
from costproof.algebra.symbols import parse
from costproof.ledger.errors import CostproofError, Incomplete, first_line, message_of
from costproof.ledger.node import CostNode, rule_wanted, unknown_clause
from costproof.models.specs import Run
from costproof.opgraph.account import account
from costproof.opgraph.costed import bound_unknown, cost_graph
from costproof.opgraph.graph import OpCall, Value, path_renamer
from costproof.opgraph.merge import merge_nodes
from costproof.opgraph.rules.registry import UnknownCost, cost_of
from costproof.patches.inference import inference_context
from costproof.patches.modules import hooked
from costproof.patches.patch import gc_disabled
from costproof.tracers.cache import cached_export
from costproof.tracers.cpu_fallback import with_numbers
from costproof.tracers.derive.subject import POINTS, SizeSampler, Subject, example_sizes, size_limits
from costproof.tracers.exporting import with_sizes
from costproof.tracers.paths import dtype_name, plain_value, split_arguments


@dataclass(frozen=True, slots=True)
class SizeCheck:
    """Comparison of the derived formula with an independent count at certain sizes."""

    sizes: dict[str, int]
    derived: int
    counted: int
    differing: tuple[str, ...]
    """Modules whose own work differs between formula and count, at most five."""

    @property
    def equal(self) -> bool:
        """Return whether formula and count agree, in total and module by module."""
        return self.derived == self.counted and not self.differing


@dataclass(frozen=True, slots=True)
class Derived:
    """Derived cost nodes, their comparisons with independent counts, and the conditions under which they hold."""

    nodes: tuple[CostNode, ...]
    points: tuple[SizeCheck, ...]
    holds: tuple[Condition, ...]


def derive(subject: Subject, *, points: int = POINTS, seed: int = 1) -> Derived:
    """Derive formulas of a subject's costs from its export; check them by counts at random and extreme sizes.

    Raises:
        Incomplete: it cannot be exported with these symbols, an operator has no rule, its conditions are unknown, or a
            separate count fails or has an operator without a rule.
    """
    job, exported = subject.job, cached_export(subject.job)
    work = cost_graph(exported.graph)
    found = account(work, job.place)
    if found.unknown:
        unknown = bound_unknown(found.unknown, work, example_sizes(job))
        raise Incomplete(
            "an operator of the graph has no rule",
            where=subject.name,
            got="; ".join(sorted({f"{o.op}, {unknown_clause([o])}: {o.why}" for o in unknown})[:5]),
            fix=rule_wanted(found.unknown) or "costproof ops lists the rules",
        )
    nodes, draw = merge_nodes(found.nodes), SizeSampler(subject, exported, seed)
    holds = size_limits(exported, subject.steps)
    made = [draw.point(far=i % 2 == 1) for i in range(points)]
    if points:
        made += [end for end in draw.ends(holds) if end not in made]
    checked = tuple(_check(subject, nodes, sizes) for sizes in made)
    if points:
        holds += tuple(_above_one(subject, nodes, made[0], holds))
    return Derived(tuple(n for n in nodes if n.stage == subject.stage), checked, holds)


def _above_one(
    subject: Subject, nodes: tuple[CostNode, ...], usual: Mapping[str, int], holds: tuple[Condition, ...]
) -> Iterator[Condition]:
    """Yield a condition for each symbol at whose least size the formulas are wrong, as exports assume sizes above 1."""
    for name in usual:
        least = subject.steps.get(name, 1)
        sizes = {**usual, name: least}
        if not all_hold(holds, sizes):
            continue  # reported already
        try:
            equal = not subject.runs(sizes) or _check(subject, nodes, sizes).equal
        except Incomplete:
            equal = False
        if not equal:
            yield Condition(f"{name} >= {2 * least}", f"{name} - {2 * least}")


def _check(subject: Subject, nodes: tuple[CostNode, ...], sizes: dict[str, int]) -> SizeCheck:
    from costproof.tracers.derive.closed import fresh_flops

    job = subject.job
    try:
        made = subject.at(sizes) or with_sizes(job, sizes)
        counted, unknown = fresh_flops(made.module, made.args)
    except CostproofError:
        raise
    except Exception as error:
        raise Incomplete(
            "the model does not run on meta at a random size, so the formula cannot be checked",
            where=f"{job.id} at {sizes}",
            got=first_line(error),
        ) from error
    if unknown:
        raise Incomplete(
            "an operator of the run that checks the formula has no rule",
            where=job.id,
            got=", ".join(sorted(unknown)[:5]),
        )
    fresh: Counter[str] = Counter()
    rename = path_renamer(job.prefix)
    for path, flops in counted.items():
        fresh[path if (here := rename(path)) is None else here] += flops
    derived: Counter[str] = Counter()
    for node in nodes:
        expr = node.exprs.get("flops") or (None if (known := node.cost("flops")) is None else str(known))
        if expr is not None:
            derived[node.module] += evaluate(parse(expr), sizes)
    total, done = derived.total(), fresh.total()
    differing = [m or "(root)" for m in {**derived, **fresh} if derived[m] != fresh[m]]
    return SizeCheck(sizes, total, done, tuple(differing[:5]))


class _DispatchedCosts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stack: list[str] = []
        self.flops: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()
        self.known = KnownValues()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = self.known.scalar(func, args)
        if known is not None:
            return known.item()
        result = func(*args, **(kwargs or {}))
        self.known.follow(func, args, kwargs or {}, result)
        tensors, attrs, names = split_arguments(func._schema, args, kwargs or {}, _values, plain_value)
        outputs = tuple(_values(result))
        if tensors or outputs:
            module = self.stack[-1] if self.stack else ""
            call = OpCall("", str(func), module, 1, tensors, outputs, attrs, names)
            cost = cost_of(call)
            if isinstance(cost, UnknownCost):
                self.unknown[call.name] += 1
            elif cost.flops != 0:
                self.flops[call.module] += int(cost.flops)
        return result


def fresh_flops(model: nn.Module, args: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
    """Count one forward at the dispatcher; return headline FLOPs by module path, and operators without a rule."""
    try:
        return _count_forward(model, args)
    except RuntimeError as error:
        # Some models read values (is this mask all ones?), which meta lacks.
        if "meta" not in message_of(error):
            raise
    numbers = with_numbers(Run("fresh", model, args, lambda path, call: ("", "")))
    return _count_forward(numbers.model, numbers.kwargs)


def _count_forward(model: nn.Module, args: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
    counter = _DispatchedCosts()
    paths = {module: path for path, module in model.named_modules()}

    def enter(module: nn.Module, args: Any) -> None:
        counter.stack.append(paths[module])

    def leave(*_: Any) -> None:
        counter.stack.pop()

    with gc_disabled(), inference_context(model), hooked(paths, enter, leave), counter:
        model(**args)
    return counter.flops, counter.unknown


def _values(argument: Any) -> list[Value]:
    tensors = (t for t in tree_leaves(argument) if isinstance(t, torch.Tensor))
    return [Value(str(id(t)), tuple(map(int, t.shape)), dtype_name(t.dtype)) for t in tensors]


MOST: Final = 1_000_000
"""Maximum number of elements of a tensor whose values are computed."""
_CERTAIN: Final = ("arange", "ones", "zeros", "full", "scalar_tensor", "tril_indices", "eye")


class KnownValues:
    """Dispatch mode that also computes the values of meta tensors that depend only on shapes, such as masks.

    Models look at such values (is this mask all ones?), which meta lacks. Integer and boolean tensors from ``arange``,
    ``ones`` and the like are therefore also made on the CPU, and so is what is computed from them. Whatever depends on
    inputs or weights stays unknown.
    """

    def __init__(self) -> None:
        self.values = WeakTensorKeyDictionary()

    def scalar(self, func: Any, args: Any) -> torch.Tensor | None:
        """Return the known value of a tensor that the model converts to a Python number; ``None`` if unknown.

        ``None`` if it is not known.
        """
        asked = func is torch.ops.aten._local_scalar_dense.default
        return self.values[args[0]] if asked and args[0] in self.values else None

    def follow(self, func: Any, args: Any, kwargs: Mapping[str, Any], result: Any) -> None:
        """Compute the result of an operator on known values, if the values of all its inputs are known."""
        inputs = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        if not all(t in self.values for t in inputs):
            if func._schema.is_mutable:
                self.values.clear()  # a known tensor may have been overwritten
            return
        # Factories like ``empty`` and random ones have no known values.
        certain = inputs or str(func).split(".")[1] in _CERTAIN
        if not isinstance(result, torch.Tensor) or result.device.type != "meta" or not certain:
            return
        if result.is_floating_point() or result.numel() > MOST:
            return
        given, options = tree_map_only(torch.Tensor, self.values.__getitem__, (args, dict(kwargs)))
        if "device" in options:
            options["device"] = torch.device("cpu")
        self.values[result] = func(*given, **options)
