"""What a proof about a decoder ranges over: prompts and steps of any size, and random small configurations."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from costproof.compare.proof.certificate import Settings
from costproof.ledger.workload import FLOAT_BYTES, Attention, Dtype, Logits, Workload
from costproof.models.proof import Piece, Proof, Provable

VARIANTS: Final = (
    Workload("text", 512, 4),
    Workload("text, eager, last logits", 512, 4, 1, "float32", "eager", "last"),
)

# Parameter -> the values it is drawn from, uniformly and independently of all others.
_RUN: Final[Mapping[str, range]] = {"S": range(1, 41), "B": range(1, 9), "b": range(2, 6, 2), "P": range(1, 65)}
_CONFIG: Final[Mapping[str, range]] = {
    "text_kv_heads": range(1, 9),
    "text_groups": range(1, 7),
    "text_head_halves": range(1, 21),
    "text_share": range(1, 21),
    "text_intermediate": range(1, 201),
    "text_vocab": range(16, 516),
}
_INDEPENDENT: Final[Mapping[str, str]] = {
    "text_heads": "text_kv_heads*text_groups",
    "text_head_dim": "2*text_head_halves",
    "text_hidden": "text_kv_heads*text_groups*text_share",
}
"""Symbols that follow from the drawn parameters: rotation needs pairs, and heads divide the width."""
_NOT_VARIED: Final = (
    "kernels other than sdpa and eager",
    "one decode step at a drawn past; that costs sum over N steps is shown as an identity",
)


Drawn = tuple[Provable, Mapping[str, bool]]
"""A random configuration of a family; and of the things that are not numbers in a formula, whether it has them."""
Draw = Callable[[Mapping[str, int], random.Random], Drawn | None]
"""From values of the parameters, and what else is drawn, to a configuration; ``None`` if a family draws none."""


def proof(target: Provable, config: str, samples: int, seed: int, draw: Draw) -> Proof:
    """Identities in batch, prompt, context and steps, and draws where the family says how.

    Args:
        config: the target's normalised configuration, as JSON.
        draw: what makes a configuration of a family.
    """
    made = [m for number in range(samples) if (m := _drawn(draw, seed, number)) is not None]
    count = len(made)
    return Proof(
        pieces=(
            *(Piece(f"identity: {w.name}", "identities", target, w) for w in VARIANTS),
            *(piece for piece, _ in made),
        ),
        settings=Settings(count, seed, config),
        usual=VARIANTS[0],
        ranges={name: len(values) for name, values in {**_CONFIG, **_RUN}.items()} if count else {},
        independent=_INDEPENDENT if count else {},
        choices=Counter(word for _, has in made for word, present in has.items() if present),
        not_varied=_NOT_VARIED if count else ("the configuration: identities hold for this one", _NOT_VARIED[0]),
    )


def _drawn(draw: Draw, seed: int, number: int) -> tuple[Piece[Provable], Mapping[str, bool]] | None:
    """A run of the configuration with that number in the sequence of a seed, the same everywhere; and what it has."""
    rng = random.Random(f"costproof:{seed}:{number}")
    p = {name: rng.choice(values) for name, values in {**_CONFIG, **_RUN}.items()}
    attention: Attention = rng.choice(("sdpa", "eager"))
    logits: Logits = rng.choice(("all", "last"))
    dtype: Dtype = "bfloat16" if p["b"] == FLOAT_BYTES["bfloat16"] else "float32"
    work = Workload(f"draw {number}", p["S"], 1, p["B"], dtype, attention, logits)
    drawn = draw(p, rng)
    if drawn is None:
        return None
    target, has = drawn
    of_run = {"eager attention": attention == "eager", "the last logits alone": logits == "last"}
    piece = Piece(f"draws: {number}", "draws", target, work, sizes={"P": p["P"], "N": 1})
    return piece, {**has, **of_run}
