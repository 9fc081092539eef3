"""What an output is: data, a value that other code can use, and the text that is written of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from costproof.ledger.schema import FileKind
    from costproof.reports.report import Report


@dataclass(frozen=True, slots=True)
class Output:
    """One output."""

    name: str
    """What it is about and its format: ``static-md``."""
    file: str
    """The usual name of the file."""
    meaning: str
    data: Callable[[Report], Any] | None = None
    """The data half; ``None`` where a command of its own makes the data. May raise
    :class:`~costproof.views.absent.Absent`."""
    write: Callable[[], Callable[..., str]] | None = None
    """Loads the writing half, which takes the data, and the width if it is :attr:`for_screens`; JSON of ``kind`` if
    ``None``."""
    kind: Callable[[], FileKind[Any]] | None = None
    """Loads the kind of file that the data are, with its schema."""
    states_verdict: bool = False
    """Whether the text says how the comparison ended, so that the exit code says it too."""
    folder: Literal["", "report", "measured", "later"] = ""
    """``report``: a part of the folder of a report. ``measured``: likewise, but no capture holds its data.
    ``later``: written beside its capture by another command."""

    for_screens: bool = False
    """Whether it is read on a terminal, and made as narrow as one."""

    @property
    def of_capture(self) -> bool:
        """Whether a capture can be rendered to it."""
        return self.data is not None and self.folder != "measured"

    def text(self, data: Any, width: int | None = None) -> str:
        """Return the text of the data.

        Args:
            width: columns of the screen that it is read on; ``None`` is a file.
        """
        if self.write is not None:
            return self.write()(data, width) if self.for_screens else self.write()(data)
        from costproof.ledger.files import json_text
        from costproof.ledger.schema import to_data

        assert self.kind is not None, self.name
        return json_text(to_data(self.kind(), data))
