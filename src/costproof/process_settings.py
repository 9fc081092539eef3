"""List the process and thread settings that foreign code may change, each with its getter and setter.

:class:`costproof.saved_settings.SavedSettings` restores them, for :mod:`costproof.foreign` and after the forward of a
counted module. Settings of torch and NumPy are listed once these are imported; nothing is imported here for them.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` makes an enum member of each answer, which is slow
import ctypes
import gc
import locale
import logging
import operator
import os
import random
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import is_, is_not
from typing import Any, Final

if sys.platform != "win32":
    import resource

UNKNOWN: Final = object()
"""Value of a setting that cannot be read."""
_OF_SYS: Final = (
    *("stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__"),
    *("excepthook", "displayhook", "unraisablehook", "breakpointhook"),
    *("argv", "path", "meta_path", "path_hooks", "path_importer_cache", "modules", "dont_write_bytecode"),
)
"""Names of :mod:`sys` whose values the calling program may have set: streams, hooks, arguments, import paths."""
_PRECISIONS: Final = (
    ("generic", "all"), ("cuda", "all"), ("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn"),
    ("mkldnn", "all"), ("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn"),
)  # fmt: skip
"""Backends and operations for which torch has a float32 precision setting, general ones first."""
_REDUCED: Final = (
    "allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction", "allow_fp16_accumulation",
)  # fmt: skip
"""Attributes of ``torch.backends.cuda.matmul`` that allow less precise accumulation in matrix products."""
_WORD: Final = ctypes.sizeof(ctypes.c_void_p)
_GLOBAL_HOOKS: Final = "torch.nn.modules.module"
"""Module with the hooks for all torch modules, whose functions torch and TorchLens replace themselves."""


@dataclass(frozen=True, slots=True)
class ProcessSetting:
    """A setting of the process or thread: name, getter, setter and comparison."""

    name: str
    get: Callable[[], Any]
    put: Callable[[Any], object]
    same: Callable[[Any, Any], bool] | None = operator.eq
    """Compares the saved with the current value; ``None`` for random number states, which are always restored."""
    of_thread: bool = False
    counted: bool = False
    """Whether a change of this setting can change the results of a module."""

    def read(self) -> Any:
        """Return the value, or a sentinel if it cannot be read or its library is not imported."""
        try:
            return self.get()
        except Exception:
            return UNKNOWN


def process_settings() -> Iterator[ProcessSetting]:
    """Yield all settings that this process has."""
    yield from _OF_PYTHON
    if threading.current_thread() is threading.main_thread():
        yield from _OF_MAIN_THREAD
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if hasattr(numpy, "random"):
        yield from _of_numpy(numpy)
    if hasattr(torch, "get_rng_state"):
        yield from _of_torch(torch)


def _attribute(owner: Any, name: str) -> ProcessSetting:
    get, put = partial(getattr, owner, name), partial(setattr, owner, name)
    return ProcessSetting(f"{owner.__name__}.{name}", get, put, same=is_)


def _list(name: str, values: Callable[[], list[Any]]) -> ProcessSetting:
    """Return the setting that saves and restores the items of a list that is changed in place, such as ``sys.path``."""

    def put(before: list[Any]) -> None:
        values()[:] = before

    return ProcessSetting(f"what {name} holds", lambda: list(values()), put)


def _folder() -> str | None:
    with suppress(OSError):
        return os.getcwd()
    return None


def _umask() -> int:
    """Return the file mode creation mask, where possible without setting it for a moment."""
    with suppress(OSError, ValueError), open("/proc/self/status", "rb") as status:
        for line in status:
            if line.startswith(b"Umask:"):
                return int(line[6:], 8)
    before = os.umask(0o077)
    os.umask(before)
    return before


def _set_environment(before: dict[str, str]) -> None:
    zone = os.environ.get("TZ")
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)
    if zone != before.get("TZ") and hasattr(time, "tzset"):
        time.tzset()


def _set_finders(before: list[Any]) -> None:
    """Restore the module finders; finders added by libraries, such as six, are kept after them."""
    added = [finder for finder in sys.meta_path if finder not in before and _is_library(finder)]
    sys.meta_path[:] = [*before, *added]


def _same_finders(before: list[Any], now: list[Any]) -> bool:
    return now[: len(before)] == before and all(map(_is_library, now[len(before) :]))


def _is_library(finder: Any) -> bool:
    kind = finder if isinstance(finder, type) else type(finder)
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    return f"{os.sep}site-packages{os.sep}" in file


def _set_path_hooks(before: list[Any]) -> None:
    """Restore the path hooks and clear the cache of finders."""
    sys.path_hooks[:] = before
    sys.path_importer_cache.clear()


def _set_modules(before: dict[str, Any]) -> None:
    """Restore replaced and removed modules; new modules stay."""
    sys.modules.update(before)


def _same_modules(before: dict[str, Any], now: dict[str, Any]) -> bool:
    return not any(map(is_not, map(now.get, before), before.values()))


def _warnings() -> tuple[Any, ...]:
    return warnings.filters, list(warnings.filters), warnings.showwarning


def _set_warnings(before: tuple[Any, ...]) -> None:
    filters, held, warnings.showwarning = before
    warnings.filters = filters
    filters[:] = held
    warnings._filters_mutated()  # type: ignore[attr-defined]


def _handlers() -> list[Any]:
    return [_signal.getsignal(number) for number in _NUMBERS]


def _set_handlers(before: list[Any]) -> None:
    for number, handler in zip(_NUMBERS, before, strict=True):
        if handler is not None and _signal.getsignal(number) is not handler:  # one that C code has set
            signal.signal(number, handler)


_NUMBERS: Final = sorted(map(int, signal.valid_signals()))


def _timers() -> list[bool]:
    return [signal.getitimer(which)[0] > 0 for which in _TIMERS]


def _stop_timers(before: list[bool]) -> None:
    """Stop timers that were not running before, since their signals would end the process."""
    for which, ran in zip(_TIMERS, before, strict=True):
        if not ran:
            signal.setitimer(which, 0)


_TIMERS: Final = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF) if hasattr(signal, "setitimer") else ()


def _set_limits(before: list[tuple[int, int]]) -> None:
    for limit, (soft, hard) in zip(_LIMITS, before, strict=True):
        now = resource.getrlimit(limit)
        if now != (soft, hard):
            with suppress(OSError, ValueError):  # only root can raise the hard one
                resource.setrlimit(limit, (soft, hard))
                continue
            most = now[1]
            resource.setrlimit(limit, (most if soft == resource.RLIM_INFINITY else min(soft, most), most))


def _set_logging(levels: tuple[int, int]) -> None:
    logging.root.setLevel(levels[0])
    logging.disable(levels[1])


_OF_DECIMAL: Final = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")


def _decimal() -> list[Any]:
    """Return the decimal contexts of this thread and of new threads."""
    decimal = sys.modules["decimal"]
    return [
        (context, [getattr(context, name) for name in _OF_DECIMAL], dict(context.flags), dict(context.traps))
        for context in (decimal.getcontext(), decimal.DefaultContext)
    ]


def _set_decimal(before: list[Any]) -> None:
    sys.modules["decimal"].setcontext(before[0][0])
    for context, values, flags, traps in before:
        for name, value in zip(_OF_DECIMAL, values, strict=True):
            setattr(context, name, value)
        context.flags.update(flags)
        context.traps.update(traps)


def _loggers() -> dict[logging.Logger, Any]:
    loggers = [each for each in logging.root.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    return dict(zip(loggers, map(_OF_LOGGER, loggers), strict=True))


def _set_loggers(before: dict[logging.Logger, Any]) -> None:
    for logger, (level, disabled, propagate) in before.items():
        logger.disabled, logger.propagate = disabled, propagate
        if logger.level != level:
            logger.setLevel(level)


_OF_LOGGER: Final = operator.attrgetter("level", "disabled", "propagate")


def _set_tempdir(before: str | None) -> None:
    sys.modules["tempfile"].tempdir = before  # type: ignore[attr-defined]


def _of_the_system() -> Iterable[ProcessSetting]:
    """Yield the settings that exist only on some operating systems."""
    if sys.platform == "win32":
        return
    yield ProcessSetting("the flags of dlopen", sys.getdlopenflags, sys.setdlopenflags)
    yield ProcessSetting("the limits of the process", lambda: [resource.getrlimit(n) for n in _LIMITS], _set_limits)
    yield ProcessSetting(
        "the priority of the process", lambda: os.getpriority(os.PRIO_PROCESS, 0),
        lambda nice: os.setpriority(os.PRIO_PROCESS, 0, nice), of_thread=True,
    )  # fmt: skip
    yield ProcessSetting(
        "the mask of signals", partial(signal.pthread_sigmask, signal.SIG_BLOCK, ()),
        partial(signal.pthread_sigmask, signal.SIG_SETMASK), of_thread=True,
    )  # fmt: skip
    if sys.platform == "linux":
        yield ProcessSetting(
            "the processors of the thread", lambda: os.sched_getaffinity(0),
            lambda cores: os.sched_setaffinity(0, cores), of_thread=True,
        )  # fmt: skip


_LIMITS: Final = () if sys.platform == "win32" else tuple(
    sorted({value for name, value in vars(resource).items() if name.startswith("RLIMIT_")})
)  # fmt: skip
_OF_PYTHON: Final = (
    *_of_the_system(),
    *(_attribute(sys, name) for name in _OF_SYS),
    ProcessSetting("what sys.modules holds", lambda: dict(sys.modules), _set_modules, _same_modules),
    ProcessSetting("what sys.meta_path holds", lambda: list(sys.meta_path), _set_finders, _same_finders),
    ProcessSetting("what sys.path_hooks holds", lambda: list(sys.path_hooks), _set_path_hooks),
    _list("sys.argv", lambda: sys.argv),
    _list("sys.path", lambda: sys.path),
    ProcessSetting("the current folder", _folder, os.chdir),
    ProcessSetting("the environment", lambda: dict(os.environ), _set_environment),
    ProcessSetting("the umask", _umask, os.umask),
    ProcessSetting("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
    ProcessSetting("the switch interval", sys.getswitchinterval, sys.setswitchinterval),
    ProcessSetting("the size of stacks", threading.stack_size, threading.stack_size),
    ProcessSetting("the hooks of generators", sys.get_asyncgen_hooks, lambda before: sys.set_asyncgen_hooks(*before)),
    ProcessSetting(
        "the origins of coroutines", sys.get_coroutine_origin_tracking_depth, sys.set_coroutine_origin_tracking_depth
    ),
    ProcessSetting("the digits of integers", sys.get_int_max_str_digits, sys.set_int_max_str_digits),
    ProcessSetting("the trace function", sys.gettrace, sys.settrace, of_thread=True),
    ProcessSetting("the profile function", sys.getprofile, sys.setprofile, of_thread=True),
    ProcessSetting("the trace function of threads", threading.gettrace, threading.settrace),
    ProcessSetting("the profile function of threads", threading.getprofile, threading.setprofile),
    ProcessSetting("garbage collection", gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    ProcessSetting("the thresholds of garbage collection", gc.get_threshold, lambda v: gc.set_threshold(*v)),
    ProcessSetting("the debugging of garbage collection", gc.get_debug, gc.set_debug),
    ProcessSetting("the locale", lambda: locale.setlocale(locale.LC_ALL), partial(locale.setlocale, locale.LC_ALL)),
    ProcessSetting("the decimal context", _decimal, _set_decimal, of_thread=True),
    ProcessSetting("the timeout of sockets", socket.getdefaulttimeout, socket.setdefaulttimeout),
    ProcessSetting("tempfile.tempdir", lambda: sys.modules["tempfile"].tempdir, _set_tempdir),
    ProcessSetting("the level of logging", lambda: (logging.root.level, logging.root.manager.disable), _set_logging),
    _list("the handlers of logging", lambda: logging.root.handlers),
    ProcessSetting("the levels of loggers", _loggers, _set_loggers, lambda before, now: before.items() <= now.items()),
    _attribute(logging, "raiseExceptions"),
    _list("gc.callbacks", lambda: gc.callbacks),
    ProcessSetting("filters of warnings", _warnings, _set_warnings),
    ProcessSetting("random numbers", random.getstate, random.setstate, same=None),
)
_OF_MAIN_THREAD: Final = (
    ProcessSetting("the handlers of signals", _handlers, _set_handlers),
    # One that ran before may have come to its end.
    ProcessSetting("timers", _timers, _stop_timers, lambda before, now: all(map(operator.le, now, before))),
)


def _of_numpy(numpy: Any) -> Iterator[ProcessSetting]:
    yield ProcessSetting("NumPy's random numbers", numpy.random.get_state, numpy.random.set_state, same=None)
    yield ProcessSetting("NumPy's errors", numpy.geterr, lambda before: numpy.seterr(**before), of_thread=True)
    yield ProcessSetting("NumPy's function for errors", numpy.geterrcall, numpy.seterrcall, of_thread=True)
    if hasattr(numpy, "get_printoptions"):
        yield ProcessSetting(
            "NumPy's print options", numpy.get_printoptions, lambda before: numpy.set_printoptions(**before),
            of_thread=True,
        )  # fmt: skip


def _precision(torch: Any) -> tuple[Any, ...]:
    """Return torch's float32 precision settings; ``None`` for one that this version lacks."""
    found: list[Any] = []
    readers = [torch.get_float32_matmul_precision, torch._C._get_cudnn_allow_tf32]
    if hasattr(torch._C, "_get_fp32_precision_getter"):
        readers += [partial(torch._C._get_fp32_precision_getter, *place) for place in _PRECISIONS]
    else:
        readers.append(torch._C._get_cublas_allow_tf32)
    for read in readers:
        found.append(None)
        with suppress(RuntimeError):
            found[-1] = read()
    return tuple(found)


