"""Published checkpoints as targets: configurations, and tables of tensors of GGUF files by llama.cpp's rules."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

ROWS: Final = Path(__file__).parents[1] / "storage" / "published.json"
COUNTED: Final = ROWS.with_name("configurations.json")
CONFIGS: Final = (Path(__file__).parents[1] / "models" / "configs", ROWS.parent)
GGUF: Final = {"F32": 0, "Q4_0": 2, "Q8_0": 8, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14}
"""Number of a type in a table of tensors; source: gguf-py, ``GGMLQuantizationType``."""
BLOCKS: Final = {
    "F32": (1, 4),
    "Q4_0": (32, 18),
    "Q8_0": (32, 34),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
}
"""Weights and bytes of a block; source: gguf-py, ``GGML_QUANT_SIZES``."""


def configuration(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of a row: a file by its name, or what the row has itself."""
    of = row["config"]
    if isinstance(of, str):
        file = next(file for folder in CONFIGS if (file := folder / f"{of}.json").exists())
        of = json.loads(file.read_text(encoding="utf-8"))
    return {**of, "quantization_config": row["quantization_config"]}


def write_configuration(row: Mapping[str, Any], folder: Path) -> str:
    """Write the configuration of a row of :data:`COUNTED`, a file by its name; return the target."""
    data = json.loads((CONFIGS[0] / f"{row['name']}.json").read_text(encoding="utf-8"))
    more = {key: row[key] for key in ("quantization_config",) if key in row}
    (folder / "config.json").write_text(json.dumps(data | more), encoding="utf-8")
    return f"hf:{folder / 'config.json'}"


def write_row(row: Mapping[str, Any], folder: Path) -> tuple[str, Path | None]:
    """Write the configuration of a row and, of a GGUF file, a header that ends before its data.

    Returns:
        The target, and the file whose types its layout takes.
    """
    data = configuration(row)
    (folder / "config.json").write_text(json.dumps(data), encoding="utf-8")
    target = f"hf:{folder / 'config.json'}"
    if "gguf" not in row:
        return target, None
    file = folder / "model.gguf"
    file.write_bytes(gguf_header(table_of_llama(data, row["gguf"])))
    return target, file


def table_of_llama(data: Mapping[str, Any], kind: str) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return the shape and type of each tensor of a Llama that llama.cpp wrote with one type.

    Norms are in float32, and the output projection in Q6_K but for Q8_0. The mixes ``Q4_K_M`` and ``Q5_K_M`` have
    values and ``ffn_down`` in Q6_K in the first and the last eighth of the layers and in each third between. Source:
    llama.cpp, ``llama_tensor_get_type``.
    """
    h, inner, layers = data["hidden_size"], data["intermediate_size"], data["num_hidden_layers"]
    keys, words = h // data["num_attention_heads"] * data["num_key_value_heads"], (data["vocab_size"], h)
    table: dict[str, tuple[tuple[int, ...], str]] = {
        "token_embd.weight": (words, kind), "output_norm.weight": ((h,), "F32"),
        "output.weight": (words, "Q8_0" if kind == "Q8_0" else "Q6_K"),
    }  # fmt: skip
    matrices = {
        "attn_q": (h, h), "attn_k": (keys, h), "attn_v": (keys, h), "attn_output": (h, h), "ffn_gate": (inner, h),
        "ffn_up": (inner, h), "ffn_down": (h, inner),
    }  # fmt: skip
    eighth = layers // 8
    for i in range(layers):
        more = kind in {"Q4_K", "Q5_K"} and (i < eighth or i >= 7 * layers // 8 or (i - eighth) % 3 == 2)
        table |= {f"blk.{i}.{norm}.weight": ((h,), "F32") for norm in ("attn_norm", "ffn_norm")}
        for name, shape in matrices.items():
            table[f"blk.{i}.{name}.weight"] = shape, "Q6_K" if more and name in {"attn_v", "ffn_down"} else kind
    return table


def gguf_header(table: Mapping[str, tuple[tuple[int, ...], str]]) -> bytes:
    """Return the header of a GGUF file with one key and a table of tensors; each begins where the last one ends."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    out = b"GGUF" + struct.pack("<IQQ", 3, len(table), 1) + text("general.architecture") + struct.pack("<I", 8)
    out, start = out + text("llama"), 0
    for name, (shape, kind) in table.items():
        number = 1
        for length in shape:
            number *= length
        out += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
        out += struct.pack("<IQ", GGUF[kind], start)
        of, size = BLOCKS[kind]
        start += number // of * size
    return out
