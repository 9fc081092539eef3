"""Tools that say their own figures by module or operator: they are asked once, and nothing is patched into them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from costproof.ledger.counter import UNATTRIBUTED
from costproof.ledger.plural import plural
from costproof.tracers.counters.patched import BESIDE
from costproof.tracers.counters.protocol import Counted, Row, counted
from costproof.tracers.counters.surroundings import Positional, bias_part, inner_path, jit_on_meta, paths_of
from costproof.tracers.profiler import parents


def flop_counter_mode(model: Positional, args: tuple[Tensor, ...]) -> Counted:
    """torch's own ``FlopCounterMode``: operators as they are dispatched. Rows are (module, operator)."""
    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad(), FlopCounterMode(display=False) as mode:
        model(*args)
    figures = {path: {str(op): int(v) for op, v in ops.items()} for path, ops in mode.get_flop_counts().items()}
    figures.pop("Global", None)
    return counted(int(mode.get_total_flops()), own(figures))


def fvcore(model: Positional, args: tuple[Tensor, ...]) -> Counted:
    """``FlopCountAnalysis``: a jit trace, one multiply-accumulate per "flop". Rows are (module, operator)."""
    from fvcore.nn import FlopCountAnalysis

    # The tool and the tracer below it warn once per operator; what they would say is in the rows.
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with jit_on_meta():
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
    return counted(total, own(figures), notes)


def torchlens(model: Positional, args: tuple[Tensor, ...]) -> Counted:
    """TorchLens's own figures of one traced forward, structure only. Rows are (module, function).

    An operator that it has no figure for has no row.
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
    """``torch.profiler`` with ``with_flops``. Rows are operators, without modules.

    An event inside another one that has FLOPs too is the same work once more.
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
    """thop as ultralytics maintains it: hooks on modules, a mode for functional products, MACs.

    Rows are modules; functional products are in the total alone.
    """
    from thop import profile

    def figures(tree: Mapping[str, Any], path: str) -> Iterator[tuple[str, dict[str, int]]]:
        for name, (value, _, below) in tree.items():
            here = f"{path}.{name}" if path else name
            yield here, {"": int(value)}
            yield from figures(below, here)

    total, _, tree = profile(model, inputs=args, verbose=False, ret_layer_info=True)
    return counted(int(total), own(dict(figures(tree, ""))))


def torchinfo(model: Positional, args: tuple[Tensor, ...]) -> Counted:
    """torchinfo's "mult-adds": sizes of weights times the first dimension of outputs. Rows are modules."""
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


def own(figures: Mapping[str, Mapping[str, int]]) -> Iterator[Row]:
    """Rows without what the modules below have.

    A module belongs to its nearest ancestor with figures: lists of modules are never called and have none.

    Args:
        figures: path of a module -> operator -> a figure that contains those of the modules below.
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
