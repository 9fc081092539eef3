"""What the command line says when a model cannot be run as asked; nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.running import costproof, files

CASES = {
    "a device that is none": (("--run", "tpu"), "--run", "meta or cpu or cuda"),
    "weights on meta": (("--weights", "ckpt"), "--weights", "--run cpu or --run cuda"),
    "time on meta": (("--profile", "3"), "--profile", "--run cpu or --run cuda"),
    "too many layers": (("--layers", "13"), "--layers", "2 to 12"),
    "a negative seed": (("--seed", "-1"), "--seed", "at least 0"),
    "looped experts on meta": (("--experts", "eager"), "--experts eager", "grouped_mm or batched_mm"),
    "time without a run": (
        ("--run", "cpu", "--profile", "2", "--sources", "analytic"), "--profile", "--sources with dynamic",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_bad_options(case: str, tmp_path: Path) -> None:
    arguments, where, expected = CASES[case]
    result = costproof("report", "deepseek-ocr", "-o", "out", *arguments, cwd=tmp_path)
    assert result.code == 2
    assert f"  where:    {where}\n" in result.stderr
    assert f"  expected: {expected}" in result.stderr
    assert files(tmp_path) == []


def test_a_checkpoint_that_is_not_there(tmp_path: Path) -> None:
    # The layers are cut only to make the model on meta sooner.
    arguments = ("--run", "cpu", "--weights", "none", "--layers", "2", "--sources", "dynamic")
    result = costproof("report", "deepseek-ocr", "-o", "out", *arguments, cwd=tmp_path)
    assert result.code == 2
    assert "there is no such folder\n  where:    --weights none\n" in result.stderr
    assert files(tmp_path) == []
