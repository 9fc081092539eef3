"""torchao's layouts: bytes by hand at odd shapes, exclusions, and what its own code writes where it is installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from costproof import stored
from costproof.storage.formats import LinearShape
from costproof.storage.scheme import LinearModule, Scheme, UnknownFormat, read_scheme
from costproof.storage.tensors import totals
from tests.storage.test_metrics import counted, small

WRITTEN: dict[str, Any] = json.loads(Path(__file__).with_name("torchao_headers.json").read_text(encoding="utf-8"))


def config(kind: str, version: int = 2, **data: Any) -> dict[str, Any]:
    return {"_type": kind, "_version": version, "_data": data}


def unit(kind: str, **data: Any) -> dict[str, Any]:
    return {"_type": kind, "_version": 1, "_data": data}


def described(of: object, **more: Any) -> dict[str, Any]:
    return {"quant_method": "torchao", "quant_type": {"default": of}, **more}


def scheme(of: object, **more: Any) -> Scheme:
    return read_scheme({"quantization_config": described(of, **more)}, {}, "llama")


TILED = {"_type": "Int4PackingFormat", "_data": "TILE_PACKED_TO_4D"}
INT4 = config("Int4WeightOnlyConfig", group_size=32)
INT8 = config("Int8WeightOnlyConfig", granularity=unit("PerRow", dim=-1))
DYNAMIC = config("Int8DynamicActivationInt8WeightConfig", granularity=unit("PerTensor"))
FP8 = config("Float8WeightOnlyConfig", weight_dtype={"_type": "torch.dtype", "_data": "float8_e4m3fn"})
ROWS = [unit("PerRow", dim=-1), unit("PerRow", dim=-1)]
FP8_ROWS = config("Float8DynamicActivationFloat8WeightConfig", granularity=ROWS)


@pytest.mark.parametrize(
    ("of", "rows", "columns", "expected", "products"),
    [
        # int4: half a byte a weight; scales and zero points in two bytes for each row and group of 32.
        (INT4, 9, 96, 9 * 48 + 2 * 2 * 3 * 9, ""),
        # Tiles: 9 rows are padded to 16, 96 columns to 1,024; a pair of numbers for each group of 32 and padded row.
        ({**INT4, "_data": {"group_size": 32, "int4_packing_format": TILED}}, 9, 96,
         16 * 1024 // 2 + 2 * 2 * 32 * 16, ""),
        # int8: a scale of four bytes and a zero point of one for each row, or for the matrix.
        (INT8, 9, 13, 9 * 13 + 5 * 9, ""), (DYNAMIC, 9, 13, 9 * 13 + 5, "int8"),
        (config("Int8WeightOnlyConfig", granularity=unit("PerGroup", group_size=13)), 9, 39, 9 * 39 + 5 * 9 * 3, ""),
        # fp8: a scale for each row; dynamic without a granularity has one for the matrix.
        (FP8, 9, 13, 9 * 13 + 4 * 9, ""), (FP8_ROWS, 16, 48, 16 * 48 + 4 * 16, "float8"),
        (config("Float8DynamicActivationFloat8WeightConfig"), 16, 48, 16 * 48 + 4, "float8"),
    ],
)  # fmt: skip
def test_bytes_of_a_linear_layer(of: dict[str, Any], rows: int, columns: int, expected: int, products: str) -> None:
    found = scheme(of).format_of(LinearModule("model.layers.0.a", rows=rows, columns=columns))
    assert found is not None
    assert totals(found.tensors(LinearShape(rows, columns, False, "BF16"))).bytes == expected
    assert totals(found.tensors(LinearShape(rows, columns, True, "BF16"))).bytes == expected + 2 * rows
    assert found.products == products


@pytest.mark.parametrize(
    ("rows", "columns", "group", "packed", "scales"),
    [
        (9, 96, 32, (2, 8, 32, 4), (32, 16, 2)), (16, 128, 32, (2, 8, 32, 4), (32, 16, 2)),
        (88, 96, 32, (11, 8, 32, 4), (32, 88, 2)), (41, 640, 64, (6, 8, 32, 4), (16, 48, 2)),
        (24, 1056, 32, (3, 16, 32, 4), (64, 24, 2)), (50, 2048, 128, (7, 16, 32, 4), (16, 56, 2)),
        (129, 384, 128, (17, 8, 32, 4), (8, 136, 2)), (37, 512, 256, (5, 8, 32, 4), (4, 40, 2)),
    ],
)  # fmt: skip
def test_tiles_that_torchao_packs(
    rows: int, columns: int, group: int, packed: tuple[int, ...], scales: tuple[int, ...]
) -> None:
    """``Int4TilePackedTo4dTensor.from_hp`` of torchao 0.18.0, with the shapes of torch's meta kernel that packs."""
    of = {**INT4, "_data": {"group_size": group, "int4_packing_format": TILED}}
    found = scheme(of).format_of(LinearModule("model.layers.0.a", rows=rows, columns=columns))
    assert found is not None
    assert [(t.dtype, t.shape) for t in found.tensors(LinearShape(rows, columns, False, "BF16"))] == [
        ("I32", packed), ("BF16", scales),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("of", "rows", "columns"),
    [(INT4, 9, 100), (FP8_ROWS, 24, 48), (FP8_ROWS, 16, 40)],
)
def test_sizes_that_a_group_or_a_product_does_not_divide_stay(of: dict[str, Any], rows: int, columns: int) -> None:
    assert scheme(of).format_of(LinearModule("model.layers.0.a", rows=rows, columns=columns)) is None


