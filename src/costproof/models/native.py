"""Define base classes of targets with one configuration, and of targets that are a class of transformers.

The storage metrics of a checkpoint are added to the formulas of a target.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, Self, TypeVar

from costproof.analytic.storage import Storage, largest_quantised, with_storage
from costproof.analytic.symbols import MESH_SYMBOLS
from costproof.configs.config import Config, NativeConfig, changes, keys_of, put, with_keys
from costproof.ledger.attributes import attribute
from costproof.ledger.capture import SymbolDoc
from costproof.ledger.errors import BadInput, CostproofError, Problems, check_recounts
from costproof.ledger.files import read_configuration
from costproof.ledger.metrics import Conventions
from costproof.ledger.node import Ledger
from costproof.ledger.progress import Progress
from costproof.ledger.run import RunOptions
from costproof.ledger.workload import NOT_COMPARED, WHOLE_FILE, AttentionKind, Dtype, ExpertKernel, TargetInfo, Workload
from costproof.models import settings as common
from costproof.models.decoding.build import build, with_numbers
from costproof.models.decoding.decoder import Decoder
from costproof.models.decoding.plans import plan_recounts
from costproof.models.reader_check import ConfigFile, check_reader
from costproof.models.specs import Built
from costproof.models.target import NamedWorkload, Setting
from costproof.storage.scheme import PLAIN as NOT_QUANTISED
from costproof.storage.scheme import CheckpointLayout, Scheme, UnknownFormat
from costproof.weights.stored import NEXT_TOKEN, PLAIN, Stored, stored

if TYPE_CHECKING:
    from torch import nn

    from costproof.models.proof import Proof

C = TypeVar("C", bound=Config)


@dataclass(frozen=True, slots=True)
class Configured(ABC, Generic[C]):
    """Base class of targets with one configuration; instances can be pickled."""

    config: C
    name: str
    options: RunOptions = field(default_factory=RunOptions)
    cut: tuple[tuple[str, str], ...] = ()
    """The truncation by ``options.layers``; ``config`` is already truncated."""
    whole: C | None = None
    """Configuration before truncation; ``None`` if it was not truncated."""
    published: C | None = None
    """Configuration to which reported differences refer; ``None`` for the default of the family."""
    is_known: bool = True
    """Whether differences from ``published`` are reported; false for files that may be published configurations."""
    stored: Stored = PLAIN
    """Storage format of the weights in the checkpoint of ``config``."""
    stages: ClassVar[tuple[str, ...]]

    @abstractmethod
    def first_layers(self, layers: int) -> tuple[C, dict[str, str]]:
        """Return the configuration truncated to its first layers, and the cuts by stack, such as ``2 of 12``.

        Raises:
            BadInput: the model has no such number of layers, or cannot be cut so.
        """

    @abstractmethod
    def problems(self, workload: Workload) -> list[CostproofError]:
        """Return an error for each reason why the model cannot run a workload."""

    def with_keys(self, changes: Mapping[str, Any]) -> Self:
        """Return the same model with other values for some configuration keys.

        Raises:
            Problems: as :func:`~costproof.configs.config.with_keys`.
        """
        return replace(self, config=with_keys(self.config, changes))

    def quantised_as(self, other: Configured[Any]) -> Self:
        """Return the same model with another checkpoint's formats; unchanged if that is not quantised."""
        if "weights" not in dict(other.stored.quantised):
            return self
        formats = other.stored.quantised, other.stored.described
        return replace(self, stored=replace(self.stored, quantised=formats[0], described=formats[1]))

    def normalised(self) -> str:
        """Return the configuration as JSON text, the form that certificates contain."""
        return json.dumps(self.config.normalised(), sort_keys=True)

    def info(self) -> TargetInfo:
        """Return the target as plain data."""
        return TargetInfo(
            name=self.name,
            implementation="native",
            config_hash=self.config.config_hash(),
            symbols=self.config.symbols(),
            stages=self.stages,
            waived=dict(self.config.waived) | self.uncompared(),
            cut=dict(self.cut),
            changed=changes(self.whole or self.config, self.published or type(self.config)())
            if self.is_known
            else None,
            config=keys_of(self.config),
            quantised=dict(self.stored.quantised),
        )

    def uncompared(self) -> dict[str, str]:
        """Return the keys of the file that were not compared with transformers' reading, with the reason.

        Empty if all of them were.
        """
        return {}

    @property
    def dtype(self) -> Dtype:
        """Return the default dtype of a run: the configuration's, or bfloat16 if it names none."""
        return self.stored.dtype or "bfloat16"

    def build_stored(self) -> nn.Module:
        """Return the model on the meta device, in the dtype of its checkpoint's unquantised tensors."""
        model: Any = self
        made: nn.Module = model.build(model.workload())
        return made

    def with_options(self, options: RunOptions) -> Self:
        """Return the same model with other run options; with ``layers``, truncated by :meth:`first_layers`."""
        options.check()
        if options.layers is None or options.layers == self.options.layers:
            return replace(self, options=options)
        if self.cut:
            raise BadInput(
                "the model is already cut by --layers", where="--layers", expected=f"{self.options.layers}, as before",
                got=options.layers, fix="start from the whole model",
            )  # fmt: skip
        small, cut = self.first_layers(options.layers)
        return replace(self, config=small, options=options, cut=tuple(cut.items()), whole=self.config)

    def uncut(self) -> Self:
        """Return the same target with all layers."""
        return replace(self, config=self.whole or self.config, options=RunOptions(), cut=(), whole=None)

    def conventions(self, workload: Workload) -> Conventions:
        """Return the counting conventions of this workload's numbers."""
        return Conventions(
            logits=workload.logits, expert_kernel=workload.experts, attention=workload.attention, dtype=workload.dtype
        )

    def check(self, workload: Workload) -> None:
        """Check that the model can run the workload."""
        problems = self.problems(workload)
        if problems:
            raise Problems("the workload cannot be run", problems)


