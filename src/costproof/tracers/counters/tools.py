"""Run third-party counters, and read their figures by module or operator."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from costproof.ledger.counter import UNATTRIBUTED
from costproof.ledger.plural import plural
from costproof.opgraph.graph import path_renamer
from costproof.patches.patch import patched
from costproof.patches.tensor import JIT_ON_META
from costproof.tracers.counters.protocol import Counted, Row, counted
from costproof.tracers.timing import parents


def flop_counter_mode(model: Positional, args: tuple[Tensor, ...]) -> Counted:
    """Count with torch's ``FlopCounterMode``, in rows by (module, operator as dispatched)."""
    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad(), FlopCounterMode(display=False) as mode:
        model(*args)
    figures = {path: {str(op): int(v) for op, v in ops.items()} for path, ops in mode.get_flop_counts().items()}
    figures.pop("Global", None)
    return counted(int(mode.get_total_flops()), own_rows(figures))


def fvcore(model: Positional, args: tuple[Tensor, ...]) -> Counted:
    """Count the jit trace of a forward with fvcore, in MACs, in rows by (module, operator)."""
    from fvcore.nn import FlopCountAnalysis

    # The tool and its tracer warn once per operator, which the rows report as well.
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with patched(*JIT_ON_META):
            analysis = FlopCountAnalysis(model, args)
            analysis.unsupported_ops_warnings(False)
            analysis.uncalled_modules_warnings(False)
            total = int(analysis.total())
            modules = analysis.by_module_and_operator()
            skipped = dict(analysis.unsupported_ops())
    finally:
        logging.disable(before)
    figures = {path: {kind: int(v) for kind, v in operators.items()} for path, operators in modules.items()}
    notes = tuple(f"says it skipped {name} ({plural(calls, 'call')})" for name, calls in sorted(skipped.items()))
    return counted(total, own_rows(figures), notes)


def torchlens(model: Positional, args: tuple[Tensor, ...]) -> Counted:
    """Count one traced forward with TorchLens, by structure only, in rows by (module, function).

    An operator for which it has no figure has no row.
    """
    import torchlens
    from torchlens.options import CaptureOptions

    options = CaptureOptions(
        structure_only=True,
        recurrence_detection=False,
        compute_input_output_distances=False,
        save_code_context=False,
        inference_only=True,
    )
    trace = torchlens.trace(model, list(args), {}, capture=options)
    rows = []
    for record in trace.ops:
        figure, products = int(record.flops_forward or 0), 2 * int(record.macs_forward or 0)
        stack = record.module_call_stack
        module = inner_path(str(stack[-1]).rsplit(":", 1)[0]) if stack else ""
        beside = figure - products if 0 < products < figure else 0
        name = str(record.func_name)
        rows += [Row(module, f"{name}, {BESIDE}", beside), Row(module, name, figure - beside)]
    unknown = {str(op) for op in getattr(trace, "unknown_flop_ops", None) or ()}
    notes = (f"says it has no figure for {plural(len(unknown), 'kind')} of operators",) if unknown else ()
    return counted(int(trace.total_flops_forward), rows, notes)


def torch_profiler(model: Positional, args: tuple[Tensor, ...]) -> Counted:
    """Count with ``torch.profiler(with_flops=True)``, in rows by operator without modules.

    An event with FLOPs inside another one is the same work again.
    """
    with torch.no_grad(), torch.profiler.profile(with_flops=True, record_shapes=True) as profile:
        model(*args)
    rows = []
    for event in profile.events() or ():
        if event.flops:
            outer = next((f"{p.name}>" for p in parents(event) if p.flops), "")
            rows.append(Row(UNATTRIBUTED, f"{outer}{event.name}".replace("::", "."), int(event.flops)))
    return counted(sum(int(e.flops or 0) for e in profile.key_averages()), rows)


def thop(model: Positional, args: tuple[Tensor, ...]) -> Counted:
    """Count MACs with thop as maintained by ultralytics: hooks on modules, a mode for functional products.

    Rows are modules; functional products are only in the total.
    """
    from thop import profile

    def figures(tree: Mapping[str, Any], path: str) -> Iterator[tuple[str, dict[str, int]]]:
        for name, (value, _, below) in tree.items():
            here = f"{path}.{name}" if path else name
            yield here, {"": int(value)}
            yield from figures(below, here)

    total, _, tree = profile(model, inputs=args, verbose=False, ret_layer_info=True)
    return counted(int(total), own_rows(dict(figures(tree, ""))))


def torchinfo(model: Positional, args: tuple[Tensor, ...]) -> Counted:
    """Count torchinfo's "mult-adds", in rows by module: weight elements times the first dimension of outputs."""
    import torchinfo

    summary = torchinfo.summary(model, input_data=list(args), verbose=0, depth=99, device=args[0].device)
    paths = paths_of(model)
    rows = []
    for layer in summary.summary_list:
        if layer.is_leaf_layer and layer.macs:
            path, value = paths.get(id(layer.module), UNATTRIBUTED), int(layer.macs)
            bias = bias_part(layer.module, value)
            rows += [Row(path, "", value - bias), Row(path, "bias", bias)]
    return counted(int(summary.total_mult_adds), rows)


