"""``docs/review.md``, made by the program: ``python -m benchmarks.review > docs/review.md``.

What each change below does to the cost, as ``costproof diff`` prints it; every attribution is checked to add up.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import costproof
from costproof.reports.outputs import variants

diff_md = variants("diff")["md"].text

FILES: Final = "docs/examples/review"
HEAD: Final = """\
# What a change costs

`costproof diff BASE HEAD` reports what changed between two runs of a model, what that does to every cost, and which
part of the change is responsible. This page is made by `python -m benchmarks.review`; its examples show the main rows,
a report has all metrics and terms.

BASE and HEAD are

- a target with settings of the workload and keys of the configuration: `deepseek-ocr`, `deepseek-ocr@gundam:2x2`,
  `deepseek-ocr@base,batch=4,text.topk=8`. Lists are joined with `+` (`sam.global_layers=2+5+8`); `config.experts=64`
  is a key with the name of a setting. Formulas are evaluated, which takes about a second and needs no torch;
- a capture, the folder of a report, a `static_compute.json` or a baseline (`costproof render CAPTURE -f baseline`),
  also as committed in git: `main:baselines/deepseek-ocr.json`. Every source that both captures have is compared.

Rows are matched by stage, role and operator, not by label. A row on one side is added or removed; a part with the same
rows elsewhere has moved. MACs are converted to FLOPs. Numbers under different conventions are not compared, and unknown
numbers make their sums unknown (exit code 3, else 0).

```sh
costproof diff deepseek-ocr@gundam:2x2 deepseek-ocr@gundam:3x3 -f md -o review.md      # a comment for the pull request
costproof diff deepseek-ocr deepseek-ocr,batch=2 -f json -o review.json                # costproof schema diff
costproof diff llama-3.1-8b qwen3-8b                                                   # another family
```

## How a difference is split

The formulas are evaluated with every subset of the changed keys new and the others old: 2^k points. The *term* of a
set of keys is what they do together beyond their subsets (inclusion–exclusion): when 3 rows of 5 become 4 of 7, the
difference is 28 − 15 = 13; the rows contribute 5, the columns 6, both jointly 2. Terms add up to the difference. For
one number per key, joint terms are divided evenly among their keys (the Shapley value, rounded by largest remainder).

Keys that only make a valid model together (a width and the heads that divide it) count as one. More than 12 keys are
split by section of the configuration, then within each section. Changes that are not keys are separate, in this
order: conventions, which must agree; libraries; implementation (kernels, classes); formulas. Changes that nothing can
tell apart share a term.

Models without formulas (`model.py:make`, captures of `costproof.count`) and two different families are compared by
part: modules with the same path, with `*` for numbers. A part that is repeated more often, added, removed, or of
another class, settings or shapes is a change with its exact share: `blocks.*` 3 → 4. Inputs change first, then parts;
where a removed part or unequal members leave that unknown, inputs and part share a term. Classes that differ only in
the name of their family (`LlamaMLP`, `Olmo2MLP`) are the same. Keys that both families have are split as above, a part
that one has (the norms of queries and keys) is a change of its own, and what is left is the change of the family.

`python -m benchmarks.attribution` compares this with the ledgers, node by node, for every key and every pair of keys:
33,600 differences of deepseek-ocr (33 keys) and 5,130 of qwen3-30b-a3b (18), 0 wrong.

In Python:

```python
>>> import costproof
>>> found = costproof.diff("deepseek-ocr", "deepseek-ocr,text.topk=8")
>>> found.totals["flops"].delta, found.totals["flops"].shares
(182574120960, {'text.topk': 182574120960})

```
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One change."""

    title: str
    what: str
    base: str
    head: str


CASES: Final = (
    Case(
        "A wider decoder, and more experts",
        "Width 1,280 → 1,536 with heads of 128, which have to divide it, so these keys are one; top-k 6 → 8.",
        "deepseek-ocr",
        "deepseek-ocr,text.hidden=1536,text.heads=12,text.kv_heads=12,text.topk=8",
    ),
    Case(
        "Native classes and remote code",
        "The published remote code, by its formulas, and the classes of transformers: its rotary angles are a product "
        "of matrices, and it holds CLIP's patch embedding.",
        "deepseek-ocr",
        f"{FILES}/deepseek-ocr-remote-code.json",
    ),
    Case(
        "A library update that multiplies decode by 51",
        "DeepSeek-V3's attention (3 dense layers, width 1,024, 16 heads; 512 tokens of prompt): two captures made by "
        "`costproof capture deepseek-v3 --config deepseek-v3-small.json --run cpu --sources dynamic` under two "
        "versions of transformers. The new one keeps the latent cache and expands it in every step: "
        "2·512·512·16·(128 + 128) FLOP in each of 3 layers, 6,442,450,944 in all, less the product for the rotary "
        "angles of one position, 2·32.",
        f"{FILES}/deepseek-v3-transformers-4.57.json",
        f"{FILES}/deepseek-v3-transformers-5.23.json",
    ),
)


def page() -> str:
    """The whole page."""
    return HEAD + "".join(f"\n{section(case)}" for case in CASES)


def section(case: Case) -> str:
    """Return one change as the diff reports it, the main rows only."""
    found = costproof.diff(case.base, case.head)
    # The sentences above the table of changes name the same keys.
    report = diff_md(found).partition("<details>\n")[0].partition("| Changed |")[0]
    body = [line for line in report.rstrip().splitlines() if not line.startswith("## ") and not _is_minor(line)]
    command = shlex.join(["costproof", "diff", case.base, case.head])
    if found.exit_code:
        command += f"  # a metric that one side does not have (exit {found.exit_code})"
    lines = [f"## {case.title}", "", case.what, "", "```sh", command, "```", "", *body]
    text = "\n".join(lines)
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    return text + "\n"


_SIZES: Final = ("parameters", "key/value cache bytes")
"""Metrics of the whole run that an example has besides FLOPs."""


def _is_minor(line: str) -> bool:
    """Return whether a line is left out: sums of other metrics, and how they are counted."""
    cells = [cell.strip() for cell in line.split("|")]
    other = len(cells) == 8 and cells[2] not in ("Metric", "---", "FLOPs")
    return (other and (cells[1] != "total" or cells[2] not in _SIZES)) or line.startswith(("… and", "Counted: "))


if __name__ == "__main__":
    if not Path(FILES).is_dir():
        sys.exit("run it from the root of the repository")
    sys.stdout.write(page())
