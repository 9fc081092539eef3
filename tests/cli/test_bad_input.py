"""Wrong usage and bad input: one exact message each, the right exit code, nothing half written."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from costproof.foreign import owned
from costproof.ledger.capture import CAPTURE
from costproof.ledger.files import json_text
from costproof.ledger.schema import to_data
from costproof.reports.report import Report
from tests.conftest import Golden
from tests.support.running import costproof, files
from tests.support.toy import HOSTILE, toy
from tests.support.written import write_capture

VENDOR = Path(__file__).parents[1] / "data" / "vendor-config.json"

Setup = Callable[[Path], object]


def nothing(folder: Path) -> None:
    """No file is needed."""


def text(name: str, content: str) -> Setup:
    """A file with that text."""
    return lambda folder: (folder / name).write_text(content, encoding="utf-8")


def capture(change: Callable[[dict[str, Any]], object]) -> Setup:
    """``c.json``: the toy capture with a change to its JSON."""

    def write(folder: Path) -> None:
        data = to_data(CAPTURE, toy())
        change(data)
        (folder / "c.json").write_text(json_text(data), encoding="utf-8")

    return write


def config(change: Callable[[dict[str, Any]], object]) -> Setup:
    """``m.json``: the vendor's configuration with a change."""

    def write(folder: Path) -> None:
        data = json.loads(VENDOR.read_text(encoding="utf-8"))
        change(data)
        (folder / "m.json").write_text(json.dumps(data), encoding="utf-8")

    return write


def truncated(folder: Path) -> None:
    """Half a capture."""
    whole = json_text(to_data(CAPTURE, toy()))
    (folder / "c.json").write_text(whole[: whole.index('"environment"') + 5], encoding="utf-8")


def binary(folder: Path) -> None:
    """A file that is no text."""
    (folder / "c.json").write_bytes(b"{\xff\xfe}")


def a_folder(folder: Path) -> None:
    """A folder where a file is asked for."""
    (folder / "c.json").mkdir()


def no_callgraph(folder: Path) -> None:
    """A capture without the dynamic source."""
    write_capture(folder / "c.json", replace(toy(), callgraph=None, ledgers=toy().ledgers[:2]))


def good(folder: Path) -> None:
    """A good capture."""
    write_capture(folder / "c.json", toy())


def good_and_folder(folder: Path) -> None:
    """A good capture, and a folder ``d``."""
    good(folder)
    (folder / "d").mkdir()


def good_and_file(folder: Path) -> None:
    """A good capture, and a regular file ``f``."""
    good(folder)
    (folder / "f").write_text("")


REPORT = ("report", "deepseek-ocr", "-o", "out", "--progress", "never")
RENDER = ("render", "c.json", "-o", "out/x.md", "-f")

