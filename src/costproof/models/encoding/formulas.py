"""Closed formulas of image and text encoders: shared blocks that the style of a family configures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from costproof.algebra.symbols import sym
from costproof.analytic.attention_block import AttentionBlock, Projection
from costproof.analytic.compose import ModulePart, StackCall, analytic_ledger, in_layer, invocation_nodes, stage_nodes
from costproof.analytic.costs import Layer, Size
from costproof.analytic.elementwise import Activation
from costproof.analytic.embedding import INT64, ClassAndPositions, Embedding, LearnedPositions, PositionIds
from costproof.analytic.feed_forward import Mlp
from costproof.analytic.layer_memory import CopyBranches, LayerTape
from costproof.analytic.linear import Lent, Linear, LmHead
from costproof.analytic.memory_tape import Piece
from costproof.analytic.norms import LayerNorm
from costproof.analytic.patches import PatchEmbedding
from costproof.analytic.transformer import TransformerLayer
from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.encoding import STAGE
from costproof.models.encoding.config import EncoderConfig, TextEncoderConfig, VisionConfig
from costproof.patches.flash_attention import FLASH, WHOLE_HEADS

ALL_PROJECTIONS: Final[tuple[Projection, ...]] = ("q", "k", "v", "out")
IMAGES: Final = sym("B")
"""Symbol of the number of images in the batch, for models that read only images."""
_TEXT_LAYER: Final = "text.layer"


def encoder_ledger(parts: Iterable[ModulePart], names: Mapping[str, str], border: Size) -> Ledger:
    """Return the symbolic ledger of an encoder's stage, with formulas (``exprs``) and without numbers (``costs``).

    Args:
        names: role -> module path.
        border: bytes of the activations that enter and leave the stage.
    """
    found = tuple(parts)
    nodes = (*stage_nodes(STAGE, found, names), *invocation_nodes(STAGE, STAGE, found, names, border=border))
    return analytic_ledger(nodes, (STAGE,))


@dataclass(frozen=True, slots=True)
class VisionStyle:
    """Differences between image encoders that sizes do not express, up to the output of the last layer."""

    bias: tuple[Projection, ...] = ALL_PROJECTIONS
    """Attention projections that have a bias."""
    patch_bias: bool = True
    own_table: bool = True
    """Whether the position table is a parameter of the embeddings module; otherwise it is an ``nn.Embedding``."""
    mask_token: bool = False
    norm_first: bool = False
    """Whether a norm precedes the first layer."""
    layer_scale: bool = False
    upcast: bool = True
    """Whether eager attention computes the softmax in float32; this affects only memory."""
    resampled_in_float32: bool = False
    """Whether positions are resampled in float32; this affects only memory."""
    mlp: Mlp | None = None
    """MLP of a layer; ``None`` for two linear layers with an activation."""
    containers: tuple[str, ...] = ()
    """Roles of modules without operators: they only call others, or have no effect outside of training."""
    layer_containers: tuple[tuple[str, int], ...] = ()
    """Number of calls of each module without operators in a layer, as (role, calls)."""


def image_tokens(config: VisionConfig) -> Size:
    """Return the number of tokens of one image, including the class token."""
    return sym("G") ** 2 + (1 if config.class_token else 0)


def vision_encoder(
    config: VisionConfig, style: VisionStyle, *, resampled: bool, eager: bool, images: Size = IMAGES
) -> tuple[ModulePart, ...]:
    """Return the module parts from the pixels to the output of the last layer, on images of G x G patches.

    Their roles are ``vision.embeddings``, ``vision.patches.projection``, ``vision.positions``, ``vision.norm_first``,
    and those of the layers below ``vision.layer``.

    Args:
        resampled: whether the grid of the images differs from that of the table of positions.
        eager: whether attention scores are materialised.
    """
    grid, b, width = sym("G"), sym("b"), sym("vision_hidden")
    entries, patch, sequence = sym("vision_positions"), sym("vision_patch"), image_tokens(config)
    call = StackCall(images, sequence, b)
    positions = ClassAndPositions(
        images,
        grid,
        width,
        entries,
        b,
        resampled,
        own_table=style.own_table,
        class_token=config.class_token,
        mask_token=style.mask_token,
    )
    patches = PatchEmbedding(images, sym("vision_channels"), width, patch, sym("H"), grid, b, style.patch_bias)
    each = (
        *vision_layer(config, style, eager=eager).parts("vision.layer", call),
        *(ModulePart(role, times=times) for role, times in style.layer_containers),
    )
    table = ModulePart("vision.positions", (Embedding(sequence, entries, width, b),), called=not resampled)
    first = ModulePart("vision.norm_first", (LayerNorm(call.rows, width, b),))
    return (
        *(ModulePart(role) for role in style.containers),
        ModulePart("vision.embeddings", (positions,) if style.own_table else (positions, PositionIds(entries))),
        ModulePart("vision.patches.projection", (patches,)),
        *(() if style.own_table else (table,)),
        *((first,) if style.norm_first else ()),
        *(part for i in range(config.layers) for part in in_layer(i, each)),
    )


def vision_layer(config: VisionConfig, style: VisionStyle, *, eager: bool) -> TransformerLayer:
    """Return the transformer layer that :func:`vision_encoder` repeats."""
    width, heads = sym("vision_hidden"), sym("vision_heads")
    attention = AttentionBlock(
        width=width,
        heads=heads,
        kv_heads=heads,
        head_dim=sym("vision_head_dim"),
        inner=width,
        bias=style.bias,
        cached=False,
        written_out=eager,
        upcast=style.upcast,
    )
    mlp = style.mlp or Mlp(width, sym("vision_intermediate"), config.activation)
    return TransformerLayer(width, attention, mlp, norm="layer", layer_scale=style.layer_scale)


def vision_tape(
    config: VisionConfig,
    style: VisionStyle,
    workload: Workload,
    *,
    grid: int,
    images: Size = IMAGES,
    count: int | None = None,
    from_last: int = 0,
) -> tuple[LayerTape, Piece]:
    """Record the operators of :func:`vision_encoder`; return the memory tape and the last layer's result on it.

    All layers hold the same, so that one of them is recorded; after one whose result is kept, two.

    Args:
        grid: patches along a side of the images.
        count: number of images (default: the batch).
        from_last: layer whose result is returned, counted from the end, the last being 1; 0 for none.
    """
    width, entries = sym("vision_hidden"), sym("vision_positions")
    call = StackCall(images, image_tokens(config), sym("b"))
    tokens = grid**2 + int(config.class_token)
    made = LayerTape(call, branches_of(config, workload, tokens=tokens, sequences=count))
    x = made.patches(
        made.tape.give(pixels(images) * call.item_bytes),
        width,
        sym("G"),
        class_token=config.class_token,
        own_table=style.own_table,
        resampled=entries - int(config.class_token) if grid != config.grid else None,
        in_float32=style.resampled_in_float32,
    )
    if style.norm_first:
        x = made.sequence([ModulePart("vision.norm_first", (LayerNorm(call.rows, width, call.item_bytes),))], x)
    layer = vision_layer(config, style, eager=workload.attention == "eager")
    if config.layers >= max(1, from_last):
        x = made.layer(layer, x)
    if from_last:
        made.tape.keep(x)
        for _ in range(min(from_last - 1, 2)):
            x = made.layer(layer, x)
    return made, x


def branches_of(
    config: EncoderConfig, workload: Workload, *, tokens: int, sequences: int | None = None
) -> CopyBranches:
    """Return the sizes of an encoder call that decide whether its operators copy an argument or use a view.

    Args:
        tokens: of one text or image.
        sequences: texts or images (default: the batch).
    """
    return CopyBranches(
        one_sequence=(workload.batch if sequences is None else sequences) == 1,
        one_token=tokens == 1,
        one_head=config.heads == 1,
        shared=False,
        wide=workload.dtype == "float32",
        flash=workload.attention == FLASH,
        padded_heads=config.head_dim % WHOLE_HEADS != 0,
    )


def pixels(images: Size = IMAGES) -> Size:
    """Return the number of elements (pixels times channels) of all images."""
    return images * sym("vision_channels") * sym("H") ** 2


def last_norm(config: VisionConfig) -> ModulePart:
    """Return the layer norm after the last layer, on all tokens, as the part with role ``vision.norm``."""
    return ModulePart("vision.norm", (LayerNorm(sym("B") * image_tokens(config), sym("vision_hidden"), sym("b")),))


def layer_names(layer: str, *, attention: str, out: str, norms: tuple[str, str]) -> dict[str, str]:
    """Return the module paths of a layer by role, as most encoders of transformers name them.

    Args:
        layer: path of a layer; ``{i}`` is its index.
        attention: attribute of the layer that holds attention.
        out: attribute of attention that holds the output projection.
        norms: attributes of the layer that hold its two norms.
    """
    role = "vision.layer"
    return {
        role: layer,
        f"{role}.norm1": f"{layer}.{norms[0]}",
        f"{role}.attention": f"{layer}.{attention}",
        **{f"{role}.attention.{x}": f"{layer}.{attention}.{x}_proj" for x in "qkv"},
        f"{role}.attention.out": f"{layer}.{attention}.{out}",
        f"{role}.norm2": f"{layer}.{norms[1]}",
        f"{role}.mlp": f"{layer}.mlp",
        f"{role}.mlp.up": f"{layer}.mlp.fc1",
        f"{role}.mlp.activation": f"{layer}.mlp.activation_fn",
        f"{role}.mlp.down": f"{layer}.mlp.fc2",
    }


@dataclass(frozen=True, slots=True)
class TextEncoderStyle:
    """Differences between text encoders that sizes do not express; the default is BERT."""

    segments: bool = True
    """Whether a segment embedding is added to every token."""
    positions_from_ids: bool = False
    """Whether the positions of each text are computed from its token ids."""
    added_apart: bool = True
    """Whether each residual addition runs in a module of its own."""
    head_first: bool = False
    """Whether the masked-word head owns the word table that it shares with the embedding."""
    layer_containers: tuple[str, ...] = ("block", "attention_dropout", "mlp_dropout")
    """Roles of the modules of a layer that have no operators."""


def text_encoder(config: TextEncoderConfig, style: TextEncoderStyle, *, eager: bool) -> tuple[ModulePart, ...]:
    """Return the module parts from the token ids to the output of the last layer, on B texts of S tokens.

    Args:
        eager: whether attention scores are materialised.
    """
    texts, length, b, width = sym("B"), sym("S"), sym("b"), sym("text_hidden")
    call = StackCall(texts, length, b)
    one = text_layer(config, style, eager=eager)
    layer = (*one.parts(_TEXT_LAYER, call), *(ModulePart(f"{_TEXT_LAYER}.{name}") for name in style.layer_containers))
    added = LearnedPositions(texts, length, width, b, others=int(style.segments), each=style.positions_from_ids)
    lent = config.masked and style.head_first
    words = Embedding(call.rows, sym("text_vocab"), width, b, lent=lent, read_whole=config.masked)
    positions = call.rows if style.positions_from_ids else length
    segments = ModulePart("text.token_type", (Embedding(call.rows, sym("text_types"), width, b),))
    return (
        *(ModulePart(role) for role in ("text", "text.encoder", "text.dropout")),
        ModulePart("text.embeddings", (added, PositionIds(sym("text_positions"), 1 + int(style.segments)))),
        ModulePart("text.word", (words,)),
        ModulePart("text.position", (Embedding(positions, sym("text_positions"), width, b),)),
        *((segments,) if style.segments else ()),
        ModulePart("text.norm_first", (LayerNorm(call.rows, width, b),)),
        *(part for i in range(config.layers) for part in in_layer(i, layer)),
    )


def text_layer(config: TextEncoderConfig, style: TextEncoderStyle, *, eager: bool) -> TransformerLayer:
    """Return the transformer layer that :func:`text_encoder` repeats."""
    width, heads = sym("text_hidden"), sym("text_heads")
    attention = AttentionBlock(
        width=width,
        heads=heads,
        kv_heads=heads,
        head_dim=sym("text_head_dim"),
        inner=width,
        bias=ALL_PROJECTIONS,
        cached=False,
        written_out=eager,
        upcast=False,
    )
    mlp = Mlp(width, sym("text_intermediate"), config.activation)
    return TransformerLayer(width, attention, mlp, norm="layer", norm_last=True, added_apart=style.added_apart)


def text_tape(config: TextEncoderConfig, style: TextEncoderStyle, workload: Workload) -> tuple[LayerTape, Piece]:
    """Record the operators of :func:`text_encoder`; return the memory tape and the last layer's result on it."""
    call = StackCall(sym("B"), sym("S"), sym("b"))
    made = LayerTape(call, branches_of(config, workload, tokens=workload.text_tokens))
    ids = made.tape.give(INT64 * call.rows)
    x = made.words(ids, sym("text_hidden"), segments=style.segments, from_ids=style.positions_from_ids)
    layer = text_layer(config, style, eager=workload.attention == "eager")
    return made, made.layer(layer, x) if config.layers else x


def masked_words(
    function: str, *, holds_bias: str, activates: str = "cls.activation", owns_words: bool = False
) -> tuple[ModulePart, ...]:
    """Return the parts of a masked-language-model head: a linear layer, a norm, and the tied output projection.

    They are in the order in which they run.

    Args:
        function: name of the activation.
        holds_bias: role of the module that owns the bias of the logits.
        activates: role of the module in which the activation runs.
        owns_words: whether the word table, which head and embedding share, is counted in the head (default: in the
            embedding).
    """
    texts, length, b, width, vocab = sym("B"), sym("S"), sym("b"), sym("text_hidden"), sym("text_vocab")
    rows = texts * length
    found: dict[str, tuple[Layer, ...]] = {
        "cls.dense": (Linear(rows, width, width, b),),
        activates: (Activation(rows * width, function, b),),
        "cls.norm": (LayerNorm(rows, width, b),),
        "lm_head": (LmHead(texts, length, width, vocab, b, tied=not owns_words, lent_bias=True),),
    }
    found[holds_bias] = (*found.get(holds_bias, ()), Lent(vocab, b))
    return tuple(ModulePart(role, layers) for role, layers in found.items())
