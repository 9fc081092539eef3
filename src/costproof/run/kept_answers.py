"""What a proof has answered so far, in a file of its folder, so that an interrupted proof goes on.

The file belongs to one proof at a time, and to one request: another one in the same folder is refused while the first
goes on, and finds nothing of it afterwards.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Final

from costproof.compare.proof.certificate import Settings
from costproof.compare.proof.judge import Answer
from costproof.ledger.aside import take
from costproof.ledger.environment import environment
from costproof.ledger.errors import BadInput
from costproof.ledger.files import MAX_BYTES, first_bytes
from costproof.ledger.schema import adapter
from costproof.opgraph.rules.files import versions_in_force

NAME: Final = "certificate.progress.jsonl"
_BEGINS: Final = '{"proof": "'
_LINE: Final = tuple[str, Answer]


class Kept:
    """Answers of finished pieces, one per line, behind a line that says what they are answers to; a context manager."""

    def __init__(self, folder: Path, target: str, settings: Settings) -> None:
        self.path = folder / NAME
        self.head = json.dumps({"proof": _fingerprint(target, settings)}).encode()

    def __enter__(self) -> Kept:
        """Take the file.

        Raises:
            BadInput: another proof has it, it belongs to another program, or it cannot be written.
        """
        try:
            if self.path.is_symlink() or (self.path.exists() and not self._ours()):
                raise BadInput(
                    "a file of this name is not ours",
                    where=str(self.path),
                    expected="the answers of an interrupted proof, or no file",
                    fix="choose another folder with -o",
                )
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = take(self.path, "a+b", "another proof is being made in this folder")
        except OSError as error:
            got = error.strerror or type(error).__name__
            raise BadInput(
                "cannot write a file", where=str(self.path), got=got, fix="choose another place with -o"
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _ours(self) -> bool:
        """Whether the file begins as one of ours, as far as that was written."""
        begins = self.head[: len(_BEGINS)]
        return self.path.is_file() and begins.startswith(first_bytes(self.path, len(begins)))

    def read(self) -> list[tuple[str, Answer]]:
        """Return what an interrupted proof of the same thing left; a line cut off in the middle is done again.

        A file of more than :data:`MAX_BYTES` is begun again.
        """
        self._file.seek(0)
        content = self._file.read(MAX_BYTES + 1)
        head, *lines = content.split(b"\n")
        if head != self.head or not lines or len(content) > MAX_BYTES:
            self._file.truncate(0)
            self._file.write(self.head + b"\n")
            self._file.flush()
            return []
        self._file.truncate(self._file.tell() - len(lines[-1]))
        line = adapter(_LINE)
        found = []
        for text in lines[:-1]:
            with suppress(ValueError):
                found.append(line.validate_json(text))
        return found

    def add(self, name: str, answer: Answer) -> None:
        """Append one answer."""
        self._file.write(adapter(_LINE).dump_json((name, answer)) + b"\n")
        self._file.flush()

    def remove(self) -> None:
        """The proof is finished."""
        self.path.unlink(missing_ok=True)


def _fingerprint(target: str, settings: Settings) -> str:
    """What an answer depends on: everything that was asked for, versions, and our own code."""
    root = Path(__file__).parents[1]
    asked = [target, asdict(settings), environment() | versions_in_force()]
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode())
    for path in sorted(root.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
