"""Compare the configuration that a family read from a file with what transformers reads from the same file.

The class that is exported and run is built from the fields of the family, as the formulas are. Without this comparison
a mistake of the reader would be in all sources, and they would agree.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from costproof.configs.known_keys import harmless
from costproof.configs.reader import shown
from costproof.ledger.errors import BadInput, CostproofError, Incomplete
from costproof.weights.stored import without, without_dtype

if TYPE_CHECKING:
    from costproof.configs.config import NativeConfig

_FIXED_ROTATIONS: Final = frozenset({"default", "linear", "llama3", "yarn"})
_ABSENT: Final = object()
_UNREAD: Final = (
    ("", "routed_scaling_factor", "a constant"),
    ("", "max_window_layers|_?sliding_window_pattern", "layer_types follow, and are compared"),
    ("", "architectures", "a class that is compared by itself, or that of a part when it is a model"),
    ("clip_vision_model", "projection_dim", "read by the class with a projection, to which the family passes it"),
    ("clip_vision_model", "vocab_size", "a tower has no words"),
    ("deepseek_v2", "norm_topk_prob", "the class does not read it"),
    ("gemma2|gemma3_text", "query_pre_attn_scalar", "a constant of the scores"),
    ("llava", "image_seq_length", "read by the processor; tokens of an image follow from its patches"),
    ("distilbert", "sinusoidal_pos_embds", "initial values of a table"),
)
"""Model types (all, if empty), keys that a family does not pass to the class, and why differences cost nothing."""
_ROTATION: Final = "rope_parameters."
_MOST_NAMED: Final = 4


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A configuration file, and the configuration that the family read from it."""

    text: str
    """File content as JSON, with sorted keys and without the format of quantised weights."""
    read: NativeConfig
    """Configuration that the family read, before truncation and overrides."""
    where: str = field(default="", repr=False, compare=False)
    """Path of the file, for messages."""

    @classmethod
    def of(cls, data: object, read: NativeConfig, path: Path) -> ConfigFile:
        """Return the record of a file with this JSON content, read by a family as ``read``."""
        return cls(json.dumps(without_dtype(without(data)), sort_keys=True), read, str(path))


def check_reader(file: ConfigFile) -> None:
    """Check that transformers and the family read the same configuration from a file.

    Raises:
        Incomplete: a value differs; both values are in the message.
        BadInput: transformers refuses the file.
    """
    found = list(differences(file))
    if not found:
        return
    named, more = found[:_MOST_NAMED], len(found) - _MOST_NAMED
    values = [f"{path}: transformers {theirs}, costproof {ours}" for path, theirs, ours in named]
    raise Incomplete(
        "costproof and transformers read this configuration differently, so the sources would count another model",
        where=f"{', '.join(f'$.{path}' for path, _, _ in named)} in {file.where}",
        got="; ".join([*values, f"{more} more"] if more > 0 else values),
        fix="please report this mistake of costproof: its formulas do not describe this file",
    )


def written(config: Any) -> ConfigFile:
    """Write a configuration as transformers' class does, and return the record of the family reading it.

    Raises:
        Incomplete: the family refuses the file.
    """
    arguments = config.in_file().native()
    native = _read({"model_type": config.model_type, **arguments}, "a configuration of ours")
    data = json.loads(json.dumps({**native.to_dict(), "architectures": [config.architecture]}))  # labels become texts
    where = Path(f"the file of {type(config).__name__}")
    try:
        return ConfigFile.of(data, type(config).of(data, where), where)
    except CostproofError as error:
        what = "the family does not read what transformers writes of its configuration"
        raise Incomplete(what, where=str(where), got=error.line) from error


def differences(file: ConfigFile) -> Iterator[tuple[str, str, str]]:
    """Yield (key, value that transformers reads, value that the family passes to the class) where they differ."""
    config: Any = file.read
    data = config.for_class(json.loads(file.text))
    named = data.get("architectures")
    if isinstance(named, list) and named and named[0] != config.architecture:
        yield "architectures", str(named[0]), config.architecture
    arguments = config.native()
    theirs = _read({"model_type": config.model_type, **data}, file.where)
    try:
        ours = _read({"model_type": config.model_type, **arguments}, "the configuration that the family makes of it")
    except BadInput as error:
        yield "model_type", "a configuration that transformers accepts", error.line
        return
    expected, got = flat(theirs), flat(ours)
    passed = {*flat_arguments(arguments, ours)}
    waived = [path.removeprefix("$.") for path, _ in config.waived]
    for path in sorted({*expected, *got}):
        theirs_value, ours_value = _meaning(expected, path), _meaning(got, path)
        if theirs_value == ours_value or path in config.not_as_in_file:
            continue
        kind = str(expected.get(f"{path.rpartition('.')[0]}.model_type", config.model_type))
        if path in passed or not _is_unread(path, theirs_value, ours_value, waived, kind):
            yield path, _shown(theirs_value), _shown(ours_value)


