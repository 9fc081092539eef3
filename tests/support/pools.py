"""In place of a process of its own for the dynamic source: this process, or what these tests traced before.

Where a test begins processes all the same, they are forks of one template (:func:`shared_template`).
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from costproof.ledger.errors import CostproofError
from costproof.processes import Outcome, Work
from costproof.processes.template import Template, template

TRACES = "COSTPROOF_TEST_TRACES"
"""Names the folder of what was traced in this run of the tests; all their processes share it."""

SCREEN = ("CI", "COLUMNS", "COSTPROOF_DEBUG")
"""Variables that no worker reads, and that differ from test to test."""


def shared_template(modules: tuple[str, ...], environment: Mapping[str, str]) -> Template | None:
    """Return one template for all work that needs torch, where the program keeps one for each set of modules.

    To import them takes four seconds of processor time.
    """
    from costproof.tracers.sources import LIBRARIES

    everything = (*LIBRARIES, "torchlens")
    if modules and {*modules} <= {*everything}:
        modules, environment = everything, {k: v for k, v in environment.items() if k not in SCREEN}
    return template(modules, environment)


class Here:
    """A pool whose only process is this one."""

    def __init__(self, *_: object, **__: object) -> None: ...

    __class_getitem__ = classmethod(lambda cls, _: cls)

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_: object) -> None: ...

    def results(
        self, work: dict[str, Work[Any]], hear: Callable[[str, Any], None] = lambda name, said: None
    ) -> Iterator[Outcome[Any]]:
        """Do each piece of work when its outcome is asked for."""
        for name, piece in work.items():
            try:
                yield Outcome(name, pickle.loads(self.answer(pickle.dumps(piece), partial(hear, name))))
            except CostproofError as error:
                yield Outcome(name, error=error)

    def answer(self, order: bytes, say: Callable[[Any], None]) -> bytes:
        """What would be sent back."""
        sent: Work[Any] = pickle.loads(order)
        return pickle.dumps(sent(say))


class Kept(Here):
    """The same, and the answer to an order that was carried out before is read from a file."""

    def answer(self, order: bytes, say: Callable[[Any], None]) -> bytes:
        """What would be sent back."""
        file = Path(os.environ[TRACES]) / hashlib.sha256(order).hexdigest()
        if file.exists():
            return file.read_bytes()
        found = super().answer(order, say)
        written = file.with_suffix(f".{os.getpid()}")
        written.write_bytes(found)
        written.replace(file)
        return found
