"""Shared fixtures: text goldens with ``--update-goldens``, and one folder of kept exports for a run of the tests."""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

FOLDER = "COSTPROOF_CACHE"
GOLDENS = Path(__file__).parent / "goldens"

Golden = Callable[[str, str], None]
"""``golden(name, text)``: the text must equal ``tests/goldens/<name>``."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of these tests."""
    parser.addoption("--update-goldens", action="store_true", help="write the golden files anew instead of comparing")
    parser.addoption("--workloads", type=int, default=2, help="random workloads of DeepSeek-OCR to count three ways")
    parser.addoption("--thorough", action="store_true", help="all layers, all sources and every way to run")


def pytest_configure(config: pytest.Config) -> None:
    """Begin with an empty folder of exports. The processes of ``--numprocesses`` and what tests start share it."""
    if not hasattr(config, "workerinput"):
        os.environ[FOLDER] = tempfile.mkdtemp(prefix="exports-")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove it."""
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(FOLDER), ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run what takes minutes in one piece first: at the end all processes but one would wait for it."""
    items.sort(key=lambda item: item.path.name != "test_command_lines.py")


@pytest.fixture
def thorough(request: pytest.FixtureRequest) -> bool:
    """Whether everything is counted in every way."""
    return bool(request.config.getoption("--thorough"))


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both graph sources in this process: to begin one for the dynamic source takes longer than to trace a small model.

    What would be sent is pickled all the same.
    """
    from costproof.ledger.errors import CostproofError
    from costproof.processes import Outcome, Work
    from costproof.tracers import both

    class Here:
        def __init__(self, *_: object, **__: object) -> None: ...

        __class_getitem__ = classmethod(lambda cls, _: cls)

        def __enter__(self) -> Here:
            return self

        def __exit__(self, *_: object) -> None: ...

        def results(self, work: dict[str, Work[Any]], hear: Callable[[str, Any], None]) -> Iterator[Outcome[Any]]:
            for name, piece in work.items():
                sent: Work[Any] = pickle.loads(pickle.dumps(piece))
                try:
                    yield Outcome(name, pickle.loads(pickle.dumps(sent(partial(hear, name)))))
                except CostproofError as error:
                    yield Outcome(name, error=error)

    monkeypatch.setattr(both, "Pool", Here)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compare a text with its golden file, or write the file anew with ``--update-goldens``."""
    update = bool(request.config.getoption("--update-goldens"))

    def check(name: str, text: str) -> None:
        path = GOLDENS / name
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
            return
        assert path.is_file(), f"no golden {name}: run pytest --update-goldens and read the new file"
        assert text == path.read_text(encoding="utf-8"), f"differs from tests/goldens/{name}"

    return check
