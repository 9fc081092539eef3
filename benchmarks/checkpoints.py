"""Stored bytes of published checkpoints by their configurations alone: ``python -m benchmarks.checkpoints``.

It writes docs/checkpoints.md, from the rows of tests/storage/published.json and of tests/storage/configurations.json.
The latter are counted again with ``--configurations``, which takes an hour; names after it count these alone.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tests.oracles.published import COUNTED, ROWS, write_configuration, write_row

import costproof
from costproof.ledger.errors import BadInput, CostproofError, Problems
from costproof.models.registry import load_target
from costproof.models.target import WithFormulas
from costproof.reports.escape import table
from costproof.reports.fits import fit_sentence
from costproof.views.numbers import exact

PAGE: Final = Path("docs/checkpoints.md")
UNNAMED: Final = "without a cause"
HEAD: Final = """\
# What a checkpoint takes on disk

`costproof stored TARGET` states the tensors and bytes of a checkpoint from its configuration; no weights are read. This
page is made by `python -m benchmarks.checkpoints`.

```sh
costproof stored deepseek-v3 --mtp 1                                # 688,574,839,360 bytes
costproof stored hf:docs/examples/qwen3.json -f json -o stored.json
costproof fits gpt-oss-20b --memory 20GB                            # weights as they are stored
```

*Stored bytes* are the payload of the files; *stored elements* are what headers add up to, with scales and packed words;
*parameters* are those before quantisation; what a run holds is in [`fits`](roofline.md). Formats are read from

- `quantization_config`, `compression_config` (also of `text_config`): fp8 with scales for blocks, rows or the matrix;
  bitsandbytes nf4, fp4, int8; GPTQ with `dynamic` rules; AutoRound 0.6 and later with integers (`extra_config`); AWQ
  gemm, gemv, gemv_fast and marlin; compressed-tensors integers packed, int8, float8, NVFP4, MXFP4, MXFP8; MXFP4 of
  gpt-oss; ModelOpt FP8, NVFP4 and a mixture of them (`quantized_layers`); MLX (also in `quantization`); torchao int4
  (plain, tiles), int8 and float8, only weights or with inputs;
- `expert_dtype` in an fp8 `quantization_config`, or beside that of DeepSeek-V4: experts in fp4, two columns in an I8,
  an F8_E8M0 for each row and 32 columns; they multiply in the run's dtype after unpacking, as Marlin does on Hopper
  (`roofline --math float8` where a GPU has products of fp8 and fp4);
- `hf_quant_config.json`, `quantize_config.json` beside it: ModelOpt, GPTQ, AWQ;
- `modules_to_not_convert`, `ignore`, `exclude_modules`, `targets`, `llm_int8_skip_modules`, `lm_head`: what is left in
  16 bits.

Any other format or key, and a tied head that no list leaves out, is exit code 3 with its name and no number. What no
key says is stated as assumed: the dtype of weights and of block scales (float32; bfloat16 for Qwen3; where `scale_fmt`
is `ue8m0`, F8_E8M0 as in DeepSeek-V4 and transformers, but float32 in DeepSeek-V3.1 and V3.2), a tied head, biases of
zeros of AutoGPTQ, the dtype of shapes of packed matrices. So are names and patterns that no module, tensor or class of
the model matches, such as a misspelt layer of `extra_config`: they change nothing. The size of JSON descriptions of
bitsandbytes' nested maxima is open. No key says which layers of ModelOpt's AWQ formats store a `pre_quant_scale`, what
older AutoRound packed with, or how torchao's version 1, which safetensors cannot hold, was saved: they are exit code 3.
Multi-token prediction modules (MTP) count with `--mtp N`, in `fits` too, for DeepSeek-V3, Kimi K2, GLM-4.5 and 4.6,
Qwen3-Next, Qwen3.5, MiMo, MiMo-V2-Flash and DeepSeek-V4: a layer like the last one with full attention (MiMo-V2-Flash:
with a window and a dense MLP; DeepSeek-V4: with a window, so without a compressor), a projection, norms, and in the
first three copies of the tables. DeepSeek-V4 stores hyper-connections, sinks and positions of compressors in float32,
all else that is not quantised in bfloat16. `fits --mtp N` on a [mesh](devices.md) divides the layer and the tables of
DeepSeek-V3's module as the plan divides the decoder's (vLLM `DeepSeekMultiTokenPredictorLayer`, SGLang
`DeepseekModelNextN`); each rank has the norms and the projection whole, and of a pipeline only ranks of the last stage
have the module ("the entire draft model on the last PP rank", vLLM `GPUModelRunner`). All ranks sum to one device plus
named copies, residual 0; a rank's tensors are those of its model too. The other families have no plan for a mesh.

