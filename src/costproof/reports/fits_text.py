"""Whether a run fits, for the console and for people who read Markdown."""

from __future__ import annotations

from typing import Final

from costproof.estimate.memory import Fits, Limit
from costproof.reports.escape import code, markdown, table, visible
from costproof.reports.numbers import aligned, exact, human

HEAD: Final = ("Held", "Bytes", "")
STAGES: Final = ("Stage", "Added to the cache", "Written at the borders of modules")
ACTIVATIONS: Final = (
    "The bound of activations keeps every tensor that crosses the border of a module, in one call of each stage.\n"
    "Temporaries inside modules, and what a runtime takes for itself, are in none of these numbers."
)


def fits_text(found: Fits) -> str:
    """For the console."""
    lines = [found.name, verdict(found), "", *aligned(HEAD, _held(found)), "", *aligned(STAGES, _stages(found))]
    lines += ["", *ACTIVATIONS.split("\n")]
    if found.limits:
        lines += ["", "Limits, solved and evaluated on both sides:"]
        limits = (limit(x, found.memory_bytes) for x in found.limits)
        lines += [line for says, sides in limits for line in (f"  {says}", f"      {sides}")]
    return "\n".join(visible(line) for line in lines) + "\n"


def fits_md(found: Fits) -> str:
    """For people."""
    lines = [f"# {markdown(found.name)}", "", markdown(verdict(found)), "", *table(HEAD, "lrr", _held(found)), ""]
    lines += [*table(STAGES, "lrr", [(code(s), *rest) for s, *rest in _stages(found)]), "", ACTIVATIONS]
    if found.limits:
        lines += [
            "",
            "## Limits",
            "",
            *(f"- {markdown('; '.join(limit(x, found.memory_bytes)))}" for x in found.limits),
        ]
    return "\n".join(lines) + "\n"


def verdict(found: Fits) -> str:
    """What can be said, and why."""
    room = f"{exact(found.memory_bytes)} B"
    if found.verdict == "does not fit":
        return f"Does not fit into {room}: weights and cache alone are more."
    if found.verdict == "fits":
        return f"Fits into {room} with every activation kept, temporaries inside modules apart."
    if found.bound_bytes is None:
        return f"Not known whether it fits into {room}: not all of it is counted."
    return f"Not known whether it fits into {room}: weights and cache do, and not all activations at once."


def _held(found: Fits) -> list[tuple[str, ...]]:
    named = (
        ("weights", found.weights_bytes),
        ("cache when the run ends", found.cache_bytes),
        ("weights and cache", found.certain_bytes),
        ("activations, at most", found.activations_bytes),
        ("all of these", found.bound_bytes),
        ("peak of live tensors", found.peak_bytes),
        ("memory", found.memory_bytes),
    )
    return [(name, exact(value), human(value, "B")) for name, value in named]


def _stages(found: Fits) -> list[tuple[str, ...]]:
    return [(s.id, exact(s.cache_bytes), exact(s.activations_bytes)) for s in found.stages]


def limit(x: Limit, room: int) -> tuple[str, str]:
    """One limit: a sentence, and what is held on both sides of it."""
    name = x.setting.replace("_", "-")
    held = "weights, cache and the bound of activations" if x.activations else "weights and cache"
    sides = "; ".join(
        f"at {name} {exact(p.at)}: {exact(p.bytes)} {'>' if p.bytes > room else '≤'} {exact(room)} B" for p in x.points
    )
    if x.outcome == "from":
        return f"{held} do not fit from {name} {exact(x.at)} on", sides
    if x.outcome == "never":
        return f"{held} fit at every {name}", sides
    if x.outcome == "refused":
        return f"{held} would not fit from {name} {exact(x.at)} on, which the model does not take: {x.why}", sides
    return f"from which {name} on {held} do not fit is not solved: {x.why}", sides
