"""Patch TorchLens to record whole operators and views, and to skip work whose results are not used."""

from __future__ import annotations

import functools
import re
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CellType, FrameType
from typing import Any, Final

from costproof.patches.patch import Patch, is_complete, patched
from costproof.patches.tensor import TORCH_PYTHON

_TEST: Final = "tracers/test_readonly.py"
_AUGMENTED: Final = re.compile(r"__(setitem|i(add|sub|mul|truediv|floordiv|mod|pow|matmul|and|or|xor|lshift|rshift))__")
"""Names of the methods behind ``x += y``, ``x[i] = y`` and the like."""
_TORCH_NAMESPACES: Final = ("aten::", "prims::", "prim::", "quantized::", "profiler::")

_WRAPPERS: Final = "torchlens.backends.torch.wrappers"
_WRITES: Final = "torchlens.backends.torch.buffer_writes"


@contextmanager
def torchlens_wrappers() -> Iterator[None]:
    """Remove TorchLens's wrappers of torch functions after the block, unless they existed before it.

    TorchLens wraps every function of torch on its first trace and leaves the wrappers in place. Its own removal leaves
    inherited methods on ``torch.Tensor`` itself; those are deleted too.
    """
    import torch
    from torchlens import _state
    from torchlens.backends.torch.wrappers import unwrap_torch

    before, own = _state._is_decorated, frozenset(vars(torch.Tensor))
    compiler = "torch._dynamo.trace_rules" in sys.modules
    try:
        yield
    finally:
        if not before:
            with _fast_wrapping(keep_tables=compiler):
                unwrap_torch()
            for name in frozenset(vars(torch.Tensor)) - own:
                delattr(torch.Tensor, name)


@contextmanager
def wrapped_once() -> Iterator[None]:
    """Install TorchLens's wrappers once for all traces in the block.

    Does nothing if TorchLens is missing; the traces report that.
    """
    try:
        from torchlens.backends.torch.wrappers import wrap_torch
    except ImportError:
        yield
        return
    with torchlens_wrappers():
        with _fast_wrapping():
            wrap_torch()
        yield


SET_DIRECTLY: Final = Patch(
    f"{_WRAPPERS}:_setattr_ignoring_advisories",
    lambda original: setattr,
    "it enters warnings.catch_warnings for each of a thousand functions; we enter it once around all of them",
    _TEST,
    missing="create",
)
KEEP_COMPILER_TABLES: Final = Patch(
    f"{_WRAPPERS}:_dynamo_identity_rule_caches",
    lambda original: list,
    "it makes the compiler compute its tables of functions again, which name no wrapper where they were filled before",
    _TEST,
    missing="create",
)


_searched: Final[dict[int, weakref.ref[Any]]] = {}
"""Modules of packages that TorchLens has searched and left unchanged, by id; removed when the module is deleted."""


def _keep_searched_modules(original: Callable[[], None]) -> Callable[[], None]:
    from torchlens.backends.torch import belt

    searched, live = _searched, belt._swept_ids_live  # globals are None when Python exits

    def remember(key: int, module: Any) -> None:
        searched[key] = weakref.ref(module, lambda _: (searched.pop(key, None), live.discard(key)))

    def restore() -> None:
        changed = {id(module()) for module, *_ in belt._ledger}
        for key in belt._swept_module_ids.keys() - searched.keys() - changed:
            module = belt._swept_module_ids[key]()
            if is_complete(module):
                remember(key, module)
        original()
        belt._swept_module_ids.update(searched)
        live.update(searched)

    return restore


KEEP_SEARCHED_MODULES: Final = Patch(
    "torchlens.backends.torch.belt:restore_belt_references",
    _keep_searched_modules,
    "it forgets which modules hold no function that is to be wrapped, and the next trace searches all of them again",
    _TEST,
    missing="skip",
)


FIND_NAMESPACES_ONCE: Final = Patch(
    f"{_WRAPPERS}:get_optional_torch_namespace",
    lambda original: functools.cache(original),
    "it finds the namespace of each of two thousand functions anew, where there are forty",
    _TEST,
    missing="skip",
)


