"""Which source a target can serve, how it is run, and whether the device of a run is there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from costproof.ledger.errors import BadInput, Incomplete
from costproof.ledger.run import RunDevice, RunOptions
from costproof.models.target import Exportable, Runnable, Staged, Target, WithFormulas

SERVES: Final[Mapping[str, tuple[type, str]]] = {
    "analytic": (WithFormulas, "the target has no formulas"),
    "static": (Exportable, "the target cannot be exported"),
    "dynamic": (Runnable, "the target cannot be run as a whole"),
    "isolated": (Staged, "the target's stages cannot be run alone"),
}
"""Source -> the protocol that it needs, and what to say of a target without it."""


def lacking(target: Target, sources: Iterable[str]) -> dict[str, str]:
    """Those of the sources that this target cannot serve, with the reason."""
    return {s: why for s in sources for needed, why in [SERVES[s]] if not isinstance(target, needed)}


def options_of(target: Target) -> RunOptions:
    """How the target shall be run; the default for one that cannot be."""
    return target.options if isinstance(target, Runnable) else RunOptions()


def run_with(target: Target, options: RunOptions) -> Target:
    """The target with options of a run.

    Raises:
        BadInput: it cannot be run, or not so.
    """
    if isinstance(target, Runnable):
        return target.with_options(options)
    if options != RunOptions():
        raise BadInput("this target cannot be run as a whole, so there is nothing to choose", where=target.name)
    return target


def require_device(device: RunDevice) -> None:
    """Check that torch can use a device; only for ``cuda`` torch is imported.

    Raises:
        Incomplete: it cannot.
    """
    if device != "cuda":
        return
    import torch

    if not torch.cuda.is_available():
        raise Incomplete(
            "this machine has no GPU that torch can use",
            where="--run cuda",
            got=f"torch {torch.__version__}",
            fix="--run cpu, or --run meta for shapes alone",
        )
