"""Save and restore settings, replaced functions and dispatch modes of this process and thread; imports torch."""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import chain
from types import ModuleType
from typing import Any, Final

import torch
from torch import _ops as ops
from torch import overrides
from torch._C import _functorch
from torch.utils import _python_dispatch as dispatch
from torch.utils._device import DeviceContext

from costproof.patches import inference
from costproof.saved_settings import Namespace, SavedSettings, is_code

_WRITERS: Final = ("costproof.", "torchlens.", "unittest.mock")
"""Prefixes of Python modules whose functions replace functions of other modules."""
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
"""Variables with the state of a trace or an export, by module of torch."""
_CONFIGS: Final = {
    "torch.fx.config": ("do_not_emit_stack_traces",),
    "torch._dynamo.config": ("fake_tensor_cache_enabled",),
    "torch._functorch.config": ("fake_tensor_propagate_real_tensors",),
}
"""Configuration variables of torch that :mod:`costproof.patches.export` changes, by module."""
_LOGGING: Final = ("torch.export._trace", "torch.fx.experimental.symbolic_shapes")
"""Modules whose loggers are silenced during an export."""
_LOCKS: Final = (type(threading.Lock()), type(threading.RLock()))


class ProcessState:
    """Snapshot of the state of this process and thread."""

    def __init__(self, places: Sequence[Any] = ()) -> None:
        """Take the snapshot; no dispatch mode of the caller may be active.

        Args:
            places: further modules and classes whose functions tracers replace.
        """
        self._settings = SavedSettings()
        self._functions = _Functions(places)

    def put_back(self, *, thoroughly: bool) -> None:
        """Restore the state of the process and thread; may be called again.

        Args:
            thoroughly: whether replaced functions are restored too, as after an interrupt.
        """
        self._settings.put_back()
        self._functions.put_back(thoroughly=thoroughly)
        if thoroughly:
            inference.forget()

    def put_back_in_fork(self) -> None:
        """Restore the state in a process forked while another thread was counting."""
        self._functions.free_locks()
        self._settings.put_back(in_fork=True)
        self._functions.put_back(thoroughly=True)
        inference.forget()

    def differences(self) -> list[str]:
        """Return a phrase for each setting that differs from its saved value."""
        return self._settings.differences()


class _Functions:
    """Snapshot of the functions, classes and methods in modules of torch and TorchLens."""

    def __init__(self, more: Sequence[Any]) -> None:
        loggers = (getattr(sys.modules.get(name), "log", None) for name in _LOGGING)
        others = {id(place): place for place in (*more, *(log for log in loggers if isinstance(log, logging.Logger)))}
        shared = _libraries()
        self._before = [Namespace(place) for key, place in others.items() if key not in shared.ids]
        self._before += shared.spaces()
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
        """Restore replaced functions, classes and flags.

        Args:
            thoroughly: whether everything is restored; else only methods of the model's classes, on which TorchLens
                leaves inherited ones.
        """
        if not thoroughly:
            for space in self._own:
                _put_back(space)
            return
        wrappers: Any = sys.modules.get(f"{_TORCHLENS}.backends.torch.wrappers")
        if wrappers is not None and not self._wrapped:
            # It also wraps classes that cannot be changed from here; and what stands around its wrappers goes below.
            with suppress(Exception), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                getattr(wrappers, "_unwrap_torch_locked", wrappers.unwrap_torch)()
        for space in self._before:
            _put_back(space)
        for config, name, value in self._configs:
            if getattr(config, name) != value:
                setattr(config, name, value)
        sys.meta_path[:] = [f for f in sys.meta_path if f in self._importing or not _stands_in(type(f))]

    def free_locks(self) -> None:
        """Replace locks that another thread held when this process was forked."""
        for space in self._before:
            place, before = space.place, space.before
            for name, value in before.items():
                if type(value) in _LOCKS:
                    if value.acquire(blocking=False):
                        value.release()
                    else:
                        before[name] = threading.RLock() if type(value) is _LOCKS[1] else threading.Lock()
                        setattr(place, name, before[name])


def _put_back(space: Namespace) -> None:
    """Restore the functions, classes and flags of a module or class."""
    if space.same():
        return
    place, before, now = space.place, space.before, dict(vars(space.place))
    whole = isinstance(place, ModuleType) and place.__name__.startswith(_TORCHLENS)
    flags = _FLAGS.get(place.__name__, ()) if isinstance(place, ModuleType) else ()
    for name, value in now.items():
        with suppress(Exception):  # some must not be set
            if name not in before:
                if _stands_in(value) or (isinstance(place, type) and is_code(value)):
                    delattr(place, name)
            elif value is not before[name] and (whole or name in flags or is_code(before[name])):
                setattr(place, name, before[name])
    for name in before.keys() - now.keys():
        with suppress(Exception):
            setattr(place, name, before[name])


_TORCHLENS: Final = "torchlens"
_PACKAGES: Final = frozenset({"torch", "torchlens", "transformers", "builtins"})

_UNWATCHED: Final = (
    "torch._dynamo", "torch._inductor", "torch._numpy", "torch.ao", "torch.distributed", "torch.distributions",
    "torch.onnx", "torch.testing",
)  # fmt: skip
"""Packages of which only modules are compared, since no tracer changes their classes."""
_IMMUTABLE: Final = 1 << 8
"""Flag of classes whose attributes cannot be assigned."""