@contextmanager
def _fast_wrapping(*, keep_tables: bool = False) -> Iterator[None]:
    """Speed up the installation and removal of TorchLens's wrappers.

    Args:
        keep_tables: whether to keep the compiler's tables of functions. TorchLens fills them before it installs
            wrappers if the compiler is imported by then.
    """
    with warnings.catch_warnings():
        for category in (DeprecationWarning, PendingDeprecationWarning, FutureWarning, UserWarning):
            warnings.simplefilter("ignore", category)
        with patched(
            SET_DIRECTLY, KEEP_SEARCHED_MODULES, FIND_NAMESPACES_ONCE, *([KEEP_COMPILER_TABLES] if keep_tables else [])
        ):
            yield


def _replace_record(original: Any) -> Callable[[Any, Any], None]:
    def replace(self: Any, event: Any) -> None:
        before, self.by_raw_label[event.label_raw] = self.by_raw_label.get(event.label_raw), event
        if before is None or before.parents != event.parents:
            self.rebuild_edges()

    return replace


def _unmemoized(name: str) -> Callable[[Any, Any], Any]:
    """Return a method that calls an unmemoized function of TorchLens's buffer module."""
    from torchlens.backends.torch import buffer_writes

    function = getattr(buffer_writes, name)
    return lambda self, tensor: function(tensor)


def _no_tables_if_off(original: Callable[[], Any]) -> Callable[[], Any]:
    """Return a replacement that builds TorchLens's tables of original functions only when they are used."""
    from torchlens.backends.torch import escape_detection

    none = escape_detection.DetectorTables(0, {}, {}, frozenset(), {}, {}, frozenset())
    return lambda: none if escape_detection._effective_mode() == "off" else original()


SKIP_UNUSED_WORK: Final = (
    Patch(
        "torchlens.backends.torch.escape_detection:build_detector_tables",
        _no_tables_if_off,
        "it makes tables of all functions of torch for a detector that is off",
        _TEST,
        missing="skip",
    ),
    Patch(
        "torchlens.postprocess.control_flow:_can_fast_skip_step5",
        lambda original: lambda trace: True,
        "it parses the source of every module that ran to find the branch of each operator, which is not used",
        _TEST,
        missing="skip",
    ),
    *(
        Patch(
            f"torchlens.backends.torch.{module}:_get_code_context",
            lambda original: lambda *args, **kwargs: [],
            "it records the stack of source lines of every operator, which is not used",
            _TEST,
            missing="skip",
        )
        for module in ("ops", "_ops_shared_fields", "model_prep", "sources")
    ),
    Patch(
        "torchlens.postprocess:_compact_op_metadata",
        lambda original: lambda trace: None,
        "it shares equal values between records to save memory; the records are discarded soon",
        _TEST,
        missing="skip",
    ),
    Patch(
        "torchlens._trace_core.op_store:OpRowStore._release_payload_owner",
        lambda original: lambda store: None,
        "it searches all records for tensors when a trace is deleted; none is saved",
        _TEST,
        missing="skip",
    ),
    Patch(
        "torchlens.ir.live_index:LiveIndex.replace",
        _replace_record,
        "it computes the edges of all records after each change of one, also if that has the same parents",
        _TEST,
        missing="skip",
    ),
)
ASK_EVERY_STORAGE: Final = (
    Patch(
        f"{_WRITES}:BufferWriteTracker.storage_key",
        lambda original: _unmemoized("storage_key"),
        "it is memoized by address: a new tensor at the address of a deleted view of a buffer is taken for that view",
        "tracers/test_torchlens_trace.py",
    ),
    Patch(
        f"{_WRITES}:BufferWriteTracker.storage_range",
        lambda original: _unmemoized("_storage_range"),
        "as storage_key",
        "tracers/test_torchlens_trace.py",
    ),
)


def _leave_no_methods(original: Callable[[Any], None]) -> Callable[[Any], None]:
    def uninstall(self: Any) -> None:
        classes = tuple(self._installed_module_refs)
        original(self)
        for cls in (cls for cls in classes if cls not in self._patched_classes):
            own = vars(cls).get("__setattr__")
            inherited = any(own is vars(base).get("__setattr__") for base in cls.__mro__[1:])
            if own is not None and (inherited or own.__module__ == _WRITES):
                del cls.__setattr__

    return uninstall


