"""What holds for a configuration, whichever file it came from: keys that cost nothing, numbers that contradict."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Final

from costproof.ledger.errors import BadInput, CostproofError
from costproof.models.config_reader import Section

ANYWHERE: Final = {
    "_name_or_path": "names the checkpoint",
    "architectures": "names a class",
    "auto_map": "names the files of the remote code",
    "torch_dtype": "the workload decides the dtype",
    "transformers_version": "says what wrote the file",
}
"""Keys that any section may hold and no formula needs, with the reason."""
DECODER: Final = {
    "attention_dropout": "dropout does nothing in inference",
    "bos_token_id": "which token begins a text costs nothing",
    "eos_token_id": "which token ends a text costs nothing",
    "initializer_range": "initial values cost nothing",
    "n_group": "greedy routing has no groups",
    "pad_token_id": "the prompts of a batch are equally long",
    "pretraining_tp": "how the checkpoint was trained",
    "topk_group": "greedy routing has no groups",
    "use_cache": "a run of a prefill and decode steps keeps the cache",
}
"""The same, of a decoder."""


def downsample(section: Section, *default: tuple[int, int]) -> tuple[int, int]:
    """Widths of the two convolutions behind SAM; a key that is missing without a default is a problem."""
    widths = section.integers("downsample_channels", *default)
    if len(widths) == 2:
        return widths[0], widths[1]
    if isinstance(section.data.get("downsample_channels"), list):
        section.problem(
            "there are two stride-2 convolutions", "downsample_channels", expected="two widths", got=list(widths)
        )
    return 1, 1


def contradictions(config: Any, paths: Mapping[str, str], second: str = "clip") -> list[CostproofError]:
    """Every pair of numbers that cannot stand together in a model that runs.

    Args:
        config: of SAM, of a second tower that reads its features, and of the decoder.
        paths: where each number stands in the file: ``sam.hidden`` -> ``$.vision_config.…``.
        second: what the second tower is called there.
    """
    found: list[CostproofError] = []

    def value(key: str) -> int:
        number: int = attrgetter(key)(config)
        return number

    def report(key: str, what: str, expected: object, got: object) -> None:
        found.append(BadInput(what, where=paths[key], expected=expected, got=got))

    def divides(part: str, whole: str, what: str) -> None:
        if value(whole) % value(part):
            report(part, what, f"a divisor of {value(whole)} ({paths[whole]})", value(part))

    def at_most(part: str, whole: str, what: str) -> None:
        if value(part) > value(whole):
            report(part, what, f"at most {value(whole)} ({paths[whole]})", value(part))

    sam, text, parts = config.sam, config.text, {"sam", second, "text"}
    for part in sorted(parts):
        divides(f"{part}.heads", f"{part}.hidden", "the attention heads do not divide the width")
    for part in sorted(p for p in parts if f"{p}.kv_heads" in paths):
        size = getattr(config, part)
        if size.hidden % size.heads == 0 and size.head_dim % 2:
            what = "rotary embedding needs an even head width"
            report(f"{part}.heads", what, "an even width / heads", size.head_dim)
        divides(f"{part}.kv_heads", f"{part}.heads", "the key/value heads do not divide the attention heads")
    for part in sorted(p for p in parts if f"{p}.image" in paths):
        image, patch = value(f"{part}.image"), value(f"{part}.patch")
        if image % patch:
            expected = f"a multiple of {patch} ({paths[f'{part}.patch']})"
            report(f"{part}.image", "the patches do not tile the image", expected, image)
    layers = list(sam.global_layers)
    outside = [i for i in layers if i >= sam.layers]
    if outside:
        report("sam.global_layers", "a global attention layer does not exist", f"0 to {sam.layers - 1}", outside)
    if len(set(layers)) != len(layers):
        report("sam.global_layers", "a global attention layer is named twice", "distinct layers", layers)
    width = value(f"{second}.hidden")
    if sam.downsample[1] != width:
        what = "SAM's features go into the next tower as they are, so their widths must agree"
        report("sam.downsample", what, f"{width} ({paths[f'{second}.hidden']}) as the last entry", sam.downsample[1])
    at_most("text.topk", "text.experts", "a token cannot pass more experts than there are")
    at_most("text.dense_layers", "text.layers", "more dense layers than layers")
    if config.image_token >= text.vocab:
        expected = f"less than {text.vocab} ({paths['text.vocab']})"
        report("image_token", "the image token is outside the vocabulary", expected, config.image_token)
    return found