def own_rows(figures: Mapping[str, Mapping[str, int]]) -> Iterator[Row]:
    """Yield the figures of each module minus those of its submodules.

    A submodule belongs to its nearest ancestor with figures: lists of modules are never called and have none.

    Args:
        figures: figures that include the submodules, by path of a module and operator.
    """
    below: dict[str, list[str]] = {path: [] for path in figures}
    for path in figures:
        above = path
        while above:
            above = above.rpartition(".")[0]
            if above in figures:
                below[above].append(path)
                break
    for path, operators in figures.items():
        for kind, value in operators.items():
            yield Row(inner_path(path), kind, value - sum(figures[p].get(kind, 0) for p in below[path]))


ToolFigure = tuple[Any, int]
FigureStack = list[list[ToolFigure]]

BESIDE = "beside the products"


def deepspeed(model: Positional, args: tuple[Tensor, ...]) -> Counted:
    """Count with DeepSpeed's profiler, in rows by (module, function); FLOPs include elementwise work."""
    from deepspeed.profiling.flops_profiler import profiler

    with read_figures(model, profiler.module_flop_count, profiler.module_mac_count) as rows:
        total, _, _ = profiler.get_model_profile(
            model, args=list(args), print_profile=False, as_string=False, warm_up=0
        )
    return counted(int(total), rows)


def calflops(model: Positional, args: tuple[Tensor, ...]) -> Counted:
    """Count with calflops, a descendant of DeepSpeed's profiler.

    Rows are (module, function); products of attention are not among them.
    """
    from calflops import calculate_flops, calculate_pipline

    with read_figures(model, calculate_pipline.module_flop_count, calculate_pipline.module_mac_count) as rows:
        total, _, _ = calculate_flops(
            model, args=list(args), print_results=False, output_as_string=False, output_precision=None
        )
    return counted(int(total), list(below_every_parent(model, rows)))


@contextmanager
def read_figures(model: Positional, flops: FigureStack, macs: FigureStack) -> Iterator[list[Row]]:
    """Collect a tool's figures of each module when its forward ends, before the tool adds them to the parent's.

    Both tools patch functions and keep a stack of figures per module. Hooks run in the order of registration, so these
    must be registered before the tool's own.
    """
    paths, rows = paths_of(model), list[Row]()

    def read(module: nn.Module, args: Any, result: Any) -> None:
        if flops:
            rows.extend(_rows(paths[id(module)], flops[-1], macs[-1] if macs else ()))

    with ExitStack() as hooks:
        for module in model.modules():
            hooks.enter_context(module.register_forward_hook(read))
        yield rows


def _rows(path: str, flops: Sequence[ToolFigure], macs: Sequence[ToolFigure]) -> Iterator[Row]:
    """Yield rows for matrix products and for other figures, such as a bias.

    Mark a product counted inside another one.

    A linear layer on meta is decomposed in Python, so a patched ``mm`` with the same figure follows directly.
    """
    left, before = [(_name(n), v) for n, v in macs], ("", 0)
    for raw, value in flops:
        name = _name(raw)
        if before[0] in ("linear", "addmm") and name in ("mm", "addmm") and value == before[1]:
            yield Row(path, f"{before[0]}>{name}", int(value))
            if left and left[0][0] == name:
                left.pop(0)
            continue
        products = 0
        if left and left[0][0] == name:
            products = 2 * int(left.pop(0)[1])
        if 0 < products < value:
            yield Row(path, name, products)
            yield Row(path, f"{name}, {BESIDE}", int(value) - products)
        else:
            yield Row(path, name, int(value))
        before = (name, value)


def _name(function: Any) -> str:
    """Return the name of a function in a tool's records, which identify it by its text or a bound ``__str__``."""
    if isinstance(function, str):
        return function
    owner = getattr(function, "__self__", function)
    return str(getattr(owner, "__name__", owner))


def ptflops(model: Positional, args: tuple[Tensor, ...]) -> Counted:
    """Count with ptflops and its default backend, in MACs.

    Rows are modules with a hook of the tool, and (module, function) for patched functions.
    """
    from ptflops import get_model_complexity_info

    paths, rows, inside = paths_of(model), list[Row](), list[nn.Module]()

    def record(name: str, value: int) -> None:
        here = inside[-1] if inside else None
        # The tool's own hook counts these modules; a product inside them is the same work again.
        kind = f"linear>{name}" if isinstance(here, PRODUCTS) and name in ("mm", "addmm", "bmm") else name
        rows.append(Row(paths[id(here)] if here is not None else "", kind, value))

    def done(module: nn.Module, given: Any, result: Any) -> None:
        figures = [(part, int(getattr(part, "__flops__", 0) or 0)) for part in model.modules()]
        own = [r for part, value in figures for r in _module_rows(paths[id(part)], part, value)]
        rows.extend(below_every_parent(model, own))

    def inputs(_: Any) -> dict[str, Tensor]:
        # Called after the tool has registered its hooks, so these run after its own.
        for module in model.modules():
            hooks.enter_context(module.register_forward_hook(lambda m, a, r: inside.pop() and None))
        hooks.enter_context(model.register_forward_hook(done))
        return {f"t{i}": arg for i, arg in enumerate(args)}

    said, positional = io.StringIO(), model.forward
    with (
        ExitStack() as hooks,
        patch.object(model, "forward", lambda **given: positional(*given.values())),
        _recorded(record),
        redirect_stdout(said),
        redirect_stderr(said),
    ):
        for module in model.modules():
            hooks.enter_context(module.register_forward_pre_hook(lambda m, a: inside.append(m)))
        total, _ = get_model_complexity_info(
            model, (1,), input_constructor=inputs, as_strings=False, print_per_layer_stat=False, verbose=False
        )
    if total is None:
        lines = [line for line in said.getvalue().splitlines() if line.startswith("<class")]
        raise RuntimeError(lines[0] if lines else "it gave None")
    return counted(int(total), rows)


