"""Plans as data: module pattern -> layout of its parameters on the ranks that share the weights of a layer.

A plan of an engine says where weights lie and what ranks exchange. The operators stay those of transformers: an engine
that merges the projections of queries, keys and values, or of gate and up, multiplies and exchanges the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from costproof.ledger.document import read_document, read_source
from costproof.ledger.errors import BadInput, CostproofError, Problems, did_you_mean
from costproof.ledger.mesh import PLAN

if TYPE_CHECKING:
    from torch import nn

    from costproof.ledger.mesh import Mesh

Layout = Literal["column", "row", "by_head", "vocabulary", "by_expert", "replicated"]
"""How the weights of a module lie on ranks.

``column``: each rank has some outputs, ``row``: some inputs. ``by_head``: ``column`` in whole heads, of which several
ranks hold copies if there are fewer key/value heads than ranks. ``vocabulary``: each rank has some entries of a table.
``by_expert``: each rank has some experts whole. ``replicated``: each rank has all; so it is without a pattern.
"""
LAYOUTS: Final[tuple[Layout, ...]] = get_args(Layout)
OWN: Final = "transformers"
"""Name of the default plan, that of the class of transformers."""
_PATTERN: Final = re.compile(r"[A-Za-z0-9_.*]{1,200}")
_MOST_PATTERNS: Final = 200
_MOST_STARS: Final = 4
_WHERE: Final = f"--{PLAN}"


@dataclass(frozen=True, slots=True)
class LayoutPlan:
    """Layouts of modules by pattern, in which ``*`` stands for any characters, and what else an engine does."""

    name: str
    source: str
    layouts: tuple[tuple[str, Layout], ...]
    multiple: int = 1
    """The vocabulary is padded to a multiple of this number."""
    of_each: bool = False
    """Whether the vocabulary is padded to such a multiple for every rank."""
    joint: bool = False
    """Whether routed and shared experts are added on each rank, before one sum over ranks."""
    sequence: bool = False
    """Whether ranks share the tokens between the split modules (sequence parallelism)."""
    given: bool = False
    """Whether a user wrote it: then each of its patterns must match a module."""

    def padding(self, ranks: int) -> int:
        """Return the number to a multiple of which the vocabulary is padded."""
        return self.multiple * (ranks if self.of_each else 1)

    def matching(self, path: str) -> tuple[tuple[str, Layout], ...]:
        """Return the (pattern, layout) pairs whose pattern matches the path of a module or of a parameter."""
        return tuple((pattern, layout) for pattern, layout in self.layouts if _regex(pattern).fullmatch(path))

    def layout(self, path: str) -> Layout:
        """Return the layout of a module or of a parameter; ``replicated`` without a pattern."""
        return next((layout for _, layout in self.matching(path)), "replicated")


@lru_cache(maxsize=1024)
def _regex(pattern: str) -> re.Pattern[str]:
    return re.compile(".+".join(map(re.escape, pattern.split("*"))))


_HEADS: Final = ("q_proj", "k_proj", "v_proj", "q_b_proj", "kv_b_proj")
_MEGATRON: Final[tuple[tuple[str, Layout], ...]] = (
    ("*.embed_tokens", "vocabulary"),
    ("lm_head", "vocabulary"),
    *((f"*.self_attn.{x}", "by_head") for x in _HEADS),
    ("*.self_attn.o_proj", "row"),
    *((f"*.mlp.{x}_proj", "column") for x in ("gate", "up")),
    ("*.mlp.down_proj", "row"),
)
_VLLM: Final[tuple[tuple[str, Layout], ...]] = (
    *_MEGATRON,
    *((f"*.mlp.shared_experts.{x}_proj", "column") for x in ("gate", "up")),
    ("*.mlp.shared_experts.down_proj", "row"),
    ("*.mlp.experts.gate_up_proj", "column"),
    ("*.mlp.experts.down_proj", "row"),
    ("*.mlp.experts", "by_expert"),
)
ENGINES: Final[Mapping[str, LayoutPlan]] = {
    "vllm": LayoutPlan(
        "vllm",
        "vLLM: QKVParallelLinear, MergedColumnParallelLinear and RowParallelLinear; VocabParallelEmbedding "
        "(DEFAULT_VOCAB_PADDING_SIZE = 64); one all-reduce of shared and routed experts; LogitsProcessor (all-gather)",
        _VLLM, multiple=64, joint=True,
    ),
    "megatron": LayoutPlan(
        "megatron",
        "Megatron-LM: ColumnParallelLinear and RowParallelLinear with sequence_parallel; make_vocab_size_divisible_by "
        "= 128 for every rank (_vocab_size_with_padding); Korthikanti et al. 2022, Reducing Activation Recomputation",
        _MEGATRON, multiple=128, of_each=True, sequence=True,
    ),
}  # fmt: skip
"""Plans of engines by name."""


def stored_plan(text: str) -> str:
    """Return a plan as a workload stores it: the name of an engine's, or the layouts of a file of the user.

    Args:
        text: a name, the path of a YAML file that maps patterns to layouts, or the stored form.

    Raises:
        BadInput: there is no such plan, or the file cannot be read.
        Problems: all entries that are not valid.
    """
    if text in ENGINES or text == OWN:
        return text
    if ": " in text and not Path(text).is_file():
        return _stored(_pairs(text), _WHERE)
    if not Path(text).suffix:
        expected = f"{', '.join((OWN, *ENGINES))}, or a YAML file"
        raise BadInput("there is no such plan", where=_WHERE, expected=expected, got=text[:80],
                       fix=did_you_mean(text, (OWN, *ENGINES)))  # fmt: skip
    found = read_document(read_source(Path(text), "a plan"), where=text, what="a plan")
    if not isinstance(found, dict) or not found:
        kind = "an empty map" if found == {} else "a list" if isinstance(found, list) else "a text"
        raise BadInput("a plan maps module patterns to layouts", where=text, expected="PATTERN: LAYOUT", got=kind)
    return _stored(found, text)


def given_plan(given: dict[str, Any], found: list[CostproofError]) -> None:
    """Replace the plan among the settings of a run by its stored form; append errors to ``found``.

    One device shares nothing, and the plan of the class is the default: then there is no plan among the settings.
    """
    text = given.pop(PLAN, None)
    if text is None:
        return
    try:
        stored = stored_plan(str(text))
    except Problems as error:
        found += error.problems
    except BadInput as error:
        found.append(error)
    else:
        if stored != OWN and given.get("tp", 1) not in (1, None):
            given[PLAN] = stored


def _pairs(text: str) -> dict[str, str]:
    return {pattern: layout for pattern, _, layout in (part.partition(": ") for part in text.split("; "))}


def _stored(pairs: Mapping[str, Any], where: str) -> str:
    """Return checked layouts as one line of text."""
    problems: list[CostproofError] = []
    if len(pairs) > _MOST_PATTERNS:
        most = f"at most {_MOST_PATTERNS}"
        raise BadInput("a plan has too many patterns", where=where, expected=most, got=len(pairs))
    for pattern, layout in pairs.items():
        place = f"{where}, {pattern[:80]}"
        if not _PATTERN.fullmatch(pattern) or pattern.count("*") > _MOST_STARS:
            expected = f"the path of a module, with at most {_MOST_STARS} * for any characters"
            problems.append(BadInput("not a pattern of modules", where=place, expected=expected))
        if layout not in LAYOUTS:
            got = layout[:80] if isinstance(layout, str) else type(layout).__name__
            fix = did_you_mean(got, LAYOUTS)
            problems.append(BadInput("no such layout", where=place, expected=", ".join(LAYOUTS), got=got, fix=fix))
    if problems:
        raise Problems("the plan is not valid", problems)
    return "; ".join(f"{pattern}: {layout}" for pattern, layout in pairs.items())


@lru_cache(maxsize=64)
def named_plan(stored: str) -> LayoutPlan:
    """Return the plan that :func:`stored_plan` returned in its stored form."""
    if stored in ENGINES:
        return ENGINES[stored]
    pairs: Any = tuple(_pairs(stored).items())
    return LayoutPlan("given", f"the given plan ({stored})", pairs, given=True)


Styles = Mapping[str, str]
"""Path of a module or a parameter -> name of a style of transformers, or of ours where it has none."""
ROWS_ALONE: Final = "rowwise_alone"
"""Style of ours: as ``rowwise``, but another module adds the products of all ranks."""


def styles_of(model: nn.Module, engine: LayoutPlan, mesh: Mesh) -> tuple[Styles, Styles]:
    """Return a plan of layouts in the styles of transformers, and of ours where it has none: module by module."""
    from torch import nn

    tensor: dict[str, str] = {}
    expert: dict[str, str] = {}
    joint = {path for path, module in model.named_modules() if engine.joint and hasattr(module, "shared_experts")}
    for path, module in model.named_modules():
        layout = engine.layout(path)
        packed = {name for name, _ in module.named_parameters(recurse=False) if name.startswith("gate_up_proj")}
        own = {f"{path}.{name}" for name, _ in module.named_parameters(recurse=False)}
        mixture, of_joint = path.rpartition(".")[0], any(path.startswith(f"{one}.") for one in joint)
        if packed and mesh.ep > 1 and layout == "by_expert":
            expert |= dict.fromkeys(own, "grouped_gemm")
            expert[path] = "ep_local_experts" if mixture in joint else "ep_dispatch_experts"
        elif packed:
            for name in own:
                kind = engine.layout(name.removesuffix("_bias"))
                if kind != "replicated":
                    tensor[name] = _packed_style(module, name, kind)
                    tensor[path] = "packed_rowwise" if mixture in joint else "moe_tp_experts"
        elif layout in ("column", "by_head"):
            tensor |= dict.fromkeys((*own, path), "colwise")
            if hasattr(model.get_submodule(mixture), "sinks"):
                tensor[f"{mixture}.sinks"] = "colwise"
        elif layout == "row":
            tensor |= dict.fromkeys((*own, path), ROWS_ALONE if of_joint else "rowwise")
        elif layout == "vocabulary":
            style = "embedding_rowwise" if isinstance(module, nn.Embedding) else "colwise_gather_output"
            tensor |= dict.fromkeys((*own, path), style)
    for path in joint & {p.rpartition(".")[0] for p in (*tensor, *expert)}:
        tensor[path] = "all_reduce"
    return {**tensor, **(_shared_tokens(model) if engine.sequence else {})}, expert


def _packed_style(module: Any, name: str, kind: str) -> str:
    """Return the style of the stacked weights of experts, or of their biases.

    Weights that are stored as [inputs, outputs] have gate and up columns in turn.
    """
    bias = name.endswith("_bias")
    if kind == "row":
        return "replicate" if bias else "turned_rowwise" if module.is_transposed else "rowwise"
    return "turned_colwise" if module.is_transposed else "packed_colwise"


def _shared_tokens(model: nn.Module) -> Styles:
    """Return the styles of norms before split modules, and of rotary tables, in a model whose ranks share tokens."""
    found: dict[str, str] = {}
    for path, module in model.named_modules():
        if hasattr(module, "self_attn") and hasattr(module, "mlp"):
            names = ("pre_feedforward_layernorm", "post_attention_layernorm")
            last = next(name for name in names if hasattr(module, name))
            found |= {f"{path}.input_layernorm": "gather_tokens", f"{path}.{last}": "gather_tokens"}
        if hasattr(module, "layers") and hasattr(module, "norm"):
            found[f"{path}.norm"] = "gather_tokens"
            tables = [name for name, _ in module.named_children() if name.startswith("rotary")]
            found |= {f"{path}.{name}": "whole_positions" for name in tables}
    return found


_COLUMNS: Final[tuple[Layout, ...]] = ("column", "by_head")
_PLACES: Final[Mapping[str, tuple[str, tuple[Layout, ...]]]] = {
    "text.embedding": ("embedding", ("vocabulary",)),
    "lm_head": ("head", ("vocabulary",)),
    **{f"text.layer.attention.{x}": ("attention", _COLUMNS) for x in ("q", "k", "v", "q_up", "kv_up")},
    "text.layer.attention.out": ("attention", ("row",)),
    **{f"text.layer.{x}.{y}": (x, ("column",)) for x in ("mlp", "shared") for y in ("gate", "up")},
    **{f"text.layer.{x}.down": (x, ("row",)) for x in ("mlp", "shared")},
    "text.layer.experts.gate_up": ("experts", ("column",)),
    "text.layer.experts.down": ("experts", ("row",)),
    "text.layer.experts": ("by_expert", ("by_expert",)),
}
"""Role -> part of a decoder, and the layouts of its module in a plan that splits the part."""


def split_parts(
    plan: LayoutPlan, paths: Mapping[str, str], layers: Mapping[str, Iterable[int]], mesh: Mesh
) -> frozenset[str]:
    """Return the parts of a decoder that a plan splits.

    Args:
        paths: role -> path of a module of this decoder, with ``{i}`` for the layer.
        layers: role -> layers that have it; a role outside of layers has none.

    Raises:
        Problems: every pattern that matches nothing, or part of what has one layout here, and every layout that the
            module cannot have, or that does not go with those of the modules around it.
    """
    problems: list[CostproofError] = []
    chosen: dict[str, dict[str, tuple[str, Layout]]] = {}
    """Part -> path -> (pattern, layout)."""
    used: set[str] = set()
    for role, path in paths.items():
        each = [path.format(i=i) for i in layers.get(role, ())] or [path]
        found = {plan.matching(one) for one in each}
        shown = path.replace("{i}", "*")
        used |= {pattern for pairs in found for pattern, _ in pairs}
        if len(found) > 1:
            pattern = next(p for pairs in found for p, _ in pairs)
            what = "a pattern must match a module in all layers or in none"
            problems.append(_error(plan, what, pattern, f"{shown}, with * for the layer"))
            continue
        (pairs,) = found
        if len({layout for _, layout in pairs}) > 1:
            got = ", ".join(f"{pattern}: {layout}" for pattern, layout in pairs)
            problems.append(_error(plan, f"two layouts of {shown}", pairs[0][0], "one", got))
            continue
        pattern, layout = pairs[0] if pairs else ("", "replicated")
        part, allowed = _PLACES.get(role, ("", ()))
        if layout not in (*allowed, "replicated"):
            expected = ", ".join((*allowed, "replicated"))
            problems.append(_error(plan, f"{shown} cannot have this layout", pattern, expected, layout))
        elif part:
            chosen.setdefault(part, {})[shown] = (pattern, layout)
    if plan.given:
        problems += [
            _error(plan, "the pattern matches no module", pattern, f"such as {next(iter(_shown(paths)))}")
            for pattern, _ in plan.layouts
            if pattern not in used
        ]
    split = set()
    for part, modules in chosen.items():
        whole = [path for path, (_, layout) in modules.items() if layout == "replicated"]
        first = next(((p, x) for p, x in modules.values() if x != "replicated"), None)
        if first is None:
            continue
        if whole:
            what = "modules between which nothing is exchanged must be split together"
            problems.append(_error(plan, what, first[0], f"a layout of {', '.join(whole)}", f"{first[1]} alone"))
        split.add(part)
    by_expert = "by_expert" in split
    if plan.given and mesh.ep > 1 and not by_expert and "experts" in chosen:
        problems.append(BadInput("the plan does not split experts by expert", where=f"{_WHERE}, --ep",
                                 expected="--ep 1, or a layout by_expert", got=mesh.ep))  # fmt: skip
    if plan.given and by_expert and mesh.ep == 1 and "experts" not in split:
        problems.append(BadInput("nothing is split by expert", where=f"{_WHERE}, --ep",
                                 expected=f"--ep {mesh.tp}, as --tp", got=mesh.ep))  # fmt: skip
    if problems:
        raise Problems("the plan does not fit this model", problems)
    return frozenset(split - {"by_expert"})


def _error(plan: LayoutPlan, what: str, pattern: str, expected: str, got: str = "") -> BadInput:
    more: dict[str, Any] = {"got": got} if got else {}
    where = _WHERE if plan.given else f"{_WHERE} {plan.name}"
    return BadInput(what, where=f"{where}, {pattern}", expected=expected, **more)


def _shown(paths: Mapping[str, str]) -> Iterable[str]:
    return (path.replace("{i}", "*") for role, path in paths.items() if role in _PLACES)
