"""Settings of a process and a thread that code of others may change: how each is read and set.

One list for all that puts them back: :mod:`costproof.foreign` after code of others, and a count after the forward of a
module. Settings of torch and NumPy are in it once they are imported; nothing is imported here for their sake.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` makes an enum member of each answer, which is slow
import builtins
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
from types import ModuleType
from typing import Any, Final

if sys.platform != "win32":
    import resource

_UNKNOWN: Final = object()
"""What a setting is that cannot be read."""
_OF_SYS: Final = (
    *("stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__"),
    *("excepthook", "displayhook", "unraisablehook", "breakpointhook"),
    *("argv", "path", "meta_path", "path_hooks", "path_importer_cache", "modules", "dont_write_bytecode"),
)
"""Names of :mod:`sys` whose values belong to who runs the program."""
_WITH_CLASSES: Final = frozenset(
    ("contextlib", "json.decoder", "json.encoder", "logging", "pathlib", "subprocess", "tempfile", "threading")
)
"""Modules of Python whose classes write the files and start the processes of a command, with methods in Python."""
_PRECISIONS: Final = (
    ("generic", "all"), ("cuda", "all"), ("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn"),
    ("mkldnn", "all"), ("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn"),
)  # fmt: skip
"""Backends and operations that have a precision of float32 of their own, the general ones first."""
_REDUCED: Final = (
    "allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction", "allow_fp16_accumulation",
)  # fmt: skip
"""Attributes of products on GPUs that let sums be less precise."""
_GLOBAL_HOOKS: Final = "torch.nn.modules.module"
_BUILTINS: Final = vars(builtins)
_OF_OS: Final = vars(os)
_TORCH: Final = "torch"
"""torch and TorchLens put functions of their own in the place of others."""


@dataclass(frozen=True, slots=True)
class ProcessSetting:
    """One setting: its name, how it is read, set and compared."""

    name: str
    get: Callable[[], Any]
    put: Callable[[Any], object]
    same: Callable[[Any, Any], bool] | None = operator.eq
    """Compares a value of before with one of now; ``None`` for random numbers, which are put back always."""
    of_thread: bool = False
    counted: bool = False
    """Whether code that changes it changes what a module computes."""

    def read(self) -> Any:
        """Return the value; an object of its own if it cannot be read, or if nobody has imported what has it."""
        try:
            return self.get()
        except Exception:
            return _UNKNOWN


class SavedSettings:
    """All settings, and the functions of Python, at the time of creation."""

    def __init__(self, *, everything: bool = True) -> None:
        """Save; ``everything``, or the built-in functions and :mod:`os` alone, which takes microseconds."""
        self._builtins, self._os = dict(_BUILTINS), dict(_OF_OS)
        self._code = [Namespace.of(place) for place in _places_of_python()] if everything else []
        self._torch = [Namespace.of(place) for place in _places_of_torch()] if everything else []
        settings = process_settings() if everything else ()
        self._before = [(setting, setting.read()) for setting in settings]

    def put_back_builtins(self) -> None:
        """Put back the built-in functions and :mod:`os`, with which all else is put back; calls none of them."""
        _BUILTINS.update(self._builtins)
        _OF_OS.update(self._os)

    def put_back(self, *, in_fork: bool = False) -> list[str]:
        """Undo what can be undone; may be called again.

        Args:
            in_fork: leave what belongs to a thread, and random numbers, which Python seeds in a fork.

        Returns:
            What was changed of what a module computes: functions of torch, hooks of all modules.
        """
        self.put_back_builtins()
        for space in self._code:
            space.put_back()
        counted = self._put_back_settings(in_fork=in_fork)  # torch.Storage depends on the default dtype
        replaced = [name for space in self._torch for name in space.put_back(keep=_TORCH)]
        if replaced:  # some of them may set settings
            self._put_back_settings(in_fork=in_fork)
        return replaced + counted

    def _put_back_settings(self, *, in_fork: bool) -> list[str]:
        found = []
        for setting, before in self._before:
            if before is _UNKNOWN or (in_fork and (setting.of_thread or setting.same is None)):
                continue
            with suppress(Exception):  # a folder that is gone; the others are put back all the same
                if setting.same is None or not setting.same(before, setting.read()):
                    setting.put(before)
                    found += [setting.name] if setting.counted else []
        return found

    def differences(self) -> list[str]:
        """What is not as it was, one phrase each."""
        changed = (
            (setting.name, before, now)
            for setting, before in self._before
            if before is not _UNKNOWN and setting.same is not None and not setting.same(before, now := setting.read())
        )
        return [name + (f" {b} -> {n}" if _is_short(b) and _is_short(n) else "") for name, b, n in changed]


class Namespace:
    """The attributes of a module, a class or an object at the time of creation."""

    __slots__ = ("_now", "before", "place")

    def __init__(self, place: Any) -> None:
        self.place, self.before = place, dict(vars(place))
        self._now = vars(place).values()

    @staticmethod
    def of(place: Any) -> Namespace:
        """Return the namespace as it is now; copies it only if it has changed since last time.

        A comparison takes a fraction of the time of a copy.
        """
        space = _known.get(id(place))
        if space is None or space.place is not place or not space.same():
            space = _known[id(place)] = Namespace(place)
        return space

    def same(self) -> bool:
        """Return whether every attribute is the same object still."""
        return len(self._now) == len(self.before) and not any(map(is_not, self._now, self.before.values()))

    def put_back(self, *, keep: str = "") -> list[str]:
        """Put back functions and classes that others have taken the place of, hidden or taken away.

        Args:
            keep: leave what modules have made whose names begin with this, except another function of the same place.

        Returns:
            The names of what was put back.
        """
        if self.same():
            return []
        place, now = self.place, dict(vars(self.place))
        parents = place.__mro__[1:-1] if isinstance(place, type) else ()
        found = []
        for name in {**self.before, **now}:
            before, value = self.before.get(name), now.get(name)
            if name not in self.before:
                if not any(hasattr(parent, name) for parent in parents):
                    continue
            elif value is before or not is_code(before):
                continue
            made_by = str(getattr(getattr(value, "fget", None) or value, "__module__", ""))
            if keep and made_by.startswith(keep) and not any(value is held for held in self.before.values()):
                continue
            with suppress(Exception):  # some must not be set
                setattr(place, name, before) if name in self.before else delattr(place, name)
                found.append(f"{'torch.' if isinstance(place, type) else ''}{place.__name__}.{name}")
        return found


def is_code(value: Any) -> bool:
    """Return whether a value is a function, a class, or something else that is looked up as a method."""
    return callable(value) or hasattr(type(value), "__get__")


_known: Final[dict[int, Namespace]] = {}
"""By the id of the module or class."""
_python: tuple[int, tuple[Any, ...]] = (0, ())
"""How many modules there were, and those of Python among them, with classes."""


def _places_of_python() -> tuple[Any, ...]:
    """Modules of Python, and the classes that a command cannot do without."""
    global _python
    if _python[0] != len(sys.modules):
        modules = [
            module
            for name, module in list(sys.modules.items())
            if name.partition(".")[0] in sys.stdlib_module_names and type(module) is ModuleType
        ]
        classes = {
            id(value): value
            for module in modules
            if module.__name__ in _WITH_CLASSES
            for value in list(vars(module).values())
            if type(value) is type and value.__module__ == module.__name__
        }
        _python = len(sys.modules), (*modules, *classes.values())
    return _python[1]


def _places_of_torch() -> tuple[Any, ...]:
    torch: Any = sys.modules.get("torch")
    return (torch, torch.nn.functional, torch.Tensor, torch.nn.Module) if hasattr(torch, "get_rng_state") else ()


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


def _is_short(value: Any) -> bool:
    if isinstance(value, tuple):
        return len(value) < 4 and all(map(_is_short, value))
    return value is None or isinstance(value, bool | int | float) or type(value).__module__ == "torch"


def _attribute(owner: Any, name: str) -> ProcessSetting:
    get, put = partial(getattr, owner, name), partial(setattr, owner, name)
    return ProcessSetting(f"{owner.__name__}.{name}", get, put, same=is_)


def _list(name: str, values: Callable[[], list[Any]]) -> ProcessSetting:
    """What a list of the process holds."""

    def put(before: list[Any]) -> None:
        values()[:] = before

    return ProcessSetting(f"what {name} holds", lambda: list(values()), put)


def _folder() -> str | None:
    with suppress(OSError):
        return os.getcwd()
    return None


def _umask() -> int:
    """Return the mask of new files. Linux tells it; elsewhere it is set for a moment."""
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
    """Put back what finds modules; what libraries have added, as six does for its own, goes behind it."""
    added = [finder for finder in sys.meta_path if finder not in before and _is_library(finder)]
    sys.meta_path[:] = [*before, *added]


def _same_finders(before: list[Any], now: list[Any]) -> bool:
    return now[: len(before)] == before and all(map(_is_library, now[len(before) :]))


def _is_library(finder: Any) -> bool:
    kind = finder if isinstance(finder, type) else type(finder)
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    return f"{os.sep}site-packages{os.sep}" in file


def _set_path_hooks(before: list[Any]) -> None:
    """Put back what makes finders of folders, and forget the finders that others have made."""
    sys.path_hooks[:] = before
    sys.path_importer_cache.clear()


def _set_modules(before: dict[str, Any]) -> None:
    """Put back modules that were replaced or taken away; new ones stay."""
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
    """Stop the timers that did not run; they would end the process with a signal."""
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
    """Return the context of the thread, and that of new threads, with what they hold."""
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
    """What only some systems have."""
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
    """The precisions of products of float32; ``None`` for one that this version, or a mix of two ways, does not say."""
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
    for i, put in enumerate(setters):  # those behind say the same of fewer operations
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
    """The hooks of all modules: dicts as lists of their entries, and one flag."""
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
"""What keeps a thread in or out of inference mode where an interrupt lost the block that did."""


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
