"""What a proof about a decoder ranges over: prompts and steps of any size, by both kinds of attention."""

from __future__ import annotations

from typing import Final

from costproof.compare.proof.assemble import Domain
from costproof.compare.proof.certificate import Settings
from costproof.ledger.workload import Workload
from costproof.models.proof import Comparison, Piece, Proof, Provable

VARIANTS: Final = (
    Workload("text", 512, 4),
    Workload("text, eager, last logits", 512, 4, 1, "float32", "eager", "last"),
)
NOT_VARIED: Final = ("the configuration: identities hold for this one", "kernels other than sdpa and eager")


def proof(target: Provable, seed: int) -> Proof:
    """Identities in batch, prompt, context and steps."""
    return Proof(
        pieces=tuple(
            Piece(f"identity: {w.name}", "identities", (Comparison(target, w),), claims=True) for w in VARIANTS
        ),
        settings=Settings(0, seed, 0, 0, ""),
        domain=Domain((), (), (), {}, {}, {}, NOT_VARIED),
        usual=VARIANTS[0],
    )
