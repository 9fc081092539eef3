"""Define the certificate of a proof: claims, domain, method, environment, and settings that reproduce it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from fractions import Fraction
from math import prod
from pathlib import Path
from typing import Any, Final, Literal

import sympy

from costproof.algebra.symbols import parse, sym
from costproof.ledger.capture import SymbolDoc
from costproof.ledger.errors import BadInput, CostproofError, Problems
from costproof.ledger.metrics import UNPACKING, Conventions, Metric
from costproof.ledger.notebook import NotebookRepr
from costproof.ledger.plural import plural
from costproof.ledger.schema import FileKind, load
from costproof.ledger.workload import TargetInfo

Method = Literal["identity", "identity per size", "identity of rows", "identity of ranks", "enumeration", "recount"]
ProofVerdict = Literal["proved", "refuted", "incomplete"]


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim that formula and graph of one quantity are equal in a pattern of modules, or that two formulas are."""

    stage: str
    invocation: str
    """Invocation; empty for parameters, which do not depend on a run."""
    module: str
    kind: str
    metric: Metric
    modules: int
    runs: tuple[str, ...]
    """The runs for which the equality was shown: inputs, kernels, dtypes."""
    method: Method
    """Method of the proof: ``enumeration``, ``recount``, or an ``identity`` for all values of symbols.

    ``identity``: the expanded difference is 0, for all values of the symbols. ``identity per size``: the same at each
    enumerated size, which is not a symbol there. ``identity of rows``: the same of two formulas, those of a batch of
    rows and those of the runs that ``runs`` names. ``identity of ranks``: the same of the sum over all ranks of a mesh,
    and one device with named copies. ``enumeration``: equal integers at each workload listed. ``recount``: so are
    numbers of a mesh and those of separate code, whose sum is the formula.
    """
    free: tuple[str, ...]
    """Symbols for all of whose values the equality holds."""
    version: str
    """Hash of the formula in the symbols of the configuration."""
    formula: str
    at_config: str
    """The formula with the numbers of this configuration inserted."""

    @property
    def key(self) -> tuple[str, ...]:
        """Return the identity of the claim: stage, invocation, module, kind, metric, formula version and runs."""
        return (self.stage, self.invocation, self.module, self.kind, self.metric, self.version, *self.runs)


@dataclass(frozen=True, slots=True)
class Counterexample:
    """A quantity whose formula and graph, or two formulas, differ, with symbol values that show the difference."""

    found_in: str
    """Id of the piece of the proof that found the difference."""
    stage: str
    invocation: str
    module: str
    kind: str
    metric: Metric
    formula: str
    analytic: str
    static: str
    """The value of the graph, or of the formula or count that a batch of rows must equal."""
    difference: str
    """Analytic minus static expression, factored: the extra term, or with a minus sign the missing one."""
    smallest: dict[str, int]
    """The smallest sizes at which formula and graph, or two formulas, differ."""
    config: dict[str, int]
    """Symbol values of a randomly drawn configuration; empty for the target's own configuration."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that reproduce a proof."""

    samples: int
    seed: int
    config: str
    """JSON text of the normalised configuration."""
    chosen: dict[str, str] = field(default_factory=dict)
    """Settings of the proof that only this target has."""
    stored: str = ""
    """JSON text of the formats and dtype that the checkpoint's files state; empty: the published ones."""


LATER: Final = ("the vector work of the format of quantised weights (unpacking_flops)",)
"""Texts on quantities not claimed by proofs without quantised weights or by certificates before version 2.8."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The range in which random configurations varied a configuration key or a setting."""

    values: int
    """Number of different values; 1 if the key did not vary."""
    least: int | None = None
    """The smallest value; ``None`` if the values are not numbers."""
    greatest: int | None = None
    """The largest value; ``None`` if the values are not numbers."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """The domain of a proof: the sizes, workloads and configurations that were compared."""

    sizes: tuple[int, ...]
    """Sizes at which graphs were exported one by one."""
    symbolic_sizes: tuple[int, ...]
    """Sizes that symbolic graphs cover according to the exporter's conditions, in every stage with such a graph."""
    tried_sizes: tuple[int, ...]
    """Sizes at which the exporter's conditions were evaluated."""
    workloads: tuple[str, ...]
    """Workloads whose graphs were exported one by one, without symbols."""
    runs: tuple[str, ...]
    samples: int
    rows: dict[str, int]
    """Number of (module, operator kind, metric) combinations compared, by method."""
    rows_by_stage: dict[str, int]
    drawn: dict[str, int]
    """Number of values from which a parameter of random configurations was drawn, by parameter."""
    choices: dict[str, int]
    """Number of random configurations with an optional feature, by feature."""
    not_varied: tuple[str, ...]
    """Properties that all random configurations share, with the reason."""
    seen: dict[str, Seen] = field(default_factory=dict)
    """Range of values in the random configurations, by configuration key or setting of the run."""


