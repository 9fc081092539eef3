"""ptflops with its default backend: hooks on modules, patched functions for the rest, MACs."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from costproof.tracers.counters.protocol import Counted, Row, counted
from costproof.tracers.counters.surroundings import PRODUCTS, Positional, bias_part, paths_of


def ptflops(model: Positional, args: tuple[Tensor, ...]) -> Counted:
    """Rows are modules with a hook of the tool, and (module, function) for patched functions."""
    from ptflops import get_model_complexity_info

    paths, rows, inside = paths_of(model), list[Row](), list[nn.Module]()

    def record(name: str, value: int) -> None:
        here = inside[-1] if inside else None
        # The tool's own hook counts these modules; a product in them is the same work again.
        kind = f"linear>{name}" if isinstance(here, PRODUCTS) and name in ("mm", "addmm", "bmm") else name
        rows.append(Row(paths[id(here)] if here is not None else "", kind, value))

    def done(module: nn.Module, given: Any, result: Any) -> None:
        for part in model.modules():
            value = int(getattr(part, "__flops__", 0) or 0)
            rows.extend(_module_rows(paths[id(part)], part, value))

    handles = [m.register_forward_pre_hook(lambda m, a: inside.append(m)) for m in model.modules()]

    def inputs(_: Any) -> dict[str, Tensor]:
        # Called after the tool has made its hooks: so these run after its own.
        handles.extend(m.register_forward_hook(lambda m, a, r: inside.pop() and None) for m in model.modules())
        handles.append(model.register_forward_hook(done))
        return dict(zip(names, args, strict=True))

    names = [f"t{i}" for i in range(len(args))]
    said = io.StringIO()
    keyword = model.forward
    model.forward = lambda **given: keyword(*given.values())  # type: ignore[method-assign]
    try:
        with _recorded(record), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            total, _ = get_model_complexity_info(
                model,
                (1,),
                input_constructor=inputs,
                as_strings=False,
                print_per_layer_stat=False,
                verbose=False,
            )
    finally:
        del model.forward
        for handle in handles:
            handle.remove()
    if total is None:
        lines = [line for line in said.getvalue().splitlines() if line.startswith("<class")]
        raise RuntimeError(lines[0] if lines else "it gave None")
    return counted(int(total), rows)


@contextmanager
def _recorded(record: Callable[[str, int], None]) -> Iterator[None]:
    """Let the tool's rules for functions tell what they count."""
    from ptflops import pytorch_engine as engine

    tables = (engine.FUNCTIONAL_MAPPING, engine.TENSOR_OPS_MAPPING)
    before = [dict(table) for table in tables]

    def told(name: str, rule: Callable[..., int]) -> Callable[..., int]:
        def ruled(*args: Any, **kwargs: Any) -> int:
            value = rule(*args, **kwargs)
            record(name, int(value))
            return value

        return ruled

    try:
        for table in tables:
            for function, rule in list(table.items()):
                table[function] = told(getattr(function, "__name__", str(function)), rule)
        yield
    finally:
        for table, old in zip(tables, before, strict=True):
            table.clear()
            table.update(old)


def _module_rows(path: str, module: nn.Module, value: int) -> Iterator[Row]:
    """A module's figure, the additions of a bias apart."""
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