## Headers against the layout

`costproof report hf:FOLDER` reads the headers of safetensors files beside the configuration as a source (`headers`),
and compares them with formulas and layout, module by module; `costproof stored --files` compares tensor by tensor.
Shards may end after their headers. These causes are named with their bytes; any other difference is a finding (exit
code 1):

- biases of zeros: a bias of a packed layer that the model does not have; AutoGPTQ writes it, GPTQModel does not
- the group of each column: `g_idx`, `weight_g_idx` of a packed layer
- another dtype of scales, zero points, shapes: same name, same shape
- MTP modules: names after the last layer that the configuration counts, or below `mtp.`
- a copy of a tied tensor: name and shape of a tied parameter
- rotary frequencies; tensors that the class ignores: `rotary_emb.inv_freq`; patterns of the class in transformers

## GGUF

`costproof stored hf:FOLDER --files FILE.gguf` takes types from the file (no configuration has them) and shapes from the
configuration, and lists the bytes of keys, table and alignment up to the size of the file. `costproof report hf:FOLDER`
compares weights with parameters, and `costproof fits hf:FOLDER` takes the table's bytes. Names are known of Llama,
Mistral, Mixtral, Qwen2, Qwen3 and their mixtures, Gemma 1 to 3, DeepSeek V2 and V3, and gpt-oss; others are exit code
3. Frequencies (`rope_freqs`, `rope_factors_*`) and tied copies have known causes.

## What is independent

Formulas (`analytic/quantised.py`) and layouts (`storage/formats.py`) define each format twice. The configuration is
read twice too: by rules (`storage/scheme.py`), and as libraries do (`weights/library_reading.py`); where they differ,
exit code 1. The third source is the module that transformers and the library build: fp8, AWQ and MXFP4, and
bitsandbytes, compressed-tensors and torchao with `costproof[quantised]`. Otherwise (GPTQ, MLX, ModelOpt, a library that
is not installed, scales that the class has otherwise than the files) it is stand-in modules: the model's own matrices,
packed on meta as the library's code does it (`tracers/format_runs.py`), where the rules say so. They are also the
second source of models without formulas. A note of the report says which it is and why. Tests compare all with 504
layers and 28 models that libraries quantised (`benchmarks.quantised_libraries`); shapes that they refuse are exit code
3. torchao's int4, which needs a GPU, is counted by hand.

## Published totals

Where each total was read is beside it in `tests/storage/published.json`. Every difference has a cause. Types of GGUF
rows are llama.cpp's rule for each mix. Kimi-K3 (1,560,860,324,864 bytes) has no row: transformers has no class for it.

"""


CONFIGURATIONS: Final = """
## Configurations