class _Libraries:
    """Attributes of library modules and of the classes in them."""

    __slots__ = ("_changing", "_now", "_steady", "_values", "ids", "modules")

    def __init__(self, modules: list[ModuleType]) -> None:
        self.modules = modules
        places = {id(place): place for place in (*modules, *_classes(modules))}
        self.ids = places.keys()
        self._changing: list[Any] = []
        """Modules and classes whose attributes changed in an earlier block, such as one with a counter."""
        self._divide(Namespace.of(place) for place in places.values())

    def spaces(self) -> list[Namespace]:
        """Return a current snapshot of each module and class."""
        if not self._same():
            self._divide(self._steady)
        return [*self._steady, *map(Namespace.of, self._changing)]

    def _divide(self, spaces: Iterable[Namespace]) -> None:
        steady = [(space, space.same()) for space in spaces]
        self._steady = [space for space, same in steady if same]
        self._changing += [space.place for space, same in steady if not same]
        self._now = [vars(space.place).values() for space in self._steady]
        self._values = list(chain.from_iterable(space.before.values() for space in self._steady))

    def _same(self) -> bool:
        """Return whether all attributes, except those known to change, are still the same objects.

        There are 100,000 values. A comparison of two lists looks at identity first, and takes a third of the time of
        anything else.
        """
        with suppress(Exception):  # the equality of arrays has no truth value
            return self._values == list(chain.from_iterable(self._now))
        return False


def _classes(modules: Sequence[ModuleType]) -> list[type]:
    """Return the classes of torch and TorchLens whose methods tracers replace."""
    found = {
        id(value): value
        for module in modules
        if module.__name__.partition(".")[0] in ("torch", "torchlens")
        for value in list(vars(module).values())
        if issubclass(type(value), type)
        and value.__module__.partition(".")[0] in ("torch", "torchlens")
        and not value.__module__.startswith(_UNWATCHED)
        and not value.__flags__ & _IMMUTABLE
    }
    return list(found.values())


_modules: list[Any] = []
"""Copy of ``sys.modules`` at the last search for library modules."""
_known = _Libraries([])


def _libraries() -> _Libraries:
    """Return the library modules and classes that tracers may change."""
    global _modules, _known
    if (now := list(sys.modules.items())) != _modules:
        found = [m for name, m in now if name.partition(".")[0] in _PACKAGES and isinstance(m, ModuleType)]
        if found != _known.modules:
            _known = _Libraries(found)
        _modules = now
    return _known


def _stands_in(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).startswith(_WRITERS)


_MODE_FLAGS: Final = (
    "_is_in_torch_dispatch_mode",
    "_is_in_non_infra_torch_dispatch_mode",
    "_is_in_any_mode_without_ignore_compile_internals",
)
"""Flags about active modes that ``torch.compile`` reads; a version of torch may lack some."""


class Modes:
    """Snapshot of torch's dispatch modes, function modes and transforms in this thread."""

    def __init__(self) -> None:
        self._functions = overrides._get_current_function_mode_stack()  # type: ignore[no-untyped-call]
        self._dispatch = dispatch._get_current_dispatch_mode_stack()
        self._before_dispatch = _popped(ops._len_torch_dispatch_stack_pre_dispatch, ops._pop_mode_from_pre_dispatch)
        self._transforms = _popped_transforms()
        self._flags = {name: getattr(dispatch, name) for name in _MODE_FLAGS if hasattr(dispatch, name)}
        self.put_back()

    def lift(self, *, default_device: bool = False) -> None:
        """Deactivate every mode, including those of interrupted blocks.

        Args:
            default_device: whether the default device is kept, which torch implements as a mode.
        """
        _clear()
        for name in self._flags:
            setattr(dispatch, name, False)
        for mode in self._functions if default_device else ():
            if isinstance(mode, DeviceContext):
                overrides._push_mode(mode)  # type: ignore[no-untyped-call]

    def put_back(self) -> None:
        """Reactivate exactly the modes of the snapshot; may be called again."""
        _clear()
        for transform in self._transforms:
            _functorch.push_dynamic_layer_stack(transform)
        for mode in (*self._dispatch, *self._before_dispatch):
            dispatch._push_mode(mode)
        for mode in self._functions:
            overrides._push_mode(mode)  # type: ignore[no-untyped-call]
        for name, flag in self._flags.items():
            setattr(dispatch, name, flag)


def _clear() -> None:
    _popped(torch._C._len_torch_function_stack, overrides._pop_mode)
    _popped(ops._len_torch_dispatch_stack_pre_dispatch, ops._pop_mode_from_pre_dispatch)
    _popped(torch._C._len_torch_dispatch_stack, dispatch._pop_mode)
    _popped_transforms()


def _popped(length: Callable[[], int], pop: Callable[[], Any]) -> list[Any]:
    """Pop all entries from a stack of modes and return them, outermost first."""
    return [pop() for _ in range(length())][::-1]


def _popped_transforms() -> list[Any]:
    found: list[Any] = []
    while _functorch.peek_interpreter_stack() is not None:
        found.insert(0, _functorch.pop_dynamic_layer_stack())
    return found