LEAVE_NO_METHODS: Final = Patch(
    f"{_WRITES}:BufferWriteTracker.uninstall",
    _leave_no_methods,
    "it leaves an inherited method, or its own wrapper of one, on each class of a model, which changes its fingerprint",
    "tracers/test_torchlens_trace.py",
    missing="skip",
)
KEEP_VIEW_LABELS: Final = Patch(
    f"{_WRAPPERS}:_propagate_mutation_label_to_storage_aliases",
    lambda original: lambda *args, **kwargs: None,
    "after a write into a view it relabels all other views, so reading the whole tensor looks like reading the part",
    "models/generic/test_bytes_of_calls.py",
    missing="create",
)


def _custom_name() -> Callable[[Any], str]:
    """Return a function from an operator to its dotted name; the name is empty for torch's own operators."""
    from torchlens.backends.torch import _torch_ops_calls

    def name_of(operator: Any) -> str:
        name: str = _torch_ops_calls._qualified_name(operator)
        return "" if name.startswith(_TORCH_NAMESPACES) else name.replace("::", ".")

    return name_of


def _record_custom_name(original: Callable[[Any], str]) -> Callable[[Any], str]:
    custom_name = _custom_name()
    return lambda operator: custom_name(operator) or original(operator)


def _unlogged_if_custom(original: Callable[..., Any]) -> Callable[..., Any]:
    from torchlens import _state

    custom_name = _custom_name()

    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not custom_name(self):
            return original(self, *args, **kwargs)
        with _state.pause_logging():
            return original(self, *args, **kwargs)

    return call


def _call_overload(original: Any) -> Callable[..., Any]:
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self._opoverload(*args, **kwargs)

    return call


WHOLE_OPERATORS: Final = (
    Patch(
        "torchlens.backends.torch._torch_ops_calls:_recorded_op_name",
        _record_custom_name,
        "it gives custom operators no name of their own",
        "tracers/test_torchlens_trace.py",
    ),
    Patch(
        "torch._library.custom_ops:CustomOpDef.__call__",
        _call_overload,
        "on meta TorchLens discards calls from torch's own Python code, and this class is part of that",
        "tracers/test_torchlens_trace.py",
    ),
    *(
        Patch(
            f"torch._ops:{cls}.__call__",
            _unlogged_if_custom,
            "TorchLens records the Python code inside a custom operator; on meta that only makes empty tensors",
            "tracers/test_torchlens_trace.py",
        )
        for cls in ("OpOverloadPacket", "OpOverload")
    ),
)


@contextmanager
def whole_operators() -> Iterator[None]:
    """Record each custom operator as one call under its full name while the block runs.

    TorchLens records what a custom operator's Python code calls instead of the operator. On meta that is the code that
    makes empty tensors of the right shapes, so the operator's work and what it reads would be lost. TorchLens may have
    wrapped torch's functions before, or do so inside the block.
    """
    from torchlens.backends.torch import _torch_ops_calls as recorder

    # TorchLens's own patch of these classes must be the outer one, so that it takes ours for the operator.
    again = bool(recorder._ORIGINAL_CALLS)
    recorder.uninstall_torch_ops_call_recorders()
    try:
        with patched(*WHOLE_OPERATORS):
            if again:
                recorder.install_torch_ops_call_recorders()
            try:
                yield
            finally:
                recorder.uninstall_torch_ops_call_recorders()
    finally:
        if again:
            recorder.install_torch_ops_call_recorders()


