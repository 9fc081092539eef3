"""A model of images and text as a target: all that does not depend on the family.

A family brings its configuration, its formulas, and how its vision tower is called.
"""

from __future__ import annotations

import json
import random
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeVar

from costproof.ledger.capture import SymbolDoc
from costproof.ledger.errors import BadInput, CostproofError, Problems
from costproof.ledger.node import Ledger
from costproof.ledger.progress import Progress
from costproof.ledger.workload import AttentionKind, Invocation, TensorSpec, Workload
from costproof.models import settings as common
from costproof.models.decoding import names as decoding
from costproof.models.decoding.build import build, with_numbers
from costproof.models.decoding.decoder import Decoder
from costproof.models.image_text import exports, runs
from costproof.models.image_text.config import TEXT, VISION, ImageTextConfig, is_of
from costproof.models.image_text.inputs import CALL, IMAGES, images_of, with_images
from costproof.models.image_text.places import Anatomy
from costproof.models.image_text.symbols import SYMBOLS
from costproof.models.jobs import Built, ExportJob, Run
from costproof.models.native import Native
from costproof.models.stretch import layers_cut
from costproof.models.target import NamedWorkload, Setting

if TYPE_CHECKING:
    from torch import nn

    from costproof.models.encoding.domain import Domain
    from costproof.models.proof import Proof

QUESTION: Final = 64
PRESETS: Final = (
    NamedWorkload("question", "an image and a question about it", {"text": QUESTION}, default=True),
    NamedWorkload("text-only", "512 text tokens, no image", {"text": 512}),
)
MOST_IMAGES: Final = 64
"""Above this a mistake is likelier than a wish."""

C = TypeVar("C", bound=ImageTextConfig)


