"""Trace a run with nested or distributed tensors at the dispatcher, where operators take local tensors or rows.

TorchLens wraps functions of Python, where a distributed tensor has the size of the whole model. Below, each operator
takes the local tensors of one rank, or the rows of a nested tensor, and collectives are operators too. Three kinds of
calls are left out: those on distributed or nested tensors, which run others below; those on fake tensors, by which
torch finds out the layout of a result; and those inside a function that is recorded as one operator, as an export has
it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from costproof.ledger.errors import Incomplete, first_line
from costproof.models.generic.caches import caches_of, leaves, states
from costproof.models.specs import Run
from costproof.opgraph.graph import Graph, ModuleCall, OpCall, Value
from costproof.opgraph.rules.collectives import GROUP_RANK, GROUP_SIZE, OF_RING
from costproof.patches.exchanges import IN_RING
from costproof.patches.inference import inference_context
from costproof.patches.modules import forward_redirected, hooked
from costproof.patches.nested import KIND, rows_of
from costproof.patches.patch import patched
from costproof.patches.tensor import STACK_INDEX_ROWS
from costproof.snapshots.copies import attribute_tensors
from costproof.tracers.paths import Paths, dtype_name, plain_value, split_arguments
from costproof.tracers.torchlens_trace import TracedForward

if TYPE_CHECKING:
    from torch import nn

_COMPOSED: Final = frozenset({"DTensor", KIND})
"""Tensor classes that run their operators on inner tensors."""
_FAKE: Final = "FakeTensor"
_VIEWS: Final = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
"""Dispatch key that would return a view of a nested tensor as another object than the recorded one."""
_GROUPS: Final = ("c10d", "_c10d_functional", "_dtensor")
"""Namespaces of collectives."""
_WHOLE: Final[Mapping[str, Any]] = {
    "linear": torch.ops.aten.linear.default,
    "scaled_dot_product_attention": torch.ops.aten.scaled_dot_product_attention.default,
    "repeat_interleave": torch.ops.aten.repeat_interleave.self_int,
    "matmul": torch.ops.aten.matmul.default,
    "__matmul__": torch.ops.aten.matmul.default,
}
"""Functions that are recorded as one operator, although the dispatcher sees their parts, by their name in TorchLens."""


def trace_dispatched(run: Run) -> TracedForward:
    """Run a model once, and return the operators that the dispatcher sees.

    Raises:
        Incomplete: the model cannot run.
    """
    kwargs = run.inputs()
    log = _OperatorRecorder(run.model, kwargs)
    try:
        with (
            inference_context(run.model) as assumed,
            patched(*STACK_INDEX_ROWS),
            hooked(log.paths.modules.values(), log.enter, log.leave, first=True),
            forward_redirected(run.model),
            torch._C._ExcludeDispatchKeyGuard(_VIEWS),
            log,
            _WholeFunctions(log),
        ):
            result = run.model(**kwargs)
    except Incomplete:
        raise
    except Exception as error:  # code of other packages may raise anything
        raise Incomplete(
            "the model fails while its operators are recorded", where=f"run {run.id}", got=first_line(error)
        ) from error
    return TracedForward(log.graph(result), tuple(log.inputs), (), tuple(assumed))


def _kinds(types: Any) -> set[str]:
    return {kind.__name__ for kind in types}


class _OperatorRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that records operators on ordinary and local tensors."""

    def __init__(self, model: nn.Module, kwargs: Mapping[str, Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.paths, self.ops = Paths(model), list[OpCall]()
        self.calls: list[ModuleCall] = []
        self.inputs: list[Value] = []
        self._stack: list[tuple[str, int]] = []
        self._counts = Counter[str]()
        self._values: dict[int, Value] = {}
        """Recorded value of a tensor, by ``id`` of the tensor."""
        self._kept: list[Any] = []
        """Recorded tensors, kept alive so that no other tensor gets the id of one."""
        self.muted = 0
        for name, parameter in self.paths.parameters.items():
            self._given(getattr(parameter, "_local_tensor", parameter), "param", name)
            if (part := getattr(parameter, "_costproof_part", None)) is not None:  # before it is gathered
                self._given(part, "param", name, f"part:{name}")
        for name, buffer in self.paths.buffers.items():
            self._given(buffer, "buffer", name)
        for name, tensor in attribute_tensors(model):
            self._given(tensor, "const", name)
        cached = {id(t) for t in states(*caches_of(kwargs).values())}
        for path, leaf in leaves(kwargs):
            if isinstance(leaf, torch.Tensor):
                name = f"input.{'.'.join(str(key) for _, key in path)}"
                value = self._given(leaf, "cache" if id(leaf) in cached else "input", name)
                self.inputs.append(value)

    def enter(self, module: nn.Module, args: Any) -> None:
        path = self.paths.by_id[id(module)]
        self._counts[path] += 1
        parent, here = (self._stack[-1] if self._stack else None), (path, self._counts[path])
        self.calls.append(ModuleCall(*here, parent, type(module).__name__))
        self._stack.append(here)
        self._gathered(module, path)
        for name, inner in module.named_children():  # a module may use what it does not call
            self._gathered(inner, f"{path}.{name}" if path else name)

    def _gathered(self, module: nn.Module, path: str) -> None:
        """Record the current parameters of a module, which may have been gathered since the recorder was created."""
        for leaf, parameter in module._parameters.items():
            if parameter is not None and type(parameter).__name__ != KIND:
                local = getattr(parameter, "_local_tensor", parameter)
                if (known := self._values.get(id(local))) is not None and known.origin == "op":  # a view of a gather
                    del self._values[id(local)]
                self._given(local, "param", self.paths.parameter(f"{path}.{leaf}" if path else leaf))

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        self._stack.pop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _COMPOSED & _kinds(types):
            return NotImplemented
        kwargs = kwargs or {}
        if self.muted or func.namespace == "prim":
            return func(*args, **kwargs)
        given = self._arguments(func, args, kwargs)
        result = func(*args, **kwargs)
        self._record(func, given, result)
        return result

    def whole(self, operator: Any, function: Any, args: Any, kwargs: Any) -> Any:
        """Call a function, and record the call as one operator."""
        given = self._arguments(operator, args, kwargs)
        with self._mute():
            result = function(*args, **kwargs)
        self._record(operator, given, result)
        return result

    @contextmanager
    def _mute(self) -> Iterator[None]:
        self.muted += 1
        try:
            yield
        finally:
            self.muted -= 1

    def _arguments(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Describe the arguments of a call before it runs, since it may overwrite them."""
        tensors, attrs, names = split_arguments(func._schema, args, kwargs, self._tensors, _plain)
        if func.namespace in _GROUPS and (place := _group_place(func, args, kwargs)):
            attrs[GROUP_SIZE], attrs[GROUP_RANK] = place
            attrs |= {OF_RING: True} if IN_RING.get() else {}
        return tensors, attrs, names

    def _record(self, func: Any, given: Any, result: Any) -> None:
        tensors, attrs, names = given
        made = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
        if any(type(t).__name__ == _FAKE for t in made):
            return
        label = f"{len(self.ops)}_{func._schema.name.rpartition('::')[2]}"
        outputs = []
        for i, tensor in enumerate(made):
            # A call in place returns its argument, which is another value from then on.
            value = Value(f"{label}.{i}", tuple(tensor.shape), dtype_name(tensor.dtype))
            self._values[id(tensor)] = value
            self._kept.append(tensor)
            outputs.append(value)
        if tensors or outputs:
            module, call = self._stack[-1] if self._stack else ("", 1)
            self.ops.append(OpCall(label, str(func), module, call, tensors, tuple(outputs), attrs, names))

    def _given(self, tensor: torch.Tensor, origin: str, name: str, label: str = "") -> Value:
        if id(tensor) not in self._values:
            self._kept.append(tensor)
            label = label or f"{origin}:{name}"
            self._values[id(tensor)] = Value(label, tuple(tensor.shape), dtype_name(tensor.dtype), origin, name)
        return self._values[id(tensor)]

    def _tensors(self, argument: Any) -> list[Value]:
        return [
            self._given(leaf, "const", f"{len(self._kept)}")
            for leaf in tree_leaves(argument)
            if isinstance(leaf, torch.Tensor)
        ]

    def graph(self, result: Any) -> Graph:
        """Return the graph of the recorded operators and the run's results."""
        cached = {id(t) for t in states(*caches_of(result).values())}
        found = [rows_of(leaf) for _, leaf in leaves(result) if isinstance(leaf, torch.Tensor)]
        known = [(id(t) in cached, self._values[id(t)]) for t in found if id(t) in self._values]
        outputs = tuple(value for is_cache, value in known if not is_cache)
        cache = tuple(value for is_cache, value in known if is_cache and value.floating)
        return Graph(tuple(self.ops), outputs, cache, tuple(self.calls))


class _WholeFunctions(TorchFunctionMode):
    """Function mode that makes the recorder treat some functions on local tensors as one operator."""

    def __init__(self, log: _OperatorRecorder) -> None:
        super().__init__()
        self._log = log

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        operator = _WHOLE.get(getattr(func, "__name__", ""))
        if len(args) > 1 and isinstance(args[1], torch.Tensor) and operator is _WHOLE["repeat_interleave"]:
            operator = None  # another overload, which is one operator below too
        if operator is None or self._log.muted or {*_COMPOSED, _FAKE} & _kinds(types):
            return func(*args, **kwargs)
        return self._log.whole(operator, func, args, kwargs)


def _plain(argument: Any) -> Any:
    """Return an argument without tensors as plain data; a process group becomes the name of its type."""
    return plain_value(argument) if not isinstance(argument, torch.ScriptObject) else type(argument).__name__


def _group_place(func: Any, args: Any, kwargs: Any) -> tuple[int, int] | None:
    """Return the number of ranks in a collective's process group and this rank's index; ``None`` without a group."""
    from torch.distributed import ProcessGroup, distributed_c10d

    arguments = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
    if isinstance(name := arguments.get("group_name"), str):
        resolve: Any = vars(distributed_c10d)["_resolve_process_group"]
        known: Any = resolve(name)
        return int(known.size()), int(known.rank())
    group = arguments.get("process_group")
    own = None if group is None else ProcessGroup.unbox(group)
    return None if own is None else (int(own.size()), int(own.rank()))