@contextmanager
def in_place_calls_recorded() -> Iterator[None]:
    """Record functions that overwrite an argument as separate calls, on meta, while the block runs.

    On meta torch runs them in Python, through other functions of torch. TorchLens takes the innermost function for the
    operator unless its result is a tensor that it has not seen, and an overwritten tensor has been seen: the call would
    be lost. Therefore, where nothing was recorded inside, the outer call becomes the innermost again.
    """
    from torchlens import _state
    from torchlens.backends.torch.wrappers import wrap_torch

    tracing = threading.get_ident()

    def innermost(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            trace, recording = _state.active_capture()
            if not recording or threading.get_ident() != tracing:  # another thread's work is not in the trace
                return original(*args, **kwargs)
            mine, before = trace._wrapper_runtime_ws.current_func_barcode, trace._raw_graph_ws.layer_counter
            result = original(*args, **kwargs)
            if trace._raw_graph_ws.layer_counter == before:
                trace._wrapper_runtime_ws.current_func_barcode = mine
            return result

        return call

    wrap_torch()
    changed = []
    try:
        for cell, original in _overwriting(len(_state._decorated_func_mapper)):
            changed.append((cell, original))
            cell.cell_contents = innermost(original)
        yield
    finally:
        for cell, original in changed:
            cell.cell_contents = original


@functools.lru_cache(maxsize=1)
def _overwriting(wrapped: int) -> list[tuple[CellType, Callable[..., Any]]]:
    """Return the functions that overwrite their first argument, with the closure cell of the wrapper around each.

    Wrappers stay the same objects when they are removed and installed again.

    Args:
        wrapped: how many functions have a wrapper, which grows when more are wrapped.
    """
    from torchlens import _state

    found = []
    for wrapper, original in list(_state._decorated_func_mapper.items()):
        names = getattr(getattr(wrapper, "__code__", None), "co_freevars", ())
        if {"func", "func_name"} <= set(names):
            cells = dict(zip(names, wrapper.__closure__ or (), strict=True))
            if _overwrites(cells["func_name"].cell_contents, original):
                found.append((cells["func"], original))
    return found


def _overwrites(name: str, function: Callable[..., Any]) -> bool:
    """Return whether a function of torch overwrites its first argument, always or by its argument ``inplace``."""
    code = getattr(function, "__code__", None)
    has_flag = code is not None and "inplace" in code.co_varnames[: code.co_argcount]
    return has_flag or (name.endswith("_") and not name.endswith("__")) or _AUGMENTED.fullmatch(name) is not None


_MODULE_CALL: Final = "torch.nn.modules.module"
"""Name of the Python module that calls ``forward``."""


def _note_pieces(original: Callable[..., Any], pieces: set[str]) -> Callable[..., None]:
    from torch.nn import init

    from costproof.patches.input_values import KnownIntegers

    def log(trace: Any, tensor: Any, index: int, args: Any, kwargs: Any, owners: Any, fields: Any, *rest: Any) -> None:
        original(trace, tensor, index, args, kwargs, owners, fields, *rest)
        # Initializing a layer that is created during the run is not the model's work, nor are computations on integers
        # that are known before.
        initializes = hasattr(init, fields["func_name"])
        if initializes or _is_piece() or any(isinstance(value, KnownIntegers) for value in args):
            pieces.add(fields["_label_raw"])

    return log


def _remove_pieces_only(original: Callable[..., Any], pieces: set[str]) -> Callable[..., None]:
    def remove(trace: Any) -> None:
        labels, outputs = trace._raw_graph_ws.raw_layer_labels_list, trace.output_layers
        # TorchLens keeps operators that are connected with an output.
        trace.output_layers = [*outputs, *(label for label in labels if label not in pieces)]
        original(trace)
        trace.output_layers = outputs
        pieces.clear()

    return remove


def _is_piece() -> bool:
    """Return whether a call comes from one of torch's own decompositions of operators."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name: str = frame.f_globals.get("__name__", "")
        if name.startswith(TORCH_PYTHON):
            return True
        if name == _MODULE_CALL:
            return False
        frame = frame.f_back
    return False


KEEP_DEAD_CODE: Final = (
    Patch(
        "torchlens.backends.torch.ops:_log_output_tensor_info",
        _note_pieces,
        "TorchLens removes operators that no output depends on; the model ran them, unlike pieces of a larger operator",
        "tracers/test_torchlens_trace.py",
        missing="skip",
    ),
    Patch(
        "torchlens.postprocess:_remove_orphan_nodes",
        _remove_pieces_only,
        "as _log_output_tensor_info",
        "tracers/test_torchlens_trace.py",
        missing="skip",
    ),
)


@contextmanager
def dead_code_recorded() -> Iterator[None]:
    """Record operators without inputs and users while the block runs, unless they are parts of a larger torch operator.

    On meta torch's Python code calls other functions of torch to carry out a larger operator. Those are not the model's
    work; the larger operator is.
    """
    with patched(*KEEP_DEAD_CODE, context=(set[str](),)):
        yield
