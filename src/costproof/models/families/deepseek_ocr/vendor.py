"""Define a snapshot of DeepSeek-OCR as a target: the vendor's code, counted as it runs.

A whole run is made once without a tracer. It gives each step the cache of the steps before it, the expected output of a
traced forward, and how many rows each expert gets. The decoder is not exported: its experts run in a loop over values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from costproof.ledger.capture import SymbolDoc
from costproof.ledger.errors import BadInput, CostproofError, Problems
from costproof.ledger.files import read_configuration
from costproof.ledger.mesh import of_mesh
from costproof.ledger.node import Ledger
from costproof.ledger.progress import Progress
from costproof.ledger.run import RunOptions
from costproof.ledger.workload import ROWS, Invocation, TargetInfo, Workload
from costproof.models.decoding.decoder import Decoder, on_meta
from costproof.models.decoding.runs import computed
from costproof.models.families.deepseek_ocr.config import (
    DEFAULT_PRESET,
    IMAGE_STAGES,
    MODES,
    STAGES,
    OcrConfig,
    make_workload,
    vision_tokens,
)
from costproof.models.families.deepseek_ocr.formulas import EMPTY_SIDE, SYMBOLS, ocr_ledger
from costproof.models.families.deepseek_ocr.names import (
    VENDOR_CLIP,
    VENDOR_NAMES,
    VENDOR_PROJECTOR,
    VENDOR_SAM,
    VENDOR_STAGES,
)
from costproof.models.families.deepseek_ocr.vendor_code import (
    Snapshot,
    build_vendor,
    build_with_values,
    patched,
    patches_for,
    read_snapshot,
)
from costproof.models.image_text.layout import IMAGES
from costproof.models.native import Configured
from costproof.models.pages.config import CHANNELS
from costproof.models.pages.jobs import VIEWS, images_in, vision_job
from costproof.models.pages.page import page_of, prefill_name, sides
from costproof.models.pages.workload import (
    PAGE_SETTINGS,
    page_invocations,
    page_run_problems,
    page_structure,
    sequence_length,
)
from costproof.models.specs import Built, ExportJob, Mark, Run, layers_cut
from costproof.models.target import NamedWorkload, Setting
from costproof.weights.random_values import random_integers, random_normal
from costproof.weights.stored import stored

if TYPE_CHECKING:
    import torch
    from torch import nn


MAX_STEPS: Final = 16
"""Maximum number of decode steps; all are traced, because each runs different experts."""

_FIXED: Final = {"attention": "eager", "experts": "eager", "logits": "all"}
"""Settings that the vendor's code fixes, with their values."""


