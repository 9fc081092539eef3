"""Describe tensor-parallel plans as data: the layout of each module's parameters over ranks, by module pattern.

A plan of an engine says where weights lie and what ranks exchange. The operators stay those of transformers: an engine
that merges the projections of queries, keys and values, or of gate and up, multiplies and exchanges the same.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, get_args

from costproof.estimate.routing import (
    PROMPT,
    RoutedLayers,
    check_stages,
    copies_by_call,
    is_table,
    pairs_sent,
    routed_call,
    routing_data,
)
from costproof.ledger.document import read_document, read_source
from costproof.ledger.errors import BadInput, CostproofError, Problems, Recount, did_you_mean
from costproof.ledger.mesh import ALL_GATHER, AXES, CP_PLAN, DISPATCH, PAIRS, PLAN, RANK, Mesh
from costproof.ledger.plural import plural

if TYPE_CHECKING:
    from torch import nn

    from costproof.ledger.workload import Workload
    from costproof.models.decoding.sharding import Part, ShardPlan

Layout = Literal["column", "row", "by_head", "vocabulary", "by_expert", "replicated"]
"""How the weights of a module are divided among ranks.

``column``: each rank has some outputs, ``row``: some inputs. ``by_head``: ``column`` in whole heads, of which several
ranks hold copies if there are fewer key/value heads than ranks. ``vocabulary``: each rank has some entries of a table.
``by_expert``: each rank has some experts whole. ``replicated``: each rank has all; so it is without a pattern.
"""
LAYOUTS: Final[tuple[Layout, ...]] = get_args(Layout)
OWN: Final = "transformers"
"""Name of the default plan, which is that of the class in transformers."""
_PATTERN: Final = re.compile(r"[A-Za-z0-9_.*]{1,200}")
_MOST_PATTERNS: Final = 200
_MOST_STARS: Final = 4
_WHERE: Final = f"--{PLAN}"


@dataclass(frozen=True, slots=True)
class LayoutPlan:
    """Layouts of modules by glob pattern, and other choices of an engine, such as padding of the vocabulary."""

    name: str
    source: str
    layouts: tuple[tuple[str, Layout], ...]
    multiple: int = 1
    """Number to a multiple of which the vocabulary is padded."""
    of_each: bool = False
    """Whether each rank's part of the vocabulary, not only the whole, is padded to such a multiple."""
    joint: bool = False
    """Whether each rank adds routed and shared experts before a single sum over ranks."""
    sequence: bool = False
    """Whether ranks divide the tokens between split modules (sequence parallelism)."""
    given: bool = False
    """Whether the plan is the user's; each of its patterns must then match a module."""

    def padding(self, ranks: int) -> int:
        """Return the number whose next multiple is the padded vocabulary."""
        return self.multiple * (ranks if self.of_each else 1)

    def matching(self, path: str) -> tuple[tuple[str, Layout], ...]:
        """Return the (pattern, layout) pairs whose pattern matches the path of a module or of a parameter."""
        return tuple((pattern, layout) for pattern, layout in self.layouts if _regex(pattern).fullmatch(path))

    def layout(self, path: str) -> Layout:
        """Return the layout of a module or of a parameter; ``replicated`` if no pattern matches."""
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
"""Plans of serving and training engines, by name."""


