"""Define the target for any module without formulas; its stages are discovered, its inputs given or derived."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.attributes import attribute, has_attribute
from costproof.ledger.errors import BadInput, CostproofError, Problems
from costproof.ledger.metrics import Conventions
from costproof.ledger.plural import plural
from costproof.ledger.progress import Progress
from costproof.ledger.run import RunOptions
from costproof.ledger.workload import (
    ATTRIBUTES,
    PAST,
    ROWS,
    SIZE_FROM,
    AttentionKind,
    Dtype,
    Invocation,
    ModuleKinds,
    SettingValue,
    TargetInfo,
    Workload,
)
from costproof.models import settings as common
from costproof.models.decoding.decoder import Decoder
from costproof.models.decoding.names import STAGES
from costproof.models.encoding import STAGE
from costproof.models.generic.caches import OwnCache, is_cache
from costproof.models.generic.encoder_decoder import TWO_STAGES, TwoStacks, of_encoder
from costproof.models.generic.factories import Cuttable, Given, Made, ModuleMaker
from costproof.models.generic.inputs import Inputs, example_inputs, other_dtypes
from costproof.models.generic.makers import SIDE, Case, own_side
from costproof.models.generic.memo import (
    TEXT_ALONE,
    USUAL,
    Choice,
    attention_of,
    beyond_of,
    cache_of,
    case_of,
    choice_of,
    dtype_of,
    dtypes_of,
    fingerprint_of,
    first_layers_of,
    first_run_of,
    growth_of,
    made_of,
    places_of,
    side_of,
    too_short,
    towers_of,
    why_one_stage,
)
from costproof.models.generic.stages import Cached, EachRow, StagePlan, Whole, longest
from costproof.models.generic.towers import IDS, NONE, Towers
from costproof.models.generic.truncation import CutModel
from costproof.models.specs import BUFFER, Built, ExportJob, Run, Truncation
from costproof.models.target import NamedWorkload, Setting
from costproof.opgraph.mask_rows import HIDDEN
from costproof.snapshots.copies import (
    attribute_tensors,
    inputs_on_meta,
    materialize,
    on_meta,
    runs_on_meta,
    unwrapped,
    with_values,
)
from costproof.snapshots.described import arguments, module_kinds, shapes
from costproof.weights.stored import ImageSize, Stored, unfit

if TYPE_CHECKING:
    import torch
    from torch import nn

SETTINGS: Final = (
    common.BATCH,
    common.SEQ_LEN,
    common.PAST,
    common.ROWS,
    common.NEW_TOKENS,
    Setting("image_size", "Pixels per side of an image; 0 for text only."),
    common.DTYPE,
    common.ATTENTION,
    Setting("input", "An input by shape; may be given several times.", "list", metavar="NAME=SHAPE[:DTYPE]"),
)
"""Settings that at least one generic model accepts."""

EXAMPLE: Final = {"batch": 3, "seq_len": 37, "new_tokens": 1}
"""Example sizes for derived formulas, which are above 1 and pairwise different."""


@dataclass(frozen=True, slots=True)
class GenericTarget:
    """Target for a module without closed formulas, which is exported and run as it is."""

    name: str
    maker: ModuleMaker
    options: RunOptions = field(default_factory=RunOptions)
    cut: CutModel | None = None
    """Description of the truncation by ``options.layers``; the module of ``maker`` is already truncated."""
    whole: ModuleMaker | None = None
    """Factory of the whole module, if ``maker`` builds a truncated one."""

    def info(self) -> TargetInfo:
        """Return the target as plain data."""
        made, numbers = made_of(self.maker, None, None), dict(self.maker.numbers)
        return TargetInfo(
            self.name,
            self.maker.what,
            fingerprint_of(self.maker),
            numbers,
            self._stages(made),
            dict(made.waived),
            cut=dict(self.cut.cut) if self.cut else {},
            quantised=dict(self.maker.stored.quantised),
            dtypes=() if "dtype" in self.maker.chooses else dtypes_of(made.module),
        )

    def module_kinds(self) -> ModuleKinds:
        return module_kinds(made_of(self.maker, None, None).module)

    @staticmethod
    def settings() -> tuple[Setting, ...]:
        """Return the settings that at least one model accepts."""
        return SETTINGS

    @staticmethod
    def presets() -> tuple[NamedWorkload, ...]:
        """Return no presets."""
        return ()

    def workload(self, preset: str | None = None, **settings: Any) -> Workload:
        """Return the default workload with changed settings: batch 1, and for text, 512 tokens and one new token.

        Where the class loops over the tokens, the default prompt is as long as is traced within a minute.

        If images or sounds fill 512 tokens or more of a prompt, the prompt is 512 tokens longer than they are.
        """
        given = {name: value for name, value in settings.items() if value is not None}
        if preset is not None:
            raise BadInput(
                "this model has no presets", where="--preset", expected="no preset", got=preset,
                fix="set the workload by options, such as --batch or --seq-len",
            )  # fmt: skip
        dtype, attention = (given.get(name) if name in self.maker.chooses else None for name in ("dtype", "attention"))
        made = made_of(self.maker, dtype, attention)
        if isinstance(self.maker, Cuttable):
            self.maker.check_depth(made.module)
        most = longest(made.module)
        growth = growth_of(self.maker, dtype, attention)
        images = None if "image_size" in given or made.inputs is not None else self._images(made)
        filled = self._filled(made, dtype, attention, images.side if images else given.get("image_size"))
        usual = USUAL + (filled if filled >= USUAL else 0) if growth is None else max(growth.longest(), filled)
        inputs: dict[str, SettingValue] = {k: given[k] for k in ("image_size", "input") if k in given}
        inputs |= {"image_size": images.side, SIZE_FROM: images.where} if images else {}
        inputs |= {PAST: given[PAST]} if given.get(PAST) else {}
        if ROWS in given:
            rows = common.rows_of(str(given[ROWS]), "all")
            inputs[ROWS] = ",".join(row.text for row in rows)
            given = {"seq_len": sum(row.count * row.new for row in rows), "new_tokens": 0, **given}
        plain = Workload(
            name="usual" if not given else "custom",
            text_tokens=given.get("seq_len", usual if most is None else min(usual, most)),
            new_tokens=given.get("new_tokens", 0),
            batch=given.get("batch", 1),
            dtype=dtype or dtype_of(made.module, made.inputs),
            attention=attention or attention_of(made.module),
            inputs=inputs,
        )
        takes = self._takes(plain)
        if images and "image_size" not in takes:
            plain = replace(plain, inputs={k: v for k, v in inputs.items() if k in given})
        wrong = [name for name in given if name not in takes]
        if wrong:
            where = ", ".join("--" + name.replace("_", "-") for name in wrong)
            expected = ", ".join("--" + s.name.replace("_", "-") for s in SETTINGS if s.name in takes) or "no setting"
            raise BadInput("this setting has no effect on this model", where=where, expected=expected)
        if "new_tokens" in takes:
            steps = given.get("new_tokens", 1)
            left = plain.text_tokens if most is None else most - steps - plain.past
            room = plain.text_tokens if "seq_len" in given else min(plain.text_tokens, left)
            plain = replace(plain, new_tokens=steps, text_tokens=room)
        if "seq_len" not in takes:
            plain = replace(plain, text_tokens=0)
        self.check(plain)
        if images and "image_size" in takes:
            self._check_size(made, plain, images)
        found = self._inputs(made, plain)
        if made.inputs is not None:
            plain = replace(plain, batch=found.values.get("B") or 1)
        what = "" if "new_tokens" in takes else ", ".join(_titles(found.args))
        what = "each row a forward of its own" if plain.rows else what
        return replace(plain, what=what, arguments=self._arguments(plain, found.args))

    def _arguments(self, workload: Workload, args: Mapping[str, Any]) -> dict[str, str]:
        """Return descriptions of the first stage's arguments; of a batch of unequal rows, those of each forward."""
        if not workload.rows:
            return shapes(args)
        made = made_of(self.maker, workload.dtype, workload.attention)
        rows = (self._inputs(made, workload.of_row(row)).args for row in workload.rows)
        return {f"row{i}.{name}": text for i, own in enumerate(rows, 1) for name, text in shapes(own).items()}

    def _images(self, made: Made) -> ImageSize | None:
        """Return the image size that the model's processor produces, if the configuration does not state a size."""
        found = self.maker.stored
        if found.pixels is None or own_side(attribute(made.module, "config", None)) is not None:
            return found.images
        return found.pixels.fit(SIDE)

    def _check_size(self, made: Made, workload: Workload, images: ImageSize) -> None:
        """Check that the model runs on images of the processor's size, if it runs on meta at all."""
        own = replace(workload, inputs={k: v for k, v in workload.inputs.items() if k == "input"})
        sized, usual = (self._inputs(made, run).args for run in (workload, own))
        if runs_on_meta(made.module, sized) is None and runs_on_meta(made.module, usual) is not None:
            raise unfit(images, "a size that the class runs on, as that of the configuration", self.name)

    @property
    def stored(self) -> Stored:
        return self.maker.stored

    @property
    def dtype(self) -> Dtype | None:
        """Return the dtype that the configuration names, or ``None``."""
        return self.maker.stored.dtype

    def build_stored(self) -> nn.Module:
        """Return the module in the dtype of its checkpoint's unquantised tensors; no inputs are created."""
        return made_of(self.maker, None, None).module

    def with_values(self, workload: Workload) -> Workload:
        """Return the workload with a record of the values of the user's input tensors.

        The values are reported even if a run on meta ignores them.
        """
        made = made_of(self.maker, workload.dtype, workload.attention)
        if workload.rows:  # token ids, which are not given
            return workload
        given = _with_numbers(self._inputs(made, workload).args, made.inputs or {})
        return replace(workload, arguments=arguments(given))

    def conventions(self, workload: Workload) -> Conventions:
        """Return the default conventions."""
        return Conventions(attention=workload.attention, dtype=workload.dtype)

    def check(self, workload: Workload) -> None:
        """Check the sizes of a workload, and that it does not exceed the model's maximum length."""
        found: list[CostproofError] = []
        for what, option, value, least in (
            ("a batch has at least one element", "--batch", workload.batch, 1),
            ("too few tokens", "--seq-len", workload.text_tokens, 0),
            ("too few new tokens", "--new-tokens", workload.new_tokens, 0),
            ("too few tokens in the cache", "--past", workload.past, 0),
        ):
            if value < least:
                found.append(BadInput(what, where=option, expected=f"at least {least}", got=value))
        if not found:
            made = made_of(self.maker, workload.dtype, workload.attention)
            most = longest(made.module)
            each = [workload.of_row(row) for row in workload.rows] or [workload]
            if workload.rows:
                found += common.row_problems(workload, most or max(run.context for run in each))
            else:
                found += common.too_long(workload, workload.text_tokens, most) if most else []
            filled = self._filled(made, workload.dtype, workload.attention, side_of(workload))
            found += [] if found else too_short(workload, filled)
            growth = growth_of(self.maker, workload.dtype, workload.attention)
            found += [] if growth is None else [problem for run in each for problem in growth.problems(run)]
            plan = None if found else self._plan(workload)
            found += plan.problems() if isinstance(plan, Cached) else []
        if found:
            raise Problems("the workload cannot be run", found)

    def invocations(self, workload: Workload) -> tuple[Invocation, ...]:
        """Return the calls of the stages."""
        return self._plan(workload).invocations()

    def build(self, workload: Workload) -> nn.Module:
        """Return a module for the exports: on meta, or with concrete values if the model requires them."""
        return self._built(workload).module

    def export_jobs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """Return the export jobs of all stages."""
        plan = self._plan(workload)
        jobs = (replace(j, elsewhere=not self.options.real) for j in plan.export_jobs(model))
        first, *rest = jobs
        first = replace(
            first, notes=(*self._notes(workload), *first.notes), known=self._known(workload),
            attributes_bytes=self._attributes_bytes(workload),
        )  # fmt: skip
        if isinstance(plan, Whole) and self._has_numbers(workload):
            first = replace(first, real=partial(self._numbered_job, workload))
        return (first, *rest)

    def stages_of(self, path: str, workload: Workload) -> tuple[str, ...]:
        """Return the stages that use a module."""
        plan = self._plan(workload)
        if isinstance(plan, TwoStacks):
            return plan.first.stages_of(path)
        if (tower := self._towers().stage_of(path)) is not None:
            return (tower,)
        if isinstance(plan, EachRow):
            return STAGES[:1]
        if isinstance(plan, Cached):
            return STAGES[:1] if path in plan.decoder.towers else STAGES
        return (STAGE,)

    def derivable(self, stage: str) -> tuple[GenericTarget, Workload, Mapping[str, int]] | None:
        """Return the target at example sizes, none of which is 1, so that every size can be symbolic in an export."""
        takes = self._takes(self.workload())
        return self, self.workload(None, **{k: v for k, v in EXAMPLE.items() if k in takes}), {}

    @property
    def here(self) -> bool:
        """Return whether the module is an object of this process rather than built by a factory."""
        return isinstance(self.maker, Given)

    def with_options(self, options: RunOptions) -> GenericTarget:
        """Return the same module with other run options; ``layers`` truncates it."""
        options.check()
        if options.layers is None or options.layers == self.options.layers:
            return replace(self, options=options)
        if self.cut is not None:
            raise BadInput(
                "the model is already cut by --layers", where="--layers", expected=f"{self.options.layers}, as before",
                got=options.layers, fix="start from the whole model",
            )  # fmt: skip
        if not isinstance(self.maker, Cuttable):
            raise BadInput(
                "--layers needs a model from a configuration, which can be built with fewer layers", where="--layers",
                expected="no --layers", fix="make the module with fewer layers",
            )  # fmt: skip
        maker, cut = first_layers_of(self.maker, options.layers)
        return replace(self, maker=maker, options=options, cut=cut, whole=self.maker) if cut.edits else self

    def stretched(self) -> tuple[Truncation, GenericTarget, Truncation] | None:
        """Return this target's truncation, a target that keeps more layers, and that target's truncation."""
        if self.cut is None or self.options.layers is None or not isinstance(self.whole, Cuttable):
            return None
        maker, cut = first_layers_of(self.whole, self.options.layers, more=True)
        return self.cut.stretch, replace(self, maker=maker, cut=cut, whole=None), cut.stretch

    def uncut(self) -> GenericTarget:
        return replace(self, maker=self.whole or self.maker, options=RunOptions(), cut=None, whole=None)

    def build_run(self, workload: Workload, progress: Progress) -> Built:
        """Return the module for the dynamic source, with random weights for a real run if it was built on meta.

        Raises:
            Incomplete: the device is not available.
        """
        made, attributes_bytes = self._built(workload), self._attributes_bytes(workload)
        if self.options.real and any(p.is_meta for p in made.module.parameters()):
            from costproof.models.decoding.build import with_numbers

            found = with_numbers(made.module, workload, Decoder(), self.options, progress)
            notes = (*self._notes(workload), *found.notes)
            return replace(found, notes=notes, attributes_bytes=attributes_bytes)
        return Built(made.module, self._notes(workload), attributes_bytes)

    def runs(self, model: nn.Module, workload: Workload) -> tuple[Run, ...]:
        """Return one forward, or the prefill and selected decode steps."""
        found = self._plan(workload).runs(model)
        device = next((p.device for p in model.parameters() if not p.is_meta), None)
        if device:
            known = self._known(workload)
            return tuple(replace(run, kwargs=with_values(run.kwargs, device), known=known) for run in found)
        if self.options.real:  # a module without parameters
            return tuple(replace(run, known=self._known(workload)) for run in found)
        if not self._has_numbers(workload):
            return found
        known = self._known(workload)
        return tuple(
            replace(run, real=partial(self._numbered_run, i, workload), known=known) for i, run in enumerate(found)
        )

    def _known(self, workload: Workload) -> Mapping[str, Any]:
        """Return the user's own inputs and tensors of the module, whose values masks and lengths are read from.

        Of the parameters, only those that are frozen and hide scores are masks.
        """
        made = made_of(self.maker, workload.dtype, workload.attention)
        module = made.module
        masks = ((n, p) for n, p in module.named_parameters(remove_duplicate=False) if _is_mask(p))
        held = chain(attribute_tensors(module), module.named_buffers(remove_duplicate=False), masks)
        return {**(made.inputs or {}), **{BUFFER + name: tensor for name, tensor in held}}

    def _has_numbers(self, workload: Workload) -> bool:
        """Return whether the module or its inputs have concrete values, which a run on meta ignores."""
        from torch._subclasses.fake_tensor import FakeTensor
        from torch.utils._pytree import tree_leaves

        made = made_of(self.maker, workload.dtype, workload.attention)
        tensors = [*made.module.parameters(), *made.module.buffers(), *tree_leaves(made.inputs)]
        known = [t for t in tensors if has_attribute(t, "is_meta") and not t.is_meta]
        return not self.options.real and bool(known) and not any(isinstance(t, FakeTensor) for t in known)

    def _numbered(self, workload: Workload) -> tuple[GenericTarget, nn.Module]:
        """Return a CPU version of the target and its module, with the values of the user's tensors."""
        made = made_of(self.maker, workload.dtype, workload.attention)
        return replace(self, options=replace(self.options, device="cpu")), unwrapped(made.module)

    def _numbered_job(self, workload: Workload) -> ExportJob:
        target, module = self._numbered(workload)
        return target.export_jobs(materialize(module), workload)[0]

    def _numbered_run(self, index: int, workload: Workload) -> Run:
        target, module = self._numbered(workload)
        return target._plan(workload).runs(module)[index]

    def _notes(self, workload: Workload) -> tuple[str, ...]:
        """Return notes for the report on the module and its stages."""
        made = made_of(self.maker, workload.dtype, workload.attention)
        whole = made.inputs is None and isinstance(self._plan(workload), Whole)
        why = why_one_stage(self.maker, workload.dtype, workload.attention) if whole else ()
        given = other_dtypes(case_of(made, workload)) if workload.inputs.get("input") and not self.options.real else ()
        growth = growth_of(self.maker, workload.dtype, workload.attention)
        loops = (growth.note(workload),) if growth is not None else ()
        return (*made.notes, *self._beyond(workload), *why, *given, *loops, *_of_modules(made.module))

    def _attributes_bytes(self, workload: Workload) -> int:
        held = _unregistered_bytes(made_of(self.maker, workload.dtype, workload.attention).module)
        return held if held >= _MANY_BYTES else 0

    def _beyond(self, workload: Workload) -> tuple[str, ...]:
        """Return notes on work that a class of transformers does beyond its configuration."""
        if isinstance(self.maker, Given) or not isinstance(self.maker, Cuttable):
            return ()
        return beyond_of(self.maker, workload.dtype, workload.attention)

    def _filled(self, made: Made, dtype: Dtype | None, attention: AttentionKind | None, side: int | None) -> int:
        """Return how many text positions per batch element are placeholders of images or sounds."""
        if made.inputs is not None or side == TEXT_ALONE:
            return 0
        return places_of(self.maker, dtype, attention, side)

    def _built(self, workload: Workload) -> Made:
        """Build the module anew for each source, on the meta device unless the run has values."""
        made = self.maker.make(workload.dtype, workload.attention)
        if self.options.real or all(t.is_meta for t in (*made.module.parameters(), *made.module.buffers())):
            return replace(made, module=unwrapped(made.module))
        return replace(made, module=on_meta(made.module))

    def _plan(self, workload: Workload) -> StagePlan:
        made = made_of(self.maker, workload.dtype, workload.attention)
        cache = cache_of(self.maker, workload.dtype, workload.attention) if made.inputs is None else None
        inputs = self._inputs(made, workload)
        if workload.rows:
            return self._each_row(made, cache, inputs, workload)
        if cache is not None:
            return Cached(workload, cache, inputs, self._towers(workload))
        if made.inputs is None and self._stages(made_of(self.maker, None, None)) == TWO_STAGES:
            first = first_run_of(self.maker, workload.dtype, workload.attention, workload.batch, workload.text_tokens)
            if first is not None:
                return TwoStacks(workload, of_encoder(inputs), first)
        return Whole(inputs, self._towers(workload))

    def _each_row(self, made: Made, cache: Any, inputs: Inputs, workload: Workload) -> EachRow:
        """Return the stage plan of a batch of unequal rows, with one forward per row.

        Raises:
            BadInput: the model has no cache of keys and values, its prompts are more than text, or a row has fewer
                logits than tokens.
        """
        others, fewer = sorted(inputs.args.keys() - {IDS}), [r.text for r in workload.rows if r.logits != r.new]
        what = expected = got = fix = ""
        if not isinstance(cache, OwnCache):
            what = "a batch of unequal rows is counted for decoders with a cache of keys and values"
            expected, got = "no rows", f"a cache in {cache.name} that the model fills itself" if cache else "no cache"
            fix = "count each row as a run of its own"
        elif others:
            what = "a batch of unequal rows is counted only for prompts of text alone"
            expected, got, fix = f"no input but {IDS}", ", ".join(others), "--image-size 0 for text only"
        elif fewer:
            what = "without formulas, the head maps every position of a row"
            expected, got, fix = "rows without /LOGITS, or with /all", ", ".join(fewer[:3]), "leave /LOGITS out"
        if what:
            raise BadInput(what, where=f"--{ROWS}", expected=expected, got=got, fix=fix)
        each = map(workload.of_row, workload.rows)
        return EachRow(tuple(Cached(row, cache, self._inputs(made, row)) for row in each))

    def _stages(self, made: Made) -> tuple[str, ...]:
        """Return the names of the stages, which do not depend on the workload."""
        if made.inputs is not None:
            return (STAGE,)
        beside = self._towers().names
        if cache_of(self.maker, None, None) is not None:
            return (*beside, *STAGES)
        return (*beside, STAGE) if first_run_of(self.maker, None, None, 2, 8) is None else TWO_STAGES

    def _towers(self, workload: Workload | None = None) -> Towers:
        if workload is not None and side_of(workload) == TEXT_ALONE:
            return NONE
        return NONE if made_of(self.maker, None, None).inputs is not None else towers_of(self.maker)

    def _inputs(self, made: Made, workload: Workload) -> Inputs:
        own = made.inputs if made.inputs is None or self.options.real else inputs_on_meta(made.inputs)
        choice = self._choice(made, workload)
        return example_inputs(self._case(made, workload, choice), own, choice.names)

    def _case(self, made: Made, workload: Workload, choice: Choice) -> Case:
        """Return the case for which inputs are created; a text begins with its placeholder tokens."""
        filled = self._filled(made, workload.dtype, workload.attention, side_of(workload)) if choice.placed else 0
        return choice.of(case_of(made, workload), filled)

    def _choice(self, made: Made, workload: Workload) -> Choice:
        if side_of(workload) == TEXT_ALONE and made.inputs is None:
            if IDS not in case_of(made, workload).takes:
                expected = "no --image-size, or the side of an image in pixels"
                raise BadInput(
                    "this model takes no text alone", where="--image-size", expected=expected, got=TEXT_ALONE
                )
            return Choice((IDS,))
        return Choice() if made.inputs is not None else choice_of(self.maker, workload.dtype, workload.attention)

    def _takes(self, workload: Workload) -> set[str]:
        """Return the names of the settings that affect a run of this module."""
        made = made_of(self.maker, workload.dtype, workload.attention)
        plan = self._plan(workload)
        if isinstance(plan, TwoStacks):
            return {*self.maker.chooses, "batch", "new_tokens", *(("seq_len",) if "S" in plan.inputs.values else ())}
        takes = {
            *(("new_tokens", PAST, ROWS) if isinstance(plan, Cached | EachRow) else ("input",)),
            *self.maker.chooses,
        }
        if made.inputs is not None:
            return takes
        choice = choice_of(self.maker, workload.dtype, workload.attention)
        case = self._case(made, workload, choice)
        for name, one, other in (
            ("batch", replace(case, batch=2), replace(case, batch=4)),
            ("seq_len", replace(case, length=8), replace(case, length=16)),
            ("image_size", replace(case, side=64), replace(case, side=128)),
        ):
            first, second = (example_inputs(c, None, choice.names).args for c in (one, other))
            if any(getattr(v, "shape", ()) != getattr(second[n], "shape", ()) for n, v in first.items()):
                takes.add(name)
        return takes


