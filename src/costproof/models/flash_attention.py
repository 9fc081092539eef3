"""FlashAttention's own Python package on shapes alone, also where its kernels are not compiled.

The package registers its operators with torch, each with a kernel for shapes. Importing it needs the
compiled module ``flash_attn_2_cuda``, and transformers offers it only where there is CUDA; neither matters
on the meta device. :func:`on_meta` arranges both for the time of a block. The operators have kernels for
CUDA and for shapes and none other, so nothing here can compute a number.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

from costproof.ledger.environment import installed
from costproof.ledger.errors import BadInput, CostproofError, Incomplete
from costproof.ledger.workload import Dtype

FLASH: Final = "flash_attention_2"
"""transformers' name of this implementation."""

DISTRIBUTION: Final = "flash-attn"
PACKAGE: Final = "flash_attn"
COMPILED: Final = "flash_attn_2_cuda"
GREATEST_HEAD: Final = 256
"""Greatest head dimension that the kernels take."""

OLDEST: Final = (2, 8)
"""Registers its operators with torch, as releases since 2.7 do, under the schemas that the rules know."""

WITHOUT_CUDA: Final = (
    "pip install einops packaging setuptools wheel && "
    "FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE FLASH_ATTENTION_FORCE_BUILD=TRUE "
    "pip install --no-build-isolation --no-cache-dir --no-deps flash-attn"
)
"""Installs the package without its kernels, in seconds; past the cache, where others would find it for a whole one."""

# What transformers remembers of the implementation that it loaded.
_LOADED: Final = (
    "_loaded_implementation", "_flash_fn", "_flash_varlen_fn", "_flash_with_kvcache_fn", "_pad_fn", "_unpad_fn",
    "_process_flash_kwargs_fn", "_process_with_kvcache_kwargs_fn",
)  # fmt: skip

_kept: dict[str, ModuleType] = {}
"""The package as it was imported beside a stand-in. Importing it twice would register its operators twice."""


def compiled() -> bool:
    """Whether the kernels can be loaded. In a block of :func:`on_meta` the stand-in does not count."""
    if isinstance(sys.modules.get(COMPILED), _StandIn):
        return False
    try:
        importlib.import_module(COMPILED)
    except ImportError:
        return False
    return True


def require_kernels() -> None:
    """Check that the package can compute numbers.

    Raises:
        Incomplete: its kernels are not compiled.
    """
    if not compiled():
        raise Incomplete(
            "FlashAttention computes no numbers without its compiled kernels",
            where=f"--attention {FLASH} --run cuda",
            expected=f"the module {COMPILED}",
            got="it is missing",
            fix="pip install --no-build-isolation --force-reinstall --no-deps flash-attn where there is a CUDA "
            "toolkit, or --run meta for shapes alone",
        )


def notes(beside: str = "") -> tuple[str, ...]:
    """What ran, and what was arranged for it here, for the record.

    Args:
        beside: what the parts of the model run that are not decoder.
    """
    found = [f"attention: flash-attn {installed(DISTRIBUTION)} in the decoder" + (f"; {beside}" if beside else "")]
    if not compiled():
        found.append(
            f"flash-attn ran on shapes alone: {COMPILED} is missing, an empty module stood in for it while "
            "the model was built and run, and transformers' question for CUDA was answered with yes"
        )
    return tuple(found)


def problems(dtype: Dtype, head_dim: int) -> list[CostproofError]:
    """What keeps the kernels from running a decoder."""
    no_kernels, where = "FlashAttention has no kernels for", f"--attention {FLASH}"
    found: list[CostproofError] = []
    if dtype == "float32":
        wanted = "--dtype bfloat16 or float16"
        found.append(BadInput(f"{no_kernels} this dtype", where=where, expected=wanted, got=dtype))
    if head_dim > GREATEST_HEAD:
        wanted, fix = f"at most {GREATEST_HEAD} dimensions", "leave --attention at sdpa"
        found.append(BadInput(f"{no_kernels} heads this wide", where=where, expected=wanted, got=head_dim, fix=fix))
    return found


@contextmanager
def on_meta() -> Iterator[None]:
    """Let transformers use the package on the meta device for the time of the block; all of it is undone.

    Raises:
        Incomplete: the package is missing or too old, or this transformers loads it in another way.
    """
    why = missing()
    if why:
        raise Incomplete(
            "FlashAttention cannot be traced without its package",
            where=f"--attention {FLASH}",
            expected=f"flash-attn {'.'.join(map(str, OLDEST))} or newer",
            got=why,
            fix=f"{WITHOUT_CUDA} (shapes need no kernels), or leave --attention at sdpa",
        )
    with ExitStack() as stack:
        if not compiled():
            stack.enter_context(_stand_in())
        try:
            for patch in _patches():
                stack.enter_context(patch)
        except (AttributeError, KeyError) as error:
            raise Incomplete(
                "the installed transformers loads FlashAttention in a way that is not known here",
                where="transformers.modeling_flash_attention_utils",
                got=f"transformers {installed('transformers')}, no {error}",
                fix="pip install transformers==5.23.0, or leave --attention at sdpa",
            ) from error
        yield


def _patches() -> list[AbstractContextManager[Any]]:
    """What transformers is told for the time of a block."""
    from unittest import mock

    import transformers.modeling_flash_attention_utils as loading

    def answer(value: bool) -> Callable[..., bool]:
        return lambda *args, **kwargs: value

    return [
        *(mock.patch.object(loading, name, None) for name in _LOADED),
        mock.patch.object(loading, "is_flash_attn_2_available", answer(True)),
        mock.patch.dict(loading.FLASH_ATTENTION_COMPATIBILITY_MATRIX[2], {"general_availability_check": answer(True)}),
        # Whether one row holds several sequences it reads off the values of positions. Here no row does.
        mock.patch.object(loading, "_is_packed_sequence", answer(False)),
    ]


class _StandIn(ModuleType):
    """A compiled module without anything in it."""

    def __init__(self) -> None:
        super().__init__(COMPILED, "An empty stand-in: shapes need no kernels.")
        self.__spec__ = ModuleSpec(COMPILED, None)


@contextmanager
def _stand_in() -> Iterator[None]:
    """The package beside an empty compiled module; afterwards neither can be seen in ``sys.modules``."""
    before = _package()
    sys.modules.update(_kept)
    sys.modules[COMPILED] = _StandIn()
    try:
        yield
    finally:
        _kept.update({name: module for name, module in _package().items() if name not in before})
        for name in _package().keys() - before.keys():
            del sys.modules[name]
        sys.modules.update(before)


def _package() -> dict[str, ModuleType]:
    names = [n for n in sys.modules if n in (PACKAGE, COMPILED) or n.startswith(PACKAGE + ".")]
    return {n: sys.modules[n] for n in names}


def missing() -> str:
    """What is wrong with the installed package, in a clause; empty if it can be used. Imports nothing."""
    version = installed(DISTRIBUTION)
    if version is None:
        return "flash-attn is not installed"
    if tuple(int(n) for n in re.findall(r"\d+", version)[:2]) < OLDEST:
        return f"flash-attn {version} is too old"
    return f"flash-attn {version} is there without einops, which it imports" if installed("einops") is None else ""
