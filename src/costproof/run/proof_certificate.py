"""From the answers of all pieces to the certificate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from costproof.compare.proof.bound import bound, degrees
from costproof.compare.proof.certificate import Certificate, Claim, Counterexample, Coverage, Seen, verdict_of
from costproof.compare.proof.judge import Answer
from costproof.ledger.environment import environment
from costproof.models.changing import keys_of
from costproof.models.proof import Proof
from costproof.models.target import WithFormulas
from costproof.opgraph.rules.files import versions_in_force

ANY = "any"
"""The call of claims about any of the enumerated sizes."""

NOT_CLAIMED = (
    "that the graph is the model: the dynamic source traces runs, and costproof report compares it with both",
    "what bounds of time leave out of the FLOPs (skippable_flops), and the dtype of each product",
    "time, and peaks of memory",
)


def assemble(answers: Sequence[tuple[str, str, Answer | str]], target: WithFormulas, proof: Proof) -> Certificate:
    """Put the answers together; (phase, id, answer or the reason why there is none)."""
    missing = tuple(f"{name}: {' '.join(a.split())}" for _, name, a in answers if isinstance(a, str))
    rows: Counter[str] = Counter()
    by_stage: Counter[str] = Counter()
    formulas: dict[str, dict[str, None]] = {}
    wrong: list[Counterexample] = []
    right: dict[tuple[str, ...], list[tuple[str, Claim]]] = {}
    left_out: dict[str, None] = {}
    symbolic: dict[str, set[int]] = {stage: set() for stage in proof.sized}
    for phase, name, answer in answers:
        if isinstance(answer, str):
            continue
        for stage, count in answer.rows.items():
            rows[phase] += count
            by_stage[stage] += count
        for stage, sizes in answer.sizes.items():
            symbolic[stage] |= set(sizes)
        for stage, formula in answer.formulas:
            formulas.setdefault(stage, {})[formula] = None
        for claim in answer.claims:
            right.setdefault((*claim.key, claim.at_config), []).append((name.partition(": ")[2], claim))
        wrong += answer.counterexamples
        left_out |= dict.fromkeys(answer.conditions)
    info, samples = target.info(), proof.settings.samples
    return Certificate(
        conventions=target.conventions(proof.usual),
        target=info,
        environment=environment() | versions_in_force(),
        verdict=verdict_of(wrong, missing),
        settings=proof.settings,
        coverage=Coverage(
            **domain(proof),
            symbolic_sizes=tuple(sorted(set.intersection(*symbolic.values()) if symbolic else ())),
            runs=tuple(name.partition(": ")[2] for phase, name, _ in answers if phase == "identities"),
            drawn=dict(proof.ranges),
            choices=dict(proof.choices),
            not_varied=proof.not_varied,
            seen=seen(proof),
            rows=dict(rows),
            rows_by_stage=dict(by_stage),
        ),
        bounds=tuple(
            bound(s, degrees(formulas[s], proof.independent), proof.ranges, samples)
            for s in info.stages
            if s in formulas and samples
        ),
        claims=tuple(_claim(found, proof.sized) for found in right.values()),
        counterexamples=tuple(sorted(wrong, key=_size)),
        missing=missing,
        symbols={s: d for s, d in target.symbol_docs().items() if s not in info.symbols},
        not_claimed=(NOT_CLAIMED[0], *proof.not_claimed, *left_out, *NOT_CLAIMED[1:]),
    )


def domain(proof: Proof) -> dict[str, Any]:
    """Return what decides how many pieces a proof has, as a certificate states it."""
    return {
        "sizes": proof.sizes,
        "tried_sizes": proof.tried_sizes,
        "workloads": proof.workloads,
        "samples": proof.settings.samples,
    }


_NOT_OF_A_RUN: Final = ("name", "what", "inputs", "arguments")


def seen(proof: Proof) -> dict[str, Seen]:
    """How far the draws varied what decides a cost: keys of configurations, settings and sizes of runs.

    A choice that some draws leave as it usually is counts as one value more.
    """
    found: dict[str, dict[str, Any]] = {}
    given, draws = Counter[str](), [piece for piece in proof.pieces if piece.phase == "draws"]
    for piece in draws:
        keys: dict[str, Any] = dict(piece.target.info().config or {})
        keys |= {k: v for k, v in keys_of(piece.workload).items() if k not in _NOT_OF_A_RUN}
        for key, value in {**keys, **piece.workload.inputs, **(piece.sizes or {})}.items():
            found.setdefault(key, {})[repr(value)] = value
            given[key] += 1
    for key, values in found.items():
        if given[key] < len(draws) and all(isinstance(value, str) for value in values.values()):
            values[""] = None
    return {key: _seen(list(values.values())) for key, values in sorted(found.items())}


def _seen(values: Sequence[Any]) -> Seen:
    numbers = [v for v in values if isinstance(v, int) and not isinstance(v, bool)]
    return Seen(len(values), min(numbers), max(numbers)) if len(numbers) == len(values) else Seen(len(values))


def _claim(found: Sequence[tuple[str, Claim]], sized: Sequence[str]) -> Claim:
    """One claim for all runs that it was shown for."""
    claim = found[0][1]
    method = claim.method
    if method == "identity" and claim.stage in sized and claim.invocation not in ("", ANY):
        method = "identity per size"
    return replace(claim, runs=tuple(name for name, _ in found), method=method)


def _size(c: Counterexample) -> tuple[int, int, int, int, str, str]:
    """Expressions before numbers, general before special, small before large."""
    numbers, general = sum(c.config.values()), len(c.smallest)
    return (numbers, -general, sum(c.smallest.values()), len(c.difference), c.stage, c.module)
