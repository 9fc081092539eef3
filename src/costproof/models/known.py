"""List published models of the built-in families, and load the record of each source's metrics by family."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.metrics import OF_CHECKPOINT, UNFUSED, Metric
from costproof.ledger.run import GRAPH_SOURCES
from costproof.ledger.workload import Workload
from costproof.models.target import NamedWorkload, Setting, Target, WithStorage, options_of

if TYPE_CHECKING:
    from costproof.claims.effects import Mistakes
    from costproof.models.proof import WithProof


@dataclass(frozen=True, slots=True)
class Known:
    """Published model of a built-in family, which is a factory of targets with its configuration."""

    name: str
    family: str
    """Name of the family."""
    params: int
    """Published number of elements of all tensors."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Values that differ from the family's default configuration, by key, dotted for parts: ``text.hidden``."""

    def default(self) -> Target:
        """Return the target with the published configuration."""
        from costproof.configs.config import put

        usual = self._family().default()
        config = put(usual.config, self.config)
        made: Target = replace(usual, name=self.name, config=config, published=config)
        return made

    def from_file(self, path: Path) -> Target:
        """Return the target of a configuration file, which reports differences from this model.

        Reports list the keys that differ from the published configuration of this model, not from the default of the
        family.
        """
        made: Target = self._as_published(self._family().from_file(path))
        return made

    def settings(self) -> tuple[Setting, ...]:
        found: tuple[Setting, ...] = self._family().settings()
        return found

    def presets(self) -> tuple[NamedWorkload, ...]:
        """Return the named workloads of the family."""
        found: tuple[NamedWorkload, ...] = self._family().presets()
        return found

    def proof_settings(self) -> tuple[Setting, ...]:
        found: tuple[Setting, ...] = self._family().proof_settings()
        return found

    def from_normalised(self, text: str) -> WithProof:
        """Return the target with a normalised configuration, as certificates contain it."""
        made: WithProof = self._as_published(self._family().from_normalised(text))
        return made

    def mistakes(self) -> Mistakes:
        """Return the mistakes common in published numbers of the family."""
        from costproof.models.registry import mistakes_of

        return mistakes_of(self.family)

    def _as_published(self, made: Any) -> Any:
        usual: Any = self.default()
        return replace(made, name=self.name, published=usual.published, is_known=True)

    def _family(self) -> Any:
        from costproof.models.registry import TARGETS

        return TARGETS.load(self.family)

    @property
    def what(self) -> str:
        """Return one line with the family and the number of parameters."""
        return f"{self.family}, {self.params:,} parameters"


_QWEN3_SMALL: Final = {"heads": 16, "layers": 28, "tied": True}
_LARGE: Final = {"hidden": 1024, "intermediate": 4096, "layers": 24, "heads": 16}