@dataclass(frozen=True, slots=True)
class RemoteCodeOcr(Configured[OcrConfig]):
    """DeepSeek-OCR with one configuration, on the remote code of a snapshot folder."""

    config: OcrConfig = field(default_factory=OcrConfig)
    name: str = "deepseek-ocr"
    stages: ClassVar[tuple[str, ...]] = STAGES
    snapshot: Snapshot = field(kw_only=True)
    options: RunOptions = field(default_factory=lambda: RunOptions(device="cpu"))
    not_exported: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("prefill", "decode"), "the experts run in a loop over numbers, which an export cannot follow"
    )
    """Stages that the static source cannot export, with the reason."""

    @staticmethod
    def presets() -> tuple[NamedWorkload, ...]:
        """Return the presets: the paper's modes, and two more."""
        return MODES.named()

    def symbol_docs(self) -> dict[str, SymbolDoc]:
        """Return the typesetting and the meaning of each symbol in its formulas."""
        return SYMBOLS

    @classmethod
    def from_folder(cls, folder: Path, *, trusted: bool) -> RemoteCodeOcr:
        """Return the target with the snapshot in a folder."""
        snapshot = read_snapshot(folder)
        if not trusted:
            raise BadInput(
                "counting this snapshot runs the Python code in its folder",
                where=str(folder),
                expected="--trust-remote-code",
                fix="read the code, then add --trust-remote-code; or count its configuration on the native classes: "
                "costproof report deepseek-ocr --config FOLDER/config.json",
            )
        path = folder / "config.json"
        return cls(snapshot.config, snapshot=snapshot, stored=stored(read_configuration(path), path))

    def info(self) -> TargetInfo:
        """Return the target as data, without the path of the folder."""
        info = Configured.info(self)
        return replace(info, implementation="vendor", symbols={**info.symbols, "clip_patch": self.config.clip.patch})

    def with_options(self, options: RunOptions) -> RemoteCodeOcr:
        """Return the model with other options; loops need concrete values, so ``meta`` is replaced by the CPU."""
        made = Configured.with_options(self, options if options.real else replace(options, device="cpu"))
        return replace(made, snapshot=replace(self.snapshot, config=made.config))

    def first_layers(self, layers: int) -> tuple[OcrConfig, dict[str, str]]:
        """Return the configuration with the first decoder layers and all tower layers, and the cut (``2 of 12``)."""
        text = self.config.text
        least = min(text.dense_layers + 1, text.layers)
        kept, cut = layers_cut("decoder", layers, least, text.layers)
        return replace(self.config, text=replace(text, layers=kept)), {"decoder layers": cut} if cut else {}

    def workload(self, preset: str | None = None, **given: Any) -> Workload:
        """Return the workload of a preset with changed settings.

        The vendor's code fixes eager attention and experts.
        """
        wrong = _unlike({k: v for k in _FIXED if (v := given.pop(k, None)) is not None})
        if given.get(ROWS) is not None:
            what = "the vendor's code runs one page with its text, not the rows of a batch"
            fix = "count the configuration: costproof report deepseek-ocr --config FOLDER/config.json --rows …"
            wrong.append(BadInput(what, where=f"--{ROWS}", got=str(given[ROWS])[:80], fix=fix))
        if axes := [name for name, value in given.items() if of_mesh(name) and value is not None]:
            what = "the vendor's code has no plan by which devices share it"
            fix = "count the configuration: costproof report deepseek-ocr --config FOLDER/config.json --tp …"
            where = ", ".join(f"--{name.replace('_', '-')}" for name in axes)
            wrong.append(BadInput(what, where=where, expected="one device", fix=fix))
        if wrong:
            raise Problems("the workload cannot be run", wrong)
        made = make_workload(preset or DEFAULT_PRESET, config=self.config, default_dtype=self.dtype, **given)
        return replace(made, attention="eager", experts="eager")

    def settings(self) -> tuple[Setting, ...]:
        """Return the settings of a workload; the code fixes attention, experts and logits."""
        return tuple(s for s in PAGE_SETTINGS if s.name not in (*_FIXED, ROWS, IMAGES) and not of_mesh(s.name))

    def problems(self, workload: Workload) -> list[CostproofError]:
        found = page_run_problems(self.config, workload, MODES)
        found += _unlike({name: getattr(workload, name) for name in _FIXED})
        if workload.batch != 1:
            found.append(
                BadInput("a snapshot is counted one page at a time", where="--batch", expected=1, got=workload.batch)
            )
        if workload.new_tokens > MAX_STEPS:
            found.append(
                BadInput(
                    "too many decode steps: each of them is run and traced",
                    where="--new-tokens",
                    expected=f"at most {MAX_STEPS}",
                    got=workload.new_tokens,
                )
            )
        if not found and sequence_length(self.config, workload, MODES) < 2:
            found.append(
                BadInput(
                    "the vendor's code runs a prompt of one token like a decode step",
                    where="--text-tokens",
                    expected="at least 2",
                )
            )
        return found

    def invocations(self, workload: Workload) -> tuple[Invocation, ...]:
        """Return the invocations of the stages in one run, in order: crops first."""
        found = page_invocations(self.config, workload, MODES, IMAGE_STAGES)
        return tuple(sorted(found, key=lambda i: i.id != "crops"))

    def formulas(self, workload: Workload) -> Ledger:
        """Return the symbolic analytic ledger, with formulas (``exprs``) and without numbers (``costs``)."""
        towers = replace(workload, attention="sdpa")  # fused there, whatever the decoder does
        return ocr_ledger(page_structure(self.config, towers, remote=True), VENDOR_NAMES)

    def build(self, workload: Workload) -> nn.Module:
        """Return the model on the meta device, in the dtype of the workload; only its towers can be exported."""
        return build_vendor(self.snapshot, workload.dtype, "meta")

    def build_run(self, workload: Workload, progress: Progress) -> Built:
        """Return the model with weights, and notes about the patches that are active while it runs."""
        model, numbers = build_with_values(self.snapshot, workload.dtype, self.options, progress)
        patched = tuple(f"patched while it ran: {p.name} ({p.why})" for p in patches_for(model))
        return Built(model, (*numbers, *patched))

    def stages_of(self, path: str, workload: Workload) -> tuple[str, ...]:
        """Return the stages in which a module runs, in order."""
        return VENDOR_STAGES.stages(path)

    def export_jobs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """Return the export jobs of the static source."""
        return vendor_export_jobs(model, self.config, workload)

    def runs(self, model: nn.Module, workload: Workload) -> tuple[Run, ...]:
        """Return the runs of the dynamic source."""
        return real_runs(model, self.config, workload, self.options.seed)


def _unlike(chosen: Mapping[str, object]) -> list[CostproofError]:
    """Return an error for each setting whose value the vendor's code does not support."""
    return [
        BadInput("the vendor's code does not support this setting", where=f"--{k}", expected=_FIXED[k], got=str(v)[:40])
        for k, v in chosen.items()
        if v != _FIXED[k]
    ]


