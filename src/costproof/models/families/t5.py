"""T5: encoder-decoder with relative position biases and one shared word table (transformers' native class)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from costproof.algebra.series import CONTEXT, STEPS, sum_over_steps
from costproof.algebra.symbols import sym
from costproof.analytic.attention import DistanceBuckets, NoBias, Scale
from costproof.analytic.attention_block import AttentionBlock
from costproof.analytic.compose import (
    CONTAINER,
    ModulePart,
    StackCall,
    analytic_ledger,
    in_layer,
    invocation_nodes,
    stage_nodes,
)
from costproof.analytic.costs import Matrix, Size
from costproof.analytic.embedding import INT64, Embedding
from costproof.analytic.feed_forward import Mlp
from costproof.analytic.layer_memory import CopyBranches, LayerTape
from costproof.analytic.linear import Lent, LmHead
from costproof.analytic.memory_tape import MemoryTape, Piece
from costproof.analytic.norms import NormKind, RmsNorm
from costproof.analytic.symbols import TWO_STACK_SYMBOLS
from costproof.analytic.transformer import TransformerLayer
from costproof.configs.config import NativeConfig, check_returns, check_type, yes_or_no
from costproof.configs.reader import MOST_LAYERS, Section, renamed
from costproof.ledger.capture import SymbolDoc
from costproof.ledger.errors import BadInput, CostproofError
from costproof.ledger.node import Ledger
from costproof.ledger.workload import AttentionKind, Invocation, TensorSpec, Workload
from costproof.models import settings as common
from costproof.models.decoding.decoder import ids_on_meta
from costproof.models.generic.encoder_decoder import PROMPT, TWO_STAGES, FirstRun, TwoStacks, two_stack_calls
from costproof.models.native import Native
from costproof.models.specs import ExportJob, Run, SymbolicSize, layers_cut
from costproof.models.target import NamedWorkload, Setting
from costproof.storage.scheme import CheckpointLayout

if TYPE_CHECKING:
    from torch import nn

    from costproof.models.encoding.domain import Domain

PRESETS: Final = (
    NamedWorkload("text", "a text of 512 tokens, answered by 64", {"text": 512}, default=True),
    NamedWorkload("sentence", "a text of 32 tokens, answered by 32", {"text": 32}),
)
_ANSWERS: Final = {"text": 64, "sentence": 32}
_BATCH, _LENGTH = 3, 37
"""Example batch and text length of exports: unequal and above 1, so that torch.export keeps both symbolic."""


_MLPS: Final = {"relu": ("relu", False), "gated-gelu": ("gelu_new", True), "gated-silu": ("silu", True)}
"""Activation function, and whether the MLP is gated, by the name of the MLP in a file."""
_LEAST_BUCKETS: Final = 4
"""Minimum number of buckets: half of them are for each direction, and half of these for exact distances."""


@dataclass(frozen=True, slots=True)
class T5Config(NativeConfig):
    """Sizes, the kind of MLP, and whether decoder outputs are scaled before the logits; by default T5-small."""

    hidden: int = 512
    head_dim: int = 64
    intermediate: int = 2048
    layers: int = 6
    decoder_layers: int = 6
    heads: int = 8
    vocab: int = 32128
    buckets: int = 32
    mlp: str = "relu"
    scaled: bool = True
    waived: tuple[tuple[str, str], ...] = ()
    """Keys of the file that affect no cost, with the reason."""

    model_type: ClassVar[str] = "t5"
    not_null: ClassVar = (
        "classifier_dropout", "dropout_rate", "initializer_factor", "layer_norm_epsilon",
        "relative_attention_max_distance", "use_cache",
    )  # fmt: skip
    architecture: ClassVar[str] = "T5ForConditionalGeneration"
    keys: ClassVar = {
        "hidden": "d_model",
        "head_dim": "d_kv",
        "intermediate": "d_ff",
        "heads": "num_heads",
        "vocab": "vocab_size",
        "buckets": "relative_attention_num_buckets",
    }

    @property
    def activation(self) -> str:
        """Return the activation function of the MLPs."""
        return _MLPS[self.mlp][0]

    @property
    def gated(self) -> bool:
        """Return whether the MLPs are gated."""
        return _MLPS[self.mlp][1]

    def symbols(self) -> dict[str, int]:
        """Return the values of this configuration by symbol, such as 4096 for ``text_hidden``."""
        named = ("hidden", "head_dim", "intermediate", "layers", "decoder_layers", "heads", "vocab", "buckets")
        return {f"text_{name}": getattr(self, name) for name in named}

    def native(self) -> dict[str, Any]:
        return {
            **renamed(self, self.keys),
            "num_layers": self.layers,
            "num_decoder_layers": self.decoder_layers,
            "feed_forward_proj": self.mlp,
            "tie_word_embeddings": self.scaled,
        }

    @classmethod
    def read(cls, data: object, problems: list[CostproofError]) -> Self:
        """Read the configuration from the content of a file; omitted keys have the defaults of the class."""
        top = Section(data, "$", problems)
        top.waive(dict.fromkeys(("relative_attention_max_distance", "n_positions"), "decides no cost"))
        check_type(top, cls.model_type)
        check_returns(top)
        top.fixed("architectures", [cls.architecture], None, why="no formulas for this class", default=None)
        top.fixed("is_encoder_decoder", True, why="the formulas describe an encoder and a decoder")
        top.fixed("is_decoder", False, why="the formulas describe an encoder and a decoder")
        usual = cls()
        sizes = top.sizes(cls.keys, usual)
        layers = top.integer("num_layers", usual.layers, most=MOST_LAYERS)
        own = top.take("num_decoder_layers", None)
        count = layers if own is None else top.check_integer(own, "num_decoder_layers", most=MOST_LAYERS)
        mlp = str(top.fixed("feed_forward_proj", *_MLPS, why="no formulas for this MLP"))
        activation, gated = _MLPS[mlp]
        # Files that the class saved have what it made of the above, and it takes them over that.
        for key, value in (("dense_act_fn", activation), ("is_gated_act", gated)):
            top.fixed(key, value, why=f"no formulas for a {mlp} MLP with this change")
        tied = yes_or_no(top, "tie_word_embeddings", default=True)
        scaled = yes_or_no(top, "scale_decoder_outputs", default=tied)
        config = cls(**sizes, layers=layers, decoder_layers=count, mlp=mlp, scaled=scaled)
        # Of the files of 1.1 the class says that there is one table, and a checkpoint of it may have three.
        own = (("$.tie_word_embeddings", "the class ties the words anyway; a checkpoint may also have a head"),)
        config = replace(config, waived=(*top.finish(not_null=cls.not_null), *(() if tied else own)))
        problems += [] if problems else config.contradictions()
        return config

    def contradictions(self) -> list[CostproofError]:
        """Return an error if the class in transformers cannot run the number of buckets."""
        if self.buckets >= _LEAST_BUCKETS:
            return []
        where, expected = "$.relative_attention_num_buckets", f"at least {_LEAST_BUCKETS}"
        return [
            BadInput(
                "there are too few buckets of relative positions", where=where, expected=expected, got=self.buckets
            )
        ]


@dataclass(frozen=True, slots=True)
class T5(Native[T5Config]):
    """Target: ``T5ForConditionalGeneration`` with one configuration; the decoder starts with one token."""

    config: T5Config = field(default_factory=T5Config)
    name: str = "t5"
    stages: ClassVar[tuple[str, ...]] = TWO_STAGES
    model_types: ClassVar[tuple[str, ...]] = ("t5",)
    checkpoint_layout: ClassVar[CheckpointLayout] = CheckpointLayout(in_float32=("wo",))
    attentions: ClassVar[tuple[AttentionKind, ...]] = ("sdpa",)
    named: ClassVar[tuple[NamedWorkload, ...]] = PRESETS
    notation: ClassVar[dict[str, SymbolDoc]] = TWO_STACK_SYMBOLS

    @classmethod
    def serves(cls, config: Mapping[str, Any]) -> bool:
        """Return whether the keys about the MLP agree in a configuration.

        ``dense_act_fn`` and ``is_gated_act`` take precedence.
        """
        usual = _MLPS.get(str(config.get("feed_forward_proj", "relu")))
        keys = ("dense_act_fn", "is_gated_act")
        return usual is None or all(config.get(k, v) == v for k, v in zip(keys, usual, strict=True))

    def formulas(self, workload: Workload) -> Ledger:
        """Return the symbolic ledger of the three stages, with formulas (``exprs``) and without numbers (``costs``)."""
        batch, length, b, found = sym("B"), sym("S"), sym("b"), _names(gated=self.config.gated)
        calls = _calls()
        encode = _parts(self.config, "encoder", calls["encode"])
        first, step = (_decoder(self.config, calls[stage]) for stage in TWO_STAGES[1:])
        memory, logits = batch * length * sym("text_hidden") * b, batch * sym("text_vocab") * b
        nodes = (
            *stage_nodes("encode", encode, found),
            *invocation_nodes("encode", "input", encode, found, border=memory),
            *stage_nodes("prefill", first, found),
            *invocation_nodes("prefill", "prompt", first, found, border=memory + logits),
            *stage_nodes("decode", step, found),
            *invocation_nodes("decode", "steps", step, found, border=logits, calls=STEPS, summed=sum_over_steps),
        )
        return analytic_ledger([n for n in nodes if workload.new_tokens or n.stage != "decode"], TWO_STAGES)

    def memory(self, workload: Workload) -> Mapping[tuple[str, str, str], MemoryTape]:
        """Return the memory tapes of calls by (stage, invocation, part); for decode, of a step at context P."""
        config, found = self.config, {}
        for (stage, call), (invocation, part) in zip(_calls().items(), _EXPORTS, strict=True):
            branches = CopyBranches(
                one_sequence=workload.batch == 1,
                one_token=stage != "encode" or workload.text_tokens == 1,
                one_head=config.heads == 1,
                shared=False,
                wide=workload.dtype == "float32",
            )
            made = _BiasedTape(call, branches)
            made.record(config, "encoder" if stage == "encode" else "decoder")
            found[stage, invocation, part] = made.tape
        return found if workload.new_tokens else {key: tape for key, tape in found.items() if key[0] != "decode"}

    @classmethod
    def settings(cls) -> tuple[Setting, ...]:
        """Return the settings of a run; float16 is excluded: the class clamps it, for which there is no formula."""
        dtype = replace(common.DTYPE, choices=("bfloat16", "float32"))
        return (common.SEQ_LEN, common.NEW_TOKENS, common.BATCH, dtype, replace(common.ATTENTION, choices=("sdpa",)))

    def first_layers(self, layers: int) -> tuple[T5Config, dict[str, str]]:
        """Return the configuration with the first layers of both stacks, and the kept layers by stack: ``2 of 12``."""
        most = (self.config.layers, self.config.decoder_layers)
        cut = {f"{s} layers": layers_cut(s, layers, 1, m)[1] for s, m in zip(("encoder", "decoder"), most, strict=True)}
        return replace(self.config, layers=layers, decoder_layers=layers), {k: v for k, v in cut.items() if v}

    def default_workload(self, name: str) -> Workload:
        """Return the workload of a preset: a text and the tokens of its answer."""
        return replace(Native.default_workload(self, name), new_tokens=_ANSWERS[name])

    def with_input(self, workload: Workload, given: dict[str, Any], found: list[CostproofError]) -> Workload:
        """Return the workload with texts of the length in ``given``."""
        length = given.pop("seq_len", None)
        return workload if length is None else replace(workload, text_tokens=length)

    def problems(self, workload: Workload) -> list[CostproofError]:
        """Return an error for an invalid batch, an empty text, or a negative number of new tokens."""
        found = common.batch_problems(workload)
        sizes = (("--seq-len", workload.text_tokens, 1), ("--new-tokens", workload.new_tokens, 0))
        for option, value, least in sizes:
            if value < least:
                found.append(
                    BadInput("there are too few tokens", where=option, expected=f"at least {least}", got=value)
                )
        return found

    def invocations(self, workload: Workload) -> tuple[Invocation, ...]:
        """Return the invocations of all stages, with the values of their symbols."""
        batch, length = workload.batch, workload.text_tokens
        ids = TensorSpec((batch, length), "int64")
        return two_stack_calls(workload, {"B": batch, "S": length}, (ids,))

    def _stacks(self, workload: Workload) -> TwoStacks:
        """Return the plan of the stages of a run: encode, prefill of one token, decode."""
        from costproof.models.generic.inputs import Inputs

        c, batch, length = self.config, workload.batch, workload.text_tokens
        sizes = tuple(SymbolicSize(("input_ids",), dim, symbol) for dim, symbol in ((0, "B"), (1, "S")))
        own, cross = ((batch, c.heads, n, c.head_dim) for n in (PROMPT, length))
        first = FirstRun(
            encoder="encoder",
            shared=frozenset(),
            lenders=frozenset({"shared"}),
            hidden={"last_hidden_state": (batch, length, c.hidden)},
            own=((own, own),) * c.decoder_layers,
            cross=((cross, cross),) * c.decoder_layers,
        )
        return TwoStacks(workload, Inputs({"input_ids": ids_on_meta(batch, length)}, sizes), first)

    def stages_of(self, path: str, workload: Workload) -> tuple[str, ...]:
        """Return the stages in which a module runs."""
        return self._stacks(workload).first.stages_of(path)

    def export_jobs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """Return the export jobs of the encoder, the first token and a step, at example sizes."""
        return self._stacks(replace(workload, batch=_BATCH, text_tokens=_LENGTH)).export_jobs(model)

    def runs(self, model: nn.Module, workload: Workload) -> tuple[Run, ...]:
        """Return the runs of the encoder with the first token, and of the first, middle and last step."""
        from costproof.snapshots.copies import with_values

        found, device = self._stacks(workload).runs(model), next(model.parameters()).device
        if device.type == "meta":
            return found
        return tuple(replace(run, kwargs=with_values(run.kwargs, device)) for run in found)

    def domain(self) -> Domain:
        """Return the domain of a proof: texts of any length, and random configurations."""
        from costproof.models.encoding.domain import TWO_STACKS, Domain

        usual = self.workload()
        return Domain((usual, replace(usual, name="text, float32", dtype="float32")), TWO_STACKS)

    @classmethod
    def drawn(cls, p: Mapping[str, int], rng: random.Random) -> tuple[T5, dict[str, bool]]:
        """Return a random small configuration for a proof, and its features."""
        config = T5Config(
            hidden=p["text_hidden"],
            head_dim=p["text_head_dim"],
            intermediate=p["text_intermediate"],
            layers=p["layers"],
            decoder_layers=p["layers"] + rng.choice((0, 0, 1)),
            heads=p["text_heads"],
            vocab=p["text_vocab"],
            buckets=p["text_buckets"],
            mlp=rng.choice(("relu", "gated-gelu", "gated-silu")),
            scaled=rng.random() < 0.5,
        )
        return cls(config), {"gated MLPs": config.gated, "a scaled result": config.scaled}

    def drawn_run(self, p: Mapping[str, int], workload: Workload) -> Workload:
        """Return the workload with a text of randomly drawn length."""
        return replace(workload, text_tokens=p["S"])


TARGET: Final = T5


_EXPORTS: Final = (("input", "encode"), ("prompt", "prefill"), ("steps", "step"))
"""Invocation of each stage, and the name of the exported part."""


def _calls() -> dict[str, StackCall]:
    """Return the sizes of each stage's call of a stack of layers, by stage."""
    batch, length, b = sym("B"), sym("S"), sym("b")
    calls = (
        StackCall(batch, length, b),
        StackCall(batch, 1, b, memory=length),
        StackCall(batch, 1, b, past=CONTEXT, memory_past=length),
    )
    return dict(zip(TWO_STAGES, calls, strict=True))


