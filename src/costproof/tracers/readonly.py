"""What a trace changes in its surroundings while it runs, put back however it ends."""

from __future__ import annotations

import functools
import gc
import pkgutil
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from torch import nn

Hook = Callable[..., None]

_AUGMENTED: Final = re.compile(r"__(setitem|i(add|sub|mul|truediv|floordiv|mod|pow|matmul|and|or|xor|lshift|rshift))__")
"""What ``x += y``, ``x[i] = y`` and the like call."""

_TORCH_S_OWN: Final = ("aten::", "prims::", "prim::", "quantized::", "profiler::")


@contextmanager
def torchlens_wrappers() -> Iterator[None]:
    """Take TorchLens's wrappers off torch's functions afterwards, if they were not there before.

    TorchLens wraps every function of torch on its first trace and leaves the wrappers in place. Taking
    them off, it leaves inherited methods on ``torch.Tensor`` itself; those go too.
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
            with _quickly(keep_tables=compiler):
                unwrap_torch()
            for name in frozenset(vars(torch.Tensor)) - own:
                delattr(torch.Tensor, name)


@contextmanager
def wrapped_once() -> Iterator[None]:
    """TorchLens's wrappers are put on once for all traces of the block: that takes as long as a trace of some layers.

    Without TorchLens nothing happens; the traces say that it is missing.
    """
    try:
        from torchlens.backends.torch.wrappers import wrap_torch
    except ImportError:
        yield
        return
    with torchlens_wrappers():
        with _quickly():
            wrap_torch()
        yield


@contextmanager
def _quickly(*, keep_tables: bool = False) -> Iterator[None]:
    """Speed up installing and removing TorchLens's wrappers.

    Advisory warnings are ignored once for the block, not for each of the thousand functions that are set.

    Args:
        keep_tables: keep the compiler's tables of functions. TorchLens fills them before it puts wrappers on, where the
            compiler is imported by then, so they name no wrapper.
    """
    from unittest import mock

    from torchlens.backends.torch import wrappers

    with ExitStack() as around:
        around.enter_context(warnings.catch_warnings())
        for category in (DeprecationWarning, PendingDeprecationWarning, FutureWarning, UserWarning):
            warnings.simplefilter("ignore", category)
        around.enter_context(mock.patch.object(wrappers, "_setattr_ignoring_advisories", setattr, create=True))
        if keep_tables:
            around.enter_context(mock.patch.object(wrappers, "_dynamo_identity_rule_caches", list, create=True))
        yield


@contextmanager
def nothing_kept() -> Iterator[None]:
    """TorchLens does less with its records, for the time of the block, as for a trace that is soon thrown away.

    It would parse the source of every module that ran, to say in which branch each operator stands, make one object
    of values that are equal, and look for tensors in all of them when the trace goes. None of it is asked for here.
    And with every record that it amends it would find the edges of all anew, where the record's own have not changed.
    What a version lacks is left as it is.
    """
    from unittest import mock

    def replace(self: Any, event: Any) -> None:
        before, self.by_raw_label[event.label_raw] = self.by_raw_label.get(event.label_raw), event
        if before is None or before.parents != event.parents:
            self.rebuild_edges()

    skipped: tuple[tuple[str, str, Callable[..., bool | None]], ...] = (
        ("torchlens.postprocess.control_flow", "_can_fast_skip_step5", lambda trace: True),
        ("torchlens.postprocess", "_compact_op_metadata", lambda trace: None),
        ("torchlens._trace_core.op_store:OpRowStore", "_release_payload_owner", lambda store: None),
        ("torchlens.ir.live_index:LiveIndex", "replace", replace),
    )
    with ExitStack() as around:
        for path, name, instead in skipped:
            with suppress(ImportError, AttributeError):
                where = pkgutil.resolve_name(path)
                around.enter_context(mock.patch.object(where, name, instead))
        yield


@contextmanager
def storages_looked_up() -> Iterator[None]:
    """TorchLens asks every tensor for its storage, for the time of the block.

    Otherwise it asks once per address of a tensor, between two scans of all buffers, and takes a new tensor at the
    address of one that is gone for that one: for a buffer of the module, where that one was its view.
    """
    from unittest import mock

    from torchlens.backends.torch import buffer_writes

    tracker = buffer_writes.BufferWriteTracker
    with (
        mock.patch.object(tracker, "storage_key", lambda self, tensor: buffer_writes.storage_key(tensor)),
        mock.patch.object(tracker, "storage_range", lambda self, tensor: buffer_writes._storage_range(tensor)),
    ):
        yield


@contextmanager
def views_keep_their_names() -> Iterator[None]:
    """What is written into a view names that view alone, for the time of the block.

    TorchLens would name every other view of the memory after it too: who then reads all of the tensor would seem to
    read a part of it. An export names them apart as well.
    """
    from unittest import mock

    from torchlens.backends.torch import wrappers

    with mock.patch.object(wrappers, "_propagate_mutation_label_to_storage_aliases", create=True):
        yield


@contextmanager
def whole_operators() -> Iterator[None]:
    """Custom operators are one call each, under their full name, for the time of the block.

    TorchLens records what a custom operator's Python code calls instead of the operator. On meta that is the
    code that makes empty tensors of the right shapes: the operator's work, and what it reads, would be gone.
    TorchLens may have wrapped torch's functions before, or do so inside.
    """
    from unittest import mock

    import torch
    from torch._library.custom_ops import CustomOpDef
    from torchlens import _state
    from torchlens.backends.torch import _torch_ops_calls as recorder

    def custom(operator: Any) -> str:
        name: str = recorder._qualified_name(operator)
        return "" if name.startswith(_TORCH_S_OWN) else name.replace("::", ".")

    def whole(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            if not custom(self):
                return original(self, *args, **kwargs)
            with _state.pause_logging():
                return original(self, *args, **kwargs)

        return call

    def directly(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        # On meta TorchLens expects pieces of a larger operator in what torch's own Python calls, and leaves them
        # out. A function made by torch.library.custom_op is such Python, and its operator the model's work.
        return self._opoverload(*args, **kwargs)

    plain = recorder._recorded_op_name
    # Its own patch of these classes stands outside ours, so that ours is what it takes for the operator.
    again = bool(recorder._ORIGINAL_CALLS)
    recorder.uninstall_torch_ops_call_recorders()
    packet, overload = torch._ops.OpOverloadPacket, torch._ops.OpOverload
    try:
        with (
            mock.patch.object(recorder, "_recorded_op_name", lambda op: custom(op) or plain(op)),
            mock.patch.object(CustomOpDef, "__call__", directly),
            mock.patch.object(packet, "__call__", whole(packet.__call__)),
            mock.patch.object(overload, "__call__", whole(overload.__call__)),
        ):
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
def calls_in_place() -> Iterator[None]:
    """Functions that overwrite their argument are calls of their own on meta, for the time of the block.

    There torch runs them in Python, through other functions of torch. TorchLens takes the innermost for the operator,
    unless the result is a tensor that it has not seen; and what was overwritten it has. The call would be lost. So
    where nothing was recorded inside, the outer call is the innermost again.
    TorchLens wraps torch's functions for it.
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
        for wrapper, original in list(_state._decorated_func_mapper.items()):
            names = getattr(getattr(wrapper, "__code__", None), "co_freevars", ())
            if {"func", "func_name"} <= set(names):
                cells = dict(zip(names, wrapper.__closure__ or (), strict=True))
                if _overwrites(cells["func_name"].cell_contents, original):
                    changed.append((cells["func"], original))
                    cells["func"].cell_contents = innermost(original)
        yield
    finally:
        for cell, original in changed:
            cell.cell_contents = original


def _overwrites(name: str, function: Callable[..., Any]) -> bool:
    """Whether a function of torch overwrites its first argument, always or when it is told to."""
    code = getattr(function, "__code__", None)
    told = code is not None and "inplace" in code.co_varnames[: code.co_argcount]
    return told or (name.endswith("_") and not name.endswith("__")) or _AUGMENTED.fullmatch(name) is not None


@contextmanager
def uncollected() -> Iterator[None]:
    """Without garbage collection: tracing makes objects by the hundred thousand, and all of them stay."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@contextmanager
def watched(modules: Iterable[nn.Module], enter: Hook, leave: Hook, *, with_kwargs: bool = False) -> Iterator[None]:
    """Hooks around every call of these modules, for the time of the block. A hook returns nothing.

    Args:
        enter: (module, args), or (module, args, kwargs).
        leave: the same and the output; called after an exception too: a caller may catch it, and go on.
    """
    with ExitStack() as stack:
        for module in modules:
            stack.callback(module.register_forward_pre_hook(enter, with_kwargs=with_kwargs).remove)
            stack.callback(module.register_forward_hook(leave, with_kwargs=with_kwargs, always_call=True).remove)
        yield
