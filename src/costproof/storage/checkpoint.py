"""Sum the stored tensors of a checkpoint by part, and compare them with the headers of its files.

Tensors in the headers are matched with the computed layout, and differences have the names of their causes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from costproof.ledger.errors import EXIT_FINDINGS, EXIT_INCOMPLETE, EXIT_OK
from costproof.ledger.schema import FileKind
from costproof.ledger.workload import folded_path
from costproof.storage.headers import FileSection, HeaderTensor
from costproof.storage.tensors import StoredTensor, StoredTotals

ZERO_BIAS: Final = "a bias that the model does not have, as AutoGPTQ writes zeros"
NO_ZERO_BIAS: Final = "no bias of zeros, which the layout assumes"
GROUP_INDEX: Final = "the group of each column (g_idx), which the layout lacks"
NO_GROUP_INDEX: Final = "no group of each column (g_idx)"
ROTARY: Final = "rotary frequencies, which the class computes"
IGNORED: Final = "a tensor that the class ignores on loading"
TIED: Final = "a copy of a tied tensor"
FURTHER_TOKENS: Final = "a tensor of an MTP module"
_ROTARY_NAME: Final = re.compile(
    r"(^|\.)rotary\w*\.(inv_freq|(cos|sin)_cached)$|^rope_(freqs|factors_long|factors_short)\.weight$"
)
_PACKED: Final = (".qweight", ".weight_packed")
"""Ends of the names of packed integers; their module may have an index of groups and a bias of zeros."""
_INDICES: Final = ("g_idx", "weight_g_idx")


@dataclass(frozen=True, slots=True)
class ModelNames:
    """Tensor names in a checkpoint that a model's class knows: parameters, tied and ignored ones, and MTP prefixes."""

    parameters: frozenset[str] = frozenset()
    """Names of all parameters, including those of tied ones."""
    tied: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Shapes of tied parameters by their further names, under which the checkpoint does not store them."""
    ignored: tuple[str, ...] = ()
    """Regular expressions of names that the class ignores on loading."""
    further_tokens: tuple[str, ...] = ()
    """Prefixes of the names in modules for multi-token prediction (MTP)."""


@dataclass(frozen=True, slots=True)
class HeaderMismatch:
    """A tensor that differs between the headers and the computed layout, or that only one of them has."""

    key: str
    """Name in the layout, with ``*`` for the number of a stacked expert; else the name in the headers."""
    expected: StoredTensor | None
    """Tensor of the layout, or the ``count`` tensors missing in the headers; ``None``: the layout lacks the tensor."""
    got: HeaderTensor | None
    cause: str = ""
    """Known cause of the mismatch; empty: unknown, so the mismatch is a finding."""

    @property
    def count(self) -> int:
        """Return the number of tensors."""
        return int(self.expected.count) if self.got is None and self.expected is not None else 1

    @property
    def bytes(self) -> int:
        """Return the bytes in the headers minus those by the layout."""
        return (self.got.bytes if self.got else 0) - (int(self.expected.bytes) if self.expected else 0)

    @property
    def elements(self) -> int:
        """Return the elements in the headers minus those by the layout."""
        return (self.got.elements if self.got else 0) - (int(self.expected.elements) if self.expected else 0)


class _Open:
    """A tensor of the layout, with the number of its copies that no header has matched."""

    def __init__(self, tensor: StoredTensor) -> None:
        self.one, self.left = replace(tensor, count=1), int(tensor.count)

    def is_form_of(self, tensor: HeaderTensor) -> bool:
        """Return whether the tensor is still unmatched and has the dtype and shape of a tensor in a header."""
        return self.left > 0 and (self.one.dtype, self.one.shape) == (tensor.dtype, tensor.shape)


def mismatches(
    tensors: Iterable[StoredTensor],
    headers: Iterable[HeaderTensor],
    names: ModelNames,
    undetermined: Iterable[str] = (),
) -> Iterator[HeaderMismatch]:
    """Yield the differences of the headers from the layout, tensor by tensor, with their causes.

    A name must be the same; ``experts.*.up_proj`` of the layout stands for each expert of the stack.

    Args:
        undetermined: ends of the names of tensors that the layout has without a size, which match any.
    """
    layout: dict[str, list[_Open]] = {}
    for tensor in tensors:
        layout.setdefault(tensor.name, []).append(_Open(tensor))
    modules = {name.rpartition(".")[0] for name in layout}
    packed = {name.removesuffix(end) for name in layout for end in _PACKED if name.endswith(end)}
    ends = tuple(text.partition(":")[0] for text in undetermined)
    unmatched: list[tuple[str, HeaderTensor]] = []
    for stated in headers:
        if ends and stated.name.endswith(ends):
            continue
        key = _key(stated.name, modules)
        same = next((item for item in layout.get(key, ()) if item.is_form_of(stated)), None)
        if same is None:
            unmatched.append((key, stated))
        else:
            same.left -= 1
    for key, stated in unmatched:
        other = next((item for item in layout.get(key, ()) if item.left), None)
        if other is None:
            yield HeaderMismatch(key, None, stated, _cause_of_extra(key, stated, names, packed))
        else:
            other.left -= 1
            yield HeaderMismatch(key, other.one, stated, _cause_of_form(other.one, stated))
    for key, items in layout.items():
        for item in items:
            if item.left:
                missing = replace(item.one, count=item.left)
                yield HeaderMismatch(key, missing, None, _cause_of_missing(missing, names))


def _key(name: str, modules: set[str]) -> str:
    """Return the name that a tensor in a header has in the layout."""
    parts = name.split(".")
    if ".".join(parts[:-1]) in modules:
        return name
    for i, part in enumerate(parts[:-1]):
        if part.isdigit():
            stack = (*parts[:i], "*", *parts[i + 1 :])
            if ".".join(stack[:-1]) in modules:
                return ".".join(stack)
    return name


def _cause_of_extra(key: str, stated: HeaderTensor, names: ModelNames, packed: set[str]) -> str:
    """Return the known cause of a tensor in a header that the layout does not have; empty for an unknown one."""
    module, _, last = key.rpartition(".")
    if module in packed and last == "bias" and key not in names.parameters:
        return ZERO_BIAS
    if module in packed and last in _INDICES:
        return GROUP_INDEX
    if stated.name.startswith(names.further_tokens):
        return FURTHER_TOKENS
    if names.tied.get(stated.name) == stated.shape:
        return TIED
    if _ROTARY_NAME.search(stated.name):
        return ROTARY
    return IGNORED if any(re.search(pattern, stated.name) for pattern in names.ignored) else ""


def _cause_of_form(expected: StoredTensor, stated: HeaderTensor) -> str:
    """Return why a tensor has another dtype or shape than in the layout; empty if no known cause applies.

    No configuration key states the dtype of scales, zero points and tables.
    """
    if expected.shape != stated.shape or expected.purpose not in ("scale", "zero point", "table"):
        return ""
    return f"a {expected.purpose} in {stated.dtype}, where the layout assumes {expected.dtype}"


def _cause_of_missing(expected: StoredTensor, names: ModelNames) -> str:
    """Return why the headers lack a tensor of the layout; empty if no known cause applies."""
    if expected.purpose == "index":
        return NO_GROUP_INDEX
    return NO_ZERO_BIAS if expected.purpose == "bias" and expected.name not in names.parameters else ""


@dataclass(frozen=True, slots=True)
class StoredPart:
    """Tensors of equal shape and dtype whose names differ only in numbers."""

    name: str
    """Name pattern of the tensors: ``model.layers.*.mlp.down_proj.weight``."""
    dtype: str
    shape: tuple[int, ...]
    purpose: str
    tensors: int
    elements: int
    bytes: int


@dataclass(frozen=True, slots=True)
class HeaderDifference:
    """Tensors of one name pattern that differ between the headers and the computed layout."""

    name: str
    expected: str
    """Dtype and shape in the layout; empty: the layout lacks the tensors."""
    got: str
    """Dtype and shape in the headers; empty: the headers lack the tensors."""
    tensors: int
    bytes: int
    """Bytes in the headers minus bytes in the layout."""
    cause: str = ""
    """Known cause of the difference; empty: unknown."""


@dataclass(frozen=True, slots=True)
class HeaderTotals:
    """Totals of a checkpoint according to the headers of its files."""

    files: int
    tensors: int
    bytes: int
    differences: tuple[HeaderDifference, ...]
    sections: tuple[FileSection, ...] = ()
    """Bytes of GGUF files outside the tensors: keys, the table of tensors, alignment; empty for safetensors."""

    @property
    def unnamed(self) -> tuple[HeaderDifference, ...]:
        """Return the differences without a known cause."""
        return tuple(difference for difference in self.differences if not difference.cause)


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """Size of a checkpoint on disk, computed from its configuration and read from its headers."""

    target: str
    method: str
    """Quantisation method; empty: the checkpoint is not quantised."""
    formats: tuple[str, ...]
    """Storage formats of the linear layers."""
    params: int
    """Logical parameters: elements of the model's parameters before they were quantised."""
    next_token_modules: int
    """Number of counted modules that predict further tokens (MTP)."""
    totals: StoredTotals
    parts: tuple[StoredPart, ...]
    assumed: tuple[str, ...] = ()
    """Assumptions of the layout that follow from the producing tool, because no configuration key states them."""
    undetermined: tuple[str, ...] = ()
    """Tensors besides the totals whose size the configuration does not determine."""
    largest_matrix: int = 0
    """Number of weights of the largest quantised tensor."""
    buffer_bytes: int = 0
    """Stored bytes of buffers, as opposed to parameters."""
    left_out: tuple[str, ...] = ()
    """Tensors that the checkpoint may contain and the totals omit."""
    headers: HeaderTotals | None = None
    """Totals of the files' headers; ``None``: no files were given."""

    def table_rows(self) -> tuple[StoredPart, ...]:
        """Return the rows of the table: a row per group of tensors."""
        return self.parts

    @property
    def exit_code(self) -> int:
        """Exit code: 1 if headers differ without a known cause, 3 if a size is undetermined without headers, else 0."""
        if self.headers is not None:
            return EXIT_FINDINGS if self.headers.unnamed else EXIT_OK
        return EXIT_INCOMPLETE if self.undetermined else EXIT_OK


STORED: Final = FileKind(name="costproof/stored", version=(1, 1), type=StoredCheckpoint)
NO_NAMES: Final = ModelNames()


def parts_of(tensors: Iterable[StoredTensor]) -> tuple[StoredPart, ...]:
    """Group tensors whose names differ only in numbers; return the groups, the largest first."""
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
    """Return the totals of the headers, and their differences from the layout by name pattern, dtype, shape and cause.

    Args:
        undetermined: as for :func:`mismatches`.
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
