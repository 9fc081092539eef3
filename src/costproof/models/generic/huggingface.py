"""Build the class that a Hugging Face configuration names, on meta and without weights."""

from __future__ import annotations

import inspect
import json
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from costproof.configs.guarded_build import bounded, check_depth, check_keys, said_once, unasked
from costproof.configs.known_keys import type_of_class
from costproof.foreign import contained
from costproof.ledger.attributes import attribute, has_attribute
from costproof.ledger.errors import BadInput, Incomplete, did_you_mean, first_line, message_of
from costproof.ledger.files import read_configuration
from costproof.ledger.offline import no_network, offline
from costproof.ledger.workload import NO_CLASS, AttentionKind, Dtype
from costproof.models.generic.factories import DEFAULT_DTYPE, Made
from costproof.models.generic.truncation import CutModel, Edits, edited, first_layers
from costproof.models.generic.unread_keys import unused
from costproof.weights.loading import keep_in_float32
from costproof.weights.stored import PLAIN, Stored, stored, without

if TYPE_CHECKING:
    from torch import nn

HEADS: Final = (
    "ImageTextToText", "SpeechSeq2Seq", "Seq2SeqLM", "MaskedLM", "CausalLM", "ImageClassification",
    "VideoClassification", "CTC", "AudioClassification", "ObjectDetection", "SemanticSegmentation", "DepthEstimation",
    "TimeSeriesPrediction", "SequenceClassification",
)  # fmt: skip
"""Auto classes that are tried in order if a configuration names no class; the base model is the fallback."""
_FLOAT: Final = "__float__"
"""Key in which transformers stores non-finite floats: ``{"__float__": "Infinity"}``."""
_KERNELS: Final = ("attn_implementation", "experts_implementation")
"""Keys that select an implementation, also with leading underscores; the value may be a repository of the Hub."""
_FLASH: Final = "flash_attention_"
"""Prefix of attention implementations whose kernels transformers may fetch from the Hub."""
_TIMM: Final = ("model_args", "backbone_kwargs")
"""Keys whose entries are arguments of ``timm.create_model``."""
_TIMM_WEIGHTS: Final = ("checkpoint_path", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "cache_dir")
"""Arguments of ``timm.create_model`` that load weights, in older versions by pickle."""
_NOT_OPTIONS: Final = ("model_type", "architectures", "auto_map", "transformers_version", "_name_or_path")