def _names(*, gated: bool) -> Mapping[str, str]:
    """Return the module paths by role; gated MLPs have two input projections."""
    return {
        "root": "",
        "shared": "shared",
        "lm_head": "lm_head",
        **_stack("encoder", gated),
        **_stack("decoder", gated),
    }


def _stack(stack: str, gated: bool) -> dict[str, str]:
    block, layer = f"{stack}.block.{{i}}", f"{stack}.layer"
    places = {"attention": f"{block}.layer.0", "cross": f"{block}.layer.1"}
    last = f"{block}.layer.{2 if stack == 'decoder' else 1}"
    own, other, mlp = (
        f"{places['attention']}.SelfAttention",
        f"{places['cross']}.EncDecAttention",
        f"{last}.DenseReluDense",
    )
    return {
        stack: stack,
        f"{stack}.embedding": f"{stack}.embed_tokens",
        f"{stack}.dropout": f"{stack}.dropout",
        f"{stack}.norm": f"{stack}.final_layer_norm",
        layer: block,
        **{f"{layer}.{which}_sum": place for which, place in places.items()},
        f"{layer}.mlp_sum": last,
        f"{layer}.attention": own,
        f"{layer}.cross": other,
        **{f"{layer}.{x}.{p}": f"{y}.{p}" for x, y in (("attention", own), ("cross", other)) for p in "qkv"},
        f"{layer}.attention.out": f"{own}.o",
        f"{layer}.cross.out": f"{other}.o",
        f"{layer}.attention.bias": f"{own}.relative_attention_bias",
        f"{layer}.norm1": f"{places['attention']}.layer_norm",
        f"{layer}.cross_norm": f"{places['cross']}.layer_norm",
        f"{layer}.norm2": f"{last}.layer_norm",
        f"{layer}.attention_dropout": f"{places['attention']}.dropout",
        f"{layer}.cross_dropout": f"{places['cross']}.dropout",
        f"{layer}.mlp_dropout": f"{last}.dropout",
        f"{layer}.mlp": mlp,
        f"{layer}.mlp.gate": f"{mlp}.wi_0",
        f"{layer}.mlp.up": f"{mlp}.{'wi_1' if gated else 'wi'}",
        f"{layer}.mlp.activation": f"{mlp}.act",
        f"{layer}.mlp.dropout": f"{mlp}.dropout",
        f"{layer}.mlp.down": f"{mlp}.wo",
    }