CASES: dict[str, tuple[Setup, tuple[str, ...], int]] = {
    "no command": (nothing, (), 2),
    "unknown command": (nothing, ("reprot", "deepseek-ocr"), 2),
    "unknown option": (nothing, (*REPORT, "--gird", "2x2"), 2),
    "option of another model": (nothing, ("report", "bert-base", "--new-tokens", "3"), 2),
    "inputs of a text model": (nothing, ("report", "hf:llama", "--input", "x=2x3"), 2),
    "option without value": (nothing, ("report", "deepseek-ocr", "-o"), 2),
    "missing target": (nothing, ("report", "-o", "out"), 2),
    "one argument too many": (nothing, (*REPORT, "again"), 2),
    "unknown target": (nothing, ("report", "deepseek-orc", "-o", "out", "--progress", "never"), 2),
    "hostile target": (nothing, ("report", HOSTILE, "-o", "out", "--progress", "never"), 2),
    "unknown stage": (nothing, ("explain", "deepseek-ocr", "sma", "-o", "out/x"), 2),
    "unknown metric": (nothing, ("explain", "deepseek-ocr", "sam", "--metric", "flop", "-o", "out/x"), 2),
    "unknown module": (nothing, ("explain", "deepseek-ocr", "clip", "--module", "*mpl*", "-o", "out/x"), 2),
    "unknown preset": (nothing, (*REPORT, "--preset", "gundan"), 2),
    "grid of one number": (nothing, (*REPORT, "--grid", "2"), 2),
    "grid with a minus": (nothing, (*REPORT, "--grid", "-2x3"), 2),
    "grid of zero": (nothing, (*REPORT, "--grid", "0x3"), 2),
    "grid too large": (nothing, (*REPORT, "--grid", "5x5"), 2),
    "grid for a mode without crops": (nothing, (*REPORT, "--preset", "tiny:2x2"), 2),
    "page options without a page": (nothing, (*REPORT, "--preset", "text-only", "--grid", "2x2"), 2),
    "base size 0": (nothing, (*REPORT, "--base-size", "0"), 2),
    "base size 63": (nothing, (*REPORT, "--base-size", "63"), 2),
    "base size -1": (nothing, (*REPORT, "--base-size", "-1"), 2),
    "size with a unit": (nothing, (*REPORT, "--image-size", "640px"), 2),
    "batch 0": (nothing, (*REPORT, "--batch", "0"), 2),
    "batch 1.5": (nothing, (*REPORT, "--batch", "1.5"), 2),
    "batch of 30 digits": (nothing, (*REPORT, "--batch", "9" * 30), 2),
    "negative text tokens": (nothing, (*REPORT, "--text-tokens", "-5"), 2),
    "no new tokens": (nothing, (*REPORT, "--new-tokens", "-1"), 2),
    "sequence shorter than its page": (nothing, (*REPORT, "--seq-len", "100"), 2),
    "text tokens and sequence length": (nothing, (*REPORT, "--seq-len", "1000", "--text-tokens", "5"), 2),
    "context too long": (nothing, (*REPORT, "--text-tokens", "1000000"), 2),
    "all settings wrong at once": (nothing, (*REPORT, "--batch", "0", "--base-size", "7", "--new-tokens", "-1"), 2),
    "unknown dtype": (nothing, (*REPORT, "--dtype", "fp8"), 2),
    "unknown source": (nothing, (*REPORT, "--sources", "analytic,statik"), 2),
    "no source": (nothing, (*REPORT, "--sources", ","), 2),
    "unknown progress": (nothing, ("report", "deepseek-ocr", "--progress", "yes"), 2),
    "image missing": (nothing, (*REPORT, "--image", "page.png"), 2),
    "image that is none": (text("page.png", "not a picture"), (*REPORT, "--image", "page.png"), 2),
    "image and grid": (text("page.png", ""), (*REPORT, "--image", "page.png", "--grid", "2x2"), 2),
    "config missing": (nothing, (*REPORT, "--config", "m.json"), 2),
    "config of another model": (text("m.json", '{"model_type": "llama"}'), (*REPORT, "--config", "m.json"), 2),
    "config that is a list": (text("m.json", "[]"), (*REPORT, "--config", "m.json"), 2),
    "config with an unknown key": (
        config(lambda c: c["language_config"].update(hiden_size=1)), (*REPORT, "--config", "m.json"), 2,
    ),
    "heads do not divide": (
        config(lambda c: [d.update(num_attention_heads=7) for d in (c, c["language_config"])]),
        (*REPORT, "--config", "m.json"), 2,
    ),
    "more experts per token than experts": (
        config(lambda c: [d.update(num_experts_per_tok=65) for d in (c, c["language_config"])]),
        (*REPORT, "--config", "m.json"), 2,
    ),
    "same key twice": (text("m.json", '{"a": 1, "a": 2}'), (*REPORT, "--config", "m.json"), 2),
    "capture missing": (nothing, ("compare", "c.json", "-o", "out/d.json"), 2),
    "capture that is a folder": (a_folder, ("compare", "c.json", "-o", "out/d.json"), 2),
    "capture truncated": (truncated, ("compare", "c.json", "-o", "out/d.json"), 2),
    "capture that is no text": (binary, ("compare", "c.json", "-o", "out/d.json"), 2),
    "capture that is empty": (text("c.json", ""), ("compare", "c.json", "-o", "out/d.json"), 2),
    "foreign JSON": (text("c.json", '{"name": "package", "version": "1"}'), (*RENDER, "static-md"), 2),
    "JSON that is a number": (text("c.json", "17"), (*RENDER, "static-md"), 2),
    "capture of another kind": (capture(lambda c: c.update(schema="costproof/callgraph")), (*RENDER, "static-md"), 2),
    "capture of another major version": (capture(lambda c: c.update(schema_version="1.2")), (*RENDER, "static-md"), 2),
    "capture without a version": (capture(lambda c: c.pop("schema_version")), (*RENDER, "static-md"), 2),
    "capture without ledgers": (capture(lambda c: c.update(ledgers=[])), (*RENDER, "static-md"), 2),
    "capture with wrong fields": (
        capture(lambda c: (c["ledgers"][0]["nodes"][0]["costs"].update(params=1.5, flops="x"), c.update(extra=1))),
        (*RENDER, "static-md"), 2,
    ),
    "capture with code for a formula": (
        capture(lambda c: c["ledgers"][0]["nodes"][0]["exprs"].update(params="__import__('os').system('id')")),
        (*RENDER, "static-md"), 2,
    ),
    "capture nested too deep": (text("c.json", "[" * 200_000), ("compare", "c.json"), 2),
    "unknown format": (good, (*RENDER, "static-mb"), 2),
    "no format": (good, ("render", "c.json"), 2),
    "unknown kind of file": (nothing, ("schema", "captures", "-o", "out/x"), 2),
    "output is the input": (good, ("render", "c.json", "-f", "summary", "-o", "c.json"), 2),
    "output is a folder": (good_and_folder, ("compare", "c.json", "-o", "d"), 2),
    "output below a file": (good_and_file, ("compare", "c.json", "-o", "f/x.md"), 2),
    "report folder below a file": (text("f", ""), ("report", "deepseek-ocr", "-o", "f/out", "--progress", "never"), 2),
    "report folder is a file": (text("f", ""), ("report", "deepseek-ocr", "-o", "f", "--progress", "never"), 2),
    "no callgraph in the capture": (no_callgraph, ("render", "c.json", "-f", "callgraph-json", "-o", "out/x"), 3),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_bad_input(case: str, tmp_path: Path, golden: Golden) -> None:
    setup, arguments, code = CASES[case]
    setup(tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in files(tmp_path) if (tmp_path / name).is_file()}
    result = costproof(*arguments, cwd=tmp_path)
    assert result.code == code
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    golden(f"bad-input/{case.replace(' ', '-')}.txt", result.stderr)
    after = {name: (tmp_path / name).read_bytes() for name in files(tmp_path) if (tmp_path / name).is_file()}
    assert after == before
    assert not (tmp_path / "out").exists()


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 30


def test_ctrl_c_half_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    def interrupted(*args: object, **_: object) -> None:
        signal.raise_signal(signal.SIGINT)  # a KeyboardInterrupt without a signal is one that a model raises

    monkeypatch.setattr("costproof.run.report.count_sources", interrupted)
    result = costproof(*REPORT, cwd=tmp_path)
    assert (result.code, result.stdout) == (3, "")
    golden("bad-input/ctrl-c.txt", result.stderr.lstrip("\n"))
    assert files(tmp_path) == []


def test_ctrl_c_while_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    calls: list[object] = []
    real = os.fdopen

    def third(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr("costproof.run.report.count_sources", lambda *_, **__: Report(toy()))
    monkeypatch.setattr("costproof.ledger.writing.os.fdopen", third)
    assert costproof(*REPORT, cwd=tmp_path).code == 3
    assert files(tmp_path) == []


def test_a_source_that_fails_is_incomplete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    def failing(*args: object, **_: object) -> None:
        raise RuntimeError("Tensor on device meta is not on the expected device\nlong story")

    monkeypatch.setattr("costproof.tracers.static.static_ledger", failing)
    result = costproof(*REPORT, "--sources", "analytic,static", cwd=tmp_path)
    assert result.code == 3
    told = [line for line in result.stderr.splitlines() if not line.startswith("Wrote ")]
    golden("bad-input/failing-source.txt", "\n".join(told) + "\n")
    assert "incomplete" in result.stdout
    assert (tmp_path / "out" / "capture.json").is_file()
    alone = costproof("capture", "deepseek-ocr", "--sources", "analytic,static", "-o", "alone.json", cwd=tmp_path)
    assert alone.code == 3
    assert [s for s in alone.stderr.splitlines() if "incomplete" in s] == [s for s in told if "incomplete" in s]


def test_a_missing_package_is_incomplete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    def missing(*args: object, **_: object) -> None:
        raise ModuleNotFoundError("No module named 'torchlens'")

    monkeypatch.setattr("costproof.tracers.dynamic.dynamic_ledger", missing)
    result = costproof(*REPORT, "--sources", "dynamic", cwd=tmp_path)
    assert result.code == 3
    golden("bad-input/missing-package.txt", result.stderr)


def test_a_bug_of_ours_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    from costproof.compare import compare as comparing

    good(tmp_path)
    owned(str(Path(__file__).parent), "a plug-in that an earlier command of this process had")

    def broken(*args: object) -> None:
        raise ZeroDivisionError("integer division or modulo by zero")

    monkeypatch.setattr(comparing, "compare", broken)
    result = costproof("compare", "c.json", cwd=tmp_path)
    assert (result.code, result.stdout) == (70, "")
    golden("bad-input/bug.txt", result.stderr)


@pytest.mark.parametrize(("name", "code"), [("yaml", 3), ("costproof.compare.causes", 70)])
def test_a_module_that_cannot_be_imported(
    name: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from costproof.compare import compare as comparing

    def broken(*args: object) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    good(tmp_path)
    monkeypatch.setattr(comparing, "compare", broken)
    result = costproof("compare", "c.json", cwd=tmp_path)
    assert (result.code, result.stdout) == (code, "")
    assert f"No module named '{name}'" in result.stderr


def test_hostile_names_do_not_reach_the_terminal(tmp_path: Path) -> None:
    from tests.support.toy import hostile

    write_capture(tmp_path / "c.json", hostile())
    for name in ("summary", "static-md", "discrepancy-md"):
        shown = costproof("render", "c.json", "-f", name, cwd=tmp_path).stdout
        assert shown
        assert not set("\x1b\u202e") & set(shown)


def test_a_null_character_in_an_argument_is_bad_input(tmp_path: Path) -> None:
    for arguments in (("capture", "llama", "-o", "a\0b"), ("report", "a\0b"), ("a\0b",)):
        result = costproof(*arguments, cwd=tmp_path)
        assert (result.code, result.stdout) == (2, "")
        assert "an argument holds a null character" in result.stderr
    assert files(tmp_path) == []
