"""Static ledgers that are kept: read without torch by the same command, and counted anew where anything differs."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from costproof.ledger.node import Ledger
from costproof.tracers import cache
from costproof.tracers.cache import FOLDER, save
from costproof.tracers.fingerprint import OWN


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., tuple[dict[str, Any], bool]]:
    """A report of one layer of a vision tower: its static stage, and whether torch was imported."""

    def run(*more: str) -> tuple[dict[str, Any], bool]:
        out = tmp_path / "report"
        given = ["report", "vit-l-16", "--layers", "1", "--sources", "analytic,static", "-o", str(out), *more]
        env = {**os.environ, FOLDER: str(tmp_path / "kept")}
        start = [sys.executable, "-X", "importtime", "-m", "costproof"]
        done = subprocess.run([*start, *given], env=env, capture_output=True, text=True, check=False)
        assert done.returncode in (0, 1), done.stderr[-2000:]
        capture = json.loads((out / "capture.json").read_text())
        (ledger,) = [x for x in capture["ledgers"] if x["source"] == "static"]
        imported = any(line.rpartition("|")[2].strip() == "torch" for line in done.stderr.splitlines())
        return ledger, imported

    return run


def kept(folder: Path) -> Path:
    """The one file that holds a ledger."""
    (found,) = [f for f in (folder / "kept").iterdir() if b'"ledger"' in gzip.decompress(f.read_bytes())]
    return found


def changed(file: Path, change: Callable[[Any], object]) -> None:
    data = json.loads(gzip.decompress(file.read_bytes()))
    change(data)
    file.write_bytes(gzip.compress(json.dumps(data).encode()))


def test_the_same_command_reads_it_without_torch_and_another_one_counts(
    command: Callable[..., tuple[dict[str, Any], bool]], tmp_path: Path, *, thorough: bool
) -> None:
    first, imported = command()
    assert imported
    file = kept(tmp_path)
    module = first["nodes"][0]["module"]
    changed(file, lambda data: data["ledger"]["nodes"][0].update(module="elsewhere"))
    bent, imported = command()
    assert not imported
    assert bent["nodes"][0].pop("module") == "elsewhere"  # it is the file that was read
    bent["nodes"][0]["module"] = module
    assert bent == first
    if thorough:  # test_cache.py has a cache that is not wanted, without a command of its own
        assert command("--no-cache") == (first, True)

    # A module that was loaded has changed since: nothing is read, so it is counted again, and kept in its place.
    changed(file, lambda data: data["files"].update({place: [0, 0] for place in tuple(data["files"])[:1]}))
    assert cache._load_ledger(file) is None
    if thorough:
        assert command() == (first, True)
        again_kept = cache._load_ledger(file)
        assert again_kept is not None
        assert again_kept.nodes[0].module == first["nodes"][0]["module"]

    file.write_bytes(file.read_bytes()[:-100])
    assert cache._load_ledger(file) is None


def test_nothing_is_kept_by_a_program_that_may_have_changed_what_it_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    from costproof.run.prepare import prepare
    from costproof.run.request import request

    asked = prepare(request("vit-l-16"))
    target: Any = asked.target
    monkeypatch.setattr(cache, "_is_command", lambda: True)
    assert cache._ledger_file(target, asked.workload) is None  # torch is loaded here
    monkeypatch.delitem(sys.modules, "torch")
    assert cache._ledger_file(target, asked.workload) is not None
    monkeypatch.setattr(cache, "in_force", lambda: (Path("rules.py"),))
    assert cache._ledger_file(target, asked.workload) is None


def test_code_of_somebody_else_keeps_a_ledger_from_being_kept(tmp_path: Path) -> None:
    assert cache._loaded_files() is None  # these tests are in no package
    file = tmp_path / "x.json.gz"
    cache._save_ledger(file, Ledger("static", (), (), ()))
    assert not file.exists()


def test_a_file_under_the_name_of_another_is_not_read(tmp_path: Path) -> None:
    ledger = {"source": "static", "nodes": [], "metrics": [], "stages": []}
    file, other = tmp_path / "a.json.gz", tmp_path / "b.json.gz"
    for place in (file, other):
        save(place, json.dumps({"name": file.name, "files": {}, "ledger": ledger}).encode())
    assert cache._load_ledger(file) == Ledger("static", (), (), ())
    assert cache._load_ledger(other) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"name": None},
        {"files": 5},
        {"files": {"\x00": [1, 2]}},
        {"files": {"/": 5}},
        {"ledger": []},
        {"ledger": {"source": "static", "nodes": [[[]]], "metrics": [], "stages": []}},
        {"ledger": {"source": "static", "nodes": [], "metrics": [], "stages": [5]}},
        {"ledger": {"source": "static", "nodes": [{"flops": "1"}], "metrics": [], "stages": []}},
    ],
)
def test_json_of_another_shape_is_not_read(changes: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "a.json.gz"
    ledger = {"source": "static", "nodes": [], "metrics": [], "stages": []}
    save(file, json.dumps({"name": file.name, "files": {}, "ledger": ledger, **changes}).encode())
    assert cache._load_ledger(file) is None


def test_what_is_nested_too_deep_and_what_is_no_file_are_not_read(tmp_path: Path) -> None:
    file = tmp_path / "a.json.gz"
    save(file, b"[" * 200_000 + b"]" * 200_000)
    assert cache._load_ledger(file) is None
    for put in (os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)):
        file.rmdir() if file.is_dir() else file.unlink()
        put(file)
        assert cache._load_ledger(file) is None


def test_code_from_another_folder_is_another_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = cache._package_folders()
    monkeypatch.syspath_prepend(tmp_path)
    assert cache._package_folders() == [[str(tmp_path), None], *before]
    assert any(changed is not None for _, changed in before)


def test_only_the_command_is_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for place, expected in (
        (tmp_path / "bin" / "costproof", True),
        (OWN / "__main__.py", True),
        (tmp_path / "mine.py", False),
    ):
        monkeypatch.setattr(sys.modules["__main__"], "__file__", str(place), raising=False)
        assert cache._is_command() is expected
