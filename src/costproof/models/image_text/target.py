"""Define the base class of targets that read images and text.

A family adds its configuration, its formulas, and how its vision tower is called.
"""

from __future__ import annotations

import json
import random
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeVar

from costproof.ledger.capture import SymbolDoc
from costproof.ledger.errors import BadInput, CostproofError
from costproof.ledger.mesh import PLAN
from costproof.ledger.node import Ledger
from costproof.ledger.workload import ROWS, ExpertKernel, Invocation, TensorSpec, Workload
from costproof.models import settings as common
from costproof.models.decoding import exports, names, runs
from costproof.models.decoding.build import build
from costproof.models.decoding.decoder import Decoder, ids_on_meta, on_meta
from costproof.models.decoding.names import prefill_name
from costproof.models.decoding.plans import OWN, mesh_problems
from costproof.models.decoding.ranks import NativeOnRanks, as_rank
from costproof.models.decoding.sharding import SPLIT_ALL, ShardPlan, Shards, mesh_symbols
from costproof.models.image_text.config import TEXT, VISION, ImageTextConfig, is_of
from costproof.models.image_text.layout import CALL, IMAGES, SYMBOLS, ModelLayout, images_of, with_images
from costproof.models.specs import ExportJob, Run, SymbolicSize, layers_cut
from costproof.models.target import NamedWorkload, Setting
from costproof.patches.modules import no_image_check
from costproof.weights.random_values import random_normal

if TYPE_CHECKING:
    import torch
    from torch import nn

    from costproof.analytic.memory_tape import MemoryTape
    from costproof.models.decoding.formulas import DecoderStyle
    from costproof.models.encoding.domain import Domain

QUESTION: Final = 64
PRESETS: Final = (
    NamedWorkload("question", "an image and a question about it", {"text": QUESTION}, default=True),
    NamedWorkload("text-only", "512 text tokens, no image", {"text": 512}),
)
MOST_IMAGES: Final = 64
"""Maximum number of images in a prompt; a larger number is probably a mistake."""
EXAMPLE_COUNT: Final = 7
"""Number of images in an export: above 1, and different from the example sizes of the decoder."""

C = TypeVar("C", bound=ImageTextConfig)


