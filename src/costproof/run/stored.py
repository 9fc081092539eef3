"""Implement ``costproof.stored``: derive a checkpoint's tensors from a configuration, or read them from headers."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from costproof.analytic import quantised as closed_forms
from costproof.configs.known_keys import harmless
from costproof.ledger.attributes import attribute
from costproof.ledger.environment import require
from costproof.ledger.errors import EXIT_FINDINGS, BadInput, CostproofError, Incomplete, Recount, check_recounts
from costproof.ledger.mesh import RANK, Parallel
from costproof.ledger.plural import plural
from costproof.ledger.workload import FLOAT_BYTES, FURTHER_TOKENS, Workload
from costproof.models.registry import load_target
from costproof.models.target import Sharded, Target, WithStorage
from costproof.parametric.targets import FurtherLayout, count_further
from costproof.run.count_lock import count_lock
from costproof.storage.checkpoint import ModelNames, StoredCheckpoint, compare_headers, parts_of
from costproof.storage.formats import Gptq
from costproof.storage.headers import HeaderTensor, gguf_sections, read_checkpoint, read_header
from costproof.storage.scheme import PLAIN, UnknownFormat
from costproof.storage.tensors import BLOCKS, DTYPE_BITS, STORED_AS, StoredTensor, totals

if TYPE_CHECKING:
    from torch import nn

    from costproof.tracers.stored_module import StoredModule
    from costproof.weights.stored import Stored


def stored(
    target: str,
    *,
    config: str | os.PathLike[str] | None = None,
    next_token: int = 0,
    files: str | os.PathLike[str] | None = None,
    trust_remote_code: bool = False,
) -> StoredCheckpoint:
    """Return the names, shapes and bytes of the tensors in a target's checkpoint, without reading weights.

    Args:
        target: the target; ``hf:CONFIG.json`` is any configuration of transformers.
        config: a configuration file, for a registered target.
        next_token: modules that predict one more token (MTP) to count, as the checkpoint of DeepSeek-V3 has one.
        files: a folder with the checkpoint, or one of its files, whose headers are compared; their data need not be
            there.
        trust_remote_code: whether the code of a snapshot that is a target may run.

    Raises:
        BadInput: there is no such target, or the files are not a checkpoint.
        Incomplete: the format of the weights, or of the names in a GGUF file, is not known, or torch is missing.
        ReadingsDiffer: two readings of the configuration, or two counts of the MTP modules, differ.
    """
    require("trace", "the tensors of a checkpoint")
    with count_lock():
        found = load_target(target, None if config is None else Path(config), trusted=trust_remote_code)
        return stored_checkpoint(found, next_token, None if files is None else Path(files))


def stored_checkpoint(target: Target, next_token: int = 0, files: Path | None = None) -> StoredCheckpoint:
    """Return the stored tensors of a target that is already loaded; see :func:`stored`.

    Raises:
        BadInput: the target has no checkpoint, or fewer MTP modules than ``next_token``.
        Incomplete: the format of the weights is not known.
    """
    from costproof.tracers.stored_module import (
        assumed_of_experts,
        gguf_layout,
        model_facts,
        model_names,
        named_as_class,
        next_token_tensors,
        stored_modules,
        tied_head,
    )
    from costproof.weights.library_reading import library_reading

    if not isinstance(target, WithStorage):
        raise BadInput(
            "the stored format of this target is not known", where=target.name,
            expected="a family of costproof targets, or hf:CONFIG.json",
        )  # fmt: skip
    model = target.build_stored()
    facts, scheme = model_facts(model), PLAIN
    there: dict[str, tuple[HeaderTensor, ...]] = {}
    if files is not None:
        there = {files.name: read_header(files)} if files.is_file() else read_checkpoint(files)
    packed = [name for name in there if name.endswith(".gguf")]
    names, assumed, params = model_names(model), list[str](), facts.params
    try:
        if packed:
            if next_token:
                raise BadInput("MTP modules are not counted in a GGUF file", where="--mtp",
                               expected="0 with a GGUF file, where the layout of their tensors is not known",
                               got=next_token)  # fmt: skip
            _, tensors, names = gguf_layout(model, [tensor for found in there.values() for tensor in found])
            assumed.append("types of tensors are those of the GGUF file")
        else:
            scheme = target.stored.scheme(facts.model_type)
            readings = (library_reading(target.stored, model), scheme)
            by_module = [list(stored_modules(model, of)) for of in readings]
            tensors, by_rules = ([t for m in of for t in (*m.quantised, *m.plain)] for of in by_module)
            check_recounts(_layout_recounts(by_module[1], scheme.cache))
            further: list[StoredTensor] = []
            if next_token:
                further, further_by_rules = (list(next_token_tensors(model, of, next_token)) for of in readings)
                params += _params_of(further, names.parameters)
                text = attribute(model, "config").get_text_config()
                check_recounts(_dtype_recounts(tensors, further))
                again = _check_further(tensors, further, next_token, text, names.parameters)
                check_recounts([Recount("checkpoint", "MTP modules", "parameters", params - facts.params, again)])
                tensors, by_rules = tensors + further, by_rules + further_by_rules
            _check_readings(tensors, by_rules)
            own = tensors[: len(tensors) - len(further)]
            zeros = any(isinstance(rule.format, Gptq) and rule.format.zero_bias for rule in scheme.rules)
            check_recounts(_param_recounts(facts.params, names.parameters, own, zeros=zeros))
            assumed += (*scheme.assumed, *assumed_of_experts(model, tensors), *_not_stated(target, model, tensors))
            assumed += _names_of_none(target.stored, model, tensors, names)
    except UnknownFormat as error:
        raise Incomplete(
            "the bytes of this format are not known", where=target.name, expected="a format of docs/checkpoints.md",
            got=f"{error.name}: {error.why}{_read_of(there) if packed else ''}",
        ) from error  # fmt: skip
    quantised = [of for rule in scheme.rules if (of := rule.format)]
    undetermined = tuple(dict.fromkeys(text for of in quantised for text in of.undetermined()))
    more = max(0, facts.next_token_modules - next_token)
    key = f" ({facts.next_token_key})" if facts.next_token_key else ""
    how = "of which a GGUF file has no derived layout" if packed else "which costproof stored --mtp counts"
    if others := _others(model, facts.model_type):
        left = [f"MTP modules ({', '.join(others)}), whose layout is not known"]
    else:
        left = [f"{plural(more, 'MTP module')}{key}, {how}"] if more else []
    if not packed and (head := tied_head(model)) and ("tie_word_embeddings", False) in (target.stored.stated or ()):
        left.append(f"{head}, which the class ties to the table of words in spite of tie_word_embeddings")
    headers = None
    if files is not None:
        named = there if packed else {name: named_as_class(found, model) for name, found in there.items()}
        headers = compare_headers(tensors, named, undetermined, names)
        folder = files.parent if files.is_file() else files
        sections = [section for name in packed for section in gguf_sections(folder / name)]
        headers = replace(headers, sections=tuple(sections))
    formats = dict.fromkeys(of.title for of in quantised)
    if packed:
        formats = dict.fromkeys(f"GGUF {dtype}" for dtype, _ in totals(tensors).by_dtype)
    made = StoredCheckpoint(
        target.name,
        "gguf" if packed else scheme.method,
        tuple(formats),
        params,
        next_token,
        totals(tensors),
        parts_of(tensors),
        tuple(assumed),
        undetermined,
        max(map(_unpacked, tensors), default=0),
        sum(tensor.bytes for tensor in tensors if tensor.purpose == "buffer"),
        tuple(left),
        headers,
    )
    check_recounts(_recounts(made, more, facts.next_token_modules, there))
    blocks = [prod(part.shape) for part in made.parts if BLOCKS.get(part.dtype, (1,))[0] > 1]
    largest = sorted([*(tensor.stands_for for tensor in tensors), *blocks])[-1:]
    check_recounts([Recount("checkpoint", "quantised weights", "largest matrix", made.largest_matrix, sum(largest))])
    check_recounts(_further_recounts(attribute(model, "config", None), facts.model_type, facts.next_token_modules))
    return made


def further_of_ranks(
    target: Target, formulas: Sharded, workload: Workload, modules: int, one: tuple[int, int]
) -> Parallel:
    """Return the MTP modules that each rank of a mesh holds, by formulas; checked by tensors of one rank's model.

    Args:
        target: whose checkpoint has the modules.
        formulas: the same target, of which ranks are counted.
        one: stored bytes and parameters of the modules on one device, from their tensors.

    Raises:
        BadInput: their layout on ranks is not known.
    """
    from costproof.models.decoding.ranks import NativeOnRanks, shard_for_export
    from costproof.tracers.stored_module import FURTHER, model_facts, model_names, next_token_tensors
    from costproof.weights.library_reading import library_reading

    assert isinstance(target, WithStorage)
    model, mesh = target.build_stored(), workload.mesh
    model_type = model_facts(model).model_type
    family = FURTHER[model_type]
    if not isinstance(target, NativeOnRanks) or family.is_quantised or family.is_dense or target.dtype is None:
        what = "the layout of these MTP modules on ranks is not known"
        raise BadInput(what, where="--mtp", expected="one device, or the modules of DeepSeek-V3", got=model_type)
    layout = FurtherLayout(modules, len(family.norms), 2, bool(family.tables), FLOAT_BYTES[target.dtype])
    found = count_further(formulas, workload, layout)
    known = found.one_device[""]
    again = {"stored_bytes": one[0], "params": one[1]}
    check_recounts(Recount("checkpoint", "MTP modules on one device", m, known[m], n) for m, n in again.items())
    # The model of a rank of the last stage has the layer that the modules are like, and here both tables.
    flat = {name: value for name, value in workload.inputs.items() if name != "pp"}
    size = mesh.world // mesh.pp
    own = replace(workload, inputs={**flat, RANK: workload.rank % size})
    shard_for_export(model, own, target.decoder_of_rank(own))
    for reading in (library_reading(target.stored, model), target.stored.scheme(model_type)):
        tensors = list(next_token_tensors(model, reading, modules))
        of_tensors = {
            "params": _params_of(tensors, model_names(model).parameters),
            "stored_bytes": sum(t.bytes for t in tensors),
            "stored_elements": sum(t.elements for t in tensors),
            "resident_bytes": sum(t.bytes for t in tensors if t.is_held),
        }
        rank = mesh.world - size + workload.rank % size
        (row,) = (row.stages[""] for row in found.ranks if rank in row.ranks)
        where = f"MTP modules on rank {rank}"
        check_recounts(Recount("checkpoint", where, m, row[m], n) for m, n in of_tensors.items())
    return found


def _layout_recounts(modules: Iterable[StoredModule], cache: str) -> Iterator[Recount]:
    """Yield second counts of the quantised tensors of each module, by the closed forms of their formats.

    Both readings of the settings share the layouts of formats: without these counts, only headers would show a tensor
    that a layout lacks or has twice.

    Args:
        cache: kind of the scales of a quantised cache.
    """
    names: dict[str, Any] = {stored: name for name, stored in STORED_AS.items()}
    for module in modules:
        elements, size = closed_forms.cache_scales(cache, names[module.cache_dtype]) if module.cache_dtype else (0, 0)
        for matrix in module.matrices if module.replaced else ():  # a tied projection stores nothing
            shape, of = matrix.linear, matrix.format
            if of is not None:
                form = closed_forms.MatrixShape(shape.rows, shape.columns, shape.bias, names[shape.dtype])
                for counted, held in closed_forms.parts_of(of, form).values():
                    elements, size = elements + matrix.count * int(counted), size + matrix.count * int(held)
        where, found = module.path or "(root)", module.quantised
        yield Recount("checkpoint", where, "elements in its format", sum(t.elements for t in found), elements)
        yield Recount("checkpoint", where, "bytes in its format", sum(t.bytes for t in found), size)


def _unpacked(tensor: StoredTensor) -> int:
    """Return the number of weights in a quantised tensor; 0 for others."""
    in_blocks, _ = BLOCKS.get(tensor.dtype, (1, 0))
    return tensor.stands_for or (prod(tensor.shape) if in_blocks > 1 else 0)


def _params_of(further: Iterable[StoredTensor], names: Collection[str]) -> int:
    """Return the number of parameters of MTP modules.

    Args:
        names: the names of the model's parameters; a bias that no layer of the model has is one that a format adds.
    """
    inside = {re.split(r"\.\d+\.", name, maxsplit=1)[-1] for name in names}
    counted = (
        tensor
        for tensor in further
        if tensor.purpose == "weight"
        or (tensor.purpose == "bias" and re.split(r"\.\d+\.", tensor.name, maxsplit=1)[-1] in inside)
    )
    return sum(tensor.count * (tensor.stands_for or prod(tensor.shape)) for tensor in counted)


def _param_recounts(
    found: int, names: Collection[str], tensors: Iterable[StoredTensor], *, zeros: bool
) -> Iterator[Recount]:
    """Yield second counts of the parameters, and of the zero biases that a format adds, from the stored tensors.

    Args:
        found: the number of parameters.
        names: the names of parameters in the checkpoint, in which experts may be one stack.
        zeros: whether each packed matrix without a bias has one of zeros.
    """
    biased = {name.rpartition(".")[0] for name in names if name.endswith("bias")}

    def known(bias: str) -> bool:
        stack, one_by_one, _ = bias.partition(".*.")
        return bias in names or (bool(one_by_one) and stack in biased)

    again, more, packed = 0, 0, 0
    for tensor in tensors:
        if tensor.purpose == "weight" or (tensor.purpose == "bias" and known(tensor.name)):
            again += tensor.count * (tensor.stands_for or prod(tensor.shape))
        more += tensor.count * (tensor.purpose == "bias" and not known(tensor.name))
        module, _, last = tensor.name.rpartition(".")
        packed += tensor.count * (zeros and last == "qweight" and not known(f"{module}.bias"))
    yield Recount("checkpoint", "parts", "parameters", found, again)
    yield Recount("checkpoint", "packed matrices", "biases of zeros", more, packed)


_USUAL: Final = {"qwen3_next": 1, "mimo_v2_flash": 3}
"""Model type -> MTP modules of its checkpoints, where no key of the configuration gives their number."""


def _further_recounts(config: Any, model_type: str, found: int) -> Iterator[Recount]:
    """Yield the MTP modules, from the key of the configuration that names layers of them, whether there are some."""
    if config is None:
        return
    inner = attribute(config, "get_text_config", lambda: config)()
    key = "mtp_num_hidden_layers" if re.match("qwen3_5(_|$)", model_type) else "num_nextn_predict_layers"
    key = attribute(inner, "attribute_map", {}).get(key, key)
    stated = attribute(inner, "to_dict", dict)().get(key)
    again = stated if type(stated) is int else _USUAL.get(model_type, 0)
    yield Recount("checkpoint", "multi-token prediction", "modules of the model", found, again)


def _dtype_recounts(main: Iterable[StoredTensor], further: Iterable[StoredTensor]) -> Iterator[Recount]:
    """Yield the bits of each tensor of MTP modules: as in the layers, and where these lack it as in the table."""
    layers: defaultdict[tuple[str, bool], set[int]] = defaultdict(set)
    table = set[int]()

    def key(tensor: StoredTensor) -> tuple[str, bool]:
        plain = not tensor.stands_for and tensor.purpose in ("weight", "bias", "buffer")
        return re.sub(r".*\b(\w*layers|mtp)\.\d+\.", "", tensor.name), plain

    for tensor in main:
        if bits := DTYPE_BITS.get(tensor.dtype):
            layers[key(tensor)].add(bits)
            if key(tensor)[1] and re.search(r"(^|\.)embed(_tokens)?\.weight$", tensor.name):
                table.add(bits)
    for tensor in further:
        part, plain = key(tensor)
        found, expected = DTYPE_BITS[tensor.dtype], layers.get((part, plain)) or (table if plain else set())
        if expected:
            again = found if found in expected else min(expected)
            yield Recount("checkpoint", f"MTP modules, {part}", "bits of an element", found, again)


def _recounts(
    found: StoredCheckpoint, left: int, further: int, files: Mapping[str, Sequence[HeaderTensor]]
) -> Iterator[Recount]:
    """Yield second counts of a checkpoint: its totals by the shapes of its parts, and its MTP modules.

    Args:
        left: MTP modules that are left out.
        further: MTP modules that the checkpoint has.
        files: tensors in the headers, by file.
    """
    elements, sizes = Counter[str](), Counter[str]()
    for part in found.parts:
        number = part.tensors * prod(part.shape)
        of, size = BLOCKS.get(part.dtype, (8, DTYPE_BITS.get(part.dtype, 0)))
        yield Recount("checkpoint", part.name, "elements", part.elements, number)
        yield Recount("checkpoint", part.name, "bytes", part.bytes, number * size // of)
        elements[part.dtype] += number
        sizes[part.purpose] += number * size // of
    every = {"stored elements": (found.totals.elements, elements.total()), **{
        f"elements in {dtype}": (number, elements[dtype]) for dtype, number in found.totals.by_dtype}}  # fmt: skip
    every |= {
        "stored bytes": (found.totals.bytes, sizes.total()),
        "bytes of buffers": (found.buffer_bytes, sizes["buffer"]),
    }
    for metric, (number, again) in every.items():
        yield Recount("checkpoint", "parts", metric, number, again)
    yield Recount("checkpoint", "multi-token prediction", "modules", found.next_token_modules + left, further)
    if found.headers is not None:  # those of unknown size have some bytes
        more = found.headers.bytes - found.totals.bytes - sum(one.bytes for one in found.headers.differences)
        where = "layout and differences of headers"
        yield Recount("checkpoint", where, "bytes", more, max(0, more) if found.undetermined else 0)
        yield Recount("checkpoint", "headers", "tensors", found.headers.tensors, sum(map(len, files.values())))
        yield Recount("checkpoint", "headers", "files", found.headers.files, len(files))
        if not found.undetermined:
            again = sum(part.tensors for part in found.parts)
            again += sum(one.tensors * (bool(one.got) - bool(one.expected)) for one in found.headers.differences)
            yield Recount("checkpoint", where, "tensors", found.headers.tensors, again)


def _others(model: nn.Module, model_type: str) -> list[str]:
    """Return the configuration keys that ask for MTP modules if the model type has no known layout of them."""
    from costproof.tracers.stored_module import FURTHER

    config = attribute(model, "config", None)
    if config is None or model_type in FURTHER or not attribute(config, "use_mtp", True):
        return []
    inner = attribute(config, "get_text_config", lambda: config)()
    return [
        f"{key} {value}"
        for key, value in attribute(inner, "to_dict", dict)().items()
        if type(value) is int and value > 0 and harmless(model_type, key, value) == FURTHER_TOKENS
    ]


def _not_stated(target: WithStorage, model: nn.Module, tensors: Iterable[StoredTensor]) -> Iterator[str]:
    """Yield the assumptions about unquantised weights and the output layer that no configuration key states."""
    from costproof.tracers.stored_module import tied_head

    if (stated := target.stored.stated) is None:
        return
    if target.stored.dtype is None:
        plain = Counter[str]()
        for tensor in tensors:
            if tensor.purpose == "weight" and not tensor.stands_for:
                plain[tensor.dtype] += tensor.bytes
        if plain:
            which = "weights that are not quantised" if any(tensor.stands_for for tensor in tensors) else "weights"
            yield f"{which} are {plain.most_common(1)[0][0]}, which no key says"
    if "tie_word_embeddings" not in dict(stated) and (head := tied_head(model)):
        yield f"{head} is the table of words, which no key says"


def _names_of_none(
    stored: Stored, model: nn.Module, tensors: Iterable[StoredTensor], names: ModelNames
) -> Iterator[str]:
    """Yield a sentence on the names in the quantisation settings that match no module of the model, nor of its MTP."""
    own = [path for path, _ in model.named_modules()]
    paths = {*own, *names.parameters, *(name for name, _ in (*model.named_parameters(), *model.named_buffers()))}
    stacks = {path for path in own if path.endswith("experts")}
    experts = 1
    for tensor in tensors:
        stack, one_by_one, part = tensor.name.partition(".*.")
        if one_by_one:
            experts = max(experts, tensor.count)
            stacks.add(stack)
            paths |= {f"{place}.0.{part}" for place in stacks}
        paths.add(tensor.name)
    last = max((int(m[1]) for path in own if (m := re.search(r"\.layers\.(\d+)$", path))), default=-1)
    inside = [path.partition(f".layers.{last}.")[2] for path in own if f".layers.{last}." in path]
    paths |= {prefix + part for prefix in names.further_tokens for part in inside}
    paths |= {path.rpartition(".")[0] for path in paths}
    classes = {of.__name__ for module in model.modules() for of in type(module).__mro__}
    found = stored.names_of_none(paths, classes)
    if found and experts > 1:  # names of single experts
        ones = [path for path in paths if ".experts.0." in path]
        every = [path.replace(".experts.0.", f".experts.{i}.") for path in ones for i in range(experts)]
        found = [name for name in stored.names_of_none(every, classes) if name in found]
    found = [
        name for name in found if not any(prefix in name.replace("\\.", ".") + "." for prefix in names.further_tokens)
    ]
    if found:
        shown = ", ".join(repr(name[:60]) for name in found[:_NAMED])
        more = f" and {len(found) - _NAMED:,} more" if len(found) > _NAMED else ""
        yield f"names of modules that the model does not have change nothing: {shown}{more}"


_NAMED: Final = 3
"""Maximum number of such names that a sentence has."""
_REPORT: Final = "report the configuration: one of the two is wrong, so that no total is stated"


class ReadingsDiffer(CostproofError):
    """Raised if the library and our own rules derive different tensors from a configuration; exit code 1."""

    exit_code = EXIT_FINDINGS


def _check_readings(by_library: Sequence[StoredTensor], by_rules: Sequence[StoredTensor]) -> None:
    """Compare the tensors that the library and our own rules derive from the quantisation settings.

    Raises:
        ReadingsDiffer: there are some.
    """
    library, rules = ({(p.name, p.dtype, p.shape): p for p in parts_of(of)} for of in (by_library, by_rules))
    differing = [key for key in {**library, **rules} if library.get(key) != rules.get(key)]
    if differing:
        name, dtype, shape = differing[0]
        counts = [of[differing[0]].tensors if differing[0] in of else 0 for of in (rules, library)]
        raise ReadingsDiffer(
            "two readings of the quantisation settings differ", where=name,
            expected=f"{plural(counts[0], 'tensor')} {dtype} {[*shape]}, of {plural(len(differing), 'difference')}",
            got=plural(counts[1], "tensor"), fix=_REPORT,
        )  # fmt: skip


_FURTHER: Final[Mapping[str, Mapping[str, str]]] = {
    r"model\.layers\.\d+\.": {
        "eh_proj": "h 2h, plain", "enorm": "h", "hnorm": "h", "shared_head.norm": "h", "embed_tokens": "V h, plain",
        "shared_head.head": "V h, plain",
    },
    r"mtp\.": {"fc": "h 2h", "norm": "h", "pre_fc_norm_embedding": "h", "pre_fc_norm_hidden": "h"},
    r"model\.mtp_layers\.\d+\.": {
        "input_proj": "h 2h", "token_layernorm": "h", "hidden_layernorm": "h", "final_layernorm": "h",
    },
    r"model\.mtp\.layers\.\d+\.": {"eh_proj": "h 2h, plain", "enorm": "h", "hnorm": "h", "final_layernorm": "h"},
}  # fmt: skip
"""Tensors that an MTP module has in addition to a decoder layer, by a pattern of module names.

