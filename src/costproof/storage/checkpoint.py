"""Sum the stored tensors of a checkpoint by part, and compare them with the headers of its files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from costproof.ledger.errors import EXIT_FINDINGS, EXIT_INCOMPLETE, EXIT_OK
from costproof.ledger.schema import FileKind
from costproof.ledger.workload import folded_path
from costproof.storage.headers import FileSection, HeaderTensor
from costproof.storage.mismatches import HeaderMismatch, ModelNames, mismatches
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
    cause: str = ""
    """Known reason; empty: none."""


@dataclass(frozen=True, slots=True)
class HeaderTotals:
    """Totals of a checkpoint according to the headers of its files."""

    files: int
    tensors: int
    bytes: int
    differences: tuple[HeaderDifference, ...]
    sections: tuple[FileSection, ...] = ()
    """Further bytes of GGUF files: keys, the table of tensors, alignment; empty for safetensors."""

    @property
    def unnamed(self) -> tuple[HeaderDifference, ...]:
        """Return the differences without a known cause."""
        return tuple(difference for difference in self.differences if not difference.cause)


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
        """1 if headers differ without a cause, 3 if no header states the size of an undetermined tensor, else 0."""
        if self.headers is not None:
            return EXIT_FINDINGS if self.headers.unnamed else EXIT_OK
        return EXIT_INCOMPLETE if self.undetermined else EXIT_OK


STORED: Final = FileKind(name="costproof/stored", version=(1, 1), type=StoredCheckpoint)
NO_NAMES: Final = ModelNames()


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
    tensors: Iterable[StoredTensor],
    files: Mapping[str, Iterable[HeaderTensor]],
    undetermined: Iterable[str] = (),
    names: ModelNames = NO_NAMES,
) -> HeaderTotals:
    """Return the totals of headers, and their differences from a layout by name pattern, dtype, shape and cause.

    Args:
        undetermined: as for :func:`~costproof.storage.mismatches.mismatches`.
    """
    every = [tensor for inside in files.values() for tensor in inside]
    groups: dict[tuple[str, str, str, str], list[HeaderMismatch]] = {}
    for one in mismatches(tensors, every, names, undetermined):
        expected, got = (f"{t.dtype} {list(t.shape)}" if t is not None else "" for t in (one.expected, one.got))
        groups.setdefault((folded_path(one.key), expected, got, one.cause), []).append(one)
    differences = []
    for (name, expected, got, cause), same in groups.items():
        form, count = expected or got, sum(one.count for one in same)
        missing, extra = groups.get((name, form, "", ""), []), groups.get((name, "", form, ""), [])
        if same in (missing, extra) and sum(one.count for one in missing) == len(extra):  # only under other names
            if same is missing:
                first, other = (min(one.key for one in of) for of in (missing, extra))
                differences.append(HeaderDifference(name, first, other, count, 0))
            continue
        before, after = (f"{count} x {text}" if text else "" for text in (expected, got))
        differences.append(HeaderDifference(name, before, after, count, sum(one.bytes for one in same), cause))
    differences.sort(key=lambda d: (-abs(d.bytes), d.name, d.cause))
    return HeaderTotals(len(files), len(every), sum(t.bytes for t in every), tuple(differences))