def _set_precision(torch: Any, before: tuple[Any, ...]) -> None:
    setters = [torch.set_float32_matmul_precision, torch._C._set_cudnn_allow_tf32]
    if hasattr(torch._C, "_set_fp32_precision_setter"):
        setters += [partial(torch._C._set_fp32_precision_setter, *place) for place in _PRECISIONS]
    else:
        setters.append(torch._C._set_cublas_allow_tf32)
    for i, put in enumerate(setters):  # later setters cover fewer operations
        if before[i] is not None and _precision(torch)[i] != before[i]:
            put(before[i])


def _default_device(torch: Any) -> Any:
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else context.device


def _autocast(torch: Any, device: str) -> ProcessSetting:
    def put(value: tuple[bool, Any]) -> None:
        torch.set_autocast_enabled(device, value[0])
        torch.set_autocast_dtype(device, value[1])

    def get() -> tuple[bool, Any]:
        return torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)

    return ProcessSetting(f"autocast on {device}", get, put, of_thread=True)


def _global_hooks() -> list[Any]:
    """Return torch's global module hooks as lists of entries, with torch's flag for such hooks."""
    held = vars(sys.modules[_GLOBAL_HOOKS])
    return [
        (name, list(value.items()) if isinstance(value, dict) else value)
        for name, value in held.items()
        if name.startswith("_global_") and (isinstance(value, dict) or name.startswith("_global_is"))
    ]


