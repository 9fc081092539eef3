"""Workloads: the modes of the paper under their names, and free settings on top of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast, get_args

from costproof.ledger.errors import BadInput, CostproofError, Problems, did_you_mean
from costproof.ledger.workload import Attention, Dtype, Experts, Logits, Page, Workload
from costproof.models import flash_attention
from costproof.models import settings as common
from costproof.models.deepseek_ocr.config import OcrConfig, default_config
from costproof.models.deepseek_ocr.geometry import invocations, sequence_length, vision_tokens
from costproof.models.deepseek_ocr.preprocess import MAX_CROPS, MIN_CROPS, choose_grid, image_sides
from costproof.models.target import NamedWorkload, Setting

__all__ = ["PRESETS", "Preset", "invocations", "make_workload", "problems_of", "vision_tokens"]

TEXT_TOKENS: Final = 16
"""About the length of the vendor's prompt "<|grounding|>Convert the document to markdown." with its marks."""
MAX_BATCH: Final = 1024
"""The native class loops over the pages of a batch; above this a mistake is likelier than a wish."""
_GRID: Final = re.compile(r"(\d{1,3})[xX×](\d{1,3})")


@dataclass(frozen=True, slots=True)
class Preset:
    """A named workload: sizes of the views, and whether the page is cut into crops."""

    name: str
    page: Page | None
    text_tokens: int
    what: str

    @property
    def crops(self) -> bool:
        """Whether this mode cuts the page into crops."""
        return self.page is not None and self.page.grid is not None


def _presets() -> tuple[Preset, ...]:
    grid = (2, 2)
    return (
        Preset("tiny", Page(512, 640), TEXT_TOKENS, "one view of 512 pixels"),
        Preset("small", Page(640, 640), TEXT_TOKENS, "one view of 640 pixels"),
        Preset("base", Page(1024, 640), TEXT_TOKENS, "one view of 1024 pixels"),
        Preset("large", Page(1280, 640), TEXT_TOKENS, "one view of 1280 pixels"),
        Preset(
            "gundam",
            Page(1024, 640, grid),
            TEXT_TOKENS,
            "a view of 1024 and 2 to 9 crops of 640 pixels; 2x2 unless gundam:3x2, --grid or --image says otherwise",
        ),
        Preset(
            "gundam-m",
            Page(1280, 1024, grid),
            TEXT_TOKENS,
            "a view of 1280 and 2 to 9 crops of 1024 pixels; 2x2 unless gundam-m:3x2, --grid or --image says otherwise",
        ),
        Preset(
            "dsocr-standard-v1",
            Page(1024, 640, grid),
            512,
            "a view of 1024 and 2x2 crops of 640 pixels, 512 text tokens",
        ),
        Preset("text-only", None, 512, "512 text tokens, no page"),
    )


PRESETS: Final[dict[str, Preset]] = {p.name: p for p in _presets()}
DEFAULT_PRESET: Final = "dsocr-standard-v1"
SETTINGS: Final = (
    Setting("base_size", "Side of the global view.", metavar="PIXELS"),
    Setting("image_size", "Side of one crop.", metavar="PIXELS"),
    Setting("grid", "Columns and rows of crops, such as 2x3.", "text", metavar="CxR"),
    Setting("image", "A page image; its size decides the grid.", "file", metavar="FILE"),
    replace(common.TEXT_TOKENS, what="Tokens of the prompt beside the vision tokens."),
    Setting("seq_len", "Tokens of the whole prompt, instead of --text-tokens."),
    common.NEW_TOKENS,
    replace(common.BATCH, what="Pages at once."),
    common.DTYPE,
    common.ATTENTION,
    common.LOGITS,
    common.EXPERTS,
)


def named_workloads() -> tuple[NamedWorkload, ...]:
    """The presets with the tokens that they make at the published configuration."""
    return tuple(
        NamedWorkload(
            name,
            preset.what,
            {"vision": vision_tokens(preset.page) if preset.page else 0, "text": preset.text_tokens},
            default=name == DEFAULT_PRESET,
        )
        for name, preset in PRESETS.items()
    )


