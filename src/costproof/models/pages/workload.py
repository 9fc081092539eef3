"""Define workloads of models that read pages: presets, settings that override them, and checks of a workload."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from costproof.ledger.errors import BadInput, CostproofError, Problems
from costproof.ledger.mesh import PLAN
from costproof.ledger.plural import plural
from costproof.ledger.workload import FLOAT_BYTES, ROWS, Dtype, Invocation, TensorSpec, Workload
from costproof.models import settings as common
from costproof.models.decoding import names
from costproof.models.decoding.names import row_kinds
from costproof.models.decoding.plans import OWN, mesh_problems
from costproof.models.decoding.sharding import SPLIT_ALL, mesh_symbols
from costproof.models.image_text.layout import IMAGES
from costproof.models.pages.config import PageConfig
from costproof.models.pages.formulas import PageRank, PageStructure, View
from costproof.models.pages.page import (
    MAX_CROPS,
    MIN_CROPS,
    Page,
    choose_grid,
    image_sides,
    page_of,
    page_workload,
    pages_of,
    views,
    with_page,
)
from costproof.models.target import NamedWorkload, Setting

TEXT_TOKENS: Final = 16
"""Approximate number of tokens of the vendor's prompt "<|grounding|>Convert the document to markdown."."""
_GRID: Final = re.compile(r"(\d{1,3})[xX×](\d{1,3})")


PAGE_SETTINGS: Final = (
    Setting("base_size", "Side of the global view.", metavar="PIXELS"),
    Setting("image_size", "Side of one crop.", metavar="PIXELS"),
    Setting("grid", "Columns and rows of crops, such as 2x3.", "text", metavar="CxR"),
    Setting("image", "A page image; its size decides the grid.", "file", metavar="FILE"),
    Setting(IMAGES, "With --rows: pages in all new tokens (default 0)."),
    replace(common.TEXT_TOKENS, what="Tokens of the prompt, without the vision tokens."),
    Setting("seq_len", "Tokens of the whole prompt, instead of --text-tokens."),
    common.ROWS,
    common.NEW_TOKENS,
    replace(common.BATCH, what="Pages at once."),
    common.DTYPE,
    common.ATTENTION,
    common.LOGITS,
    common.EXPERTS,
    *common.MESH,
)


@dataclass(frozen=True, slots=True)
class PagePreset:
    """Named workload of a page model: view sizes, crop grid, and text tokens."""

    what: str
    page: Page | None
    text_tokens: int = TEXT_TOKENS


@dataclass(frozen=True, slots=True)
class PageModes:
    """Presets of a model that reads pages, and properties of its processor."""

    presets: Mapping[str, PagePreset]
    default: str
    """Name of the default preset."""
    settings: tuple[Setting, ...]
    tokens: Callable[[Page | None, int], int]
    """Function from (page, pixels per feature along a side) to the number of vision tokens per sequence."""
    one_view: str
    """Name of the preset without crops."""
    rows: Callable[[int, int], int]
    """Function from (side of a view, pixels per feature) to the number of the view's tokens after the projector."""
    counts_queries: bool = False
    """Whether views have a symbol for their number of tokens, Q, in addition to their side, H."""
    most_crops: int = MAX_CROPS
    splits_tower: bool = False
    """Whether transformers' plan of tensor parallelism splits the second tower, a decoder with masks of its own."""

    def named(self) -> tuple[NamedWorkload, ...]:
        """Return the presets with their token counts at 64 pixels per feature."""
        return tuple(
            NamedWorkload(
                name,
                preset.what,
                {"vision": self.tokens(preset.page, 64), "text": preset.text_tokens},
                default=name == self.default,
            )
            for name, preset in self.presets.items()
        )

    def find(self, name: str) -> tuple[str, PagePreset, str | None]:
        """Split ``gundam:3x2`` into preset and grid; return the preset's name, the preset, and the grid or ``None``.

        Raises:
            BadInput: there is no such preset, or it takes no grid.
        """
        head, colon, tail = name.partition(":")
        preset = self.presets[common.known_preset(head, self.presets)]
        if colon and not (preset.page and preset.page.grid):
            cut = next(n for n, p in self.presets.items() if p.page and p.page.grid)
            raise BadInput(
                "this preset has no crops, so it takes no grid",
                where=f"--preset {head}",
                got=tail[:80],
                fix=f"choose {cut}:2x3",
            )
        return head, preset, tail if colon else None


