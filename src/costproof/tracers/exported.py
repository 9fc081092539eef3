"""Convert graphs of ``torch.export`` to the form that all sources share, with shapes in our symbols.

An :class:`~costproof.models.specs.ExportJob` names the dimensions that stay symbolic. The exporter's own symbols are
replaced by those names. An export that specialized one of them to a number is refused, because its costs would hold at
one size only.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.errors import Incomplete
from costproof.models.generic.caches import caches_of, states
from costproof.models.specs import ExportJob
from costproof.opgraph.graph import AUTOCAST, Graph, ModuleCall, OpCall, Value, path_renamer
from costproof.opgraph.rules.collectives import with_gathered_parameters
from costproof.opgraph.rules.matmul import NONZERO
from costproof.opgraph.rules.names import canonical
from costproof.patches.tensor import disabled_autocast
from costproof.snapshots.copies import attribute_tensors, held_bytes
from costproof.tracers.exporting import SizeTranslator, export_program, inputs_by_path
from costproof.tracers.paths import COMPILED, Paths, dtype_name, mark_autocast, plain_value, split_arguments, unwrapped

if TYPE_CHECKING:
    import torch
    from torch import fx

_PAST = ("keys", "values", "states")
"""Names of wrapper arguments that fill a cache which the call extends."""
_CACHED = (*_PAST, "cross_keys", "cross_values")
"""Names of wrapper arguments that fill any cache."""
_MADE = "lifted_tensor"
"""Name prefix that the exporter gives tensors made of literals, such as ``torch.tensor(0.5)``."""
_MAKES = "aten.lift_fresh_copy.default"
"""Operator that makes a tensor of literals; on meta the exporter has none, and names begin with ``detach_``."""
_NOWHERE = "_empty_nn_module_stack"
"""Prefix of the module path of nodes that the exporter adds itself."""

_SCAFFOLDING = frozenset({
    "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "zeros", "zeros_like",
    "tensor", "scalar_tensor", "lift_fresh", "lift_fresh_copy", "detach",
})  # fmt: skip
"""Operators that a wrapper may run around the model: they make empty tensors for a cache and compute nothing."""


@dataclass(frozen=True, slots=True)
class Exported:
    """An exported graph in the form that all sources share, with its guards."""

    job: ExportJob
    graph: Graph
    parameters: Mapping[str, tuple[tuple[int, ...], str]]
    """Shape and dtype of all parameters of the program, read or not, by full name."""
    buffers: Mapping[str, int | None]
    """Bytes of the program's buffers, by full name."""
    cache_inputs: tuple[Value, ...]
    """Cached keys and values among the graph's inputs, recognised by their argument names."""
    guards: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """Assumptions of the export, as sentences."""


def export_graph(job: ExportJob) -> Exported:
    """Export one part of a model on meta, and convert it to the form that all sources share.

    Raises:
        Incomplete: the export fails, specializes a size that must stay symbolic, or has an operator that
            computes outside the model's own modules.
    """
    # A cache that belongs to the module and is not an argument: the export replaces it.
    before = states(*caches_of(getattr(job.module, "rest", {})).values())
    with disabled_autocast() as lacking:
        program, assumed = export_program(job)
    found = _ExportReader(job, program, SizeTranslator(job, program), before).read(assumed)
    return replace(found, graph=mark_autocast(found.graph, lacking))