def make_workload(
    preset: str = DEFAULT_PRESET,
    *,
    config: OcrConfig | None = None,
    base_size: int | None = None,
    image_size: int | None = None,
    grid: str | tuple[int, int] | None = None,
    image: Path | None = None,
    text_tokens: int | None = None,
    seq_len: int | None = None,
    new_tokens: int | None = None,
    batch: int | None = None,
    dtype: str | None = None,
    attention: str | None = None,
    logits: str | None = None,
    experts: str | None = None,
) -> Workload:
    """A preset with what the caller changes about it.

    Args:
        preset: a name of :data:`PRESETS`; a mode with crops takes a grid, ``gundam:3x2``.
        config: the model that will run it; the published one unless given.
        grid: columns x rows of crops, ``"2x3"``.
        image: a page image whose header decides the grid, as the real preprocessing does.
        seq_len: tokens of the whole prompt; excludes ``text_tokens``.

    Raises:
        Problems: everything that is wrong with the settings, at once.
    """
    model = config if config is not None else default_config()
    base, named_grid = _preset(preset)
    given = {"--base-size": base_size, "--image-size": image_size, "--grid": grid, "--image": image}
    problems: list[CostproofError] = []
    page = base.page
    if page is None:
        problems += [
            BadInput("a text-only run has no page", where=option, fix="choose another preset, such as gundam")
            for option, value in given.items()
            if value is not None
        ]
    else:
        chosen = [o for o, v in (("--grid", grid), ("--image", image), (f"the grid of {preset}", named_grid)) if v]
        if len(chosen) > 1:
            problems.append(BadInput("the grid can be given only once", where=", ".join(chosen)))
        page = Page(
            page.base_size if base_size is None else base_size,
            page.image_size if image_size is None else image_size,
            page.grid,
        )
        page = _with_grid(base, page, grid if grid is not None else named_grid, image, problems)
    if text_tokens is not None and seq_len is not None:
        problems.append(
            BadInput("text tokens and sequence length exclude each other", where="--text-tokens, --seq-len")
        )
    workload = Workload(
        name=base.name,
        page=page,
        text_tokens=base.text_tokens if text_tokens is None else text_tokens,
        new_tokens=1 if new_tokens is None else new_tokens,
        batch=1 if batch is None else batch,
        dtype=cast(Dtype, _choice(dtype, Dtype, "--dtype", problems)),
        attention=cast(Attention, _choice(attention, Attention, "--attention", problems)),
        logits=cast(Logits, _choice(logits, Logits, "--logits", problems)),
        experts=cast(Experts, _choice(experts, Experts, "--experts", problems)),
    )
    if not problems and seq_len is not None:
        workload = _with_length(model, workload, seq_len, problems)
    problems = problems or problems_of(model, workload)
    if problems:
        raise Problems("the workload cannot be run", problems)
    return replace(workload, name=_name(base, workload))


def _name(preset: Preset, workload: Workload) -> str:
    """The preset's name as long as the workload is the preset; a mode with crops may have any grid."""
    unchanged = Workload(preset.name, preset.page, preset.text_tokens)
    if workload == unchanged:
        return preset.name
    if preset.crops and workload.page and workload.page.grid:
        columns, rows = workload.page.grid
        if replace(workload, page=preset.page) == unchanged and replace(workload.page, grid=None) == replace(
            preset.page or workload.page, grid=None
        ):
            return f"{preset.name}:{columns}x{rows}"
    return "custom"


def _preset(name: str) -> tuple[Preset, str | None]:
    """The preset, and the grid after its colon if there is one."""
    head, colon, tail = name.partition(":")
    if head not in PRESETS:
        raise BadInput(
            "there is no such workload",
            where="--preset",
            expected=", ".join(PRESETS),
            got=head[:80],
            fix=did_you_mean(head, PRESETS) or "see: costproof workloads",
        )
    preset = PRESETS[head]
    if colon and not preset.crops:
        raise BadInput("this mode has no crops", where=f"--preset {head}", got=tail[:80], fix="choose gundam:2x3")
    return preset, tail if colon else None


def _with_grid(
    preset: Preset,
    page: Page,
    grid: str | tuple[int, int] | None,
    image: Path | None,
    problems: list[CostproofError],
) -> Page:
    """The page with the grid that was asked for, or that an image leads to."""
    try:
        if grid is not None:
            return Page(page.base_size, page.image_size, parse_grid(grid))
        if image is not None:
            width, height = image_sides(image)
            chosen = choose_grid(width, height, page.image_size) if preset.crops and page.image_size > 0 else None
            return Page(page.base_size, page.image_size, chosen)
    except BadInput as error:
        problems.append(error)
    return page


