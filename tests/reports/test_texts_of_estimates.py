"""Each table cell and numbered line of fits, roofline, stored and static reports, against the JSON of the same run.

The tests derive each cell from the JSON by its labels, with their own rounding. A table, a row or a line with a number
that no label covers fails.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from functools import cache
from html import unescape
from typing import Any, Final

import pytest

from costproof import api
from costproof.estimate.memory import Fits, HeldKind, MemoryLimit, MemoryPoint
from costproof.estimate.roofline import Roofline
from costproof.ledger.schema import to_data
from costproof.reports.outputs import variants
from costproof.reports.report import Report
from costproof.reports.summary import summary_text
from costproof.storage.checkpoint import HeaderDifference, HeaderTotals, StoredCheckpoint, StoredPart
from costproof.storage.headers import FileSection
from costproof.storage.tensors import StoredTotals
from costproof.views.static_compute import STATIC_COMPUTE
from tests.support.toy import toy

Data = Mapping[str, Any]
Row = tuple[str, ...]
NUMBER: Final = re.compile(r"(?<![\w.*-])\d")
"""A number in prose, as opposed to a digit in a name such as float32 or h100-sxm."""


def digits(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def fixed(value: Fraction | int, places: int) -> str:
    """Return a number with so many decimals, the half rounded up."""
    scaled = (value * 10**places + Fraction(1, 2)) // 1
    return f"{scaled // 10**places:,}" + (f".{scaled % 10**places:0{places}}" if places else "")


def short(value: int | None, unit: str, places: int = 2) -> str:
    """Return a number with the largest prefix that leaves at least 1, also after rounding."""
    if value is None:
        return "?"
    if value < 1000:
        return f"{value} {unit}".strip()
    group = (len(str(value)) - 1) // 3
    size = Decimal(value).scaleb(-3 * group).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP)
    if size >= 1000:
        size, group = (size / 1000).quantize(Decimal(1).scaleb(-places)), group + 1
    return f"{size} {' kMGTPE'[group]}{unit}"


def time(seconds: str | None, places: int = 3) -> str:
    """Return seconds in the largest unit that leaves at least 1, else in nanoseconds."""
    if seconds is None:
        return "?"
    value = Fraction(seconds)
    if not value:
        return "0 s"
    for power, unit in ((0, "s"), (3, "ms"), (6, "µs")):
        if value * 10**power >= 1:
            return f"{fixed(value * 10**power, places)} {unit}"
    return f"{fixed(value * 10**9, places)} ns"


def percent(part: str | int | None, whole: str | int | None) -> str:
    if part is None or whole is None or not Fraction(whole):
        return ""
    ratio = Fraction(part) / Fraction(whole)
    shown = fixed(100 * ratio, 1)
    if ratio and shown == "0.0":
        return "below 0.1 %"
    return "over 99.9 %" if ratio < 1 and shown == "100.0" else f"{shown} %"


class Page:
    """The tables of the Markdown of a report, and the lines of its text (or of the Markdown) that are in no table."""

    def __init__(self, markdown: str, text: str | None = None) -> None:
        self.tables: list[tuple[Row, list[Row]]] = []
        self.lines: list[str] = []
        before = ""
        for line in markdown.splitlines():
            cells = tuple(unescape(cell).strip().strip("`*") for cell in line[1:-1].split("|"))
            if not line.startswith("| "):
                self.lines += [] if line.startswith("|-") else [unescape(line).replace("`", "").strip("*#- ")]
            elif not before.startswith("|"):
                self.tables.append((cells, []))
            else:
                self.tables[-1][1].append(cells)
            before = line
        if text is not None:
            self.lines = [" ".join(line.split()) for line in text.splitlines()]
            for row in [row for head, rows in self.tables for row in (head, *rows)]:
                self.lines.remove(" ".join(" ".join(row).split()))

    def table(self, *head: str) -> list[Row]:
        """Remove the only table with these columns, and return its rows."""
        (at,) = (i for i, (columns, _) in enumerate(self.tables) if columns == head)
        return self.tables.pop(at)[1]

    def compare(self, head: Sequence[str], expected: Iterable[Row]) -> None:
        """Remove the only table with these columns, and compare every cell."""
        rows = self.table(*head)
        assert rows == [tuple(row) for row in expected], head

    def take(self, *lines: str) -> None:
        """Remove lines that the text has."""
        for line in lines:
            assert line in self.lines, (line, [known for known in self.lines if NUMBER.search(known)])
            self.lines.remove(line)

    def find(self, pattern: str) -> re.Match[str]:
        """Remove the only line that the pattern matches from its start."""
        (found,) = (match for line in self.lines if (match := re.match(pattern, line)) is not None)
        self.lines.remove(found.string)
        return found

    def close(self) -> None:
        """Require that no table and no line with a number is left, beside those on the conditions of the count."""
        assert not self.tables, [head for head, _ in self.tables]
        about = re.compile(r"Counted: (?!.*rank \d)|Note: |and \d+ more note")
        left = [line for line in self.lines if NUMBER.search(line) and not about.match(line)]
        assert not left


def page(kind: str, found: Any) -> tuple[Page, Any]:
    """Return the Markdown with the text, and the JSON, of a result."""
    forms = variants(kind)
    return Page(forms["md"].text(found), forms["text"].text(found)), json.loads(forms["json"].text(found))


def named(ranks: Sequence[int]) -> str:
    """Return consecutive ranks as text."""
    assert list(ranks) == list(range(ranks[0], ranks[-1] + 1))
    return f"{ranks[0]}" if len(ranks) == 1 else f"{ranks[0]} to {ranks[-1]}"


# fits

LLAMA: Final = "llama-3.1-8b,layers=2,text_tokens=70,new_tokens=5,batch=3"


@cache
def divided() -> Fits:
    """Rank 0 has two of three sequences, rank 1 one."""
    return api.fits(f"{LLAMA},dp=2", memory="4GB", reserve="300MB")


def bounded() -> Fits:
    """The same without a live peak: only bounds of activations, which exceed a memory of 3 GB with the weights."""
    found = divided()
    kinds: dict[HeldKind, HeldKind] = {"weights and live peak": "weights, cache and bound"}
    limits = tuple(replace(x, held=kinds.get(x.held, x.held)) for x in found.limits)
    return replace(found, live_bytes=None, limits=limits)


def peaked(least: int) -> Fits:
    """With eager peaks of both stages, of which the largest is ``least``, and tensors that are attributes."""
    found = bounded()
    peaks = ((least, 70_000_000), (20_000_000, 30_000_001))
    stages = tuple(replace(s, peak_bytes=a, peaks_bytes=b) for s, (a, b) in zip(found.stages, peaks, strict=True))
    return replace(found, stages=stages, peak_bytes=least, attributes_bytes=1_500_000, reserve_bytes=0)


def stored_weights() -> Fits:
    """With weights as a quantised checkpoint stores them, one MTP module among them, and a matrix to unpack."""
    return replace(
        divided(), stored_bytes=1_800_000_001, stored_format="fp8", next_token_modules=1, next_token_bytes=300_000_007,
        unpacked_bytes=117_440_512, ranks=(), binding_ranks=(1,),
    )  # fmt: skip


def unsolved() -> Fits:
    """With limits of every outcome: a cache that always fits, a refused first value, one that is not solved."""
    found = divided()
    more = (
        MemoryLimit("batch", "weights and live peak", "refused", 4_000, (MemoryPoint(9, 3_600_000_000),), "too large"),
        MemoryLimit("batch", "weights and cache", "never", None, (MemoryPoint(3, 3_100_000_001),)),
        MemoryLimit("text_tokens", "weights and live peak", "refused", 7, (), "too long"),
        MemoryLimit("text_tokens", "weights and cache", "not solved", None, (MemoryPoint(70, 3_200_000_002),), "hard"),
        MemoryLimit("images", "weights and graph peak", "from", 6, (MemoryPoint(5, 10), MemoryPoint(6, 3_800_000_003))),
    )
    return replace(found, limits=more, ranks=(), binding_ranks=(0,))


def unknown_cache() -> Fits:
    """A checkpoint whose cache has a format of unknown size."""
    found = divided()
    return replace(found, target=replace(found.target, quantised={"cache": "fp8"}), ranks=(), binding_ranks=())


WEIGHTS: Final = ("weights", "buffers", "cache when the run ends")
LIVE: Final = ("weights, buffers and cache", "live peak, cache included", "weights, buffers and live peak")
RESERVED: Final = ("left to the runtime, by --reserve", "memory without that")
PEAKS: Final = (
    "largest peak of a stage, arguments apart", "weights, buffers and largest peak", "weights, buffers and all peaks",
)  # fmt: skip
ATTRIBUTED: Final = (
    "weights", "buffers", "tensors that are attributes", "cache when the run ends", "weights, buffers and cache",
    "activations, at most", "all of these", *PEAKS, "memory",
)  # fmt: skip
OF_TWO: Final = "Of 2 ranks, rank 0 holds the most: these bytes are of rank 0, limits the least of all."
COUNTED: Final = "these bytes and limits are of rank 0"
FITS: Final[dict[str, tuple[Callable[[], Fits], Row, int, str]]] = {
    "divided": (divided, (*WEIGHTS, *LIVE, *RESERVED), 2, OF_TWO),
    "blocks": (
        lambda: api.fits(f"{LLAMA},kv_block=16", memory="3.4GB", reserve="100MB"),
        (
            *WEIGHTS, "cache in blocks of 16 tokens", "waste, in these blocks", *LIVE[:2],
            "live peak, its cache in blocks, at most", f"{LIVE[2]}, at most", *RESERVED,
        ),
        1, "",
    ),
    "narrow": (
        lambda: api.fits(f"{LLAMA},kv_dtype=fp8", memory="3.1GB"),
        (*WEIGHTS, LIVE[0], f"{LIVE[1]}, at most", f"{LIVE[2]}, at most", "memory"), 1, "",
    ),
    "mesh": (
        lambda: api.fits(LLAMA, on="8xh100-sxm", memory="900MB"), (*WEIGHTS, *LIVE, "memory"), 4,
        f"All 4 ranks hold the same weights and cache: {COUNTED}.",
    ),
    "bounded": (
        bounded, (*WEIGHTS, LIVE[0], "activations, at most", "all of these", *RESERVED), 2, OF_TWO,
    ),
    "peaks": (lambda: peaked(41_000_000), ATTRIBUTED, 2, OF_TWO),
    "small-peaks": (lambda: peaked(41_000), ATTRIBUTED, 2, OF_TWO),
    "stored": (
        stored_weights,
        (
            "weights, stored as fp8", "of these, 1 MTP module", *WEIGHTS[1:], *LIVE[:2], "the largest matrix, unpacked",
            f"{LIVE[2]}, at most", *RESERVED,
        ),
        2,
        (
            f"T{COUNTED[1:]}, which holds less: of 2 ranks, rank 1 holds the most weights and cache, which decides; "
            "rank=1 counts one of them."
        ),
    ),
    "unsolved": (
        unsolved, (*WEIGHTS, *LIVE, *RESERVED), 2,
        f"Of 2 ranks, rank 0 holds the most weights and cache, which decides; {COUNTED}.",
    ),
    "unknown-cache": (
        unknown_cache, (*WEIGHTS, *LIVE, *RESERVED), 2, f"Which of 2 ranks hold the most is not known: {COUNTED}.",
    ),
}  # fmt: skip
"""By case: the result, the rows of its first table without words that later rules add, its ranks, a line on them."""


def held(f: Data) -> dict[str, int | None]:
    """Return the bytes that each label of the first table stands for."""
    weights = f["weights_bytes"] if f["stored_bytes"] is None else f["stored_bytes"]
    lasting = weights + f["buffers_bytes"] + f["attributes_bytes"]
    kept = f["cache_bytes"] if f["held_cache_bytes"] is None else f["held_cache_bytes"]
    live = f["live_bytes"] if f["held_cache_bytes"] is None else f["blocked_live_bytes"]
    unpacked = f["unpacked_bytes"] or 0
    peaks = [s["peaks_bytes"] for s in f["stages"]]
    return {
        "weights": f["weights_bytes"],
        f"weights, stored as {f['stored_format']}": f["stored_bytes"],
        "of these, 1 MTP module": f["next_token_bytes"],
        "buffers": f["buffers_bytes"],
        "tensors that are attributes": f["attributes_bytes"],
        "cache when the run ends": f["cache_bytes"],
        "cache in blocks of 16 tokens": f["held_cache_bytes"],
        "waste, in these blocks": f["cache_waste_bytes"],
        "weights, buffers and cache": lasting + kept,
        "activations, at most": f["activations_bytes"],
        "live peak, cache included": f["live_bytes"],
        "live peak, cache included, at most": f["live_bytes"],
        "live peak, its cache in blocks, at most": f["blocked_live_bytes"],
        "the largest matrix, unpacked": f["unpacked_bytes"],
        "all of these": lasting + kept + f["activations_bytes"] + unpacked,
        "weights, buffers and live peak": None if live is None else lasting + live,
        "weights, buffers and live peak, at most": None if live is None else lasting + live + unpacked,
        "largest peak of a stage, arguments apart": f["peak_bytes"],
        "weights, buffers and largest peak": lasting + max(f["peak_bytes"] or 0, kept),
        "weights, buffers and all peaks": None if None in peaks else lasting + sum(peaks) + unpacked,
        "left to the runtime, by --reserve": f["reserve_bytes"],
        "memory": f["memory_bytes"],
        "memory without that": f["memory_bytes"],
    }


def verdict_of(f: Data, *, known: bool) -> str:
    of = held(f)
    most = next(
        size
        for name in ("weights, buffers and live peak, at most", "weights, buffers and all peaks", "all of these")
        if (size := of[name]) is not None
    )
    least = [of["weights, buffers and cache"] or 0, of["weights, buffers and largest peak"] or 0]
    if "kv_dtype" not in f["workload"]["inputs"] and f["live_bytes"] is not None:
        least.append((of["weights, buffers and live peak"] or 0) - (f["blocked_live_bytes"] or 0))
        least[-1] += f["live_bytes"] if f["blocked_live_bytes"] else 0
    if not known:
        return "Not known whether it fits"
    if max(least) > f["memory_bytes"]:
        return "Does not fit"
    return "Fits" if most <= f["memory_bytes"] else "Not known whether it fits"


def largest(f: Data, setting: str, kind: str) -> str | None:
    """Return the largest value of a setting with which these bytes fit, as the report says it; ``None`` if unknown."""
    for x in f["limits"]:
        if (x["setting"], x["held"]) == (setting, kind) and x["outcome"] != "not solved":
            fit = [p["at"] for p in x["points"] if p["bytes"] <= f["memory_bytes"]]
            if x["outcome"] == "never":
                return "any"
            if x["outcome"] == "from":
                return digits(max(fit)) if fit else "none"
            return f"{digits(max(fit))}, the most that is accepted" if fit else "any that is accepted"
    return None


def plain_lines(f: Data, *, known: bool) -> list[str]:
    """Return the lines on the settings with which a run fits, and on its cache and logits."""
    exact = f["live_bytes"] is not None and not f["unpacked_bytes"] and f["blocked_live_bytes"] is None
    exact &= "kv_dtype" not in f["workload"]["inputs"]
    lines = []
    if known:
        lines.append(f"One more token of text takes {digits(f['token_bytes'])} B of cache in each sequence.")
    for setting, what in (("batch", "largest batch at this length"), ("text_tokens", "longest text in this batch")):
        alone = largest(f, setting, "weights and cache")
        most = largest(
            f, setting, "weights and live peak" if f["live_bytes"] is not None else "weights, cache and bound"
        )
        if exact:
            also = "" if alone in (None, most) else f" (by the cache alone {alone})"
            lines.append(f"The {what}: {most}{also}.")
        else:
            lines.append(f"The {what}: at least {most}, and by the cache alone {alone or 'not known'}.")
    if known and f["live_bytes"] is not None:
        last = digits(f["last_logits_bytes"])
        bound = "at most " if "kv_dtype" in f["workload"]["inputs"] else ""
        lines.append(f"Logits of all positions decide the live peak: with --logits last it is {bound}{last} B.")
    return lines


def limit_lines(f: Data) -> list[str]:
    """Return two lines for each solved limit: its value, and the bytes on both sides of it."""
    lines = []
    exact = not f["unpacked_bytes"] and f["blocked_live_bytes"] is None and "kv_dtype" not in f["workload"]["inputs"]
    for x in f["limits"]:
        name, at = x["setting"].replace("_", "-"), digits(x["at"])
        what = {
            "weights and cache": "weights, buffers and cache",
            "weights and live peak": "weights, buffers and the live peak",
            "weights and graph peak": "weights, buffers and the largest graph peak, arguments apart,",
            "weights, cache and bound": "weights, buffers, cache and the bound of activations",
        }[x["held"]]
        if f["attributes_bytes"]:
            what = what.replace("weights, buffers", "weights, buffers, attributes")
        sure = exact or x["held"] != "weights and live peak"
        lines.append({
            "from": f"{what} {'do' if sure else 'may'} not fit from {name} {at} on",
            "never": f"{what} fit at every {name}",
            "refused": f"{what} {'would' if sure else 'might'} not fit from {name} {at} on, "
            f"which is refused: {x['why']}",
            "not solved": f"from which {name} on {what} do not fit is not solved: {x['why']}",
        }[x["outcome"]])  # fmt: skip
        room = f["memory_bytes"]
        lines.append("; ".join(
            f"at {name} {digits(p['at'])}: {digits(p['bytes'])} {'≤' if p['bytes'] <= room else '>'} {digits(room)} B"
            for p in x["points"]
        ))  # fmt: skip
    return [line for line in lines if line]


@pytest.mark.parametrize("case", FITS)
def test_texts_of_fits(case: str) -> None:
    made, labels, world, rank_line = FITS[case]
    of, f = page("fits", made())
    known = case != "unknown-cache"
    assumed = "" if known else ", as if the cache were bfloat16"

    def label(text: str) -> str:
        more = "weights, buffers, attributes" if f["attributes_bytes"] else "weights, buffers"
        caching = "cache" in text.lower() or "live peak" in text.lower()
        return text.replace("weights, buffers", more) + (assumed if caching else "")

    sizes = held(f)
    numbers = [sizes[name] for name in labels]
    assert len({*numbers}) == len(numbers) - (case == "small-peaks")  # there least is weights, buffers and cache
    of.compare(
        ("Held", "Bytes", ""),
        [(label(name), digits(n), short(n, "B")) for name, n in zip(labels, numbers, strict=True)],
    )
    columns = {"Stage": "id", "Added to the cache": "cache_bytes"}
    if f["live_bytes"] is None:
        columns["Activations, at most"] = "activations_bytes"
    else:
        columns["Live peak, at most" if case == "narrow" else "Live peak"] = "live_bytes"
    if f["peak_bytes"] is not None:
        columns |= {"Peak, arguments apart": "peak_bytes", "Peaks of all its calls": "peaks_bytes"}
    stages = [(s["id"], *(digits(s[key]) for key in [*columns.values()][1:])) for s in f["stages"]]
    assert len({cell for row in stages for cell in row}) == len(stages) * len(columns)
    of.compare([label(name) for name in columns], stages)
    if f["tried"]:
        rows: dict[str, tuple[list[str], str, str]] = {}  # one for all meshes that are refused for one reason
        for x in f["tried"]:
            name = f"tp {x['tp']}" + (f", ep {x['ep']}" if x["ep"] > 1 else "")
            said = x["verdict"] or "cannot be: " + re.sub("; got [0-9]+$", "", x["why"])
            weights = "" if x["weights_bytes"] is None else digits(x["weights_bytes"])
            rows.setdefault(name if x["verdict"] else said, ([], weights, said))[0].append(name)
        meshes = [("; ".join(names), weights, said) for names, weights, said in rows.values()]
        of.compare(("Mesh", "Weights and buffers of a rank", "Verdict"), meshes)
    if len(f["ranks"]) > 1:
        of.compare(
            [label(name) for name in ("Ranks", "Weights", "Cache", "At most", "Verdict")],
            [
                (
                    named(r["ranks"]),
                    *(digits(r[key]) for key in ("weights_bytes", "cache_bytes", "most_bytes")),
                    r["verdict"],
                )
                for r in f["ranks"]
            ],
        )
    told = of.find(r"(Fits|Does not fit|Not known whether it fits) into ([\d,]+) B")
    assert (told[1], told[2]) == (verdict_of(f, known=known), digits(f["memory_bytes"]))
    of.take(*plain_lines(f, known=known), *limit_lines(f), *([rank_line] if rank_line else []))
    if world > 1:
        counted = of.find(r"Counted: .*, rank (\d+) of (\d+) devices")
        assert (int(counted[1]), int(counted[2])) == (f["rank"], world)
        title = of.find(rf"llama-3.1-8b at {f['workload']['name']}(?: on (\d+) x h100-sxm)?$")
        assert title[1] == (f"{f['count']}" if case == "mesh" else None)
    if f["next_token_modules"]:
        assert f["next_token_modules"] == 1
        of.take("Batches, lengths and limits are those of a run without the cache and activations of 1 MTP module.")
    if f["tried"]:
        runs, idle = f["count"] // world, f["count"] % world
        many = [f"{n:,} {what}{'' if n == 1 else 's'}" for n, what in ((runs, "such run"), (world, "rank"))]
        rest = "none of them is idle" if not idle else f"{idle} of them {'is' if idle == 1 else 'are'} idle"
        of.take(f"The {f['count']} devices hold {many[0]} of {many[1]}; {rest}.")
    of.close()


def test_limits_of_fits_differ() -> None:
    """By the cache and by the peak, else a line that swaps them would be right."""
    for made, *_ in FITS.values():
        f = page("fits", made())[1]
        for setting in ("batch", "text_tokens"):
            assert largest(f, setting, "weights and cache") != largest(f, setting, "weights and live peak")


# roofline


@cache
def experts() -> Roofline:
    return api.roofline("gpt-oss-20b,layers=4,text_tokens=70,new_tokens=3,batch=3", on="h100-sxm", routing="uniform")


UNEVEN: Final = ("29", "127/9", "61/2", "17")
"""Experts that four layers read: from 127/9, which is 14.1, to 61/2."""


def uneven_experts() -> Roofline:
    """The same by a routing in which the layers of the prompt read different experts."""
    found = experts()
    every = iter(UNEVEN)
    return replace(
        found,
        experts=tuple(
            replace(x, touched=next(every), bytes=x.bytes - 12_345_678 * x.layer) if x.stage == "prefill" else x
            for x in found.experts
        ),
    )


def stages() -> Roofline:
    """A pipeline, with payloads that differ from what its ranks send, as those of other collectives do."""
    target = "llama-3.1-8b,layers=3,text_tokens=6000,new_tokens=3,batch=3,pp=2,attention=eager"
    found = api.roofline(target, on="2xa100-sxm-80gb")
    assert found.links is not None
    collectives = tuple(replace(c, payload_bytes=3 * c.payload_bytes) for c in found.links.collectives)
    return replace(found, links=replace(found.links, collectives=collectives))


ROOFLINES: Final[dict[str, tuple[Callable[[], Roofline], int]]] = {
    "experts": (experts, 1),
    "uneven-experts": (uneven_experts, 1),
    "latents": (lambda: api.roofline("deepseek-v3,layers=4,text_tokens=600,new_tokens=3,batch=3", on="h100-sxm"), 1),
    "stages": (stages, 2),
    "one-stage": (lambda: api.roofline("bert-base,batch=3", on="h100-sxm"), 1),
}  # fmt: skip
SHOWN_PARTS: Final = 15


def work(b: Data) -> Row:
    intensity = "" if b["intensity"] is None else fixed(Fraction(b["intensity"]), 1)
    if b["bytes"] and b["flops"] == b["kept"]:
        assert Fraction(b["intensity"]) == Fraction(b["flops"], b["bytes"])
    return short(b["flops"], "FLOP"), short(b["kept"], "FLOP"), short(b["bytes"], "B"), intensity


def sides(border: Data) -> str:
    name = border["setting"].replace("_", "-")
    said = []
    for p in border["points"]:
        pair = (p["left"], p["right"])
        sign = ">" if Fraction(p["left"]) > Fraction(p["right"]) else "≤"
        if border["unit"] == "s":
            # As few digits as tell the two apart, at least three.
            places = next(n for n in range(3, 30) if p["left"] == p["right"] or time(pair[0], n) != time(pair[1], n))
            left, right = (time(t, places) for t in pair)
        else:
            left, right = digits(int(pair[0])), f"{digits(int(pair[1]))} {border['unit']}"
        said.append(f"at {name} {digits(p['at'])}: {left} {sign} {right}")
    return f"{border['left']} against {border['right']}, {'; '.join(said)}"


def border_lines(border: Data) -> list[str]:
    name, at = border["setting"].replace("_", "-"), digits(border["at"])
    head = f"{border['stage']} {border['question']}"
    first = {
        "from": f"{head} from {name} {at} on",
        "never": f"{head} at no {name}",
        "refused": f"{head} from {name} {at} on, which is refused: {border['why']}",
        "not solved": f"{head} from some {name} on or never, which is not solved: {border['why']}",
    }
    return [first[border["outcome"]], sides(border)]


def compare_links(of: Page, links: Data) -> None:
    """Compare the tables and lines on the times with communication."""
    of.compare(
        ("Stage", "Sent", "Links", "Exposed", "Overlapped", "Bound by"),
        [
            (s["id"] or "whole run", short(s["sent_bytes"], "B"),
             *(time(s[key]) for key in ("seconds", "exposed_s", "overlapped_s")), s["bound"])
            for s in links["stages"]
        ],
    )  # fmt: skip
    of.compare(
        ("Stage", "Part", "Collective", "Ranks", "Nodes", "Messages", "Payload", "Sent", "Links"),
        [
            (c["stage"], c["part"], c["kind"], digits(c["ranks"]), digits(c["nodes"]), digits(c["messages"]),
             short(c["payload_bytes"], "B"), short(c["sent_bytes"], "B"), time(c["seconds"]))
            for c in sorted(links["collectives"], key=lambda c: -Fraction(c["seconds"]))
        ],
    )  # fmt: skip
    inside = of.find(r"(\d+) devices in one node: (\S+ \S+) from each to the others, in one direction")
    assert (int(inside[1]), inside[2]) == (links["count"], short(links["interconnect"], "B/s"))
    ends = [
        f"rank {named(r['ranks'])} ({time(r['exposed_s'])} exposed, {time(r['overlapped_s'])} overlapped)"
        for r in (links["ranks"][0], links["ranks"][-1])
    ]
    of.take(f"Slowest, whole run: {ends[0]}; fastest: {ends[1]}.")


@pytest.mark.parametrize("case", ROOFLINES)
def test_texts_of_a_roofline(case: str) -> None:
    made, world = ROOFLINES[case]
    of, r = page("roofline", made())
    whole = r["run"]["modules"]["seconds"]
    stages = [*r["stages"], *([r["run"]] if len(r["stages"]) > 1 else [])]
    of.compare(
        (
            "Stage", "FLOPs", "Kept FLOPs", "Bytes", "FLOP/B", "Compute", "Memory", "At the roof", "Bound by", "Floor",
            "Full", "Unfused",
        ),
        [
            (
                s["id"] or "whole run", *work(s["modules"]), time(s["modules"]["compute_s"]),
                time(s["modules"]["memory_s"]), time(s["modules"]["seconds"]), s["modules"]["bound"],
                time(s["floor"]["seconds"]), *(time(s[x]["seconds"]) if s[x] else "" for x in ("full", "unfused")),
            )
            for s in stages
        ],
    )  # fmt: skip
    parts = sorted(r["parts"], key=lambda p: -Fraction(p["at_roof"]["seconds"]))
    of.compare(
        ("Stage", "Part", "FLOPs", "Kept FLOPs", "Bytes", "FLOP/B", "At the roof", "Share", "Bound by"),
        [
            (p["stage"], p["part"], *work(p["at_roof"]), time(p["at_roof"]["seconds"]),
             percent(p["at_roof"]["seconds"], whole), p["at_roof"]["bound"])
            for p in parts[:SHOWN_PARTS]
        ],
    )  # fmt: skip
    if len(parts) > SHOWN_PARTS:
        left = len(parts) - SHOWN_PARTS
        of.take(f"and {left} more part{'s' * (left > 1)} in the CSV and the JSON")
    title = r["device"]["title"]
    of.take(
        f"{title}: {short(r['peak_flops'], 'FLOP/s', 3)} ({r['dtype']}, dense), {short(r['bandwidth'], 'B/s', 3)}; "
        f"they meet at {fixed(Fraction(r['peak_flops'], r['bandwidth']), 1)} FLOP/B"
    )
    if r["peaks"]:
        others = ", ".join(f"{short(peak, 'FLOP/s', 3)} ({dtype})" for dtype, peak in r["peaks"].items())
        of.take(f"Products in another dtype have its peak: {others}.")
    if r["unpacking"]:
        of.compare(
            ("Stage", "Vector FLOPs", "At the vector peak"),
            [(u["stage"], short(u["flops"], "FLOP"), time(u["seconds"])) for u in r["unpacking"]],
        )
        if r["unpacking"][0]["seconds"] is not None:
            peaks = {Fraction(u["flops"]) / Fraction(u["seconds"]) for u in r["unpacking"]}
            (told,) = {of.find(r"Unpacking and scaling .* vector peak, (\S+ \S+) \(float32, a fused .* is 2\)")[1]}
            assert {told} == {short(int(peak), "FLOP/s", 3) for peak in peaks}
    layers: dict[tuple[str, str], list[Data]] = {}
    for one in r["experts"]:
        layers.setdefault((one["stage"], one["part"]), []).append(one)
    for (stage, part), every in layers.items():
        assert len(every) > 1
        if len({one["touched"] for one in every}) > 1:
            assert tuple(one["touched"] for one in every) == UNEVEN
            read = "127/9 to 61/2"
        else:
            read = every[0]["touched"]
        size = short(sum(one["bytes"] for one in every), "B")
        of.take(
            f"{stage} {part}, {len(every)} layers: {read} of {every[0]['experts']} experts, {every[0]['top_k']} for "
            f"each of {digits(every[0]['tokens'])} tokens a call; {size} read."
        )
    waits = sum(Fraction(p["at_roof"]["seconds"]) for p in parts if p["at_roof"]["bound"] == "memory")
    of.take(f"Of {time(whole)} at the roof, {percent(str(waits), whole)} are spent in parts that wait for memory.")
    for border in r["borders"]:
        of.take(*border_lines(border))
    if r["links"] is not None:
        compare_links(of, r["links"])
    if world > 1:
        counted = of.find(r"Counted: .*, rank (\d+) of (\d+) devices \(pp (\d+)\)")
        assert counted.groups() == ("0", f"{world}", f"{world}")
        assert of.find(r".* on (\d+) x ")[1] == f"{world}"
    of.close()


def test_times_of_the_rooflines_differ() -> None:
    """All times of a row that a column could be swapped with; Compute is that of the floor where that is the longer."""
    run = page("roofline", ROOFLINES["latents"][0]())[1]["run"]
    modules = run["modules"]
    times = [*(modules[key] for key in ("compute_s", "memory_s", "seconds")), run["floor"]["seconds"]]
    times += [run[key]["seconds"] for key in ("full", "unfused")]
    assert len(set(map(time, times))) == 6


# stored


def differing() -> StoredCheckpoint:
    """A GGUF file with two known differences from the layout, three sections, and a part of each number."""
    parts = tuple(
        StoredPart(f"layers.*.part{n}.weight", "F16", (n, 64), "weight", 100 + n, 7_000_000 - 1_000 * n, 14_000_001 - n)
        for n in range(22)
    )
    differences = (
        HeaderDifference("a.weight", "F16 [2, 3]", "F32 [2, 3]", 5, 1_234, "a known cause"),
        HeaderDifference("b.weight", "", "I8 [7]", 6, 4_321, "another"),
    )
    sections = (
        FileSection("padding", 31),
        FileSection("keys", 5_555),
        FileSection("tensors", 777),
        FileSection("x", 0),
    )
    totals = StoredTotals(308_000_009, 150_000_019, (("F16", 149_000_018), ("I8", 1_000_001)))
    headers = HeaderTotals(2, 2_453, 308_007_777, differences, sections)
    return StoredCheckpoint("toy", "gguf", ("Q8_0", "F16"), 160_000_023, 0, totals, parts, headers=headers)


def mismatched(bytes_of_headers: int) -> StoredCheckpoint:
    """The same without known causes of its differences."""
    found = differing()
    assert found.headers is not None
    unnamed = (HeaderDifference("a.weight", "F16 [2, 3]", "", 5, -1_234),)
    return replace(found, headers=replace(found.headers, bytes=bytes_of_headers, differences=unnamed, sections=()))


def matching() -> StoredCheckpoint:
    found = differing()
    assert found.headers is not None
    return replace(found, headers=replace(found.headers, differences=(), sections=(), files=1))


BYTES: Final = "308,000,009 B (308.00 MB), Q8_0, F16"
STORED: Final[dict[str, tuple[Callable[[], StoredCheckpoint], str]]] = {
    "layout": (lambda: replace(differing(), headers=None), f"Stored: {BYTES}."),
    "open": (
        lambda: replace(differing(), headers=None, undetermined=("zeros",)),
        f"Stored: {BYTES} and more of unknown size.",
    ),
    # 308,007,777 - 308,000,009 is 7,768, of which 1,234 + 4,321 are 5,555 and 2,213 are left.
    "explained": (
        differing,
        (
            f"Explained: 2,453 tensors in 2 files differ from the layout by +5,555 B of 2 known causes: {BYTES}, and "
            "2,213 B in tensors whose size no key determines."
        ),
    ),
    "exact": (
        matching,
        (
            f"Exact: 2,453 tensors in 1 file are those of the layout, {BYTES}, and 7,768 B in tensors whose size no "
            "key determines."
        ),
    ),
    "less": (
        lambda: mismatched(307_998_775),
        f"Differs: the headers state 307,998,775 B, -1,234 beside the layout's {BYTES}.",
    ),
    "more": (
        lambda: mismatched(308_001_243),
        f"Differs: the headers state 308,001,243 B, +1,234 beside the layout's {BYTES}.",
    ),
}
SHOWN_TENSORS: Final = 20


@pytest.mark.parametrize("case", STORED)
def test_texts_of_a_stored_checkpoint(case: str) -> None:
    made, sentence = STORED[case]
    of, s = page("stored", made())
    totals = {
        "stored bytes": s["totals"]["bytes"],
        "stored elements": s["totals"]["elements"],
        **{f"elements in {dtype}": elements for dtype, elements in s["totals"]["by_dtype"]},
        "parameters": s["params"],
    }
    if s["headers"] is not None:
        totals["bytes by the headers"] = s["headers"]["bytes"]
        if s["headers"]["sections"]:
            totals["bytes of the file"] = 308_007_777 + 31 + 5_555 + 777
    assert len({*totals.values()}) == len(totals)
    of.compare(("Of the checkpoint", "Number"), [(name, digits(n)) for name, n in totals.items()])
    of.compare(
        ("Tensor", "Dtype", "Shape", "Tensors", "Bytes"),
        [
            (p["name"], p["dtype"], f"{p['shape']}", digits(p["tensors"]), digits(p["bytes"]))
            for p in s["parts"][:SHOWN_TENSORS]
        ],
    )
    of.take("and 2 more smaller parts in -f json")
    if s["headers"] is not None and s["headers"]["differences"]:
        of.compare(
            ("Tensor", "By the layout", "In the headers", "Bytes", "Cause"),
            [
                (d["name"], d["expected"] or "none", d["got"] or "none", digits(d["bytes"]), d["cause"] or "not known")
                for d in s["headers"]["differences"]
            ],
        )
    if s["headers"] is not None and s["headers"]["sections"]:
        sizes = {x["name"]: x["bytes"] for x in s["headers"]["sections"]}
        of.compare(
            ("Of the file, besides tensors", "Bytes"), [(x, digits(sizes[x])) for x in ("keys", "tensors", "padding")]
        )
    of.take(sentence)
    of.close()


# static

TITLES: Final = {
    "parameters": "params",
    "parameters of modules that this run reads": "params_executed",
    "parameters that one token passes": "params_active",
    "weight bytes": "weight_bytes",
    "buffer bytes": "buffer_bytes",
    "stored bytes": "stored_bytes",
    "stored elements": "stored_elements",
    "resident bytes": "resident_bytes",
    "FLOPs": "flops",
    "multiply-accumulates": "macs",
    "kept FLOPs": "kept_flops",
    "kept scores": "kept_scores",
    "vector FLOPs": "vector_flops",
    "vector FLOPs of quantised weights": "unpacking_flops",
    "weight bytes read": "weight_read_bytes",
    "weight bytes that quantisation saves": "unpacked_bytes",
    "activation bytes read": "input_bytes",
    "activation bytes written": "output_bytes",
    "key/value cache bytes read": "kv_read_bytes",
    "key/value cache bytes": "kv_cache_bytes",
    "bytes read and written": "io_bytes",
    "bytes, unfused": "unfused_bytes",
    "bytes, floor": "floor_bytes",
}
"""Rows of the table of exact numbers, in their order."""
COLUMNS: Final = {
    "Params": ("params", ""),
    "Weights": ("weight_bytes", "B"),
    "Stored": ("stored_bytes", "B"),
    "FLOPs": ("flops", "FLOP"),
    "Vector FLOPs": ("vector_flops", "FLOP"),
    "Activations written, sum": ("output_bytes", "B"),
    "KV cache": ("kv_cache_bytes", "B"),
}
FORMULAS: Final = {
    "FLOPs": "flops", "Vector FLOPs": "vector_flops", "Activation bytes written": "output_bytes",
    "Key/value cache bytes": "kv_cache_bytes", "Parameters": "params",
}  # fmt: skip
OF_SOURCES: Final = ("params", "flops", "vector_flops", "output_bytes")
WITHOUT_NUMBERS: Final = (("Symbol", "Name", "Meaning"), ("Question", "Answer", "Meaning"))


@cache
def blocks() -> Report:
    """A run with its cache in blocks, windows in one of two layers, and tokens padded in decode."""
    settings: dict[str, Any] = {
        "layers": 2,
        "text_tokens": 200,
        "new_tokens": 7,
        "batch": 3,
        "kv_block": 16,
        "pad_to": "4,8",
    }
    return Report(api.capture("gpt-oss-20b", **settings, sources=("analytic",)))


def padding_of(s: Data) -> list[str]:
    """Return the lines on padding: bytes of the cache by stage, FLOPs of padded tokens."""
    lines = []
    for stage in ("prefill", "decode"):
        rows = [row for row in s["padding"]["cache"] if row["stage"] == stage]
        size, waste = (sum(row[key] for row in rows) for key in ("held_bytes", "waste_bytes"))
        lines.append(
            f"{stage}: the cache holds {digits(size)} B in blocks of 16 tokens; waste {digits(waste)} B, "
            f"{percent(waste, size)} of them"
        )
    for row in s["padding"]["batch"]:
        calls = f", in {row['calls']} calls" if row["calls"] > 1 else ""
        tokens, size = digits(row["tokens"]), digits(row["size"])
        lines.append(f"{row['stage']}: {tokens} tokens padded to {size}{calls}; waste {digits(row['flops'])} FLOP")
    return lines


def compare_padding(of: Page, s: Data) -> None:
    of.compare(
        ("Stage", "Layers", "Window", "Blocks a layer", "Tokens a layer", "Held", "Used", "Waste", "Of held"),
        [
            (
                row["stage"], digits(row["layers"]), digits(row["window"]) if row["window"] else "",
                *(digits(row[key]) for key in ("blocks", "tokens", "held_bytes", "used_bytes", "waste_bytes")),
                percent(row["waste_bytes"], row["held_bytes"]),
            )
            for row in s["padding"]["cache"]
        ],
    )  # fmt: skip
    of.take(*padding_of(s))


def compare_stages(of: Page, s: Data, sums: list[tuple[str, Data]]) -> None:
    """Compare the tables of the stages: rounded, exact, by call, by kind of operator, and by source."""
    head = next(columns for columns, _ in of.tables if columns[:2] == ("Stage", "Share of FLOPs"))
    of.compare(
        head,
        [
            (name, "" if name == "total" else percent(costs["flops"], s["totals"]["flops"]),
             *(short(costs[COLUMNS[title][0]], COLUMNS[title][1]) for title in head[2:]))
            for name, costs in sums
        ],
    )  # fmt: skip
    given = [title for title, key in TITLES.items() if s["totals"].get(key) is not None]
    of.compare(
        ("Quantity", *(name for name, _ in sums)),
        [(title, *(digits(costs[TITLES[title]]) for _, costs in sums)) for title in given],
    )
    of.compare(
        ("Stage", "Call", "Times", "Inputs", "FLOPs"),
        [
            (stage["id"], i["id"], digits(i["calls"]),
             ", ".join(f"{'x'.join(map(str, t['shape']))} {t['dtype']}" for t in i["inputs"]),
             digits(i["flops"]))
            for stage in s["stages"] for i in stage["invocations"]
        ],
    )  # fmt: skip
    of.compare(
        ("Stage", "Operator kind", "FLOPs", "Share"),
        [
            (stage["id"], kind, digits(flops), percent(flops, stage["flops"]))
            for stage in s["stages"]
            for kind, flops in sorted(stage["flops_by_kind"].items(), key=lambda item: -item[1])
        ],
    )
    of.compare(
        ("Stage", "Source", "Params", "FLOPs", "Vector FLOPs", "Activation bytes"),
        [
            (stage["id"], source, *(digits(said[key]) if key in said else "—" for key in OF_SOURCES))
            for stage in s["stages"] for source, said in sorted(stage["sources"].items())
        ],
    )  # fmt: skip


def compare_formulas(of: Page, s: Data) -> None:
    """Compare the values that formulas are given, and their results."""
    expected: Counter[str] = Counter()
    for stage in s["stages"]:
        for i in stage["invocations"]:
            for metric, formula in i["formulas"].items():
                if formula["at_config"] == "0" or not formula["symbols"]:
                    continue
                values = ", ".join(f"{name} = {digits(i['symbols'][name])}" for name in formula["symbols"])
                result = i[metric]
                rounded = f" ({short(result, '')})" if result >= 1000 else ""
                expected[f"With {values}: {digits(result)}{rounded}."] += 1
                (title,) = (title for title, key in FORMULAS.items() if key == metric)
                of.take(f"{stage['id']}, {i['id']}: {title} (version {formula['version']})", formula["latex"])
    of.take(*expected.elements())


STATIC: Final = {
    "blocks": (
        "Incomplete: weight and traffic bytes as if all weights were bfloat16, the checkpoint is quantised: weights in "
        "mxfp4 (published); fewer than two sources give stored_bytes, stored_elements, resident_bytes, "
        "unpacking_flops, unpacked_bytes and 1 more."
    ),
    "toy": "Exact: analytic, static and dynamic agree to the integer on all 29 quantities.",
}


@pytest.mark.parametrize("case", STATIC)
def test_texts_of_static_costs(case: str) -> None:
    found = blocks() if case == "blocks" else Report(toy())
    of = Page(variants("static")["md"].text(found))
    s = json.loads(json.dumps(to_data(STATIC_COMPUTE, found.static)))
    sums = [*((stage["id"], stage) for stage in s["stages"]), ("total", s["totals"])]
    compare_stages(of, s, sums)
    compare_formulas(of, s)
    if case == "blocks":
        compare_padding(of, s)
        lines = [" ".join(line.split()) for line in summary_text(found, 200).splitlines()]
        assert [line for line in lines if "; waste " in line] == padding_of(s)
        whole = s["whole"]
        rows = [*whole["stages"].items(), ("total", whole["totals"])]
        of.compare(
            ("Stage", *COLUMNS), [(name, *(digits(costs[key]) for key, _ in COLUMNS.values())) for name, costs in rows]
        )
    for head in WITHOUT_NUMBERS:
        of.table(*head)
    of.take(
        STATIC[case],
        "data movement: views, copies, padding, concatenation, casts and look-ups are 0 FLOP; look-ups count bytes",
    )
    # The model, the workload, the libraries, and the prefixes.
    about = re.compile(r"Model |Workload |Made with |k = 1000|What ")
    of.lines = [line for line in of.lines if not about.match(line)]
    of.close()
