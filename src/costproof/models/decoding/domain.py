"""What a proof about a decoder ranges over: prompts and steps of any size, and random small configurations."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from costproof.analytic.mlp import ACTIVATION_FLOPS
from costproof.compare.proof.certificate import Settings
from costproof.ledger.workload import FLOAT_BYTES, Attention, Dtype, Experts, Logits, Workload
from costproof.models.decoding.config import LEAST_WINDOW, TextConfig, WindowedConfig
from costproof.models.decoding.mixtures import MixtureConfig
from costproof.models.proof import Piece, Proof, Provable, reasons

VARIANTS: Final = (
    Workload("text", 512, 4),
    Workload("text, eager, last logits", 512, 4, 1, "float32", "eager", "last"),
)

_ATTENTIONS: Final[tuple[Attention, ...]] = ("sdpa", "eager")
_DECODING: Final = "decoding"
"""The setting of families whose decode steps can be carried out in two ways, the usual one first."""
_KERNELS: Final[tuple[Experts, ...]] = ("grouped_mm", "batched_mm")
GROUPED_ROW: Final = 8
"""Grouped GEMMs need rows of 16 bytes, so widths of a multiple of this; a draw with other kernels has any width."""

# Parameter -> the values it is drawn from, uniformly and independently of all others.
_RUN: Final[Mapping[str, range]] = {"S": range(1, 41), "B": range(1, 33), "b": range(2, 6, 2), "P": range(1, 65)}
CONFIG: Final[Mapping[str, range]] = {
    "text_kv_heads": range(1, 9),
    "text_groups": range(1, 7),
    "text_head_halves": range(1, 21),
    "text_share": range(1, 21),
    "text_intermediate": range(1, 201),
    "text_vocab": range(16, 516),
}
INDEPENDENT: Final[Mapping[str, str]] = {
    "text_heads": "text_kv_heads*text_groups",
    "text_head_dim": "2*text_head_halves",
    "text_hidden": "text_kv_heads*text_groups*text_share",
}
"""Symbols that follow from the drawn parameters: rotation needs pairs, and heads divide the width."""
_NOT_VARIED: Final = (
    "kernels other than sdpa and eager",
    "1 to 3 decode steps at a drawn past, each exported by itself; in runs of their own there are 2 to 12",
)
LEAST_CONTEXT: Final = 128
"""The shortest context of a drawn configuration, longer than any run of it."""
_ONE: Final = "the configuration: identities hold for this one"
STEPS: Final = (1, 1, 1, 2, 3)
"""Decode steps of a draw."""
_FEW: Final = (1, 1, 1, 2, 2)
_DEEP: Final = 33
"""Draw of every 64 with more layers than the target has."""


def layers(rng: random.Random, number: int, target: int) -> int:
    """How many layers a draw has: few, and in one of 64 one more than the target."""
    few = rng.choice(_FEW)
    return target + 1 if number % 64 == _DEEP else few


Drawn = tuple[Provable, Mapping[str, bool]]
"""A random configuration of a family; and of the things that are not numbers in a formula, whether it has them."""
T = TypeVar("T", bound=TextConfig)


def random_config(config_type: type[T], sizes: Mapping[str, int], rng: random.Random) -> T:
    """The configuration of a family of drawn sizes; flags, windows, activation and layers are drawn here.

    A window is longer than the drawn run, or the prompt and what is in the cache fill it.
    """
    heads = sizes["text_kv_heads"] * sizes["text_groups"]
    more: dict[str, Any] = {name: rng.random() < 0.5 for name in config_type.flags()}
    if issubclass(config_type, WindowedConfig):
        filled = min(sizes["S"], sizes["P"]) + 1
        short = filled >= LEAST_WINDOW and rng.random() < 0.5
        window = rng.randint(LEAST_WINDOW, filled) if short else max(_RUN["S"].stop, _RUN["P"].stop) + max(STEPS)
        more |= {"pattern": rng.choice(config_type.patterns), "window": window}
    usual = {
        "hidden": heads * sizes["text_share"],
        "intermediate": sizes["text_intermediate"],
        "layers": sizes["layers"],
        "heads": heads,
        "kv_heads": sizes["text_kv_heads"],
        "head_dim": 2 * sizes["text_head_halves"],
        "vocab": sizes["text_vocab"],
        "max_positions": rng.randint(LEAST_CONTEXT, 2 * LEAST_CONTEXT),
        "activation": rng.choice(tuple(ACTIVATION_FLOPS)),
    }
    return config_type(**{**usual, **more, **config_type.random(sizes, rng)})


def has(config: TextConfig) -> dict[str, bool]:
    """Of the things that are not numbers in a formula, whether a configuration has them."""
    windows = config.windows()
    routed = config.routed() if isinstance(config, MixtureConfig) else ()
    return {
        "shared key/value heads": config.kv_heads < config.heads,
        "biases in attention": getattr(config, "attention_bias", False),
        "biases in the MLP": getattr(config, "mlp_bias", False),
        "a tied output projection": config.tied,
        "another activation than SiLU": config.activation != "silu",
        "heads as wide as the width in all": config.heads * config.head_dim == config.hidden,
        "layers with a window": any(windows),
        "layers with and without a window": any(windows) and not all(windows),
        "layers with experts": any(routed),
        "dense layers beside those with experts": any(routed) and not all(routed),
    }


Draw = Callable[[Mapping[str, int], random.Random], Drawn | None]
"""From values of the parameters, and what else is drawn, to a configuration; ``None`` if a family draws none."""


def proof(target: Provable, kind: type[TextConfig], config: str, samples: int, seed: int, draw: Draw) -> Proof:
    """Identities in batch, prompt, context and steps, and draws where the family says how.

    Args:
        kind: of the target's configuration.
        config: this configuration, normalised, as JSON.
        draw: what makes a configuration of a family.
    """
    choices = {s.name: s.choices for s in target.settings()}
    variants = [v if v.attention in choices["attention"] else replace(v, attention="eager") for v in VARIANTS]
    if "experts" in choices:
        variants[-1] = replace(variants[-1], experts=_KERNELS[1])
    for other in choices.get(_DECODING, ())[1:]:
        variants.append(replace(variants[0], name=f"text, {other} decoding", inputs={_DECODING: other}))
    ranges = {**CONFIG, **kind.ranges, **_RUN}
    depth = target.info().symbols["text_layers"]
    made = [m for number in range(samples) if (m := _drawn(draw, seed, number, choices, ranges, depth)) is not None]
    count = len(made)
    return Proof(
        pieces=(
            *(Piece(f"identity: {w.name}", "identities", target, w) for w in variants),
            *(piece for piece, _ in made),
        ),
        settings=Settings(count, seed, config),
        usual=variants[0],
        ranges={name: len(values) for name, values in ranges.items()} if count else {},
        independent={**INDEPENDENT, **kind.follows} if count else {},
        choices=Counter(word for _, has in made for word, present in has.items() if present),
        not_varied=(*_NOT_VARIED, *reasons(kind)) if count else (_ONE, _NOT_VARIED[0]),
    )


def _drawn(
    draw: Draw, seed: int, number: int, choices: Mapping[str, Sequence[str]], ranges: Mapping[str, range], depth: int
) -> tuple[Piece[Provable], Mapping[str, bool]] | None:
    """A run of the configuration with that number in the sequence of a seed, the same everywhere; and what it has."""
    rng = random.Random(f"costproof:{seed}:{number}")
    p = {name: rng.choice(values) for name, values in ranges.items()}
    p["layers"] = layers(rng, number, depth)
    attention: Attention = rng.choice([a for a in _ATTENTIONS if a in choices["attention"]])
    logits: Logits = rng.choice(("all", "last"))
    dtype: Dtype = "bfloat16" if p["b"] == FLOAT_BYTES["bfloat16"] else "float32"
    steps = rng.choice(STEPS)
    work = Workload(f"draw {number}", p["S"], steps, p["B"], dtype, attention, logits)
    if "experts" in choices:
        work = replace(work, experts=rng.choice(_KERNELS))
        p["row"] = GROUPED_ROW if work.experts == "grouped_mm" else 1
    drawn = draw(p, rng)
    if drawn is None:
        return None
    target, has = drawn
    of_run = {
        "eager attention": attention == "eager",
        "the last logits alone": logits == "last",
        "several decode steps": steps > 1,
    }
    if "experts" in choices:
        of_run["grouped GEMMs"] = work.experts == "grouped_mm"
    if _DECODING in choices:
        usual, other = choices[_DECODING]
        way = rng.choice((usual, other))
        work = work if way == usual else replace(work, inputs={_DECODING: way})
        of_run[f"{other} decoding"] = way == other
    piece = Piece(f"draws: {number}", "draws", target, work, sizes={"P": p["P"], "N": steps})
    return piece, {**has, **of_run}
