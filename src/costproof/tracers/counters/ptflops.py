"""ptflops with its default backend: hooks on modules, patched functions for the rest, MACs."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import Any
from unittest.mock import patch

from torch import Tensor, nn

from costproof.tracers.counters.protocol import Counted, Row, counted
from costproof.tracers.counters.surroundings import PRODUCTS, Positional, below_every_parent, bias_part, paths_of


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
        figures = [(part, int(getattr(part, "__flops__", 0) or 0)) for part in model.modules()]
        own = [r for part, value in figures for r in _module_rows(paths[id(part)], part, value)]
        rows.extend(below_every_parent(model, own))

    def inputs(_: Any) -> dict[str, Tensor]:
        # Called after the tool has made its hooks: so these run after its own.
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
    """Let the tool's rules for functions tell what they count."""
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