_DROPOUTS: Final = ("attention_dropout", "mlp_dropout", "mlp.dropout")
"""Modules of a layer that run in a forward but have no effect outside of training."""


def _decoder(config: T5Config, call: StackCall) -> tuple[ModulePart, ...]:
    """Return the module parts of the decoder on one token, including the output projection."""
    width, b = sym("text_hidden"), call.item_bytes
    return (
        ModulePart("root", (Scale(call.rows * width, b) if config.scaled else CONTAINER,)),
        *_parts(config, "decoder", call),
        ModulePart("lm_head", (LmHead(call.batch, call.tokens, width, sym("text_vocab"), b, tied=True),)),
    )


def _parts(config: T5Config, stack: str, call: StackCall) -> tuple[ModulePart, ...]:
    """Return the module parts of the encoder or of the decoder (``stack``) in one call."""
    width, b, vocab, decodes = sym("text_hidden"), call.item_bytes, sym("text_vocab"), stack == "decoder"
    dropouts = (*_DROPOUTS, *(("cross_dropout",) if decodes else ()))
    layers = (
        in_layer(i, (*parts, *(ModulePart(f"{stack}.layer.{name}") for name in dropouts)))
        for i in range(config.decoder_layers if decodes else config.layers)
        for parts in [_layer(config, stack, call, first=i == 0)]
    )
    return (
        ModulePart("shared", (Lent(vocab * width, b, (Matrix(vocab, width, kind="Embedding"),)),), called=False),
        ModulePart(stack),
        ModulePart(f"{stack}.embedding", (Embedding(call.rows, vocab, width, b, lent=True, read_whole=decodes),)),
        ModulePart(f"{stack}.dropout", times=2),
        *(part for layer in layers for part in layer),
        ModulePart(f"{stack}.norm", (RmsNorm(call.rows, width, b),)),
    )


