"""DeepSpeed's profiler and calflops, its descendant: both patch functions and keep a stack of figures per module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from costproof.tracers.counters.protocol import Counted, Row, counted
from costproof.tracers.counters.surroundings import Positional, below_every_parent, paths_of

Figure = tuple[Any, int]
Stack = list[list[Figure]]

BESIDE = "beside the products"


def deepspeed(model: Positional, args: tuple[Tensor, ...]) -> Counted:
    """Rows are (module, function); FLOPs with elementwise work."""
    from deepspeed.profiling.flops_profiler import profiler

    with reading(model, profiler.module_flop_count, profiler.module_mac_count) as rows:
        total, _, _ = profiler.get_model_profile(
            model, args=list(args), print_profile=False, as_string=False, warm_up=0
        )
    return counted(int(total), rows)


def calflops(model: Positional, args: tuple[Tensor, ...]) -> Counted:
    """Rows are (module, function); products of attention are not among them."""
    from calflops import calculate_flops, calculate_pipline

    with reading(model, calculate_pipline.module_flop_count, calculate_pipline.module_mac_count) as rows:
        total, _, _ = calculate_flops(
            model, args=list(args), print_results=False, output_as_string=False, output_precision=None
        )
    return counted(int(total), list(below_every_parent(model, rows)))


@contextmanager
def reading(model: Positional, flops: Stack, macs: Stack) -> Iterator[list[Row]]:
    """Collect the tool's figures of every module as its forward ends, before the tool sums them up.

    Hooks run in the order of registration, so these must be made before the tool's own.
    """
    paths, rows = paths_of(model), list[Row]()

    def read(module: nn.Module, args: Any, result: Any) -> None:
        if flops:
            rows.extend(_rows(paths[id(module)], flops[-1], macs[-1] if macs else ()))

    with ExitStack() as hooks:
        for module in model.modules():
            hooks.enter_context(module.register_forward_hook(read))
        yield rows


def _rows(path: str, flops: Sequence[Figure], macs: Sequence[Figure]) -> Iterator[Row]:
    """Products and what is counted beside them (a bias), apart; a product inside a product, marked.

    A linear layer on meta is decomposed in Python, so a patched ``mm`` follows directly with the same figure.
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
    """The tools name a function by its text or by its bound ``__str__``."""
    if isinstance(function, str):
        return function
    owner = getattr(function, "__self__", function)
    return str(getattr(owner, "__name__", owner))