class ImageTextTarget(NativeOnRanks[C]):
    """Base class of targets: an image-text model of transformers in a given configuration."""

    __slots__ = ()
    named: ClassVar[tuple[NamedWorkload, ...]] = PRESETS
    notation: ClassVar[dict[str, SymbolDoc]] = SYMBOLS

    @abstractmethod
    def formulas(self, workload: Workload) -> Ledger:
        """Return the symbolic analytic ledger, with formulas (``exprs``) and without numbers (``costs``)."""

    @abstractmethod
    def tower_tapes(self, workload: Workload, count: int) -> dict[str, MemoryTape]:
        """Return the memory tapes of the towers on ``count`` images, by stage."""

    @abstractmethod
    def text_style(self) -> DecoderStyle:
        """Return the differences of the decoder from the default one."""

    text_behind: ClassVar[int] = 0
    """Text tokens that each image needs after it."""
    returns_features: ClassVar[bool] = True
    """Whether the model also returns the concatenated features."""

    plan: ClassVar[ShardPlan] = SPLIT_ALL
    """Tensor-parallel plan of the decoder in the class of transformers; towers and projector are whole on each rank."""

    def shares(self, workload: Workload) -> Shards:
        return Shards.of(self.config.text, workload, self.plan, self.text_style())

    def memory(self, workload: Workload) -> Mapping[tuple[str, str, str], MemoryTape]:
        """Return the memory tapes of calls by (stage, invocation, part); for decode, of a step at context P."""
        from costproof.models.decoding.formulas import decoder_stack
        from costproof.models.decoding.memory import decoder_tapes, row_tapes
        from costproof.models.image_text.formulas import glue_tape

        count, own = workload.own_batch * images_of(workload), workload.own
        whole = replace(workload, text_tokens=self.length(workload))
        shards = None if workload.mesh.one else self.shares(workload)
        stack = decoder_stack(self.config.text, whole, self.text_style(), shards)
        if workload.rows:
            found = row_tapes(self.config.text, whole, stack, embedded=count > 0, axes=self.layout.axes)
        else:
            found = decoder_tapes(self.config.text, whole, stack, embedded=count > 0, shards=shards)
        if count:
            found |= {(s, CALL, s): tape for s, tape in self.tower_tapes(own, count).items()}
            features, masked = count * self.image_tokens(workload), shards is not None and workload.mesh.tp > 1
            found["prefill", prefill_name(workload), "glue"] = glue_tape(
                features, returned=self.returns_features, masked=masked
            )
        return found

    @property
    @abstractmethod
    def layout(self) -> ModelLayout:
        """Return the module paths of towers, projector and decoder in the class."""

    @abstractmethod
    def image_tokens(self, workload: Workload) -> int:
        """Return the number of tokens of an image in the prompt."""

    @abstractmethod
    def tower_invocations(self, workload: Workload, count: int) -> tuple[Invocation, ...]:
        """Return the towers' invocations on ``count`` images, whose symbols the prefill gets as well."""

    @abstractmethod
    def tower_jobs(self, model: nn.Module, workload: Workload, count: int | None) -> tuple[ExportJob, ...]:
        """Return the export jobs of the towers on ``count`` images, a symbolic number if ``None``."""

    @abstractmethod
    def image_inputs(self, workload: Workload, count: int) -> dict[str, Any]:
        """Return the keyword arguments of the prefill for ``count`` images, on the meta device."""

    @abstractmethod
    def least_layers(self) -> int:
        """Return the minimum number of tower layers after a truncation."""

    def random_image_inputs(self, model: nn.Module, workload: Workload, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return :meth:`image_inputs` with seeded values.

        Args:
            kwargs: all arguments of the prefill, including real token ids.
        """
        return {
            name: random_input(name, shape, self.options.seed, kwargs["input_ids"].device)
            for name, shape in self.image_inputs(workload, workload.batch * images_of(workload)).items()
        }

    @classmethod
    @abstractmethod
    def drawn(cls, p: Mapping[str, int], rng: random.Random) -> tuple[ImageTextTarget[Any], dict[str, bool]]:
        """Draw a random small configuration; return its target, and whether it has each feature.

        Args:
            p: values of the parameters of :meth:`domain`.
            rng: source of all choices that are not sizes.
        """

    @classmethod
    def from_normalised(cls, text: str) -> Self:
        data, default = json.loads(text), cls.default()
        nested = {key: type(getattr(default.config, key))(**data[key]) for key in ("vision", "text")}
        config: Any = type(default.config)(**{**data, **nested})
        return replace(default, config=config)

    @classmethod
    def serves(cls, config: Mapping[str, Any]) -> bool:
        """Return whether the formulas describe a configuration's parts, and the cache that it gets in transformers."""
        default, text = cls.default().config, config.get(TEXT)
        kinds = all(is_of(config, key, part) for key, part in ((VISION, default.vision), (TEXT, default.text)))
        return kinds and default.text.caches_as(text if isinstance(text, dict) else {})

    @classmethod
    def settings(cls) -> tuple[Setting, ...]:
        return (
            Setting(IMAGES, "Images in each prompt; 0 for text only. With --rows: in all new tokens (default 0)."),
            replace(common.TEXT_TOKENS, what="Tokens of the prompt, without the image tokens."),
            Setting("seq_len", "Tokens of the whole prompt, instead of --text-tokens."),
            common.ROWS,
            common.NEW_TOKENS,
            common.BATCH,
            common.DTYPE,
            replace(common.ATTENTION, choices=cls.attentions),
            common.LOGITS,
            *common.MESH,
        )

    def first_layers(self, layers: int) -> tuple[C, dict[str, str]]:
        """Return the configuration truncated to the first layers of decoder and tower, and a note on the cut."""
        vision, text = self.config.vision, self.config.text
        _, words = layers_cut("decoder", layers, 1, text.layers)
        cut = {"decoder layers": words} if words else {}
        seen = min(max(layers, self.least_layers()), vision.layers)
        if seen < vision.layers:
            cut |= {"vision layers": f"{seen} of {vision.layers}"}
        return replace(self.config, text=replace(text, layers=layers), vision=replace(vision, layers=seen)), cut

    def length(self, workload: Workload) -> int:
        """Return the length of a prompt in tokens, including image tokens; of rows, the sum of new tokens."""
        if workload.rows:
            return workload.text_tokens
        return images_of(workload) * self.image_tokens(workload) + workload.text_tokens

    def whole_prompt(self, workload: Workload) -> Workload:
        """Return the workload with ``text_tokens`` increased by the image tokens of the prompt."""
        return replace(workload, text_tokens=self.length(workload))

    def default_workload(self, name: str) -> Workload:
        """Return the workload of a preset; the default preset has an image."""
        preset = next(p for p in self.named if p.name == name)
        plain = with_images(Workload(name, preset.tokens["text"]), int(preset.default))
        return self.with_images_given(plain, {}, [])

    def with_images_given(self, workload: Workload, given: dict[str, Any], found: list[CostproofError]) -> Workload:
        """Move the image settings from ``given`` to the workload; append errors to ``found``."""
        count = given.pop(IMAGES, None)
        if count is None:
            return workload
        most = common.MAX_BATCH if given.get(ROWS) is not None else MOST_IMAGES
        if 0 <= count <= most:
            return with_images(workload, count, where="the rows" if most > MOST_IMAGES else "each prompt")
        what, expected = "the number of images is out of range", f"0 to {most}"
        found.append(BadInput(what, where="--images", expected=expected, got=count))
        return workload

    def with_input(self, workload: Workload, given: dict[str, Any], found: list[CostproofError]) -> Workload:
        """Return the workload with its image settings, and resolve the lengths in ``given``.

        Convert ``seq_len`` in ``given`` to the remaining text tokens. The images of rows are those of the whole batch.
        """
        if given.get(ROWS) is not None and given.get(IMAGES) is None:
            given[IMAGES] = 0
        started = self.with_images_given(workload, given, found)
        if (plan := given.pop(PLAN, None)) not in (None, OWN):
            what = "only the plan of transformers is described for a model with towers, which it leaves whole"
            found.append(BadInput(what, where=f"--{PLAN}", expected=OWN, got=str(plan)[:80]))
        common.take_rows(given, found)
        length = given.pop("seq_len", None)
        if length is not None and given.get(ROWS) is not None:
            found.append(BadInput("the rows of a batch say all lengths", where="--seq-len", got=length))
        if length is not None and not found:
            if given.get("text_tokens") is not None:
                what = "text tokens and sequence length exclude each other"
                found.append(BadInput(what, where="--text-tokens, --seq-len"))
            places = images_of(started) * self.image_tokens(started)
            if length <= places:
                what = "the sequence is too short for its image tokens" if places else "a prompt needs a token"
                found.append(BadInput(what, where="--seq-len", expected=f"more than {places}", got=length))
            given["text_tokens"] = max(1, length - places)
        return started

    def problems(self, workload: Workload) -> list[CostproofError]:
        text = self.config.text
        found = common.problems(workload, text.head_dim) + common.device_problems(workload, self.options)
        found += mesh_problems(text, workload, self.plan)
        if workload.rows:
            found += common.row_problems(workload, text.max_positions)
            images = images_of(workload), self.image_tokens(workload), self.text_behind
            return found + common.room_problems(workload, *images)
        return found or common.too_long(workload, self.length(workload), text.max_positions)

    def invocations(self, workload: Workload) -> tuple[Invocation, ...]:
        """Return the invocations of towers, prefill and decode, with the values of their symbols."""
        whole, workload = self.whole_prompt(workload), workload.own
        calls = names.invocations(self.whole_prompt(workload), self.config.text)
        prefill, *steps = (
            replace(call, symbols={**call.symbols, **mesh_symbols(self.config.text, whole, self.plan, call.stage)})
            for call in calls
        )
        count = workload.batch * images_of(workload)
        if not count:
            return prefill, *steps
        towers = self.tower_invocations(workload, count)
        features = TensorSpec((count, self.image_tokens(workload), self.config.text.hidden), workload.dtype)
        prompt = replace(prefill, symbols=towers[0].symbols | prefill.symbols, inputs=(*prefill.inputs, features))
        return (*towers, prompt, *steps)

    @property
    def decoder(self) -> Decoder:
        return self.layout.decoder_for(CALL)

    def built(self, workload: Workload, experts: ExpertKernel) -> nn.Module:
        """Return the model on the meta device, with the check of image tokens against features disabled."""
        replaced, inner = no_image_check(), self.layout.inner
        dtype, attention = workload.dtype, workload.attention
        model = build(*self.native(), dtype=dtype, attention=attention, replaced=replaced, inner=inner)
        if workload.rows:
            from costproof.models.decoding.modules import pack

            pack(model, self.decoder)
        return model

    def stages_of(self, path: str, workload: Workload) -> tuple[str, ...]:
        return self.layout.towers.stages(path, workload.new_tokens)

    def export_jobs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """Return the export jobs of the towers, of feature insertion, of the prefill and of a decode step.

        Each cut passes an activation from one stage to the next. It is an output of one graph and an input of another,
        so it counts as written by its producer and as read by its consumer, as in a trace of the whole model.
        """
        embeds, own = images_of(workload) > 0, workload.own
        jobs = exports.export_jobs(model, own, self.decoder, embeds=embeds)
        if workload.mesh.tp > 1:
            jobs = [*exports.of_rank(jobs, self.whole_prompt(workload))]
        towers = (*self.tower_jobs(model, own, None), self._glue(model, own)) if embeds else ()
        return (*towers, *jobs)

    def stage_runs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """Return jobs that run each stage, and some decode steps, in isolation at the workload's sizes."""
        workload = workload.own
        count = workload.batch * images_of(workload)
        jobs = exports.stage_runs(model, workload, self.decoder, self.length(workload), embeds=count > 0)
        towers = (*self.tower_jobs(model, workload, count), self._glue(model, workload)) if count else ()
        return (*towers, *jobs)

    def _glue(self, model: nn.Module, workload: Workload) -> ExportJob:
        """Return the export job of token embedding and scatter of image features, at concrete sizes."""
        from costproof.models.image_text import modules

        layout, text = self.layout, self.config.text
        table = f"{layout.decoder}.embed_tokens"
        images = workload.batch * images_of(workload)
        args = {
            "ids": ids_on_meta(workload.batch, self.length(workload)),
            "features": list(on_meta(workload, images, self.image_tokens(workload), text.hidden)),
        }
        child = layout.decoder.removeprefix(f"{layout.around}.")
        # The output projection reads a shared table in full.
        shared = {f"{table}.weight"} if text.tied else set()
        return ExportJob(
            "glue",
            "prefill",
            (prefill_name(workload),),
            modules.PromptGlue(model.get_submodule(layout.around), child),
            {"part": layout.around, f"part.{child}.embed_tokens": table},
            args,
            own_calls=frozenset({table}),
            inside=frozenset({"return.0", *shared}),
        )

    def runs(self, model: nn.Module, workload: Workload) -> tuple[Run, ...]:
        """Return the runs of the prompt with its images, and of the decode steps after it."""
        workload = workload.own
        decoder, count = self.decoder, workload.batch * images_of(workload)
        if workload.rows:
            return self._row_runs(model, workload)
        prompt = runs.prompt_inputs(workload, decoder, self.length(workload))
        if next(model.parameters()).device.type == "meta":
            images = self.image_inputs(workload, count) if count else {}
            return as_rank(runs.shape_runs(model, workload, decoder, {**prompt, **images}), model)
        kwargs = runs.real_prompt(model, workload, decoder, prompt, self._ids(workload, prompt["input_ids"]))
        if count:
            kwargs |= self.random_image_inputs(model, workload, kwargs)
        return runs.real_runs(model, workload, decoder, kwargs)

    def _row_runs(self, model: nn.Module, workload: Workload) -> tuple[Run, ...]:
        """Return the run of a batch of unequal rows, with the images in the first sequences that have room."""
        count, token = images_of(workload), self.config.image_token
        if next(model.parameters()).device.type == "meta":
            images = self.image_inputs(workload, count) if count else {}
            return runs.rows_runs(model, workload, self.decoder, more=lambda given: images)
        tokens = self.image_tokens(workload) if count else 0
        drawn = self.config.text.vocab, self.options.seed
        ids = runs.row_ids(workload.rows, *drawn, token, [tokens] * count, self.text_behind)
        return runs.rows_runs(
            model, workload, self.decoder, ids,
            lambda given: self.random_image_inputs(model, workload, given) if count else {},
        )  # fmt: skip

    def _ids(self, workload: Workload, shape: torch.Tensor) -> torch.Tensor:
        """Return random token ids [B, S] with the placeholder tokens of each image, and a text token between images."""
        token, count = self.config.image_token, self.image_tokens(workload)
        ids = runs.drawn_ids(self.config.text.vocab - 1, tuple(shape.shape), self.options.seed)
        ids += ids >= token  # any token but the image token
        between = int(workload.text_tokens >= images_of(workload))
        for image in range(images_of(workload)):
            first = image * (count + between)
            ids[:, first : first + count] = token
        return ids

    def domain(self) -> Domain:
        """Return the domain of a proof: prompts with one image, several or none, and random sizes."""
        from costproof.models.image_text.layout import domain

        return domain(self.workload())

    def drawn_run(self, p: Mapping[str, int], workload: Workload) -> Workload:
        """Return the workload with a randomly drawn text length and number of images."""
        return with_images(self.drawn_text(p, workload), p["images"])

    @staticmethod
    def drawn_text(p: Mapping[str, int], workload: Workload) -> Workload:
        """Return the workload with the drawn text length, and with logits of all positions or the last."""
        return replace(workload, text_tokens=p["text_tokens"], logits="last" if p["last"] else "all")


def tower_job(stage: str, path: str, module: nn.Module, sized: bool, **args: torch.Tensor) -> ExportJob:
    """Return the export job of one call of a tower.

    Args:
        path: of the tower in the model; in ``module`` it is ``part``.
        sized: whether the first dimension of each argument is the symbolic number of images.
    """
    sizes = [SymbolicSize((name,), 0, "n") for name in args] if sized else ()
    return ExportJob(stage, stage, (CALL,), module, {"part": path}, args, sizes)


def random_input(name: str, shape: torch.Tensor, seed: int, device: torch.device) -> torch.Tensor:
    """Return a random normal tensor that depends on the seed and the name of the input."""
    return random_normal(shape.shape, seed, name, device, shape.dtype)
