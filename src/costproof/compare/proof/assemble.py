"""From the answers of all pieces to the certificate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from costproof.compare.proof.bound import bound, degrees
from costproof.compare.proof.certificate import Certificate, Claim, Counterexample, Coverage, Settings, Verdict
from costproof.compare.proof.judge import Answer
from costproof.ledger.capture import SymbolDoc
from costproof.ledger.conventions import Conventions
from costproof.ledger.workload import TargetInfo

ANY = "any"
"""The call of claims about any of the enumerated sizes."""

NOT_CLAIMED = (
    "that the graph is the model: the dynamic source traces runs, and costproof report compares it with both",
    "time, and peaks of memory",
)


@dataclass(frozen=True, slots=True)
class Domain:
    """What a proof ranges over."""

    ranges: Mapping[str, int]
    """Drawn parameter -> number of its values."""
    independent: Mapping[str, str]
    choices: Mapping[str, int]
    not_varied: tuple[str, ...]
    sizes: tuple[int, ...] = ()
    """Enumerated one by one."""
    tried_sizes: tuple[int, ...] = ()
    """Looked at where the size is a symbol."""
    workloads: tuple[str, ...] = ()
    """Names of those that are compared as integers."""
    sized: tuple[str, ...] = ()
    """Stages with a size that is a number in some graphs and a symbol in others."""
    not_claimed: tuple[str, ...] = ()


def assemble(
    answers: Sequence[tuple[str, str, Answer | str]],
    *,
    settings: Settings,
    target: TargetInfo,
    conventions: Conventions,
    environment: dict[str, str],
    domain: Domain,
    drawn: Mapping[int, Mapping[str, int]],
    symbols: Mapping[str, SymbolDoc],
) -> Certificate:
    """Put the answers together; (phase, id, answer or the reason why there is none)."""
    missing = tuple(f"{name}: {' '.join(a.split())}" for _, name, a in answers if isinstance(a, str))
    rows: dict[str, int] = {}
    by_stage: dict[str, int] = {}
    formulas: dict[str, dict[str, None]] = {}
    wrong: list[Counterexample] = []
    right: dict[tuple[str, ...], list[tuple[str, Claim]]] = {}
    symbolic: dict[str, set[int]] = {stage: set() for stage in domain.sized}
    for phase, name, answer in answers:
        if isinstance(answer, str):
            continue
        for stage, count in answer.rows.items():
            rows[phase] = rows.get(phase, 0) + count
            by_stage[stage] = by_stage.get(stage, 0) + count
        for stage, sizes in answer.sizes.items():
            symbolic[stage] |= set(sizes)
        for stage, formula in answer.formulas:
            formulas.setdefault(stage, {})[formula] = None
        for claim in answer.claims:
            right.setdefault((*claim.key, claim.at_config), []).append((name.partition(": ")[2], claim))
        for example in answer.counterexamples:
            number = example.invocation.rpartition(" of draw ")[2]
            config = drawn[int(number)] if name.startswith("draws") and number.isdigit() else {}
            wrong.append(replace(example, found_in=name, config=dict(config)))
    verdict: Verdict = "refuted" if wrong else "incomplete" if missing else "proved"
    return Certificate(
        conventions=conventions,
        target=target,
        environment=environment,
        verdict=verdict,
        settings=settings,
        coverage=Coverage(
            sizes=domain.sizes,
            symbolic_sizes=tuple(sorted(set.intersection(*symbolic.values()) if symbolic else ())),
            tried_sizes=domain.tried_sizes,
            workloads=domain.workloads,
            runs=tuple(name.partition(": ")[2] for phase, name, _ in answers if phase == "identities"),
            samples=settings.samples,
            rows=rows,
            rows_by_stage=by_stage,
            drawn=dict(domain.ranges),
            choices=dict(domain.choices),
            not_varied=domain.not_varied,
        ),
        bounds=tuple(
            bound(s, degrees(formulas[s], domain.independent), domain.ranges, settings.samples)
            for s in target.stages
            if s in formulas and settings.samples
        ),
        claims=tuple(_claim(found, domain.sized) for found in right.values()),
        counterexamples=tuple(sorted(wrong, key=_size)),
        missing=missing,
        symbols=dict(symbols),
        not_claimed=(NOT_CLAIMED[0], *domain.not_claimed, *NOT_CLAIMED[1:]),
    )


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