What is plain has the dtype of the table, whatever else is quantised. Source: headers of DeepSeek-V3 and GLM-4.5,
Qwen3-Next, MiMo-7B, MiMo-V2.
"""


def _check_further(
    main: Iterable[StoredTensor], further: Iterable[StoredTensor], modules: int, config: Any, names: Collection[str]
) -> int:
    """Compare MTP modules with published checkpoint headers, independently of the code that derived their layout.

    Each has what :data:`_FURTHER` says, and as many weights in each part as the last layer with attention (not linear),
    and with experts if any layer has some.

    Raises:
        ReadingsDiffer: they have other weights.
    """
    if config.model_type == "deepseek_v4":
        return _check_deepseek_4(further, modules, config)
    h, vocabulary = config.hidden_size, config.vocab_size
    shapes = {"h": (h,), "h 2h": (h, 2 * h), "V h": (vocabulary, h)}
    sizes = {name: prod(shape) for name, shape in shapes.items()}
    layers: defaultdict[int, Counter[str]] = defaultdict(Counter)
    dtype = ""
    for path, tensor in _weights(main):
        dtype = tensor.dtype if path.endswith("embed_tokens") else dtype
        if found := re.search(r"\.layers\.(\d+)\.(.+)", path):
            layers[int(found[1])][found[2]] += tensor.count * (tensor.stands_for or prod(tensor.shape))
    attends = [i for i, parts in layers.items() if any(part.startswith("self_attn.") for part in parts)]
    mixed = [i for i in attends if any(".experts." in part for part in layers[i])]
    layer = _layer_of_mimo_2(config) if config.model_type == "mimo_v2_flash" else layers[max(mixed or attends)]
    expected = Counter({part: modules * size for part, size in layer.items()})
    got: Counter[str] = Counter()
    beginnings: set[str] = set()
    for path, tensor in _weights(further):
        outside, beginning = next((names, m[0]) for start, names in _FURTHER.items() if (m := re.match(start, path)))
        if beginning not in beginnings:
            beginnings.add(beginning)
            for part, shape in outside.items():
                expected[part + (f" in {dtype}" if "plain" in shape else "")] += sizes[shape.removesuffix(", plain")]
        part = path.removeprefix(beginning)
        part = re.sub(r"^layers\.\d+\.", "", part) + (f" in {tensor.dtype}" if "plain" in outside.get(part, "") else "")
        got[part] += tensor.count * (tensor.stands_for or prod(tensor.shape))
        known = shapes.get(outside.get(part.removesuffix(f" in {dtype}"), "").removesuffix(", plain"))
        if known is not None and not tensor.stands_for and tensor.shape != known:
            raise ReadingsDiffer(
                "MTP modules (--mtp) differ from those in published headers", where=tensor.name,
                expected=str([*known]), got=str([*tensor.shape]), fix=_REPORT,
            )  # fmt: skip
    _require_equal(expected, got)
    if config.model_type == "mimo_v2_flash":
        rows: int = sum(layer[f"self_attn.{name}_proj"] for name in "qkv") // h
        return expected.total() + modules * rows * bool(config.attention_bias)
    copied = f".layers.{max(mixed or attends)}."
    biases = sum(prod(tensor.shape) for tensor in main if copied in tensor.name and tensor.name.endswith(".bias")
                 and tensor.name in names)  # fmt: skip
    return expected.total() + modules * biases


def _require_equal(expected: Counter[str], got: Counter[str]) -> None:
    """Raise :class:`ReadingsDiffer` if MTP modules do not have the expected weights in each part."""
    differing = min((part for part in {*expected, *got} if expected[part] != got[part]), default=None)
    if differing is not None:
        raise ReadingsDiffer(
            "MTP modules (--mtp) differ from those in published headers", where=differing,
            expected=f"{expected[differing]:,} weights", got=f"{got[differing]:,}", fix=_REPORT,
        )  # fmt: skip


def _check_deepseek_4(further: Iterable[StoredTensor], modules: int, config: Any) -> int:
    """Compare MTP modules of DeepSeek-V4 with its published headers, and return their number of weights.

    Attention has a window only, so that it lacks a compressor, and the router chooses by scores, not by a hash.
    """
    h, heads, width = config.hidden_size, config.num_attention_heads, config.head_dim
    rank, groups, streams = config.q_lora_rank, config.o_groups, config.hc_mult
    inner, experts = config.moe_intermediate_size, config.n_routed_experts
    latent, mixes = groups * config.o_lora_rank, streams * (streams + 2)
    expected = Counter({
        "attn.wq_a": h * rank, "attn.q_norm": rank, "attn.wq_b": rank * heads * width, "attn.wkv": h * width,
        "attn.kv_norm": width, "attn.attn_sink": heads, "attn.wo_a": latent * heads * width // groups,
        "attn.wo_b": h * latent, "ffn.gate": h * experts, "hc_head_base": streams, "hc_head_scale": 1,
        "hc_head_fn": streams * streams * h, "e_proj": h * h, "h_proj": h * h,
        **dict.fromkeys(("attn_norm", "ffn_norm", "enorm", "hnorm", "norm"), h),
        **{f"hc_{part}_{name}": size for part in ("attn", "ffn")
           for name, size in (("fn", mixes * streams * h), ("base", mixes), ("scale", 3))},
        **{f"ffn.{part}.w{i}": count * h * inner for i in (1, 2, 3)
           for part, count in (("experts.*", experts), ("shared_experts", config.n_shared_experts))},
    })  # fmt: skip
    expected = Counter({part: modules * size for part, size in expected.items()})
    got: Counter[str] = Counter()
    for tensor in further:
        if tensor.purpose == "weight":
            part = re.sub(r"^mtp\.\d+\.", "", tensor.name).removesuffix(".weight")
            got[part] += tensor.count * (tensor.stands_for or prod(tensor.shape))
    _require_equal(expected, got)
    return expected.total()


def _layer_of_mimo_2(config: Any) -> Counter[str]:
    """Return the weights of each part of the layer in an MTP module of MiMo-V2-Flash.

    Its attention has a window, twice the key-value heads of full attention, and a sink for each head; its MLP is dense.
    Source: SGLang, ``mimo_v2_flash_nextn.py``.
    """
    h, heads, groups = config.hidden_size, config.num_attention_heads, 2 * config.num_key_value_heads
    return Counter({
        "self_attn.q_proj": h * heads * config.head_dim, "self_attn.k_proj": h * groups * config.head_dim,
        "self_attn.v_proj": h * groups * config.v_head_dim, "self_attn.o_proj": h * heads * config.v_head_dim,
        "self_attn": heads, "input_layernorm": h, "pre_mlp_layernorm": h,
        **dict.fromkeys(("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"), h * config.intermediate_size),
    })  # fmt: skip


def _weights(tensors: Iterable[StoredTensor]) -> Iterator[tuple[str, StoredTensor]]:
    """Yield (module path, tensor) for all weight tensors; biases are left out."""
    for tensor in tensors:
        path, _, last = tensor.name.rpartition(".")
        if tensor.purpose == "weight" and last != "bias":
            yield path, tensor


def _read_of(files: Mapping[str, Sequence[HeaderTensor]]) -> str:
    """Return a phrase with the number of tensors and bytes of files whose tensor names follow an unknown layout."""
    tensors = [tensor for found in files.values() for tensor in found]
    dtypes = sorted({tensor.dtype for tensor in tensors})
    return f"; {plural(len(tensors), 'tensor')} of {sum(t.bytes for t in tensors):,} bytes in {', '.join(dtypes)}"
