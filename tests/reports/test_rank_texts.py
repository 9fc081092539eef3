"""Names of ranks and columns of tables in the texts on a mesh, parsed and compared with the JSON of the same run."""

from __future__ import annotations

import csv
import json
import random
import re
from dataclasses import replace
from fractions import Fraction
from html import unescape
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import pytest

from costproof.api import compare, read, render
from costproof.ledger.mesh import Mesh
from costproof.ledger.metrics import EVERY_METRIC, STAGE_WIDE
from tests.support.running import costproof

UNITS: Final[dict[str, int | Fraction]] = {
    "FLOP": 1, "kFLOP": 10**3, "MFLOP": 10**6,
    "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "s": 1, "ms": Fraction(1, 10**3), "µs": Fraction(1, 10**6), "ns": Fraction(1, 10**9),
}  # fmt: skip


def tables(text: str) -> list[tuple[tuple[str, ...], list[dict[int, str]]]]:
    """Return the Markdown tables of a text: the head, and each row by index of the column."""
    found: list[tuple[tuple[str, ...], list[dict[int, str]]]] = []
    lines = text.splitlines()
    for before, line in zip(["", *lines], [*lines, ""], strict=True):
        parts = (
            [unescape(cell.strip().strip("`")) for cell in line.strip()[1:-1].split("|")]
            if line.startswith("| ")
            else []
        )
        if parts and not before.startswith("|"):
            found.append((tuple(parts), []))
        elif parts:
            found[-1][1].append(dict(enumerate(parts)))
    return found


def table(text: str, *heads: str) -> list[dict[str, str]]:
    """Return the rows of the only table with exactly these columns, in this order, by column."""
    (rows,) = (rows for head, rows in tables(text) if head == heads)
    return [{f"{head}{i}" if heads.count(head) > 1 else head: row[i] for i, head in enumerate(heads)} for row in rows]


def printed(text: str, heads: tuple[str, ...], count: int) -> list[dict[int, str]]:
    """Return so many rows of the table with these heads: each cell by the head that it begins or ends at, or by none's.

    Columns without a head are together one.
    """
    lines = [[(m[0], *m.span()) for m in re.finditer(r"\S+(?: \S+)*", line)] for line in text.splitlines()]
    shown = {head: i for i, head in enumerate(heads) if head}
    (first,) = (at for at, line in enumerate(lines) if [cell for cell, *_ in line] == [*shown])
    at = {place: shown[head] for head, *ends in lines[first] for place in zip(("from", "to"), ends, strict=True)}
    none = heads.index("") if "" in heads else -1
    return [
        {at.get(("from", start), at.get(("to", end), none)): cell for cell, start, end in line}
        for line in lines[first + 1 : first + 1 + count]
    ]


def named(text: str, world: int) -> set[int]:
    """Return the ranks that a text names: ``all``, or ``0 to 3, 7``."""
    if text == "all":
        return set(range(world))
    ends = [[int(n) for n in part.split(" to ")] for part in text.split(", ")]
    return {rank for first, *last in ends for rank in range(first, (last or [first])[0] + 1)}


def exact(text: str) -> int:
    return int(text.split()[0].replace(",", ""))


def amount(cell: str) -> tuple[int, str]:
    """Return the number and the unit of a cell."""
    number, _, unit = cell.partition(" ")
    return int(number.replace(",", "")), unit


def of(metric: str, number: int) -> tuple[int, str]:
    """Return a number of a metric and its unit."""
    return number, "B" if metric.endswith("_bytes") else "FLOP" if metric.endswith("flops") else ""


def rounds(text: str, value: Any) -> bool:
    """Whether a number with a unit is a value, rounded to its last digit."""
    found = re.fullmatch(r"([\d,]+)(\.\d+)? (\w+)", text)
    assert found is not None, text
    digit = Fraction(1, 10 ** len((found[2] or ".")[1:])) * UNITS[found[3]]
    return abs(Fraction(found[1].replace(",", "") + (found[2] or "")) * UNITS[found[3]] - Fraction(value)) <= digit / 2


def reported(folder: Path, *line: str) -> tuple[str, str, dict[str, Any], dict[str, Any]]:
    """Return the text on a terminal, the Markdown, and the JSON of a report, with that of the ranks."""
    found = costproof("-q", "report", *line, "--sources", "analytic", "-o", "out", cwd=folder, columns=200)
    read = {name: (folder / "out" / name).read_text() for name in ("static_compute.md", "static_compute.json")}
    capture = json.loads((folder / "out" / "capture.json").read_text())
    return found.stdout, read["static_compute.md"], json.loads(read["static_compute.json"]), capture.get("parallel", {})


