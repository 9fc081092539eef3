"""Sum the stored tensors of a checkpoint by part, and compare them with the headers of its files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from costproof.ledger.errors import EXIT_FINDINGS, EXIT_INCOMPLETE, EXIT_OK
from costproof.ledger.schema import FileKind
from costproof.ledger.workload import folded_path
from costproof.storage.headers import HeaderTensor
from costproof.storage.tensors import StoredTensor, StoredTotals


@dataclass(frozen=True, slots=True)
class StoredPart:
    """Tensors of equal shape and dtype, of modules that differ only in numbers."""

    name: str
    """``model.layers.*.mlp.down_proj.weight``."""
    dtype: str
    shape: tuple[int, ...]
    purpose: str
    tensors: int
    elements: int
    bytes: int


@dataclass(frozen=True, slots=True)
class HeaderDifference:
    """Tensors of one name pattern whose headers differ from the layout that was computed."""

    name: str
    expected: str
    """Dtype and shape by the layout; empty: none expected."""
    got: str
    """Dtype and shape in the headers; empty: not there."""
    tensors: int
    bytes: int
    """Bytes in the headers minus bytes by the layout."""


@dataclass(frozen=True, slots=True)
class HeaderTotals:
    """Totals of a checkpoint according to the headers of its files."""

    files: int
    tensors: int
    bytes: int
    differences: tuple[HeaderDifference, ...]


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """Size of a checkpoint on disk, computed from its configuration and read from its headers."""

    target: str
    method: str
    """Method of quantisation; empty: none."""
    formats: tuple[str, ...]
    """Formats of its linear layers."""
    params: int
    """Logical parameters: elements of the model's parameters before they were quantised."""
    next_token_modules: int
    """Modules that predict further tokens and that are counted."""
    totals: StoredTotals
    parts: tuple[StoredPart, ...]
    assumed: tuple[str, ...] = ()
    """Assumptions of the layout that follow from the producing tool, because no configuration key states them."""
    undetermined: tuple[str, ...] = ()
    """Further tensors whose size the configuration does not determine."""
    largest_matrix: int = 0
    """Weights of the largest tensor that is quantised."""
    buffer_bytes: int = 0
    """Part of the stored bytes that fills buffers, not parameters."""
    left_out: tuple[str, ...] = ()
    """Tensors that the checkpoint may contain and the totals omit."""
    headers: HeaderTotals | None = None
    """``None``: no files were given."""

    def table_rows(self) -> tuple[StoredPart, ...]:
        """Return the rows of the table: the parts."""
        return self.parts

    @property
    def exit_code(self) -> int:
        """1 if the headers differ, 3 if the size of a tensor is not determined and no header states it, else 0."""
        if self.headers is not None:
            return EXIT_FINDINGS if self.headers.differences else EXIT_OK
        return EXIT_INCOMPLETE if self.undetermined else EXIT_OK


STORED: Final = FileKind(name="costproof/stored", version=(1, 0), type=StoredCheckpoint)


def parts_of(tensors: Iterable[StoredTensor]) -> tuple[StoredPart, ...]:
    """Return the tensors in groups that differ only in numbers of their names, the largest first."""
    found: dict[tuple[str, str, tuple[int, ...], str], list[StoredTensor]] = {}
    for tensor in tensors:
        found.setdefault((folded_path(tensor.name), tensor.dtype, tensor.shape, tensor.purpose), []).append(tensor)
    parts = (
        StoredPart(*key, sum(t.count for t in same), sum(t.elements for t in same), sum(t.bytes for t in same))
        for key, same in found.items()
    )
    return tuple(sorted(parts, key=lambda part: (-part.bytes, part.name)))


def compare_headers(
    tensors: Iterable[StoredTensor], files: Mapping[str, Iterable[HeaderTensor]], undetermined: Iterable[str] = ()
) -> HeaderTotals:
    """Return the totals of headers, and their differences from a layout by name pattern, dtype and shape.

    Tensors that there are as many of as expected must also have the expected names. A stack of experts is compared by
    pattern only, so that ``experts.*.up_proj`` stands for each expert.

    Args:
        undetermined: beginnings of the last parts of names that the layout has without a size.
    """
    suffixes = tuple(text.partition(":")[0] for text in undetermined)
    expected: dict[tuple[str, str, tuple[int, ...]], int] = {}
    named: dict[tuple[str, str, tuple[int, ...]], set[str]] = {}
    for tensor in tensors:
        key = (folded_path(tensor.name), tensor.dtype, tensor.shape)
        expected[key] = expected.get(key, 0) + tensor.count
        named.setdefault(key, set()).add(tensor.name)
    stated: dict[tuple[str, str, tuple[int, ...]], list[HeaderTensor]] = {}
    every = [tensor for inside in files.values() for tensor in inside]
    for one in every:
        if not (suffixes and one.name.endswith(suffixes)):
            stated.setdefault((folded_path(one.name), one.dtype, one.shape), []).append(one)
    differences = []
    for name, dtype, shape in sorted({*expected, *stated}):
        there, wanted = stated.get((name, dtype, shape), []), expected.get((name, dtype, shape), 0)
        missing = named.get((name, dtype, shape), set()) - {tensor.name for tensor in there}
        if len(there) == wanted and missing and not any("*" in one for one in missing):
            others = {tensor.name for tensor in there} - named[name, dtype, shape]
            differences.append(HeaderDifference(name, min(missing), min(others), len(missing), 0))
        elif len(there) != wanted:
            form = f"{dtype} {list(shape)}"
            more = len(there) - wanted
            one_size = StoredTensor(name, dtype, shape).bytes if not there else there[0].bytes
            differences.append(
                HeaderDifference(
                    name,
                    f"{wanted} x {form}" if wanted else "",
                    f"{len(there)} x {form}" if there else "",
                    abs(more),
                    more * one_size,
                )
            )
    differences.sort(key=lambda d: (-abs(d.bytes), d.name))
    return HeaderTotals(len(files), len(every), sum(t.bytes for t in every), tuple(differences))
