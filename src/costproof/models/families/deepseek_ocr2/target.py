"""DeepSeek-OCR 2 as a target on the classes of transformers."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from costproof.ledger.capture import SymbolDoc
from costproof.ledger.errors import CostproofError
from costproof.ledger.node import Ledger
from costproof.ledger.workload import FLOAT_BYTES, ExpertKernel, Invocation, TensorSpec, Workload
from costproof.models import settings
from costproof.models.decoding import names
from costproof.models.decoding.decoder import Decoder
from costproof.models.families.deepseek_ocr2 import native
from costproof.models.families.deepseek_ocr2.config import Ocr2Config
from costproof.models.families.deepseek_ocr2.formulas import ocr2_ledger, symbol_docs
from costproof.models.families.deepseek_ocr2.workload import IMAGE_STAGES, MODES, STAGES, queries, vision_tokens
from costproof.models.native import Native
from costproof.models.pages.formulas import PageStructure, View
from costproof.models.pages.page import page_of, views
from costproof.models.pages.workload import page_run_problems, preset_workload
from costproof.models.specs import ExportJob, Run, layers_cut
from costproof.models.target import NamedWorkload, Setting

if TYPE_CHECKING:
    from torch import nn

    from costproof.models.encoding.domain import Domain


@dataclass(frozen=True, slots=True)
class DeepseekOcr2(Native[Ocr2Config]):
    """``DeepseekOcr2ForConditionalGeneration`` with one configuration."""

    config: Ocr2Config = field(default_factory=Ocr2Config)
    name: str = "deepseek-ocr2"
    model_types: ClassVar[tuple[str, ...]] = ("deepseek_ocr2",)
    stages: ClassVar[tuple[str, ...]] = STAGES
    named: ClassVar[tuple[NamedWorkload, ...]] = MODES.named()
    notation: ClassVar[dict[str, SymbolDoc]] = symbol_docs()

    @staticmethod
    def settings() -> tuple[Setting, ...]:
        """Return the settings of a run, other than the preset."""
        return MODES.settings

    @classmethod
    def from_normalised(cls, text: str) -> Self:
        """Return the target with a configuration from a certificate."""
        return cls(Ocr2Config.from_normalised(text))

    def first_layers(self, layers: int) -> tuple[Ocr2Config, dict[str, str]]:
        """Return the configuration with the first layers of decoder, encoder and SAM, and what was cut."""
        text, sam, encoder = self.config.text, self.config.sam, self.config.encoder
        layers, words = layers_cut("decoder", layers, min(text.dense_layers + 1, text.layers), text.layers)
        cut = {"decoder layers": words}
        if not words:
            return self.config, {}
        windowed = [i for i in range(sam.layers) if i not in sam.global_layers]
        kept = max([min(kind) + 1 for kind in (sam.global_layers, windowed) if kind], default=sam.layers)
        small = replace(
            self.config,
            text=replace(text, layers=layers),
            sam=replace(sam, layers=kept, global_layers=tuple(i for i in sam.global_layers if i < kept)),
            encoder=replace(encoder, layers=min(layers, encoder.layers)),
        )
        cut["SAM layers"] = f"{kept} of {sam.layers}"
        cut["encoder layers"] = f"{small.encoder.layers} of {encoder.layers}"
        return small, cut

    def workload(self, preset: str | None = None, **settings: Any) -> Workload:
        """Return the workload of a preset with changed settings."""
        return preset_workload(
            preset or MODES.default, config=self.config, modes=MODES, default_dtype=self.dtype, **settings
        )

    def problems(self, workload: Workload) -> list[CostproofError]:
        """Return an error for each reason why the model cannot run a workload."""
        return page_run_problems(self.config, workload, MODES) + settings.device_problems(workload, self.options)

    def invocations(self, workload: Workload) -> tuple[Invocation, ...]:
        """Return the invocations of the stages in one run, in order, with the values of their symbols.

        Symbols. Towers and projector: n views, H pixels per side, Q queries. Prefill: S prompt tokens, V vision tokens
        among them, and with a page Q_g, with crops Q_c, grid_w, grid_h. All else as for a decoder.
        """
        page, stride, width = page_of(workload), self.config.sam.stride, self.config.encoder.hidden
        found, features = [], []
        for name, count, side in views(workload):
            rows, grid = queries(side, stride), side // stride
            values = {"B": workload.batch, "b": FLOAT_BYTES[workload.dtype], "n": count, "H": side, "Q": rows}
            taken = ((self.config.sam.channels, side, side), (width, grid, grid), (rows, width))
            found += [
                Invocation(stage, name, 1, values, (TensorSpec((count, *shape), workload.dtype),))
                for stage, shape in zip(IMAGE_STAGES, taken, strict=True)
            ]
            features.append(TensorSpec((count, rows, self.config.text.hidden), workload.dtype))
        seen = vision_tokens(page, stride)
        prefill, *steps = names.invocations(replace(workload, text_tokens=seen + workload.text_tokens))
        symbols = {**prefill.symbols, "V": seen}
        if page is not None:
            symbols["Q_g"] = queries(page.base_size, stride)
            if page.grid is not None:
                symbols |= {"Q_c": queries(page.image_size, stride), "grid_w": page.grid[0], "grid_h": page.grid[1]}
        return (*found, replace(prefill, symbols=symbols, inputs=(*prefill.inputs, *features)), *steps)

    def formulas(self, workload: Workload) -> Ledger:
        """Return the symbolic analytic ledger: ``exprs`` are set, ``costs`` are empty."""
        sam, text = self.config.sam, self.config.text
        structure = PageStructure(
            views=tuple(
                View(
                    name,
                    sam_resampled=side // sam.patch != sam.image // sam.patch,
                    clip_resampled=False,
                    sam_padded=side // sam.patch % sam.window != 0,
                )
                for name, _, side in views(workload)
            ),
            sam_layers=sam.layers,
            sam_global_layers=sam.global_layers,
            text_layers=text.layers,
            text_dense=text.dense_layers,
            attention=workload.attention,
            logits=workload.logits,
            experts=workload.experts,
            decode=workload.new_tokens > 0,
        )
        found = ocr2_ledger(structure, self.config.encoder.layers)
        return replace(found, conventions={"expert_kernel": "grouped_mm"}) if workload.experts == "eager" else found

    def domain(self) -> Domain:
        """Return the domain of a proof: pages with and without crops, text, and random sizes."""
        from costproof.models.families.deepseek_ocr2.proof import domain

        return domain()

    @classmethod
    def drawn(cls, p: Mapping[str, int], rng: random.Random) -> tuple[DeepseekOcr2, dict[str, bool]]:
        """Return a random small configuration for a proof; see :func:`~.domain.drawn`."""
        from costproof.models.families.deepseek_ocr2.proof import drawn

        config, features = drawn(p, rng)
        return cls(config), features

    def drawn_run(self, p: Mapping[str, int], workload: Workload) -> Workload:
        """Return the workload with the page and the text of a draw."""
        from costproof.models.families.deepseek_ocr2.proof import drawn_run

        return drawn_run(p, workload)

    @property
    def decoder(self) -> Decoder:
        """Return how the class of transformers is called."""
        return native.DECODER

    def built(self, workload: Workload, experts: ExpertKernel) -> nn.Module:
        """Return the model on the meta device, in the dtype of the workload."""
        return native.build_model(self.config, workload)

    def stages_of(self, path: str, workload: Workload) -> tuple[str, ...]:
        """Return the stages in which a module runs, in order."""
        return native.NATIVE_STAGES.stages(path, workload.new_tokens)

    def export_jobs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """Return the export jobs of the static source."""
        return native.export_jobs(model, workload)

    def stage_runs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """Return the jobs of the isolated source."""
        return native.stage_runs(model, workload)

    def runs(self, model: nn.Module, workload: Workload) -> tuple[Run, ...]:
        """Return the runs of the dynamic source."""
        if next(model.parameters()).device.type == "meta":
            return native.READER.shape_runs(model, workload)
        return native.READER.real_runs(model, workload, self.options.seed)


TARGET: Final = DeepseekOcr2
