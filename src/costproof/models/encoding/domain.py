"""Define the domain of a proof about a model with stages: symbolic input sizes, and random small configurations."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from costproof.analytic.elementwise import ACTIVATION_FLOPS
from costproof.compare.proof.certificate import Settings
from costproof.configs.config import Config
from costproof.ledger.workload import FLOAT_BYTES, AttentionKind, Dtype, Workload
from costproof.models.decoding.domain import STEPS, layers
from costproof.models.proof import Piece, Proof, Provable, reasons
from costproof.patches.flash_attention import FLASH

ACTIVATIONS: Final = tuple(ACTIVATION_FLOPS)
"""Activation functions that a proof draws from: all that have a formula."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """Value ranges of the parameters of random configurations, and the symbols that follow from them."""

    ranges: Mapping[str, range]
    """Values of each parameter, drawn uniformly and independently of all others."""
    independent: Mapping[str, str]
    """Expressions of symbols in drawn parameters, by symbol."""
    not_varied: tuple[str, ...]
    """Properties that no draw varies, as the certificate lists them."""


@dataclass(frozen=True, slots=True)
class Domain:
    """Runs and random configurations that a proof about one target covers."""

    variants: tuple[Workload, ...]
    """Workloads of its configuration whose ledgers are compared as expressions; the first is the default."""
    parameters: Parameters
    sizes: tuple[int, ...] = ()
    """Image sides at which the exports of :attr:`variants` hold; empty if they hold for all sides."""


IMAGES: Final = Parameters(
    {
        "vision_heads": range(1, 9),
        "vision_head_dim": range(1, 41),
        "vision_intermediate": range(1, 201),
        "vision_grid": range(1, 9),
        "vision_patch": range(8, 16),
        "vision_channels": range(1, 5),
        "vision_labels": range(1, 101),
        "vision_pooled": range(1, 101),
        "G": range(1, 17),
        "rest": range(8),
        "B": range(1, 33),
        "b": range(2, 6, 2),
    },
    {
        "vision_hidden": "vision_heads*vision_head_dim",
        "vision_positions": "vision_grid**2 + 1",
        "H": "vision_patch*G + rest",
    },
    ("kernels other than sdpa and eager", "images and patches that are not square"),
)
"""Parameters of an image encoder; heads divide the width, and some pixels are outside of all patches."""

TEXTS: Final = Parameters(
    {
        "text_heads": range(1, 9),
        "text_head_dim": range(1, 41),
        "text_intermediate": range(1, 201),
        "text_vocab": range(16, 516),
        "text_positions": range(41, 141),
        "text_types": range(1, 9),
        "text_labels": range(1, 101),
        "S": range(1, 41),
        "B": range(1, 33),
        "b": range(2, 6, 2),
    },
    {"text_hidden": "text_heads*text_head_dim"},
    ("kernels other than sdpa and eager", "padded texts: every token is computed"),
)
"""Parameters of a text encoder; heads divide the width."""

PATCHES: Final = Parameters(
    {
        "vision_heads": range(1, 9),
        "vision_head_quarters": range(1, 11),
        "vision_intermediate": range(1, 201),
        "vision_out": range(1, 101),
        "vision_positions": range(1, 101),
        "patch": range(1, 6),
        "frames": range(1, 4),
        "channels": range(1, 5),
        "merge": range(1, 9),
        "side": range(1, 9),
        "b": range(2, 6, 2),
    },
    {
        "vision_head_dim": "4*vision_head_quarters",
        "vision_hidden": "4*vision_heads*vision_head_quarters",
        "vision_volume": "channels*frames*patch**2",
        "vision_merged": "merge**2",
        "n": "merge**2*side**2",
    },
    ("kernels other than sdpa and eager", "images that are not square", "several images: as many runs"),
)
"""Parameters of an encoder of one image's patches, in which neighbouring patches are merged."""
TWO_STACKS: Final = Parameters(
    {
        "text_heads": range(1, 9),
        "text_head_dim": range(1, 41),
        "text_hidden": range(1, 101),
        "text_intermediate": range(1, 201),
        "text_vocab": range(16, 516),
        "text_buckets": range(4, 65),
        "S": range(1, 41),
        "P": range(1, 41),
        "B": range(1, 33),
        "b": range(2, 6, 2),
    },
    {},
    ("kernels other than sdpa", "padded texts: every token is computed", "decode steps: 1 to 3 at a drawn past"),
)
"""Parameters of an encoder-decoder model."""