@dataclass(frozen=True, slots=True)
class Certificate(NotebookRepr):
    """The content of ``certificate.json``: the outcome of a proof, and the settings that reproduce it."""

    conventions: Conventions
    target: TargetInfo
    environment: dict[str, str]
    verdict: ProofVerdict
    settings: Settings
    coverage: Coverage
    bounds: tuple[Bound, ...]
    claims: tuple[Claim, ...]
    counterexamples: tuple[Counterexample, ...]
    missing: tuple[str, ...]
    """Pieces of the proof that could not be carried out, with the reason."""
    not_claimed: tuple[str, ...]
    symbols: dict[str, SymbolDoc] = field(default_factory=dict)
    """The meanings of the workload's symbols in the formulas."""

    def __repr__(self) -> str:
        """Return a summary in one line."""
        return f"Certificate({self.target.name}: {self.verdict}, {plural(len(self.claims), 'claim')})"

    @property
    def every_not_claimed(self) -> tuple[str, ...]:
        """Return the quantities that the proof does not claim, including those unknown to the version that made it."""
        later = () if any(claim.metric == UNPACKING for claim in self.claims) else LATER
        return (*(text for text in self.not_claimed if text not in LATER), *later)

    def mistakes(self) -> tuple[tuple[Counterexample, ...], ...]:
        """Return the counterexamples grouped by quantity, headline FLOPs first, the simplest first in each group."""
        found: dict[tuple[str, str, str, Metric], list[Counterexample]] = {}
        for c in self.counterexamples:
            found.setdefault((c.stage, c.module, c.kind, c.metric), []).append(c)
        return tuple(map(tuple, sorted(found.values(), key=lambda same: same[0].metric != "flops")))

    @property
    def exit_code(self) -> int:
        """Return 0 for proved, 1 for refuted, 3 for incomplete."""
        return {"proved": 0, "refuted": 1, "incomplete": 3}[self.verdict]


CERTIFICATE: Final = FileKind(name="costproof/certificate", version=(2, 8), type=Certificate)


def read_certificate(path: Path) -> Certificate:
    """Read ``certificate.json``.

    Raises:
        BadInput: the file is not a certificate of a version that this costproof reads.
        Problems: it contradicts itself.
    """
    found = load(path, CERTIFICATE, make_again="costproof prove TARGET -o DIR")
    if not found.coverage.rows and found.verdict == "proved":
        raise BadInput("a certificate that compared nothing proves nothing", where="$.coverage.rows", got="{}")
    if problems := [*_contradictions(found)]:
        raise Problems("the certificate contradicts itself", problems)
    return found


def _contradictions(found: Certificate) -> Iterator[CostproofError]:
    verdict = verdict_of(found.counterexamples, found.missing)
    if found.verdict != verdict:
        yield BadInput(
            "the verdict does not follow from the results", where="$.verdict", expected=verdict, got=found.verdict
        )
    if found.coverage.samples != found.settings.samples:
        yield BadInput("the number of random configurations is not that of the settings", where="$.coverage.samples",
                       expected=found.settings.samples, got=found.coverage.samples)  # fmt: skip
    keys = Counter(claim.key for claim in found.claims)
    if twice := next((key for key, times in keys.items() if times > 1), None):
        yield BadInput("a claim is made twice", where="$.claims", got="/".join(twice))


def verdict_of(wrong: Sequence[Counterexample], missing: Sequence[str]) -> ProofVerdict:
    """Return the verdict of a proof, from its counterexamples and the pieces that failed."""
    return "refuted" if wrong else "incomplete" if missing else "proved"


_UNUSED: Final = "target.waived"


def differences(old: Certificate, new: Certificate) -> tuple[str, ...]:
    """Return sentences on the differences between a repeated proof and its certificate.

    All that a certificate says is compared but its environment (versions of libraries are named, not judged) and the
    unused keys of the file of its configuration, which is not in the certificate.
    """
    found = [
        f"{name}: {a} in the certificate, {b} now"
        for name, a, b in (
            ("verdict", old.verdict, new.verdict),
            ("configuration", old.target.config_hash, new.target.config_hash),
            ("samples", old.coverage.samples, new.coverage.samples),
        )
        if a != b
    ]
    before, after = ({c.key: c for c in x.claims} for x in (old, new))
    found += [f"no longer claimed: {'/'.join(k)}" for k in before if k not in after]
    found += [f"not in the certificate: {'/'.join(k)}" for k in after if k not in before]
    for key, claim in before.items():
        now = after.get(key)
        if now is not None and (claim.version, claim.at_config) != (now.version, now.at_config):
            found.append(f"another formula: {'/'.join(key)}: {claim.at_config} in the certificate, {now.at_config} now")
        elif now is not None and (claim.method, claim.free, claim.runs) != (now.method, now.free, now.runs):
            found.append(f"another method or domain: {'/'.join(key)}")
        elif now is not None and claim != now:
            found.append(f"another claim: {'/'.join(key)}: {', '.join(_changed(claim, now))}")
    if len(old.claims) != len(before):
        found.append("the certificate claims something twice")
    if (old.bounds, old.coverage, old.every_not_claimed) != (new.bounds, new.coverage, new.every_not_claimed):
        found.append("the domain or its coverage is another one")
    told = {"environment", "claims", "verdict", "bounds", "coverage", "not_claimed"}
    found += [
        f"another {name}"
        for name in _changed(old, new)
        if name.partition(".")[0] not in told and not name.startswith(_UNUSED)
    ]
    return tuple(found)


