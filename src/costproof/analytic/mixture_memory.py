"""Record the operators of a mixture of experts on a memory tape, as in transformers."""

from __future__ import annotations

from costproof.analytic.costs import Size
from costproof.analytic.embedding import INT64
from costproof.analytic.feed_forward import ExpertMixture, Mlp
from costproof.analytic.layer_memory import LayerTape
from costproof.analytic.memory_tape import Piece
from costproof.ledger.errors import Incomplete


class MixtureTape(LayerTape):
    """Memory tape of one call of layers with mixtures of experts."""

    __slots__ = ()

    def _mixture(self, mixture: ExpertMixture, x: Piece) -> Piece:
        rows, width = self.call.rows, mixture.width
        if mixture.looped:
            raise Incomplete(
                "no formula for the memory of a loop over experts, which depends on the router's choices",
                fix="--experts grouped_mm or batched_mm",
            )
        indices, weights = self._router(mixture, x)
        result = self._routed(mixture, x, indices, weights)
        if mixture.shared == 0:
            return result
        shared = self._mlp(Mlp(width, mixture.shared, mixture.function, gated=True, bias=False), x)
        return self._make(rows * width, result, shared)

    def _routed(self, mixture: ExpertMixture, x: Piece, indices: Piece, weights: Piece) -> Piece:
        """Record the routed experts; on a rank with a part of the experts, they get the tokens of all batches.

        Experts of other ranks have a number behind the last one and weight 0. Sums over ranks add up in place.

        Branches: tokens are gathered only if there are several batches.

        Source: ``AllReduceEP`` (transformers); with several batches, ``AgRsAll2AllManager`` (vLLM).

        Raises:
            Incomplete: ranks exchange the pairs of a given routing.
        """
        run, rows, tape = self._batched if mixture.batched else self._grouped, self.call.rows, self.tape
        if mixture.held is None:
            return run(mixture, rows, x, indices, weights)
        if mixture.exchanged is not None:
            what = "no formula gives the live peak where ranks send each other token-expert pairs (--pairs)"
            raise Incomplete(what, where="--dispatch")
        item = self.call.item_bytes if mixture.routing.narrow else 4
        several, rows = mixture.batches != 1, rows * mixture.batches
        chosen = rows * mixture.top_k
        if several:
            x, indices = self._make(rows * mixture.width, x), tape.make(INT64 * chosen, indices)
            weights = tape.make(item * chosen, weights)
        elsewhere = tape.make(chosen, tape.make(INT64 * chosen, indices))
        number = tape.make(INT64 * chosen, indices)
        here = tape.make(INT64 * chosen, elsewhere, number, tape.make(INT64))
        result = run(mixture, rows, x, here, tape.make(item * chosen, weights, elsewhere))
        return self._make(self.call.rows * mixture.width, result) if several else result

    def _masked(self, piece: Piece, size: Size, mask: Piece | None) -> Piece:
        """Record the overwriting of rows of other ranks' experts with zeros, if there are any."""
        return piece if mask is None else self.tape.make(size, piece, mask)

    def _router(self, mixture: ExpertMixture, x: Piece) -> tuple[Piece, Piece]:
        """Record the router of a mixture of experts; return the tape entries of expert indices and weights."""
        tape, rows, how = self.tape, self.call.rows, mixture.routing
        scores, chosen = rows * mixture.experts, rows * mixture.top_k
        if how.upcast:
            reads = [self._widen(x, rows * mixture.width)]
            reads += [] if self.branches.wide else [tape.make(4 * mixture.experts * mixture.width)]
            logits = tape.make(4 * scores, *reads)
        else:
            logits = self._make(scores, x)
        if how.late:
            best, indices = self._make(chosen, logits), tape.make(INT64 * chosen, logits)
            return indices, self._make(chosen, best)
        wide = logits if how.upcast else self._widen(logits, scores)
        # Qwen3-MoE casts inside of the softmax, Mixtral before it.
        inside = (logits,) if how.narrow and not how.upcast else ()
        shares = tape.make(4 * scores, wide, *inside)
        if how.corrected:
            corrected = tape.make(4 * scores, shares)
            best_groups = self._group_scores(mixture, corrected)
            masked = tape.make(4 * scores, corrected, best_groups)
            tops, indices = tape.make(4 * chosen, masked), tape.make(INT64 * chosen, masked)
            tape.read(tops, indices)
            best = tape.make(4 * chosen, shares, indices)
        else:
            best, indices = tape.make(4 * chosen, shares), tape.make(INT64 * chosen, shares)
        if how.normalised:
            total = tape.make(4 * rows, best)
            total = tape.make(4 * rows, total) if how.floor else total
            tape.read(best, total)
        if how.scaled:
            best = tape.make(4 * chosen, best)
        return indices, self._narrow(best, chosen) if how.narrow else best

    def _group_scores(self, mixture: ExpertMixture, corrected: Piece) -> Piece:
        """Record group-limited routing; return the tape entry of the mask of experts outside of the selected groups."""
        tape, rows, how = self.tape, self.call.rows, mixture.routing
        scores, groups = rows * mixture.experts, rows * how.groups
        best = [tape.make(size * groups * how.group_best, corrected) for size in (4, INT64)]
        tape.read(*best)
        judged = tape.make(4 * groups, best[0])
        top = [tape.make(size * rows * how.best_groups, judged) for size in (4, INT64)]
        tape.read(*top)
        marks = tape.make(4 * groups, judged)
        tape.read(marks, top[1])
        spread = tape.make(4 * scores, marks)
        return tape.make(scores, tape.make(scores, spread))

    def _grouped(self, mixture: ExpertMixture, tokens: Size, x: Piece, indices: Piece, weights: Piece) -> Piece:
        """Record experts as grouped products over rows sorted by expert (``grouped_mm``)."""
        tape, chosen = self.tape, tokens * mixture.top_k
        wide, inner = chosen * mixture.width, chosen * mixture.inner
        item = self.call.item_bytes if mixture.routing.narrow else 4
        sorted_ids, order = tape.make(INT64 * chosen, indices), tape.make(INT64 * chosen, indices)
        rows = self._make(wide, x, tape.make(INT64 * chosen, order))
        weight = tape.make(item * chosen, weights, order)
        held = mixture.experts if mixture.held is None else mixture.held
        counts = tape.make(4 * held, tape.make(4 * chosen, sorted_ids))
        ends = tape.make(4 * held, counts)
        mask = None if mixture.held is None else tape.make(chosen, sorted_ids)
        bias = (self._make(2 * inner, sorted_ids),) if mixture.clamped else ()
        both = self._make(2 * inner, rows, ends)
        if mixture.clamped:
            tape.read(both, *bias)
        both = self._masked(both, 2 * inner * self.call.item_bytes, mask)
        if mixture.clamped:
            product = self._clamped_gate(both, inner)
            bias = (self._make(wide, sorted_ids),)
        else:
            product = self._make(inner, self._activate(mixture.function, both, inner), both)
        down = self._make(wide, product, ends)
        tape.read(down, *bias)
        down = self._masked(down, wide * self.call.item_bytes, mask)
        weighted = tape.make(item * wide, down, weight)
        back, counted = tape.make(INT64 * chosen, order), tape.make(INT64 * chosen)
        tape.read(back, order, counted)
        return self._sum(mixture, tokens, tape.make(item * wide, weighted, back), item)

    def _batched(self, mixture: ExpertMixture, tokens: Size, x: Piece, indices: Piece, weights: Piece) -> Piece:
        """Record experts as batched products of each row with a copy of its expert's weights (``batched_mm``)."""
        tape, chosen = self.tape, tokens * mixture.top_k
        wide, inner = chosen * mixture.width, chosen * mixture.inner
        item = self.call.item_bytes if mixture.routing.narrow else 4
        rows = self._make(wide, x)
        if mixture.held is not None:
            mask, indices = tape.make(chosen, indices), tape.make(INT64 * chosen, indices)
        gathered = self._make(2 * inner * mixture.width, indices)
        bias = (self._make(2 * inner, indices),) if mixture.clamped else ()
        both = self._make(2 * inner, rows, gathered)
        if mixture.clamped:
            tape.read(both, *bias)
            product = self._clamped_gate(both, inner)
        else:
            product = self._make(inner, self._activate(mixture.function, both, inner), both)
        gathered = self._make(inner * mixture.width, indices)
        bias = (self._make(wide, indices),) if mixture.clamped else ()
        down = self._make(wide, product, gathered)
        tape.read(down, *bias)
        if mixture.held is not None:
            weights = tape.make(item * chosen, weights, mask)
        return self._sum(mixture, tokens, tape.make(item * wide, down, weights), item)

    def _clamped_gate(self, both: Piece, inner: Size) -> Piece:
        gate, up = self._make(inner, both), self._make(inner, both)
        gated = self._make(inner, gate, self._make(inner, self._make(inner, gate)))
        return self._make(inner, self._make(inner, up), gated)

    def _sum(self, mixture: ExpertMixture, tokens: Size, weighted: Piece, item: Size) -> Piece:
        """Record the sum over each token's experts, and its cast to the run's dtype."""
        elements = tokens * mixture.width
        total = self.tape.make(item * elements, weighted)
        return total if mixture.routing.narrow else self._narrow(total, elements)
