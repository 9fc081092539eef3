"""Which pages there are, as mkdocs.yml lists them; ``python -m docs.site.nav`` writes llms.txt."""

from __future__ import annotations

from typing import Any

import yaml
from docs.site.pages import ROOT, llms


def nav() -> list[tuple[str, list[str]]]:
    """Heading -> names of its pages."""
    listed: list[dict[str, Any]] = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    return [(heading, list(names)) for part in listed for heading, names in part.items()]


if __name__ == "__main__":
    (ROOT / "llms.txt").write_text(llms(nav()), encoding="utf-8")