def _layer(config: T5Config, stack: str, call: StackCall, *, first: bool) -> tuple[ModulePart, ...]:
    """Return the module parts of a layer; the first layer computes the position biases of its whole stack."""
    b, keys = call.item_bytes, call.past + call.tokens
    table = Embedding(call.tokens * keys, sym("text_buckets"), sym("text_heads"), b)
    parts = _block(config, stack, call, first=first).parts(f"{stack}.layer", call)
    return (*parts, *((ModulePart(f"{stack}.layer.attention.bias", (table,)),) if first else ()))


def _block(config: T5Config, stack: str, call: StackCall, *, first: bool) -> TransformerLayer:
    """Return the transformer layer of a stack.

    Branches: biases of zeros for cross attention are made only where a further layer takes them.
    """
    width, heads, b, keys = sym("text_hidden"), sym("text_heads"), call.item_bytes, call.past + call.tokens
    memory, decodes = call.memory + call.memory_past, stack == "decoder"
    block = AttentionBlock(
        width=width,
        heads=heads,
        kv_heads=heads,
        head_dim=sym("text_head_dim"),
        cached=decodes,
        causal=decodes,
        mask="heads",
        beside=(DistanceBuckets(call.tokens, keys),) if first else (),
    )
    cross = AttentionBlock(
        width=width,
        heads=heads,
        kv_heads=heads,
        head_dim=sym("text_head_dim"),
        mask="inside" if first else "heads",
        beside=(NoBias(heads, call.tokens, memory, b, config.decoder_layers > 1),) if first else (),
    )
    mlp = Mlp(width, sym("text_intermediate"), config.activation, gated=config.gated, bias=False)
    return TransformerLayer(width, block, mlp, added_apart=True, cross=cross if decodes else None)


