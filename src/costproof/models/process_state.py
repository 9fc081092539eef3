"""What belongs to a whole process, or to a thread, and is as it was after work on a model. Needs torch to load.

That is: switches of torch and Python that code of a model may turn (:data:`_SETTINGS`), random numbers, and the
functions that tracers replace while they watch. Each of them takes its own off again; but an interrupt may hit that,
and a fork copies the process in the middle of it. Then all functions are compared with those of before.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence, ValuesView
from contextlib import suppress
from operator import is_not
from types import ModuleType
from typing import Any, Final

import torch
from torch.backends import cuda, mha

from costproof.models import as_it_runs

_WRITERS: Final = ("costproof.", "torchlens.", "unittest.mock")
"""Python modules whose functions stand in for others."""
_FLAGS: Final = {
    "torch._dynamo.eval_frame": ("_stance",),
    "torch.backends.mha": ("_is_fastpath_enabled",),
    "torch.compiler": ("_is_compiling_flag", "_is_exporting_flag"),
    "torch.export._trace": ("_EXPORT_FLAGS", "_EXPORT_MODULE_HIERARCHY"),
    "torch.fx._lazy_graph_module": ("_use_lazy_graph_module_flag",),
    "torch.fx._symbolic_trace": ("CURRENT_PATCHER", "_is_fx_tracing_flag"),
    "torch.fx.experimental.proxy_tensor": ("_CURRENT_MAKE_FX_TRACER",),
    "torch.utils._python_dispatch": (
        "_is_in_torch_dispatch_mode",
        "_is_in_non_infra_torch_dispatch_mode",
        "_is_in_any_mode_without_ignore_compile_internals",
    ),
}
"""Variables that say what is going on, by module of torch; those of TorchLens are known by their module."""
_CONFIGS: Final = {
    "torch.fx.config": ("do_not_emit_stack_traces",),
    "torch._dynamo.config": ("fake_tensor_cache_enabled",),
    "torch._functorch.config": ("fake_tensor_propagate_real_tensors",),
}
"""Settings that :mod:`costproof.tracers.lean` and ``.following`` change."""
_LOGGING: Final = ("torch.export._trace", "torch.fx.experimental.symbolic_shapes")
"""Modules whose loggers are silenced during an export."""
_UNCHECKED: Final = "TRANSFORMERS_DISABLE_TORCH_CHECK"
_LOCKS: Final = (type(threading.Lock()), type(threading.RLock()))

Getter = Callable[[], Any]
Setter = Callable[[Any], object]
Setting = tuple[str, Getter, Setter]
"""Name, how it is read, how it is set."""


class ProcessState:
    """The state of this process and thread at the time of creation."""

    def __init__(self, places: Sequence[Any] = ()) -> None:
        """Save; no mode of the caller may be on.

        Args:
            places: modules and classes beside those of torch whose functions tracers replace.
        """
        self._of_thread = [(setting, setting[1]()) for setting in _OF_THREAD]
        self._of_process = [(setting, setting[1]()) for setting in _SETTINGS]
        self._random = [(get(), put) for get, put in _random_numbers()]
        self._warnings = (warnings.filters, list(warnings.filters), warnings.showwarning)
        self._functions = _Functions(places)

    def put_back(self, *, thoroughly: bool) -> None:
        """Undo what can be undone; may be called again.

        Args:
            thoroughly: take off functions that stand in for others too, as after an interrupt.
        """
        self._put_back([*self._of_process, *self._of_thread], thoroughly=thoroughly)

    def put_back_in_fork(self) -> None:
        """The same in a process that another thread has forked before this one put it back."""
        self._functions.free_locks()
        self._random = [(before, put) for before, put in self._random if put is not random.setstate]  # Python seeds it
        self._put_back(self._of_process, thoroughly=True)

    def _put_back(self, settings: Iterable[tuple[Setting, Any]], *, thoroughly: bool) -> None:
        for (_, get, put), before in settings:
            if get() != before:
                put(before)
        filters, held, warnings.showwarning = self._warnings
        if warnings.filters is not filters or filters != held:
            warnings.filters = filters
            warnings.filters[:] = held  # type: ignore[index]
            warnings._filters_mutated()  # type: ignore[attr-defined]
        for before, put in self._random:
            put(before)
        self._functions.put_back(thoroughly=thoroughly)
        if thoroughly:
            as_it_runs.forget()

    def differences(self) -> list[str]:
        """What is not as it was, one phrase each."""
        settings = (*self._of_process, *self._of_thread)
        return [f"{name} {before} -> {now}" for (name, get, _), before in settings if (now := get()) != before]


class _Functions:
    """The functions and classes that modules of torch and TorchLens hold, with the methods of these classes."""

    def __init__(self, more: Sequence[Any]) -> None:
        modules = tuple(
            module
            for name, module in list(sys.modules.items())
            if name.partition(".")[0] in _PACKAGES and isinstance(module, ModuleType)
        )
        loggers = (getattr(sys.modules.get(name), "log", None) for name in _LOGGING)
        shared = {id(place): place for place in (*modules, *_classes(modules))}
        others = {id(place): place for place in (*more, *(log for log in loggers if isinstance(log, logging.Logger)))}
        self._before = [_Namespace(place) for key, place in others.items() if key not in shared]
        self._before += _namespaces(shared)
        classes = {id(place) for place in more if isinstance(place, type)}
        self._own = [space for space in self._before if id(space.place) in classes]
        self._configs = [
            (config, name, getattr(config, name))
            for module, names in _CONFIGS.items()
            if (config := sys.modules.get(module)) is not None
            for name in names
            if hasattr(config, name)
        ]
        self._importing = list(sys.meta_path)
        self._wrapped = getattr(sys.modules.get(f"{_TORCHLENS}._state"), "_is_decorated", False)

    def put_back(self, *, thoroughly: bool) -> None:
        """Put back every function, class and flag that another one has taken the place of.

        Args:
            thoroughly: not only methods of the classes of a model, on which TorchLens leaves inherited ones.
        """
        if not thoroughly:
            for space in self._own:
                space.put_back()
            return
        wrappers: Any = sys.modules.get(f"{_TORCHLENS}.backends.torch.wrappers")
        if wrappers is not None and not self._wrapped:
            # It also wraps classes that cannot be changed from here; and what stands around its wrappers goes below.
            with suppress(Exception), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                getattr(wrappers, "_unwrap_torch_locked", wrappers.unwrap_torch)()
        for space in self._before:
            space.put_back()
        for config, name, value in self._configs:
            if getattr(config, name) != value:
                setattr(config, name, value)
        sys.meta_path[:] = [f for f in sys.meta_path if f in self._importing or not _stands_in(type(f))]

    def free_locks(self) -> None:
        """Replace locks that a thread of the process holds that this one was forked from."""
        for space in self._before:
            place, before = space.place, space.before
            for name, value in before.items():
                if type(value) in _LOCKS:
                    if value.acquire(blocking=False):
                        value.release()
                    else:
                        before[name] = threading.RLock() if type(value) is _LOCKS[1] else threading.Lock()
                        setattr(place, name, before[name])


class _Namespace:
    """The attributes of a module, a class or an object at the time of creation."""

    __slots__ = ("_now", "before", "place")

    def __init__(self, place: Any) -> None:
        self.place, self.before = place, dict(vars(place))
        self._now: ValuesView[Any] = vars(place).values()

    def same(self) -> bool:
        """Return whether every attribute is the same object still."""
        return len(self._now) == len(self.before) and not any(map(is_not, self._now, self.before.values()))

    def put_back(self) -> None:
        """Put back functions, classes and flags that others have taken the place of."""
        if self.same():
            return
        place, before, now = self.place, self.before, dict(vars(self.place))
        whole = isinstance(place, ModuleType) and place.__name__.startswith(_TORCHLENS)
        flags = _FLAGS.get(place.__name__, ()) if isinstance(place, ModuleType) else ()
        for name, value in now.items():
            with suppress(Exception):  # some must not be set
                if name not in before:
                    if _stands_in(value) or (isinstance(place, type) and _is_code(value)):
                        delattr(place, name)
                elif value is not before[name] and (whole or name in flags or _is_code(before[name])):
                    setattr(place, name, before[name])
        for name in before.keys() - now.keys():
            with suppress(Exception):
                setattr(place, name, before[name])


_TORCHLENS: Final = "torchlens"
_PACKAGES: Final = frozenset({"torch", "torchlens", "transformers", "builtins"})

_known_classes: tuple[int, tuple[type, ...]] = (0, ())
"""How many modules there were, and the classes that they held: looking for them takes longer than all else."""


def _classes(modules: tuple[ModuleType, ...]) -> tuple[type, ...]:
    """The classes of torch and TorchLens whose methods are replaced while something watches."""
    global _known_classes
    if _known_classes[0] != len(modules):
        found = {
            id(value): value
            for module in modules
            if module.__name__.partition(".")[0] in ("torch", "torchlens")
            for value in list(vars(module).values())
            if issubclass(type(value), type) and value.__module__.partition(".")[0] in ("torch", "torchlens")
        }
        _known_classes = len(modules), tuple(found.values())
    return _known_classes[1]


_known_namespaces: dict[int, _Namespace] = {}
"""By the id of the module or class. A comparison takes a fraction of the time of a copy."""


def _namespaces(places: dict[int, Any]) -> Iterable[_Namespace]:
    """Return the namespaces of modules and classes as they are now; copies only those that changed since last time."""
    global _known_namespaces
    known: dict[int, _Namespace] = {}
    for key, place in places.items():
        space = _known_namespaces.get(key)
        known[key] = space if space is not None and space.same() else _Namespace(place)
    _known_namespaces = known
    return known.values()


def _stands_in(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).startswith(_WRITERS)


def _is_code(value: Any) -> bool:
    return callable(value) or hasattr(type(value), "__get__")


def _random_numbers() -> list[tuple[Getter, Setter]]:
    """How the state of each generator of random numbers is read and set."""
    found: list[tuple[Getter, Setter]] = [
        (random.getstate, random.setstate),
        (torch.get_rng_state, torch.set_rng_state),
    ]
    if (numpy := sys.modules.get("numpy.random")) is not None:
        found.append((numpy.get_state, numpy.set_state))
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # asking a GPU would set it up
        found.append((torch.cuda.get_rng_state_all, torch.cuda.set_rng_state_all))
    return found


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_unchecked(value: str | None) -> None:
    if value is None:
        os.environ.pop(_UNCHECKED, None)
    else:
        os.environ[_UNCHECKED] = value


def _set_logging(levels: tuple[int, int]) -> None:
    logging.root.setLevel(levels[0])
    logging.disable(levels[1])


def _of(owner: Any, name: str) -> Setting:
    return f"{owner.__name__}.{name}", lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


def _autocast(device: str) -> Setting:
    def put(value: tuple[bool, torch.dtype]) -> None:
        torch.set_autocast_enabled(device, value[0])
        torch.set_autocast_dtype(device, value[1])

    return f"autocast on {device}", lambda: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)), put


_SETTINGS: Final[tuple[Setting, ...]] = (
    ("torch's default dtype", torch.get_default_dtype, torch.set_default_dtype),
    ("deterministic algorithms", _deterministic, lambda v: torch.use_deterministic_algorithms(v[0], warn_only=v[1])),
    ("anomaly detection", torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    ("torch's number of threads", torch.get_num_threads, torch.set_num_threads),
    ("the fast path of attention", mha.get_fastpath_enabled, mha.set_fastpath_enabled),
    ("flash attention", cuda.flash_sdp_enabled, cuda.enable_flash_sdp),
    ("efficient attention", cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp),
    ("plain attention", cuda.math_sdp_enabled, cuda.enable_math_sdp),
    *(_of(torch.backends.cudnn, name) for name in ("enabled", "benchmark", "deterministic")),
    _of(torch.backends.mkldnn, "enabled"),
    ("garbage collection", gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    ("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
    ("the level of logging", lambda: (logging.root.level, logging.root.manager.disable), _set_logging),
    (_UNCHECKED, lambda: os.environ.get(_UNCHECKED), _set_unchecked),
)
"""Of the process."""
_OF_THREAD: Final[tuple[Setting, ...]] = (
    ("inference mode", torch.is_inference_mode_enabled, lambda on: _guards.append(torch._C._InferenceMode(on))),
    ("gradients", torch.is_grad_enabled, torch._C._set_grad_enabled),
    _autocast("cpu"),
    _autocast("cuda"),
)
"""Of a thread. Inference mode comes first: it changes gradients too."""
_guards: Final[list[Any]] = []
"""What keeps a thread in or out of inference mode where an interrupt lost the block that did."""