@contextmanager
def _recorded(record: Callable[[str, int], None]) -> Iterator[None]:
    """Call ``record`` with (function name, count) whenever ptflops counts a function while the block runs."""
    from ptflops import pytorch_engine as engine

    def told(name: str, rule: Callable[..., int]) -> Callable[..., int]:
        def ruled(*args: Any, **kwargs: Any) -> int:
            value = rule(*args, **kwargs)
            record(name, int(value))
            return value

        return ruled

    with ExitStack() as tables:
        for table in (engine.FUNCTIONAL_MAPPING, engine.TENSOR_OPS_MAPPING):
            telling = {f: told(getattr(f, "__name__", str(f)), rule) for f, rule in table.items()}
            tables.enter_context(patch.dict(table, telling))
        yield


def _module_rows(path: str, module: nn.Module, value: int) -> Iterator[Row]:
    """Yield rows for a module's figure: matrix products, and the additions of a bias."""
    if not value:
        return
    if not isinstance(module, PRODUCTS):
        yield Row(path, type(module).__name__, value)
        return
    # The tool counts (products + 1) for every output element of a layer with a bias.
    bias = bias_part(module, value)
    yield Row(path, "linear" if isinstance(module, nn.Linear) else "conv2d", value - bias)
    if bias:
        yield Row(path, "bias", bias)


PRODUCTS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Layers that consist of one matrix product and a bias."""


class Positional(nn.Module):
    """Wrapper that takes only positional tensors, around a module with keyword arguments and lists."""

    def __init__(self, inner: nn.Module, shape: Sequence[tuple[str, int | None]]) -> None:
        """Take the argument names: each with the length of its list in ``shape``, or ``None`` for a tensor."""
        super().__init__()
        self.inner = inner
        self.shape = tuple(shape)

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Call the inner module with these tensors as named arguments and lists."""
        given, kwargs = iter(tensors), {}
        for name, length in self.shape:
            kwargs[name] = next(given) if length is None else [next(given) for _ in range(length)]
        return self.inner(**kwargs)


def positional(module: nn.Module, args: Mapping[str, Any]) -> tuple[Positional, tuple[torch.Tensor, ...]]:
    """Return the module and its arguments in the form that every counter accepts: positional tensors only."""
    tensors: list[torch.Tensor] = []
    for value in args.values():
        tensors += value if isinstance(value, list) else [value]
    shape = [(name, len(value) if isinstance(value, list) else None) for name, value in args.items()]
    return Positional(module, shape).eval(), tuple(tensors)


def inner_path(path: str) -> str:
    """Return the path inside the model of one inside :class:`Positional`: ``part.x`` of ``Positional.inner.part.x``."""
    parts = path.split(".")
    return ".".join(parts[parts.index("inner") + 1 :]) if "inner" in parts else ""


def paths_of(model: Positional) -> dict[int, str]:
    """Return the path inside the model of each module, by module id."""
    return {id(module): inner_path(name) for name, module in model.named_modules()}


def below_every_parent(model: Positional, rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the rows, and repeat those of a shared module under each of its other paths.

    A tool with one figure per module that sums children under parents counts it that often.
    """
    yield from rows
    own = paths_of(model)
    for path, module in _places(model):
        if path != own[id(module)]:
            yield from (
                Row(path, f">{r.kind.rpartition('>')[2]}", r.value) for r in rows if r.module == own[id(module)]
            )


def _places(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    yield inner_path(path), module
    for name, child in module.named_children():
        yield from _places(child, f"{path}.{name}" if path else name)


def bias_part(module: nn.Module, value: int) -> int:
    """Return how much of a layer's figure the bias is, for tools that count biases like weights."""
    if not isinstance(module, PRODUCTS) or module.bias is None:
        return 0
    return value * module.bias.numel() // (module.weight.numel() + module.bias.numel())


def renamed(path: str, prefix: Mapping[str, str]) -> str:
    """Return a path from the root of the model for a path inside an exported part; wrapper code becomes the root."""
    outer = path_renamer(prefix)(path)
    if outer is None:
        return path if "" in prefix or path.startswith("[") else ""
    return outer
