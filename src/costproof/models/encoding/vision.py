"""The closed formulas of encoders of images, composed of model-neutral blocks: a family says in what it differs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from costproof.analytic.attention_block import AttentionBlock, Projection
from costproof.analytic.compose import Call, Part, numbered
from costproof.analytic.conv2d import PatchEmbedding
from costproof.analytic.costs import Size
from costproof.analytic.embedding import Embedding
from costproof.analytic.feed_forward import Mlp
from costproof.analytic.norms import LayerNorm
from costproof.analytic.position_embedding import ClassAndPositions, PositionIds
from costproof.analytic.transformer import TransformerLayer
from costproof.ledger.symbols import sym
from costproof.models.encoding.config import VisionConfig
from costproof.models.encoding.stage import ALL

IMAGES: Final = sym("B")
"""Images in the batch of a model that reads nothing else."""


@dataclass(frozen=True, slots=True)
class Style:
    """In what two such encoders differ, beside their sizes and what follows the last layer."""

    bias: tuple[Projection, ...] = ALL
    """Projections of attention with a bias."""
    patch_bias: bool = True
    own_table: bool = True
    """Whether the table of positions is a parameter of the embeddings; else it is a module that looks them up."""
    mask_token: bool = False
    norm_first: bool = False
    """Whether what the first layer gets is normalised."""
    layer_scale: bool = False
    mlp: Mlp | None = None
    """What follows attention; a plain MLP unless given."""
    containers: tuple[str, ...] = ()
    """Roles of modules that only call others, or are without effect outside of training."""
    in_layers: tuple[tuple[str, int], ...] = ()
    """The same in every layer, with the number of calls."""


def tokens(config: VisionConfig) -> Size:
    """Tokens of one image."""
    return sym("G") ** 2 + (1 if config.class_token else 0)


def encoder(
    config: VisionConfig, style: Style, *, resampled: bool, eager: bool, images: Size = IMAGES
) -> tuple[Part, ...]:
    """From pixels to what the last layer returns, on so many images of G x G patches.

    Roles: ``.embeddings``, ``.patches.projection``, ``.positions``, ``.norm_first``, ``.layer`` below ``vision``.
    """
    grid, b, width = sym("G"), sym("b"), sym("vision_hidden")
    entries, patch, sequence = sym("vision_positions"), sym("vision_patch"), tokens(config)
    call = Call(images, sequence, b)
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
    heads = sym("vision_heads")
    attention = AttentionBlock(
        width=width,
        heads=heads,
        kv_heads=heads,
        head_dim=sym("vision_head_dim"),
        inner=width,
        bias=style.bias,
        cached=False,
        written_out=eager,
    )
    mlp = style.mlp or Mlp(width, sym("vision_intermediate"), config.activation)
    layer = TransformerLayer(width, attention, mlp, norm="layer", layer_scale=style.layer_scale)
    each = (*layer.parts("vision.layer", call), *(Part(role, times=times) for role, times in style.in_layers))
    table = Part("vision.positions", (Embedding(sequence, entries, width, b),), called=not resampled)
    first = Part("vision.norm_first", (LayerNorm(call.rows, width, b),))
    return (
        *(Part(role) for role in style.containers),
        Part("vision.embeddings", (positions,) if style.own_table else (positions, PositionIds(entries))),
        Part("vision.patches.projection", (patches,)),
        *(() if style.own_table else (table,)),
        *((first,) if style.norm_first else ()),
        *(part for i in range(config.layers) for part in numbered(i, each)),
    )


def pixels(images: Size = IMAGES) -> Size:
    """Elements of some images."""
    return images * sym("vision_channels") * sym("H") ** 2


def last_norm(config: VisionConfig) -> Part:
    """The norm of every token behind the last layer; role ``vision.norm``."""
    return Part("vision.norm", (LayerNorm(sym("B") * tokens(config), sym("vision_hidden"), sym("b")),))


def layer_names(layer: str, *, attention: str, out: str, norms: tuple[str, str]) -> dict[str, str]:
    """Roles of a layer -> module paths, as most encoders of transformers name them.

    Args:
        layer: path of a layer, in which ``{i}`` is its number.
        attention, out, norms: names in the layer, and of the last projection in the attention.
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
