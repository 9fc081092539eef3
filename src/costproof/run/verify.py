"""A proof made again, and compared with its certificate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from costproof.compare.proof.certificate import Certificate, differences, read_certificate
from costproof.ledger.errors import EXIT_FINDINGS
from costproof.ledger.progress import Progress, silent
from costproof.run.proof import repeat


@dataclass(frozen=True, slots=True)
class Verification:
    """What became of a certificate."""

    certificate: Certificate
    """The new one."""
    versions: tuple[str, ...]
    """Packages that have another version now; named, not judged."""
    differences: tuple[str, ...]
    """In what the new proof departs from the certificate."""

    @property
    def exit_code(self) -> int:
        """That of the new proof; 1 if it is proved and still another one."""
        return self.certificate.exit_code or (EXIT_FINDINGS if self.differences else 0)


def verify(path: Path, *, processes: int | None = None, progress: Progress = silent) -> Verification:
    """Repeat the proof of a certificate; errors as for :func:`costproof.api.verify`."""
    old = read_certificate(path)
    new = repeat(old, processes=processes, progress=progress)
    before, now = old.environment, new.environment
    versions = (f"{k}: {before.get(k)} in the certificate, {v} now" for k, v in now.items() if before.get(k) != v)
    return Verification(new, tuple(versions), differences(old, new))
