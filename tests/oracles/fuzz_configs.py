"""Mutate configurations of model types and use them as the commands do."""

from __future__ import annotations

import copy
import json
import random
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from costproof.cli.output import error_text
from costproof.ledger.errors import EXIT_BUG, EXIT_OK, CostproofError
from costproof.models.generic.huggingface import HuggingFace, default_config
from tests.oracles.fuzz_files import Path_, places
from tests.oracles.tiny import tiny

FEW_LAYERS: Final = 0.8
"""Share of the others that have few layers too: the formulas of many take a second."""


FACTOR: Final = 16
"""Of the widths of what is built."""


SMALL: Final = (
    "opt", "bart", "bloom", "falcon", "mamba", "whisper", "clip", "detr", "swin", "resnet", "wav2vec2", "t5gemma",
    "phi3", "qwen2_moe", "jamba", "llama4_text", "gemma3_text", "segformer", "deberta-v2", "albert", "git", "blip",
    "timm_wrapper", "llava", "qwen2_audio", "timesformer", "patchtst", "convnext", "funnel", "longformer", "reformer",
    "xlnet", "roformer",
)  # fmt: skip
"""Model types without formulas, and some whose keys are odd."""


VALUES: Final[tuple[Any, ...]] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 64, 10**4, 10**6, 3 * 10**7, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 10**40,
    10**299, -(10**30), 0.0, 0.5, 1.5, -2.5, 1e300, float("nan"), float("inf"), -float("inf"), "", "x", "0", "7", " ",
    [], {}, [1], [None], [[]], [[[]]], [0] * 5, ["full_attention"] * 2, {"a": 1}, {"0": "a"}, {"__float__": "nan"},
    {"__float__": 5}, {"__float__": "x"}, {"rope_type": "yarn"}, {"model_type": "opt"}, {"model_type": 5}, "gelu",
    "float32", "torch.float16", "sdpa", "eager", "a/b", "a.b", "../../x", "<script>", "\x1b[31m", "\u202e", "\ud800",
    "\x00", "x" * 5_000, [1] * 3_000, {str(n): n for n in range(2_000)}, "opt", "bert", "llama", "AutoModel",
    "OPTForCausalLM", "LlamaForCausalLM", "PreTrainedModel", "__init__", "is_torch_available",
)  # fmt: skip


KEYS: Final = (
    "architectures", "auto_map", "model_type", "torch_dtype", "dtype", "id2label", "label2id", "num_labels",
    "num_hidden_layers", "layer_types", "text_config", "vision_config", "quantization_config", "rope_scaling",
    "rope_parameters", "attn_implementation", "_attn_implementation", "experts_implementation", "is_encoder_decoder",
    "use_cache", "tie_word_embeddings", "pad_token_id", "return_dict", "output_hidden_states", "pruned_heads",
    "problem_type", "name_or_path", "_name_or_path", "transformers_version", "hidden_size", "head_dim", "vocab_size",
    "num_attention_heads", "num_key_value_heads", "sub_configs", "base_config_key", "attribute_map", "to_dict",
    "__class__", "", "backbone_config", "backbone", "encoder", "decoder", "depths", "max_position_embeddings",
)  # fmt: skip


PARTS: Final = ("text_config", "vision_config", "audio_config", "backbone_config", "encoder", "decoder")


CODE: Final[tuple[Any, ...]] = (
    {"AutoConfig": "own.Config", "AutoModel": "own.Model"}, {"AutoModelForCausalLM": "someone/repo--own.Model"},
    {"AutoModel": ["own.Model", None]}, {"AutoModel": 5}, {"AutoConfig": "../own.Config"}, ["own.Model"], "own.Model",
)  # fmt: skip
"""Values of ``auto_map`` in a part."""


ARGUMENTS: Final[tuple[Any, ...]] = (
    {"pretrained": True, "checkpoint_path": "w.pth"}, {"img_size": 0}, {"depth": 10**6}, {"embed_dim": -1},
    {"features_only": 5}, {"in_chans": "x"}, "flash_attention_2", "someone/repo", "timm_wrapper", "timm_backbone",
)  # fmt: skip
"""Values of ``model_args`` and of other keys of a part."""


def bases(folder: Path | None) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the configurations to change: those with their sizes, and small ones to be built."""
    whole = [json.loads(f.read_text(encoding="utf-8")) for f in sorted(folder.glob("*.json"))] if folder else []
    for place in ("docs/examples/qwen3.json", "tests/data/vendor-config.json"):
        whole.append(json.loads(Path(place).read_text(encoding="utf-8")))
    whole += [default_config(name) for name in SMALL]
    return whole, [small(config) for config in whole]


def small(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with little depth and narrow widths, or as it is where it is none of the usual form."""
    try:
        return tiny(config, FACTOR)
    except (TypeError, ValueError, KeyError, AttributeError):
        return config


