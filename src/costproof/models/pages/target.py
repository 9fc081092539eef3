"""Define the base class of targets that read pages, built on classes of transformers."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from costproof.ledger.errors import CostproofError
from costproof.ledger.mesh import DISPATCH
from costproof.ledger.workload import ExpertKernel, Invocation, Workload
from costproof.models import settings
from costproof.models.decoding import exports
from costproof.models.decoding.copies import RankCopies
from costproof.models.decoding.decoder import Decoder
from costproof.models.decoding.names import prefill_name
from costproof.models.decoding.ranks import NativeOnRanks, as_rank
from costproof.models.decoding.sharding import SPLIT_ALL
from costproof.models.image_text.layout import StagePaths
from costproof.models.pages.config import PageConfig
from costproof.models.pages.formulas import TEXT_STYLE, PageRank
from costproof.models.pages.jobs import PageReader
from costproof.models.pages.page import views
from costproof.models.pages.workload import (
    PageModes,
    page_invocations,
    page_run_problems,
    page_structure,
    preset_workload,
    sequence_length,
)
from costproof.models.specs import ExportJob, Run, layers_cut
from costproof.models.target import Setting

if TYPE_CHECKING:
    from torch import nn

    from costproof.analytic.memory_tape import MemoryTape
    from costproof.models.pages.formulas import PageStructure, View

P = TypeVar("P", bound=PageConfig)


class PageTarget(NativeOnRanks[P]):
    """Base class of targets: a model of page images, built of transformers classes, in a given configuration."""

    __slots__ = ()
    modes: ClassVar[PageModes]
    """Presets of the model, and properties of its processor."""
    reader: ClassVar[PageReader]
    """Description of the class's inputs, runs, and layout of image tokens."""
    paths: ClassVar[StagePaths]
    """Module paths of the vision stages."""
    prompt_apart: ClassVar[bool] = False
    """Whether the cache stores the prompt separately from later tokens."""
    second_name: ClassVar[str]
    """Name of the second tower in notes on truncation."""

    @classmethod
    def settings(cls) -> tuple[Setting, ...]:
        return cls.modes.settings

    @classmethod
    def from_normalised(cls, text: str) -> Self:
        """Return the target with a normalised configuration, as certificates contain it."""
        usual = cls.default()
        config: Any = type(usual.config).from_normalised(json.loads(text))
        return replace(usual, config=config)

    def first_layers(self, layers: int) -> tuple[P, dict[str, str]]:
        """Return the configuration truncated to the first layers of decoder and towers, and the truncation.

        The decoder keeps its dense layers and at least one mixture of experts. SAM keeps its layers up to
        the first one with global attention (and one with windows, where it has any); the second tower keeps as many
        layers as the decoder. Widths, experts and tables stay as they are.
        """
        text, sam = self.config.text, self.config.sam
        second: Any = getattr(self.config, self.config.second)
        layers, words = layers_cut("decoder", layers, min(text.dense_layers + 1, text.layers), text.layers)
        if not words:
            return self.config, {}
        windowed = [i for i in range(sam.layers) if i not in sam.global_layers]
        kept = max([min(kind) + 1 for kind in (sam.global_layers, windowed) if kind], default=sam.layers)
        few = min(layers, second.layers)
        parts: dict[str, Any] = {
            "text": replace(text, layers=layers),
            "sam": replace(sam, layers=kept, global_layers=tuple(i for i in sam.global_layers if i < kept)),
            self.config.second: replace(second, layers=few),
        }
        cut = {"decoder layers": words, "SAM layers": f"{kept} of {sam.layers}"}
        cut[f"{self.second_name} layers"] = f"{few} of {second.layers}"
        whole: Any = self.config
        return replace(whole, **parts), cut

    def workload(self, preset: str | None = None, **settings: Any) -> Workload:
        """Return a preset with changed settings; see :func:`~costproof.models.pages.workload.preset_workload`.

        Raises:
            Problems: everything that is wrong with the settings, at once.
        """
        name = preset or self.modes.default
        return preset_workload(name, config=self.config, modes=self.modes, default_dtype=self.dtype, **settings)

    def problems(self, workload: Workload) -> list[CostproofError]:
        return page_run_problems(self.config, workload, self.modes) + settings.device_problems(workload, self.options)

    def invocations(self, workload: Workload) -> tuple[Invocation, ...]:
        """Return the invocations of the stages in one run, in order, with the values of their symbols."""
        return page_invocations(self.config, workload, self.modes, self.stages[:3])

    def shares(self, workload: Workload) -> RankCopies:
        """Return the division of the decoder among ranks; towers and projector are whole on each."""
        return RankCopies.of(self.config.text, self.whole_prompt(workload), SPLIT_ALL, TEXT_STYLE)

    def whole_prompt(self, workload: Workload) -> Workload:
        """Return the workload with ``text_tokens`` increased by the vision tokens of the prompt."""
        return replace(workload, text_tokens=sequence_length(self.config, workload, self.modes))

    def structure(self, workload: Workload) -> PageStructure:
        """Return the facts that decide the form of formulas; on several devices, those of the counted rank."""
        rank = None
        if not workload.mesh.one:
            one_token = self.whole_prompt(workload).text_tokens == 1
            rank = PageRank(self.shares(workload), workload.own_batch == 1, one_token)
        return page_structure(self.config, workload, rank=rank)

    def memory(self, workload: Workload) -> Mapping[tuple[str, str, str], MemoryTape]:
        """Return the memory tapes of calls by (stage, invocation, part); for decode, of a step at context P."""
        from costproof.models.decoding.memory import decoder_tapes, row_tapes
        from costproof.models.pages.formulas import page_decoder

        structure, shards = self.structure(workload), None if workload.mesh.one else self.shares(workload)
        whole, seen = self.whole_prompt(workload), views(workload.own)
        record = row_tapes if workload.rows else partial(decoder_tapes, shards=shards)
        found = record(
            self.config.text, whole, partial(page_decoder, structure), embedded=bool(seen), apart=self.prompt_apart
        )
        for view, (name, count, side) in zip(structure.views, seen, strict=True):
            tapes = self.view_tapes(structure, view, workload, count, side)
            found |= {(stage, name, f"{stage}@{side}"): tape for stage, tape in tapes.items()}
        if seen:
            found["prefill", prefill_name(workload), "glue"] = self.glue_tape(structure, workload)
        return found

    @abstractmethod
    def view_tapes(
        self, structure: PageStructure, view: View, workload: Workload, count: int, side: int
    ) -> dict[str, MemoryTape]:
        """Return the memory tapes of towers and projector on ``count`` views of ``side`` pixels, by stage."""

    @abstractmethod
    def glue_tape(self, structure: PageStructure, workload: Workload) -> MemoryTape:
        """Return the memory tape of the operators that put image tokens into the prompt."""

    @property
    def decoder(self) -> Decoder:
        return self.reader.decoder

    def stages_of(self, path: str, workload: Workload) -> tuple[str, ...]:
        return self.paths.stages(path, workload.new_tokens)

    def export_jobs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """Return the export jobs of the static source."""
        jobs, whole = self.reader.export_jobs(model, workload.own), self.whole_prompt(workload)
        numbers = {}
        if workload.gathered_batches or DISPATCH in workload.inputs:  # whose ratios to the own batch are numbers
            numbers = {"B": workload.own_batch, "S": whole.text_tokens}
        return exports.of_rank(jobs, whole, numbers) if workload.mesh.tp > 1 or numbers else jobs

    def stage_runs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """Return the jobs of the isolated source."""
        return self.reader.stage_runs(model, workload.own)

    def built(self, workload: Workload, experts: ExpertKernel) -> nn.Module:
        """Return the model on the meta device with the given implementation of routed experts.

        Raises:
            Incomplete: the installed transformers has no classes for it.
        """
        model = self.built_class(workload, experts)
        if workload.rows:
            from costproof.models.decoding.modules import pack

            pack(model, self.decoder)
        return model

    @abstractmethod
    def built_class(self, workload: Workload, experts: ExpertKernel) -> nn.Module:
        """Return the class of transformers on the meta device with the given implementation of routed experts."""

    def runs(self, model: nn.Module, workload: Workload) -> tuple[Run, ...]:
        """Return the runs of the dynamic source."""
        workload = workload.own
        if next(model.parameters()).device.type == "meta":
            return as_rank(self.reader.shape_runs(model, workload), model)
        return self.reader.real_runs(model, workload, self.options.seed)