def _set_global_hooks(before: list[Any]) -> None:
    held = vars(sys.modules[_GLOBAL_HOOKS])
    for name, value in before:
        if isinstance(value, list):
            held[name].clear()
            held[name].update(value)
        else:
            held[name] = value


def _denormals(torch: Any) -> ProcessSetting:
    smallest = sys.float_info.min / 2**10
    return ProcessSetting("denormals", lambda: smallest * 1.0 == 0.0, torch.set_flush_denormal, of_thread=True)


_guards: Final[list[Any]] = []
"""Inference mode guards that keep a thread in the saved mode after an interrupt discarded the block that set it."""


def indexed_as_sequence(torch: Any) -> bool:
    """Return whether C code treats tensors as sequences, as it does once ``Tensor.__getitem__`` was replaced.

    ``torch.tensor([scalar_tensor])`` then fails with "len() of a 0-d tensor", also after the method is restored:
    CPython fills the slot ``sq_item`` for a method in Python and does not empty it again.
    """
    slot = _sequence_slot(torch.Tensor)
    return slot is not None and slot.value is not None


def index_as_sequence(torch: Any, on: bool) -> None:
    """Empty the slot ``sq_item`` of ``torch.Tensor`` unless ``on``, so that all indexing uses the mapping slot."""
    slot = _sequence_slot(torch.Tensor)
    if slot is not None and not on:
        slot.value = None


