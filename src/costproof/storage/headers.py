"""Read the names, dtypes and shapes of a checkpoint's tensors from the headers of safetensors and GGUF files."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any, Final

from costproof.ledger.errors import BadInput, Recount, check_recounts
from costproof.ledger.files import json_in, read_json
from costproof.storage.tensors import BLOCKS, StoredTensor, require_dtype

_LONGEST_HEADER: Final = 2**25
"""Limit on the bytes of a header; DeepSeek-V3's 163 headers have 12 million bytes in all."""
_MOST_TENSORS: Final = 2**21
_MODEL: Final = "model.safetensors"

GGUF_TYPES: Final[dict[int, str]] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K",
    12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip
"""Name of a GGUF tensor type, by its number in the file (constants of gguf-py)."""
_ALIGNMENT: Final = "general.alignment"
_USUAL_ALIGNMENT: Final = 32
_MOST_ALIGNMENT: Final = 2**20


@dataclass(frozen=True, slots=True)
class FileSection:
    """A section of a file without tensor data, with its bytes."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class HeaderTensor:
    """A tensor as described in the header of a file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    """Bytes of the tensor's data: in safetensors the difference of its offsets, in GGUF those of its blocks."""

    @property
    def elements(self) -> int:
        """Return the number of stored elements; a word of packed integers counts as one element."""
        return prod(self.shape)


def read_header(file: Path) -> tuple[HeaderTensor, ...]:
    """Read the tensors that the header of a safetensors or GGUF file describes; the tensor data may be missing.

    Raises:
        BadInput: it is not such a file, or its header contradicts itself.
        Incomplete: a dtype in it has no known size.
    """
    if not file.is_file():
        raise _no_header(file, "not a regular file")
    try:
        with file.open("rb") as stream:
            start = stream.read(4)
            stream.seek(0)
            found = _gguf(stream, file)[0] if start == b"GGUF" else tuple(_safetensors(stream, file))
    except (OSError, ValueError, struct.error, RecursionError, UnicodeDecodeError, OverflowError) as error:
        raise _no_header(file, str(error)[:80]) from error
    twice = next((name for name, n in Counter(t.name for t in found).items() if n > 1), None)
    if twice is not None:
        raise BadInput("a tensor is in a header twice", where=str(file), got=twice[:80])
    return found


def read_checkpoint(folder: Path) -> dict[str, tuple[HeaderTensor, ...]]:
    """Read the headers of all checkpoint files in a folder; return the tensors of each file.

    As in transformers, ``model.safetensors`` comes first, then the shards of ``model.safetensors.index.json``; else
    those of another index, all safetensors, or all GGUF files.

    Raises:
        BadInput: there are none, a shard or a tensor of the index is missing, or a tensor is in two files.
        Incomplete: as :func:`read_header`.
    """
    indices = sorted(
        folder.glob("*.safetensors.index.json"), key=lambda file: (file.name != f"{_MODEL}.index.json", file)
    )
    names: Any = {}
    if (folder / _MODEL).is_file():
        files = [folder / _MODEL]
    elif indices:
        index = read_json(indices[0], what="index of the weights")
        names = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(names, dict):
            raise BadInput(
                "this is not the index of a safetensors checkpoint", where=str(indices[0]), expected="a weight_map"
            )
        files = [folder / name for name in sorted({Path(str(name)).name for name in names.values()})]
    else:
        files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.gguf"))
    if not files:
        raise BadInput("the folder holds no checkpoint", where=str(folder), expected="*.safetensors or *.gguf")
    found: dict[str, tuple[HeaderTensor, ...]] = {}
    where: dict[str, str] = {}
    for file in files:
        if not file.is_file():
            raise BadInput("a shard is missing", where=str(file), fix="add it; its header alone is enough")
        found[file.name] = read_header(file)
        for tensor in found[file.name]:
            if where.setdefault(tensor.name, file.name) != file.name:
                got = f"{where[tensor.name]} and {file.name}"
                raise BadInput(
                    "a tensor is in two shards", where=tensor.name, expected="one shard for each tensor", got=got
                )
    for name, shard in names.items():
        if where.get(name) != Path(str(shard)).name:
            got = where.get(name, "in none of the shards")
            raise BadInput("the index names a wrong shard", where=name[:80], expected=str(shard)[:80], got=got)
    return found