N = TypeVar("N", bound=NativeConfig)


@dataclass(frozen=True, slots=True)
class Native(Configured[N]):
    """Base class of targets: a class of transformers in a given configuration."""

    file: ConfigFile | None = None
    """File from which the configuration was read, if any."""
    model_types: ClassVar[tuple[str, ...]]
    """Values of ``model_type`` that the family reads."""
    attentions: ClassVar[tuple[AttentionKind, ...]] = ("sdpa", "eager")
    """Attention implementations of the class in transformers, the default first."""
    named: ClassVar[tuple[NamedWorkload, ...]]
    """Presets, one of which is the default."""
    notation: ClassVar[dict[str, SymbolDoc]]
    """Notation and meaning of each symbol in the formulas."""
    checkpoint_layout: ClassVar[CheckpointLayout] = CheckpointLayout()
    """Differences between the modules of the class and the names of its checkpoints."""
    released: ClassVar[Stored] = Stored()
    """Storage format of the weights in the published checkpoint of the default configuration."""

    @classmethod
    def default(cls) -> Self:
        """Return the target with the published configuration."""
        return cls(stored=cls.released)  # type: ignore[call-arg]

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Return the target of a ``config.json``; a published configuration is recognised."""
        usual = cls.default()
        data = read_configuration(path)
        config = type(usual.config).of(data, path)
        published = next((p for p in usual.every_published() if p.normalised() == config.normalised()), None)
        known = published is not None
        file = ConfigFile.of(data, config, path)
        return replace(usual, config=config, published=published, is_known=known, stored=stored(data, path), file=file)

    def uncompared(self) -> dict[str, str]:
        return {} if self.file is None or find_spec("transformers") else {WHOLE_FILE: NOT_COMPARED}

    def every_published(self) -> tuple[N, ...]:
        """Return the default configuration of the family and those of its known models."""
        from costproof.models.known import KNOWN

        return (self.config, *(put(self.config, known.config) for known in KNOWN if known.family == self.name))

    @classmethod
    def from_normalised(cls, text: str) -> Self:
        """Return the target with a normalised configuration, as certificates contain it."""
        usual = cls.default()
        return replace(usual, config=type(usual.config)(**json.loads(text)))

    @classmethod
    def describes(cls, architecture: str) -> bool:
        """Return whether the formulas describe this class of transformers."""
        config: Any = type(cls.default().config)
        return architecture in getattr(config, "architectures", (config.architecture,))

    @classmethod
    def presets(cls) -> tuple[NamedWorkload, ...]:
        """Return the presets."""
        return cls.named

    @classmethod
    @abstractmethod
    def settings(cls) -> tuple[Setting, ...]:
        """Return the settings of a run, other than the preset."""

    def symbol_docs(self) -> dict[str, SymbolDoc]:
        """Return the notation and the meaning of each symbol in the formulas."""
        return self.notation

    def default_workload(self, name: str) -> Workload:
        """Return the workload of a preset, before the default dtype and attention are set."""
        return Workload(name, next(p.tokens["text"] for p in self.named if p.name == name))

    def with_input(self, workload: Workload, given: dict[str, Any], found: list[CostproofError]) -> Workload:
        """Move the input settings from ``given`` to the workload; append errors to ``found``."""
        return workload

    def workload(self, preset: str | None = None, **given: Any) -> Workload:
        """Return the workload of a preset with changed settings.

        Raises:
            Problems: all settings that are unknown, invalid or beyond what the model can run.
        """
        default = next(p.name for p in self.named if p.default)
        plain = self.default_workload(common.known_preset(preset or default, [p.name for p in self.named]))
        plain = replace(plain, dtype=self.dtype, attention=self.attentions[0])
        problems: list[CostproofError] = []
        asked = dict(given)
        made = common.changed(self.with_input(plain, given, problems), given, self.settings(), problems)
        if problems:
            raise Problems("the workload cannot be run", problems)
        check_recounts(plan_recounts(asked, made))
        self.check(made)
        return made if made.on_one_device == plain else replace(made, name="custom")

    def build_stored(self) -> nn.Module:
        """Return the model on the meta device in the dtype of its checkpoint, for any length of a run."""
        usual = self.default_workload(next(preset.name for preset in self.named if preset.default))
        model = self.build(replace(usual, dtype=self.dtype, attention=self.attentions[0]))
        for key, value in self.stored.stated or ():
            if key == NEXT_TOKEN:  # which no formula reads, so that the class has its default
                setattr(attribute(model, "config"), key, value)
        return model

    @property
    def decoder(self) -> Decoder:
        """Return the calling convention of the decoder: module paths, masks and cache."""
        return Decoder()

    def native_arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of the configuration class; check first that transformers reads the file alike.

        Raises:
            Incomplete: as :func:`~costproof.models.reader_check.check_reader`.
        """
        if self.file is not None:
            check_reader(self.file)
        return self.config.native()

    def native(self) -> tuple[Any, Any]:
        """Return the model class in transformers, and a configuration object for it."""
        import transformers

        config: Any = self.config
        return getattr(transformers, config.architecture), transformers.CONFIG_MAPPING[config.model_type](
            **self.native_arguments()
        )

    def build(self, workload: Workload) -> nn.Module:
        """Return the model on the meta device, with grouped GEMMs in place of a data-dependent loop over experts."""
        return self.built(workload, "grouped_mm" if workload.experts == "eager" else workload.experts)

    def built(self, workload: Workload, experts: ExpertKernel) -> nn.Module:
        """Return the model on the meta device with the given implementation of routed experts, if it has experts."""
        return build(*self.native(), dtype=workload.dtype, attention=workload.attention)

    def build_run(self, workload: Workload, progress: Progress) -> Built:
        """Return the model that the dynamic source runs, on the meta device or with weights.

        Raises:
            Problems: the checkpoint does not fit.
            Incomplete: the device, or the kernels of FlashAttention, are missing.
        """
        return with_numbers(self.built(workload, workload.experts), workload, self.decoder, self.options, progress)

    def stages_of(self, path: str, workload: Workload) -> tuple[str, ...]:
        """Return the stages in which a module runs, in order: by default all of them."""
        return self.stages

    @staticmethod
    def proof_settings() -> tuple[Setting, ...]:
        """Return the settings of a proof: none, since no sizes are enumerated."""
        return ()

    def proof(self, samples: int, seed: int) -> Proof:
        """Return the proof of all stages in symbolic sizes and for random configurations."""
        from costproof.models.encoding.domain import proof

        target: Any = self
        return proof(target, samples, seed)