def parse_grid(grid: str | tuple[int, int]) -> tuple[int, int]:
    """Columns and rows from ``"2x3"``.

    Raises:
        BadInput: the text is no grid.
    """
    if not isinstance(grid, str):
        return grid
    match = _GRID.fullmatch(grid.strip())
    if match is None:
        raise BadInput("this is no grid", where="--grid", expected="COLUMNSxROWS, such as 2x3", got=repr(grid[:40]))
    return int(match[1]), int(match[2])


def _choice(value: str | None, kind: Any, option: str, problems: list[CostproofError]) -> str:
    """One of a closed set of names; the first stands for nothing given."""
    allowed: tuple[str, ...] = get_args(kind)
    if value is not None and value not in allowed:
        problems.append(
            BadInput("this choice does not exist", where=option, expected=" or ".join(allowed), got=str(value)[:80])
        )
    return value if value in allowed else allowed[0]


def _with_length(config: OcrConfig, workload: Workload, length: int, problems: list[CostproofError]) -> Workload:
    """The workload with as many text tokens as fill the prompt to ``length``."""
    page_problems = [p for p in problems_of(config, workload) if p.where in _PAGE_OPTIONS]
    if page_problems:
        problems += page_problems
        return workload
    vision = vision_tokens(workload.page, config.sam.stride)
    if length <= vision:
        problems.append(
            BadInput(
                "the sequence is too short for its vision tokens" if vision else "a prompt needs a token",
                where="--seq-len",
                expected=f"more than {vision}",
                got=length,
            )
        )
        return workload
    return replace(workload, text_tokens=length - vision)


_PAGE_OPTIONS: Final = ("--base-size", "--image-size", "--grid")


def problems_of(config: OcrConfig, workload: Workload) -> list[CostproofError]:
    """Everything that keeps this model from running this workload."""
    found: list[CostproofError] = []

    def report(what: str, where: str, expected: object, got: object, fix: str | None = None) -> None:
        found.append(BadInput(what, where=where, expected=expected, got=got, fix=fix))

    page, stride = workload.page, config.sam.stride
    if page is not None:
        # SAM's patches and its two stride-2 convolutions divide each side by the stride; any other
        # size runs too, with cut pixels and rounded maps, but the closed formulas do not describe it.
        sides = [("--base-size", page.base_size)] + ([("--image-size", page.image_size)] if page.grid else [])
        for option, side in sides:
            if side < stride or side % stride:
                report("a view cannot have this size", option, f"a positive multiple of {stride} pixels", side)
        if page.grid is not None:
            columns, rows = page.grid
            if columns < 1 or rows < 1 or not MIN_CROPS <= columns * rows <= MAX_CROPS:
                report(
                    "a page cannot be cut into this grid",
                    "--grid",
                    f"{MIN_CROPS} to {MAX_CROPS} crops",
                    f"{columns}x{rows}",
                    fix="the real preprocessing makes 2 to 9 crops, or none: choose base for the global view alone",
                )
    least_text = 1 if page is None else 0
    if workload.text_tokens < least_text:
        report("too few text tokens", "--text-tokens", f"at least {least_text}", workload.text_tokens)
    if workload.new_tokens < 1:
        report("at least one token must be decoded", "--new-tokens", "at least 1", workload.new_tokens)
    if not 1 <= workload.batch <= MAX_BATCH:
        report("the batch is out of range", "--batch", f"1 to {MAX_BATCH}", workload.batch)
    if workload.attention == "eager" and config.text.kv_heads != config.text.heads:
        report(
            "the native model's eager attention cannot share key/value heads",
            "--attention",
            f"sdpa, or as many key/value heads as heads ({config.text.heads})",
            f"eager with {config.text.kv_heads} key/value heads",
            fix="leave --attention at sdpa",
        )
    if workload.attention == flash_attention.FLASH:
        found += flash_attention.problems(workload.dtype, config.text.head_dim)
    if found:
        return found
    length = sequence_length(config, workload)
    if length + workload.new_tokens > config.text.max_positions:
        report(
            "the run is longer than the model's context",
            "--text-tokens, --seq-len, --new-tokens",
            f"at most {config.text.max_positions} tokens",
            f"{length} in the prompt + {workload.new_tokens} new = {length + workload.new_tokens}",
        )
    window = config.text.sliding_window
    if window is not None and workload.new_tokens > window:
        report(
            "decoding would leave the sliding window of this configuration",
            "--new-tokens",
            f"at most {window} (sliding_window)",
            workload.new_tokens,
            fix="the formulas describe full attention: choose fewer steps, or a longer window in the configuration",
        )
    return found
