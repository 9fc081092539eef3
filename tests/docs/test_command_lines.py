"""Every command line that README and docs print is run as it stands there.

It runs in a folder of its own, in this process, through the real entry point. The target is the real one, with a small
configuration in place of the published one wherever a line names none. The files that the docs name are made first, and
what the machine was measured to reach is raised; nothing else is replaced. A line ends with exit code 0 unless its
comment says otherwise: ``# … (exit 1)``. A block whose info string goes on (``sh needs a GPU``) is not run; such lines
are listed here.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from costproof.estimate.hardware import Device
from costproof.ledger.run import run_options
from costproof.models.families.deepseek_ocr.config import OcrConfig
from costproof.models.families.deepseek_ocr.target import DeepseekOcr
from costproof.parametric.targets import evaluate_formulas
from costproof.tracers.device_benchmark import _fastest, measure_device
from tests.models.test_config import shallow_config
from tests.support.running import costproof

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FULL_SIZE = ("costproof counters deepseek-ocr --stage projector --only fvcore,thop --add mine@projector=10.74G",)
"""Lines with a published number: it is about the published configuration."""
FULL_SIZE_PAGES = ("review.md",)
"""Pages of which all lines are about published configurations."""
NOT_RUN = {
    "sweeps.md": [
        "costproof sweep llama --over layers=1 --over hidden=64,128 --over heads/kv_heads=4/2 --over text_tokens=1:40 --validate 3",  # noqa: E501
    ],
    "extending.md": [
        "costproof report scaled:make -o scaled-reports",
        "costproof targets",
        "costproof workloads adapted",
        "costproof explain adapted forward",
        "costproof report adapted -o adapted-reports",
        "costproof diff adapted adapted,rows=6",
        "costproof roofline adapted --on h100-sxm",
        "costproof fits adapted --on l4",
        "costproof counters adapted --only weights",
        "costproof capture adapted -o adapted.json",
        "costproof render adapted.json -f verdict-line",
    ],
    "counters.md": [
        "costproof counters FOLDER --trust-remote-code",
        "costproof counters FOLDER --trust-remote-code --only fvcore --add table@sam:crops=571.92G --add table@clip:global=77.68G",  # noqa: E501
    ],
}
"""Page -> its lines that need what is not here."""

_BLOCK = re.compile(r"^```([^\n`]*)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Line:
    """A command line, the exit code that the page tells, and whether it can run here."""

    text: str
    code: int
    runs: bool

    @property
    def command(self) -> str:
        """The line without its comment."""
        return self.text.split(" #")[0].rstrip()

    @property
    def arguments(self) -> list[str]:
        """The words behind ``costproof``."""
        return shlex.split(self.command)[1:]


def lines(page: Path) -> Iterator[Line]:
    """The command lines of a page, in order."""
    for info, block in _BLOCK.findall(page.read_text()):
        for text in block.splitlines():
            if text.startswith("costproof "):
                told = re.search(r"#.*\(exit (\d+)\)", text)
                yield Line(text, int(told[1]) if told else 0, " needs " not in info)


THOROUGH_PAGES = ("real-runs.md",)
"""Whose lines take a minute: ``make test-thorough`` runs them."""
THOROUGH_LINES = (
    "costproof sweep llama-3.2-1b --over batch=2,8 --over text_tokens=512:2048:512 --metric graph_peak_bytes",
    "costproof peaks deepseek-ocr --preset tiny --text-tokens 8 -f md -o peaks.md",
    "costproof counters deepseek-ocr",
    "costproof counters deepseek-ocr --attention flash_attention_2 --only FlopCounterMode,fvcore",
    "costproof counters deepseek-ocr --stage sam --only fvcore -f md -o sam.md",
    "costproof counters deepseek-ocr --stage projector --only thop --add numbers.csv",  # claims/test_own_numbers.py
    "costproof report deepseek-ocr --attention flash_attention_2",  # tracers/test_flash_attention.py
    "costproof report hf:docs/examples/qwen3.json --seq-len 20 --new-tokens 4 --batch 2 -o out/qwen3",
    "costproof report hf:docs/examples/qwen3.json --seq-len 20 --new-tokens 4",  # models/generic/test_stages.py
    "costproof prove deepseek-ocr --samples 1 --sides 640 -o out/proof",  # proof/test_proving.py, cli/test_counted.py
    # cli/test_meshes.py has both verbs on several devices.
    "costproof roofline deepseek-v3@chat,text_tokens=4096,batch=32,decoding=absorbed,logits=last --tp 8 --ep 8 --on 8xh200-sxm",  # noqa: E501
    "costproof fits deepseek-v3 --tp 8 --on 8xh200-sxm",
    "costproof counters deepseek-ocr --stage projector --only onnx",  # tracers/test_onnx_graph.py
    "costproof check docs/examples/deepseek-v3-gqa.yaml",  # models/test_latents.py, as the next one
    "costproof check docs/examples/deepseek-v3-weights.yaml",
    "costproof check docs/examples/deepseek-v3-decode.yaml",  # claims/test_latents.py
    "costproof graph deepseek-ocr@tiny -f svg -o out/tiny",  # cli/test_graph_command.py
    "costproof check docs/examples/published-table.yaml deepseek-ocr -f html -o out/claims.html",  # README, as text
)
"""The same: what they show, others show too."""


def written(line: Line) -> set[str]:
    """Return the paths that a line writes."""
    return {after for word, after in pairwise(line.arguments) if word in ("-o", "--output")}


def groups(page: Path) -> Iterator[tuple[Line, ...]]:
    """Yield the lines of a page that run, in order; a line that reads what an earlier one wrote is in its group."""
    found: list[list[Line]] = []
    for line in lines(page):
        if line.runs:
            names = {part for word in line.arguments for part in (word, str(Path(word).parent))} - written(line)
            before = [group for group in found if names & {path for other in group for path in written(other)}]
            found = [group for group in found if group not in before]
            found.append([*chain.from_iterable(before), line])
    yield from (tuple(group) for group in found)


def only_thorough(group: tuple[Line, ...], page: Path) -> bool:
    """Return whether ``make test`` leaves out all lines of a group."""
    return page.name in THOROUGH_PAGES or all(line.command in THOROUGH_LINES for line in group)


GROUPS = [
    pytest.param(
        page,
        group,
        marks=pytest.mark.thorough if only_thorough(group, page) else (),
        id=f"{page.name}: {group[0].command.removeprefix('costproof ')}",
    )
    for page in PAGES
    for group in groups(page)
]


def small() -> OcrConfig:
    """One layer of each kind, and room for the prompts of all presets.

    SAM has no windows: with the side of a view as a symbol these take a minute (tests/proof/test_any_side.py).
    """
    config = shallow_config()
    return replace(
        config,
        sam=replace(config.sam, layers=1, global_layers=(0,)),
        text=replace(config.text, max_positions=8192),
    )


def prepare(folder: Path) -> None:
    """Make the files that the docs name."""
    from PIL import Image
    from safetensors.torch import save_file

    target = DeepseekOcr(small()).with_options(run_options({"run": "cpu"}))
    model = target.build_run(target.workload(), lambda phase, done, total: None).model
    weights = folder / "checkpoints" / "deepseek-ocr" / "model.safetensors"
    weights.parent.mkdir(parents=True)
    save_file({name: p.detach().contiguous() for name, p in model.named_parameters()}, weights)
    Image.new("RGB", (1654, 2339)).save(folder / "page.png")
    (folder / "my-config.json").write_text(json.dumps(small().native()))
    projector = evaluate_formulas(target, target.workload()).stage_total("projector", "flops")
    (folder / "numbers.csv").write_text(f"name,stage,value\nmine,projector,{projector}\n")
    (folder / "run.yaml").write_text("target: deepseek-ocr\nworkload: {preset: tiny}\nsources: [analytic, static]\n")
    shutil.copytree(ROOT / "docs" / "examples", folder / "docs" / "examples")


def broken(line: Line, folder: Path) -> Iterator[str]:
    """What is wrong with a line; nothing if it does what the page says."""
    done = costproof(*line.arguments, cwd=folder)
    if done.code != line.code:
        yield f"exit {done.code}, not {line.code}:\n{done.stderr or done.stdout}"
        return
    wrote = [folder / name for name in re.findall(r"^Wrote (.+)$", done.stderr, flags=re.MULTILINE)]
    named = [folder / line.arguments[i + 1] for i, word in enumerate(line.arguments) if word in ("-o", "--output")]
    yield from (f"no {path.relative_to(folder)}" for path in (*wrote, *named) if not path.exists())
    files = {path for path in (*wrote, *named) for path in (path.rglob("*") if path.is_dir() else [path])}
    readable = [p for p in files if p.suffix not in (".json", ".png") and p.is_file()]
    texts = {str(p.relative_to(folder)): p.read_text() for p in readable}
    for name, text in {"stdout": done.stdout, "stderr": done.stderr, **texts}.items():
        found = re.search(r"\b(None|nan|NaN)\b", text)  # a line of a page may be long: nothing is matched around it
        if found:
            yield f"{name} has {text[max(0, found.start() - 80) : found.end() + 40]!r}"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the docs name."""
    folder = tmp_path_factory.mktemp("prepared")
    prepare(folder)
    return folder


