"""Whether the device of a run is there."""

from __future__ import annotations

from costproof.ledger.errors import Incomplete
from costproof.ledger.run import Device


def require_device(device: Device) -> None:
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