def _titles(args: Mapping[str, Any]) -> Iterator[str]:
    """Yield descriptions of arguments: the token count of a cache, and the shape of any other argument."""
    for name, value in args.items():
        tokens = _cached_tokens(value) if is_cache(value) else None
        if tokens is None:
            yield from (f"{path} {text}" for path, text in shapes({name: value}).items())
        else:
            yield f"{name} of {plural(tokens, 'token')}"


def _cached_tokens(cache: Any) -> int | None:
    """Return the number of tokens in a cache, or ``None`` if its class does not report it."""
    with suppress(Exception):  # of the class of the cache, whatever it raises
        tokens = cache.get_seq_length()
        return tokens if type(tokens) is int else None
    return None


def _of_modules(module: nn.Module) -> tuple[str, ...]:
    """Return notes on modules whose counts are easily misunderstood."""
    from torch import nn

    notes = []
    weights = (n for n, t in (*module.named_parameters(), *module.named_buffers()) if not t.is_floating_point())
    if any("weight" in name.rpartition(".")[2] for name in weights):
        notes.append(
            "weights of integers are counted as the elements that are stored; packed ones stand for more parameters"
        )
    if any(
        isinstance(part, nn.TransformerEncoder) and getattr(part, "use_nested_tensor", False)
        for part in module.modules()
    ):
        notes.append("nn.TransformerEncoder drops rows that a padding mask hides, on its fast path; all are counted")
    if (held := _unregistered_bytes(module)) >= _MANY_BYTES:
        notes.append(f"{ATTRIBUTES}{held:,} B")
    return tuple(notes)


