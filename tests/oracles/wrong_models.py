"""A cost model of its own with switches for mistakes: plain integer arithmetic, written from the papers.

It shares nothing with costproof's formulas, items or causes but the names of the mistakes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

Wrong = frozenset[str]


@dataclass(frozen=True, slots=True)
class Model:
    """Sizes of the model and of one run."""

    d: Mapping[str, int]
    sam_global_layers: int
    views: Mapping[str, tuple[int, int]]
    """Name -> (number of views, side in pixels)."""
    batch: int
    prompt: int
    positions: int
    steps: int
    vision_tokens: int


def flops(m: Model, stage: str, wrong: Wrong) -> Fraction:
    """FLOPs of a stage, or of all, with the mistakes named in ``wrong``."""
    if stage == "total":
        return sum((flops(m, s, wrong) for s in ("sam", "clip", "projector", "prefill", "decode")), Fraction(0))
    if stage in ("prefill", "decode"):
        products, additions = _decoder(m, stage, wrong)
    else:
        products = additions = Fraction(0)
        for name, (count, side) in m.views.items():
            if f"view missing: {name}" in wrong:
                continue
            count = m.batch if name == "crops" and "one crop" in wrong else count
            times = 2 if f"view twice: {name}" in wrong else 1
            tower = {"sam": _sam, "clip": _clip, "projector": _projector}[stage]
            p, a = tower(m, count, side, wrong)
            products, additions = products + times * p, additions + times * a
    return (products if "mac" in wrong else 2 * products) + additions


def _sam(m: Model, n: int, side: int, wrong: Wrong) -> tuple[Fraction, Fraction]:
    d = m.d
    q, h, heads, width = side // d["sam_patch"], d["sam_hidden"], d["sam_heads"], d["sam_head_dim"]
    w, tokens, mac, add = d["sam_window"], n * q * q, 0, 0
    if "patch convolution missing" not in wrong:
        mac += tokens * h * d["in_channels"] * d["sam_patch"] ** 2
    if "biases counted" in wrong:
        add += tokens * h
    for layer in range(d["sam_layers"]):
        if layer < m.sam_global_layers or "windows as full attention" in wrong:
            rows, scores, axis = tokens, n * q**4, 2 * n * q**3
        elif "window padding missing" in wrong:
            rows, scores, axis = tokens, tokens * w * w, 2 * tokens * w
        else:
            cells = n * (-(-q // w)) ** 2
            rows, scores, axis = cells * w * w, cells * w**4, 2 * cells * w**3
        mac += rows * 4 * h * h + tokens * 2 * h * d["sam_mlp"]
        if "attention missing" not in wrong:
            mac += 2 * scores * heads * width
        if "relative positions missing" not in wrong:
            mac += axis * heads * width
        if "norms counted" in wrong:
            add += 2 * (7 * tokens * h + 2 * tokens)
        if "biases counted" in wrong:
            add += rows * 4 * h + tokens * (d["sam_mlp"] + h)
    mac += tokens * (h * d["sam_out"] + 9 * d["sam_out"] ** 2)
    once, twice = (1, 1) if "merger on patches" in wrong else (4, 16)
    mac += tokens // once * 9 * d["sam_out"] * d["sam_down1"] + tokens // twice * 9 * d["sam_down1"] * d["sam_down2"]
    if "norms counted" in wrong:
        add += 2 * (7 * tokens * d["sam_out"] + 2 * tokens)
    return Fraction(mac), Fraction(add)


def _clip(m: Model, n: int, side: int, wrong: Wrong) -> tuple[Fraction, Fraction]:
    d = m.d
    t = (side // d["sam_patch"] // 4) ** 2 + (0 if "class token missing" in wrong else 1)
    h, layers, rows = d["clip_hidden"], d["clip_layers"], n * t
    mac = layers * rows * (4 * h * h + 2 * h * d["clip_mlp"])
    if "attention missing" not in wrong:
        mac += layers * 2 * n * t * t * d["clip_heads"] * d["clip_head_dim"]
    add = 0
    if "norms counted" in wrong:
        add += (2 * layers + 1) * (7 * rows * h + 2 * rows)
    if "biases counted" in wrong:
        add += layers * rows * (5 * h + d["clip_mlp"])
    return Fraction(mac), Fraction(add)


def _projector(m: Model, n: int, side: int, wrong: Wrong) -> tuple[Fraction, Fraction]:
    d = m.d
    per_view = (side // d["sam_patch"] // 4) ** 2
    tokens = n * per_view
    if "projector on patches" in wrong:
        tokens = n * (side // d["sam_patch"]) ** 2
    if "projector with class token" in wrong:
        tokens = n * (per_view + 1)
    add = tokens * d["text_hidden"] if "biases counted" in wrong else 0
    return Fraction(tokens * (d["clip_hidden"] + d["sam_down2"]) * d["text_hidden"]), Fraction(add)


def _decoder(m: Model, stage: str, wrong: Wrong) -> tuple[Fraction, Fraction]:
    d, h = m.d, m.d["text_hidden"]
    steps = 1 if "one decode step" in wrong else m.steps
    tokens = m.batch * (m.prompt if stage == "prefill" else steps)
    width = h // d["text_heads"] if "head_dim = hidden / heads: text" in wrong else d["text_head_dim"]
    kv = d["text_heads"] if "GQA ignored: text" in wrong else d["text_kv_heads"]
    per_token = 2 * h * d["text_heads"] * width + 2 * h * kv * width
    matrices = 2 if "gate matrix missing" in wrong else 3
    dense = matrices * h * d["text_intermediate"]
    wide = "expert width = dense width" in wrong
    expert = matrices * h * (d["text_intermediate"] if wide else d["text_moe"])
    passed = 1 if "top-k missing" in wrong else d["text_experts"] if "all experts" in wrong else d["text_topk"]
    if "routed experts missing" in wrong:
        passed = 0
    mixture = passed * expert
    if "shared experts missing" not in wrong:
        mixture += expert * (1 if "one shared expert" in wrong else d["text_shared"])
    if "router missing" not in wrong:
        mixture += h * d["text_experts"]
    first = 0 if "dense-first ignored" in wrong else d["text_dense"]
    if "MoE as a dense FFN" in wrong:
        first = d["text_layers"]
    mac = Fraction(tokens * (d["text_layers"] * per_token + first * dense + (d["text_layers"] - first) * mixture))
    mac += d["text_layers"] * 2 * d["text_heads"] * width * m.batch * _scores(m, stage, steps, wrong)
    mac += _head(m, stage, steps, wrong)
    if "embedding as a GEMM" in wrong:
        mac += tokens * h * d["text_vocab"]
    add = 0
    if "norms counted" in wrong:
        add = (2 * d["text_layers"] + 1) * (4 * tokens * h + 2 * tokens)
    return mac, Fraction(add)


def _scores(m: Model, stage: str, steps: int, wrong: Wrong) -> Fraction:
    """Query-key pairs of one sequence and head."""
    if "attention missing" in wrong:
        return Fraction(0)
    if stage == "decode":
        return Fraction(sum(1 if "context attention missing" in wrong else m.prompt + i + 1 for i in range(steps)))
    s = m.prompt
    if "causal triangle" in wrong:
        return Fraction(s * (s + 1), 2)
    if "causal half" in wrong:
        return Fraction(s * s, 2)
    return Fraction(s * s * 10, 18) if "causal 1.8" in wrong else Fraction(s * s)


def _head(m: Model, stage: str, steps: int, wrong: Wrong) -> Fraction:
    if "lm_head missing" in wrong:
        return Fraction(0)
    rows = m.batch * (m.positions if stage == "prefill" else steps)
    if stage == "prefill" and "lm_head last token" in wrong:
        rows = m.batch
    whole = Fraction(rows * m.d["text_hidden"] * m.d["text_vocab"])
    return whole / 2 if "lm_head halved" in wrong else whole


def rule(m: Model, stage: str, forward_only: bool) -> int:
    """2 N D, or 6 N D, with N all parameters of the decoder."""
    d, h = m.d, m.d["text_hidden"]
    attention = 2 * h * d["text_heads"] * d["text_head_dim"] + 2 * h * d["text_kv_heads"] * d["text_head_dim"]
    dense = 3 * h * d["text_intermediate"]
    mixture = (d["text_experts"] + d["text_shared"]) * 3 * h * d["text_moe"] + h * d["text_experts"]
    layers = d["text_layers"] * (attention + 2 * h) + d["text_dense"] * dense
    layers += (d["text_layers"] - d["text_dense"]) * mixture
    parameters = layers + h + 2 * h + 2 * d["text_vocab"] * h
    tokens = m.batch * (m.prompt if stage == "prefill" else m.steps)
    return (2 if forward_only else 6) * parameters * tokens