@dataclass(slots=True)
class _BiasedTape(LayerTape):
    """Memory tape of one call of T5's encoder or decoder, with its position biases."""

    biases: Piece | None = None
    """Position biases, which the first layer computes for all layers."""
    zeros: Piece | None = None
    """Zeros that cross attention has in place of position biases."""

    def record(self, config: T5Config, stack: str) -> None:
        """Record a call of the encoder, or of the decoder up to logits.

        A layer between the first and the last holds what the one before it does, and its cache. So the highest moment
        is in the first, the last, or the one before; of the others only the cache is recorded.

        Source: ``T5Stack.forward``, ``T5ForConditionalGeneration.forward`` (transformers).
        """
        tape, call, width = self.tape, self.call, sym("text_hidden")
        rows, decodes = call.rows, stack == "decoder"
        states = call.batch * (call.memory + call.memory_past) * width * call.item_bytes
        memory: tuple[Piece, ...] = (tape.give(states),) if decodes else ()
        tape.keep(*memory)
        x = self._make(rows * width, tape.give(INT64 * rows))
        layer, layers = _block(config, stack, call, first=False), config.decoder_layers if decodes else config.layers
        old, across = ([self._given(n) if n != 0 else () for _ in range(layers)] for n in (call.past, call.memory_past))
        tape.keep(*(piece for pieces in across for piece in pieces))  # for later steps
        for i, (own, other) in enumerate(zip(old, across, strict=True)):
            if i in (0, layers - 2, layers - 1):
                cross = partial(self._cross, memory, other) if decodes else None
                x = self.layer(layer, x, partial(self._attend, own, decodes), cross)
            elif decodes:
                tape.keep(*self._caches(x, x, call.past + call.tokens, own))
                tape.read(*other)
                if not other:
                    tape.keep(*self._caches(memory[0], memory[0], call.memory))
        x = self._norm(layer.norm, x, rows, width)
        if decodes:
            x = self._make(rows * width, x) if config.scaled else x
            x = self._make(rows * sym("text_vocab"), x)
        tape.keep(x)

    def _inner(self, tokens: Size) -> Size:
        """Return the number of elements of all heads, for ``tokens`` tokens of each sequence."""
        return self.call.batch * tokens * sym("text_heads") * sym("text_head_dim")

    def _given(self, tokens: Size) -> tuple[Piece, ...]:
        return tuple(self.tape.give(self._inner(tokens) * self.call.item_bytes) for _ in range(2))

    def _caches(self, keys: Piece, values: Piece, tokens: Size, old: tuple[Piece, ...] = ()) -> tuple[Piece, Piece]:
        """Record the concatenation of the cached keys and values with the new ones."""
        size = self._inner(tokens)
        return self._make(size, *old[:1], keys), self._make(size, *old[1:], values)

    def _attend(self, old: tuple[Piece, ...], decodes: bool, x: Piece) -> Piece:
        """Record attention of the call's tokens to each other and to cached tokens.

        Branches: biases of a single head, or of a single pair, lie in order.
        """
        call, heads, keys = self.call, sym("text_heads"), self.call.past + self.call.tokens
        q, k, v = (self._make(self._inner(call.tokens), x) for _ in range(3))
        if decodes:
            k, v = self._caches(k, v, keys, old)
            self.tape.keep(k, v)
        if self.biases is None:
            self.biases = self._distances(call.tokens, keys, both_ways=not decodes)
        biases, single = self.biases, self.branches.one_token and call.past == 0
        if not (single or self.branches.one_head):
            biases = self._make(heads * call.tokens * keys, biases)
        return self._weighed(q, k, v, biases)

    def _cross(self, memory: tuple[Piece, ...], old: tuple[Piece, ...], x: Piece) -> Piece:
        """Record cross attention of the decoder's tokens to the encoder's."""
        call, length = self.call, self.call.memory + self.call.memory_past
        q = self._make(self._inner(call.tokens), x)
        if old:
            k, v = old
        else:
            k, v = (self._make(self._inner(length), *memory) for _ in range(2))
            k, v = self._caches(k, v, length)
            self.tape.keep(k, v)
        if self.zeros is None:
            self.zeros = self._make(sym("text_heads") * call.tokens * length)
        return self._weighed(q, k, v, self.zeros)

    def _weighed(self, *reads: Piece) -> Piece:
        rows = self.call.rows
        core = self._fused(self._inner(self.call.tokens), rows * sym("text_heads"), reads)
        return self._make(rows * sym("text_hidden"), core)

    def _distances(self, queries: Size, keys: Size, *, both_ways: bool) -> Piece:
        """Record the distance buckets of query-key pairs, and the position biases that they look up.

        Source: ``T5Attention.compute_bias``, ``T5Attention._relative_position_bucket`` (transformers).
        """
        tape, pairs = self.tape, queries * keys
        positions = tape.make(INT64 * queries, tape.make(INT64 * queries))
        distance = tape.make(INT64 * pairs, tape.make(INT64 * keys), positions)
        marks = tape.make(pairs if both_ways else INT64 * pairs, distance)
        if both_ways:  # buckets of later keys, as int64; the absolute distance
            for _ in range(3):
                marks = tape.make(INT64 * pairs, marks)
            distance = tape.make(INT64 * pairs, distance)
        else:  # the least of zero and the distance; its negative
            distance = tape.make(INT64 * pairs, tape.make(INT64 * pairs, distance, marks))
        near = tape.make(pairs, distance)
        far = distance
        for item in (4, 4, 4, 4, 4, INT64, INT64):  # cast, quotient, logarithm, quotient, product; cast, sum
            far = tape.make(item * pairs, far)
        far = tape.make(INT64 * pairs, far, tape.make(INT64 * pairs, far))
        chosen = tape.make(INT64 * pairs, near, distance, far)
        if both_ways:
            tape.read(marks, chosen)
            return self._make(sym("text_heads") * pairs, marks)
        return self._make(sym("text_heads") * pairs, tape.make(INT64 * pairs, chosen))

    def _norm(self, kind: NormKind, x: Piece, rows: Size, width: Size) -> Piece:
        """Record an RMS norm, whose float32 copy of the input is released after the squares.

        Source: ``T5LayerNorm.forward`` (transformers).
        """
        root = self.tape.make(4 * rows * width, self._widen(x, rows * width))
        for _ in range(3):  # the mean, its sum with epsilon, the reciprocal root
            root = self.tape.make(4 * rows, root)
        scaled = self.tape.make(4 * rows * width, x, root)
        return self._make(rows * width, self._narrow(scaled, rows * width))
