"""Use the FlashAttention package on the meta device, even without CUDA or its compiled kernels.

The package registers its operators with torch, each with a kernel for meta tensors. Importing it needs the compiled
module ``flash_attn_2_cuda``, and transformers offers it only where there is CUDA; neither matters on meta.
:func:`on_meta` provides both for the time of a block. The operators have kernels only for CUDA and meta, so without
CUDA they cannot compute values.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

from costproof.ledger.environment import installed
from costproof.ledger.errors import BadInput, CostproofError, Incomplete
from costproof.ledger.workload import Dtype
from costproof.patches.patch import Patch, patched

FLASH: Final = "flash_attention_2"
"""Name of FlashAttention 2 as an attention implementation of transformers."""

DISTRIBUTION: Final = "flash-attn"
PACKAGE: Final = "flash_attn"
COMPILED: Final = "flash_attn_2_cuda"
GREATEST_HEAD: Final = 256
"""Largest head dimension that the kernels support."""

WHOLE_HEADS: Final = 8
"""The package pads the head dimension to a multiple of this number."""

OLDEST: Final = (2, 8)
"""Oldest supported release: since 2.7 operators are registered with torch; the rules know the schemas of 2.8."""

WITHOUT_CUDA: Final = (
    "pip install einops packaging setuptools wheel && "
    "FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE FLASH_ATTENTION_FORCE_BUILD=TRUE "
    "pip install --no-build-isolation --no-cache-dir --no-deps flash-attn"
)
"""Command that installs the package without kernels in seconds; pip's cache is off, as it would reuse this build."""

_LOADED: Final = (
    "_loaded_implementation", "_flash_fn", "_flash_varlen_fn", "_flash_with_kvcache_fn", "_pad_fn", "_unpad_fn",
    "_process_flash_kwargs_fn", "_process_with_kvcache_kwargs_fn",
)  # fmt: skip
"""Global variables in which transformers remembers the attention implementation that it loaded."""

_kept: dict[str, ModuleType] = {}
"""Modules of the package imported beside a stand-in; a second import would register the operators again."""


def compiled() -> bool:
    """Return whether the compiled kernels of FlashAttention can be loaded."""
    if isinstance(sys.modules.get(COMPILED), _StandIn):
        return False
    try:
        importlib.import_module(COMPILED)
    except ImportError:
        return False
    return True


def require_kernels() -> None:
    """Check that the FlashAttention package can compute values, not only shapes.

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
            "toolkit, or --run meta for shapes only",
        )


def notes(beside: str = "") -> tuple[str, ...]:
    """Return notes on the FlashAttention package that ran, and on the code that was replaced to run it.

    Args:
        beside: the attention implementation of the parts outside the decoder.
    """
    found = [f"attention: flash-attn {installed(DISTRIBUTION)} in the decoder" + (f"; {beside}" if beside else "")]
    if not compiled():
        found.append(
            f"flash-attn ran on shapes only: {COMPILED} is missing, an empty module stood in for it while "
            "the model was built and run, and transformers' question for CUDA was answered with yes"
        )
    return tuple(found)


def problems(dtype: Dtype, head_dim: int) -> list[CostproofError]:
    """Return errors for a dtype or head dimension that FlashAttention's kernels do not support."""
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
    """Let transformers use FlashAttention on the meta device while the block runs.

    Raises:
        Incomplete: the package is missing or too old, or this version of transformers loads it differently.
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
            stack.enter_context(patched(*PATCHES))
            stack.enter_context(_available())
        except (AttributeError, KeyError) as error:
            raise Incomplete(
                "the installed transformers loads FlashAttention in a way that is not known here",
                where="transformers.modeling_flash_attention_utils",
                got=f"transformers {installed('transformers')}, no {error}",
                fix="pip install transformers==5.23.0, or leave --attention at sdpa",
            ) from error
        yield


def _answer(value: bool) -> Callable[..., bool]:
    return lambda *args, **kwargs: value


_LOADING: Final = "transformers.modeling_flash_attention_utils"
_TEST: Final = "models/test_flash_attention.py"
PATCHES: Final = (
    *(
        Patch(
            f"{_LOADING}:{name}",
            lambda original: None,
            "it may hold another implementation that was loaded before, and would hold this one afterwards",
            _TEST,
        )
        for name in _LOADED
    ),
    Patch(
        f"{_LOADING}:is_flash_attn_2_available",
        lambda original: _answer(True),
        "it requires CUDA, which operators on meta do not need",
        _TEST,
    ),
    Patch(
        f"{_LOADING}:_is_packed_sequence",
        lambda original: _answer(False),
        "it checks by position values whether a row holds several sequences; here no row does",
        _TEST,
    ),
)


@contextmanager
def _available() -> Iterator[None]:
    """Make transformers' check for CUDA succeed while the block runs."""
    from unittest import mock

    import transformers.modeling_flash_attention_utils as loading

    table = loading.FLASH_ATTENTION_COMPATIBILITY_MATRIX[2]
    with mock.patch.dict(table, {"general_availability_check": _answer(True)}):
        yield


@contextmanager
def importable(device: str) -> Iterator[None]:
    """Make the FlashAttention package importable without kernels while the block runs, for modules on meta.

    Args:
        device: type of the device of the module's parameters.
    """
    with _stand_in() if device == "meta" and _lacks_kernels() else nullcontext():
        yield


@cache
def _lacks_kernels() -> bool:
    return not missing() and not compiled()


class _StandIn(ModuleType):
    """Empty module in place of FlashAttention's compiled one."""

    def __init__(self) -> None:
        super().__init__(COMPILED, "An empty stand-in: shapes need no kernels.")
        self.__spec__ = ModuleSpec(COMPILED, None)


@contextmanager
def _stand_in() -> Iterator[None]:
    """Make the package importable with an empty module in place of its compiled one while the block runs."""
    before = _package()
    sys.modules.update(_kept)
    sys.modules[COMPILED] = _StandIn()
    try:
        yield
    finally:
        added = {name: module for name, module in _package().items() if name not in before}
        _kept.update(added)
        for name in added:
            del sys.modules[name]
        sys.modules.update(before)


def _package() -> dict[str, ModuleType]:
    alike = [name for name in sys.modules if name.startswith(PACKAGE)]  # few of thousands
    return {n: sys.modules[n] for n in alike if n in (PACKAGE, COMPILED) or n.startswith(PACKAGE + ".")}


def missing() -> str:
    """Return why the installed FlashAttention package cannot be used, or an empty text; imports nothing."""
    version = installed(DISTRIBUTION)
    if version is None:
        return "flash-attn is not installed"
    if tuple(int(n) for n in re.findall(r"\d+", version)[:2]) < OLDEST:
        return f"flash-attn {version} is too old"
    return f"flash-attn {version} is there without einops, which it imports" if installed("einops") is None else ""
