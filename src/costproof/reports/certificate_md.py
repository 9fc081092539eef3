"""The certificate for people: the verdict first, then what is claimed, over which domain, by which method."""

from __future__ import annotations

from costproof.compare.proof.certificate import Certificate
from costproof.reports.blocks import blocks_md
from costproof.reports.certificate_words import SENTENCE, sections
from costproof.reports.escape import code, markdown
from costproof.views.describe import model_line, versions_line


def certificate_md(c: Certificate) -> str:
    """Markdown text of a certificate."""
    lines = [f"# Certificate: {code(c.target.name)}", "", f"**{SENTENCE[c.verdict]}**", ""]
    lines += [f"Model {code(c.target.name)}: {markdown(model_line(c.target))}.", ""]
    for title, blocks in sections(c):
        lines += [f"## {title}", "", *blocks_md(blocks), ""]
    lines += ["## Made with", "", f"{markdown(versions_line(c.environment))}.", ""]
    lines += ["Repeat it with `costproof prove --verify certificate.json`."]
    return "\n".join(lines) + "\n"
