"""A snapshot of DeepSeek-OCR as a target: the vendor's code, counted where it really runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from costproof.ledger.errors import BadInput, CostproofError, Problems
from costproof.ledger.files import read_configuration
from costproof.ledger.node import Ledger
from costproof.ledger.progress import Progress
from costproof.ledger.run import RunOptions
from costproof.ledger.workload import Invocation, TargetInfo, Workload
from costproof.models.checkpoint import stored
from costproof.models.families.deepseek_ocr import geometry
from costproof.models.families.deepseek_ocr.config import OcrConfig
from costproof.models.families.deepseek_ocr.presets import DEFAULT_PRESET, SETTINGS
from costproof.models.families.deepseek_ocr.remote_code import build, exports, runs
from costproof.models.families.deepseek_ocr.remote_code.names import PARTS, REMOTE_CODE_NAMES
from costproof.models.families.deepseek_ocr.remote_code.patches import patches_for
from costproof.models.families.deepseek_ocr.remote_code.snapshot import Snapshot, read_snapshot
from costproof.models.families.deepseek_ocr.target import OcrTarget
from costproof.models.families.deepseek_ocr.workloads import make_workload, problems_of
from costproof.models.specs import Built, ExportJob, Run, layers_cut
from costproof.models.target import Setting

if TYPE_CHECKING:
    from torch import nn

MAX_STEPS: Final = 16
"""Every decode step is traced, since the experts that run differ from step to step."""

_FIXED: Final = {"attention": "eager", "experts": "eager", "logits": "all"}
"""What the code can do: attention of the decoder written out, experts in a loop, logits of every position."""


@dataclass(frozen=True, slots=True)
class RemoteCodeOcr(OcrTarget):
    """The remote code in a snapshot folder."""

    snapshot: Snapshot = field(kw_only=True)
    options: RunOptions = field(default_factory=lambda: RunOptions(device="cpu"))
    not_exported: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("prefill", "decode"), "the experts run in a loop over numbers, which an export cannot follow"
    )
    """Stages that the static source cannot cover, with the reason."""

    @classmethod
    def from_folder(cls, folder: Path, *, trusted: bool) -> RemoteCodeOcr:
        """The target in a folder."""
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
        """The target as data; the folder's path is not part of it."""
        info = OcrTarget.info(self)
        return replace(info, implementation="vendor", symbols={**info.symbols, "clip_patch": self.config.clip.patch})

    def with_options(self, options: RunOptions) -> RemoteCodeOcr:
        """The same model, run in another way. Its loops need numbers: in place of ``meta`` it runs on the CPU."""
        made = OcrTarget.with_options(self, options if options.real else replace(options, device="cpu"))
        return replace(made, snapshot=replace(self.snapshot, config=made.config))

    def first_layers(self, layers: int) -> tuple[OcrConfig, dict[str, str]]:
        """The first layers of the decoder; the towers stay whole."""
        text = self.config.text
        least = min(text.dense_layers + 1, text.layers)
        kept, cut = layers_cut("decoder", layers, least, text.layers)
        return replace(self.config, text=replace(text, layers=kept)), {"decoder layers": cut} if cut else {}

    def workload(self, preset: str | None = None, **given: Any) -> Workload:
        """A preset with changes; attention, experts and logits are the code's own."""
        wrong = _unlike({k: v for k in _FIXED if (v := given.pop(k, None)) is not None})
        if wrong:
            raise Problems("the workload cannot be run", wrong)
        made = make_workload(preset or DEFAULT_PRESET, config=self.config, usual=self.dtype, **given)
        return replace(made, attention="eager", experts="eager")

    def settings(self) -> tuple[Setting, ...]:
        """What can be chosen about a workload; attention, experts and logits are the code's own."""
        return tuple(s for s in SETTINGS if s.name not in _FIXED)

    def problems(self, workload: Workload) -> list[CostproofError]:
        """Everything that keeps the model from running a workload."""
        found = problems_of(self.config, workload)
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
        if not found and geometry.sequence_length(self.config, workload) < 2:
            found.append(
                BadInput("a prompt of one token runs like a decode step", where="--text-tokens", expected="at least 2")
            )
        return found

    def invocations(self, workload: Workload) -> tuple[Invocation, ...]:
        """The calls of the stages in one run, in order: the crops go first here."""
        found = geometry.invocations(self.config, workload)
        return tuple(sorted(found, key=lambda i: i.id != "crops"))

    def formulas(self, workload: Workload) -> Ledger:
        """The analytic ledger in symbols: ``exprs`` filled, ``costs`` empty."""
        from costproof.models.families.deepseek_ocr.formulas.ledger import ledger

        towers = replace(workload, attention="sdpa")  # fused there, whatever the decoder does
        return ledger(geometry.structure(self.config, towers, remote=True), REMOTE_CODE_NAMES)

    def build(self, workload: Workload) -> nn.Module:
        """The model on the meta device, in the workload's dtype; its towers can be exported."""
        return build.build(self.snapshot, workload.dtype, "meta")

    def build_run(self, workload: Workload, progress: Progress) -> Built:
        """The model with its numbers, and what is patched while it runs."""
        model, numbers = build.with_numbers(self.snapshot, workload.dtype, self.options, progress)
        patched = tuple(f"patched while it ran: {p.name} ({p.why})" for p in patches_for(model))
        return Built(model, (*numbers, *patched))

    def stages_of(self, path: str, workload: Workload) -> tuple[str, ...]:
        """The stages that a module works in, in the order of the run."""
        return PARTS.stages(path)

    def export_jobs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """What the static source has to export."""
        return exports.export_jobs(model, self.config, workload)

    def runs(self, model: nn.Module, workload: Workload) -> tuple[Run, ...]:
        """What the dynamic source has to trace."""
        return runs.real_runs(model, self.config, workload, self.options.seed)


def _unlike(chosen: Mapping[str, object]) -> list[CostproofError]:
    """What is wrong with settings that the code has fixed."""
    return [
        BadInput("the vendor's code cannot do this", where=f"--{k}", expected=_FIXED[k], got=str(v)[:40])
        for k, v in chosen.items()
        if v != _FIXED[k]
    ]