All configurations of `tests/models/configs`, where `SOURCES.md` says from which repository each is: what is counted of
each, with the quantisation that `tests/storage/configurations.json` states. *Formulas*: whether a family in costproof
describes the model; of others all numbers are of graphs and runs. *Stored* is by the configuration alone, without MTP
modules. *Report* compares the sources, all of a model cut to two layers (`--layers 2 --seq-len 16`, text without
images where these need more tokens); *exact* and *explained* are exit code 0. *Fits* is the answer of
`costproof fits --memory 4TB` for the whole model and its usual workload. An answer that is missing has its reason, or
was *not asked* when the rows were made (`python -m benchmarks.checkpoints --configurations NAME`). Two files have a
format only in their names (Nemotron-3-Nano-30B-NVFP4, Llama-3.1-70B-FP8-modelopt): ModelOpt states it in
`hf_quant_config.json`, which is not here, so that these rows are of 16 bits.
"""
MEMORY: Final = "4TB"
RUNS: Final[tuple[dict[str, Any], ...]] = ({"seq_len": 16}, {"seq_len": 16, "image_size": 0}, {})
"""Settings of a report; the first that the model takes count."""


ANSWERS: Final = ("stored", "report", "fits")


def counted(row: Mapping[str, Any], answers: Collection[str] = ANSWERS) -> dict[str, Any]:
    """Return a row of tests/storage/configurations.json with what the commands answer now, or some of them."""
    with tempfile.TemporaryDirectory() as folder:
        target = write_configuration(row, Path(folder))
        found, why = {**row}, {key: text for key, text in row["why"].items() if key not in answers}
        for key in answers:
            try:
                found[key], reason = _ANSWERS[key](target)
            except CostproofError as error:
                first = error.problems[0] if isinstance(error, Problems) else error
                found[key], reason = None, re.sub(r"/\S*/config\.json", "config.json", first.line)
            why |= {key: reason} if reason else {}
        try:
            found["formulas"] = isinstance(load_target(target), WithFormulas)
        except CostproofError:
            found["formulas"] = False
    return {**found, "why": {key: why[key] for key in ANSWERS if key in why}}


def _stored(target: str) -> tuple[int, str]:
    found = costproof.stored(target)
    return found.totals.bytes, "; ".join(found.undetermined)


def _report(target: str) -> tuple[str, str]:
    for i, run in enumerate(RUNS):
        try:
            found = costproof.report(target, layers=2, **run)
        except BadInput:
            if i == len(RUNS) - 1:
                raise
        else:
            return found.discrepancy.verdict, "" if found.exit_code == 0 else found.sentence
    raise AssertionError


def _fits(target: str) -> tuple[str, str]:
    found = costproof.fits(target, memory=MEMORY)
    return found.verdict, "" if found.verdict == "fits" else fit_sentence(found)


_ANSWERS: Final[Mapping[str, Callable[[str], tuple[object, str]]]] = {
    "stored": _stored, "report": _report, "fits": _fits
}  # fmt: skip


def count_configurations(names: list[str], answers: Collection[str] = ANSWERS) -> None:
    """Count the configurations with these names again, or all of them, and write what was found after each."""
    rows = json.loads(COUNTED.read_text(encoding="utf-8"))
    if unknown := set(names) - {row["name"] for row in rows}:
        raise SystemExit(f"no rows for {', '.join(sorted(unknown))}")
    for i, row in enumerate(rows):
        if not names or row["name"] in names:
            rows[i] = counted(row, answers)
            lines = ",\n ".join(json.dumps(one, ensure_ascii=False) for one in rows)
            COUNTED.write_text(f"[\n {lines}\n]\n", encoding="utf-8")
            print(
                json.dumps({key: value for key, value in rows[i].items() if key != "quantization_config"}), flush=True
            )


def configurations() -> Iterator[tuple[str, ...]]:
    """Yield the rows of the table of configurations: those without formulas first."""
    rows = json.loads(COUNTED.read_text(encoding="utf-8"))
    for row in sorted(rows, key=lambda row: (row["formulas"], row["name"].lower())):
        why = "; ".join(f"{key}: {text}" for key, text in row["why"].items())
        answers = ("no" if key in row["why"] else "not asked" for key in ANSWERS)
        cells = [exact(v) if type(v := row[key]) is int else v or no for key, no in zip(ANSWERS, answers, strict=True)]
        yield row["name"], "yes" if row["formulas"] else "no", *cells, why


def computed() -> Iterator[tuple[str, ...]]:
    """Yield the rows of the table."""
    for row in json.loads(ROWS.read_text(encoding="utf-8")):
        with tempfile.TemporaryDirectory() as folder:
            target, files = write_row(row, Path(folder))
            found = costproof.stored(target, next_token=row.get("mtp", 0), files=files)
            named = row.get("named", {})
            rest = row["bytes"] - found.totals.bytes - sum(named.values())
            said = "; ".join(
                f"{what}: {size:+,}" for what, size in {**named, **({UNNAMED: rest} if rest else {})}.items()
            )
            yield row["name"], ", ".join(found.formats), exact(found.totals.bytes), exact(row["bytes"]), said


def page(published: list[tuple[str, ...]]) -> str:
    """Return the page with these rows of published totals."""
    totals = table(("checkpoint", "format", "by its configuration", "published", "difference"), "llrrl", published)
    names = ("configuration", "formulas", "stored", "report", "fits", "what is missing, and why")
    return "\n".join([HEAD, *totals, CONFIGURATIONS, *table(names, "llrlll", [*configurations()]), ""])


def main() -> int:
    """Write the page; 1 if bytes have no cause."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--configurations", nargs="*", metavar="NAME", help="count these again first, or all")
    parser.add_argument("--answers", nargs="+", choices=ANSWERS, default=ANSWERS, help="what to count of them")
    asked = parser.parse_args()
    if asked.configurations is not None:
        count_configurations(asked.configurations, asked.answers)
    rows = list(computed())
    PAGE.write_text(page(rows), encoding="utf-8")
    print(f"wrote {PAGE}")
    return int(any(UNNAMED in row[-1] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
