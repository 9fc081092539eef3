"""What ``torch.compile`` makes of a module that is compiled: its graphs, and why they end. Needs torch to load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from costproof.ledger.errors import first_line
from costproof.ledger.plural import plural


def is_compiled(module: nn.Module) -> bool:
    """Whether a module, or a part of it, is."""
    return any(
        type(part).__name__ == "OptimizedModule" or getattr(part, "_compiled_call_impl", None) is not None
        for part in module.modules()
    )


def graphs(
    module: nn.Module,
    inputs: Mapping[str, Any],
    around: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> str:
    """In words how many graphs a call of a module makes, and what ends all but the last.

    The call is made once more, with graphs that run as they were written. What others have compiled stays compiled.

    Args:
        module: a copy, not compiled.
        around: holds while a graph runs.
    """
    made: list[str] = []

    def kept(graph: torch.fx.GraphModule, example: Any) -> Callable[..., Any]:
        ended: Any = graph.compile_subgraph_reason
        made.append(_reason(ended) if ended.graph_break else "")

        def run(*args: Any) -> Any:
            with around():
                return graph.forward(*args)

        return run

    try:
        with torch.no_grad():
            torch.compile(module, backend=kept)(**inputs)
    except Exception as error:  # it is code of other packages, which raises what it likes
        return f"torch.compile: the graphs of this call are not known: {first_line(error)}"
    breaks = [why for why in made if why]
    if not breaks:
        return f"torch.compile makes {plural(len(made), 'graph')} of this call, without a break"
    what = f"{plural(len(made), 'graph')} of this call, {plural(len(breaks), 'break')}"
    return f"torch.compile makes {what}: {'; '.join(dict.fromkeys(breaks))}"


def _reason(ended: Any) -> str:
    """Why a graph ends, and at which line of whose code."""
    why = str(ended.reason).strip().splitlines()[0]
    at = ended.user_stack[-1] if ended.user_stack else None
    return why if at is None else f"{why} (line {at.lineno} of {Path(at.filename).name})"