_LARGEST_MASK: Final = 2**22
"""Maximum number of elements of a parameter that is read to see whether it is a mask."""
_MANY_BYTES: Final = 1_000_000


def _unregistered_bytes(module: nn.Module) -> int:
    """Return the memory of tensors that modules hold as plain attributes, also in lists and dicts, in bytes.

    Memory of parameters and buffers is not included.
    """
    registered = {where for t in (*module.parameters(), *module.buffers()) for where, _ in _memory(t)}
    values = [tensor for part in module.modules() for tensor in _tensors_in(vars(part), set())]
    found = dict(where for tensor in values for where in _memory(tensor))
    return sum(size for where, size in found.items() if where not in registered)


def _tensors_in(value: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested dicts, lists, tuples and sets, which may contain themselves."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list | tuple | set) and id(value) not in seen:
        seen.add(id(value))
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(inner, seen)


def _is_mask(parameter: nn.Parameter) -> bool:
    """Return whether a parameter is a mask that is added to scores: it is frozen and hides some of them."""
    if parameter.requires_grad or parameter.is_meta or parameter.dim() < 2 or not parameter.is_floating_point():
        return False
    return parameter.numel() <= _LARGEST_MASK and bool((parameter <= HIDDEN).any())


def _memory(tensor: torch.Tensor) -> Iterator[tuple[int, int]]:
    """Yield (address, bytes) of a tensor's memory; for a sparse tensor, of its indices and values."""
    import torch

    parts: tuple[torch.Tensor, ...] = (tensor,)
    if tensor.layout == torch.sparse_coo:
        parts = tensor._indices(), tensor._values()
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        parts = tensor.crow_indices(), tensor.col_indices(), tensor.values()
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        parts = tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    for part in parts:
        try:
            storage = part.untyped_storage()
            yield int(storage._cdata), storage.nbytes()
        except (NotImplementedError, RuntimeError):  # another layout without a storage
            yield id(part), part.numel() * part.element_size()


def _with_numbers(args: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with the user's values in place of meta tensors of the same shapes."""
    alike = (n for n, value in own.items() if n in args and shapes({n: value}) == shapes({n: args[n]}))
    return {**args, **{name: own[name] for name in alike}}