def stored_plan(text: str) -> str:
    """Return a plan as a workload stores it: the name of an engine's plan, or the layouts of a user's file.

    Args:
        text: a name, the path of a YAML file that maps patterns to layouts, or the stored form.

    Raises:
        BadInput: there is no such plan, or the file cannot be read.
        Problems: all entries that are not valid.
    """
    if text in ENGINES or text == OWN:
        return text
    if ": " in text and not _is_file(text):
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
    """Replace the plan in the settings of a run by its stored form; append errors to ``found``.

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


def plan_recounts(given: Mapping[str, Any], made: Workload) -> Iterator[Recount]:
    """Yield second counts of the mesh and the plans of a workload, read from the settings as they were given.

    Args:
        given: all settings, before anything took some out.
        made: the workload that has them.
    """
    for axis in (*AXES, RANK):
        usual = 0 if axis == RANK else 1
        counted = made.rank if axis == RANK else int(getattr(made.mesh, axis))
        yield Recount("", "settings of the run", axis, counted, usual if given.get(axis) is None else int(given[axis]))
    asked = {name: given.get(name) for name in (PLAN, CP_PLAN, DISPATCH)}
    if asked[PLAN] == "transformers" or given.get("tp") in (None, 1):
        asked[PLAN] = None
    elif asked[PLAN] not in (None, "vllm", "megatron"):
        text, stored = str(asked[PLAN]), str(made.inputs.get(PLAN, ""))
        if _is_file(text):
            pairs: Any = read_document(read_source(Path(text), "a plan"), where=text, what="a plan")
            asked[PLAN] = "; ".join(f"{pattern}: {layout}" for pattern, layout in pairs.items())
        elif ": " not in text and ": " in stored:  # a pipe, which can be read only once
            asked[PLAN] = stored
    asked[DISPATCH] = None if asked[DISPATCH] == ALL_GATHER else asked[DISPATCH]
    for name, value in asked.items():
        where = f"settings of the run, --{name.replace('_', '-')} {given.get(name) or ''}".rstrip()
        yield Recount("", where, "is that of the workload", made.inputs.get(name) == value, True)


def _is_file(text: str) -> bool:
    """Return whether a text is the path of a file; the stored form of a plan may be longer than any path."""
    try:
        return Path(text).is_file()
    except OSError:
        return False


def _pairs(text: str) -> dict[str, str]:
    return {pattern: layout for pattern, _, layout in (part.partition(": ") for part in text.split("; "))}


def _stored(pairs: Mapping[str, Any], where: str) -> str:
    """Check the layouts of a plan and return them as one line of text."""
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
    """Return the plan with the stored form that :func:`stored_plan` returns."""
    if stored in ENGINES:
        return ENGINES[stored]
    pairs: Any = tuple(_pairs(stored).items())
    return LayoutPlan("given", f"the given plan ({stored})", pairs, given=True)


Styles = Mapping[str, str]
"""Tensor-parallel styles, of transformers or our own, by path of a module or a parameter."""
ROWS_ALONE: Final = "rowwise_alone"
"""Our own style: ``rowwise`` without the all-reduce, which another module runs."""


def styles_of(model: nn.Module, engine: LayoutPlan, mesh: Mesh) -> tuple[Styles, Styles]:
    """Translate a plan of layouts, module by module, to styles of transformers, or to our own where it has none."""
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
    """Return the style of the stacked weights, or of the stacked biases, of experts.

    Weights that are stored as [inputs, outputs] have gate and up columns in turn.
    """
    bias = name.endswith("_bias")
    if kind == "row":
        return "replicate" if bias else "turned_rowwise" if module.is_transposed else "rowwise"
    return "turned_colwise" if module.is_transposed else "packed_colwise"


def _shared_tokens(model: nn.Module) -> Styles:
    """Return the styles of norms before split modules, and of rotary tables, under sequence parallelism."""
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
"""Part of a decoder that a module belongs to, and the module's layouts in a plan that splits the part, by role."""


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
    """Pattern and layout of each module, by part of the decoder and by path."""
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