class DrawnTarget(Provable, Protocol):
    """Protocol of targets that can be proved for random configurations of their family."""

    @property
    def config(self) -> Config:
        """Return the configuration."""

    @property
    def attentions(self) -> tuple[AttentionKind, ...]:
        """Return the attention implementations that the model class supports, such as ``eager`` and ``sdpa``."""

    def normalised(self) -> str:
        """Return the configuration as JSON."""

    def domain(self) -> Domain:
        """Return the domain of a proof."""

    def quantised_as(self, other: Any) -> DrawnTarget:
        """Return the same model with the checkpoint formats of another model."""

    def drawn(self, p: Mapping[str, int], rng: random.Random) -> tuple[DrawnTarget, dict[str, bool]]:
        """Draw a random small configuration; return its target, and whether it has each feature.

        Args:
            p: values of the parameters of :meth:`domain`.
            rng: source of all choices that are not sizes.
        """

    def drawn_run(self, p: Mapping[str, int], workload: Workload) -> Workload:
        """Return the workload with randomly drawn input sizes."""


def proof(target: DrawnTarget, samples: int, seed: int) -> Proof:
    """Return the proof: exports in symbolic sizes and of random configurations, each compared with formulas."""
    domain = target.domain()
    parameters = domain.parameters
    made = [_drawn(target, parameters, seed, number) for number in range(samples)]
    return Proof(
        pieces=(
            *(Piece(f"identity: {w.name}", "identities", target, w) for w in domain.variants),
            *(piece for piece, _ in made),
        ),
        settings=Settings(samples, seed, target.normalised()),
        usual=domain.variants[0],
        ranges={name: len(values) for name, values in parameters.ranges.items()} if samples else {},
        independent=parameters.independent if samples else {},
        choices=Counter(name for _, present in made for name, is_present in present.items() if is_present),
        not_varied=(*parameters.not_varied, *reasons(target.config)),
        sizes=domain.sizes,
        sized=target.info().stages if domain.sizes else (),
    )


def _drawn(
    family: DrawnTarget, parameters: Parameters, seed: int, number: int
) -> tuple[Piece[Provable], dict[str, bool]]:
    """Return the proof piece of random configuration ``number``, the same on every machine, and its features."""
    rng = random.Random(f"costproof:{seed}:{number}")
    p = {name: rng.choice(values) for name, values in parameters.ranges.items()}
    depth = max(value for name, value in family.info().symbols.items() if name.endswith("_layers"))
    p["layers"], steps = layers(rng, number, depth), rng.choice(STEPS) if "P" in p else 0
    attention = rng.choice([one for one in family.attentions if one != FLASH])  # its package may be missing
    dtype: Dtype = "bfloat16" if p["b"] == FLOAT_BYTES["bfloat16"] else "float32"
    target, present = family.drawn(p, rng)
    target = target.quantised_as(family)
    run = target.drawn_run(p, Workload(f"draw {number}", 0, steps, p.get("B", 1), dtype, attention))
    sizes = {"B": p.get("B", 1), **({"P": p["P"], "N": steps} if "P" in p else {})}
    piece: Piece[Provable] = Piece(f"draws: {number}", "draws", target, run, sizes=sizes)
    more = {"several decode steps": steps > 1} if "P" in p else {}
    return piece, {**present, **more, "eager attention": attention == "eager"}


def some_layers(p: Mapping[str, int], rng: random.Random) -> dict[str, Any]:
    """Return the number of layers and the activation function, both drawn at random."""
    return {"layers": p["layers"], "activation": rng.choice(ACTIVATIONS)}
