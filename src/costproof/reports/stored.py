"""Report the size of a checkpoint on disk: totals, tensors by part, and differences from file headers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from costproof.ledger.plural import plural
from costproof.reports.document import Block, Code, Document, Form, Items, Note, Number, Table
from costproof.storage.checkpoint import StoredCheckpoint
from costproof.views.numbers import exact, human

TOTALS: Final = ("Of the checkpoint", "Number")
PARTS: Final = ("Tensor", "Dtype", "Shape", "Tensors", "Bytes")
DIFFERENCES: Final = ("Tensor", "By the layout", "In the headers", "Bytes", "Cause")
SECTIONS: Final = ("Of the file, besides tensors", "Bytes")
MOST: Final = 20
MEANING: Final = (
    "Stored bytes are the payload of the files, without headers. Elements are those that headers add up to, scales and "
    "packed words among them; parameters are those of the model before it was quantised."
)


def document(found: StoredCheckpoint, form: Form) -> Document:
    """Return the report of a checkpoint; plain text lists only the largest parts."""
    rows = [(Code(p.name), p.dtype, str(list(p.shape)), exact(p.tensors), _number(p.bytes)) for p in found.parts]
    most = None if form == "html" else MOST
    body: list[Block] = [
        Table(TOTALS, "lr", list(_totals(found))),
        Table(PARTS, "lllrr", rows, most=most, noun="smaller part", rest="-f json"),
    ]
    if found.headers is not None and found.headers.differences:
        different = [(Code(d.name), d.expected or "none", d.got or "none", _number(d.bytes), d.cause or "not known")
                     for d in found.headers.differences]  # fmt: skip
        body.append(Table(DIFFERENCES, "lllrl", different, most=most, noun="smaller difference", rest="-f json"))
    if found.headers is not None and found.headers.sections:
        sections = sorted(found.headers.sections, key=lambda section: -section.bytes)
        inside = [(section.name, _number(section.bytes)) for section in sections if section.bytes]
        body.append(Table(SECTIONS, "lr", inside, most=most, noun="smaller section", rest="-f json"))
    said = [f"Assumed: {text}." for text in found.assumed]
    said += [f"Beside these, of unknown size: {text}." for text in found.undetermined]
    said += [f"Left out: {text}." for text in found.left_out]
    if said:
        body.append(Items(tuple(said)))
    body.append(Note(MEANING))
    return Document(f"Stored: {found.target}", body, "", sentence(found))


def _number(value: int) -> Number:
    return Number(value, exact(value))


def _totals(found: StoredCheckpoint) -> Iterator[tuple[str, Number]]:
    yield "stored bytes", _number(found.totals.bytes)
    yield "stored elements", _number(found.totals.elements)
    for dtype, elements in found.totals.by_dtype:
        yield f"elements in {dtype}", _number(elements)
    yield "parameters", _number(found.params)
    if found.headers is not None:
        yield "bytes by the headers", _number(found.headers.bytes)
        if found.headers.sections:
            yield "bytes of the file", _number(found.headers.bytes + sum(s.bytes for s in found.headers.sections))


def sentence(found: StoredCheckpoint) -> str:
    """Return the size of a checkpoint in one sentence, with the result of comparing it to headers if they were read."""
    how = ", ".join(found.formats) or "not quantised"
    size = f"{exact(found.totals.bytes)} B ({human(found.totals.bytes, 'B')}), {how}"
    if found.headers is None:
        return f"Stored: {size}{' and more of unknown size' if found.undetermined else ''}."
    if not found.headers.unnamed:
        tensors = plural(found.headers.tensors, "tensor")
        files = plural(found.headers.files, "file")
        named = sum(difference.bytes for difference in found.headers.differences)
        more = found.headers.bytes - found.totals.bytes - named
        rest = f", and {exact(more)} B in tensors whose size no key determines" if more else ""
        if found.headers.differences:
            causes = plural(len({difference.cause for difference in found.headers.differences}), "known cause")
            return f"Explained: {tensors} in {files} differ from the layout by {named:+,} B of {causes}: {size}{rest}."
        return f"Exact: {tensors} in {files} are those of the layout, {size}{rest}."
    delta = found.headers.bytes - found.totals.bytes
    return f"Differs: the headers state {exact(found.headers.bytes)} B, {delta:+,} beside the layout's {size}."
