"""What the numbers of a run leave out or take for granted, in one line that begins every text about them."""

from __future__ import annotations

from typing import Final

from costproof.ledger.metrics import Metric
from costproof.ledger.plural import plural
from costproof.ledger.workload import SIZE_FROM, TargetInfo, Workload

_WEIGHTS: Final[frozenset[Metric]] = frozenset({"weight_bytes", "weight_read_bytes", "unfused_bytes", "floor_bytes"})
_CACHE: Final[frozenset[Metric]] = frozenset({"kv_read_bytes", "kv_cache_bytes", "unfused_bytes", "floor_bytes"})


def counted_line(target: TargetInfo, workload: Workload) -> str:
    """Return dtype, attention, whether the model was cut, keys that were not used, and a format that is not counted.

    JSON has the same in ``workload.dtype``, ``workload.attention`` and in ``cut``, ``waived`` and ``quantised`` of
    ``target``.
    """
    dtypes = " and ".join(target.dtypes) or workload.dtype
    cut = ", ".join(f"{part} {of}" for part, of in sorted(target.cut.items()))
    place = workload.inputs.get(SIZE_FROM)
    parts = [
        f"weights and cache {dtypes}" if dtypes == workload.dtype else f"weights {dtypes}, cache {workload.dtype}",
        f"{workload.attention} attention",
        f"cut to {cut}" if cut else "all layers",
        f"images of {workload.inputs.get('image_size')} pixels a side ({place})" if place else "",
        _unused(target),
    ]
    return f"Counted: {'; '.join(filter(None, (', '.join(filter(None, parts)), quantised(target, workload))))}"


def _unused(target: TargetInfo) -> str:
    """Return how many keys of a configuration were read and not used; nothing where nobody looked at them."""
    unused = len(target.waived)
    if unused:
        return f"{plural(unused, 'key')} of the configuration not used (target.waived in JSON)"
    return "every key of the configuration used" if target.config is not None else ""


def quantised(target: TargetInfo, workload: Workload) -> str:
    """Return which bytes are not those of the checkpoint, and why; an empty text where nothing is quantised."""
    if not target.quantised:
        return ""
    which = " and ".join(f"all of the {part}" if part == "cache" else f"all {part}" for part in target.quantised)
    formats = "; ".join(f"{part} in {text}" for part, text in target.quantised.items())
    return f"bytes as if {which} were {workload.dtype}, the checkpoint is quantised: {formats}"


def unknown_bytes(target: TargetInfo) -> frozenset[Metric]:
    """Return the metrics whose numbers are not those of the quantised checkpoint."""
    found = {"weights": _WEIGHTS, "cache": _CACHE}
    return frozenset(metric for part in target.quantised for metric in found.get(part, _WEIGHTS | _CACHE))
