"""Match the tensors in the headers of a checkpoint with its computed layout, and name the causes of differences."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from costproof.storage.headers import HeaderTensor
from costproof.storage.tensors import StoredTensor

ZERO_BIAS: Final = "a bias that the model does not have, as AutoGPTQ writes zeros"
NO_ZERO_BIAS: Final = "no bias of zeros, which the layout assumes"
GROUP_INDEX: Final = "the group of each column (g_idx), which the layout lacks"
NO_GROUP_INDEX: Final = "no group of each column (g_idx)"
ROTARY: Final = "rotary frequencies, which the class computes"
IGNORED: Final = "a tensor that the class ignores on loading"
TIED: Final = "a copy of a tied tensor"
FURTHER_TOKENS: Final = "a tensor of the modules for further tokens"
_ROTARY_NAME: Final = re.compile(
    r"(^|\.)rotary\w*\.(inv_freq|(cos|sin)_cached)$|^rope_(freqs|factors_long|factors_short)\.weight$"
)
_PACKED: Final = (".qweight", ".weight_packed")
"""Last parts of the names of packed integers, whose module may have an index of groups and a bias of zeros."""
_INDICES: Final = ("g_idx", "weight_g_idx")


@dataclass(frozen=True, slots=True)
class ModelNames:
    """Names in a checkpoint that the class of a model has, ties, ignores, or has for further tokens."""

    parameters: frozenset[str] = frozenset()
    """Names of all parameters, with those of tied ones."""
    tied: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Further name of a parameter that the checkpoint stores once -> its shape."""
    ignored: tuple[str, ...] = ()
    """Regular expressions of names that the class ignores on loading."""
    further_tokens: tuple[str, ...] = ()
    """Beginnings of the names of modules for further tokens."""


@dataclass(frozen=True, slots=True)
class HeaderMismatch:
    """A tensor that headers state unlike the layout, or that only one of them has."""

    key: str
    """Name by the layout, where an expert of a stack has ``*`` for its number; else as in the headers."""
    expected: StoredTensor | None
    """``None``: the layout does not have it. Its ``count`` tensors are missing if :attr:`got` is ``None``."""
    got: HeaderTensor | None
    cause: str = ""
    """Known reason; empty: none, so the mismatch is a finding."""

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
    """A tensor of the layout, with the number of those that no header has matched."""

    def __init__(self, tensor: StoredTensor) -> None:
        self.one, self.left = replace(tensor, count=1), int(tensor.count)

    def is_form_of(self, tensor: HeaderTensor) -> bool:
        """Return whether a tensor of the layout is still unmatched and has the dtype and shape of one in a header."""
        return self.left > 0 and (self.one.dtype, self.one.shape) == (tensor.dtype, tensor.shape)


def mismatches(
    tensors: Iterable[StoredTensor],
    headers: Iterable[HeaderTensor],
    names: ModelNames,
    undetermined: Iterable[str] = (),
) -> Iterator[HeaderMismatch]:
    """Yield the differences of headers from a layout, tensor by tensor, with their causes.

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
    """Return the name that the layout would have for a tensor in a header."""
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
    """Return why a tensor has another dtype or shape; empty if no known cause applies.

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
