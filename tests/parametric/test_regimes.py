"""A target at points that it was not traced at: the same numbers, and the same refusals, as point by point."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from costproof.ledger.errors import CostproofError
from costproof.models.registry import load_target
from costproof.parametric.concolic import BranchCondition, PathRecorder, evaluate_size, expression_of
from costproof.parametric.evaluator import Evaluator
from costproof.parametric.exact_arrays import Int128Array
from costproof.parametric.targets import evaluate_formulas

Choices = dict[str, list[int]]

# Values at which targets do otherwise than at their neighbours: windows, groups, patches, refusals.
CASES: dict[str, tuple[Choices, dict[str, list[Any]]]] = {
    "deepseek-ocr": (
        {"text.layers": [2], "sam.layers": [2], "clip.layers": [1], "text.topk": [6, 65], "text.hidden": [1280, 640]},
        {"text_tokens": [1, 100], "batch": [1, 512], "base_size": [512, 640, 1000], "grid": ["2x2", "3x1"]},
    ),
    "mistral": (
        {"layers": [2], "hidden": [4096, 100], "kv_heads": [8, 3]},
        {"text_tokens": [1, 4094, 4095, 4096, 5000], "batch": [1, 1024], "new_tokens": [1, 3]},
    ),
    "gemma3": ({"layers": [6], "window": [512, 16]}, {"text_tokens": [15, 16, 511, 512, 1000], "new_tokens": [1, 3]}),
    "qwen3-moe": ({"layers": [2], "top_k": [8, 200, 4], "experts": [128, 6]}, {"text_tokens": [1, 9], "batch": [1, 9]}),
    "deepseek-v2": ({"layers": [2], "q_rank": [0, 12], "groups": [8, 4, 3]}, {"text_tokens": [1, 9], "batch": [1, 9]}),
    "gpt-oss": ({"layers": [2], "window": [128, 0]}, {"text_tokens": [126, 127, 128, 999], "new_tokens": [1, 3]}),
    "t5": ({"layers": [1], "decoder_layers": [1], "buckets": [8, 3]}, {"seq_len": [1, 512], "batch": [1, 1024]}),
    "vit": ({"layers": [1], "patch": [16, 32, 7]}, {"image_size": [224, 100, 448], "batch": [1, 1024, 1025]}),
    "bert": ({"layers": [1], "hidden": [768, 384, 5]}, {"seq_len": [1, 448, 513], "batch": [1, 1024]}),
    "qwen3-vl-vision": ({"layers": [2], "hidden": [1152, 1600]}, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_shapes_of_a_target(name: str) -> None:
    keys, settings = CASES[name]
    rng = random.Random(name)
    points, usual = Evaluator.of(name), load_target(name)
    start = (
        {"sam.global_layers": [1]} if name == "deepseek-ocr" else {"deep": [0]} if name.endswith("vl-vision") else {}
    )
    models = refused = 0
    for _ in range(12):
        chosen = {k: rng.choice(v) for k, v in keys.items()} | start
        of_run = {s: rng.choice(v) for s, v in settings.items()}
        place = points.choices(chosen, None, of_run)
        shape, numbers = points.regime(place)
        target: Any = usual
        try:
            target = target.with_keys(chosen)
            ledger = evaluate_formulas(target, target.workload(**of_run))
        except CostproofError:
            assert shape.ledger is None, (chosen, of_run)
            refused += 1
            continue
        found = points.at(chosen, settings=of_run)
        for (stage, metric), total in found.totals.items():
            assert total == (ledger.stage_total(stage, metric) if stage else ledger.total(metric)), (stage, metric)
        arrays = {name: np.array([value] * 2) for name, value in numbers.items()}
        cells = [("", "flops"), ("", "input_bytes"), ("", "params")]
        for cell, column in zip(cells, shape.columns(cells, arrays, (2,)), strict=True):
            assert int((column.python() if isinstance(column, Int128Array) else column)[1]) == found.totals[cell]
        models += 1
    assert models >= 3
    assert refused or name in ("gpt-oss", "qwen3-vl-vision", "gemma3")
    assert sum(map(len, points.regimes.values())) <= 12


def test_points_of_one_shape_share_it() -> None:
    points = Evaluator.of("llama")
    for tokens in range(1, 200, 7):
        points.at({"layers": 1}, settings={"text_tokens": tokens, "batch": tokens % 5 + 1})
    # 512 tokens are a preset, which has a name: not met here.
    assert sum(map(len, points.regimes.values())) == 1


def test_what_is_done_with_a_traced_number() -> None:
    path = PathRecorder()
    x, y = path.variable("x", 7), path.variable("y", 2)
    values = {"x": np.array([7, 9, 10]), "y": np.array([2, 3, 0])}
    made = (x // y) * 3 - x % 4 + 1 - y
    # 3 * 3 - 3 + 1 - 2; 3 * 3 - 1 + 1 - 3
    assert made.value == 5
    assert list(evaluate_size(expression_of(made), values, {}))[:2] == [5, 6]
    # The third point divides by zero: it goes another way.
    assert [list(c.holds(values, {})) for c in path.conditions] == [[True, True, False]]
    assert str(x) == f"{x}" == "…"


@pytest.mark.parametrize(
    "use",
    [range, hash, float, lambda n: "ab" * n, lambda n: [0] * n, lambda n: 2**n, lambda n: n / 2, lambda n: n << 1,
     lambda n: list(range(9))[n], lambda n: {3: 1}[n], lambda n: 1.5 * n, lambda n: n**-1],
)  # fmt: skip
def test_a_number_that_is_taken_as_it_is_pins_the_path(use: Any) -> None:
    path = PathRecorder()
    use(path.variable("x", 3))
    pinned = BranchCondition("==", ("var", "x"), ("int", 3), True)
    held = [bool(c.holds({"x": 4}, {})) for c in path.conditions]
    assert pinned in path.conditions or not all(held)


def test_values_that_outgrow_64_bits_on_the_way() -> None:
    path = PathRecorder()
    x = path.variable("x", 3)
    big = evaluate_size(expression_of((x * x + x * x * x) * x % 7), {"x": np.array([2**31 - 1, 5])}, {})
    assert [int(n) for n in big] == [((2**31 - 1) ** 3 + (2**31 - 1) ** 4) % 7, (5**3 + 5**4) % 7]
