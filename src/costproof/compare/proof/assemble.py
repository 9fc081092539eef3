"""From the answers of all pieces to the certificate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from costproof.compare.proof.bound import bound, degrees
from costproof.compare.proof.certificate import Certificate, Claim, Counterexample, Coverage, Method, Settings, Verdict
from costproof.compare.proof.judge import Judged
from costproof.ledger.capture import SymbolDoc
from costproof.ledger.conventions import Conventions
from costproof.ledger.program import compiled
from costproof.ledger.workload import TargetInfo

ANY = "any"
"""The call of claims about any of the enumerated sizes."""

NOT_CLAIMED = (
    "that the graph is the model: the dynamic source traces runs, and costproof report compares it with both",
    "time, and peaks of memory",
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What one piece found."""

    rows: dict[str, int]
    """Stage -> quantities compared, one per module, operator kind and metric."""
    judged: tuple[Judged, ...]
    """All of them for a piece that claims; those that differ otherwise."""
    formulas: tuple[tuple[str, str], ...] = ()
    """(stage, formula) of what was sampled, for the degrees."""
    sides: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Where a size is a symbol: stage -> the sizes that its graph describes, of those tried."""


@dataclass(frozen=True, slots=True)
class Domain:
    """What a proof ranges over."""

    sides: tuple[int, ...]
    tried_sides: tuple[int, ...]
    pages: tuple[str, ...]
    ranges: Mapping[str, int]
    """Drawn parameter -> number of its values."""
    independent: Mapping[str, str]
    choices: Mapping[str, int]
    not_varied: tuple[str, ...]
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
    right: dict[tuple[object, ...], list[tuple[str, Judged]]] = {}
    symbolic: dict[str, set[int]] = {stage: set() for stage in domain.sized}
    for phase, name, answer in answers:
        if isinstance(answer, str):
            continue
        for stage, count in answer.rows.items():
            rows[phase] = rows.get(phase, 0) + count
            by_stage[stage] = by_stage.get(stage, 0) + count
        for stage, sides in answer.sides.items():
            symbolic[stage] |= set(sides)
        for stage, formula in answer.formulas:
            formulas.setdefault(stage, {})[formula] = None
        for judged in answer.judged:
            if judged.judgement == "different":
                wrong.append(_counterexample(name, judged, drawn))
            else:
                key = (judged.stage, judged.invocation, judged.module, judged.kind, judged.metric, judged.version)
                right.setdefault((*key, judged.analytic), []).append((name.partition(": ")[2], judged))
    verdict: Verdict = "refuted" if wrong else "incomplete" if missing else "proved"
    return Certificate(
        conventions=conventions,
        target=target,
        environment=environment,
        verdict=verdict,
        settings=settings,
        coverage=Coverage(
            sides=domain.sides,
            symbolic_sides=tuple(sorted(set.intersection(*symbolic.values()) if symbolic else ())),
            tried_sides=domain.tried_sides,
            pages=domain.pages,
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


def _claim(found: Sequence[tuple[str, Judged]], sized: Sequence[str]) -> Claim:
    judged = found[0][1]
    method: Method = "identity"
    if judged.judgement == "point":
        method = "enumeration"
    elif judged.stage in sized and judged.invocation not in ("", ANY):
        method = "identity per side"
    free = tuple(sorted(compiled(judged.analytic).symbols))
    return Claim(
        stage=judged.stage,
        invocation=judged.invocation,
        module=judged.module,
        kind=judged.kind,
        metric=judged.metric,
        modules=judged.modules,
        runs=tuple(name for name, _ in found),
        method=method,
        free=free,
        version=judged.version,
        formula=judged.formula,
        at_config=judged.analytic,
    )


def _counterexample(name: str, judged: Judged, draws: Mapping[int, Mapping[str, int]]) -> Counterexample:
    number = judged.invocation.rpartition(" of draw ")[2]
    drawn = name.startswith("draws") and number.isdigit()
    return Counterexample(
        found_in=name,
        stage=judged.stage,
        invocation=judged.invocation,
        module=judged.module,
        kind=judged.kind,
        metric=judged.metric,
        formula=judged.formula,
        analytic=judged.analytic,
        static=judged.static,
        difference=judged.difference,
        smallest=judged.smallest,
        config=dict(draws[int(number)]) if drawn else {},
    )


def _size(c: Counterexample) -> tuple[int, int, int, int, str, str]:
    """Expressions before numbers, general before special, small before large."""
    numbers, general = sum(c.config.values()), len(c.smallest)
    return (numbers, -general, sum(c.smallest.values()), len(c.difference), c.stage, c.module)
