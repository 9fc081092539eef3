"""Say by which named copies all ranks of a mesh exceed one device, cost by cost.

Amounts follow from the formulas of one device at the sizes of ranks, from what an exchange moves, and from what padding
or uneven shards add, never from the costs of ranks. Those are counted apart, and amounts that do not add up to them
refuse the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import sympy

from costproof.algebra.evaluation import SymbolValues, compile_expression
from costproof.algebra.symbols import sym
from costproof.ledger.mesh import shard
from costproof.ledger.metrics import FLOOR, KEPT_FLOPS, UNFUSED, Metric
from costproof.ledger.node import CostNode, Ledger, bearing
from costproof.models.decoding.names import STAGES
from costproof.models.decoding.plans import OWN
from costproof.models.decoding.sharding import BEFORE_SPLIT, OF_OWN_TOKENS, REDUCED, Part, Shards, padded_rows, reads_of
from costproof.models.target import DATA_COPIES, OF_MEMORY, OF_WORK, SEQUENCE_COPIES

SKIPPED: Final = "pairs with keys after a rank's own positions, which it skips"
MERGED: Final = "partial results of attention that ranks merge"
PASSED: Final = "keys and values that ranks pass around a ring"
READ_AGAIN: Final = "queries, keys and values read again for each part"
FOR_POSITIONS: Final = "heads that ranks exchange for positions"
TURNED: Final = "queries and keys of heads that other ranks attend"
GATHERED_HEADS: Final = "results of heads that ranks gather"
FROM_CACHE: Final = "latents that a rank without the new token projects from its cache"
SENT: Final = "hidden states that stages send"
SUMMED: Final = "tensors that ranks add up, read and written by the collective"
ELSEWHERE: Final = "sums for tokens of other ranks, which a rank does not get"
WEIGHED: Final = "results that a rank weighs and adds behind the exchange"
EXCHANGED: Final = "pairs of tokens and experts, copied, exchanged and put in order"
OF_SLICES: Final = "weighted results of slices that ranks gather"
PADDED_SLICES: Final = "padding of uneven slices of tokens"
ZEROS: Final = "looked-up rows of other ranks, overwritten with zeros"
JOINED: Final = "latents that are joined again behind a divided projection"
GATHERED_LOGITS: Final = "logits that every rank gathers"
GATHERED_STATES: Final = "hidden states of other ranks that a rank gathers"
GATHERED_TOKENS: Final = "tokens, results and weights of experts that ranks gather"
OUTSIDE: Final = "rows of other ranks, which do not enter or leave a mixture"
OVERWRITTEN: Final = "rows of experts of other ranks, overwritten with zeros"
UNREAD: Final = "tables that no layer of a stage reads"
KV_COPIES: Final = "key/value heads that several ranks hold"
BIASES: Final = "biases added after a sum over ranks"
_BUFFERS: Final = "buffers"
OF_FORMAT: Final = "scales, zero biases, indices and tables of formats that every rank has"
LOOKED_UP: Final = "rows that every rank looks up"
MASKS: Final = "masks that every rank reads"
FEATURES: Final = "features of images that every rank puts into the prompt"
EXPERTS: Final = "experts that tokens of a rank choose at most"
TIED: Final = "tables of tied output projections on the last stage"
ROWS_ELSEWHERE: Final = "rows of experts of other ranks, which the kernel gets and skips"

_OF_WEIGHTS: Final = frozenset({*OF_MEMORY, "weight_read_bytes"})

_REPEATED: Final[Mapping[str, str]] = {
    "input_bytes": "inputs of split modules, which every rank reads",
    "output_bytes": "results of split modules, which every rank writes",
    UNFUSED: "inputs and results of split modules, which every rank reads or writes",
}
"""Names of the part of a split module's cost that every rank has in full, by metric."""

_HEADS: Final = ("text_heads", "text_kv_heads")

_LATENTS: Final = (".q_down", ".q_norm", ".kv_down", ".kv_norm")
"""Suffixes of the roles of modules that compute latents, which every rank needs in full."""

_PARTS_OF: Final[Mapping[str, Part]] = {
    "text.embedding": "embedding",
    "lm_head": "head",
    "text.layer.attention": "attention",
    "text.layer.mlp": "mlp",
    "text.layer.experts": "experts",
    "text.layer.shared": "shared",
}


