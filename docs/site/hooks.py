"""What MkDocs asks for while it builds: pages that the program writes, and reports of the gallery."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # MkDocs loads this file by its path

from docs.site import pages, reference

_WORDS_BEHIND: Final = re.compile(r"^(```\w+) .*$", re.MULTILINE)
"""What a fence says beside its language, which readers of the file are told, and MkDocs takes for no fence."""
_OF_THE_CODE: Final = re.compile(r"\[([^\]]+)\]\(\.\./((?:src|tests|benchmarks)/[^)]+)\)")
"""A link to a file that the site does not have."""


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A page as MkDocs reads it."""
    return _OF_THE_CODE.sub(r"\1 (`\2`)", _WORDS_BEHIND.sub(r"\1", markdown))


def on_files(files: Any, config: Any) -> Any:
    """Add what does not lie in docs."""
    from mkdocs.structure.files import File

    made = {
        "index.md": pages.home(),
        "contributing.md": pages.contributing(),
        "gallery.md": pages.gallery(),
        "commands.md": reference.commands(),
        "python.md": reference.functions(),
        "assets/iframe-worker.js": (Path(__file__).parent / "iframe-worker.js").read_text(encoding="utf-8"),
        "llms.txt": (pages.ROOT / "llms.txt").read_text(encoding="utf-8"),
        **{f"gallery/{name}": (pages.REPORTS / name).read_text(encoding="utf-8") for name in pages.reports()},
    }
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files
