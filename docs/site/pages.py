"""Pages of the site beside those that lie in docs: its first page, the gallery, and what the program says of itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
REPORTS: Final = ROOT / "out" / "gallery"
"""Pages of real reports, which ``make docs`` makes."""
_LINK: Final = re.compile(r"\]\(docs/")


def home() -> str:
    """The first page: the README, whose links lead to the pages beside it."""
    return _LINK.sub("](", (ROOT / "README.md").read_text(encoding="utf-8")).replace(
        "](CONTRIBUTING.md)", "](contributing.md)"
    )


def contributing() -> str:
    """How to work on it."""
    return _LINK.sub("](", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))


def reports() -> dict[str, str]:
    """Real reports that lie ready: file -> title."""
    return {path.name: path.stem.replace("_", " ") for path in sorted(REPORTS.glob("*.html"))}


_PICTURES: Final = {
    "page.png": ("The page of a report", "page.md"),
    "diff.png": ("The page of a change", "page.md"),
    "wrong.png": ("Two open findings of a wrong formula", "page.md"),
    "claims.png": ("Published numbers beside the truth", "claims.md"),
    "memory.png": ("Memory over the execution", "memory.md"),
    "pictures/slide.png": ("The callgraph on a slide", "callgraph.md"),
    "pictures/shares.png": ("Where the cost sits", "plots.md"),
    "pictures/llama.png": ("FLOPs over batch and length", "plots.md"),
    "pictures/roofline.png": ("Under the roof of a device", "roofline.md"),
    "pictures/peaks.png": ("Peaks of live activations", "memory.md"),
    "pictures/counters.png": ("Third-party counters against the truth", "counters.md"),
}
"""Picture -> what it shows, and the page about it."""


def gallery() -> str:
    """Real reports to open, and pictures."""
    lines = ["# Gallery", "", "## Reports", ""]
    found = reports()
    lines += [f"- [{title}](gallery/{name})" for name, title in found.items()]
    lines += [] if found else ["`make docs` makes them: pages of real reports, each one file that opens offline."]
    lines += ["", "## Pictures", ""]
    for file, (what, page) in _PICTURES.items():
        lines += [f"### {what}", "", f"[![{what}]({file})]({page})", ""]
    return "\n".join(lines)


def first_sentence(text: str) -> tuple[str, str]:
    """Title and first sentence of a page."""
    body = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    title = next(line for line in body.splitlines() if line.startswith("# "))[2:]
    paragraphs = re.split(r"\n\s*\n", body.partition(title)[2].strip())
    plain = next((p for p in paragraphs if p[:1] not in "#|!-<*"), "")
    sentence = re.match(r".*?[.:](?=\s|$)", " ".join(plain.split()))
    said = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", sentence[0] if sentence else "")
    return title.replace("`", ""), said.rstrip(":.") + ("." if said else "")


def llms(nav: list[tuple[str, list[str]]]) -> str:
    """``llms.txt``: what this is, and every page in one line, for programs that read documentation.

    Args:
        nav: heading -> names of pages.
    """
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    title, said = first_sentence(readme)
    lines = [f"# {title}", "", f"> {said}", ""]
    made = {"index.md": readme, "contributing.md": contributing()}
    for heading, names in nav:
        rows = []
        for name in names:
            path = DOCS / name
            if name not in made and not path.is_file():
                continue  # what the program writes itself is no file of the repository
            one, what = first_sentence(made[name] if name in made else path.read_text(encoding="utf-8"))
            place = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md"}.get(name, f"docs/{name}")
            rows.append(f"- [{one}]({place}): {what}".rstrip(": "))
        lines += [f"## {heading}", "", *rows, ""] if rows else []
    return "\n".join(lines)
