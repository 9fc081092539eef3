"""A memory tape: what is alive at each moment, by hand, in numbers and in symbols."""

from __future__ import annotations

from random import Random

from costproof.algebra.identity import Terms, at_least, expression_of, terms_of, undominated
from costproof.algebra.symbols import parse, sym, text
from costproof.analytic.memory_tape import MemoryTape

B, S = sym("B"), sym("S")


def attention() -> MemoryTape:
    """An input of 8 B*S bytes, three results of it, scores of S^2 that two of them make, and a sum with the third."""
    tape = MemoryTape()
    x = tape.give(8 * B * S)
    q, k, v = (tape.make(8 * B * S, x) for _ in range(3))
    scores = tape.make(2 * B * S**2, q, k)
    shares = tape.make(2 * B * S**2, scores)
    tape.keep(tape.make(8 * B * S, shares, v))
    return tape


def test_what_is_alive_by_hand() -> None:
    """With x, q, k, v and scores 32*B*S + 2*B*S^2; then x, v and twice the scores; then x, v, y and shares."""
    tape = attention()
    assert {text(m) for m in tape.peak({})} == {"2*B*S**2 + 32*B*S", "4*B*S**2 + 16*B*S"}
    # Below 8 tokens the first is more, from 8 on the second.
    for tokens in (1, 7, 8, 9, 100):
        expected = max(2 * tokens**2 + 32 * tokens, 4 * tokens**2 + 16 * tokens)
        assert tape.peak_bytes({"B": 1, "S": tokens}) == expected
        assert tape.peak_bytes({"B": 3, "S": tokens}) == 3 * expected
    assert [text(m) for m in tape.peak({"S": 100})] == ["41600*B"]


def test_an_input_that_the_caller_gives_up_is_released_after_its_last_reader() -> None:
    """A cache of 10 bytes is joined into one of 12, beside 1 byte that is read to the end."""
    tape = MemoryTape()
    ids, old = tape.give(1), tape.give(10)
    new = tape.make(12, old)
    tape.keep(new)
    tape.read(ids, tape.make(5, new))
    tape.keep(tape.make(6, new))
    assert tape.peak_bytes({}) == 1 + 10 + 12 + 6
    assert tape.peak_bytes({}, inputs_held=False) == 1 + 10 + 12
    assert tape.peak({}) == (29,)


def test_sums_that_others_reach_are_dropped() -> None:
    def kept(*sums: str) -> set[str]:
        return {text(expression_of(one)) for one in undominated(terms_of(parse(s)) for s in sums)}

    assert kept("2*S", "3*S", "3*S") == {"3*S"}
    assert kept("2*S", "S + 1") == {"2*S"}  # S >= 1
    assert kept("3*S", "S + 3") == {"3*S", "S + 3"}
    assert kept("S**2", "2*S - 1") == {"S**2"}  # (S - 1)^2
    assert kept("B*S", "B + S - 1") == {"B*S"}  # (B - 1)*(S - 1)
    assert kept("S", "16*ceiling(S/16)") == {"S", "16*ceiling(S/16)"}
    assert at_least(terms_of(parse("2*ceiling(S/16)")), terms_of(parse("ceiling(S/16) + 1")))
    assert not at_least(terms_of(parse("2*floor(S/16)")), terms_of(parse("floor(S/16) + 1")))


def test_sums_that_none_exceeds_are_those_of_a_comparison_of_all_pairs() -> None:
    """Sums of up to four products with coefficients from -4 to 9, of which some exceed others at all sizes."""
    rng = Random(41)
    products = ["1", "B", "S", "B*S", "S**2", "floor(S/4)", "B*floor(S/4)", "ceiling(S/8)"]
    removed = 0
    for _ in range(60):
        sums = [
            terms_of(parse(" + ".join(f"({rng.randint(-4, 9)})*{p}" for p in rng.sample(products, rng.randint(1, 4)))))
            for _ in range(12)
        ]
        expected: list[Terms] = []
        for one in sums:
            if not any(at_least(other, one) for other in expected):
                expected = [other for other in expected if not at_least(one, other)] + [one]
        assert undominated(sums) == expected
        removed += len(sums) - len(expected)
    assert removed > 100