SMALL: Final[dict[str, Any]] = {
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 130,
    "tie_word_embeddings": False,
}  # fmt: skip
"""A model of two layers; 130 entries on 4 ranks are 33, 33, 33 and 31."""
SMALL_EXPERTS: Final = SMALL | {
    "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "moe_intermediate_size": 32, "num_experts": 8,
    "num_experts_per_tok": 2, "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True,
}  # fmt: skip
"""Of a token's two experts both, one or none are among the two of a rank."""
SIXTEEN_EXPERTS: Final = SMALL_EXPERTS | {"num_experts": 16}
RUN: Final = ("--text-tokens", "8", "--new-tokens", "2")
STAGES_OF_TWO: Final = ("--pp", "2", "--dp", "2", "--batch", "3", *RUN)
"""Ranks 0 and 2 run two of three sequences; 0 and 1 have the embedding and send, 2 and 3 have the head."""
EXPERTS: Final = ("--tp", "2", "--dp", "2", "--ep", "4", "--batch", "2", "--rank", "3", *RUN)
UNEVEN: Final = ("--tp", "4", "--batch", "2", *RUN)
RING: Final = ("--cp", "4", "--cp-plan", "ring", "--rank", "1", "--batch", "2", *RUN)
"""A rank skips scores with keys after its own queries: copies below 0."""
PARTS: Final = ("--fsdp", "2", "--cp", "2", "--rank", "1", "--batch", "3", *RUN)
"""Metrics whose sums are not split into copies."""
GIVEN: Final = ("--pairs", "pairs.json", "--text-tokens", "4")
NODES: Final = ("--ep", "4", "--dp", "8", "--rank", "5", "--batch", "11", *GIVEN, "--new-tokens", "2")
"""Ranks 0 to 2 run two of 11 sequences, the others one; the group of rank 5 has ranks 4 to 7."""
NODES_OF_EIGHT: Final = ("--ep", "16", "--dp", "32", "--rank", "20", "--batch", "35", *GIVEN, "--new-tokens", "0")
"""Ranks 0 to 2 run two of 35 sequences; the group of rank 20 has ranks 16 to 31, which are nodes 2 and 3 of 8 ranks."""
PAIRS: Final = ("--ep", "2", "--dp", "2", "--rank", "1", "--batch", "3", *GIVEN, "--new-tokens", "0",
                "--dispatch", "all-to-all")  # fmt: skip


def configured(folder: Path, config: dict[str, Any]) -> tuple[str, ...]:
    """Write a configuration to a folder, and return the arguments for it."""
    (folder / "config.json").write_text(json.dumps(config))
    return config["model_type"].replace("_", "-"), "--config", "config.json"


def in_file(folder: Path, config: dict[str, Any]) -> tuple[str, ...]:
    """Return the arguments of ``fits`` for a run of four sequences of a configuration."""
    name, *option = configured(folder, config)
    return f"{name}@chat,batch=4,text_tokens=8,new_tokens=3", *option


def route(folder: Path, config: dict[str, Any], line: tuple[str, ...]) -> dict[str, list[Any]]:
    """Write and return choices of experts at random: stage -> call -> layer -> token of all ranks -> experts."""
    batch, tokens, steps = (int(line[line.index(x) + 1]) for x in ("--batch", "--text-tokens", "--new-tokens"))
    draw, experts, layers = random.Random(43), range(config["num_experts"]), range(config["num_hidden_layers"])

    def calls(count: int, length: int) -> list[Any]:
        return [[[draw.sample(experts, 2) for _ in range(length)] for _ in layers] for _ in range(count)]

    given = {"prefill": calls(1, batch * tokens)} | ({"decode": calls(steps, batch)} if steps else {})
    (folder / "pairs.json").write_text(json.dumps(given))
    return given


