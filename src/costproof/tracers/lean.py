"""What the exporter does besides exporting, left out where nothing of it is needed: a third of its time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from torch import nn

_FEW_LAYERS: Final = 3
"""Up to so many in a row it takes longer to remember each operator than to work it out again."""


@contextmanager
def lean(module: nn.Module) -> Iterator[None]:
    """For the time of the block the exporter writes no code, notes no stacks, and remembers operators if that pays.

    None of the settings is part of torch's interface; one that a version lacks is left as it is.
    """
    import torch._dynamo
    import torch.fx.config

    with ExitStack() as around:
        try:
            # It writes Python code for every graph on its way, a fifth of its time, and nobody runs it.
            from torch.fx._lazy_graph_module import _use_lazy_graph_module
        except ImportError:
            pass
        else:
            around.enter_context(_use_lazy_graph_module(True))
        # Where in Python each node was made: where in the model is noted beside it.
        _set(around, torch.fx.config, "do_not_emit_stack_traces", True)
        if longest_row(module) <= _FEW_LAYERS:
            # The shapes that an operator gives, for the next one with the same arguments: that of the next layer.
            _set(around, torch._dynamo.config, "fake_tensor_cache_enabled", False)
        yield


def _set(around: ExitStack, config: Any, name: str, value: bool) -> None:
    if hasattr(config, name):
        around.callback(setattr, config, name, getattr(config, name))
        setattr(config, name, value)


def longest_row(module: nn.Module) -> int:
    """Most modules that stand in one list of modules; 0 if there is no list."""
    from torch import nn

    return max((len(m) for m in module.modules() if isinstance(m, nn.ModuleList)), default=0)