def _sequence_slot(kind: type) -> ctypes.c_void_p | None:
    """Return the slot ``tp_as_sequence->sq_item`` of a class, or ``None`` where the layout of classes is not known."""
    if sys.implementation.name == "cpython" and object.__basicsize__ == 2 * _WORD:
        fields = (ctypes.c_void_p * 14).from_address(id(kind))
        name, methods = ctypes.cast(fields[3] or 0, ctypes.c_char_p).value, fields[13]
        if name == kind.__name__.encode() and methods:
            return ctypes.c_void_p.from_address(methods + 3 * _WORD)
    return None


def _of_torch(torch: Any) -> Iterator[ProcessSetting]:
    backends, cuda = torch.backends, torch.backends.cuda
    one, flag = ProcessSetting, partial(ProcessSetting, of_thread=True)
    # Inference mode comes first: it changes gradients too.
    guard = torch._C._InferenceMode
    yield flag("inference mode", torch.is_inference_mode_enabled, lambda on: _guards.append(guard(on)))
    yield flag("gradients", torch.is_grad_enabled, torch._C._set_grad_enabled)
    yield _autocast(torch, "cpu")
    yield _autocast(torch, "cuda")
    yield flag("the cache of autocast", torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled)
    yield _denormals(torch)
    yield one("torch's default dtype", torch.get_default_dtype, torch.set_default_dtype)
    yield one("torch's default device", partial(_default_device, torch), torch.set_default_device)
    yield one("torch's number of threads", torch.get_num_threads, torch.set_num_threads)
    yield one("the precision of float32", partial(_precision, torch), partial(_set_precision, torch))
    yield one(
        "deterministic algorithms",
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        lambda before: torch.use_deterministic_algorithms(before[0], warn_only=before[1]),
    )
    yield one(
        "anomaly detection",
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda before: torch.autograd.set_detect_anomaly(*before),
    )
    yield one(
        "the indexing of tensors as sequences", partial(indexed_as_sequence, torch), partial(index_as_sequence, torch)
    )
    yield one("repeated warnings", torch.is_warn_always_enabled, torch.set_warn_always)
    yield one("the fast path of attention", backends.mha.get_fastpath_enabled, backends.mha.set_fastpath_enabled)
    yield one("flash attention", cuda.flash_sdp_enabled, cuda.enable_flash_sdp)
    yield one("efficient attention", cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp)
    yield one("plain attention", cuda.math_sdp_enabled, cuda.enable_math_sdp)
    yield one("attention of cuDNN", cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp)
    yield one(
        "sums of plain attention in 16 bits",
        cuda.fp16_bf16_reduction_math_sdp_allowed,
        cuda.allow_fp16_bf16_reduction_math_sdp,
    )
    for name in _REDUCED:
        if hasattr(cuda.matmul, name):
            yield one(f"torch.backends.cuda.matmul.{name}", partial(getattr, cuda.matmul, name),
                      partial(setattr, cuda.matmul, name))  # fmt: skip
    for name in ("enabled", "benchmark", "deterministic"):
        yield _attribute(backends.cudnn, name)
    for name in ("enabled", "deterministic"):
        yield _attribute(backends.mkldnn, name)
    for name in ("enabled", "strategy"):
        yield _attribute(backends.opt_einsum, name)
    yield one("the engine of quantised operators", partial(getattr, backends.quantized, "engine"),
              partial(setattr, backends.quantized, "engine"))  # fmt: skip
    yield _attribute(torch.utils.deterministic, "fill_uninitialized_memory")
    for name in ("overwrite_module_params_on_conversion", "swap_module_params_on_conversion"):
        get, put = (getattr(torch.__future__, f"{verb}_{name}") for verb in ("get", "set"))
        yield one(f"torch.__future__.{name}", get, put)
    sharing = torch.multiprocessing
    yield one("the sharing of memory", sharing.get_sharing_strategy, sharing.set_sharing_strategy)
    yield _attribute(torch.distributions.Distribution, "_validate_args")
    options = torch._tensor_str.PRINT_OPTS
    yield one("torch's print options", lambda: dict(vars(options)), lambda before: vars(options).update(before))
    yield one("the hooks of all modules", _global_hooks, _set_global_hooks, counted=True)
    yield one("torch's random numbers", torch.get_rng_state, torch.set_rng_state, same=None)
    if torch.cuda.is_initialized():  # asking a GPU would set it up
        yield one("the random numbers of GPUs", torch.cuda.get_rng_state_all, torch.cuda.set_rng_state_all, same=None)