class ImageTextTarget(Native[C]):
    """A model of images and text of transformers with one configuration."""

    __slots__ = ()
    attentions: ClassVar[tuple[AttentionKind, ...]] = ("sdpa", "eager")
    """Implementations of attention that the class of transformers has, the usual one first."""

    @abstractmethod
    def formulas(self, workload: Workload) -> Ledger:
        """The analytic ledger in symbols: ``exprs`` filled, ``costs`` empty."""

    @property
    @abstractmethod
    def anatomy(self) -> Anatomy:
        """Where the parts of the model sit."""

    @abstractmethod
    def image_tokens(self, workload: Workload) -> int:
        """Places in a prompt that an image takes."""

    @abstractmethod
    def seen(self, workload: Workload, count: int) -> tuple[Invocation, ...]:
        """The calls of the towers on so many images; the prefill has the symbols of the first as well."""

    @abstractmethod
    def tower_jobs(self, model: nn.Module, workload: Workload, count: int | None) -> tuple[ExportJob, ...]:
        """The towers alone on so many images; ``None``: on any number, if their classes allow it."""

    @abstractmethod
    def pictures(self, workload: Workload, count: int) -> dict[str, Any]:
        """Keyword arguments of the prefill with so many images, on meta."""

    @abstractmethod
    def least_layers(self) -> int:
        """Layers that the tower needs."""

    def drawn_pictures(self, model: nn.Module, workload: Workload, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The same with numbers, seeded.

        Args:
            kwargs: all arguments of the prefill, ids with numbers among them.
        """
        return {
            name: runs.drawn(name, shape, self.options.seed, kwargs["input_ids"].device)
            for name, shape in self.pictures(workload, workload.batch * images_of(workload)).items()
        }

    @classmethod
    @abstractmethod
    def drawn(cls, p: Mapping[str, int], rng: random.Random) -> tuple[ImageTextTarget[Any], dict[str, bool]]:
        """A random small configuration for a proof; and of the things that are not numbers, whether it has them.

        Args:
            p: values of the parameters that :meth:`domain` names.
            rng: for what is not a size.
        """

    def native(self) -> tuple[Any, Any]:
        """The class of transformers, and a configuration object of it."""
        import transformers

        config = transformers.CONFIG_MAPPING[self.config.model_type](**self.config.native())
        return getattr(transformers, self.config.architecture), config

    @classmethod
    def from_normalised(cls, text: str) -> Self:
        """The configuration that a certificate holds."""
        data, usual = json.loads(text), cls.default()
        nested = {key: type(getattr(usual.config, key))(**data[key]) for key in ("vision", "text")}
        config: Any = type(usual.config)(**{**data, **nested})
        return replace(usual, config=config)

    @classmethod
    def describes(cls, architecture: str) -> bool:
        """Whether the formulas describe this class of transformers."""
        return architecture == type(cls.default().config).architecture

    @classmethod
    def serves(cls, config: Mapping[str, Any]) -> bool:
        """Whether the parts of a configuration are of the kinds that the formulas describe, and so is the cache."""
        usual, text = cls.default().config, config.get(TEXT)
        kinds = all(is_of(config, key, part) for key, part in ((VISION, usual.vision), (TEXT, usual.text)))
        return kinds and usual.text.caches_as(text if isinstance(text, dict) else {})

    @classmethod
    def settings(cls) -> tuple[Setting, ...]:
        """What can be chosen about a run beside the preset."""
        return (
            Setting(IMAGES, "Images in each prompt; 0: text alone."),
            replace(common.TEXT_TOKENS, what="Tokens of the prompt beside the image tokens."),
            Setting("seq_len", "Tokens of the whole prompt, instead of --text-tokens."),
            common.NEW_TOKENS,
            common.BATCH,
            common.DTYPE,
            replace(common.ATTENTION, choices=cls.attentions),
            common.LOGITS,
        )

    @staticmethod
    def presets() -> tuple[NamedWorkload, ...]:
        """With an image, and without."""
        return PRESETS

    def symbol_docs(self) -> dict[str, SymbolDoc]:
        """How the symbols of its formulas are typeset and what they mean."""
        return SYMBOLS

    def first_layers(self, layers: int) -> tuple[C, dict[str, str]]:
        """The first layers of the decoder, and of the tower as many; all else as it was."""
        vision, text = self.config.vision, self.config.text
        _, words = layers_cut("decoder", layers, 1, text.layers)
        cut = {"decoder layers": words} if words else {}
        seen = min(max(layers, self.least_layers()), vision.layers)
        if seen < vision.layers:
            cut |= {"vision layers": f"{seen} of {vision.layers}"}
        return replace(self.config, text=replace(text, layers=layers), vision=replace(vision, layers=seen)), cut

    def length(self, workload: Workload) -> int:
        """Tokens of a prompt, those of its images among them."""
        return images_of(workload) * self.image_tokens(workload) + workload.text_tokens

    def with_own(self, workload: Workload, given: dict[str, Any], found: list[CostproofError]) -> Workload:
        """The workload with settings of its images, taken out of ``given``; what is wrong goes to ``found``."""
        count = given.pop(IMAGES, None)
        if count is None:
            return workload
        if 0 <= count <= MOST_IMAGES:
            return with_images(workload, count)
        what, expected = "the number of images is out of range", f"0 to {MOST_IMAGES}"
        found.append(BadInput(what, where="--images", expected=expected, got=count))
        return workload

    def workload(self, preset: str | None = None, **given: Any) -> Workload:
        """A preset with changes."""
        named = {p.name: p for p in PRESETS}
        chosen = named[common.known_preset(preset or PRESETS[0].name, named)]
        problems: list[CostproofError] = []
        plain = with_images(Workload(chosen.name, chosen.tokens["text"], dtype=self.dtype), int(chosen.default))
        plain = self.with_own(plain, {}, problems)
        started = self.with_own(plain, given, problems)
        length = given.pop("seq_len", None)
        if length is not None and not problems:
            if given.get("text_tokens") is not None:
                problems.append(
                    BadInput("text tokens and sequence length exclude each other", where="--text-tokens, --seq-len")
                )
            places = images_of(started) * self.image_tokens(started)
            if length <= places:
                what = "the sequence is too short for its image tokens" if places else "a prompt needs a token"
                problems.append(BadInput(what, where="--seq-len", expected=f"more than {places}", got=length))
            given["text_tokens"] = max(1, length - places)
        made = common.changed(started, given, self.settings(), problems)
        if problems:
            raise Problems("the workload cannot be run", problems)
        self.check(made)
        return made if made == plain else replace(made, name="custom")

    def problems(self, workload: Workload) -> list[CostproofError]:
        """Everything that keeps the model from running a workload."""
        text = self.config.text
        found = common.problems(workload, text.head_dim) + common.device_problems(workload, self.options)
        return found or common.too_long(workload, self.length(workload), text.max_positions)

    def invocations(self, workload: Workload) -> tuple[Invocation, ...]:
        """Towers, prefill and decode, with the values of their symbols."""
        prefill, decode = decoding.invocations(replace(workload, text_tokens=self.length(workload)))
        count = workload.batch * images_of(workload)
        if not count:
            return prefill, decode
        towers = self.seen(workload, count)
        features = TensorSpec((count, self.image_tokens(workload), self.config.text.hidden), workload.dtype)
        prompt = replace(prefill, symbols=towers[0].symbols | prefill.symbols, inputs=(*prefill.inputs, features))
        return (*towers, prompt, decode)

    @property
    def decoder(self) -> Decoder:
        """How the class of transformers is called."""
        return self.anatomy.called(CALL)

    def build(self, workload: Workload) -> nn.Module:
        """The model on the meta device."""
        base, config = self.native()
        return build(
            base,
            config,
            dtype=workload.dtype,
            attention=workload.attention,
            replaced=exports.unchecked(),
            inner=self.anatomy.inner,
        )

    def build_run(self, workload: Workload, progress: Progress) -> Built:
        """The model that the dynamic source runs, on meta or with numbers.

        Raises:
            Problems: the checkpoint does not fit.
            Incomplete: the device is not there.
        """
        return with_numbers(self.build(workload), workload, self.decoder, self.options, progress)

    def stages_of(self, path: str, workload: Workload) -> tuple[str, ...]:
        """The stages that a module works in, in the order of the run."""
        return self.anatomy.towers.stages(path, workload.new_tokens)

    def export_jobs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """Tower and projector on any number of images, the features put into the prompt, prefill and step."""
        return exports.export_jobs(self, model, workload)

    def stage_runs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """The same at the sizes of the workload, and some decode steps."""
        return exports.stage_runs(self, model, workload)

    def runs(self, model: nn.Module, workload: Workload) -> tuple[Run, ...]:
        """The prompt with its images, then decode steps."""
        return runs.runs(self, model, workload)

    @staticmethod
    def proof_settings() -> tuple[Setting, ...]:
        """None: a run has no sizes to enumerate."""
        return ()

    def proof(self, samples: int, seed: int) -> Proof:
        """All stages with their sizes as symbols, and random configurations."""
        from costproof.models.encoding.domain import proof

        return proof(self, samples, seed)

    def domain(self) -> Domain:
        """One image in a prompt, several, none; random sizes."""
        from costproof.models.image_text.domain import domain

        return domain(self.workload())

    def drawn_run(self, p: Mapping[str, int], workload: Workload) -> Workload:
        """The prompt of a draw, with its images."""
        return with_images(self.drawn_text(p, workload), p["images"])

    @staticmethod
    def drawn_text(p: Mapping[str, int], workload: Workload) -> Workload:
        """Its text, and whether all of its positions get logits."""
        return replace(workload, text_tokens=p["text_tokens"], logits="last" if p["last"] else "all")
