"""Work whose result nothing reads and that comes from no input: it ran, and TorchLens leaves it out of its graph.

TorchLens leaves out more so: what torch's own Python code calls to carry out a larger operator, on meta above all. That
is not the model's work, the larger operator is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from costproof.patches.tensor import TORCH_PYTHON

_MODULE: Final = "torch.nn.modules.module"
"""Where the forward of a module is called from."""


@contextmanager
def keep_dead_code() -> Iterator[None]:
    """TorchLens keeps what nothing reads, for the time of the block, but for pieces of larger operators.

    A version that has not what is replaced here leaves it out.
    """
    from unittest import mock

    from torch.nn import init
    from torchlens import postprocess
    from torchlens.backends.torch import ops

    from costproof.models.generic.numbers import Numbers

    if not (hasattr(ops, "_log_output_tensor_info") and hasattr(postprocess, "_remove_orphan_nodes")):
        yield
        return
    pieces: set[str] = set()
    log, remove = ops._log_output_tensor_info, postprocess._remove_orphan_nodes

    def logged(
        trace: Any, tensor: Any, index: int, args: Any, kwargs: Any, owners: Any, fields: Any, *rest: Any
    ) -> None:
        log(trace, tensor, index, args, kwargs, owners, fields, *rest)
        # A layer that is made while the model runs gets its first numbers: not the work of a run. Nor is what is worked
        # out of a grid that is known before.
        filled = hasattr(init, fields["func_name"])
        if filled or _is_piece() or any(isinstance(value, Numbers) for value in args):
            pieces.add(fields["_label_raw"])

    def kept(trace: Any) -> None:
        found, outputs = trace._raw_graph_ws.raw_layer_labels_list, trace.output_layers
        # What is connected with a result stays.
        trace.output_layers = [*outputs, *(label for label in found if label not in pieces)]
        remove(trace)
        trace.output_layers = outputs
        pieces.clear()

    with (
        mock.patch.object(ops, "_log_output_tensor_info", logged),
        mock.patch.object(postprocess, "_remove_orphan_nodes", kept),
    ):
        yield


def _is_piece() -> bool:
    """Whether torch's own code calls a function of torch, at whatever remove inside the innermost module."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name: str = frame.f_globals.get("__name__", "")
        if name.startswith(TORCH_PYTHON):
            return True
        if name == _MODULE:
            return False
        frame = frame.f_back
    return False