class GivesFormulas(Protocol):
    """Protocol of targets that have closed formulas."""

    def formulas(self, workload: Workload) -> Ledger:
        """Return the symbolic analytic ledger."""


STORED_IN_PARTS: Final = "stored and resident bytes are not counted of quantised parameters that ranks store in parts"
NOT_KNOWN: Final = "stored bytes are not known"
"""Start of the note on a checkpoint whose format has no known layout."""


def stored_formulas(target: GivesFormulas, workload: Workload) -> Ledger:
    """Return the symbolic analytic ledger, with storage metrics if the checkpoint's format is known."""
    of = attribute(target, "model", target)
    ledger = target.formulas(workload)
    if not isinstance(of, Configured):  # as the static source: in the dtype of the run
        return with_storage(ledger, Storage(NOT_QUANTISED, workload.dtype, CheckpointLayout(), {}))
    try:
        scheme = of.stored.scheme(str(attribute(of.config, "model_type", "")))
    except UnknownFormat as error:
        return with_storage(ledger, None, f"{NOT_KNOWN}: {error.name}: {error.why}")
    if workload.mesh.fsdp > 1 and scheme.rules:
        return with_storage(ledger, None, STORED_IN_PARTS)
    return with_storage(ledger, _storage(of, workload, scheme))


def largest_matrix(target: GivesFormulas, workload: Workload) -> int | None:
    """Return the number of weights of the largest quantised matrix, on a rank that of its part of each matrix.

    ``None``: the format of the checkpoint is not known.
    """
    of = attribute(target, "model", target)
    if not isinstance(of, Configured):
        return None
    try:
        scheme = of.stored.scheme(str(attribute(of.config, "model_type", "")))
        return largest_quantised(target.formulas(workload), _storage(of, workload, scheme))
    except UnknownFormat:
        return None


def _storage(of: Configured[Any], workload: Workload, scheme: Scheme) -> Storage:
    """Return how a target's modules are stored, with the sizes of the counted rank."""
    layout = attribute(of, "checkpoint_layout", CheckpointLayout())
    sizes = of.config.symbols()
    if not workload.mesh.one:  # of a rank
        calls: Any = attribute(of, "invocations")
        sizes |= {name: size for name, size in calls(workload)[0].symbols.items() if name in MESH_SYMBOLS}
    return Storage(scheme, of.dtype, layout, sizes, in_parts=workload.mesh.fsdp > 1)