# Totals of the published tensors; tests hold our formulas, and for some rows the classes of transformers, to them.
KNOWN: Final = (
    Known("bert-base", "bert", 109_482_240),
    Known("bert-large", "bert", 335_141_888, _LARGE),
    Known("clip-b-32", "clip-vision", 87_456_000),
    Known("clip-l-336", "clip-vision", 303_507_456, {**_LARGE, "image": 336, "patch": 14}),
    Known("distilbert-base", "distilbert", 66_362_880),
    Known("dinov2-b", "dinov2", 86_580_480),
    Known("dinov2-l", "dinov2", 304_368_640, {"hidden": 1024, "layers": 24, "heads": 16}),
    Known("deepseek-v2-lite", "deepseek-v2", 15_706_484_224, {
        "hidden": 2048, "intermediate": 10944, "layers": 27, "heads": 16, "experts": 64, "expert_width": 1408,
        "groups": 1, "best_groups": 1, "q_rank": 0, "limited": False,
    }),
    Known("gemma-2b", "gemma", 2_506_172_416, {
        "hidden": 2048, "intermediate": 16384, "layers": 18, "heads": 8, "kv_heads": 1,
    }),
    Known("gemma-7b", "gemma", 8_537_680_896),
    Known("gemma-2-2b", "gemma2", 2_614_341_888),
    Known("gemma-2-9b", "gemma2", 9_241_705_984, {
        "hidden": 3584, "intermediate": 14336, "layers": 42, "heads": 16, "kv_heads": 8,
    }),
    Known("gemma-3-270m", "gemma3", 268_098_176, {"hidden": 640, "intermediate": 2048, "layers": 18}),
    Known("gemma-3-1b", "gemma3", 999_885_952),
    Known("gpt-oss-20b", "gpt-oss", 20_914_757_184, {"layers": 24, "experts": 32}),
    Known("gpt-oss-120b", "gpt-oss", 116_829_156_672),
    Known("gpt2-medium", "gpt2", 354_823_168, {"hidden": 1024, "intermediate": 4096, "layers": 24, "heads": 16}),
    Known("gpt2-large", "gpt2", 774_030_080, {"hidden": 1280, "intermediate": 5120, "layers": 36, "heads": 20}),
    Known("gpt2-xl", "gpt2", 1_557_611_200, {"hidden": 1600, "intermediate": 6400, "layers": 48, "heads": 25}),
    Known("llama-3.1-8b", "llama", 8_030_261_248),
    Known("llama-3.1-70b", "llama", 70_553_706_496, {
        "hidden": 8192, "intermediate": 28672, "layers": 80, "heads": 64,
    }),
    Known("llama-3.2-1b", "llama", 1_235_814_400, {
        "hidden": 2048, "intermediate": 8192, "layers": 16, "head_dim": 64, "tied": True,
    }),
    Known("llama-3.2-3b", "llama", 3_212_749_824, {
        "hidden": 3072, "intermediate": 8192, "layers": 28, "heads": 24, "tied": True,
    }),
    Known("llava-1.5-7b", "llava", 7_063_427_072),
    Known("llava-1.5-13b", "llava", 13_351_494_656, {
        "text.hidden": 5120, "text.intermediate": 13824, "text.layers": 40, "text.heads": 40, "text.kv_heads": 40,
    }),
    Known("mistral-7b", "mistral", 7_241_732_096),
    Known("mistral-7b-v0.3", "mistral", 7_248_023_552, {"vocab": 32768, "window": 0}),
    Known("mixtral-8x7b", "mixtral", 46_702_792_704),
    Known("mixtral-8x22b", "mixtral", 140_620_634_112, {
        "hidden": 6144, "intermediate": 16384, "layers": 56, "heads": 48, "max_positions": 65536,
    }),
    Known("qwen2.5-0.5b", "qwen2", 494_032_768, {
        "hidden": 896, "intermediate": 4864, "layers": 24, "heads": 14, "kv_heads": 2, "head_dim": 64, "vocab": 151936,
        "max_positions": 32768, "tied": True,
    }),
    Known("qwen2.5-7b", "qwen2", 7_615_616_512),
    Known("qwen2.5-72b", "qwen2", 72_706_203_648, {
        "hidden": 8192, "intermediate": 29568, "layers": 80, "heads": 64, "kv_heads": 8,
    }),
    Known("qwen2.5-vl-3b", "qwen2-5-vl", 3_754_622_976, {
        "text.hidden": 2048, "text.intermediate": 11008, "text.layers": 36, "text.heads": 16, "text.kv_heads": 2,
        "text.vocab": 151936, "text.tied": True, "vision.out": 2048,
    }),
    Known("qwen2.5-vl-7b", "qwen2-5-vl", 8_292_166_656),
    Known("qwen3-0.6b", "qwen3", 596_049_920, {**_QWEN3_SMALL, "hidden": 1024, "intermediate": 3072}),
    Known("qwen3-1.7b", "qwen3", 1_720_574_976, {**_QWEN3_SMALL, "hidden": 2048, "intermediate": 6144}),
    Known("qwen3-4b", "qwen3", 4_022_468_096, {"hidden": 2560, "intermediate": 9728, "tied": True}),
    Known("qwen3-8b", "qwen3", 8_190_735_360),
    Known("qwen3-32b", "qwen3", 32_762_123_264, {
        "hidden": 5120, "intermediate": 25600, "layers": 64, "heads": 64,
    }),
    Known("qwen3-30b-a3b", "qwen3-moe", 30_532_122_624),
    Known("qwen3-235b-a22b", "qwen3-moe", 235_093_634_560, {
        "hidden": 4096, "intermediate": 12288, "layers": 94, "heads": 64, "expert_width": 1536,
    }),
    Known("roberta-base", "roberta", 124_645_632),
    Known("roberta-large", "roberta", 355_359_744, _LARGE),
    Known("siglip-so400m", "siglip-vision", 428_225_600, {
        "hidden": 1152, "intermediate": 4304, "layers": 27, "heads": 16, "image": 384, "patch": 14,
    }),
    Known("t5-small", "t5", 60_506_624),
    Known("t5-base", "t5", 222_903_552, {
        "hidden": 768, "intermediate": 3072, "layers": 12, "decoder_layers": 12, "heads": 12,
    }),
    Known("vit-b-16", "vit", 86_567_656),
    Known("vit-l-16", "vit", 304_326_632, _LARGE),
    Known("xlm-roberta-base", "xlm-roberta", 278_043_648),
    Known("xlm-roberta-large", "xlm-roberta", 559_890_432, _LARGE),
)  # fmt: skip
"""Published models except those named as their family, which are the family's default configuration."""


RECORD: Final = Path(__file__).with_name("recorded.json")
"""Path of a JSON file with groups of similar families, and the metrics that each source gives for them."""


def family_of(target: Target) -> str:
    """Return the name of the built-in family of a target, such as ``llama``, or an empty string."""
    package, _, rest = type(target).__module__.partition(".families.")
    return rest.partition(".")[0] if package == __package__ else ""


def recorded(target: Target, workload: Workload) -> dict[str, tuple[Metric, ...]]:
    """Return the metrics that each source of a target gives, from the committed record; ``{}`` without an entry.

    If data or the device selects operators, runs do not report the bytes that each operator moves. Which metrics of
    storage there are depends on the format of a quantised checkpoint.
    """
    found = _record().get(family_of(target), {})
    quantised = isinstance(target, WithStorage) and dict(target.stored.quantised).get("weights")
    if quantised:
        found = {s: tuple(m for m in metrics if m not in OF_CHECKPOINT) for s, metrics in found.items()}
    if workload.experts != "eager" and options_of(target).device == "meta":
        return dict(found)
    runs = [s for s in GRAPH_SOURCES if s != "static"]
    return {s: tuple(m for m in metrics if s not in runs or m != UNFUSED) for s, metrics in found.items()}


@cache
def _record() -> dict[str, dict[str, tuple[Metric, ...]]]:
    groups = json.loads(RECORD.read_text(encoding="utf-8"))
    return {
        family: {source: tuple(metrics) for source, metrics in group["sources"].items()}
        for group in groups
        for family in group["families"]
    }
