"""Closed formulas of image-text models: towers, insertion of image features into the prompt, decoder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from costproof.algebra.symbols import sym
from costproof.analytic.compose import (
    CONTAINER,
    ModulePart,
    StackCall,
    analytic_ledger,
    invocation_nodes,
    prefill_and_decode,
    stage_nodes,
)
from costproof.analytic.costs import Size
from costproof.analytic.decoder_memory import masked_look_up
from costproof.analytic.embedding import INT64, FeaturesInPrompt
from costproof.analytic.memory_tape import MemoryTape
from costproof.ledger.node import CostNode, Ledger
from costproof.ledger.workload import Workload
from costproof.models.decoding.config import DecoderConfig
from costproof.models.decoding.formulas import logits_and_masks
from costproof.models.decoding.names import STAGES, prefill_name
from costproof.models.image_text.layout import CALL, images_of

IMAGES: Final = sym("n")
"""Symbol of the number of images in the batch."""


def glue_tape(features: Size, *, returned: bool, masked: bool = False) -> MemoryTape:
    """Return the memory tape of the operators between towers and decoder, which write features over placeholder tokens.

    Args:
        features: rows of image features in the prompts.
        returned: whether the model also returns the concatenated features.
        masked: whether the rank has some rows of the embedding's table.

    Source: ``LlavaModel.forward`` (transformers): the embeddings, the features in one tensor, a mask of their places,
    its sum as a check, and ``masked_scatter``.
    """
    tape, rows, row = MemoryTape(), sym("B") * sym("S"), sym("text_hidden") * sym("b")
    ids, given = tape.give(INT64 * rows), tape.give(features * row)
    elements, b = rows * sym("text_hidden"), sym("b")
    embedded = masked_look_up(tape, elements, rows, b, ids) if masked else tape.make(elements * b, ids)
    joined = tape.make(features * row, given)
    mask = tape.make(rows, ids)
    tape.read(tape.make(1, tape.make(INT64, tape.make(INT64, mask))))
    tape.keep(tape.make(rows * row, embedded, mask, joined))
    if returned:
        tape.keep(joined)
    return tape


def image_text_ledger(
    towers: Mapping[str, tuple[tuple[ModulePart, ...], Size]],
    text: Callable[[StackCall], tuple[ModulePart, ...]],
    features: Size,
    workload: Workload,
    names: Mapping[str, str],
    *,
    returned: bool = True,
    vocabulary: Size | None = None,
    config: DecoderConfig | None = None,
) -> Ledger:
    """Return the symbolic ledger of all stages, with formulas (``exprs``) and without numbers (``costs``).

    Args:
        towers: stage -> its parts, and the bytes of the activations that enter and leave it.
        text: returns the parts of the decoder in a call, starting with the root.
        features: rows of image features in the prompts, of the width of the decoder.
        returned: whether the model also returns the concatenated features.
        vocabulary: columns of the logits, padded ones included (default: those of the vocabulary).
        config: of the decoder, if the workload has rows.
        names: role -> module path; the module around towers and decoder has the role ``model``.

    Branches: towers run only if prompts have images; decode steps have no images.
    """
    seen = images_of(workload) > 0
    width = sym("text_hidden")

    def nodes() -> Iterator[CostNode]:
        for stage, (parts, border) in towers.items():
            yield from stage_nodes(stage, parts, names)
            if seen:
                yield from invocation_nodes(stage, CALL, parts, names, border=border)
        decode = workload.new_tokens > 0
        first = prefill_name(workload)
        yield from prefill_and_decode(modules, names, border=border_of, decode=decode, first_id=first)

    def modules(call: StackCall) -> tuple[ModulePart, ...]:
        given = seen and call.past == 0
        glue = FeaturesInPrompt(features, call.rows, width, call.item_bytes, returned) if given else CONTAINER
        return (ModulePart("model", (glue,)), *text(call))

    def border_of(call: StackCall) -> Size:
        """Return the activation bytes at the decoder's boundary, including image features in the prefill."""
        given = (1 + returned) * features * width if seen and call.past == 0 else 0
        return logits_and_masks(workload, call, config, vocabulary) + given * call.item_bytes

    return analytic_ledger(nodes(), (*towers, *STAGES), parallel=not workload.mesh.one)