def mutated(good: dict[str, Any], others: Sequence[dict[str, Any]], draw: random.Random) -> dict[str, Any]:
    """Return a copy with one to four changes."""
    made = copy.deepcopy(good)
    if draw.random() < 0.8:
        made.pop("auto_map", None)  # refused, whatever else it says
    for _ in range(draw.choice((1, 1, 2, 3, 4))):
        _change(made, others, draw)
    return made


def _change(made: dict[str, Any], others: Sequence[dict[str, Any]], draw: random.Random) -> None:
    known: list[Path_] = list(places(made))
    *above, key = draw.choice(known) if known else ("model_type",)
    inside: Any = made
    for step in above:
        inside = inside[step]
    kind, here = draw.randrange(12), inside[key] if known else None
    other = draw.choice(others)
    if kind > 9:
        _change_part(made, draw)
    elif kind == 0:
        del inside[key]
    elif kind == 1:
        made[draw.choice(KEYS)] = copy.deepcopy(draw.choice(VALUES))
    elif kind == 2:
        name = draw.choice(list(other))
        made[name] = copy.deepcopy(other[name])
    elif kind == 3 and isinstance(here, int) and not isinstance(here, bool):
        inside[key] = draw.choice((here + 1, here - 1, -here, here * 2, here // 2, here * 1000, float(here), str(here)))
    elif kind == 4 and isinstance(inside, dict):
        inside[draw.choice((*KEYS, *other))] = inside.pop(key)
    elif kind == 5:
        inside[key] = copy.deepcopy(draw.choice((made, other, [here] * draw.choice((2, 3, 200)), {"x": here})))
    elif kind == 6 and draw.random() < 0.05:
        for _ in range(draw.choice((5, 40, 150))):
            here = {str(key): here} if draw.random() < 0.5 else [here]
        inside[key] = here
    else:
        inside[key] = copy.deepcopy(draw.choice(VALUES))


def _change_part(made: dict[str, Any], draw: random.Random) -> None:
    """Give a part code or arguments of its own, or another type; a configuration without parts gets one."""
    part = draw.choice([name for name in PARTS if name in made] or PARTS)
    inside = made.get(part)
    if not isinstance(inside, dict) or draw.random() < 0.3:
        made[part] = copy.deepcopy(draw.choice(VALUES))
        return
    key = draw.choice(("auto_map", "auto_map", "model_args", "model_type", "attn_implementation"))
    inside[key] = copy.deepcopy(draw.choice((*CODE, *VALUES) if key == "auto_map" else (*ARGUMENTS, *VALUES)))


def used(file: Path, *, built: bool) -> None:
    """Do with a configuration what ``costproof report hf:FILE`` does before it traces."""
    from costproof import api
    from costproof.models.generic.module import GenericTarget
    from costproof.models.target import WithFormulas
    from costproof.parametric.targets import evaluate_formulas
    from costproof.run.prepare import load_run_target
    from costproof.run.request import build_workload

    asked = api.request(f"hf:{file}")
    target = load_run_target(asked)
    if isinstance(target, GenericTarget) and not built:
        maker: Any = target.maker
        assert maker.what
        assert maker.numbers is not None
        return
    workload = build_workload(target, asked.workload)
    if isinstance(target, WithFormulas):
        evaluate_formulas(target, workload)
    assert target.info().name


def one(file: Path, made: dict[str, Any], *, built: bool) -> tuple[str, str]:
    """Return how a configuration ends (``exit 2``), and the traceback of an end that must not be."""
    file.write_text(json.dumps(made), encoding="utf-8")
    try:
        used(file, built=built)
    except CostproofError as error:
        error_text(error).encode(errors="backslashreplace")  # as the streams of the command
        return f"exit {error.exit_code}", traceback.format_exc() if error.exit_code == EXIT_BUG else ""
    except RecursionError:
        raise
    except Exception:
        return f"exit {EXIT_BUG}", traceback.format_exc()
    return f"exit {EXIT_OK}", ""


class Maker:
    """Makes the configuration of a number, the same in every process."""

    def __init__(self, folder: Path | None, seed: int, built: float) -> None:
        self.whole, self.small = bases(folder)
        self.seed, self.built = seed, built

    def __call__(self, number: int) -> tuple[dict[str, Any], bool]:
        """Return a configuration, and whether it is built."""
        draw = random.Random(f"{self.seed} {number}")
        built = draw.random() < self.built
        good = draw.choice(self.small if built or draw.random() < FEW_LAYERS else self.whole)
        return mutated(good, self.whole, draw), built

    def warm(self, folder: Path) -> None:
        """Import what the unchanged configurations need, so that no fork has to."""
        for made in self.whole:
            one(folder / "config.json", {k: v for k, v in made.items() if k != "auto_map"}, built=False)
        for made in self.small if self.built else ():
            with suppress(CostproofError):
                HuggingFace(json.dumps(made), "small").make(None, None)