class _ExportReader:
    """Reader of an exported program that converts it to a graph."""

    def __init__(
        self,
        job: ExportJob,
        program: torch.export.ExportedProgram,
        sizes: SizeTranslator,
        before: Sequence[torch.Tensor] = (),
    ) -> None:
        self.job, self.program, self.size = job, program, sizes
        self.before = {id(tensor) for tensor in before}
        """Ids of cache tensors that the program contains as constants."""
        self.past: list[fx.Node] = []
        self.places: dict[fx.Node, str] = {}
        """Path among the arguments of each input outside the cache, such as ``lengths`` or ``x.1``."""
        self.rename = path_renamer({unwrapped(inner): outer for inner, outer in job.prefix.items()})
        self.paths = Paths(job.module)
        self.known = {name for name, _ in job.module.named_modules(remove_duplicate=False)}
        self.attributes = tuple(attribute_tensors(job.module))
        self.values: dict[fx.Node, Value | tuple[Value | None, ...]] = {}
        self.mapped = Mapped()
        self.region = self.autocast = ""
        """Label prefix inside the graph of a higher-order operator, which has separate node names."""
        self.ops: list[OpCall] = []
        self.calls: dict[str, list[str]] = {}
        self.seen: dict[tuple[str, int], ModuleCall] = {}
        self.stacks: dict[tuple[tuple[str, str, str], ...], tuple[str, int] | None] = {}

    def read(self, notes: tuple[str, ...] = ()) -> Exported:
        specs = {s.arg.name: s for s in self.program.graph_signature.input_specs}
        inputs = inputs_by_path(self.job, self.program)
        cached = {n for p, n in inputs.items() if self.job.returns_cache and p[0] in _CACHED}
        self.places = {n: ".".join(map(str, p)) for p, n in inputs.items() if n not in cached}
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node, specs[node.name], cached=node in cached)
            elif node.op == "call_function":
                self._call(node)
        result, cache = self._outputs()
        past = [n for p, n in inputs.items() if self.job.returns_cache and p[0] in _PAST] + self.past
        parameters = {
            outer: (tuple(int(s) for s in tensor.shape), dtype_name(tensor.dtype))
            for name in self.program.graph_signature.parameters
            if (outer := self._named(name)) is not None
            for tensor in (self.program.state_dict[name],)
        }
        held = {**self.program.constants, **self.program.state_dict}
        buffers = held_bytes({
            outer: held[name]
            for name in self.program.graph_signature.buffers
            if (outer := self._named(name)) is not None
        })  # fmt: skip
        graph = Graph(tuple(self.ops), result, cache, tuple(self.seen.values())).with_calls_of(self.job.own_calls)
        graph = with_gathered_parameters(graph)
        cache_inputs = tuple(v for n in past if isinstance(v := self.values[n], Value))
        return Exported(self.job, graph, parameters, buffers, cache_inputs, self.size.guards, notes)

    def _placeholder(self, node: fx.Node, spec: Any, *, cached: bool) -> None:
        value = node.meta.get("val")
        if not hasattr(value, "shape"):
            return
        kind = spec.kind.name
        if kind == "CONSTANT_TENSOR" and id(self.program.constants[spec.target]) in self.before:
            self.past.append(node)
        given = "cache" if cached else "input"
        known = "cache" if node in self.past else "const"
        origin = {"PARAMETER": "param", "BUFFER": "buffer", "USER_INPUT": given}.get(kind, known)
        name = (self._named(spec.target) or spec.target) if spec.target else self.places.get(node, node.name)
        if origin == "const" and spec.target:  # the exporter does not name the items of lists
            held = self.program.constants.get(spec.target)
            name = next((self._named(n) or n for n, tensor in self.attributes if tensor is held), name)
        self.values[node] = self._value(node.name, value, origin, name)

    def _named(self, name: str) -> str | None:
        """Return a parameter's name in the model; a tied parameter has its name in the first module."""
        return self.rename(self.paths.parameter(name))

    def _value(self, label: str, tensor: Any, origin: str = "op", name: str = "") -> Value:
        shape = tuple(self.size(s) for s in tensor.shape)
        return Value(label, shape, dtype_name(tensor.dtype), origin, name)

    def _call(self, node: fx.Node) -> None:
        if node.target is operator.getitem:
            source, index = node.args
            parts = self.values.get(source)  # type: ignore[arg-type]
            if isinstance(parts, tuple) and isinstance(index, int) and parts[index] is not None:
                self.values[node] = parts[index]  # type: ignore[assignment]
            return
        inner = inner_graph(node)
        if inner is not None:
            self._enter_region(node, *inner)
            return
        if any(getattr(a, "op", None) == "get_attr" for a in node.args):
            raise Incomplete(
                "a branch or loop of the model is a subgraph: values decide how often it runs",
                where=f"{self.job.stage}, export {self.job.id}, node {node.name}",
                got=getattr(node.target, "__name__", str(node.target)),
                fix="write the branch or loop in Python, on sizes; the run is counted as it is",
            )
        produced = node.meta.get("val")
        outputs = self._results(node, produced)
        schema = getattr(node.target, "_schema", None)
        tensors, attrs, names = split_arguments(schema, node.args, node.kwargs, self._tensors, self._plain)
        if not tensors and not outputs:
            return  # arithmetic on sizes
        place = self._place(node)
        name = str(node.target) if schema is not None else f"{getattr(node.target, '__name__', node.target)}"
        if name == "aten.detach_.default" and tensors[0].name.rpartition(".")[2].startswith(_MADE):
            name = _MAKES
        name = self.mapped.name(name, tensors, outputs, attrs)
        if any(map(is_sparse, node.all_input_nodes)):
            name, attrs = sparse_call(name, attrs, node, self.program)
        if place is None:
            self._scaffold(node, name, outputs)
            return
        if self.autocast:
            attrs = {**attrs, AUTOCAST: self.autocast}
        self.ops.append(OpCall(self.region + node.name, name, place[0], place[1], tensors, outputs, attrs, names))

    def _enter_region(self, node: fx.Node, graph: fx.Graph, arguments: tuple[Any, ...]) -> None:
        """Read the inner graph of a higher-order operator, such as an autocast region, in place of the operator."""
        outside, self.region = (self.region, self.autocast), f"{self.region}{node.name}/"
        self.autocast = autocast_dtype(node, self.autocast)
        placeholders = [n for n in graph.nodes if n.op == "placeholder"]
        for inside, given in zip(placeholders, arguments, strict=True):
            if given in self.values:
                self.values[inside] = self.values[given]
        for inside in graph.nodes:
            if inside.op == "call_function":
                self._call(inside)
        (returned,) = next(n for n in graph.nodes if n.op == "output").args
        if isinstance(returned, list | tuple):
            self.values[node] = tuple(self._tensors(r)[0] if self._tensors(r) else None for r in returned)
        elif returned in self.values:
            self.values[node] = self.values[returned]
        self.region, self.autocast = outside

    def _results(self, node: fx.Node, produced: Any) -> tuple[Value, ...]:
        if hasattr(produced, "shape"):
            value = self._value(self.region + node.name, produced)
            self.values[node] = value
            return (value,)
        if isinstance(produced, list | tuple):
            parts = tuple(
                self._value(f"{self.region}{node.name}.{i}", p) if hasattr(p, "shape") else None
                for i, p in enumerate(produced)
            )
            self.values[node] = parts
            return tuple(p for p in parts if p is not None)
        return ()

    def _tensors(self, argument: Any) -> list[Value]:
        if isinstance(argument, list | tuple):
            return [v for a in argument for v in self._tensors(a)]
        value = self.values.get(argument) if hasattr(argument, "meta") else None
        if isinstance(value, tuple):
            return [v for v in value if v is not None]
        return [value] if value is not None else []

    def _plain(self, argument: Any) -> Any:
        if isinstance(argument, list | tuple):
            return [self._plain(a) for a in argument]
        if hasattr(argument, "meta"):
            value = argument.meta.get("val")
            return self.size(value) if hasattr(value, "node") else value
        return plain_value(argument)

    def _place(self, node: fx.Node) -> tuple[str, int] | None:
        """Return the innermost module that runs a node, and the call number; ``None`` for wrapper modules."""
        frames = (node.meta.get("nn_module_stack") or {}).items()
        stack = tuple((str(key), str(path), _class_name(cls)) for key, (path, cls) in frames)
        if stack not in self.stacks:
            self.stacks[stack] = self._enter(stack)
        return self.stacks[stack]

    def _enter(self, stack: tuple[tuple[str, str, str], ...]) -> tuple[str, int] | None:
        parent: tuple[str, int] | None = None
        trail = ""
        for key, path, class_name in stack:
            # The key of a repeated call, or of an ancestor's, ends in @ and a number.
            trail += "/" + key
            module = self.rename(self.paths.module(path))
            if module is None:
                self._known(path)
            if module is None or class_name == COMPILED:
                continue
            known = self.calls.setdefault(module, [])
            if trail not in known:
                known.append(trail)
            here = (module, known.index(trail) + 1)
            self.seen.setdefault(here, ModuleCall(module, here[1], parent, class_name))
            parent = here
        return parent

    def _known(self, path: str) -> None:
        """Raise an error for a path that no module has, since its work would be attributed to an enclosing module."""
        if path not in self.known and not path.startswith(_NOWHERE):
            raise Incomplete(
                "the export names a module that the model does not have",
                where=f"{self.job.stage}, export {self.job.id}",
                got=path,
            )

    def _scaffold(self, node: fx.Node, name: str, outputs: tuple[Value, ...]) -> None:
        if canonical(name) not in _SCAFFOLDING and any(v.floating for v in outputs):
            raise Incomplete(
                "the wrapper of an export runs an operator that belongs to no module of the model",
                where=f"{self.job.stage}, export {self.job.id}, node {node.name}",
                expected="a wrapper that only makes empty tensors and calls modules",
                got=name,
                fix="move the operator into a module that is named by `prefix` of the export job",
            )
        value = self.values.get(node)
        if isinstance(value, Value):
            self.values[node] = Value(value.id, value.shape, value.dtype, "const")

    def _outputs(self) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
        """Return (results, cache): the output tensors, and the tensors of the cache if the job returns one."""
        node = next(n for n in self.program.graph.nodes if n.op == "output")
        spec = self.program.call_spec.out_spec
        # Mutated inputs come first; they are not results.
        kinds = [s.kind.name for s in self.program.graph_signature.output_specs]
        flat = [n for n, kind in zip(node.args[0], kinds, strict=True) if kind == "USER_OUTPUT"]
        end = _children(spec)[0].num_leaves if self.job.returns_cache and spec is not None else len(flat)
        parts = ([self.values.get(n) for n in nodes if hasattr(n, "meta")] for nodes in (flat[:end], flat[end:]))
        result, cache = (tuple(v for v in part if isinstance(v, Value)) for part in parts)
        return result, cache


