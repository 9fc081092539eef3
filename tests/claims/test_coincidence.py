"""How often chance gives a number: by hand for a few sizes, by brute force for all products of two."""

from __future__ import annotations

from fractions import Fraction

import pytest

from costproof.claims.effects import Effect
from costproof.claims.explaining import _is_evidence
from costproof.claims.search import Chance, KnownNumbers, ReferenceClass, SizeProducts
from costproof.claims.types import Amount
from tests.claims.test_judge import verdict
from tests.oracles.claims import causes, world
from tests.oracles.wrong_models import flops


def whole(value: int) -> Amount:
    return Amount(str(value), value, value)


@pytest.mark.parametrize(
    ("number", "weight"),
    [
        # Of two sizes each comes first in half of the cases; 6 is 2 x 3 or 3 x 2, a fourth each, 12 is 6 x 2 or 4 x 3.
        (1, Fraction(1)), (2, Fraction(1, 2)), (4, Fraction(1, 4)), (6, Fraction(1, 2)), (12, Fraction(3, 8)),
        (5, Fraction(0)), (10, Fraction(0)), (0, Fraction(0)),
    ],
)  # fmt: skip
def test_products_pass_a_number(number: int, weight: Fraction) -> None:
    assert SizeProducts((2, 3)).weight(number) == weight


def test_nothing_is_a_number_too() -> None:
    # Of all numbers half a one is taken to lie at 0; of multiples of 2 there are 4 and 6, two in a stretch of 8.
    half = Fraction(1, 2)
    numbers = KnownNumbers(ReferenceClass([Fraction(6), Fraction(4)], [2, 3]), [4, 6, 10], 1)
    assert numbers.chance(whole(0)) == Chance(half, multiples=half)


def test_a_number_of_the_right_primes_need_not_be_a_product() -> None:
    assert SizeProducts((4, 6)).weight(8) == 0
    assert SizeProducts((4, 6)).weight(24) == Fraction(1, 2)


def test_as_many_products_as_expected_pass_a_stretch() -> None:
    """All products of 2 and 3 from a fourth of a million to four millions, each with its weight."""
    products = SizeProducts((2, 3))
    numbers = (2**a * 3**b for a in range(30) for b in range(20))
    passed = sum((products.weight(n) for n in numbers if 250_000 < n <= 4_000_000), Fraction(0))
    assert abs(passed / products.passing - 1) < Fraction(1, 50)


def test_among_numbers_of_as_many_digits() -> None:
    # 20 numbers, two of which fit a claim of 51 integers: 18 times 51 of the 1,050 integers around it.
    numbers = KnownNumbers(ReferenceClass([Fraction(1)], ()), range(9_525, 10_500, 50), 1)
    rounded = Amount("10.00 k", 9_975, 10_025)
    assert numbers.among_all(rounded) == Fraction(18 * 51, 1_050)
    # What fits is no evidence of density, but a relation counts itself.
    assert numbers.among_all(rounded, itself=True) == Fraction(20 * 51, 1_050)


def test_where_none_is_near_half_a_number_is_taken_to_lie() -> None:
    # A twentieth to both sides of a billion, 10^8 integers wide; without any known number nothing can fit.
    assert KnownNumbers(ReferenceClass([Fraction(1)], ()), [7], 1).among_all(whole(10**9)) == Fraction(1, 2) / 10**8
    assert KnownNumbers(ReferenceClass([Fraction(1)], ()), [], 1).among_all(whole(10**9)) == 0


@pytest.mark.parametrize(
    ("many", "products", "evidence"),
    [
        (1, Fraction(1, 100), True),
        (1, Fraction(1, 99), False),
        (2, Fraction(1, 1_000), True),
        (2, Fraction(1, 999), False),
    ],
)
def test_of_products_one_cause_is_held_to_less_than_two(many: int, products: Fraction, *, evidence: bool) -> None:
    causes = tuple(Effect(name, name, name, {}) for name in ("halved", "missing")[:many])
    assert _is_evidence((causes,), Chance(Fraction(1, 10), products), whole(10**6)) is evidence
    # Few digits are those of all kinds of numbers: products are not asked.
    assert _is_evidence((causes,), Chance(Fraction(1, 10), products), Amount("1.00 M", 995_000, 1_005_000))


