"""The closed formulas of decoders with latent attention and mixtures of experts; a family says in what it differs."""

from __future__ import annotations

from costproof.analytic.compose import Call
from costproof.analytic.latent_attention import LatentBlock
from costproof.analytic.rotary import RotaryTable
from costproof.analytic.router import Routing
from costproof.ledger.node import Ledger
from costproof.ledger.symbols import sym
from costproof.ledger.workload import Workload
from costproof.models.decoding import dense
from costproof.models.decoding.latents import LatentConfig, absorbs
from costproof.models.decoding.names import decoder_names, latent_names, mixture_names


def ledger(
    config: LatentConfig, workload: Workload, routing: Routing, table: type[RotaryTable], *, as_complex: bool
) -> Ledger:
    """Both stages in symbols: ``exprs`` filled, ``costs`` empty.

    Args:
        table: the layer that makes cosines and sines.
        as_complex: whether a complex number rotates a pair.

    Branches: what a floor leaves out depends on which way of decoding is less work at these widths.
    """

    def attend(call: Call) -> LatentBlock:
        return LatentBlock(
            width=sym("text_hidden"),
            heads=sym("text_heads"),
            nope=sym("text_nope"),
            rope=sym("text_rope"),
            value_dim=sym("text_value"),
            rank=sym("text_kv_rank"),
            q_rank=sym("text_q_rank") if config.q_rank else 0,
            as_complex=as_complex,
            bias=config.attention_bias,
            mask="input" if workload.attention == "eager" else "none",
            written_out=workload.attention == "eager",
            absorbed=absorbs(workload) and call.past != 0,
            wide=config.nope + config.value > 2 * config.kv_rank,
            narrow=config.nope + config.value < 4,
        )

    names = {**decoder_names("model"), **mixture_names("model"), **latent_names("model")}
    mixtures = dense.mixtures(config, workload, routing, sym("text_shared") * sym("text_moe"))
    style = dense.Style(table=table, rotated="text_rope")
    return dense.ledger(config, workload, style, names, mixtures, attend)