def _class_name(cls: Any) -> str:
    return (cls if isinstance(cls, str) else cls.__name__).rsplit(".", 1)[-1]


def _children(spec: Any) -> Sequence[Any]:
    """Return the children of a tree spec; torch 2.6 has no method for this."""
    return spec.children() if hasattr(spec, "children") else spec.children_specs  # type: ignore[no-any-return]


# Higher-order operators that run one graph once, on the arguments after it.
_REGIONS: Final = (
    "wrap_with_autocast", "wrap_with_set_grad_enabled", "wrap", "wrap_activation_checkpoint",
    "tag_activation_checkpoint",
)  # fmt: skip


def inner_graph(node: fx.Node) -> tuple[fx.Graph, tuple[Any, ...]] | None:
    """Return the graph that a higher-order operator runs once, with its arguments; ``None`` for any other call."""
    arguments: tuple[Any, ...] = node.args
    graphs = [i for i, a in enumerate(arguments) if getattr(a, "op", None) == "get_attr"]
    if getattr(node.target, "__name__", "") not in _REGIONS or len(graphs) != 1 or node.kwargs:
        return None
    (at,) = graphs
    inner: Any = getattr(node.graph.owning_module, arguments[at].target)
    return inner.graph, arguments[at + 1 :]


def autocast_dtype(node: fx.Node, outside: str) -> str:
    """Return the autocast dtype in a region of a graph; empty without autocast.

    An export on meta does not cast there, because autocast does not support meta.

    Args:
        outside: the dtype in the enclosing region.
    """
    if getattr(node.target, "__name__", "") != "wrap_with_autocast":
        return outside
    _, dtype, enabled, *_ = node.args
    return str(dtype).removeprefix("torch.") if enabled else ""