@dataclass(frozen=True)
class HuggingFace:
    """Factory of the model class that a configuration names; nothing is downloaded."""

    text: str
    """Configuration as JSON text."""
    where: str
    """Name of the configuration in messages."""
    code: str | None = None
    """Folder of the Python code that ``auto_map`` names, which may run."""
    edits: Edits = ()
    """Configuration values that were changed to truncate the model."""
    stored: Stored = PLAIN
    """Storage format of the weights in the checkpoint."""

    chooses: ClassVar[frozenset[str]] = frozenset({"dtype", "attention"})
    """Options that :meth:`make` can set."""

    @cached_property
    def data(self) -> dict[str, Any]:
        """Return the configuration as JSON data."""
        found: dict[str, Any] = json.loads(self.text)
        return found

    @cached_property
    def name(self) -> str:
        """Return the model type; if transformers has no class for it, the type of the class that the file names."""
        own = None if self.code is not None else type_of_class(self.data)
        return own or str(self.data["model_type"])

    @property
    def what(self) -> str:
        """Return a phrase on the class that is counted."""
        with self._alone():
            return self._chosen()[1]

    @property
    def numbers(self) -> Mapping[str, int]:
        """Return the sizes in the configuration, by key."""
        return _with_head_width(numbers(self.config().to_dict()))

    def first_layers(self, layers: int, *, more: bool = False) -> tuple[HuggingFace, CutModel]:
        """Return the factory of the model truncated to its first layers, and a description of the truncation.

        Args:
            more: with one more layer of each kind that is left out.

        Raises:
            BadInput: as :func:`~costproof.models.generic.truncation.first_layers`.
            Incomplete: the model cannot be built.
        """

        def build(edits: Edits) -> nn.Module:
            return replace(self, edits=edits).make(None, None).module

        found = first_layers(self.config, build, layers, more=more)
        return replace(self, edits=found.edits), found

    def check_depth(self, module: nn.Module) -> None:
        """Check the number of layers, as :func:`~.guarded_build.check_depth` does."""
        check_depth(module, self.data, self.where)

    def config(self) -> Any:
        """Return a new configuration object, with overrides applied.

        Raises:
            BadInput: transformers does not know the model type, or refuses a value.
        """
        with self._alone(builds=self.code is not None):
            return edited(self._read(), self.edits)

    @contextmanager
    def _alone(self, *, builds: bool = True) -> Iterator[None]:
        """Block network access and prompts of transformers while the block runs; contain remote code.

        Args:
            builds: whether the block may build models.

        Raises:
            BadInput: the model's own code failed or ended the program.
        """
        import transformers.utils.logging  # which makes its handler

        transformers.utils.logging.get_logger()
        if self.code is None:
            with no_network(), unasked(builds=builds), said_once():
                yield
        else:
            with (
                offline(), unasked(), said_once(),
                contained("the model's own code failed", self.where, root=self.code),
            ):  # fmt: skip
                yield

    def _read(self) -> Any:
        from transformers import AutoConfig

        if self.code is not None:
            config = AutoConfig.from_pretrained(self.code, trust_remote_code=True, local_files_only=True)
            return _usual_attention(config)
        options = _as_built({k: v for k, v in self.data.items() if k not in _NOT_OPTIONS})
        try:
            config = AutoConfig.for_model(self.name, **_with_floats(options))
            config.to_dict()  # a value of another type may be found out only here
            return config
        except (ValueError, KeyError, TypeError) as error:
            from transformers import CONFIG_MAPPING

            raise BadInput(
                "transformers cannot read this configuration",
                where=self.where,
                got=first_line(error),
                fix=did_you_mean(self.name, list(CONFIG_MAPPING)),
            ) from error
        except Exception as error:  # its configurations check themselves, and raise what they like
            if type(error).__name__ == "OfflineModeIsEnabled":
                raise BadInput(
                    "the configuration names a model that would have to be downloaded",
                    where=f"$.backbone in {self.where}" if self.data.get("backbone") else self.where,
                    expected="the configuration of each part in the file itself, such as backbone_config",
                    got=str(self.data.get("backbone") or first_line(error))[:80],
                ) from error
            raise BadInput(
                "transformers refuses this configuration", where=self.where, got=first_line(error)
            ) from error

    def make(self, dtype: Dtype | None, attention: AttentionKind | None) -> Made:
        """Build the model on meta in evaluation mode, with the requested or the default attention.

        Raises:
            BadInput: the class does not have this attention.
            Incomplete: the model cannot be built.
        """
        with self._alone():
            return self._make(dtype, attention)

    def _make(self, dtype: Dtype | None, attention: AttentionKind | None) -> Made:
        notes = tuple(_unfetched(*found) for found in _kernels(self.data))
        try:
            notes = (*self._chosen()[2], *notes)
            module = self._made(dtype, attention)
            return Made(module, notes=notes, waived=self._waived(module))
        except BadInput:
            raise
        except Exception as error:
            if attention is not None and "attn_implementation" in message_of(error):
                # What a model picks for its parts one by one, it may refuse for all of them at once.
                own = self._made(dtype, None)
                if attribute(own.config, "_attn_implementation", None) == attention:
                    return Made(own, notes=notes, waived=self._waived(own))
                raise BadInput(
                    "the model does not support this attention implementation",
                    where="--attention",
                    expected="eager",
                    got=attention,
                ) from error
            raise Incomplete(
                "transformers cannot build this model on meta", where=self.where, got=first_line(error)
            ) from error

    def _waived(self, module: nn.Module) -> dict[str, str]:
        """Return the configuration keys that affect no cost, each with the reason."""
        found = unused(self.config(), self.data, module, self.where)
        return found | ({} if self.name == self.data["model_type"] else {"$.model_type": NO_CLASS})

    def _made(self, dtype: Dtype | None, attention: AttentionKind | None) -> nn.Module:
        import torch

        config, build = self.config(), self._chosen()[0]
        if attention is not None:
            config._attn_implementation = attention
        with torch.device("meta"), bounded(self.data, self.where):
            made: nn.Module = build(config, dtype=getattr(torch, dtype or self.stored.dtype or DEFAULT_DTYPE))
            _make_long_frequencies(made)
            keep_in_float32(made)
        return made.eval()

    def _chosen(self) -> tuple[Any, str, tuple[str, ...]]:
        """Return a function that builds the model, a description of the class, and notes on its choice."""
        named = [str(n) for n in self.data.get("architectures") or ()]
        if self.code is not None:
            build, name = self._remote(named)
            return build, f"{name}, the code of {Path(self.code).name}", (f"ran the code in {Path(self.code).name}",)
        own = _class_named(named[0]) if named else None
        whole = own is not None and _is_of_part(own, type(self.config()))
        if own is not None and has_attribute(own, "_from_config") and not whole:
            notes = (_headless(named[0]),) if _is_base(named[0]) else ()
            return own._from_config, f"{named[0]} of transformers", notes
        kind: Any = type(self.config())
        model = auto_class(kind)
        found = str(model.__name__)
        why = f"transformers has no class {named[0]}" if named else "the configuration names no class"
        why = f"the configuration is that of a part of {named[0]}" if whole else why
        notes = (f"{why}: {found} is counted", *((_headless(found),) if _is_base(found) else ()))
        return model._from_config, f"{found} of transformers", notes

    def _remote(self, named: list[str]) -> tuple[Any, str]:
        """Return the class that the configuration names first in the model's own code, with a description."""
        from transformers.dynamic_module_utils import get_class_from_dynamic_module

        places = {k: v for k, v in self.data["auto_map"].items() if k != "AutoConfig" and isinstance(v, str)}
        place = next((p for p in places.values() if named and p.endswith(f".{named[0]}")), next(iter(places.values())))
        made = get_class_from_dynamic_module(place, str(self.code), local_files_only=True)
        return made._from_config, place.rpartition(".")[2]