def copies_to(
    config: dict[str, Any], calls: list[Any], batch: int, world: int, ep: int, rank: int, form: str
) -> tuple[list[int], int]:
    """Return the copies of a rank's tokens to each receiver, and the number of tokens, one choice after another."""
    held = config["num_experts"] // ep
    ends = [0, *accumulate(batch // world + (place < batch % world) for place in range(world))]
    node = (2 if ep == 4 else 8) if form == "by-node" else 1
    sent, tokens = [0] * (ep // node), 0
    for layer in (layer for call in calls for layer in call):
        length = len(layer) // batch
        for chosen in layer[ends[rank] * length : ends[rank + 1] * length]:
            tokens += 1
            to = [expert // held // node for expert in chosen]
            for receiver in to if form in ("all-to-all", "low-latency") else set(to):
                sent[receiver] += 1
    return sent, tokens


@pytest.mark.parametrize(
    ("config", "line", "mesh"),
    [
        (SMALL, STAGES_OF_TWO, "pp 2, dp 2"),
        (SMALL_EXPERTS, EXPERTS, "tp 2, ep 4, dp 2"),
        (SMALL, UNEVEN, "tp 4"),
        (SMALL, RING, "cp 4"),
        (SMALL, PARTS, "cp 2, fsdp 2"),
        (SMALL_EXPERTS, NODES, "ep 4, dp 8"),
        (SIXTEEN_EXPERTS, NODES_OF_EIGHT, "ep 16, dp 32"),
        (SMALL_EXPERTS, PAIRS, "ep 2, dp 2"),
    ],
    ids=["stages", "experts", "uneven", "ring", "parts", "nodes", "nodes of 8", "pairs"],
)
def test_cells_of_a_report_are_those_of_its_json(
    config: dict[str, Any], line: tuple[str, ...], mesh: str, tmp_path: Path
) -> None:
    routing = route(tmp_path, config, line) if "--pairs" in line else {}
    said, text, data, parallel = reported(tmp_path, *configured(tmp_path, config), *line)
    if line == NODES:
        found = compare(tmp_path / "out" / "capture.json", on="4x2xh100-sxm")
        text = found.render("static-md")
        data, parallel = (json.loads(found.render(x)) for x in ("static-json", "capture-json"))
        parallel = parallel["parallel"]
    costs = {rank: row["stages"] for row in data["ranks"] for rank in row["ranks"]}
    world, rank = len(costs), int(line[line.index("--rank") + 1]) if "--rank" in line else 0
    assert world == {"ep 4, dp 8": 8, "ep 16, dp 32": 32, "ep 2, dp 2": 2}.get(mesh, 4)
    assert f"## Ranks: {world} devices, {mesh}" in text.splitlines()
    assert f"All {world} devices ({mesh}), by the formulas:" in said.splitlines()
    assert data.get("rank", 0) == parallel.get("rank", 0) == rank
    check_extremes(text, costs, line)
    check_lines(said, costs, parallel, line)
    check_collectives_and_copies(text, data, parallel)
    check_dispatches(text, parallel, config, line, routing)


def check_extremes(text: str, costs: dict[int, Any], line: tuple[str, ...]) -> None:
    """Check the least and the most of each cost, and who has them."""
    titles = {info.title: metric for metric, info in EVERY_METRIC.items()}
    sets = set()
    for row in table(text, "Stage", "Of each rank", "Smallest", "Ranks", "Largest", "Ranks"):
        metric = titles[row["Of each rank"]]
        known = {rank: stages[row["Stage"]][metric] for rank, stages in costs.items()}
        for size, ranks, ends in (("Smallest", "Ranks3", min), ("Largest", "Ranks5", max)):
            end = ends(known.values())
            assert amount(row[size]) == of(metric, end), row
            assert named(row[ranks], len(costs)) == {rank for rank, cost in known.items() if cost == end}, row
            sets.add(row[ranks])
    expected = {  # by hand, see above
        STAGES_OF_TWO: {"0, 2", "2 to 3"}, UNEVEN: {"0 to 2", "3", "all"}, NODES: {"0 to 2", "3 to 7"},
        NODES_OF_EIGHT: {"0 to 2", "3 to 31"}, PAIRS: {"0", "1"},
    }  # fmt: skip
    assert expected.get(line, {"all"}) <= sets


def check_lines(said: str, costs: dict[int, Any], parallel: dict[str, Any], line: tuple[str, ...]) -> None:
    """Check the lines on a terminal."""
    world = len(costs)
    told = re.findall(
        r"^  (\w+): (.*); a rank sends( at most)? ([\d.]+ \w+)(?: \((?:rank|each of ranks) ([^)]+)\))?$", said, re.M
    )
    stages = ["prefill"] if line[line.index("--new-tokens") + 1] == "0" else ["prefill", "decode"]
    assert [stage for stage, *_ in told] == stages
    for stage, kinds, most, size, ranks in told:
        times: dict[str, int] = {}
        for c in parallel["collectives"]:
            times |= {c["kind"]: times.get(c["kind"], 0) + c["count"]} if c["stage"] == stage else {}
        assert kinds == ", ".join(f"{count} {kind}" for kind, count in times.items())
        sent = {rank: of_rank[stage]["comm_bytes"] for rank, of_rank in costs.items()}
        assert rounds(size, max(sent.values()))
        assert named(ranks or "all", world) == {rank for rank, cost in sent.items() if cost == max(sent.values())}
        assert bool(most) == (len({*sent.values()}) > 1)
    held = {rank: of_rank[""]["weight_bytes"] for rank, of_rank in costs.items()}
    ((least, largest, ranks),) = re.findall(
        r"^  weights of a rank: (?:([\d.]+ \w+) to )?([\d.]+ \w+)(?: \((?:rank|each of ranks) ([^)]+)\))?$", said, re.M
    )
    assert rounds(largest, max(held.values()))
    assert rounds(least or largest, min(held.values()))
    assert named(ranks or "all", world) == {rank for rank, cost in held.items() if cost == max(held.values())}
    if line == UNEVEN:  # two rows of 64 elements of 2 bytes fewer, in the table and the head
        assert max(held.values()) - min(held.values()) == 2 * 2 * 64 * 2
        assert ranks == "0 to 2"
    ((one, copies),) = re.findall(
        r"^  weights of all ranks: ([\d.]+ \w+) of one device and ([\d.]+ \w+) of copies$", said, re.M
    )
    assert rounds(one, parallel["one_device"][""]["weight_bytes"])
    assert rounds(copies, sum(held.values()) - parallel["one_device"][""]["weight_bytes"])


def check_collectives_and_copies(text: str, data: dict[str, Any], parallel: dict[str, Any]) -> None:
    """Check each cell on collectives and copies, and the metrics that the copies are of."""
    assert f"Collectives of rank {parallel['rank']}" in text.splitlines()
    titles = {info.title: metric for metric, info in EVERY_METRIC.items()}
    copies = table(text, "Copies", "Stage", "Of", "Amount")
    assert [(c["Copies"], c["Stage"], titles[c["Of"]], amount(c["Amount"])) for c in copies] == [
        (d["what"], d["stage"], d["metric"], of(d["metric"], d["amount"])) for d in data["duplicates"]
    ]
    assert copies
    calls = table(text, "Stage", "Call", "Module", "Collective", "Group", "Dtype", "Times", "Payload", "Sent")
    assert [
        (c["Stage"], c["Call"], c["Module"], c["Collective"], c["Group"].split(", ")[0], int(c["Group"].split()[-2]),
         c["Dtype"], *(amount(c[x]) for x in ("Times", "Payload", "Sent")))
        for c in calls
    ] == [
        (c["stage"], c["invocation"], c["module"], c["kind"], c["group"], len(c["ranks"]), c["dtype"], (c["count"], ""),
         (c["bytes"], "B"), (c["sent_bytes"], "B"))
        for c in parallel["collectives"]
    ]  # fmt: skip
    assert parallel["collectives"]
    summed = {*data["summed_metrics"]}
    known = {metric for row in data["ranks"] for stage in row["stages"].values() for metric in stage}
    others = known - summed - {"comm_bytes", "comm_payload_bytes", "messages"}
    ((explained, left),) = re.findall(
        r"nothing is left over: (.*?)\.(?: The sums of other metrics are not split into copies: (.*)\.)?$", text, re.M
    )
    for sentence, metrics in ((explained, summed), (left, others)):
        assert sentence == "; ".join(info.title for m, info in EVERY_METRIC.items() if m in metrics)


def check_dispatches(
    text: str, parallel: dict[str, Any], config: dict[str, Any], line: tuple[str, ...], routing: dict[str, list[Any]]
) -> None:
    """Check each cell on ways to the experts of other ranks; copies of a given routing are counted one by one."""
    if "--ep" not in line:
        assert "Dispatch to experts" not in text
        return
    rank, ep, batch = (int(line[line.index(x) + 1]) for x in ("--rank", "--ep", "--batch"))
    assert f"Dispatch to experts, rank {rank}" in text.splitlines()
    first, world = rank - rank % ep, sum(len(row["ranks"]) for row in parallel["ranks"])
    sent = ("Sent", "Received", "Sent, fp8 dispatch")
    heads = ("Stage", "Call", "Form", "Routing", "Copies", *sent, "FLOPs of experts")
    rows, known = table(text, *heads), parallel["dispatches"]
    assert len(rows) == len(known) > 0
    for row, one in zip(rows, known, strict=True):
        assert [row[x] for x in heads[:4]] == [one[x] for x in ("stage", "invocation", "form", "routing")]
        copies = Fraction(one["copies"])
        assert abs(Fraction(row["Copies"]) - copies) <= copies / 2000, row  # four digits
        assert [amount(row[x]) for x in heads[5:]] == [
            of(x, one[x]) for x in ("sent_bytes", "received_bytes", "fp8_bytes", "expert_flops")
        ]
    assert len({(one["sent_bytes"], one["fp8_bytes"], one["expert_flops"]) for one in known}) > 1
    given = {(one["stage"], one["form"]): one for one in known if one["routing"] == "given"}
    if routing:
        to = table(text, "Stage", "Call", "Form", "Copies to each")
        assert f"Copies of tokens of rank {rank} by receiver, as given" in text.splitlines()
        assert [(row["Stage"], row["Form"]) for row in to] == [*given]
        for row in to:
            form, one = row["Form"], given[row["Stage"], row["Form"]]
            right, tokens = copies_to(config, routing[row["Stage"]], batch, world, ep, rank, form)
            node = (2 if ep == 4 else 8) if form == "by-node" else 1
            assert (one.get("node") or 1) == node
            told = re.fullmatch(r"(nodes|ranks) from (\d+): ([\d, ]+)", row["Copies to each"])
            assert told is not None
            of_nodes, start, numbers = told.groups()
            assert of_nodes == ("nodes" if form == "by-node" else "ranks")
            assert int(start) == first // node, row
            assert [int(n) for n in numbers.split(", ")] == right == one["sent_to"], row
            leave = sum(right) - right[(rank - first) // node]
            assert Fraction(one["copies"]) == Fraction(leave, tokens)
        assert {"all-to-all", "low-latency", "by-rank", *(() if ep == 2 else ("by-node",))} == {f for _, f in given}
        assert ep == 2 or any(row["Sent"] != row["Received"] for row in rows)
    (ways,) = (x for x in text.splitlines() if x.startswith("Ways in which tokens reach the experts"))
    run = "all-to-all." if "--dispatch" in line else "all-gather, which hold for any routing."
    assert f"the costs of this report are those of {run} bound:" in ways
    what = "all-to-all is also what" if "--dispatch" in line else "it is none of what"
    assert ("given: exact for the routing file" in ways) == bool(routing)
    assert (f"token by token; {what} the graph and the run count." in ways) == bool(routing)
    nodes = "4x2xh100-sxm, of 2 ranks" if line == NODES else "h100-sxm, of 8 ranks" if ep == 16 else "h100-sxm"
    assert f"Nodes of by-node are those of {nodes};" in ways


def test_columns_of_the_tables_of_links(tmp_path: Path) -> None:
    """The four ranks of the last stage have 10 of 32 layers and the head, the others 11; they send 6/4 of a payload."""
    line = ("-q", "roofline", "llama-3.1-8b,tp=4,pp=3,vocab=104,text-tokens=8,new-tokens=2", "--on", "2x6xh100-sxm")
    links = json.loads(costproof(*line, "-f", "json", cwd=tmp_path).stdout)["links"]
    text = costproof(*line, "-f", "md", cwd=tmp_path).stdout
    stages = {s["id"] or "whole run": s for s in links["stages"]}
    rows = table(text, "Stage", "Sent", "Links", "Exposed", "Overlapped", "Bound by")
    assert [row["Stage"] for row in rows] == [*stages]
    for row in rows:
        of = stages[row["Stage"]]
        assert rounds(row["Sent"], of["sent_bytes"])
        for title, key in (("Links", "seconds"), ("Exposed", "exposed_s"), ("Overlapped", "overlapped_s")):
            assert rounds(row[title], of[key]), (row, title)
        assert row["Bound by"] == of["bound"]
    calls = table(text, "Stage", "Part", "Collective", "Ranks", "Nodes", "Messages", "Payload", "Sent", "Links")
    slowest = sorted(links["collectives"], key=lambda c: -Fraction(c["seconds"]))
    assert len(calls) == len(slowest) > 4
    for call, of in zip(calls, slowest, strict=True):
        names = ("stage", "part", "kind", "ranks", "nodes", "messages")
        assert [call[x] for x in ("Stage", "Part", "Collective", "Ranks", "Nodes", "Messages")] == [
            f"{of[x]}" for x in names
        ]
        for title, key in (("Payload", "payload_bytes"), ("Sent", "sent_bytes"), ("Links", "seconds")):
            assert rounds(call[title], of[key]), (call, title)
    found = re.search(r"Slowest, whole run: (.*?)\); fastest: (.*?)\)\.", text)
    assert found is not None
    for told, of in zip(found.groups(), (links["ranks"][0], links["ranks"][-1]), strict=True):
        shape = re.fullmatch(r"ranks? (.*) \(([\d.]+ \w+) exposed, ([\d.]+ \w+) overlapped", told)
        assert shape is not None
        assert named(shape[1], 12) == {*of["ranks"]}
        assert rounds(shape[2], of["exposed_s"])
        assert rounds(shape[3], of["overlapped_s"])
    assert links["ranks"][-1]["ranks"] == [8, 9, 10, 11]
    assert {c["kind"] for c in slowest if c["sent_bytes"] != c["payload_bytes"]} == {"all_reduce"}


def test_loads_of_ranks_under_a_given_routing(tmp_path: Path) -> None:
    """A rank of four has two of eight experts of each layer; each choice of one of them is a pair."""
    routing = route(tmp_path, SMALL_EXPERTS, ("--batch", "5", "--text-tokens", "4", "--new-tokens", "2"))
    name, *option = configured(tmp_path, SMALL_EXPERTS)
    run = f"{name}@chat,ep=4,dp=4,rank=1,batch=5,text_tokens=4,new_tokens=2,pairs=pairs.json"
    line = ("-q", "roofline", run, *option, "--on", "4xh100-sxm")
    loads = json.loads(costproof(*line, "-f", "json", cwd=tmp_path).stdout)["routed_ranks"]
    text = costproof(*line, "-f", "md", cwd=tmp_path).stdout
    rows = table(text, "Stage", "Rank", "Pairs", "Touched a layer", "Weights read", "FLOPs of experts", "Sent")
    assert [(row["Stage"], row["Rank"]) for row in rows] == [(stage, str(n)) for stage in routing for n in range(4)]
    for row, load in zip(rows, loads, strict=True):
        layers = [layer for call in routing[row["Stage"]] for layer in call]
        mine = [[e for chosen in layer for e in chosen if e // 2 == int(row["Rank"])] for layer in layers]
        pairs, touched = sum(map(len, mine)), sum(len({*layer}) for layer in mine)
        assert exact(row["Pairs"]) == load["pairs"] == pairs
        mean = Fraction(touched, len(mine))
        assert abs(Fraction(row["Touched a layer"]) - mean) <= mean / 2000  # four digits
        # Three matrices of 64 x 32 in an expert: 2 bytes for each element, and 2 FLOPs for each element and pair.
        assert rounds(row["Weights read"], touched * 3 * 64 * 32 * 2)
        assert rounds(row["FLOPs of experts"], pairs * 3 * 64 * 32 * 2)
        sent = dict(form.split(" ", 1) for form in row["Sent"].split(", "))
        assert {*sent} == {*load["sent"]}
        assert all(rounds(sent[form], load["sent"][form]) for form in sent)
    for stage in routing:
        of_ranks = {row["Rank"]: exact(row["Pairs"]) for row in rows if row["Stage"] == stage}
        told = re.search(rf"{stage}: rank (\d) has the most .*?, (\d+), rank (\d) the fewest, (\d+); ([\d.]+) in", text)
        assert told is not None
        assert of_ranks[told[1]] == int(told[2]) == max(of_ranks.values())
        assert of_ranks[told[3]] == int(told[4]) == min(of_ranks.values())
        assert Fraction(told[5]) == Fraction(sum(of_ranks.values()), 4)


def test_ranks_of_fits_are_those_of_its_json(tmp_path: Path) -> None:
    line = ("-q", "fits", "llama-3.1-8b,tp=2,pp=3,vocab=102,text-tokens=8,new-tokens=2", "--on", "h100-sxm")
    data = json.loads(costproof(*line, "-f", "json", cwd=tmp_path).stdout)
    text = costproof(*line, "-f", "md", cwd=tmp_path).stdout
    rows = table(text, "Ranks", "Weights", "Cache", "At most", "Verdict")
    assert [(named(r["Ranks"], 6), exact(r["Weights"]), exact(r["Cache"]), exact(r["At most"]), r["Verdict"])
            for r in rows] == [
        ({*r["ranks"]}, r["weights_bytes"], r["cache_bytes"], r["most_bytes"], r["verdict"]) for r in data["ranks"]
    ]  # fmt: skip
    most = max(r["most_bytes"] for r in data["ranks"])
    holders = {rank for r in data["ranks"] if r["most_bytes"] == most for rank in r["ranks"]}
    said = re.search(r"ranks? ([\d, to]+) holds? the most", " ".join(text.split()))
    assert said is not None
    assert named(said[1], 6) == holders == {*data["binding_ranks"]}


@pytest.mark.parametrize(
    ("on", "mesh", "node"),
    [
        ("2x2xh100-sxm", ("--tp", "4"), 2),
        ("4xh100-sxm", ("--tp", "4"), 8),
        ("4x2xh100-sxm", ("--tp", "2", "--dp", "4"), 2),
    ],
    ids=["across", "one", "within"],
)
def test_devices_of_links_and_columns_of_their_csv(on: str, mesh: tuple[str, ...], node: int, tmp_path: Path) -> None:
    """Four devices are in a node of 8. Of four nodes of two, ranks along tp are in one, those along dp send nothing."""
    line = ("-q", "roofline", *in_file(tmp_path, SMALL), *mesh, "--on", on)
    links = json.loads(costproof(*line, "-f", "json", cwd=tmp_path).stdout)["links"]
    told = re.search(
        r"(\d+) devices in (?:one node|nodes of (\d+)): ([\d.]+ GB)/s from each to the others(?: of its node)?, "
        r"(?:([\d.]+ GB)/s to other nodes, |(none sent) to other nodes, )?in one direction",
        costproof(*line, "-f", "md", cwd=tmp_path).stdout,
    )
    assert told is not None
    assert int(told[1]) == links["count"] == (8 if on.startswith("4x2") else 4)
    assert links["node"] == node
    assert told[2] == (str(node) if "2x" in on else None)
    assert rounds(told[3], links["interconnect"])
    assert (told[4] is None) == (links["network"] is None) == (on != "2x2xh100-sxm")
    assert told[4] is None or rounds(told[4], links["network"])
    assert (told[5] is not None) == (on.startswith("4x2"))
    written = csv.DictReader(costproof(*line, "-f", "csv", cwd=tmp_path).stdout.splitlines())
    rows = {row["stage"]: row for row in written if row["level"] in ("run", "stage")}
    columns = {"sent": "sent_bytes", "links_s": "seconds", "exposed_s": "exposed_s", "overlapped_s": "overlapped_s",
               "bound_with_links": "bound"}  # fmt: skip
    assert {*rows} == {of["id"] for of in links["stages"]} == {"", "prefill", "decode"}
    for of in links["stages"]:
        assert {x: rows[of["id"]][x] for x in columns} == {x: str(of[key]) for x, key in columns.items()}


def test_the_counted_rank_that_does_not_bind(tmp_path: Path) -> None:
    """The second ranks along ``cp`` keep the new tokens; the sentence names these, and the first line the mesh."""
    line = ("-q", "fits", *in_file(tmp_path, SMALL), "--fsdp", "2", "--cp", "2", "--rank", "0", "--memory", "500kB")
    data = json.loads(costproof(*line, "-f", "json", cwd=tmp_path).stdout)
    text = " ".join(costproof(*line, "-f", "md", cwd=tmp_path).stdout.split())
    assert "rank 0 of 4 devices (cp 2, fsdp 2)" in text
    said = re.search(r"of rank (\d), which holds less: of 4 ranks, ranks ([\d, to]+) hold the most .*; rank=(\d)", text)
    assert said is not None
    assert int(said[1]) == data["rank"] == 0
    assert named(said[2], 4) == {*data["binding_ranks"]} == {1, 3}
    assert int(said[3]) in data["binding_ranks"]


def test_meshes_that_were_tried(tmp_path: Path) -> None:
    line = ("-q", "fits", *in_file(tmp_path, SMALL_EXPERTS), "--on", "4xh100-sxm", "--memory", "130kB")
    tried = json.loads(costproof(*line, "-f", "json", cwd=tmp_path).stdout)["tried"]
    rows = table(costproof(*line, "-f", "md", cwd=tmp_path).stdout, "Mesh", "Weights and buffers of a rank", "Verdict")
    found = []
    for row in rows:
        for mesh in row["Mesh"].split("; "):
            sizes = dict(part.split() for part in mesh.split(", "))
            weights = row["Weights and buffers of a rank"]
            refused = row["Verdict"].startswith("cannot be: ")
            found.append((int(sizes["tp"]), int(sizes.get("ep", 1)), exact(weights) if weights else None,
                          None if refused else row["Verdict"]))  # fmt: skip
    assert found == [(x["tp"], x["ep"], x["weights_bytes"], x["verdict"]) for x in tried]
    assert [x[:2] for x in found] == [(1, 1), (2, 1), (2, 2), (3, 1), (3, 3), (4, 1)]  # three ranks divide no 4 heads


def test_a_mesh_as_text() -> None:
    mesh = Mesh(tp=2, ep=4, pp=3, dp=6, cp=5, fsdp=7)
    assert dict(part.split() for part in mesh.text.split(", ")) == {
        "tp": "2", "ep": "4", "pp": "3", "dp": "6", "cp": "5", "fsdp": "7",
    }  # fmt: skip
    assert Mesh(cp=2).text == "cp 2"


@pytest.mark.parametrize("varied", ["tp=1,2", "text_tokens=4,8"])
def test_a_sweep_names_the_counted_rank(varied: str, tmp_path: Path) -> None:
    """A point counts one rank, where its devices vary."""
    line = ("-q", "sweep", *configured(tmp_path, SMALL), "--over", varied, "--metric", "params", "--no-plot")
    assert costproof(*line, "-o", "sweep.json", cwd=tmp_path).code == 0
    told = json.loads((tmp_path / "sweep.json").read_text())["counted"]
    assert told.endswith("; one rank of the devices of each point") == varied.startswith("tp")


def test_what_the_copies_explain_is_named(tmp_path: Path) -> None:
    """Of the named metrics, and of no others, the ranks have what one device has and the copies."""
    run = ("llama-3.1-8b", "--layers", "2", "--text-tokens", "8", "--new-tokens", "1")
    _, text, data, _ = reported(tmp_path, *run, "--tp", "8")
    (tmp_path / "alone").mkdir()
    _, _, alone, _ = reported(tmp_path / "alone", *run)
    summed, whole = set(data["summed_metrics"]), {"": alone["totals"]} | {s["id"]: s for s in alone["stages"]}
    assert {"params", "weight_bytes", "flops", "kv_cache_bytes"} < summed
    residual: dict[str, set[int]] = {}
    for stage, costs in ((stage, c) for row in data["ranks"][:1] for stage, c in row["stages"].items()):
        for metric in {*costs} - {"comm_bytes", "comm_payload_bytes", "messages"}:
            every = sum(len(row["ranks"]) * row["stages"][stage][metric] for row in data["ranks"])
            copies = sum(d["amount"] for d in data["duplicates"] if (d["stage"], d["metric"]) == (stage, metric))
            if (metric in STAGE_WIDE) == (not stage) and metric in whole[stage]:
                residual.setdefault(metric, set()).add(every - copies - whole[stage][metric])
    assert {m for m in residual if residual[m] == {0}} == summed & {*residual}
    assert {"unfused_bytes", "floor_bytes"} < summed
    others = "The sums of other metrics are not split into copies: "
    assert others not in text
    (tmp_path / "parts").mkdir()
    _, parts, _, _ = reported(tmp_path / "parts", *run, "--fsdp", "2", "--batch", "2")
    assert others not in parts
    (sentence,) = (line for line in text.splitlines() if line.startswith("Of these metrics all ranks together have"))
    named = "; ".join(info.title for m, info in EVERY_METRIC.items() if m in summed)
    assert sentence.partition("nothing is left over: ")[2].partition(".")[0] == named
    # Two layers of two norms and the last norm, of 4,096 parameters each, are on 7 ranks too many.
    norms = [d for d in data["duplicates"] if d["metric"] in ("params", "weight_bytes")]
    assert [(d["metric"], d["amount"], d["bytes"]) for d in norms] == [
        ("params", 7 * 5 * 4096, None), ("weight_bytes", 7 * 5 * 4096 * 2, 7 * 5 * 4096 * 2),
    ]  # fmt: skip
    assert all((d["bytes"] is None) == (not d["metric"].endswith("_bytes")) for d in data["duplicates"])


def test_metrics_without_copies_are_named(tmp_path: Path) -> None:
    """A file without the FLOPs and stored bytes of one device does not say what the ranks have too many of them."""
    reported(tmp_path, *configured(tmp_path, SMALL), *UNEVEN)
    counted = read(tmp_path / "out" / "capture.json")
    assert counted.parallel is not None
    dropped = ("flops", "stored_bytes")
    one = {
        stage: {m: cost for m, cost in costs.items() if m not in dropped}
        for stage, costs in counted.parallel.one_device.items()
    }
    text = render(replace(counted, parallel=replace(counted.parallel, one_device=one)), "static-md")
    ((explained, left),) = re.findall(
        r"nothing is left over: (.*?)\. The sums of other metrics .* copies: (.*)\.$", text, re.M
    )
    assert left == "stored bytes; FLOPs"
    assert not {"stored bytes", "FLOPs"} & {*explained.split("; ")}


@pytest.mark.parametrize(
    "command",
    [
        ("roofline", "--tp", "4", "--dp", "2", "--on", "2x4xh100-sxm"),
        ("fits", "--tp", "4", "--dp", "2", "--memory", "400kB"),
        ("fits", "--on", "4xh100-sxm", "--memory", "400kB"),
    ],
    ids=["roofline", "fits", "tried"],
)
def test_a_terminal_has_the_cells_of_markdown(command: tuple[str, ...], tmp_path: Path) -> None:
    """Each row of each table has the same cells below the same heads."""
    name, *options = command
    of_run = configured(tmp_path, SMALL)
    line = ("-q", name, f"{of_run[0]}@chat,batch=3,text_tokens=8,new_tokens=3", *of_run[1:], *options)
    text = costproof(*line, "-f", "text", cwd=tmp_path, columns=400).stdout
    found = tables(costproof(*line, "-f", "md", cwd=tmp_path).stdout)
    for head, rows in found:
        assert printed(text, head, len(rows)) == [{i: cell for i, cell in row.items() if cell} for row in rows]
    assert len(found) >= (1 if "--on" in command and name == "fits" else 3)