def _is_unread(path: str, theirs: Any, ours: Any, waived: list[str], kind: str) -> bool:
    """Return whether a difference at a key does not matter, since only transformers reads the key, at no cost."""
    key = path.rpartition(".")[2]
    if _ROTATION in path:  # frequencies, computed once when the model is built
        return key != "rope_type" or theirs in _FIXED_ROTATIONS
    if harmless(kind, key, _ABSENT) is not None:
        return True
    if any(kind in kinds.split("|") or not kinds for kinds, keys, _ in _UNREAD if re.fullmatch(keys, key)):
        return True
    # The class has no such field: the reader has to name the key, or to know that it changes nothing.
    known = harmless(kind, key, theirs) is not None or any(path == w or path.startswith(f"{w}.") for w in waived)
    return ours is _ABSENT and known


def _read(data: Mapping[str, Any], where: str) -> Any:
    from costproof.models.generic.huggingface import HuggingFace

    return HuggingFace(json.dumps(data), where).config()


def flat(config: Any) -> dict[str, Any]:
    """Return the values of a configuration object by dotted key, with ``num_labels`` in place of ``id2label``."""
    return dict(_flat(config.to_dict(), ""))


def _flat(data: Mapping[str, Any], within: str) -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        if key == "id2label" and isinstance(value, dict):
            yield f"{within}num_labels", len(value)
        elif isinstance(value, dict) and value and key != "label2id":
            yield from _flat(value, f"{within}{key}.")
        else:
            yield f"{within}{key}", list(value) if isinstance(value, tuple) else value


def flat_arguments(arguments: Mapping[str, Any], config: Any, within: str = "") -> Iterator[str]:
    """Yield the dotted keys, in the naming of the configuration class, of the arguments that a family passes to it."""
    names: Mapping[str, str] = getattr(type(config), "attribute_map", {})
    for key, value in arguments.items():
        if isinstance(value, dict) and value:
            yield from flat_arguments(value, getattr(config, key, None), f"{within}{key}.")
        else:
            yield f"{within}{names.get(key, key)}"


def _meaning(values: Mapping[str, Any], path: str) -> Any:
    """Return the value of a key in canonical form, since files may state it in several forms."""
    within, _, key = path.rpartition(".")
    within, value = within and f"{within}.", values.get(path, _ABSENT)
    match key:
        case "head_dim" if value is None or value is _ABSENT:
            hidden, heads = values.get(f"{within}hidden_size"), values.get(f"{within}num_attention_heads")
            return hidden // heads if hidden and heads else value
        case "max_position_embeddings" if values.get(f"{within}rope_parameters.rope_type") == "yarn":
            factor = values.get(f"{within}rope_parameters.factor") or 1
            original = values.get(f"{within}rope_parameters.original_max_position_embeddings") or value
            return max(value, int(factor * original))
        case "image_size" | "patch_size" if isinstance(value, list) and len({*value}) == 1:
            return value[0]
        case "use_sliding_window" | "sliding_window" if isinstance(kinds := values.get(f"{within}layer_types"), list):
            used = "sliding_attention" in kinds
            return used if key.startswith("use") else value if used else None
        case "mlp_only_layers" if "decoder_sparse_step" in values:
            step = values["decoder_sparse_step"]
            return [i for i in range(values["num_hidden_layers"]) if i in (value or ()) or (i + 1) % step]
        case "decoder_sparse_step":
            return 1  # the layers without experts are compared
        case "n_inner" if value is None:
            return 4 * values[f"{within}n_embd"]
        case "n_group" | "topk_group" if values.get(f"{within}topk_method") == "greedy":
            return 1
        case "vision_feature_layer" if isinstance(value, int) and value > 0:
            return value - values["vision_config.num_hidden_layers"] - 1
    return value


def _shown(value: Any) -> str:
    return "no such key" if value is _ABSENT else shown(value)
