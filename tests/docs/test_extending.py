"""The packages of docs/extending.md are built, installed into a folder of their own, and run as the page says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from costproof.opgraph.rules import registry
from tests.docs.test_command_lines import NOT_RUN, ROOT, lines
from tests.support.running import costproof

PAGE = ROOT / "docs" / "extending.md"
PACKAGES = ROOT / "docs" / "examples" / "extending"
SAYS = {
    "costproof report scaled:make -o scaled-reports": "8,192",
    "costproof targets": "adapted:Adapted (from adapted)",
    "costproof workloads adapted": "five     5  five rows (the default)",
    "costproof explain adapted forward": "= 368,640 FLOP",
    "costproof report adapted -o adapted-reports": "368,640   368,640   exact",
    "costproof diff adapted adapted,rows=6": "| forward | flops | +73,728 | 368,640 | 442,368 |",  # 368,640 / 5
    "costproof roofline adapted --on h100-sxm": "51.276 ns",  # (148,736 + 4 x 5 x 1,152) bytes at 3.35 TB/s
    "costproof fits adapted --on l4": "148,736",  # 37,184 parameters of 4 bytes
    "costproof counters adapted --only weights": "counts a multiply-accumulate as 1 (unit = mac)",
    "costproof capture adapted -o adapted.json": "",
    "costproof render adapted.json -f verdict-line": "adapted: exact\n",
}
"""Command line of the page -> what is in its answer, from the arithmetic on the page."""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The four packages, in a folder on the path."""
    names = ("rule", "layer", "family", "counter")
    assert sorted(p.name for p in PACKAGES.iterdir()) == sorted(names)
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet")
    folders = [str(PACKAGES / name) for name in names]
    line = [sys.executable, "-m", "pip", "install", *options, "--target", str(tmp_path / "site"), *folders]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    monkeypatch.syspath_prepend(tmp_path / "site")
    registry._load.cache_clear()
    yield tmp_path
    registry.unregister("scaled.matmul")
    registry._load.cache_clear()
    for module in ("scaled", "scaled_rule", "low_rank", "adapted", "weight_counter"):
        sys.modules.pop(module, None)


@pytest.mark.slow
@pytest.mark.usefixtures("one_process")  # the tool of ``counters`` has a process of its own
def test_what_the_page_says_is_what_the_packages_do(installed: Path) -> None:
    found = {line.command: line.code for line in lines(PAGE) if line.command in SAYS}
    assert set(found) == set(SAYS)
    for command, code in found.items():
        result = costproof(*command.split()[1:], cwd=installed)
        assert result.code == code, (command, result.stderr)
        assert SAYS[command] in result.stdout, (command, result.stdout)
        assert "skipped" not in result.stderr
    (stage,) = json.loads((installed / "adapted-reports" / "static_compute.json").read_text())["stages"]
    assert {name: stage[name] for name in ("flops", "params", "weight_bytes", "io_bytes")} == {
        "flops": 2 * 2 * 5 * 64 * 256 + 4 * 5 * 256 * 8,
        "params": 37_184,
        "weight_bytes": 4 * 37_184,
        # weights, and what goes into and out of the three layers: 64 to 256 to 256 to 64 numbers in each of 5 rows
        "io_bytes": 4 * 37_184 + 4 * 5 * (64 + 256 + 256 + 256 + 256 + 64),
    }


def test_the_page_quotes_the_packages_word_for_word() -> None:
    page = PAGE.read_text()
    for name in ("rule/scaled_rule.py", "counter/weight_counter.py"):
        assert f"\n{(PACKAGES / name).read_text()}```\n" in page, name
    layer = (PACKAGES / "layer" / "low_rank.py").read_text()
    assert f"```python\n{layer[layer.index('@layer') :]}```\n" in page
    family = (PACKAGES / "family" / "adapted.py").read_text()
    (target,) = re.findall(r"```python\n(class Adapted.*?)```", page, flags=re.DOTALL)
    for quoted in target.split("\n\n"):
        assert quoted.rstrip("\n") in family, quoted


def test_the_page_quotes_the_entry_points_word_for_word() -> None:
    page = PAGE.read_text()
    for name in ("rule", "family", "counter"):
        text = (PACKAGES / name / "pyproject.toml").read_text()
        quoted = text[text.index("[project.entry-points") : text.index("\n[tool.hatch")]
        assert f"```toml\n{quoted}```\n" in page, name


def test_all_lines_for_the_packages_are_run_here() -> None:
    assert NOT_RUN["extending.md"] == [*SAYS]