@pytest.mark.parametrize(
    ("names", "multiples", "evidence"),
    [
        (("halved",), Fraction(1, 100), True),
        (("halved",), Fraction(1, 99), False),
        (("halved", "missing"), Fraction(1, 500), True),
        (("halved", "missing"), Fraction(1, 499), False),
        # Conventions, which a source may state, are likelier together; part of the calls is likelier by itself.
        (("6ND", "causal half"), Fraction(1, 100), True),
        (("6ND", "causal half"), Fraction(1, 99), False),
        (("view missing: crops",), Fraction(1, 11), True),
    ],
)
def test_multiples_of_the_grain_need_more_evidence(
    names: tuple[str, ...], multiples: Fraction, *, evidence: bool
) -> None:
    causes = tuple(Effect(name, name, name, {}) for name in names)
    chance = Chance(multiples, multiples=multiples)
    assert _is_evidence((causes,), chance, whole(10**6)) is evidence


@pytest.mark.parametrize(
    ("stage", "multiple", "causes_shown"),
    [
        # The projector costs 107 times 16 tokens: of 75 other multiples from 0.7 to 1.4 of it one is this by chance.
        ("projector", 139 * 83_886_080, [{"view twice: global"}]),
        # Sets of three lead to every thirty-fourth of the 9,022 multiples around decode, and to every fifteenth.
        ("decode", 18_821_939_200, [{"lm_head halved", "one shared expert", "doubled"}]),
        ("decode", 12_517_376_000, [{"embedding as a GEMM", "one shared expert", "top-k missing"}]),
    ],
)
def test_a_multiple_that_chance_gives_is_shown_as_no_evidence(
    stage: str, multiple: int, causes_shown: list[set[str]]
) -> None:
    judged = verdict(f"stage: {stage}, flops: {multiple}", world()[0])
    assert judged.status == "undetermined"
    assert causes(judged) == causes_shown


def test_a_ratio_is_one_of_multiples_of_a_part_of_the_grain() -> None:
    reference = ReferenceClass([Fraction(400), Fraction(600)], ())
    assert reference.grain == reference.lattice(whole(800)) == 200
    assert reference.lattice(whole(440)) is None
    assert reference.lattice(whole(440), 12) == 40


def test_where_numbers_lie_closest_counts() -> None:
    # Nothing but a heap of 20 beside the claim: 20 of 1,000 in all, but 20 of 250 around it.
    numbers = KnownNumbers(ReferenceClass([Fraction(1)], ()), range(10_050, 10_070), 1)
    assert numbers.among_all(whole(10_000)) > Fraction(20, 252)
    assert numbers.among_all(whole(10_400)) < Fraction(20, 1_000)


def test_among_multiples_of_the_grain() -> None:
    # All parts are multiples of 1,000: of the 100 multiples around 1,000,000 three are known, and of the integers 4.
    reference = ReferenceClass([Fraction(400_000), Fraction(601_000)], ())
    assert reference.grain == 1_000
    numbers = KnownNumbers(reference, (970_000, 980_000, 1_030_000, 1_000_001), 1)
    assert numbers.among_all(whole(1_000_000)) == Fraction(3 * 1_000, 100_000)
    assert numbers.among_all(whole(1_000_002)) < Fraction(1, 1_000)


def test_among_products() -> None:
    reference = ReferenceClass([Fraction(7)], (2, 3))
    numbers = KnownNumbers(reference, (6, 12, 13, 400), 1)
    # 6 and 12 lie between a fourth of 12 and four times it.
    assert numbers.among_products(whole(12)) == (Fraction(1, 2) + Fraction(3, 8)) / reference.products.passing
    assert numbers.among_products(whole(13)) == 0
    assert numbers.among_products(Amount("1e1", 5, 15)) == 0


def test_chances_add_up() -> None:
    one, other = Chance(Fraction(1, 3), Fraction(1, 4)), Chance(Fraction(1, 6))
    assert (one + other).both == Fraction(3, 4)


@pytest.mark.parametrize(
    ("stage", "planted", "status"),
    [
        # A sum of many parts is a product of sizes by accident alone: two causes are evidence.
        ("prefill", {"lm_head missing", "router missing"}, "explained"),
        # A matrix product is a product of sizes, and so is nearly all that causes make of it.
        ("projector", {"mac", "projector on patches", "view missing: global"}, "undetermined"),
        ("clip", {"attention missing", "view missing: crops"}, "undetermined"),
        # Half of it is the same work in another unit, as good as the truth itself.
        ("projector", {"mac"}, "explained"),
    ],
)
def test_products_of_sizes_are_weak_evidence(stage: str, planted: set[str], status: str) -> None:
    at, model = world()
    judged = verdict(f"stage: {stage}, flops: {int(flops(model, stage, frozenset(planted)))}", at)
    assert judged.status == status
    assert causes(judged) == [frozenset(planted)]
    assert judged.note.startswith("fits, not evidence") == (status == "undetermined")
    assert Fraction(judged.coincidences) > 0