def test_lists_and_names_of_modules() -> None:
    """The head stays by default, and what a list names; a table of embeddings always."""
    head = LinearModule("lm_head", is_head=True, in_layers=False, rows=32, columns=32)
    layer = LinearModule("model.layers.1.mlp.up_proj", rows=32, columns=32)
    table = LinearModule("model.embed_tokens", "Embedding", 32, classes=("Embedding",), rows=32, in_layers=False)
    plain = scheme(INT8)
    assert [plain.format_of(m) is None for m in (head, layer, table)] == [True, False, True]
    listed = scheme(INT8, modules_to_not_convert=["model.layers.1"])
    assert [listed.format_of(m) is None for m in (head, layer, table)] == [False, True, True]


@pytest.mark.parametrize(
    "of",
    [
        "int4_weight_only", None, config("Int4WeightOnlyConfig", 1, group_size=32), config("IntxWeightOnlyConfig"),
        config("Int4WeightOnlyConfig", group_size=48), config("Int8WeightOnlyConfig", granularity=unit("PerAxis")),
        config("Int4WeightOnlyConfig", int4_packing_format={"_type": "Int4PackingFormat", "_data": "PRESHUFFLED"}),
        config("Float8WeightOnlyConfig", weight_dtype={"_type": "torch.dtype", "_data": "float8_e4m3fnuz"}),
        config("FqnToConfig", 1, fqn_to_config={"_default": INT8}), {"_type": "Int8WeightOnlyConfig"},
    ],
)  # fmt: skip
def test_what_has_no_known_layout(of: object) -> None:
    with pytest.raises(UnknownFormat):
        scheme(of)


def test_stacks_of_experts_are_not_known() -> None:
    with pytest.raises(UnknownFormat, match="experts"):
        scheme(INT8).format_of(LinearModule("model.layers.0.mlp.experts.0.up_proj", "Expert", 8, rows=8))


@pytest.mark.parametrize("name", sorted(WRITTEN["checkpoints"]))
def test_headers_that_torchao_wrote(name: str, tmp_path: Path) -> None:
    """Name, dtype and shape of each tensor, of a Llama with heads of 24 and an MLP of 88 (see the file)."""
    made = WRITTEN["checkpoints"][name]
    (tmp_path / "config.json").write_text(json.dumps({**WRITTEN["config"], "quantization_config": made["config"]}))
    head: dict[str, Any] = {}
    end = 0
    for tensor, (dtype, shape, size) in made["tensors"].items():
        head[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end := end + size]}
    text = json.dumps(head).encode()
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    found = stored(f"hf:{tmp_path}", files=tmp_path)
    assert found.headers is not None
    assert found.headers.differences == ()
    assert found.totals.bytes == end


def test_formulas_layout_and_headers_agree(tmp_path: Path) -> None:
    for of in (INT4, INT8, DYNAMIC, FP8, FP8_ROWS):
        target = small(tmp_path, described(of))
        report = counted(target, "analytic", "static")
        assert {f.status for f in report.discrepancy.findings if f.metric == "stored_bytes"} == {"exact"}
