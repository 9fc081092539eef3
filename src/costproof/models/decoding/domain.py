"""The domain of a proof about a decoder: symbolic prompt and cache lengths, and random small configurations."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from costproof.analytic.elementwise import ACTIVATION_FLOPS
from costproof.compare.proof.certificate import Settings
from costproof.ledger.workload import FLOAT_BYTES, AttentionKind, Dtype, ExpertKernel, Logits, Workload
from costproof.models.decoding.config import LEAST_WINDOW, DecoderConfig, MixtureConfig, WindowedConfig
from costproof.models.proof import Piece, Proof, Provable, reasons

VARIANTS: Final = (
    Workload("text", 512, 4),
    Workload("text, eager, last logits", 512, 4, 1, "float32", "eager", "last"),
)

_ATTENTIONS: Final[tuple[AttentionKind, ...]] = ("sdpa", "eager")
_DECODING: Final = "decoding"
"""The setting of families that have two implementations of decode steps; its first choice is the default."""
_KERNELS: Final[tuple[ExpertKernel, ...]] = ("grouped_mm", "batched_mm")
GROUPED_ROW: Final = 8
"""Random widths are multiples of this for grouped GEMMs, whose rows must be multiples of 16 bytes (8 x bfloat16)."""

# Parameter -> its values, drawn uniformly and independently of all others.
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
"""Symbols -> expressions in drawn parameters; rotary heads are even, and heads divide the width."""
_NOT_VARIED: Final = (
    "kernels other than sdpa and eager",
    "1 to 3 decode steps at a drawn past, each exported by itself; in runs of their own there are 2 to 12",
)
LEAST_CONTEXT: Final = 128
"""Shortest context of a drawn configuration, in tokens; longer than any drawn run."""
_ONE: Final = "the configuration: identities hold for this one"
STEPS: Final = (1, 1, 1, 2, 3)
"""Numbers of decode steps of a draw; repeated ones are more likely."""
_FEW: Final = (1, 1, 1, 2, 2)
_DEEP: Final = 33
"""Index, modulo 64, of the draws with more layers than the target has."""


def layers(rng: random.Random, number: int, target: int) -> int:
    """Return the number of layers of a random configuration: 1 or 2, but once in 64 one more than the target has."""
    few = rng.choice(_FEW)
    return target + 1 if number % 64 == _DEEP else few


Drawn = tuple[Provable, Mapping[str, bool]]
"""A target with a random configuration, and feature -> whether the configuration has it."""
T = TypeVar("T", bound=DecoderConfig)


def random_config(config_type: type[T], sizes: Mapping[str, int], rng: random.Random) -> T:
    """Return a configuration with the given sizes and with random flags, window and activation.

    The window is either longer than the drawn run, or no longer than its prompt and its cache.
    """
    heads = sizes["text_kv_heads"] * sizes["text_groups"]
    more: dict[str, Any] = {name: rng.random() < 0.5 for name in config_type.flag_names()}
    if issubclass(config_type, WindowedConfig):
        filled = min(sizes["S"], sizes["P"]) + 1
        short = filled >= LEAST_WINDOW and rng.random() < 0.5
        window = rng.randint(LEAST_WINDOW, filled) if short else max(_RUN["S"].stop, _RUN["P"].stop) + max(STEPS)
        more |= {"pattern": rng.choice(config_type.patterns), "window": window}
    common = {
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
    return config_type(**{**common, **more, **config_type.draw_fields(sizes, rng)})


def features(config: DecoderConfig) -> dict[str, bool]:
    """Return feature -> whether a configuration has it, for features that are not sizes in a formula."""
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
"""(values of the parameters, source of other choices) -> a configuration; ``None`` if the family draws none."""


def proof(target: Provable, kind: type[DecoderConfig], config: str, samples: int, seed: int, draw: Draw) -> Proof:
    """Return the proof: exports in symbolic batch, prompt, context and steps, and exports of random configurations.

    Args:
        kind: type of the target's configuration.
        config: the normalised configuration as JSON.
        draw: draws a configuration of the family.
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
        independent={**INDEPENDENT, **kind.derived} if count else {},
        choices=Counter(name for _, present in made for name, is_present in present.items() if is_present),
        not_varied=(*_NOT_VARIED, *reasons(kind)) if count else (_ONE, _NOT_VARIED[0]),
    )


def _drawn(
    draw: Draw, seed: int, number: int, choices: Mapping[str, Sequence[str]], ranges: Mapping[str, range], depth: int
) -> tuple[Piece[Provable], Mapping[str, bool]] | None:
    """Return the proof piece of random configuration ``number``, and its features; ``None`` if the family draws none.

    It depends only on seed and number, so it is equal on every machine.
    """
    rng = random.Random(f"costproof:{seed}:{number}")
    p = {name: rng.choice(values) for name, values in ranges.items()}
    p["layers"] = layers(rng, number, depth)
    attention: AttentionKind = rng.choice([a for a in _ATTENTIONS if a in choices["attention"]])
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
    target, present = drawn
    of_run = {
        "eager attention": attention == "eager",
        "the last logits alone": logits == "last",
        "several decode steps": steps > 1,
    }
    if "experts" in choices:
        of_run["grouped GEMMs"] = work.experts == "grouped_mm"
    if _DECODING in choices:
        default, other = choices[_DECODING]
        decoding = rng.choice((default, other))
        work = work if decoding == default else replace(work, inputs={_DECODING: decoding})
        of_run[f"{other} decoding"] = decoding == other
    piece = Piece(f"draws: {number}", "draws", target, work, sizes={"P": p["P"], "N": steps})
    return piece, {**present, **of_run}
