"""Counting a module that is at hand: three lines, as with any counter of FLOPs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from costproof.ledger.environment import require
from costproof.models.generic.at_hand import at_hand
from costproof.reports.report import Report
from costproof.run.capture import count as counted
from costproof.run.count_lock import count_then_restore
from costproof.run.prepare import Prepared

if TYPE_CHECKING:
    from torch import nn

    from costproof.models.generic.as_it_was import Before


def count(module: nn.Module | Callable[..., Any], /, *args: Any, **kwargs: Any) -> Report:
    """Count one call of a module: FLOPs, vector FLOPs, bytes and parameters, by a trace and by an export, compared.

    The call runs where the module and its arguments are: on shapes alone if any is on meta. It is made on a copy
    that shares the parameters, in evaluation and without gradients, outside of every mode of torch; the module stays as
    it is.

    Args:
        module: a module, or a ``functools.partial`` of one.
        args, kwargs: as the module is called.

    Raises:
        BadInput: it is not a module, or forward does not take these arguments.
        Incomplete: no source could count it.
        Changed: the module, or the process, is not as it was, and could not be put back.
    """
    require("trace", "counting a module")
    called: Any = module
    while isinstance(called, partial):
        called, args, kwargs = called.func, (*called.args, *args), {**called.keywords, **kwargs}

    def count_alone(before: Before) -> Report:
        with at_hand(called, args, kwargs, before) as target:
            return counted(Prepared(target, target.workload()))

    return count_then_restore(count_alone)
