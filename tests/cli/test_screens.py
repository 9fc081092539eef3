"""What commands print fits the terminal, and every number in it is whole."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from costproof import api
from costproof.cli.main import COMMANDS
from costproof.compare.diff.diff import diff
from costproof.compare.patterns import patterns
from costproof.estimate.arithmetic import Arithmetic
from costproof.estimate.measured import MeasuredOperator, Measurement, OperatorWork, part_times, stage_times
from costproof.ledger.profile import Timing
from costproof.ledger.run import RunOptions
from costproof.reports.outputs import OUTPUTS
from costproof.reports.report import Report
from costproof.reports.screen import align_table, fold_line
from costproof.storage.checkpoint import StoredCheckpoint, compare_headers, parts_of
from costproof.storage.headers import HeaderTensor
from costproof.storage.tensors import StoredTensor, totals
from tests.cli.test_console import on_a_terminal
from tests.estimate.test_measured import BUSY, PLACE, ROOF, WAITING
from tests.reports.test_counters import counted
from tests.reports.test_counters import report as counters
from tests.reports.test_diff_texts import side
from tests.reports.test_gate_texts import many
from tests.reports.test_peaks_text import CALLS, peaks
from tests.support.running import costproof
from tests.support.toy import asked, toy, wrong
from tests.support.written import write_capture

NUMBER: Final = re.compile(r"\d(?:[\d,.]*\d)?")
WIDTHS: Final = (60, 80)
CLAIMS: Final = """\
costproof_claims: 1
target: bert-large
claims:
- {stage: total, flops: 167504773120, id: the-encoder-as-it-was-published}
- {stage: total, params: 335141888}
- {stage: forward, params: 335141889}
"""
POLICY: Final = "costproof_policy: 1\nlimits:\n- {metric: flops, increase: 0}\n"
LONG: Final = "a.module.whose.path.is.longer.than.a.screen.of.sixty.columns.can.show.in.one.line.layers.31"


def check(text: str, wide: str, width: int) -> None:
    """Hold that no line is longer than the screen, and that the numbers are those of the unlimited text, all whole."""
    assert [line for line in text.splitlines() if len(line) > width] == []
    assert set(NUMBER.findall(text)) == set(NUMBER.findall(wide))
    assert "…" not in text or "…" in wide


LINES: Final[dict[str, tuple[str, ...]]] = {
    "check": ("c.yaml",),
    "compare": ("wrong.json", "-f", "modules"),
    "diff": ("toy.json", "wrong.json", "-f", "text"),
    "doctor": (),
    "explain": ("toy.json", "sam"),
    "fits": ("toy.json", "--on", "l4"),
    "gate": ("wrong.json", "toy.json", "--policy", "p.yaml"),
    "machine": ("h100-sxm",),
    "machines": (),
    "ops": (),
    "render": ("--list",),
    "roofline": ("toy.json", "--on", "h100-sxm"),
    "schema": (),
    "sweep": ("bert", "--over", "heads=5:25:5", "--dry-run"),
    "targets": (),
    "workloads": (),
}
"""A line for each command that needs no torch."""
OF_FILES: Final = frozenset({"capture", "derive", "graph", "plot", "prove"})
"""Commands that print a formula, or the names of files."""
OF_RUNS: Final = frozenset({"counters", "measure", "peaks", "report", "stored"})
"""Commands whose output is made of kept data below."""


def test_every_command_is_here() -> None:
    assert LINES.keys() | OF_FILES | OF_RUNS == COMMANDS.keys()


@pytest.mark.parametrize("command", LINES)
def test_commands_fit(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COSTPROOF_CACHE", str(tmp_path / "cache"))  # that of all tests grows meanwhile
    (tmp_path / "c.yaml").write_text(CLAIMS, encoding="utf-8")
    (tmp_path / "p.yaml").write_text(POLICY, encoding="utf-8")
    write_capture(tmp_path / "toy.json", toy())
    write_capture(tmp_path / "wrong.json", wrong())
    piped = costproof(command, *LINES[command], cwd=tmp_path, columns=20)
    assert piped.code in (0, 1, 3), piped.stderr
    for width in WIDTHS:
        shown = on_a_terminal(command, *LINES[command], cwd=tmp_path, columns=width)
        assert (shown.code, shown.stderr) == (piped.code, piped.stderr)
        if command != "check":  # piped, that is Markdown
            check(shown.stdout, piped.stdout, width)
            continue
        wide = on_a_terminal(command, *LINES[command], cwd=tmp_path, columns=300).stdout
        check(shown.stdout, wide, width)
        made = json.loads(costproof(command, *LINES[command], "-f", "json", cwd=tmp_path).stdout)
        for judged in made["judgements"]:
            assert f"{judged['truth']:,}" in shown.stdout


def measurement() -> Measurement:
    """Rows of numbers that are written by hand, under a device of ours."""
    of, device = toy(), api.machine("l4")
    timing = Timing((31 * 10**9, 30 * 10**9))
    work = {PLACE: [OperatorWork("a", "products", 3, 26 * 10**9)]}
    made = stage_times({"page": (BUSY, WAITING)}, {PLACE: timing}, work, ROOF, Arithmetic("bfloat16"))
    called = MeasuredOperator(
        "page", "sam", "aten._scaled_dot_product_attention", ((1, 128, 4096, 64),) * 3, 12, timing
    )
    return Measurement(
        of.conventions, of.target, of.workload, of.environment, RunOptions("cpu"), device, "bfloat16",
        121_000_000_000_000, 300_000_000_000, "monotonic", 2, made, (called,) * 20,
        part_times({"page": (BUSY, WAITING)}, {}, patterns, ROOF, Arithmetic("bfloat16")),
    )  # fmt: skip


def checkpoint() -> StoredCheckpoint:
    """Tensors that are written by hand, and headers that state one otherwise."""
    tensors = [StoredTensor(f"{LONG}.{i}.weight", "BF16", (4096, 11008 + i)) for i in range(4)]
    headers = {"model.safetensors": [HeaderTensor(f"{LONG}.0.weight", "F32", (4096, 11008), 180_355_072)]}
    return StoredCheckpoint(
        "mine", "fp8", ("fp8, scales for rows",), 180_367_360, 0, totals(tensors), parts_of(tensors),
        headers=compare_headers(tensors, headers),
    )  # fmt: skip


DATA: Final[dict[str, Callable[[], Any]]] = {
    "summary": lambda: Report(asked()),
    "modules": lambda: Report(wrong()),
    "counters-text": lambda: counters("mine@sam:global=10.74G", capture=counted()),
    "explain-text": lambda: api.explain("llama-3.1-8b", "prefill"),
    "diff-text": lambda: diff(side(500), side(500, 2)),
    "gate-text": many,
    "roofline-text": lambda: api.roofline("llama-3.1-8b", on="h100-sxm"),
    "measure-text": measurement,
    "fits-text": lambda: api.fits("llama-3.1-8b@chat,batch=1000", on="l4"),
    "peaks-text": lambda: peaks(*CALLS),
    "stored-text": lambda: checkpoint(),
    "device-text": lambda: api.machine("b200-sxm"),
}


@pytest.mark.parametrize("output", [o for o in OUTPUTS if o.for_screens], ids=lambda o: o.name)
def test_outputs_fit(output: Any) -> None:
    data = DATA[output.name]()
    for width in WIDTHS:
        text = output.text(data, width)
        check(text, text if output.name == "summary" else output.text(data), width)
        assert output.name != "summary" or "1.79 k" in text  # 1,024 + 768 of sam


def test_a_line_is_broken_between_words_and_never_in_a_number() -> None:
    assert fold_line("  costs 1,234,567 FLOP more", 20) == ["  costs", "    1,234,567 FLOP", "    more"]
    assert fold_line("costs 1,234,567,890,123,456 FLOP", 16) == ["costs", "  1,234,567,890,123,456", "  FLOP"]
    assert fold_line("x" * 50, None) == ["x" * 50]
    parts = fold_line(LONG, 60)
    assert "".join(part.strip() for part in parts) == LONG
    assert len(parts) == 2
    assert parts[0].endswith(".")
    assert parts[1].endswith(".31")


def test_a_table_is_split_by_columns_or_becomes_blocks() -> None:
    """By hand: 3 + 2 + 9 columns fit 16, a third column of 9 does not; a key of 15 leaves no room for a number."""
    head, row = ("key", "first", "second"), ("abc", "1,234,567", "7,654,321")
    assert align_table(head, [row], width=25) == ["key      first     second", "abc  1,234,567  7,654,321"]
    assert align_table(head, [row], width=24) == [
        "key      first", "abc  1,234,567", "", "key     second", "abc  7,654,321",
    ]  # fmt: skip
    assert align_table(head, [("a.key.of.layers", *row[1:])], width=20) == [
        "key     a.key.of.", "        layers", "first   1,234,567", "second  7,654,321",
    ]  # fmt: skip
    assert align_table(None, [("a", "some words to be read")], width=16, prose=True) == [
        "a", "    some words", "    to be read",
    ]  # fmt: skip