@dataclass(frozen=True, slots=True)
class RankCopies(Shards):
    """Shards of a rank that also say what ranks have again of the costs of one device."""

    def added(self, role: str) -> tuple[int, str]:
        """Return the elements that the ranks of one batch add to a module's on one device, and their name.

        Each rank has a bias whole that is added to sums over ranks. The last stage has a copy of a tied table.
        """
        if role == "text.embedding" and self.tied:
            times = 1 if "head" in self.plan.split else self.mesh.tp
            rows = padded_rows(self.vocab, self.plan.multiple) if times == 1 else self.vocab
            return times * rows * self.hidden, TIED
        return (self.mesh.tp - 1) * dict(self.biased).get(role, 0), BIASES

    def padding_of(self, role: str, metric: str, cost: int) -> tuple[int, str]:
        """Return the cost that padding of the ranks' parts adds to that of one device, and its name."""
        if self.mesh.fsdp > 1:
            more = dict(self.padding)[role] if metric == "weight_bytes" else 0
            return more, "padding of the parts that ranks store"
        more = padded_rows(self.vocab, self.plan.multiple) - self.vocab
        part = part_of(role)
        padded = part in ("embedding", "head") and part in self.plan.split and metric != "buffer_bytes"
        return cost * more // self.vocab if padded and more else 0, "padding of the vocabulary"

    def held_by(self, role: str, metric: str) -> tuple[int, str]:
        """Return the sum of a cost over a ``tp`` group, relative to one device, and the name of copies.

        Args:
            role: of a module, as formulas name it.
            metric: parameters or bytes that are held, or FLOPs.
        """
        if metric == "buffer_bytes":
            return self.mesh.tp * (self.mesh.pp if role == "text.rotary" else 1), _BUFFERS
        of_kv = role.endswith((".attention.k", ".attention.v")) or (
            role.endswith(".attention") and metric == "kv_cache_bytes" and not self.latent
        )
        part = part_of(role)
        if part == "experts" and self.mesh.ep > 1:
            return self._of_experts(metric)
        latent = self.latent and (metric == "kv_cache_bytes" or role.endswith(_LATENTS))
        if latent or part is None or part not in self.plan.split:
            return self.mesh.tp, _why_whole(role, part, latent=latent)
        return (self.copies, KV_COPIES) if of_kv else (1, "")

    def by_terms(self) -> tuple[tuple[Metric, ...], tuple[Metric, ...]]:
        """Return the metrics of memory and of work whose duplicates :meth:`excess` gives, on this mesh."""
        return OF_MEMORY[:1] if self.mesh.fsdp > 1 else OF_MEMORY, OF_WORK

    def added_by_collectives(
        self, one: Ledger, stage: str, metric: str, item: int, stored: int
    ) -> Iterator[tuple[str, int]]:
        """Yield what collectives add to a cost of all ranks, and copies of a tied table, by cause.

        Args:
            one: evaluated formulas of one device.
            item: bytes of an element.
            stored: bytes of parameters that all ranks together store.
        """
        tp = self.mesh.tp

        def total(role: str, of: str) -> int:
            found = bearing((n for n in one.nodes if n.role == role and (not stage or n.stage == stage)), of)
            return sum(n.cost(of) or 0 for n in found)

        if metric == "weight_read_bytes" and self.mesh.fsdp > 1:
            yield "parts of parameters that ranks read to gather them", stored * _calls(one, stage)
        if metric == UNFUSED and self.mesh.fsdp > 1:  # copied to a buffer, gathered, and put together from all parts
            yield "parts of parameters that ranks read to gather them", stored * _calls(one, stage)
            yield "copies of gathered parameters", (2 + 2 * self.mesh.stored_parts) * stored * _calls(one, stage)
        if metric in OF_MEMORY and self.tied:
            held = total("text.embedding", metric)
            if metric == "resident_bytes":
                held -= total("text.embedding", "buffer_bytes")
            rows = padded_rows(self.vocab, self.plan.multiple)
            every = held * rows // self.vocab if "head" in self.plan.split else held * tp
            yield TIED, every
            yield SEQUENCE_COPIES, every * (self.mesh.cp - 1)
            yield DATA_COPIES, every * self.mesh.cp * (self.mesh.dp * self.mesh.fsdp - 1)

    def excess(
        self, role: str, metric: str, expr: str, one: SymbolValues, ranks: Sequence[SymbolValues]
    ) -> Iterator[tuple[str, int]]:
        """Yield the result of :meth:`~costproof.models.target.Sharing.excess`, by cause.

        It is the formula of one device at a rank's own numbers of the sizes that ranks divide, summed over ranks, less
        the cost of one device; and of that sum what is left without these sizes, which each rank has in full.
        """
        formula, mesh, tp = compile_expression(expr), self.mesh, self.mesh.tp

        def cost(values: SymbolValues) -> int:
            return int(formula.run(values))

        part, own = part_of(role), self._own_sizes(role, metric, one)
        if self._divides_tokens(role, metric, one):
            own = tuple({**sizes, "S": one["S"] // tp} for sizes in own)
        absent, alone = dict.fromkeys(own[0], 0), cost(one)

        def of_group(values: SymbolValues) -> int:
            return sum(cost({**values, **sizes}) for sizes in own)

        if part == "experts" and self.exchanges and metric in OF_WORK and metric != "calls":
            return  # of pairs, of which a rank has its own number: all of :meth:`moved`
        if part == "experts" and mesh.batches > 1 and (metric in OF_MEMORY or not self.exchanges):
            yield from self._copies_of_shared(role, metric, cost, one, ranks, of_group)
            return
        whole, every, heads = cost({**one, **absent}), of_group(one), 0
        if "text_kv_heads" in own[0] and self.copies > 1:
            named = ({**one, **absent, "text_kv_heads": n} for n in (own[0]["text_kv_heads"], one["text_kv_heads"]))
            of_rank, of_all = (cost(values) - whole for values in named)
            heads = tp * of_rank - of_all
            yield KV_COPIES, heads
        yield self._of_format(role, metric, whole) or self._repeated(role, metric), (tp - 1) * whole
        yield self._uneven(part, metric), every - alone - (tp - 1) * whole - heads
        again = sum(map(of_group, ranks)) - every
        if mesh.cp > 1 and role == "text.layer.attention" and metric in OF_WORK:

            def group(of: SymbolValues, parts: int) -> int:
                known = [{**of, **sizes} for sizes in own]
                return sum(cost({**x, **{name: x[name] // parts for name in _HEADS if name in x}}) for x in known)

            again, skipped = self._of_core(one, ranks, group, lambda of: cost({**of, **dict.fromkeys(_HEADS, 0)}))
            yield SKIPPED, skipped
        # Ranks that share a sequence have one part of the batch, and would do the same work on whole sequences.
        known = ({**one, "B": of["B"]} if "B" in of else one for of in ranks)
        data = sum(map(of_group, known)) - mesh.cp * every if mesh.cp > 1 else again
        yield DATA_COPIES, data
        yield SEQUENCE_COPIES, again - data
        if role == "text.rotary" or (metric == "calls" and role in ("root", "text")):
            alone, *stages = self.tables if metric == "output_bytes" else (1,) * (mesh.pp + 1)
            further = Fraction(sum(stages) - alone, alone)
            for why, amount in (
                (self._repeated(role, metric), every), (DATA_COPIES, data), (SEQUENCE_COPIES, again - data),
            ):  # fmt: skip
                yield why, int(amount * further)
            if metric == UNFUSED and len({*self.tables}) > 1:  # a stage makes all tables, and reads some
                unread = mesh.pp * self.tables[0] - sum(self.tables[1:])
                table = 2 * sum(_positions(of) for of in ranks) * one["text_head_dim"] * one["b"]
                yield UNREAD, -tp * unread * table
        if role == "lm_head" and metric == "output_bytes" and "head" in self.plan.split:
            padded = padded_rows(self.vocab, self.plan.multiple)
            logits = sum(of["B"] * self._positions_kept(of) for of in ranks) * one["b"]
            yield GATHERED_LOGITS, (tp - 1) * padded * logits
            yield self._uneven(part, metric), tp * (tp * -(-padded // tp) - padded) * logits

    def _positions_kept(self, of: SymbolValues) -> int:
        """Return the positions of a sequence that get logits in a call of a rank, or in all steps."""
        return of["N"] if "N" in of else 1 if self.last_logits else of["S"]

    def _of_core(
        self, one: SymbolValues, ranks: Sequence[SymbolValues], group: Callable[[SymbolValues, int], int],
        whole: Callable[[SymbolValues], int],
    ) -> tuple[int, int]:  # fmt: skip
        """Return what ranks that share sequences have again of attention, and less, as they skip pairs of it.

        A prompt's cost is a polynomial in its length. Its second differences are the part that pairs of a query and a
        key have, its first ones at no length that of positions. Between them ranks have all pairs or, in a ring, those
        that the mask leaves of each part of the keys; a rank with some heads at all positions reads masks of all of
        them, and tables of its own positions.

        Args:
            group: cost of a ``tp`` group by one device's formula, with a number by which heads are divided further.
            whole: cost on one rank that does not depend on its heads.
        """
        cp, every = self.mesh.cp, group(one, 1)
        if "N" in one:
            return sum(group(of, cp if self.by_heads else 1) for of in ranks) - every, 0

        def pairs(cost: Callable[[SymbolValues], int], of: SymbolValues) -> int:
            ends = (cost({**of, "S": n * of["S"]}) for n in (2, 1, 0))
            return sum(k * end for k, end in zip((1, -2, 1), ends, strict=True)) // 2

        of_all = pairs(lambda of: group(of, 1), one)
        if self.by_heads:
            known = [{**of, "S": cp * of["S"]} for of in ranks]
            ends = [[whole({**of, "S": n * of["S"]}) for n in (2, 1, 0)] for of in known]
            tables = sum(4 * once - twice - 3 * never for twice, once, never in ends) // 2
            tables = self.mesh.tp * (tables - tables // cp)
            return sum(group(of, cp) for of in known) - every - tables, 0
        own = sum(pairs(lambda of: group(of, 1), of) for of in ranks)
        skipped = 0 if self.cp_plan == "ulysses" else of_all * (cp - 1) // (2 * cp)
        return sum(group(of, 1) for of in ranks) - every + of_all - own, -skipped

    def moved(
        self, role: str, metric: str, one: SymbolValues, every: Sequence[SymbolValues], modules: int
    ) -> Iterator[tuple[str, int]]:
        """Yield the result of :meth:`~costproof.models.target.Sharing.moved`, by cause.

        Every access of a collective to a tensor is counted by the tensor's shape. A tensor of hidden states has as many
        rows as the rank's call has tokens.
        """
        if role != "lm_head" and not role.startswith("text"):
            return
        if self.exchanges and role == "text.layer.experts":
            yield from self._of_pairs(metric, one, every)
            return
        ranks = every[:: self.mesh.tp]
        found = [*self._of_collectives(role, one, ranks)] if metric == UNFUSED else []
        if role == "text" and metric == "input_bytes":
            found += [
                (SENT, (self.mesh.pp - 1) * self.mesh.tp * sum(map(_rows, ranks)) * one["text_hidden"] * one["b"])
            ]
        if (
            metric == "vector_flops"
            and self.mesh.tp > 1
            and dict(self.biased).get(role)
            and role != "text.layer.experts"
        ):
            parts = self.mesh.tp if self.plan.sequence and "N" not in one else 1
            found += [(BIASES, self.mesh.tp * sum(map(_rows, ranks)) * one["text_hidden"] // parts)]
        if self.mesh.cp > 1 and role.startswith("text.layer.attention"):
            for of in ranks:
                found += self._of_shared_sequence(role, metric, of)
        if role == "text.layer.mlp" and role in self._reduced:  # which has the sum of a mixture, not of other layers
            modules = self.mixtures
        for why, amount in found:
            yield why, modules * amount

    def _of_shared_sequence(self, role: str, metric: str, of: SymbolValues) -> Iterator[tuple[str, int]]:
        """Yield what attention to a shared sequence adds to a cost of the ranks of a ``tp`` group, by cause."""
        core, prompt = role == "text.layer.attention", "N" not in of
        if not prompt and not self.by_heads and of["cp_place"] < self.mesh.cp:
            yield from self._of_token_elsewhere(role, metric, of)
        if not core:
            return
        if prompt and self.cp_plan == "ulysses":
            if metric == UNFUSED:  # put in order, exchanged and joined
                heads, kv_heads, wide = self._heads(of)
                yield FOR_POSITIONS, 6 * _rows(of) * (heads + kv_heads) * wide * of["b"]
        elif prompt:
            yield from self._of_ring(metric, of)
        elif self.by_heads:
            yield from self._of_step_of_heads(metric, of)
        else:
            heads, _, _ = self._heads(of)
            rows = _rows(of) * heads
            width = of["text_head_dim"] if not self.latent else of["text_kv_rank"] if self.absorbs else of["text_value"]
            if metric == "vector_flops":
                yield MERGED, rows * (4 * self.mesh.cp + 4 + width)
            elif metric == UNFUSED:
                yield MERGED, rows * (4 * of["b"] * width + 36 + 8 * self.mesh.cp)

    def _heads(self, of: SymbolValues) -> tuple[int, int, int]:
        """Return the query and key/value heads of the ranks of a ``tp`` group, and the width of a key and a value."""
        tp = self.mesh.tp
        heads, kv_heads = tp * of["text_heads"], tp * self.kv_heads
        if self._splits("attention"):
            heads, kv_heads = of["text_heads"], tp * max(1, self.kv_heads // tp)
        if self.latent:
            return heads, heads, of["text_nope"] + of["text_rope"] + of["text_value"]
        return heads, kv_heads, 2 * of["text_head_dim"]

    def _of_ring(self, metric: str, of: SymbolValues) -> Iterator[tuple[str, int]]:
        """Yield what a ring adds to a prompt's cost, counted in halves of a rank's positions, step by step.

        In each step a rank attends to the part of keys that has arrived: not at all, with half of its queries, or to
        half of the keys.
        """
        heads, kv_heads, both = self._heads(of)
        cp, at, half = self.mesh.cp, of["cp_place"] - 1, _rows(of)  # twice as many halves
        key = of["text_nope"] + of["text_rope"] if self.latent else of["text_head_dim"]
        value = both - key
        zigzag = self.cp_plan == "zigzag"
        seen = [
            ((2, 1) if zigzag else (2, 2)) if source < at else (1, 2) if zigzag else (0, 0)
            for source in range(cp)
            if source != at
        ]
        merged = sum(queries for queries, _ in seen)  # halves of queries
        if metric == "vector_flops":
            yield MERGED, merged * half * heads * (3 * value + 8) // 2
        if metric != UNFUSED:
            return
        item, later = of["b"], sum(queries == 1 for queries, _ in seen)
        read = sum(queries * heads * key + (keys * kv_heads * both if queries else 0) for queries, keys in seen)
        yield READ_AGAIN, read * half * item // 2
        steps = 4 * (cp - 1) - (0 if zigzag or at == cp - 1 else 1)  # nothing reads what arrives last
        yield PASSED, steps * _rows(of) * kv_heads * both * item
        rows = half * heads
        joins = later * 8 * rows * (value + 1)
        narrow = (5 + min(1, at)) if zigzag else 6 * min(1, at)  # halves of accesses before, and behind, float32
        merges = merged * rows * ((28 + 2 * item) * value + 60) // 2
        yield MERGED, merges + joins - (4 - item) * narrow * rows * value // 2

    def _of_step_of_heads(self, metric: str, of: SymbolValues) -> Iterator[tuple[str, int]]:
        """Yield what a rank with some heads adds to a step's cost: it turns all heads, and gathers results."""
        heads, kv_heads, both = self._heads(of)
        cp, item, width = self.mesh.cp, of["b"], both // 2
        turned, result = (_rows(of) * n * width for n in (heads + kv_heads, heads))
        others = turned - turned // cp
        if metric == "vector_flops":
            yield TURNED, 3 * others if self.turns_pairs else 7 * others // 2
        elif metric == "input_bytes":
            yield TURNED, others * item
        elif metric == "output_bytes":
            yield GATHERED_HEADS, (result - result // cp) * item
        elif metric == UNFUSED:
            yield TURNED, others * item * (9 if self.turns_pairs else 10)
            yield GATHERED_HEADS, (result - result // cp + 2 * (result + result // cp)) * item

    def _of_token_elsewhere(self, role: str, metric: str, of: SymbolValues) -> Iterator[tuple[str, int]]:
        """Yield what ranks of a ``tp`` group that do not cache the new tokens have less than with these.

        In step i they have i + 1 keys less.
        """
        batch, steps, past, item = of["B"], of["N"], of["P"], of["b"]
        part = role.removeprefix("text.layer.attention").removeprefix(".")
        heads, kv_heads, both = self._heads(of)
        new, fewer, before = batch * steps, batch * steps * (steps + 1) // 2, batch * steps * (steps - 1) // 2
        old = new * past
        keys = old + fewer  # with the new ones
        fewer_of: dict[str, int] = {}  # elements that the rank has less, by metric
        cached = joined = 0  # elements that it does not cache, and further ones that it does not move
        latents: dict[str, int] = {}  # elements of cached latents that the projection reads, by metric
        tp, rank, rope = self.mesh.tp, of.get("text_kv_rank", 0), of.get("text_rope", 0)
        if part == "" and self.latent:
            fewer_of = {"vector_flops": 6 * fewer * heads, "input_bytes": tp * new * rank,
                        "kv_read_bytes": tp * before * (rank + rope)}  # fmt: skip
            cached = tp * new * (rank + rope)
            if self.absorbs:
                joined = tp * (keys * (5 * rank + 4 * rope) - old * (3 * rank + 2 * rope) + 2 * new * rope)
            else:
                expanded, width = of["text_nope"] + of["text_value"], of["text_nope"] + rope
                fewer_of["input_bytes"] += fewer * heads * expanded
                fewer_of["output_bytes"] = tp * keys * rank
                latents = {"kv_read_bytes": -tp * old * rank}
                joined = 2 * (fewer * heads * width + tp * keys * rope) + 2 * tp * new * rope
        elif part == "":
            values, cached = new * kv_heads * both // 2, new * kv_heads * both
            fewer_of = {
                "vector_flops": 6 * fewer * heads,
                "input_bytes": values,
                "kv_read_bytes": before * kv_heads * both,
            }
            joined = 2 * keys * kv_heads * both + 2 * values
        elif part == "v":
            fewer_of = {"output_bytes": new * kv_heads * both // 2}
        elif part == "kv_norm":
            fewer_of = {"output_bytes": tp * new * rank}
        elif part == "kv_up" and not self.absorbs:
            fewer_of = {"input_bytes": tp * fewer * rank,
                        "output_bytes": fewer * heads * (of["text_nope"] + of["text_value"])}  # fmt: skip
            latents = {"input_bytes": -tp * old * rank, "kv_read_bytes": tp * old * rank}
        if metric == "vector_flops":
            yield SEQUENCE_COPIES, -fewer_of.get(metric, 0)
            return
        sizes = {sym(name): n for name, n in of.items()}
        share, of_latents = (
            Fraction(str(sympy.sympify(one).xreplace(sizes))) for one in (self.cache.whole, self.cache.latents)
        )
        shares = {"input_bytes": Fraction(1), "output_bytes": Fraction(1), "kv_read_bytes": share}
        apart = {**shares, "kv_read_bytes": of_latents}
        if metric == UNFUSED:
            less = sum(n * fewer_of.get(m, 0) for m, n in shares.items()) + share * cached + joined
            yield SEQUENCE_COPIES, -int(item * less)
            yield FROM_CACHE, int(item * sum(n * latents.get(m, 0) for m, n in apart.items()))
        elif metric in shares:
            yield SEQUENCE_COPIES, -int(item * shares[metric] * fewer_of.get(metric, 0))
            yield FROM_CACHE, int(item * apart[metric] * latents.get(metric, 0))

    def _of_collectives(self, role: str, one: SymbolValues, ranks: Sequence[SymbolValues]) -> Iterator[tuple[str, int]]:
        """Yield what the collectives of one module add to its unfused bytes on all ranks, by cause."""
        mesh, tp, item, width = self.mesh, self.mesh.tp, one["b"], one["text_hidden"]
        states = [tp * _rows(of) * width * item for of in ranks]
        state, prompt = sum(states), "N" not in one
        if role == "text":
            yield SENT, (mesh.pp - 1) * state
        if role.endswith(".kv_down") and self.latent and self._splits("attention") and self.plan.name == OWN:
            rows = sum(map(_rows, ranks))
            yield JOINED, 2 * tp * rows * (one["text_kv_rank"] + one["text_rope"]) * item
        if role == "lm_head" and self._splits("head"):
            yield GATHERED_LOGITS, sum(map(self._of_gathered_logits, ranks))
        tokens = self.plan.sequence and tp > 1 and prompt
        ordered = [of["B"] == 1 for of in ranks]  # parts of several sequences are put in order
        if role in BEFORE_SPLIT and tokens:  # a part is read, and all of them are written
            yield (
                GATHERED_STATES,
                sum(n + n // tp + (0 if one else 2 * n) for n, one in zip(states, ordered, strict=True)),
            )
        if role in self._reduced:
            if tokens:  # of whose sum each rank gets a part
                yield SUMMED, 2 * sum(n if one else 2 * n for n, one in zip(states, ordered, strict=True))
                yield ELSEWHERE, state // tp - state
            elif tp > 1:
                yield SUMMED, 2 * state
            if dict(self.biased).get(role) and tp > 1 and role != "text.layer.experts":
                yield BIASES, 2 * state // (tp if tokens else 1)
            if role == "text.embedding":
                calls = sum(of.get("N", 1) for of in ranks)
                yield ZEROS, 2 * (state + tp * calls * item)
        if role == "text.layer.experts" and mesh.ep > 1:
            yield from self._of_divided_experts(one, ranks)

    def _of_pairs(self, metric: str, one: SymbolValues, every: Sequence[SymbolValues]) -> Iterator[tuple[str, int]]:
        """Yield what the exchange of pairs adds to a cost of all mixtures on all ranks, by cause.

        As many pairs arrive at all ranks together as are sent, so what is linear in the number of pairs is the same as
        on one device. Each expert is read by its rank only, if any pair arrives; a kernel gets weights of 1 in the
        dtype of the run, and the rank that sent a pair weighs its result. Ranks along ``tp`` send the pairs of one
        slice each, but read the hidden states of all tokens that these pairs name, and write those of all slices.
        """
        item, tp, calls = one["b"], self.mesh.tp, one.get("N", 1)
        weight, width, inner, top_k = self._of_pair(one)
        experts, layers = one["text_experts"], len(self.pairs)
        tokens = [_rows(of) // calls for of in every]  # in one call, as the other numbers
        own = self._slices(tokens)
        sent = [top_k * n for n in own]
        modules, alone = calls * layers, _rows(one) // calls
        pairs, state = modules * sum(sent), width * item
        looked_up = sum(min(n, of) if tp > 1 else n for n, of in zip(tokens, sent, strict=True)) - alone
        if metric == "vector_flops":
            yield WEIGHED, 2 * pairs * width
        if metric in ("input_bytes", UNFUSED):
            yield _REPEATED["input_bytes"], modules * looked_up * state
        chunks = [-(-n // tp) for n in tokens]
        if metric in ("output_bytes", UNFUSED):
            yield _REPEATED["output_bytes"], modules * (sum(tokens) - alone) * state
            yield PADDED_SLICES, modules * (tp * sum(chunks) - sum(tokens)) * state
        if metric not in ("weight_read_bytes", UNFUSED):
            return
        chosen = self._read_by_ranks(sent, every, experts // self.mesh.ep) - modules * min(experts, alone * top_k)
        yield self._uneven("experts", "weight_read_bytes"), chosen * 3 * width * inner * item
        if metric == UNFUSED:
            rows = pairs  # as many arrive, at all ranks, as are sent
            yield (
                WEIGHED,
                2 * pairs * width * weight
                - (weight - item) * rows * (2 * width + 2 * (1 + width) * (not self.gathered_weights)),
            )
            yield EXCHANGED, 8 * pairs * state + 4 * rows * state
            yield OVERWRITTEN, 2 * rows * item * (2 if self.gathered_weights else 1 + 2 * width + 2 * inner)
            if tp > 1:
                yield OF_SLICES, 2 * modules * alone * width * weight
                padded = sum(2 * chunk for n, chunk in zip(own, chunks, strict=True) if n < chunk)
                yield PADDED_SLICES, modules * padded * width * weight

    def _slices(self, tokens: Sequence[int]) -> list[int]:
        """Return of how many of its tokens each rank sends the pairs: of one slice, where ranks along ``tp`` share."""
        each = (shard(n, self.mesh.tp, i % self.mesh.tp) for i, n in enumerate(tokens))
        return [stop - start for start, stop in each]

    def _read_by_ranks(self, sent: Sequence[int], every: Sequence[SymbolValues], held: int) -> int:
        """Return the experts that all ranks read in all mixtures and calls: of a rank one for each pair, or all.

        Args:
            sent: pairs of the tokens of each rank in a call, those with its own experts among them.
            held: experts of a rank.
        """
        found = 0
        for away, here in self.pairs:
            for n, of in zip(sent, every, strict=True):
                if self.steps_differ and "N" in of:
                    found += of[reads_of(away)]
                else:
                    found += of.get("N", 1) * min(held, n - of[away] + of[here])
        return found

    def _of_pair(self, one: SymbolValues) -> tuple[int, int, int, int]:
        """Return the bytes of the weight of a pair, both widths of an expert, and the experts that a token chooses."""
        return 4 if self.wide_weights else one["b"], one["text_hidden"], one["text_moe"], one["text_topk"]

    @property
    def _reduced(self) -> frozenset[str]:
        """Return the roles of the modules whose results the ranks of a ``tp`` group add up."""
        found = {role for role, part in REDUCED.items() if self._splits(part)}
        found |= {"text.layer.experts"} if self.mesh.ep > 1 else set()
        if self.plan.joint and "text.layer.experts" in found:
            return frozenset(found - {"text.layer.experts", "text.layer.shared.down"} | {"text.layer.mlp"})
        return frozenset(found)

    def _splits(self, part: Part) -> bool:
        return self.mesh.tp > 1 and part in self.plan.split

    def _of_gathered_logits(self, of: SymbolValues) -> int:
        """Return the bytes by which gathering logits adds to the unfused bytes of all ranks of a ``tp`` group.

        Each reads a chunk of columns, which it has padded before if its own are fewer, and writes the chunks of all;
        several rows are read and written once more, to join the chunks.
        """
        tp, rows = self.mesh.tp, of["B"] * self._positions_kept(of)
        padded = padded_rows(self.vocab, self.plan.multiple)
        columns = -(-padded // tp)
        one_row = of["B"] == 1 and ("N" in of or self.last_logits or of["S"] == 1)
        found = 0
        for rank in range(tp):
            start, stop = shard(padded, tp, rank)
            found += columns + tp * columns * (1 if one_row else 3)
            found += (stop - start) + columns if stop - start < columns else 0
        return found * rows * of["b"]

    def _of_divided_experts(self, one: SymbolValues, ranks: Sequence[SymbolValues]) -> Iterator[tuple[str, int]]:
        """Yield what dividing the experts adds to the unfused bytes of a mixture on all ranks."""
        tp, item, size = self.mesh.tp, one["b"], self.mesh.batches
        weight, width, inner, top_k = self._of_pair(one)
        tokens = [*map(_rows, ranks)]
        groups = [tokens[i : i + size] for i in range(0, len(tokens), size)]
        every = [sum(group) for group in groups for _ in group]
        wide = weight if self.gathered_weights else 2 * (width + inner) * item
        yield OVERWRITTEN, tp * sum(every) * top_k * 2 * (weight + wide)
        if self.gathers:
            state, weights = width * item, top_k * weight
            yield GATHERED_TOKENS, tp * sum(n * (4 * state + 2 * weights) for n in every)
            others = sum(n - own for n, own in zip(every, tokens, strict=True))
            yield OUTSIDE, -tp * others * (2 * state + weights)

    @property
    def counted_once(self) -> frozenset[str]:
        """Return the roles of modules that read some weights repeatedly, of which :meth:`at_floor` has each once."""
        return frozenset({"text.embedding", *(("text.layer.experts",) if self.biased_experts else ())})

    def at_floor(
        self, nodes: Sequence[CostNode], one: SymbolValues, every: Sequence[SymbolValues]
    ) -> Iterator[tuple[str, int]]:
        """Yield the result of :meth:`~costproof.models.target.Sharing.at_floor`, by cause."""
        mesh, tp, item, width = self.mesh, self.mesh.tp, one["b"], one["text_hidden"]
        ranks = every[::tp]
        calls, alone = one.get("N", 1), _rows(one)
        rows = [*map(_rows, ranks)]
        yield SENT, 2 * (mesh.pp - 1) * tp * sum(rows) * width * item
        # Rows of the table that are looked up, each once, unless the output projection reads all of them.
        per_call = [of["B"] * (1 if "N" in of else of["S"]) for of in (one, *ranks)]
        first = 0 if self.shares_table else min(per_call[0], self.vocab)
        parts = [b - a for a, b in (shard(padded_rows(self.vocab, self.plan.multiple), tp, rank) for rank in range(tp))]
        parts = parts if self._splits("embedding") else [self.vocab] * tp
        lent = self.shares_table and mesh.pp == 1
        looked_up = 0 if lent else sum(min(n, entries) for n in per_call[1:] for entries in parts)
        yield LOOKED_UP, (looked_up - first) * calls * width * item
        corrected = sum(n.role == "text.layer.router" and "buffer_bytes" in n.exprs for n in nodes)
        yield "routers", corrected * (tp * sum(of.get("N", 1) for of in ranks) - calls) * 4 * one.get("text_experts", 0)
        if self.biased_experts:
            yield from self._of_biased_experts(one, every)
        # Logits.
        positions = [of["B"] * self._positions_kept(of) for of in ranks]
        kept = one["B"] * self._positions_kept(one)
        yield SEQUENCE_COPIES, (sum(positions) - kept) * self.vocab * item
        yield GATHERED_LOGITS, (tp - 1) * sum(positions) * self.vocab * item
        padded = padded_rows(self.vocab, self.plan.multiple)
        if self._splits("head") and not self.capped_logits:
            columns = tp * -(-padded // tp)
            yield self._uneven("head", FLOOR), tp * sum(positions) * (columns - self.vocab) * item
        # Masks of eager attention.
        for window in self.windows[0] if self.windows else ():
            copies = tp * sum(window in stage for stage in self.windows[1:])
            known = [{**of, "S": mesh.cp * of["S"]} if self.by_heads and "S" in of else of for of in ranks]
            masks = copies * sum(_mask(of, window) for of in known) - _mask(one, window)
            yield MASKS, masks * item
        # Features of images enter and leave the module around the decoder, with the prompt.
        around = [n for n in nodes if n.role == "model" and not n.kind]
        moved = sum((n.cost("input_bytes") or 0) + (n.cost("output_bytes") or 0) for n in around)
        if moved:
            yield FEATURES, (tp - 1) * (moved - 2 * alone * width * item)

    def _of_biased_experts(self, one: SymbolValues, every: Sequence[SymbolValues]) -> Iterator[tuple[str, int]]:
        """Yield what ranks read more of experts with biases, each of which a floor has once."""
        own, top_k, calls = self._own_sizes("text.layer.experts", "", one), one["text_topk"], one.get("N", 1)

        def cost(of: SymbolValues, chosen: int) -> int:
            width, inner = of["text_hidden"], of["text_moe"]
            return chosen * (3 * width * inner + 2 * inner + width) * of["b"]

        tokens, held = [_rows(of) // calls for of in every], one["text_experts"] // self.mesh.ep
        alone = self.mixtures * calls * cost(one, min(one["text_experts"], top_k * (_rows(one) // calls)))
        if self.pairs:
            chosen = self._read_by_ranks([top_k * n for n in self._slices(tokens)], every, held)
            yield EXPERTS, cost(one, chosen) - alone
            return
        size = self.mesh.tp * (self.mesh.batches if self.gathers else 1)
        each = [sum(tokens[i - i % size :][: size : self.mesh.tp]) for i in range(len(tokens))]
        sizes = [{**of, **own[i % self.mesh.tp]} for i, of in enumerate(every)]
        of_all = sum(cost(of, min(of["text_experts"], top_k * n)) for of, n in zip(sizes, each, strict=True))
        yield EXPERTS, self.mixtures * calls * of_all - alone

    def _divides_tokens(self, role: str, metric: str, one: SymbolValues) -> bool:
        """Return whether ranks divide the tokens of what a prompt costs in a module (sequence parallelism)."""
        if not self.plan.sequence or self.mesh.tp == 1 or "N" in one or metric not in OF_WORK:
            return False
        if metric == "output_bytes" and role in REDUCED:  # which end with a reduce-scatter
            return True
        return role in OF_OWN_TOKENS and not (metric == "output_bytes" and role in BEFORE_SPLIT)

    def _copies_of_shared(
        self, role: str, metric: str, cost: Callable[[SymbolValues], int], one: SymbolValues,
        ranks: Sequence[SymbolValues], of_group: Callable[[SymbolValues], int],
    ) -> Iterator[tuple[str, int]]:  # fmt: skip
        """Yield the result of :meth:`excess` for experts that ranks with several batches share.

        A rank's experts process the tokens of all these batches; what enters and leaves the module are its own tokens.
        """
        size = self.mesh.batches
        groups = [ranks[i : i + size] for i in range(0, len(ranks), size)]
        if metric in OF_MEMORY:
            every = size * of_group(one)
            yield self._uneven("experts", metric), every - cost(one)
            yield DATA_COPIES, (len(groups) - 1) * every
            return
        gathered = [{**of, "B": sum(x["B"] for x in group)} for group in groups for of in group]
        own, rows = 0, sum(map(of_group, gathered))
        if metric in ("input_bytes", "output_bytes") and role == "text.layer.experts":
            outside = [{**of, "text_moe": 0} for of in (*ranks, *gathered, one)]
            own = sum(map(of_group, outside[: len(ranks)]))
            rows -= sum(map(of_group, outside[len(ranks) : -1]))
            alone = cost(outside[-1])
            yield _REPEATED[metric], own - alone
            yield self._repeated(role, metric), rows - cost(one) + alone
            return
        weights = metric in _OF_WEIGHTS
        if metric == UNFUSED:  # what reads no weights depends on the rows only
            none = [{**of, "text_experts": 0} for of in (*gathered, one)]
            of_rows = sum(self.mesh.tp * cost(of) for of in none[:-1]) - cost(none[-1])
            yield self._repeated(role, metric), of_rows
            own, weights = of_rows, True
        yield self._uneven("experts", metric) if weights else self._repeated(role, metric), rows - cost(one) - own

    def _uneven(self, part: Part | None, metric: str) -> str:
        """Return the name of what ranks have more of a divided cost, where parts are not equal shares."""
        if part == "experts" and metric in ("params_active", "weight_read_bytes", UNFUSED):
            return EXPERTS
        padded = part in ("embedding", "head") and self.plan.multiple > 1
        return "padding of the vocabulary" if padded else "padding of uneven shards"

    def _own_sizes(self, role: str, metric: str, sizes: Mapping[str, int]) -> tuple[dict[str, int], ...]:
        """Return, for each rank of a ``tp`` group, its own numbers of the sizes in a module's cost that ranks divide.

        Args:
            role: of a module, as formulas name it.
            metric: of the cost; of a rank's experts at most all are active.
            sizes: numbers of the configuration by symbol.
        """
        tp, ep = self.mesh.tp, self.mesh.ep
        heads = role.endswith((".attention.q_norm", ".attention.k_norm")) and not self.latent
        part = "attention" if heads else part_of(role)
        own: dict[str, int] = {}
        if part == "experts" and ep > 1:
            own = {"text_experts": sizes["text_experts"] // ep}
            if metric == "params_active":
                own["text_topk"] = min(sizes["text_topk"], own["text_experts"])
        elif part not in self.plan.split:
            pass
        elif part == "attention":
            kv_heads = max(1, self.kv_heads // tp)
            own = {"text_heads": sizes["text_heads"] // tp, **({} if self.latent else {"text_kv_heads": kv_heads})}
        elif part in ("embedding", "head"):
            padded = padded_rows(self.vocab, self.plan.multiple)
            rows = (shard(padded, tp, rank) for rank in range(tp))
            return tuple({"text_vocab": stop - start} for start, stop in rows)
        elif part == "mlp":
            own = {"text_intermediate": sizes.get("text_intermediate", 0) // tp}
        elif part == "experts" or sizes["text_moe"] % tp == 0:
            own = {"text_moe": sizes["text_moe"] // tp}
        else:
            own = {"text_shared": sizes["text_shared"] // tp}
        return (own,) * tp

    def _repeated(self, role: str, metric: str) -> str:
        """Return the name of the part of a module's cost that every rank of a ``tp`` group has in full."""
        part = part_of(role)
        if metric == "calls":
            return "calls of modules that several ranks run"
        if role == "root":
            return "work on the logits of all entries"
        if role in ("text", "text.layer") or (role == "text.layer.mlp" and part in self.plan.split):
            return "additions and other work between modules"
        if part == "experts" and self.mesh.ep > 1 and metric not in _OF_WEIGHTS:
            return ROWS_ELSEWHERE
        if role.endswith(_LATENTS) and self.latent:
            return _why_whole(role, part, latent=True)
        if part is None or part not in self.plan.split:
            return _why_whole(role, part, latent=False)
        if self.latent and role == "text.layer.attention" and metric in ("output_bytes", "kv_read_bytes", UNFUSED):
            return _why_whole(role, part, latent=True)
        if metric in _OF_WEIGHTS:
            return (_BUFFERS if metric in OF_MEMORY else LOOKED_UP) if part == "embedding" else BIASES
        if role == "text.layer.attention" and metric in ("input_bytes", UNFUSED):
            return "tables and masks that the attention of every rank reads"
        return _REPEATED.get(metric, "work of split modules on whole tensors")

    def _of_format(self, role: str, metric: str, whole: int) -> str:
        """Return the name of what a quantised format stores of a module beside its divided parts; empty: nothing."""
        if metric == "params_active" or metric not in OF_MEMORY or self._repeated(role, metric) != BIASES:
            return ""  # parameters are the same in every format
        biases = dict(self.biased).get(role, 0)
        if not biases:
            return OF_FORMAT
        return "" if whole % biases == 0 and whole // biases in (1, 2, 4) else f"{BIASES}, and {OF_FORMAT}"

    def along_sequence(self, stage: str, role: str, kind: str, metric: str, cost: int) -> tuple[int, str]:
        """Return the cost that ranks that share a sequence add to that of one device, and its name; it may be negative.

        Each rank processes the new token of a step, absorbed projections (``matmul``) included. In a prompt it skips
        the parts of keys after its own positions: of P parts of n positions P (P - 1) / 2 parts of n x n pairs, or as
        many halves.
        """
        ranks, core = self.mesh.cp, role == "text.layer.attention" and kind != "matmul"
        if ranks == 1 or core == (stage == STAGES[1]) or role.endswith(".kv_up"):  # of the own part of latents
            return 0, ""
        if not core:
            return (ranks - 1) * cost if stage == STAGES[1] else 0, SEQUENCE_COPIES
        skipped = cost * (ranks - 1) // (2 * ranks) if metric == "flops" and self.cp_plan != "ulysses" else 0
        return -skipped, SKIPPED

    def copies_of_batches(self, role: str, metric: Metric) -> int:
        """Return how many groups of ranks divide the batch, each with the whole module: ``dp``, or fewer for experts.

        Of ranks that store parts of parameters, each has all buffers.
        """
        if metric == "buffer_bytes":
            return self.mesh.dp * self.mesh.fsdp
        shared = part_of(role) == "experts" and self.mesh.ep > 1
        return self.mesh.dp // self.mesh.batches if shared else self.mesh.dp

    def copies_of_sequences(self, metric: Metric) -> int:
        """Return how many ranks that share sequences have a whole module: 1 if they store parts of parameters."""
        return self.mesh.cp if self.mesh.fsdp == 1 or metric == "buffer_bytes" else 1

    def _of_experts(self, metric: str) -> tuple[int, str]:
        """Return the result of :meth:`held_by` for experts, each of which is whole on one rank of a group."""
        if metric in ("flops", KEPT_FLOPS) and not self.exchanges:
            return self.mesh.ep, ROWS_ELSEWHERE
        return 1, ""


def part_of(role: str) -> Part | None:
    """Return the decoder part to which a module belongs; ``None`` for norms, routers and containers.

    A norm of queries or keys has one head's weights, which all heads share.
    """
    if role.endswith(("_norm", ".norm1", ".norm2", ".norm1_after", ".norm2_after")) or role == "text.norm":
        return None
    for prefix, part in _PARTS_OF.items():
        if role == prefix or role.startswith(f"{prefix}."):
            return part
    return None


def _why_whole(role: str, part: Part | None, *, latent: bool) -> str:
    """Return a name for the costs of a module that is whole on every rank."""
    if latent:
        return "latents of MLA, and the projections to them"
    if not role.startswith(("text.", "lm_head")):
        return "towers and projectors, which the plan leaves whole"
    if part is not None:
        return f"{part}, which the plan leaves whole"
    if role == "text.further":
        return "projections of MTP modules"
    return "routers" if role.endswith(".router") else "norms" if "norm" in role else "tables of rotary embedding"


def _mask(of: SymbolValues, window: int) -> int:
    """Return the elements of the masks of a call, or of all steps, for layers with a window; 0 is none.

    Once the cached tokens fill the window, a mask has columns for those that are left of them, and for the new ones.
    """
    if "N" not in of:
        past = of.get("C", 0)
        kept = window - 1 if past and 0 < window <= past + 1 else past
        return of["B"] * of["S"] * (kept + of["S"])
    if 0 < window <= of["P"] + 1:
        return of["B"] * of["N"] * window
    return of["B"] * (of["N"] * (of["P"] + 1) + of["N"] * (of["N"] - 1) // 2)


def _rows(of: SymbolValues) -> int:
    """Return the tokens of all sequences of a rank in a call, or in all steps."""
    return of["B"] * _positions(of)


def _positions(of: SymbolValues) -> int:
    """Return the new tokens of one sequence of a rank in a call, or in all steps."""
    return of["N"] if "N" in of else of["S"]


def _calls(one: Ledger, stage: str) -> int:
    """Return how often a stage is called."""
    return sum(n.cost("calls") or 0 for n in one.nodes if n.stage == stage and n.role == "text")