def _is_of_part(model: Any, kind: Any) -> bool:
    """Return whether a class takes a configuration that has one of this kind as a part, such as ``text_config``."""
    of = attribute(model, "config_class", None)
    parts = attribute(of, "sub_configs", None) or {}
    return of is not kind and any(part is kind for part in parts.values())


def _make_long_frequencies(model: nn.Module) -> None:
    """Register the LongRoPE frequencies as a buffer, which the first forward would otherwise set as an attribute.

    An export would leave its own tensor in the attribute, which breaks other exports; a buffer is restored.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    for part in model.modules():
        config = attribute(part, "config", None)
        longest = (attribute(config, "rope_parameters", None) or {}).get("original_max_position_embeddings")
        if attribute(part, "rope_type", None) == "longrope" and longest and not has_attribute(part, "long_inv_freq"):
            found, _ = ROPE_INIT_FUNCTIONS["longrope"](config, None, seq_len=longest + 1)
            part.register_buffer("long_inv_freq", found, persistent=False)


def _class_named(name: str) -> Any:
    """Return the object that transformers exports under a name, or ``None`` if it cannot be imported."""
    import transformers

    try:
        return attribute(transformers, name, None)
    except Exception:  # the package imports on demand, and code for other packages fails as it likes
        return None


def huggingface(place: str, path: Path | None, *, trusted: bool) -> HuggingFace:
    """Return the factory for a configuration file, a folder with ``config.json``, or a bare model type.

    Args:
        place: the model type, if there is no path.
        trusted: whether code that the configuration names may run.

    Raises:
        BadInput: it is not a configuration, transformers does not know its model type, or its code is not trusted.
    """
    if path is None:
        return HuggingFace(json.dumps({"model_type": place}), f"hf:{place[:80]}")
    data = read_config(path)
    file = _file(path)
    if not data.get("auto_map"):
        return HuggingFace(json.dumps(without(data)), str(file), stored=stored(data, file))
    has_class, files = _has_class(data), _files_of(data)
    missing = sorted(name for name in files if not (file.parent / name).is_file())
    if has_class and (missing or not trusted):
        return HuggingFace(json.dumps(without(data)), str(file), stored=stored(data, file))
    if not trusted:
        raise BadInput(
            "the configuration names code of its own, and transformers has no class for it",
            where=f"$.auto_map in {file}",
            got=", ".join(sorted(map(str, data["auto_map"]))),
            fix="--trust-remote-code runs the Python code beside it"
            if not missing
            else f"put {missing[0]} beside it; --trust-remote-code runs it",
        )
    for name, place in data["auto_map"].items() if isinstance(data["auto_map"], dict) else ():
        if "--" in str(place):
            raise BadInput(
                "the configuration names code of another repository, and nothing is downloaded",
                where=f"$.auto_map.{name} in {file}",
                expected="MODULE.CLASS of a file in the same folder",
                got=str(place)[:80],
                fix="put the code beside the configuration, and omit the part before --",
            )
    if missing:
        raise BadInput(
            "the code that the configuration names is missing",
            where=f"$.auto_map in {file}",
            expected=f"a file {missing[0]} beside it",
        )
    return HuggingFace(json.dumps(without(data)), str(file), str(file.parent), stored=stored(data, file))


def _has_class(data: Mapping[str, Any]) -> bool:
    """Return whether transformers has a class for a configuration."""
    from transformers import CONFIG_MAPPING

    return data["model_type"] in CONFIG_MAPPING or type_of_class(data) is not None


def _files_of(data: Mapping[str, Any]) -> set[str]:
    """Return the files named by ``auto_map``, except those of other repositories."""
    places = data["auto_map"].values() if isinstance(data["auto_map"], dict) else ()
    texts = (part for place in places for part in (place if isinstance(place, list) else [place]))
    return {f"{t.rpartition('.')[0]}.py" for t in texts if isinstance(t, str) and "." in t and "--" not in t}


def _as_built(value: Any) -> Any:
    """Return a configuration value without the entries that a build would fetch, unpickle or run.

    Removed are kernels of the Hub, weights of backbones, and the remote code of parts, for which transformers would
    prompt.
    """
    if isinstance(value, list):
        return [_as_built(v) for v in value]
    if not isinstance(value, dict):
        return value
    kept = {k: _as_built(v) for k, v in value.items() if k != "auto_map" and not _kernels_under(k, v)}
    for key in _TIMM:
        if isinstance(kept.get(key), dict):
            kept[key] = {k: v for k, v in kept[key].items() if k not in _TIMM_WEIGHTS}
    return {**kept, **({"use_pretrained_backbone": False} if kept.get("use_pretrained_backbone") else {})}


def _kernels(value: Any, path: str = "$") -> Iterator[tuple[str, str]]:
    """Yield each key in a configuration that selects a kernel of the Hub, and the kernel."""
    for key, part in value.items() if isinstance(value, dict) else ():
        yield from ((f"{path}.{key}", kernel) for kernel in _kernels_under(key, part))
        yield from _kernels(part, f"{path}.{key}")
    for i, part in enumerate(value if isinstance(value, list) else ()):
        yield from _kernels(part, f"{path}[{i}]")


def _kernels_under(key: object, value: Any) -> tuple[str, ...]:
    """Return the names of Hub kernels that a configuration key selects, for one part or several."""
    if str(key).strip("_").removesuffix("_internal") not in _KERNELS:
        return ()
    if isinstance(value, dict):
        return tuple(kernel for part in value.values() for kernel in _kernels_under(key, part))
    return (value,) if isinstance(value, str) and ("/" in value or ":" in value or _FLASH in value) else ()


def _unfetched(place: str, kernel: str) -> str:
    if _FLASH in kernel:
        return f"{place} is {kernel[:80]}, which needs kernels: the model runs its usual attention"
    return f"{place} names {kernel[:80]}, a kernel of the Hub, which is not fetched: the model runs its usual one"


def _usual_attention(config: Any) -> Any:
    """Return the configuration with the default in place of an attention or expert kernel of the Hub."""
    parts = (getattr(config, name, None) for name in getattr(config, "sub_configs", {}))
    for part in (config, *(part for part in parts if part is not None)):
        if _kernels_under(_KERNELS[0], getattr(part, "_attn_implementation", None)):
            part._attn_implementation = None
    return config


def _with_floats(value: Any) -> Any:
    """Convert ``{"__float__": "Infinity"}`` and the like inside a configuration value to floats."""
    if isinstance(value, dict):
        if value.keys() == {_FLOAT}:
            return float(value[_FLOAT])
        return {k: _with_floats(v) for k, v in value.items()}
    return [_with_floats(v) for v in value] if isinstance(value, list) else value


def default_config(model_type: str) -> dict[str, Any]:
    """Return the keys and defaults of the configuration class of a model type."""
    from transformers import AutoConfig, PretrainedConfig

    config = AutoConfig.for_model(model_type)
    common = inspect.signature(PretrainedConfig.__init__).parameters
    own = [name for name in inspect.signature(type(config).__init__).parameters if name not in common]
    data = config.to_dict()
    return {"model_type": model_type, **{name: data[name] for name in own if name in data}}


def read_config(path: Path) -> dict[str, Any]:
    """Read the configuration in a file or in a folder.

    Raises:
        BadInput: the file is not a JSON object with a ``model_type``.
    """
    data = read_configuration(_file(path))
    if not isinstance(data, dict) or not isinstance(data.get("model_type"), str):
        raise BadInput(
            "this is not a Hugging Face configuration", where=str(_file(path)), expected="an object with a model_type"
        )
    check_keys(data, str(_file(path)))
    return data


def _file(path: Path) -> Path:
    return path / "config.json" if path.is_dir() else path


@lru_cache(maxsize=64)
def auto_class(config: Hashable) -> Any:
    """Return the first model class that the auto classes of transformers map this configuration class to."""
    import transformers

    for head in (*(f"AutoModelFor{h}" for h in HEADS), "AutoModel"):
        auto = attribute(transformers, head, None)
        if auto is not None and config in auto._model_mapping:
            found = auto._model_mapping[config]
            return found[0] if isinstance(found, tuple) else found
    raise BadInput(
        "no auto class of transformers has a model for this configuration", where=str(config),
        expected=f"a class of AutoModel, or AutoModelFor… of {', '.join(HEADS)}",
    )  # fmt: skip


def _is_base(name: str) -> bool:
    """Return whether a class name is that of a model without a head, such as ``LlamaModel``."""
    return name.endswith("Model") and "For" not in name and "Head" not in name


def _headless(name: str) -> str:
    return f"{name} is a base model: no head (lm_head, classifier) is counted"


def numbers(data: Mapping[str, Any], prefix: str = "") -> dict[str, int]:
    """Return the integers above 1 in a configuration, with nested names joined by an underscore.

    Limits (``max_position_embeddings``), token ids and numbers of layers are omitted: they do not size
    a module.
    """
    found: dict[str, int] = {}
    for key, value in ((str(k), v) for k, v in data.items()):
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            found |= numbers(value, f"{name}_")
        elif (
            isinstance(value, int)
            and not isinstance(value, bool)
            and value > 1
            and not key.endswith("_token_id")
            and not key.startswith("max_")
            and not counts_layers(key)
        ):
            found[name] = value
    return found


def _with_head_width(config: dict[str, int]) -> dict[str, int]:
    """Add ``head_dim`` = width / heads to the numbers of a configuration without this key."""
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if hidden and heads and hidden % heads == 0:
        config.setdefault("head_dim", hidden // heads)
    return config


def counts_layers(name: str) -> bool:
    """Return whether a configuration key is a number of layers."""
    return name.endswith(("layers", "_layer"))
