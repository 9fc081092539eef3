"""The kinds of files that others read."""

from __future__ import annotations

from typing import Any

from costproof.ledger.schema import FileKind


def file_kinds() -> dict[str, FileKind[Any]]:
    """All file kinds by short name."""
    from costproof.claims import CLAIMS
    from costproof.compare.findings import DISCREPANCY
    from costproof.compare.proof.certificate import CERTIFICATE
    from costproof.ledger.capture import CAPTURE
    from costproof.ledger.profile import PROFILE
    from costproof.reports.callgraph_json import CALLGRAPH
    from costproof.reports.counters import COUNTERS
    from costproof.reports.macs import MACS
    from costproof.reports.static_compute import STATIC_COMPUTE

    kinds: tuple[FileKind[Any], ...] = (
        CAPTURE,
        STATIC_COMPUTE,
        DISCREPANCY,
        CALLGRAPH,
        PROFILE,
        CERTIFICATE,
        CLAIMS,
        COUNTERS,
        MACS,
    )
    return {k.name.split("/")[-1]: k for k in kinds}