class Mapped:
    """Record of values inside ``torch.vmap``, whose exported shapes lack the batch, so that they cannot be counted."""

    def __init__(self) -> None:
        self.levels: dict[str, frozenset[int]] = {}
        """Ids of the ``torch.vmap`` calls that a value is inside of, by id of the value."""

    def name(self, name: str, tensors: Iterable[Value], outputs: Iterable[Value], attrs: Mapping[str, Any]) -> str:
        """Return an operator's name, or ``vmap`` if its tensors lack a batch dimension."""
        inside = frozenset[int]().union(*(self.levels.get(t.id, ()) for t in tensors))
        if name == "_add_batch_dim":
            inside |= {attrs["2"]}
        elif not inside:
            return name
        left = inside - {attrs["1"]} if name == "_remove_batch_dim" else inside
        self.levels |= {v.id: left for v in outputs if left}
        return "vmap"


_PRODUCTS: Final = ("mm", "matmul", "mv", "_sparse_mm")
_PRODUCT: Final = "sparse.mm"


def is_sparse(node: fx.Node) -> bool:
    """Return whether the tensor that a node computes is sparse."""
    import torch

    return getattr(node.meta.get("val"), "layout", torch.strided) is not torch.strided


def sparse_call(
    name: str, attrs: dict[str, Any], node: fx.Node, program: torch.export.ExportedProgram
) -> tuple[str, dict[str, Any]]:
    """Return name and attributes of a call on sparse tensors, as a sparse product or an operator without a rule.

    Rules count dense tensors, so a call with a sparse one is another operator here.
    """
    parts = name.split(".")
    short = parts[1] if len(parts) > 1 else name
    if short not in _PRODUCTS:
        return f"sparse.{short}", attrs
    first, *others = node.all_input_nodes
    held = None if any(map(is_sparse, others)) else _tensor(first, program)
    return _PRODUCT, attrs if held is None else {**attrs, NONZERO: int(held._nnz())}


def _tensor(node: fx.Node, program: torch.export.ExportedProgram) -> Any:
    """Return the sparse tensor of a placeholder with its values; ``None`` if the program does not contain them."""
    names = {spec.arg.name: spec.target for spec in program.graph_signature.input_specs if spec.target}
    target = names.get(node.name)
    found = program.state_dict.get(target, program.constants.get(target)) if target is not None else None
    return found if found is not None and hasattr(found, "_nnz") and is_sparse(node) and not found.is_meta else None
