"""What makes one vector of a sequence."""

from __future__ import annotations

from dataclasses import dataclass

from costproof.analytic.compose import Part
from costproof.analytic.costs import Size
from costproof.analytic.linear import Linear
from costproof.analytic.mlp import Activation


@dataclass(frozen=True, slots=True)
class FirstTokenPooler:
    """act(dense(x₀)) of the first token x₀ of every sequence; the other tokens are not read.

    Roles: ``.dense``, ``.activation`` below its own.

    Source: Devlin et al. 2018, BERT; ``BertPooler``, ``ViTPooler`` (transformers).
    """

    width: Size
    out: Size
    function: str

    def parts(self, role: str, sequences: Size, b: Size) -> tuple[Part, ...]:
        """Its modules, ``b`` bytes an element."""
        return (
            Part(role),
            Part(f"{role}.dense", (Linear(sequences, self.width, self.out, b),)),
            Part(f"{role}.activation", (Activation(sequences * self.out, self.function, b),)),
        )
