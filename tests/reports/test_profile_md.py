from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from costproof.ledger.files import json_text
from costproof.ledger.profile import PROFILE, Measured, ModuleTime, OperatorTime, Profile, StageTime, Timing
from costproof.ledger.run import RunOptions
from costproof.ledger.schema import from_data, to_data
from costproof.reports.measure import format_nanoseconds
from costproof.reports.outputs import variants
from costproof.reports.report import Report, write_report
from tests.support.toy import toy

profile_md = variants("profile")["md"].text


def profile() -> Profile:
    capture = toy()
    measured = Measured(
        "cpu", "perf_counter", 2, 1,
        (StageTime("page", "sam", "global", Timing((2_000_000, 1_000_000, 9_000_000))),),
        (
            ModuleTime("(root)", 1, Timing((5_000_000,)), Timing((1_000_000,)), None),
            ModuleTime("a|b", 2, Timing((3_000_000,)), Timing((3_000_000,)), None),
        ),
        (OperatorTime("a|b", "aten::mm", 2, Timing((3_000_000,)), None, 64, ((2, 3),)),),
    )  # fmt: skip
    return Profile(
        capture.conventions, capture.target, capture.workload, capture.environment,
        RunOptions("cpu", profile=3), measured, {"page/sam/global": 4_000_000},
    )  # fmt: skip


def test_medians_spreads_and_rates() -> None:
    text = profile_md(profile())
    assert "cpu with 2 threads, 3 runs after 1 to warm up" in text
    # 4 MFLOP in the median of 2 ms.
    assert "| `page` | `sam[global]` | 2.0 ms | 1.0 ms to 9.0 ms | 4.00 MFLOP | 2.00 GFLOP/s |" in text
    assert "| <code>a&#124;b</code> | 2 | 3.0 ms | 3.0 ms to 3.0 ms | 75.0 % | — |" in text


def test_a_cut_model_is_said_to_be_one() -> None:
    whole = profile()
    cut = replace(whole, target=replace(whole.target, cut={"decoder layers": "2 of 12"}))
    assert "configuration 0123456789ab, cut to decoder layers 2 of 12\n" in profile_md(cut)


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [(0, "0 µs"), (45_900, "46 µs"), (12_399_999, "12.4 ms"), (1_234_999_999, "1.235 s"), (61_000_000_000, "61.000 s")],
)
def test_seconds(nanoseconds: int, text: str) -> None:
    assert format_nanoseconds(nanoseconds) == text


def test_timing() -> None:
    assert (Timing((3, 1, 2)).median, Timing((4, 1)).median) == (2, 2)


def test_the_file_comes_back() -> None:
    data = to_data(PROFILE, profile())
    assert json_text(data)
    assert from_data(data, PROFILE, where="profile.json", make_again="costproof report --profile 3") == profile()


def test_the_files_of_a_report(tmp_path: Path) -> None:
    assert "profile.md" not in {p.name for p in write_report(Report(toy()), tmp_path).files}
    written = {p.name: p for p in write_report(Report(toy(), profile(), "{}"), tmp_path).files}
    assert written["profile_trace.json"].read_text() == "{}"
    assert written["profile.md"].read_text() == profile_md(profile())
    assert json.loads(written["profile.json"].read_text())["schema"] == "costproof/profile"