def _no_header(file: Path, why: str) -> BadInput:
    return BadInput("this is not the header of a checkpoint", where=str(file), got=why, expected="safetensors or GGUF")


def header_object(stream: IO[bytes], file: Path) -> dict[str, Any]:
    """Return the header of a safetensors file without its metadata: eight bytes of length, then a JSON object.

    Raises:
        BadInput: the file does not begin with such a header, or the header is too large.
    """
    length = int.from_bytes(stream.read(8), "little")
    if not 2 <= length <= _LONGEST_HEADER:
        raise _no_header(file, f"a header of {length} bytes")
    data = json_in(stream.read(length), where=str(file), what="header of a checkpoint")
    if not isinstance(data, dict) or len(data) > _MOST_TENSORS:
        raise _no_header(file, "no object of tensors")
    return {name: value for name, value in data.items() if name != "__metadata__"}


def _safetensors(stream: IO[bytes], file: Path) -> Iterator[HeaderTensor]:
    """Yield the tensors that the header of a safetensors file describes.

    Offsets must agree with dtype and shape, and the tensors must be contiguous.
    """
    end = 0
    tensors = header_object(stream, file).items()
    for name, value in sorted(tensors, key=lambda item: _offsets(item[1], file)):
        first, last = _offsets(value, file)
        dtype, shape = str(value.get("dtype")), value.get("shape")
        if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
            raise _no_header(file, f"{name[:60]} without a shape")
        stored = StoredTensor(name, require_dtype(dtype, f"{name[:60]} in {file.name}"), tuple(shape))
        if last - first != stored.bytes or first != end:
            got = f"bytes {first} to {last} of {name[:60]}"
            raise BadInput(
                "the offsets of a tensor contradict its shape, or leave a gap",
                where=str(file),
                expected=f"bytes {end} to {end + stored.bytes}",
                got=got,
            )
        end = last
        yield HeaderTensor(name, dtype, tuple(shape), stored.bytes)


def _offsets(value: Any, file: Path) -> tuple[int, int]:
    found = value.get("data_offsets") if isinstance(value, dict) else None
    if not (isinstance(found, list) and len(found) == 2 and all(type(n) is int for n in found)):
        raise _no_header(file, "a tensor without offsets")
    return found[0], found[1]


def gguf_sections(file: Path) -> tuple[FileSection, ...]:
    """Return the bytes of a GGUF file outside the tensor data: keys, the table of tensors, and alignment.

    Data begin at a multiple of ``general.alignment`` (32 bytes by default), and each tensor is filled up to one.

    Raises:
        BadInput: as :func:`read_header`, or the file is longer than all of that.
    """
    with file.open("rb") as stream:
        tensors, sections = _gguf(stream, file)
    most = sum(tensor.bytes for tensor in tensors) + sum(section.bytes for section in sections)
    if (size := file.stat().st_size) > most:
        raise BadInput("the file has bytes outside of its tensors", where=str(file), expected=f"at most {most:,}",
                       got=f"{size:,}")  # fmt: skip
    return sections


