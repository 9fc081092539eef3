"""Cost formulas of pooling a sequence to one vector: by attention of a learned probe, or by the first token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from costproof.analytic.compose import ModulePart
from costproof.analytic.costs import LayerCosts, Matrix, Size, layer
from costproof.analytic.elementwise import Activation
from costproof.analytic.feed_forward import Mlp
from costproof.analytic.linear import Lent, Linear
from costproof.analytic.norms import LayerNorm


@layer
class ProbeAttention:
    """Multi-head attention of one query per sequence to all its ``tokens``, as separate products (eager).

    The query is projected alone, keys and values by one matrix, and the result once more:

        flops = 2 sequences width² (q) + 4 sequences tokens width² (k, v) + 2 sequences width² (out)
              + 4 sequences tokens width (scores, and values weighed by them)

    Each head has sequences x tokens scores; softmax takes 5 operations for each of them, the mean over the heads, which
    is computed though nothing reads it, 1; the scale takes 1 per element of the query:

        vector_flops = 6 sequences heads tokens + sequences width

    The layer owns the three projections in, 3 width² + 3 width parameters; those of the last one are another module's,
    and are read here. The query and the tokens come in, one vector per sequence goes out.

    Unfused, with sequences width elements of the query: it is projected, scaled, multiplied, and the result multiplied
    once more, each of the three between written and read, 6; keys and values are written and read, 4 for every token;
    the scores are written, softmax reads and writes them, and the product and the mean read them, 5.
    """

    name: ClassVar[str] = "probe_attention"
    title: ClassVar[str] = "Attention of one query, written out"
    source: ClassVar[str] = (
        "Lee et al. 2018, Set Transformer, section 3.2 (pooling by attention); Zhai et al. 2022, Scaling Vision "
        "Transformers, section 3.1; torch.nn.MultiheadAttention"
    )

    sequences: Size
    tokens: Size
    width: Size
    heads: Size
    item_bytes: Size

    def costs(self) -> LayerCosts:
        query, scores = self.sequences * self.width, self.sequences * self.heads * self.tokens
        own = 3 * self.width**2 + 3 * self.width
        read = own + self.width**2 + self.width
        return LayerCosts(
            params=own,
            weight_bytes=own * self.item_bytes,
            weight_read_bytes=read * self.item_bytes,
            flops={
                "linear": 4 * query * self.width + 4 * query * self.tokens * self.width,
                "attention": 4 * query * self.tokens,
            },
            kept_scores={"attention": scores},
            vector_flops={"softmax": 5 * scores, "mean": scores, "elementwise": query},
            input_bytes=(query + query * self.tokens) * self.item_bytes,
            output_bytes=query * self.item_bytes,
            intermediate_bytes=(6 * query + 4 * query * self.tokens + 5 * scores) * self.item_bytes,
        )


@layer
class Probe:
    """Operators of the pooler itself: repeat a learned query for every sequence, and add the MLP's result.

        vector_flops = sequences width

    The probe is width parameters. In come the result of attention and that of the MLP, out go the copies and the sum.
    """

    name: ClassVar[str] = "probe"
    title: ClassVar[str] = "Probe of a pooling by attention"
    source: ClassVar[str] = "Zhai et al. 2022, Scaling Vision Transformers; SiglipMultiheadAttentionPoolingHead.forward"

    sequences: Size
    width: Size
    item_bytes: Size

    def costs(self) -> LayerCosts:
        elements = self.sequences * self.width
        return LayerCosts(
            params=self.width,
            weight_bytes=self.width * self.item_bytes,
            weight_read_bytes=self.width * self.item_bytes,
            vector_flops={"elementwise": elements},
            input_bytes=2 * elements * self.item_bytes,
            output_bytes=2 * elements * self.item_bytes,
            intermediate_bytes=0,
        )


@dataclass(frozen=True, slots=True)
class AttentionPooling:
    """Pooling of all tokens to one vector: a + mlp(norm(a)), where a is attention of a learned probe.

    Roles: ``.attention``, ``.attention.out``, ``.norm``, ``.mlp`` with its parts, below its own.
    """

    width: Size
    heads: Size
    mlp: Mlp

    def parts(self, role: str, sequences: Size, tokens: Size, b: Size) -> tuple[ModulePart, ...]:
        """Return the modules of the pooler with their formulas, for ``b`` bytes per element."""
        out = Lent(self.width**2 + self.width, b, (Matrix(self.width, self.width, bias=True),))
        return (
            ModulePart(role, (Probe(sequences, self.width, b),)),
            ModulePart(f"{role}.attention", (ProbeAttention(sequences, tokens, self.width, self.heads, b),)),
            ModulePart(f"{role}.attention.out", (out,), called=False),
            ModulePart(f"{role}.norm", (LayerNorm(sequences, self.width, b),)),
            *self.mlp.parts(f"{role}.mlp", sequences, b),
        )


@dataclass(frozen=True, slots=True)
class FirstTokenPooler:
    """Pooling by the first token: act(dense(x₀)), which reads no other token.

    Roles: ``.dense``, ``.activation`` below its own.

    Source: Devlin et al. 2018, BERT; ``BertPooler``, ``ViTPooler`` (transformers).
    """

    width: Size
    out: Size
    function: str

    def parts(self, role: str, sequences: Size, b: Size) -> tuple[ModulePart, ...]:
        """Return the modules of the pooler with their formulas, for ``b`` bytes per element."""
        return (
            ModulePart(role),
            ModulePart(f"{role}.dense", (Linear(sequences, self.width, self.out, b),)),
            ModulePart(f"{role}.activation", (Activation(sequences * self.out, self.function, b),)),
        )
