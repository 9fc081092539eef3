"""Trace a run with TorchLens, and convert the trace to the form that all sources share, with modules and tensors.

TorchLens logs the forward of the model itself, structure only: shapes and dtypes, no values. It records Python-level
operators (``__add__``, ``scaled_dot_product_attention``), so the graph is independent of the exporter's.
"""

from __future__ import annotations

import copy
import inspect
import re
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.environment import advice
from costproof.ledger.errors import Incomplete, first_line
from costproof.ledger.node import UnknownOp
from costproof.models.generic.caches import CACHES
from costproof.models.specs import Run
from costproof.opgraph.graph import AUTOCAST, Graph, ModuleCall, OpCall, Value
from costproof.patches.inference import inference_context
from costproof.patches.modules import hooks_inside_forward
from costproof.patches.patch import gc_disabled, patched
from costproof.patches.tensor import SPLIT_INDEXING, disabled_autocast
from costproof.patches.torchlens import (
    ASK_EVERY_STORAGE,
    KEEP_VIEW_LABELS,
    LEAVE_NO_METHODS,
    SKIP_UNUSED_WORK,
    dead_code_recorded,
    in_place_calls_recorded,
    whole_operators,
    wrapped_once,
)
from costproof.tracers.paths import Paths, dtype_name, mark_autocast, narrowest_dtype, plain_value

if TYPE_CHECKING:
    from torch import nn

CACHE_ROLES: Final = tuple(f".{name}." for name in CACHES)
"""Parts of the names that TorchLens gives key/value caches among the outputs."""
CACHE_INPUTS: Final = tuple(f"input.{name}." for name in CACHES)


@dataclass(frozen=True, slots=True)
class TracedForward:
    """Trace of one forward; paths are relative to the traced module."""

    graph: Graph
    inputs: tuple[Value, ...]
    """Tensors among the arguments, named by their path: ``input.keys.0``."""
    problems: tuple[str, ...]
    """Tensors that TorchLens saw as operator arguments and could not attribute, as sentences."""
    notes: tuple[str, ...] = ()
    """Assumptions of the trace, as sentences."""


def trace_graph(run: Run) -> TracedForward:
    """Trace one forward of the whole model, and convert it to the form that all sources share.

    Raises:
        Incomplete: torchlens is missing or cannot trace the run.
    """
    return trace_forward(run.model, run.kwargs, f"run {run.id}")


def trace_forward(
    model: nn.Module,
    kwargs: Mapping[str, Any],
    where: str,
    cache_roles: tuple[str, ...] = CACHE_ROLES,
    cache_inputs: tuple[str, ...] = CACHE_INPUTS,
) -> TracedForward:
    """Trace one forward of any module, and convert it to the form that all sources share.

    Args:
        where: name of the traced run or stage, for the error text.
        cache_roles: parts of TorchLens's names of outputs that are a key/value cache.
        cache_inputs: prefixes of TorchLens's names of inputs that are a cache.

    Raises:
        Incomplete: torchlens is missing or cannot trace the module.
    """
    try:
        import torchlens
        from torchlens.options import CaptureOptions
    except ImportError as error:
        raise Incomplete("the dynamic source needs torchlens", got=str(error), fix=advice("trace")) from error
    options = CaptureOptions(
        # With concrete values the model really runs, and only the shapes of its results are kept.
        structure_only=all(p.device.type == "meta" for p in model.parameters()),
        layers_to_save=[],
        recurrence_detection=False,
        compute_input_output_distances=False,
        save_code_context=False,
        inference_only=True,
    )
    with ExitStack() as around:
        # First, since functions that are patched for a run would be wrapped, and wrapped again for the next run.
        around.enter_context(wrapped_once())
        assumed = around.enter_context(inference_context(model))
        lacking = around.enter_context(disabled_autocast())
        around.enter_context(hooks_inside_forward(model))
        around.enter_context(warnings.catch_warnings())
        around.enter_context(gc_disabled())
        around.enter_context(whole_operators())
        around.enter_context(in_place_calls_recorded())
        around.enter_context(
            patched(*SPLIT_INDEXING, KEEP_VIEW_LABELS, LEAVE_NO_METHODS, *ASK_EVERY_STORAGE, *SKIP_UNUSED_WORK)
        )
        around.enter_context(dead_code_recorded())
        try:
            # A loop over experts depends on data, and the operators that ran are counted.
            warnings.filterwarnings("ignore", message="TorchLens observed .* scalar escape")
            # A failed trace is reported by our own error.
            warnings.filterwarnings("ignore", message="TorchLens capture attempt failed")
            trace = torchlens.trace(model, *_arguments(model, kwargs), capture=options)
        except Exception as error:
            raise Incomplete("TorchLens cannot trace the model", where=where, got=first_line(error)) from error
        # TorchLens's own clean-up takes a fifth of the time; its records are deleted with the trace.
        reader = _TraceReader(trace, Paths(model), cache_roles, cache_inputs)
        graph = mark_autocast(reader.read(), lacking)
        return TracedForward(graph, reader.inputs(), tuple(reader.problems), tuple(assumed))