@pytest.fixture
def fast_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine is measured once, and a thousand times as fast: other work beside the tests leaves too slow a roof."""

    @cache
    def fast(run: str, name: str, dtypes: tuple[str, ...], progress: Any) -> Device:
        found = measure_device(run, name, dtypes)
        width = found.bandwidth
        return replace(
            found,
            peaks=tuple(replace(p, flops=1000 * p.flops) for p in found.peaks),
            bandwidth=width and replace(width, value=1000 * width.value),
        )

    # Small products and copies: what a line prints does not depend on how large they were.
    monkeypatch.setattr("costproof.tracers.replay._FLUSHED", 2**20)
    monkeypatch.setattr("costproof.tracers.device_benchmark._LARGEST", 512)
    monkeypatch.setattr("costproof.tracers.device_benchmark._COPIED", {"cpu": 2**24})
    monkeypatch.setattr("costproof.tracers.device_benchmark._IMAGES", {"cpu": 1})
    monkeypatch.setattr("costproof.tracers.device_benchmark._HIGH", 4)
    monkeypatch.setattr("costproof.tracers.device_benchmark._fastest", partial(_fastest, spread=0))
    monkeypatch.setattr("costproof.tracers.device_benchmark.measure_device", fast)


@pytest.mark.slow
@pytest.mark.usefixtures("kept_traces", "proof_in_this_process", "fast_machine")
@pytest.mark.parametrize(("page", "group"), GROUPS)
def test_command_lines_do_what_the_page_says(
    page: Path, group: tuple[Line, ...], prepared: Path, tmp_path: Path, *, thorough: bool
) -> None:
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    wrong = []
    for line in (line for line in group if thorough or line.command not in THOROUGH_LINES):
        config = OcrConfig() if line.command in FULL_SIZE or page.name in FULL_SIZE_PAGES else small()
        with mock.patch.object(DeepseekOcr, "default", lambda c=config: DeepseekOcr(c)):
            wrong += [f"{line.command}\n{what}" for what in broken(line, tmp_path)]
    assert not wrong, "\n\n".join(wrong)


def test_lines_that_are_not_run_are_known() -> None:
    printed = {line.command for page in PAGES for line in lines(page)}
    assert printed >= {*THOROUGH_LINES}
    found = {page.name: [line.command for line in lines(page) if not line.runs] for page in PAGES}
    assert {name: texts for name, texts in found.items() if texts} == NOT_RUN