def _changed(old: Any, new: Any, within: str = "") -> Iterator[str]:
    """Yield the paths at which two values differ: ``target.config.layers``."""
    if is_dataclass(old) and type(old) is type(new):
        old, new = ({f.name: getattr(x, f.name) for f in fields(old)} for x in (old, new))
    if isinstance(old, dict) and isinstance(new, dict):
        for name in dict.fromkeys((*old, *new)):
            path = f"{within}.{name}" if within else name
            if (name in old) != (name in new):
                yield path
            else:
                yield from _changed(old[name], new[name], path)
    elif old != new or type(old) is not type(new):
        yield within


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of random configurations that is drawn independently of all others."""

    name: str
    values: int
    """Number of values from which the parameter is drawn uniformly."""
    degree: int
    """Highest degree of any formula of the stage in this parameter."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Upper bound of the probability that random configurations miss a wrong formula of a stage."""

    stage: str
    parameters: tuple[Parameter, ...]
    fixed: tuple[str, ...]
    """Symbols in the formulas that are not drawn at random and that the bound does not cover."""
    caught: str
    """Lower bound of the probability that one random configuration shows a difference, as a fraction."""
    samples: int
    missed_exponent: int
    """Exponent n such that all configurations miss a difference with probability at most 10 to the minus n."""


def degrees(formulas: Iterable[str], independent: Mapping[str, str]) -> dict[str, int]:
    """Return the highest degree of each independent parameter in these formulas.

    Args:
        formulas: expressions in the configuration's symbols.
        independent: symbol -> what it is in independent parameters: ``text_hidden`` ->
            ``text_heads * text_head_dim``; symbols that are not named stand for themselves.

    Ceilings and minima are taken as sizes of their own: their arguments do not count.
    """
    replaced = {sym(k): parse(v) for k, v in independent.items()}
    highest: dict[str, int] = {}
    for formula in dict.fromkeys(formulas):
        expr = parse(formula)
        opaque = {f: sympy.Dummy(positive=True) for f in expr.atoms(sympy.ceiling, sympy.floor, sympy.Min, sympy.Max)}
        expr = expr.xreplace(opaque).subs(replaced)
        if not expr.free_symbols:
            continue
        try:
            polynomial = sympy.Poly(expr, *expr.free_symbols)
        except sympy.PolynomialError:  # a quotient
            numerator = sympy.numer(sympy.together(sympy.expand(expr)))
            if not numerator.free_symbols:
                continue
            polynomial = sympy.Poly(numerator, *numerator.free_symbols)
        for symbol in polynomial.free_symbols:
            if not isinstance(symbol, sympy.Dummy):
                highest[symbol.name] = max(highest.get(symbol.name, 0), int(polynomial.degree(symbol)))
    return highest


def bound(stage: str, degree: Mapping[str, int], values: Mapping[str, int], samples: int) -> Bound:
    """Return the probability bound for one stage from the degrees of its formulas and the numbers of drawn values.

    Symbols that are not drawn are named as such.

    Args:
        degree: parameter -> highest degree.
        values: parameter -> number of values it is drawn from.
    """
    parameters = tuple(Parameter(n, values[n], d) for n, d in sorted(degree.items()) if n in values and d > 0)
    fixed = tuple(n for n in sorted(degree) if n not in values)
    caught = prod((max(Fraction(0), 1 - Fraction(p.degree, p.values)) for p in parameters), start=Fraction(1))
    # (1 - c)^samples in powers of ten, by integers: squaring until the exponent is reached.
    missed = (1 - caught) ** samples
    exponent = max(0, len(str(missed.denominator // missed.numerator)) - 1) if missed else 9999
    # In thousandths, rounded down: it stays a lower bound.
    return Bound(stage, parameters, fixed, f"{int(caught * 1000)}/1000", samples, exponent)