def _vision_inputs(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, int | tuple[int, ...]]:
    """Return the images in a forward and their crops; empty for a decode step and for empty views."""
    images = kwargs.get("images")
    if images is None or kwargs["input_ids"].shape[1] == 1 or not images[0][1].any():
        return {}
    return images_in([len(c) if bool(c.any()) else 0 for c, _ in images], kwargs["images_spatial_crop"].tolist())


DECODER: Final = Decoder(seen=(Mark("vision_inputs", "model", _vision_inputs),))


def page_inputs(config: OcrConfig, workload: Workload, seed: int, device: torch.device) -> dict[str, Any]:
    """Return the keyword arguments of the prefill, with random values that depend on the seed.

    ``images`` is a list with one pair (crops [c, 3, H, H], global view [1, 3, H, H]). The pixels are positive, or zero
    where the workload has no view: that is what the code's branches ask for.
    """
    import torch

    page, dtype = page_of(workload), getattr(torch, workload.dtype)
    vision = vision_tokens(page, config.sam.stride)
    length = vision + workload.text_tokens
    ids = random_integers(min(config.text.vocab, config.image_token), (1, length), seed, "input_ids")
    seen = torch.zeros(1, length, dtype=torch.bool)
    seen[:, :vision] = True
    ids[seen] = config.image_token

    def views(count: int, side: int, empty: bool) -> torch.Tensor:
        shape = (count, CHANNELS, side, side)
        if empty:
            return torch.zeros(shape, device=device, dtype=dtype)
        return random_normal(shape, seed, f"images of {side}", device, dtype).abs() + 0.1

    if page is None:
        image = (views(1, EMPTY_SIDE, True), views(1, EMPTY_SIDE, True))
    elif page.grid is None:
        image = (views(1, page.base_size, True), views(1, page.base_size, False))
    else:
        image = (views(page.crops, page.image_size, False), views(1, page.base_size, False))
    grid = page.grid if page is not None and page.grid is not None else (1, 1)
    return {
        "input_ids": ids.to(device),
        "images": [image],
        "images_seq_mask": seen.to(device),
        "images_spatial_crop": torch.tensor([list(grid)], dtype=torch.long),
        "use_cache": True,
    }


def real_runs(model: nn.Module, config: OcrConfig, workload: Workload, seed: int) -> tuple[Run, ...]:
    """Return the runs of the prefill and of every decode step, with inputs, cache and expected output."""

    def step(context: int, result: Any) -> dict[str, Any]:
        return {
            "input_ids": result.logits[:, -1:].argmax(-1),
            "past_key_values": result.past_key_values,
            "use_cache": True,
        }

    prompt = page_inputs(config, workload, seed, next(model.parameters()).device)
    patches = patches_for(model)
    needed = tuple(p for p in patches if p.needed)
    # The towers see the crops first, if there are any.
    name, here = (
        prefill_name(workload),
        VENDOR_STAGES.locators(*(["crops"] if "grid" in workload.inputs else []), "global"),
    )
    return tuple(
        replace(
            run,
            cache_before=run.kwargs.get("past_key_values", ()),
            attention_paths=tuple(f"model.layers.{i}.self_attn" for i in range(config.text.layers)),
            marks=DECODER.marks(),
            around=partial(patched, patches),
            groups=tuple(run.expert_tokens),
            positions=int(run.kwargs["input_ids"].numel()),
        )
        for run in computed(model, workload, prompt, step, here, name, partial(patched, needed))
    )


def vendor_export_jobs(model: nn.Module, config: OcrConfig, workload: Workload) -> tuple[ExportJob, ...]:
    """Return the export job of each vision stage at each view size; the number of views is symbolic."""
    from costproof.models.image_text.modules import ClipOnFeatures, PartModule

    sam, clip = PartModule(model.get_submodule(VENDOR_SAM)), ClipOnFeatures(model.get_submodule(VENDOR_CLIP))
    projector = PartModule(model.get_submodule(VENDOR_PROJECTOR))
    found: list[ExportJob] = []
    for side, calls in sides(workload).items():
        query = side // config.sam.stride
        pixels = on_meta(workload, VIEWS, CHANNELS, side, side)
        features = on_meta(workload, VIEWS, config.sam.downsample[1], query, query)
        joined = on_meta(workload, VIEWS, query * query, config.projector_in)
        found += [
            vision_job("sam", side, calls, sam, {"part": VENDOR_SAM}, x=pixels),
            vision_job("clip", side, calls, clip, {"part": VENDOR_CLIP}, x=features),
            vision_job("projector", side, calls, projector, {"part": VENDOR_PROJECTOR}, x=joined),
        ]
    return tuple(found)