def _gguf(stream: IO[bytes], file: Path) -> tuple[tuple[HeaderTensor, ...], tuple[FileSection, ...]]:
    """Read the tensors and the other sections of a GGUF file (version 2 or 3, little-endian); skip metadata values."""
    reader = _GgufReader(stream)
    stream.read(4)
    version, tensors, pairs = reader.number("I"), reader.number("Q"), reader.number("Q")
    if version not in (2, 3) or max(tensors, pairs) > _MOST_TENSORS:
        raise _no_header(file, f"GGUF version {version} with {tensors} tensors and {pairs} keys")
    alignment, sections = _USUAL_ALIGNMENT, [FileSection("version and counts", stream.tell())]
    for _ in range(pairs):
        before = stream.tell()
        key, kind = reader.text(), reader.number("I")
        if key == _ALIGNMENT and kind == _UINT32:
            alignment = reader.number("I")
        else:
            reader.skip_value(kind)
        sections.append(FileSection(f"key {key}", stream.tell() - before))
    if not 0 < alignment <= _MOST_ALIGNMENT:
        raise _no_header(file, f"an alignment of {alignment} bytes")
    before, found, starts = stream.tell(), [], [0]
    for _ in range(tensors):
        name = reader.text()
        dimensions = reader.number("I")
        if dimensions > 8:
            raise _no_header(file, f"{name[:60]} with {dimensions} dimensions")
        shape = tuple(reader.number("Q") for _ in range(dimensions))
        kind, offset = reader.number("I"), reader.number("Q")
        if kind not in GGUF_TYPES:
            require_dtype(f"GGUF type {kind}", f"{name[:60]} in {file.name}")
        dtype = GGUF_TYPES[kind]
        weights, _ = BLOCKS.get(dtype, (1, 0))
        if shape and shape[0] % weights:
            raise BadInput(
                "a row of a quantised tensor is not a whole number of blocks",
                where=f"{name[:60]} in {file.name}",
                expected=f"a multiple of {weights} for {dtype}",
                got=shape[0],
            )
        found.append(HeaderTensor(name, dtype, shape[::-1], StoredTensor(name, dtype, shape).bytes))
        if offset != starts[-1]:
            raise BadInput("a tensor does not begin where the one before it ends", where=f"{name[:60]} in {file.name}",
                           expected=f"byte {starts[-1]:,} of the data", got=f"{offset:,}")  # fmt: skip
        starts.append(-(-(offset + found[-1].bytes) // alignment) * alignment)
    sections.append(FileSection("table of tensors", stream.tell() - before))
    filled = -stream.tell() % alignment + sum(-tensor.bytes % alignment for tensor in found)
    sections.append(FileSection(f"alignment to {alignment} bytes", filled))
    check_recounts(_section_recounts(sections, found, stream.tell(), starts[-1], alignment))
    return tuple(found), tuple(sections)


def _section_recounts(
    sections: Iterable[FileSection], tensors: Iterable[HeaderTensor], position: int, end: int, alignment: int
) -> Iterator[Recount]:
    """Yield second counts of the bytes before the data, and of the whole file, by places that the file itself states.

    Args:
        position: byte at which the table of tensors ends.
        end: byte of the data at which the last tensor ends, filled up.
    """
    before, after = 0, 0
    for section in sections:
        after += section.bytes
        before += 0 if section.name.startswith("alignment to") else section.bytes
    yield Recount("checkpoint", "sections of a GGUF file", "bytes before the data", before, position)
    data = -(-position // alignment) * alignment
    every = after + sum(tensor.bytes for tensor in tensors)
    yield Recount("checkpoint", "sections and tensors of a GGUF file", "bytes", every, data + end)


_UINT32: Final = 4
"""Number of the value type "32-bit unsigned integer" in GGUF metadata."""


class _GgufReader:
    """Reader of values in a GGUF file, which checks each length against a limit."""

    _SIZES: Final = (1, 1, 2, 2, 4, 4, 4, 1, None, None, 8, 8, 8)
    """Bytes of a metadata value by its type; types 8 (text) and 9 (array) have variable lengths."""
    _LONGEST: Final = 2**24

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream

    def number(self, code: str) -> int:
        """Read an unsigned integer; ``I`` has 32 bits, ``Q`` 64."""
        size = struct.calcsize(f"<{code}")
        found: int = struct.unpack(f"<{code}", self.stream.read(size))[0]
        return found

    def text(self) -> str:
        """Read a length-prefixed string."""
        length = self.number("Q")
        if length > self._LONGEST:
            raise ValueError(f"a text of {length} bytes")
        return self.stream.read(length).decode("utf-8", "replace")

    def skip_value(self, kind: int, depth: int = 0) -> None:
        """Skip a metadata value."""
        if kind == 8:
            self.text()
        elif kind == 9:
            inner, length = self.number("I"), self.number("Q")
            if length > self._LONGEST or depth > 4:
                raise ValueError(f"an array of {length} values")
            if inner < len(self._SIZES) and (size := self._SIZES[inner]):
                self.stream.seek(size * length, 1)
                return
            for _ in range(length):
                self.skip_value(inner, depth + 1)
        elif kind < len(self._SIZES) and (size := self._SIZES[kind]):
            self.stream.seek(size, 1)
        else:
            raise ValueError(f"a value of type {kind}")