class SharedDecoder(Protocol):
    """Protocol of configurations with the sizes of a decoder that ranks share."""

    @property
    def hidden(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def intermediate(self) -> int: ...
    @property
    def vocab(self) -> int: ...
    @property
    def tied(self) -> bool: ...
    def windows(self) -> Sequence[int]: ...


MORE_AXES: Final = ("pp", "cp", "fsdp")
"""Mesh axes that are supported only for decoders without towers."""


def mesh_problems(
    config: SharedDecoder, workload: Workload, plan: ShardPlan, more: Collection[str] = ()
) -> list[BadInput]:
    """Return an error for each reason why a decoder cannot be split over the workload's mesh.

    Args:
        more: axes that are counted besides ``tp``, ``ep`` and ``dp``.
    """
    mesh = workload.mesh
    if mesh.cp == 1 and CP_PLAN in workload.inputs:
        what, where = "each rank has whole sequences, so no plan shares them", f"--{CP_PLAN.replace('_', '-')}"
        return [BadInput(what, where=where, expected="--cp of 2 or more", got=workload.inputs[CP_PLAN])]
    if mesh.one and not workload.rank:
        return [*_pair_problems(config, workload)]
    found = mesh.problems(workload.rank, more=more)
    if plan.sequence and max(mesh.pp, mesh.cp) > 1:
        what, where = "ranks that share tokens are counted without stages and shared sequences", f"--{PLAN}"
        found.append(BadInput(what, where=where, expected="--pp 1, --cp 1", got=f"{plan.name} with {mesh.text}"))
    if mesh.pp > config.layers:
        what = "there are fewer layers than pipeline stages"
        found.append(BadInput(what, where="--pp", expected=f"at most {config.layers}", got=mesh.pp))
    if workload.rows:
        what, where = "a batch of unequal rows is counted on one device only", f"--rows, {mesh.text}"
        found.append(BadInput(what, where=where, expected="one device, or equal sequences"))
    if found:
        return found
    found += _sequence_problems(config, workload) if mesh.cp > 1 else []
    found += _stored_problems(workload, plan) if mesh.fsdp > 1 else []
    for what, size, part in _divided(config):
        # Experts that ranks share are whole; those that all tokens pass are divided with the others, or alone.
        if part in plan.split and size % mesh.tp and part != ("experts" if mesh.ep > 1 else "shared"):
            expected = f"a divisor of the {size} {what}"
            why = f"tensor parallelism must divide the {what}"
            found.append(BadInput(why, where="--tp", expected=expected, got=mesh.tp))
    if "attention" in plan.split and config.kv_heads % mesh.tp and mesh.tp % config.kv_heads:
        expected = f"a divisor or a multiple of the {config.kv_heads} key/value heads"
        found.append(BadInput("ranks would share key/value heads", where="--tp", expected=expected, got=mesh.tp))
    if mesh.tp > 1 and config.tied and len({"embedding", "head"} & plan.split) == 1:
        what = "embedding and output projection share one table, so they need one layout"
        where = f"--{PLAN}" if PLAN in workload.inputs else f"--tp, {plan.source}"
        found.append(BadInput(what, where=where, expected="a plan that splits both, or none"))
    if workload.batch < mesh.dp and mesh.fsdp == 1:
        what = "there are fewer sequences than data-parallel ranks"
        found.append(BadInput(what, where="--batch", expected=f"at least {mesh.dp}", got=workload.batch))
    if mesh.batches > 1 and plan.joint:
        what, expected = "this plan adds routed and shared experts before a sum that ranks of one batch have", OWN
        found.append(BadInput(what, where=f"--{PLAN}, --ep", expected=f"{expected}, or ep {mesh.tp}", got=plan.name))
    if mesh.batches > 1 and (mesh.cp > 1 or (mesh.pp > 1 and DISPATCH not in workload.inputs)):
        what = "experts of several batches are counted without stages and shared sequences"
        others = "" if mesh.cp > 1 else ", or --dispatch all-to-all"
        expected = f"ep {mesh.tp}, or --pp 1 and --cp 1{others}"
        found.append(BadInput(what, where="--ep", expected=expected, got=mesh.text))
    found += _pair_problems(config, workload, joint=plan.joint, more_steps=bool(more))
    if mesh.ep > 1:
        experts = getattr(config, "experts", 0)
        if not experts or experts % mesh.ep:
            expected = f"a divisor of the {experts} routed experts" if experts else "1, since no layer has experts"
            found.append(BadInput("the ranks must have equal numbers of experts", where="--ep", expected=expected,
                                  got=mesh.ep))  # fmt: skip
    return found


def by_heads(config: SharedDecoder, workload: Workload) -> bool:
    """Return whether each rank that shares a sequence attends to all positions with some heads, and caches these.

    Latents have no heads: ranks exchange the expanded ones for a prompt, and cache their own positions.
    """
    latent = getattr(config, "kv_rank", 0) > 0
    return workload.mesh.cp > 1 and workload.inputs.get(CP_PLAN) == "ulysses" and not latent


def _sequence_problems(config: SharedDecoder, workload: Workload) -> list[BadInput]:
    """Return an error for each reason why sharing the sequences of a workload is impossible or not counted."""
    mesh, plan = workload.mesh, workload.inputs.get(CP_PLAN, "zigzag")
    parts = workload.sequence_parts
    found, heads_apart = [], by_heads(config, workload)
    if any(config.windows()) and not heads_apart:
        what = "layers with a window are shared by heads only, since torch's ring takes no window"
        found.append(BadInput(what, where="--cp-plan", expected="ulysses, or --cp 1", got=plan))
    kernels = ("sdpa", "eager") if heads_apart else ("sdpa",)
    for wrong, where, expected, got in (
        (workload.text_tokens < 2 * mesh.cp, "--text-tokens", "at least 2 a rank", workload.text_tokens),
        (workload.past > 0, "--past", "0", workload.past),
        (workload.logits != "all", "--logits", "all: each rank has logits of its positions", workload.logits),
        (workload.attention not in kernels, "--attention", " or ".join(kernels), workload.attention),
        (workload.text_tokens % parts > 0, "--text-tokens", f"a multiple of the {parts} parts", workload.text_tokens),
    ):
        if wrong:
            found.append(BadInput("ranks cannot share these sequences", where=where, expected=expected, got=got))
    if plan == "ulysses":
        for name, heads in (("query", config.heads), ("key/value", config.kv_heads)):
            if heads % (mesh.cp * mesh.tp):
                what, expected = f"ranks would share {name} heads", f"tp x cp a divisor of {heads}"
                found.append(BadInput(what, where="--cp", expected=expected, got=mesh.cp))
    return found


def _stored_problems(workload: Workload, plan: ShardPlan) -> Iterator[BadInput]:
    """Yield an error for each reason why sharding the parameters (FSDP) is impossible or cannot be counted."""
    mesh = workload.mesh
    if mesh.batches > 1:
        what = "--fsdp does not shard experts whose --ep group processes several batches"
        yield BadInput(what, where="--fsdp, --ep", expected=f"--ep of 1 or tp {mesh.tp}", got=mesh.ep)
    if mesh.tp > 1 and (plan.multiple > 1 or plan.sequence):
        what = "fully_shard stores parts of what transformers splits, not of this engine's tables and tokens"
        yield BadInput(what, where=f"--fsdp, --{PLAN}", expected=f"{OWN}, or a YAML file", got=plan.name)
    if workload.batch < (parts := mesh.dp * mesh.fsdp):
        what = "each rank that gathers parameters runs sequences of its own"
        yield BadInput(what, where="--batch", expected=f"at least fsdp x dp = {parts}", got=workload.batch)


def _pair_problems(
    config: SharedDecoder, workload: Workload, *, joint: bool = False, more_steps: bool = True
) -> Iterator[BadInput]:
    """Yield an error for each reason why a routing is not one of the run, or cannot be counted.

    Args:
        joint: whether ranks add routed and shared experts before a single sum over ranks.
        more_steps: whether steps with unequal numbers of pairs are counted.
    """
    mesh, inputs = workload.mesh, workload.inputs
    text, exchanged = str(inputs.get(PAIRS, "")), DISPATCH in inputs
    table = PAIRS in inputs and is_table(text)
    if (exchanged and not text) or (table and not exchanged):
        what, fix = "how many pairs of a token and an expert ranks send each other depends on the routing", None
        where, expected = f"--{DISPATCH}, --{PAIRS}", "both, or none"
        if text:
            fix = "--dispatch all-to-all, which sends these pairs"
        if exchanged:
            fix = "name the pairs, or see the means and bounds that a report of the mesh without --dispatch has"
        yield BadInput(what, where=where, expected=expected, got=str(inputs.get(DISPATCH, text))[:80], fix=fix)
        return
    experts = getattr(config, "experts", 0)
    if not text or (mesh.ep > 1 and (not experts or experts % mesh.ep)):  # which another error names
        return
    if mesh.batches == 1 and not exchanged:
        what = "these ranks send no tokens to experts: those that share experts have one batch, and add up results"
        yield BadInput(what, where=f"--{PAIRS}", expected="--ep above --tp, and --dp", got=mesh.text or "one device",
                       fix=f"leave out --{PAIRS}")  # fmt: skip
        return
    refused = [*_exchange_problems(workload, table=table, joint=joint)] if exchanged else []
    yield from refused
    if refused:
        return
    top_k, layers = int(getattr(config, "top_k", 0)), sum(routed_layers(config))
    if not layers:
        what, fix = "no layer of this model has routed experts", f"leave out --{PAIRS} and --{DISPATCH}"
        yield BadInput(what, where=f"--{PAIRS}", expected="a layer with routed experts", got=text[:80], fix=fix)
        return
    try:
        if not table:
            _check_stages(workload, RoutedLayers(layers, experts, top_k, 0, 0), text)
        stages = (PROMPT, *((_STEPS,) if workload.new_tokens else ())) if exchanged else ()
        every = {stage: pairs_sent(workload, layers, experts, top_k, stage) for stage in stages}
    except BadInput as error:
        yield error
        return
    if not more_steps and len({*every.get(_STEPS, ())}) > 1:
        what = "steps of one graph must send equally many pairs from each rank to each"
        yield BadInput(what, where=f"--{PAIRS}", expected=f"the numbers of $.{_STEPS}[0] in each step, or 1 new token",
                       fix=f"leave out --{DISPATCH}: the table of its forms has any routing")  # fmt: skip
    for stage, layer in {(of, pairs) for of, calls in every.items() for call in calls for pairs in call}:
        each = [tokens * top_k for tokens in routed_call(workload, stage).sends(mesh)]
        if [sum(row) for row in layer] != each or any(len(row) != mesh.ep for row in layer):
            sums = (
                f"each with the sum {each[0]}"
                if len({*each}) == 1
                else f"with the sums {', '.join(map(str, each[:8]))}"
            )
            expected = f"{len(each)} rows of {mesh.ep} numbers, {sums}: tokens that a rank sends x top-k"
            what = "these are not the numbers of pairs of the ranks"
            yield BadInput(what, where=f"--{PAIRS}", expected=expected, got=text[:80])
        elif not all(sum(column) for column in _columns(layer, mesh)):
            what, expected = (
                "a rank without a single pair runs no experts",
                f"at least one pair for each rank, in each layer of {stage}",
            )
            yield BadInput(what, where=f"--{PAIRS}", expected=expected, got=text[:80])


_STEPS: Final = "decode"


def _exchange_problems(workload: Workload, *, table: bool, joint: bool) -> Iterator[BadInput]:
    """Yield an error for each reason why ranks cannot send each other the pairs of a run, or no graph counts it.

    Ranks along ``tp`` send slices of the tokens that they share (transformers ``AllToAllEP``).
    """
    mesh, where = workload.mesh, f"--{DISPATCH}"
    fix = None if table else f"leave out --{DISPATCH}: the table of its forms has the given routing of any run"
    if mesh.ep == 1:
        what = "one rank has all experts, so that no pairs are sent"
        yield BadInput(what, where=where, expected="--ep above 1", got=mesh.text or "one device", fix=fix)
    if mesh.cp > 1:
        what = "transformers, whose AllToAllEP sends these pairs, has no ranks that share sequences"
        yield BadInput(what, where=where, expected="--cp 1", got=mesh.text, fix=fix)
    if joint:
        what = "this plan adds routed and shared experts in one sum over ranks, and sent pairs return without a sum"
        yield BadInput(what, where=f"{where}, --{PLAN}", expected=OWN, fix=fix)
    if workload.new_tokens and table:
        what = "a table has the pairs of one call, and steps have other numbers of tokens"
        yield BadInput(what, where=f"--{PAIRS}", expected="--new-tokens 0, or a routing file",
                       got=plural(workload.new_tokens, "new token"))  # fmt: skip
    if workload.new_tokens and workload.text_tokens == 1:
        what = "a graph tells a prompt from a step by its number of tokens"
        yield BadInput(what, where="--text-tokens", expected="2 or more, or --new-tokens 0", got=1, fix=fix)


def _check_stages(workload: Workload, sizes: RoutedLayers, routing: str) -> None:
    """Check that a routing file has the choices of all tokens of all ranks, in all stages of a run.

    Raises:
        BadInput: it has others.
    """
    every = [call for stage in (PROMPT, _STEPS) if (call := routed_call(workload, stage)).calls]
    check_stages(routing_data(routing), [call.stage for call in every], routing.partition(" sha256:")[0])
    for call in every:
        copies_by_call(routing, call, sizes, replace(workload.mesh, pp=1), "expert")


def _columns(pairs: tuple[tuple[int, ...], ...], mesh: Mesh) -> Iterator[tuple[int, ...]]:
    """Yield, for each rank, the pairs that each rank of its group sends to it."""
    for rank in range(len(pairs)):
        yield tuple(pairs[other][mesh.coordinates(rank).ep] for other in mesh.group("ep", rank))


def routed_layers(config: SharedDecoder) -> tuple[bool, ...]:
    """Return whether each layer has a mixture of experts, layer by layer."""
    routed = getattr(config, "routed", None)
    return routed() if routed is not None else (False,) * config.layers


def _divided(config: SharedDecoder) -> Iterator[tuple[str, int, Part]]:
    """Yield (name, size, part of the decoder) of each width that tensor parallelism divides."""
    yield "attention heads", config.heads, "attention"
    kinds = routed_layers(config)
    if not all(kinds):
        yield "elements of an MLP's inner width", config.intermediate, "mlp"
    if any(kinds):
        inner = getattr(config, "expert_width", 0) or config.intermediate
        yield "elements of an expert's inner width", inner, "experts"
        yield "elements of the shared experts' inner width", inner * getattr(config, "shared", 0), "shared"
