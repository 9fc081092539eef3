"""What the page of ``make gpu-check`` says of the rows in its CSV files, and the goals that they are judged by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from fractions import Fraction
from statistics import correlation
from typing import Any, Final

from costproof.estimate.measured import TimeSplit
from costproof.reports.escape import markdown
from costproof.reports.escape import table as escaped

Row = Mapping[str, str]
"""The cells of a row by column; empty where something is unknown."""
GOALS: Final = {
    "cuda": {"eager": Fraction(1, 5), "graph": Fraction(1, 10)},
    "cpu": {"eager": Fraction(1, 5)},
}
"""The median error of the predicted time of each stage, at most, by the form that it runs in."""
RANKED: Final = 0.99
"""The rank correlation of predicted and measured times on a processor, at least."""
SPLIT: Final = tuple(f.name for f in fields(TimeSplit))
UNTRIED: Final = "not tried"
_INTERVAL: Final = ("least", "measured", "predicted")
_WORST: Final = 3
"""How many rows and parts of a time are named."""


def table(head: tuple[str, ...], align: str, rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table of cells that are not escaped yet."""
    return escaped(head, align, [tuple(map(markdown, row)) for row in rows])


def grouped(rows: Iterable[Row], key: Callable[[Row], str]) -> dict[str, list[Row]]:
    """The rows of each key, in the order in which keys come first."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def stage_of(row: Row) -> str:
    """The stage without its invocation: of ``sam@crops`` and of ``sam, crops``."""
    return row["stage"].partition("@")[0].partition(",")[0]


def rates(rows: Sequence[Row]) -> list[str]:
    """What the machine does."""
    return table(("figure", "measured"), "lr", [(row["figure"], row["measured"]) for row in rows])


def counts(rows: Sequence[Row]) -> list[str]:
    """How many runs of each model are exact, and the verdicts of those that are not."""
    found, others = [], []
    for _, mine in sorted(grouped(rows, lambda row: f"{row['model']}, {row['attention']}, {row['layers']}").items()):
        left = [row for row in mine if not row["verdict"].startswith("Exact")]
        what = [mine[0][name] for name in ("model", "attention", "layers")]
        presets = ", ".join(sorted(row["preset"] for row in mine))
        found.append([*what, presets, f"{len(mine) - len(left)} of {len(mine)}"])
        others += [
            f"- {markdown(', '.join(filter(None, (*what, r['preset']))))}: {markdown(r['verdict'])}" for r in left
        ]
    lines = table(("model", "attention", "layers", "presets", "exact"), "llllr", found)
    return [*lines, "", *others] if others else lines


def peaks(rows: Sequence[Row]) -> list[str]:
    """How many calls of each stage hold to the byte what was counted, the largest gap, and what it is."""
    found = []
    for stage, mine in grouped(rows, stage_of).items():
        exact, gaps, names = 0, [], {}
        for row in mine:
            both = [_beyond(row, "program", "graph"), _beyond(row, "module", "eager")]
            if both == [0, 0] and row.get("residual", "0") == "0":
                exact += 1
            else:
                parts = row.get("of which") or "not named 0"
                names.update(dict.fromkeys(part.rpartition(" ")[0] for part in parts.split("; ")))
            gaps += [gap for gap in both if gap is not None]
        largest = f"{max(gaps, key=abs):,}" if gaps else "unknown"
        found.append([stage, f"{exact} of {len(mine)}", largest, "; ".join(names)])
    lines = table(("stage", "to the byte", "largest gap, bytes", "of"), "lrrl", found)
    if given := [_beyond(row, "allocated", "program") or 0 for row in rows if "allocated" in row]:
        lines += ["", f"The allocator gave at most {max(given):,} bytes more than it was asked for."]
    return lines


def _beyond(row: Row, ran: str, known: str) -> int | None:
    return int(row[ran]) - int(row[known]) if row[ran] and row[known] else None


def errors(rows: Iterable[Row], form: str) -> dict[str, list[Row]]:
    """The rows of each stage that were predicted and measured in a form, by how far these are apart."""
    known = grouped((row for row in rows if row["form"] == form and row["off"]), stage_of)
    return {stage: sorted(mine, key=_off) for stage, mine in known.items()}


def median(mine: Sequence[Row]) -> Fraction:
    """The median error of rows in their order, the larger middle one of an even number."""
    return Fraction(mine[len(mine) // 2]["off"])


def times(rows: Sequence[Row]) -> list[str]:
    """How far predictions are off by stage and form; the worst of each form, and why there is no time."""
    forms, said = grouped(rows, lambda row: row["form"]), []
    known = {form: found for form, mine in forms.items() if (found := errors(mine, form))}
    stages = []
    for stage, mine in grouped(rows, stage_of).items():
        cells = []
        for found in known.values():
            those = found.get(stage, [])
            most = f", at most {_percent(those[-1]['off'])}" if len(those) > 1 else ""
            cells.append(f"{_percent(median(those))}{most} ({len(those)})" if those else "")
        shares = [Fraction(row["of peak"]) for row in mine if row["of peak"]]
        stages.append([stage, *cells, _percent(max(shares)) if shares else "unknown"])
    for form, mine in forms.items():
        some = []
        if form in known:
            every = sorted((row for those in known[form].values() for row in those), key=_off)
            predicted, measured = (sum(Fraction(row[name]) for row in every) for name in ("predicted", "measured"))
            some.append(f"predicted / measured, all added: {float(predicted / (measured or 1)):.3f}")
            if ranged := [[Fraction(row[name]) for name in _INTERVAL] for row in every if row["least"]]:
                some.append(f"{sum(one == sorted(one) for one in ranged)} of {len(ranged)} inside the interval")
            worst = [f"{_percent(row['off'])} ({_what(row)})" for row in every[: -_WORST - 1 : -1]]
            some.append(f"worst: {', '.join(worst)}")
        elif several := sum(bool(row["measured"]) for row in mine):
            some.append(f"{several} measured, none predicted")
        left = []
        for reason, those in grouped(mine, lambda row: row["why"]).items():
            if reason not in ("", UNTRIED):
                each = ", ".join(f"{len(of)} {stage}" for stage, of in grouped(those, stage_of).items())
                left.append(f"{each} ({reason})")
        if left:
            some.append(f"not measured: {', '.join(left)}")
        if some:
            said.append(f"- {form}: {markdown('; '.join(some))}.")
    return [*table(("stage", *known, "of peak (MFU), at most"), f"l{'l' * len(known)}r", stages), "", *said]


def _off(row: Row) -> Fraction:
    return Fraction(row["off"])


def _what(row: Row) -> str:
    return f"{row['model']}, {row['attention']}, {row['layers']}, {row['stage']}"


def _percent(part: Fraction | str) -> str:
    return f"{float(Fraction(part)):.1%}"


def parts(rows: Sequence[Row]) -> list[str]:
    """Which clock binds the eager run of each stage, and the largest parts of its time."""
    found = []
    for stage, mine in grouped(rows, stage_of).items():
        known = [[Fraction(row[name]) for name in SPLIT] for row in mine if all(row[name] for name in SPLIT)]
        shares = zip(*([part / (sum(split) or 1) for part in split] for split in known), strict=True)
        middle = {name: sorted(mine)[len(known) // 2] for name, mine in zip(SPLIT, shares, strict=False)}
        largest = sorted(middle, key=lambda name: -abs(middle[name]))[:_WORST]
        binds = f"{sum(row['binds'] == 'host' for row in mine)} of {len(mine)}"
        found.append([stage, binds, ", ".join(f"{name} {float(middle[name]):.0%}" for name in largest)])
    return table(("stage", "host binds", "largest parts of the eager time, median share"), "lrl", found)


def steps(rows: Sequence[Row]) -> list[str]:
    """How long the steps of each part took."""
    said = []
    for part, mine in grouped(rows, lambda row: row["part"]).items():
        said.append(f"{part} {sum(float(row['seconds']) for row in mine):.0f} s ({len(mine)})")
    return [f"{', '.join(said)}."]


def goals(
    kind: str, figures: Mapping[str, Sequence[Mapping[str, Any]]], timed: Sequence[Row]
) -> Iterator[tuple[str, str, str, str]]:
    """The rows of the goals: what, wanted, found, whether it is met.

    Args:
        timed: the rows of the times.
    """

    def row(what: str, wanted: str, found: str, met: bool | None) -> tuple[str, str, str, str]:
        return what, wanted, found, "unknown" if met is None else "yes" if met else "NO"

    for name, what in (("counts", "counts exact or explained"), ("peaks", "peaks to the byte or by named workspaces")):
        found = figures.get(name, [])
        good = sum(f["good"] for f in found)
        yield row(what, "all", f"{good} of {len(found)}", good == len(found) if found else None)
    floor = figures.get("floor", [])
    below = sum(not f["good"] for f in floor)
    rows = sum(f.get("rows", 0) for f in floor)
    yield row("times below their floor", "0", f"{below} of {rows}", not below if floor else None)
    for form, goal in GOALS[kind].items():
        what, wanted = f"{form}: median error by stage", f"≤ {float(goal):.0%}"
        off = {stage: median(mine) for stage, mine in errors(timed, form).items()}
        most = max(off, key=lambda stage: off[stage], default="")
        if off:
            yield row(what, wanted, f"{_percent(off[most])} in {most}, largest of {len(off)}", off[most] <= goal)
        else:
            yield row(what, wanted, "none measured", None)
    for drawn in figures.get("weights", []):
        yield row(drawn["what"], drawn["wanted"], drawn["found"], drawn["good"])
    if kind == "cpu" and (rank := rank_correlation(timed)) is not None:
        yield row("rank correlation of predicted and measured", str(RANKED), f"{rank:.4f}", rank >= RANKED)


def rank_correlation(timed: Sequence[Row]) -> float | None:
    """Spearman's, of predicted and measured eager times; ``None`` where all are equal."""
    known = [row for mine in errors(timed, "eager").values() for row in mine]
    both = [[Fraction(row[name]) for row in known] for name in ("predicted", "measured")]
    if any(len(set(values)) < 2 for values in both):
        return None
    return correlation(*map(ranks, both))


def ranks(values: Sequence[Fraction | int]) -> list[float]:
    """Of equal values the mean of their places, from 0."""
    ordered = sorted(values)
    return [ordered.index(v) + (ordered.count(v) - 1) / 2 for v in values]