def lost_tensors(problems: Iterable[str], stage: str) -> tuple[UnknownOp, ...]:
    """Return the tensors that TorchLens could not attribute, as unknown operators, which make the count incomplete."""
    return tuple(
        UnknownOp(problem.split(":")[0], stage, "", 1, None, f"TorchLens lost a tensor: {problem}")
        for problem in problems
    )


def _arguments(model: nn.Module, given: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return copies of the arguments as (positional, keyword), since a forward modifies its cache.

    TorchLens takes an empty list for *the* argument of a forward with one argument; that one is passed by position.
    """
    kwargs = copy.deepcopy(dict(given))
    spec = inspect.getfullargspec(model.forward)
    names = [n for n in spec.args if n != "self"]
    if spec.varargs is None and len(names) == 1 and names[0] in kwargs:
        return [kwargs.pop(names[0])], kwargs
    return [], kwargs


class _TraceReader:
    """Reader of the records of a TorchLens trace, which converts them to a graph."""

    def __init__(self, trace: Any, paths: Paths, cache_roles: tuple[str, ...], cache_inputs: tuple[str, ...]) -> None:
        self.trace, self.paths, self.cache_roles, self.cache_inputs = trace, paths, cache_roles, cache_inputs
        self.values: dict[str, Value] = {}
        self.params: dict[str, Value] = {}
        self.buffers: dict[tuple[Any, ...], Value] = {}
        self.problems: list[str] = []

    def read(self) -> Graph:
        records = list(self.trace.ops)
        calls: dict[Any, list[Any]] = {}
        """Results of each operator call, by number of the call; without a number each result is a separate call."""
        for record in records:
            if record.is_output:
                continue
            label = tensor_label(record.label)
            origin = "input" if record.is_input else "buffer" if record.is_buffer else "op"
            name = _ITEM.sub(r".\2", record.address or "") if origin == "buffer" else (record.io_role or "")
            if origin == "input" and name.startswith(self.cache_inputs):
                origin = "cache"
            found = Value(label, tuple(record.shape), dtype_name(record.dtype), origin, name)
            if origin == "buffer" and name:  # one that was written to is recorded again where it is read
                found = self.buffers.setdefault((name, found.shape, found.dtype), found)
            self.values[label] = found
            if origin == "op":
                calls.setdefault(label if record.func_call_id is None else record.func_call_id, []).append(record)
        ops = tuple(map(self._op, calls.values()))
        outputs: list[Value] = []
        cache: list[Value] = []
        for record in records:
            given = self.values.get(tensor_label(record.parents[0])) if record.is_output and record.parents else None
            if given is None:
                continue
            if not any(role in (record.io_role or "") for role in self.cache_roles):
                outputs.append(given)
            elif given.floating:
                cache.append(given)
        return Graph(ops, tuple(outputs), tuple(cache), tuple(map(self._call, self.trace.module_calls)))

    def inputs(self) -> tuple[Value, ...]:
        return tuple(v for v in self.values.values() if v.origin in ("input", "cache"))

    def _op(self, group: list[Any]) -> OpCall:
        record = group[0]
        outputs = [self.values[tensor_label(r.label)] for r in sorted(group, key=lambda r: r.multi_output_index or 0)]
        module, call = self._split(record.module_call_stack[-1]) if record.module_call_stack else ("", 1)
        tensors, names, attrs = self._arguments(record)
        for what in ("unattributed_tensor_args", "dropped_edge_tensor_args"):
            for lost in getattr(record, what, None) or ():
                self.problems.append(f"{tensor_label(record.label)}: {what.split('_')[0]} argument {lost}")
        if cast_to := autocast_dtype(record):
            attrs = {**attrs, AUTOCAST: cast_to}
        name = operator_name(record)
        return OpCall(tensor_label(record.label), name, module, call, tensors, tuple(outputs), attrs, names)

    def _arguments(self, record: Any) -> tuple[tuple[Value, ...], Mapping[str, Value], Mapping[str, Any]]:
        """Return a recorded call's tensor arguments in order and by position, and its other arguments."""
        positions: dict[tuple[Any, ...], Value] = {}
        for where, parent in record.parent_arg_positions["args"].items():
            positions[argument_path(where)] = self.values[tensor_label(parent)]
        form = signature(record, positions)
        given = {
            keyword_place(k, form, record.num_pos_args): self.values[tensor_label(p)]
            for k, p in record.parent_arg_positions["kwargs"].items()
        }
        positions = given | positions
        params = [self._param(p) for p in record._param_logs]
        leaves = [param.name.rsplit(".", 1)[-1] for param in params]
        positions |= dict(zip(parameter_places(leaves, positions, form, given), params, strict=True))
        plain = list(record.non_tensor_pos_args)
        held = {where[0] for where in positions}
        by_name: dict[str, Value] = {}
        for where in sorted(positions, key=sort_key):
            if where[1:]:
                continue
            if isinstance(where[0], str):
                by_name[where[0]] = positions[where]
            elif where[0] < len(form.names):
                by_name[form.names[where[0]]] = positions[where]
        tensors = [positions[w] for w in sorted(positions, key=sort_key)]
        attrs: dict[str, Any] = {}
        slots = (i for i in range(len(plain) + len(held)) if i not in held)
        for slot, value in zip(slots, plain, strict=False):
            name = form.names[slot] if slot < len(form.names) else ("other" if slot == 1 else str(slot))
            attrs[name] = plain_value(value)
        attrs |= {str(k): plain_value(v) for k, v in record.non_tensor_kwargs.items()}
        return tuple(tensors), by_name, attrs

    def _param(self, log: Any) -> Value:
        name = self.paths.parameter(str(log.address))
        if name not in self.params:
            self.params[name] = Value(f"param:{name}", tuple(log.shape), dtype_name(log.dtype), "param", name)
        return self.params[name]

    def _split(self, label: str) -> tuple[str, int]:
        """Return (module path, call number) from TorchLens's label of a module call."""
        path, call = label.rsplit(":", 1)
        return self.paths.module(module_path(path)), int(call)

    def _call(self, call: Any) -> ModuleCall:
        parent = self._split(call.call_parent_label) if call.call_parent_label else None
        module = self.paths.module(module_path(call.address))
        return ModuleCall(module, int(call.call_index), parent, str(call.class_name))


_BUILT_IN: Final = ("_VariableFunctionsClass.", "fft_", "linalg_", "special_")
"""Prefixes of torch's qualified function names whose arguments are those of the operator of the same name."""


@dataclass(frozen=True, slots=True)
class Signature:
    """Names of an operator's arguments, with the positions that take tensors or lists of tensors."""

    names: list[str]
    tensors: Collection[int] | None = None
    """Positions that take one tensor; ``None`` if unknown."""
    lists: Sequence[int] = ()
    """Positions that take a list of tensors."""


_ITEM: Final = re.compile(r"\[(['\"]?)(.*?)\1\]")
"""Item of a dict or of a list inside one, in TorchLens's name of a tensor that is a plain attribute."""


def tensor_label(label: str) -> str:
    """Return TorchLens's label of a tensor with the number of the pass, which it omits for a layer with one pass."""
    return label if ":" in label else f"{label}:1"


def module_path(address: str) -> str:
    """Return the path of a module from the traced module, which TorchLens calls ``self``."""
    return "" if address == "self" else address


def argument_path(where: Any) -> tuple[Any, ...]:
    """Return the position of an argument as a path (a tuple) into the nested arguments."""
    return where if isinstance(where, tuple) else (where,)


def sort_key(where: tuple[Any, ...]) -> tuple[str, ...]:
    """Return a key that sorts argument positions in the order of the call."""
    return tuple(f"{p:06d}" if isinstance(p, int) else str(p) for p in where)


def operator_name(record: Any) -> str:
    """Return the name of the operator, with the submodule of torch for ``fft_fft``, ``linalg_norm`` and the like."""
    name, full = str(record.func_name), str(record.func_qualname or "")
    return full if full.startswith(_BUILT_IN[1:]) and full.endswith(f"_{name}") else name


def signature(record: Any, places: Collection[tuple[Any, ...]]) -> Signature:
    """Return the argument names of a recorded call, from TorchLens's record or the operator's schema.

    Args:
        places: positions of activations among the arguments.
    """
    if "." in record.func_name:
        return Signature(list(_common_names(_schemas(*record.func_name.split(".", 1)))))
    names = [str(n).strip() for n in record.arg_names]
    full = record.func_qualname or ""
    if full.startswith(_BUILT_IN) or not (names or full.startswith("TensorBase.")):
        for schema in _schemas("aten", operator_name(record)):
            found = _fitting(schema, record, places)
            if found is not None:
                return found
    if record.func_name.startswith("__") and not names:
        names = ["input", "other"]
    elif full.startswith("TensorBase.") and names[:1] not in (["input"], ["self"]):
        names = ["input", *names]
    return Signature(names)


def autocast_dtype(record: Any) -> str:
    """Return the narrowest autocast dtype that was on when an operator was called; empty without autocast.

    TorchLens sees an operator before autocast casts its arguments, and the record has their dtypes before the cast.
    """
    states = (record.func_autocast_state or {}).values()
    return narrowest_dtype(dtype_name(s["dtype"]) for s in states if s.get("enabled") and s.get("dtype") is not None)


def keyword_place(where: Any, form: Signature, after: int) -> tuple[Any, ...]:
    """Return the position of an argument that is passed by name.

    Args:
        after: number of positional arguments; a name that belongs to one of them is wrong and stays a name.
    """
    name, *inside = argument_path(where)
    # Python functions of torch name the first argument ``input``, operator schemas ``self``.
    known = "self" if name == "input" and form.names[:1] == ["self"] else name
    return (form.names.index(known, after) if known in form.names[after:] else name, *inside)


def parameter_places(
    leaves: Sequence[str], given: Collection[tuple[Any, ...]], form: Signature, named: Collection[tuple[Any, ...]] = ()
) -> list[tuple[Any, ...]]:
    """Return the argument positions of a call's parameters, which TorchLens does not record.

    Args:
        leaves: the parameters' own names. A parameter named like an argument is that argument; the last of several.
        given: positions of activations.
        named: positions of activations that are passed by name.
    """
    certain = {where[0] for where in named}
    taken, result = set(given), list[tuple[Any, ...]]()
    for at, leaf in enumerate(leaves):
        held = {where[0] for where in taken}
        wanted = form.names.index(leaf) if leaf in form.names and leaf not in leaves[at + 1 :] else None
        free = count() if form.tensors is None else iter(form.tensors)
        slot = wanted if wanted is not None and wanted not in held else next((i for i in free if i not in held), None)
        where = _in_list(taken, form) if slot is None else (slot,)
        swap = form.tensors is None and wanted not in certain
        if swap and wanted is not None and slot is not None and wanted != slot < len(form.names):
            # The names belong to the calling function, which passes the arguments in another order.
            form.names[slot], form.names[wanted] = form.names[wanted], form.names[slot]
        taken.add(where)
        result.append(where)
    return result


def _in_list(taken: Collection[tuple[Any, ...]], form: Signature) -> tuple[Any, ...]:
    """Return the position of the next parameter in a list argument: the first gap, else the end of a list."""
    held = {at: {where[1] for where in taken if len(where) > 1 and where[0] == at} for at in form.lists}
    for at, inside in held.items():
        hole = next(i for i in count() if i not in inside)
        if hole < len(inside):
            return (at, hole)
    empty = [at for at, inside in held.items() if not inside]
    if not held:
        return (next(i for i in count(len(form.names)) if (i,) not in taken),)
    at = empty[0] if empty else max(held)
    return (at, len(held[at]))


def _fitting(schema: _Schema, record: Any, places: Collection[tuple[Any, ...]]) -> Signature | None:
    """Return the schema's signature if it can match a call with tensors at these positions; else ``None``."""
    form, given = schema.form, record.num_pos_args
    kinds = (form.tensors or (), form.lists)
    if len(form.names) < given or any(where[0] not in kinds[len(where) > 1] for where in places):
        return None
    held = {where[0] for where in places}
    needed = [i for i in schema.required if i < given and i not in held]
    return form if len(needed) <= len(record._param_logs) else None


@dataclass(frozen=True, slots=True)
class _Schema:
    form: Signature
    required: tuple[int, ...]
    """Positions of required tensors."""


@cache
def _schemas(space: str, name: str) -> tuple[_Schema, ...]:
    import torch

    packet = getattr(getattr(torch.ops, space), name, None)
    found = []
    for overload in packet.overloads() if packet is not None else ():
        arguments = [a for a in getattr(packet, overload)._schema.arguments if not a.kwarg_only or space != "aten"]
        kinds = [str(a.type) for a in arguments]
        tensors = tuple(i for i, kind in enumerate(kinds) if kind in ("Tensor", "Optional[Tensor]"))
        lists = tuple(i for i, kind in enumerate(kinds) if kind.startswith("List[") and "Tensor" in kind)
        names = [str(a.name) for a in arguments]
        found.append(_Schema(Signature(names, tensors, lists), tuple(i for i in tensors if kinds[i] == "Tensor")))
    return tuple(found)


def _common_names(schemas: Sequence[_Schema]) -> list[str]:
    """Return the argument names of a custom operator; empty if its overloads differ in them."""
    found = [schema.form.names for schema in schemas]
    return found[0] if found and all(names == found[0] for names in found) else []
