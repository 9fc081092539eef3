"""Formulas, layouts, stand-ins and what the formats' own libraries write, for layers of odd sizes, tensor by tensor.

``python -m benchmarks.quantised_libraries`` made the table, which has the versions of the libraries.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch

from costproof.analytic.quantised import MatrixShape, parts_of
from costproof.ledger.metrics import STORAGE
from costproof.models.registry import load_target
from costproof.parametric.targets import evaluate_formulas
from costproof.storage.formats import LinearShape
from costproof.storage.scheme import LinearModule, Scheme, UnknownFormat, read_scheme
from costproof.storage.tensors import DTYPE_BITS, STORED_AS
from costproof.tracers.format_runs import packed, torch_dtype
from costproof.tracers.storage import LOADED
from tests.storage.test_metrics import of_formulas, of_module

LIBRARIES: dict[str, Any] = json.loads(Path(__file__).with_name("quantised_libraries.json").read_text("utf-8"))
DTYPES = {stored: dtype for dtype, stored in STORED_AS.items()}
ASSUMED = {"fp8 tensor dynamic float", "fp8 tensor static float"}
"""Formats with scales in float32 in a module, and in bfloat16 in checkpoints, which no key says."""

REMOVED = {"ct w4a16 g32 by group"}
"""Formats that the library refuses since a version, and that published checkpoints have."""
REFUSED = {"awq w4 g-1", "awq w8 g128"}
"""Formats that the library refuses for every layer."""


def scheme(made: dict[str, Any]) -> Scheme:
    config = made["config"]
    key = "quantization" if made["library"] == "mlx" else "quantization_config"
    return read_scheme({key: config}, {}, "llama")


def module(name: str) -> LinearModule:
    rows, columns, _ = LIBRARIES["layers"][name]
    kind = "Embedding" if name == "table" else "Linear"
    return LinearModule(f"model.layers.0.{name}", kind, columns, classes=(kind,), rows=rows)


@pytest.mark.parametrize("name", LIBRARIES["formats"])
def test_formula_layout_and_library_agree(name: str) -> None:
    made = LIBRARIES["formats"][name]
    seen = 0
    for layer, written in made["layers"].items():
        rows, columns, bias = LIBRARIES["layers"][layer]
        try:
            of = scheme(made).format_of(module(layer))
        except UnknownFormat:
            of = None
        if isinstance(written, str):
            assert of is None or name in REMOVED, f"{layer}: the library says {written}"
            continue
        if of is None and (made["library"] == "bitsandbytes" and layer == "table"):
            continue  # transformers gives it linear layers alone
        assert of is not None, layer
        seen += 1
        layout = {t.name: t for t in of.tensors(LinearShape(rows, columns, bias, made["dtype"]))}
        open_size = {text.partition(":")[0] for text in of.undetermined()}
        sized = {key: tuple(tensor) for key, tensor in written.items() if key not in open_size}
        assert open_size <= written.keys()
        if name in ASSUMED:
            sized = {key: ("BF16" if dtype == "F32" and "scale" in key else dtype, shape)
                     for key, (dtype, shape) in sized.items()}  # fmt: skip
        assert {key: (t.dtype, list(t.shape)) for key, t in layout.items()} == sized
        weights = torch.empty(rows, columns, dtype=torch_dtype(made["dtype"]), device="meta")
        stand_in = packed(of, weights, weights[:, 0] if bias else None)
        assert {key: (t.dtype, list(t.shape)) for key, t in stand_in.items() if key not in open_size} == {
            key: (torch_dtype(dtype), shape) for key, (dtype, shape) in sized.items()
        }
        expected: dict[str, tuple[int, int]] = {}
        for key, (dtype, shape) in sized.items():
            elements = int(sympy.prod(shape))
            before = expected.get(layout[key].purpose, (0, 0))
            expected[layout[key].purpose] = (before[0] + elements, before[1] + elements * DTYPE_BITS[dtype] // 8)
        found = parts_of(of, MatrixShape(rows, columns, bias, DTYPES[made["dtype"]]))  # type: ignore[arg-type]
        assert {part: tuple(map(int, sizes)) for part, sizes in found.items()} == expected
    assert (seen >= 2) is (name not in REFUSED | REMOVED)


@pytest.mark.parametrize("name", LIBRARIES["models"])
def test_modules_of_a_model_are_those_that_the_libraries_make(name: str, tmp_path: Path) -> None:
    """Lists of modules, targets, tables, tied heads, biases and scales of a cache of a Llama, module by module."""
    made = LIBRARIES["models"][name]
    (tmp_path / "config.json").write_text(json.dumps(made["config"]), encoding="utf-8")
    target: Any = load_target(f"hf:{tmp_path}")
    layout, run = of_module(target, target.build(target.workload()))
    formulas = evaluate_formulas(target, target.workload())
    if "lm_head" in made["modules"] and made["config"]["tie_word_embeddings"]:  # the libraries make a second one
        assert not set(STORAGE) & {*layout.metrics, *formulas.metrics}
        assert all("lm_head is tied and not left out" in found.notes[-1] for found in (layout, formulas))
        return
    assert layout.modules == made["modules"]
    assert of_formulas(formulas) == made["modules"]
    for stated in run.differences:  # scales and biases that transformers loads in float32
        assert (stated.metric, stated.why) == ("resident_bytes", LOADED)
        held = run.modules[stated.module]
        held["resident_bytes"] = (held["resident_bytes"] or 0) - stated.amount
    assert run.modules == made["modules"], "of the library, or of stand-ins where it is not installed"
