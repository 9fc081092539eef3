"""Fourier transforms, by the usual measure of their work: 5 n log2 n for n complex numbers, half of it for real ones.

A transform over several dimensions is one over each of them in turn. The logarithm is rounded up, so that numbers
stay whole: exact for powers of two, and for other lengths a convention. It is vector work: no product of matrices.
A length that is a symbol has no such number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from costproof.opgraph.graph import OpCall, Size
from costproof.opgraph.rules.cost import OpCost, Uncountable
from costproof.opgraph.rules.operands import attr, result, tensor
from costproof.opgraph.rules.registry import operator_rule
from costproof.opgraph.rules.sizes import prod, total

_KINDS: Final = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
_KEEP: Final = -1
"""A length that says: the one that is there."""


def transform_flops(shape: Sequence[Size], dims: Sequence[int], *, real: bool) -> Size:
    """Transforms of a tensor of this shape over these dimensions; the half of it, rounded up, of real numbers."""
    lengths = [shape[d] for d in dims]
    if not all(isinstance(n, int) for n in lengths):
        raise Uncountable("a Fourier transform over a length that is a symbol")
    logarithm = sum((n - 1).bit_length() for n in lengths if isinstance(n, int))
    rest = prod(size for d, size in enumerate(shape) if d not in {d % len(shape) for d in dims})
    each = 5 * logarithm * int(prod(lengths))
    return prod((-(-each // 2) if real else each, rest))


@operator_rule(*(f"fft_{kind}{dims}" for kind in _KINDS for dims in ("", "2", "n")), "_fft_c2c", "_fft_r2c", "_fft_c2r")
def transform(op: OpCall) -> OpCost:
    """5 n log2 n per transform of n complex numbers, half of it where one side is real; vector work."""
    before, after = tensor(op, "self", 0), result(op)
    real = before.dtype.startswith("complex") != after.dtype.startswith("complex")
    # The real side has all n numbers, the complex one half of them. A given length is that of the real side, too.
    shape = list((before if real and after.dtype.startswith("complex") else after).shape)
    dims, lengths = _dims(op, len(shape))
    if real and after.dtype.startswith("complex"):
        for d, n in zip(dims, lengths or (), strict=False):
            shape[d] = shape[d] if n == _KEEP else n
    return OpCost(vector=transform_flops(shape, dims, real=real))


def _dims(op: OpCall, rank: int) -> tuple[list[int], Sequence[Size] | None]:
    """The dimensions of a transform, and their lengths if they are given."""
    lengths, dims = attr(op, "n", "s"), attr(op, "dim")
    lengths = [lengths] if lengths is not None and not isinstance(lengths, list | tuple) else lengths
    name = op.name.split(".")[1] if op.name.startswith("aten.") else op.name
    if dims is None:
        each = len(lengths) if lengths is not None else rank
        dims = range(rank - each, rank) if name.endswith("n") else (-2, -1) if name.endswith("2") else (-1,)
    elif isinstance(dims, int):
        dims = (dims,)
    return [d % rank for d in dims], lengths


@operator_rule("stft")
def stft(op: OpCall) -> OpCost:
    """A transform of every frame, and 1 per element of it for the window."""
    signal, after = tensor(op, "self", 0), result(op)
    if not after.dtype.startswith("complex"):
        raise Uncountable("a transform of frames that returns pairs of real numbers")
    length = attr(op, "n_fft")
    frames = prod((*signal.shape[:-1], after.shape[-1]))
    real = not signal.dtype.startswith("complex")
    # A window that is shorter than a frame, or only said to be, is filled up with zeros.
    windowed = "window" in op.names or attr(op, "win_length", default=length) != length
    window = prod((frames, length)) if windowed else 0
    return OpCost(vector=total((transform_flops((frames, length), (1,), real=real), window)))


@operator_rule("fft_fftshift", "fft_ifftshift")
def shift(op: OpCall) -> OpCost:
    """0 FLOP: elements change places."""
    return OpCost(role="move")


@operator_rule("fft_fftfreq", "fft_rfftfreq", "hann_window", "hamming_window", "blackman_window", "bartlett_window")
def frequencies(op: OpCall) -> OpCost:
    """0: a tensor is made without reading one."""
    return OpCost(role="factory", reads=())
