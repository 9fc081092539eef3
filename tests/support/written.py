"""Files of ours, written from their data."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from costproof.ledger.capture import CAPTURE, Capture
from costproof.ledger.files import json_text
from costproof.ledger.schema import FileKind, to_data
from costproof.ledger.writing import write_texts

T = TypeVar("T")


def dump(path: Path, kind: FileKind[T], value: T) -> None:
    """Write a file of a kind."""
    write_texts({path: json_text(to_data(kind, value))})


def write_capture(path: Path, capture: Capture) -> None:
    """Write a capture file."""
    dump(path, CAPTURE, capture)