def preset_workload(
    preset: str,
    *,
    config: PageConfig,
    modes: PageModes,
    base_size: int | None = None,
    image_size: int | None = None,
    grid: str | tuple[int, int] | None = None,
    image: str | Path | None = None,
    seq_len: int | None = None,
    default_dtype: Dtype = "bfloat16",
    **given: Any,
) -> Workload:
    """Return the workload of a preset with changed settings.

    Args:
        preset: a name among the modes; a mode with crops takes a grid, ``gundam:3x2``.
        config: the model that will run it; the published DeepSeek-OCR unless given.
        modes: those of the model's family.
        grid: columns x rows of crops, ``"2x3"``.
        image: a page image whose header decides the grid, as the real preprocessing does.
        seq_len: tokens of the whole prompt; excludes ``text_tokens``.
        default_dtype: of the preset.
        given: settings that every decoder has, by the names of :data:`~costproof.models.decoding.target.SETTINGS`.

    Raises:
        Problems: everything that is wrong with the settings, at once.
    """
    name, base, named_grid = modes.find(preset)
    unchanged = page_workload(name, base.page, base.text_tokens, dtype=default_dtype)
    of_page = {"--base-size": base_size, "--image-size": image_size, "--grid": grid, "--image": image}
    problems: list[CostproofError] = []
    page = base.page
    if page is None:
        problems += [
            BadInput("a text-only preset has no page", where=option, fix="choose a preset with a page, such as gundam")
            for option, value in of_page.items()
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
        page = _with_grid(page, grid if grid is not None else named_grid, image, modes, problems)
    if given.get("text_tokens") is not None and seq_len is not None:
        problems.append(
            BadInput("text tokens and sequence length exclude each other", where="--text-tokens, --seq-len")
        )
    views = [option for option, value in {**of_page, f"the grid of {preset}": named_grid}.items() if value is not None]
    page = _of_rows(page, views, seq_len, given, problems)
    if (plan := given.pop(PLAN, None)) not in (None, OWN):
        what = "only the plan of transformers is described for a model of pages"
        problems.append(BadInput(what, where=f"--{PLAN}", expected=OWN, got=str(plan)[:80]))
    workload = common.changed(with_page(unchanged, page), given, modes.settings, problems)
    if not problems and seq_len is not None:
        workload = _with_length(config, workload, seq_len, modes, problems)
    problems = problems or page_run_problems(config, workload, modes)
    if problems:
        raise Problems("the workload cannot be run", problems)
    if workload.rows and page is not None:
        workload = replace(workload, what=f"{plural(pages_of(workload), 'page')} in the rows, {page}")
    return replace(workload, name=_name(unchanged, workload))


def _of_rows(
    page: Page | None, views: Sequence[str], seq_len: int | None, given: dict[str, Any], problems: list[CostproofError]
) -> Page | None:
    """Return the page of a batch of rows (``None`` without images); store the parsed rows in ``given``.

    Args:
        page: of the preset with its changes.
        views: options that change it.
    """
    count = given.get(IMAGES)
    if given.get(ROWS) is None:
        if count is not None:
            what, expected = "each prompt has the page of its preset", f"--{ROWS}, or no --{IMAGES}"
            problems.append(BadInput(what, where=f"--{IMAGES}", expected=expected, got=count))
        return page
    common.take_rows(given, problems)
    if seq_len is not None:
        problems.append(BadInput("the rows of a batch say all lengths", where="--seq-len", got=seq_len))
    if not count:
        given.pop(IMAGES, None)
        if views and page is not None:
            fix = f"add --{IMAGES} N, the number of pages in all rows"
            problems.append(BadInput("no row has a page", where=", ".join(views), fix=fix))
        return None
    if page is None:
        what = "a text-only preset has no page"
        problems.append(BadInput(what, where=f"--{IMAGES}", expected=0, got=count, fix="choose another --preset"))
    elif not 0 < count <= common.MAX_BATCH:
        what, expected = "the number of pages is out of range", f"0 to {common.MAX_BATCH}"
        problems.append(BadInput(what, where=f"--{IMAGES}", expected=expected, got=count))
    return page


def _name(unchanged: Workload, workload: Workload) -> str:
    """Return the preset's name if only the crop grid and the mesh differ from the preset, else ``custom``."""
    workload = workload.on_one_device
    if workload == unchanged:
        return workload.name
    usual, page = page_of(unchanged), page_of(workload)
    if usual and usual.grid and page and page.grid:
        columns, rows = page.grid
        if workload == with_page(unchanged, replace(usual, grid=page.grid)):
            return f"{workload.name}:{columns}x{rows}"
    return "custom"


def _with_grid(
    page: Page,
    grid: str | tuple[int, int] | None,
    image: str | Path | None,
    modes: PageModes,
    problems: list[CostproofError],
) -> Page:
    """Return the page with the given crop grid, or with the grid that preprocessing chooses for an image file."""
    try:
        if grid is not None:
            return replace(page, grid=parse_grid(grid))
        if image is not None:
            width, height = image_sides(Path(image))
            cut, size = page.grid is not None and page.image_size > 0, page.image_size
            return replace(page, grid=choose_grid(width, height, size, most=modes.most_crops) if cut else None)
    except BadInput as error:
        problems.append(error)
    return page


def parse_grid(grid: str | tuple[int, int]) -> tuple[int, int]:
    """Return the columns and rows in a text such as ``"2x3"``.

    Raises:
        BadInput: not a valid grid.
    """
    if not isinstance(grid, str):
        return grid
    match = _GRID.fullmatch(grid.strip())
    if match is None:
        raise BadInput("not a valid grid", where="--grid", expected="COLUMNSxROWS, such as 2x3", got=repr(grid[:40]))
    return int(match[1]), int(match[2])


def _with_length(
    config: PageConfig, workload: Workload, length: int, modes: PageModes, problems: list[CostproofError]
) -> Workload:
    """Return the workload with as many text tokens as a prompt of ``length`` tokens requires."""
    page = page_of(workload)
    problems += page_problems(page, config.sam.stride, modes) if page else []
    if problems:
        return workload
    vision = modes.tokens(page, config.sam.stride)
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


def page_run_problems(config: PageConfig, workload: Workload, modes: PageModes) -> list[CostproofError]:
    """Return an error for each reason why this model cannot run this workload."""
    page = page_of(workload)
    found = page_problems(page, config.sam.stride, modes) if page else []
    found += common.problems(workload, config.text.head_dim, least_text=1 if page is None else 0)
    if found:
        return found
    whole = replace(workload, text_tokens=sequence_length(config, workload, modes))
    if found := [*found, *mesh_problems(config.text, whole, SPLIT_ALL)]:
        return found
    if workload.mesh.tp > 1 and modes.splits_tower:
        what = "transformers' plan also splits the second tower, whose ranks are not counted"
        return [BadInput(what, where="--tp", expected="1", got=workload.mesh.tp, fix="choose --dp")]
    if workload.mesh.ep > 1 and modes.splits_tower and page is not None:
        what = "a run as one of several ranks does not tell the mask of this model's second tower"
        return [BadInput(what, where="--ep", expected="1, or a preset without a page", got=workload.mesh.ep)]
    most, window = config.text.max_positions, config.text.sliding_window
    if workload.rows:
        found += common.row_problems(workload, most)
        found += common.room_problems(workload, pages_of(workload), modes.tokens(page, config.sam.stride))
    else:
        found += common.too_long(workload, sequence_length(config, workload, modes), most)
    where, steps = "--new-tokens", workload.new_tokens
    if behind := [row.new for row in workload.rows if row.past]:
        where, steps = f"--{ROWS}", max(behind)
    if window is not None and steps > window:
        found.append(
            BadInput(
                "decoding would leave the sliding window of this configuration",
                where=where,
                expected=f"at most {window} (sliding_window)",
                got=steps,
                fix="the formulas describe full attention: choose fewer steps, or fewer new tokens after a past, or a "
                "longer window in the configuration",
            )
        )
    return found


def page_problems(page: Page, stride: int, modes: PageModes) -> list[CostproofError]:
    """Return an error for each invalid size or grid of a page, for a model with ``stride`` pixels per feature."""
    found: list[CostproofError] = []
    # SAM's patches and its two stride-2 convolutions divide each side by the stride; any other
    # size runs too, with cut pixels and rounded maps, but the closed formulas do not describe it.
    sides = [("--base-size", page.base_size)] + ([("--image-size", page.image_size)] if page.grid else [])
    for option, side in sides:
        if side < stride or side % stride:
            expected = f"a positive multiple of {stride} pixels"
            found.append(BadInput("a view cannot have this size", where=option, expected=expected, got=side))
    if page.grid and (min(page.grid) < 1 or not MIN_CROPS <= page.crops <= modes.most_crops):
        found.append(
            BadInput(
                "a page cannot be cut into this grid",
                where="--grid",
                expected=f"{MIN_CROPS} to {modes.most_crops} crops",
                got="x".join(map(str, page.grid)),
                fix=f"the real preprocessing makes {MIN_CROPS} to {modes.most_crops} crops, or none: "
                f"choose {modes.one_view} for only the global view",
            )
        )
    return found


def sequence_length(config: PageConfig, workload: Workload, modes: PageModes) -> int:
    """Return the length of the prompt in vision and text tokens; for rows, the sum of new tokens."""
    vision = 0 if workload.rows else modes.tokens(page_of(workload), config.sam.stride)
    return vision + workload.text_tokens


def page_invocations(
    config: PageConfig, workload: Workload, modes: PageModes, stages: tuple[str, ...]
) -> tuple[Invocation, ...]:
    """Return the invocations of the stages in one run, in order of execution, with the values of their symbols.

    Symbols. All: B sequences, b bytes per element. Towers and projector: n views, H pixels per side, and where tokens
    are queries, Q per view. Prefill: S prompt tokens, V vision tokens among them, L positions that lm_head maps, and
    with a page H_g (or Q_g), with crops H_c (or Q_c), grid_w, grid_h. Decode: P tokens in the cache before the first
    step, N steps. Rows of a batch: V vision tokens of each of n pages. On several devices the batch is that of the
    counted rank, and the decoder has the symbols of its mesh.

    Args:
        stages: SAM, the second tower and the projector.
    """
    whole = replace(workload, text_tokens=sequence_length(config, workload, modes))
    workload = workload.own
    page, stride, sam = page_of(workload), config.sam.stride, config.sam
    found, features = [], []
    for name, count, side in views(workload):
        rows, grid = modes.rows(side, stride), side // stride
        values = {"B": workload.batch, "b": FLOAT_BYTES[workload.dtype], "n": count, "H": side}
        values |= {"Q": rows} if modes.counts_queries else {}
        shapes = ((sam.channels, side, side), (sam.downsample[1], grid, grid), (rows, config.projector_in))
        found += [
            Invocation(stage, name, 1, dict(values), (TensorSpec((count, *shape), workload.dtype),))
            for stage, shape in zip(stages, shapes, strict=True)
        ]
        features.append(TensorSpec((count, rows, config.text.hidden), workload.dtype))
    length = sequence_length(config, workload, modes)
    calls = names.invocations(replace(workload, text_tokens=length), config.text)
    prefill, *steps = (
        replace(call, symbols={**call.symbols, **mesh_symbols(config.text, whole, SPLIT_ALL, call.stage)})
        for call in calls
    )
    symbols = {**prefill.symbols, "V": modes.tokens(page, stride)}
    if workload.rows:
        symbols["n"] = pages_of(workload)

    def size(side: int) -> int:
        return modes.rows(side, stride) if modes.counts_queries else side

    letter = "Q" if modes.counts_queries else "H"
    if page is not None:
        symbols[f"{letter}_g"] = size(page.base_size)
        if page.grid is not None:
            symbols |= {f"{letter}_c": size(page.image_size), "grid_w": page.grid[0], "grid_h": page.grid[1]}
    return (*found, replace(prefill, symbols=symbols, inputs=(*prefill.inputs, *features)), *steps)


def page_structure(
    config: PageConfig, workload: Workload, *, remote: bool = False, rank: PageRank | None = None
) -> PageStructure:
    """Return the facts about a model and a run that decide the form of formulas.

    A position table is resampled when it was trained for another grid than the view's
    (``interpolate_pos_encoding`` of both towers).

    Args:
        remote: whether the vendor's code runs.
        rank: the counted one of several devices.
    """
    sam, text, clip = config.sam, config.text, getattr(config, "clip", None)
    return PageStructure(
        views=tuple(
            View(
                invocation=name,
                sam_resampled=side // sam.patch != sam.image // sam.patch,
                clip_resampled=clip is not None and side // sam.stride != clip.image // clip.patch,
                sam_padded=side // sam.patch % sam.window != 0,
            )
            for name, _, side in views(workload)
        ),
        sam_layers=sam.layers,
        sam_global_layers=sam.global_layers,
        second_layers=getattr(config, config.second).layers,
        text_layers=text.layers,
        text_dense=text.dense_layers,
        attention=workload.attention,
        logits=workload.logits,
        experts=workload.experts,
        decode=workload.new_tokens > 0,
        remote=remote,
        rows=row_kinds(workload, config.text),
        rank=rank,
    )
