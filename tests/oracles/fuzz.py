"""Generate hostile expressions and feed them to the readers."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

from costproof.algebra.evaluation import compile_expression
from costproof.algebra.symbols import parse, term_count
from costproof.claims.amounts import amount
from costproof.claims.reading import claims_from_text
from costproof.ledger.errors import CostproofError

NAMES = ("B", "S", "H", "n", "text_hidden", "sam_patch", "x1", "_", "__class__", "None", "lambda", "Ω")


TOKENS = (
    *NAMES, "1", "0", "2", "64", "65", "007", "9" * 30, "9" * 5_000, "1.5", "+", "-", "*", "**", "/", "//", "%", "(",
    ")", ",", ".", "[", "]", "{", "}", "'", '"', "\\", "\0", "\n", "ceiling(", "floor(", "Min(", "Max(", "eval(",
    "open(", "__import__('os')", ".__class__", "@", "=", ":", ";", "#", "&a", "*a", "!!python/object/apply:os.system",
    "<<", "²", "１", "\ud800", "\u202e", "e9", "I", "oo", "nan", "zoo", "pi", "sin(",
)  # fmt: skip


ATTACKS = (
    "().__class__.__bases__[0].__subclasses__()",
    "__import__('os').system('touch pwned')",
    "lambda: 0",
    "9**9**9**9",
    "((((9**64)**64)**64)**64)**64",
    "(((((S+1)**64+1)**64+1)**64+1)**64+1)**64",
    "((B+S+H+n)**64)**64",
    "(B+S+H+n+x+y+z)**40",
    "(" * 5_000 + "1" + ")" * 5_000,
    "-" * 20_000 + "1",
    "+".join(["S"] * 9_000),
    "*".join(["9999999999"] * 1_800),
    "Max(" + ",".join(f"S{i}*B" for i in range(2_000)) + ")",
    "Min(Max(S,B),Max(S+1,B-1),Max(H,n),Min(S,H))",
    "ceiling(" * 90 + "S/7" + ")" * 90,
    "1/(S-S)",
    "1/0",
    "0**-1",
    "S**-64/S**-64",
    "floor((S+1)**64/(B+1)**63)",
    "Max(floor((S+B)**9/7), ceiling((S-B)**9/5), (H+n)**9)",
    "S!",
    "a.b",
    "S if 1 else 2",
    "[x for x in y]",
    "f(x)",
    "Min()",
    "ceiling(1,2)",
    "1e400",
    "1e99",
    "0x10",
)


YAML_ATTACKS = (
    "a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\n",
    "!!python/object/apply:os.system ['touch pwned']",
    "costproof_claims: !!int 1",
    "a: 1\na: 2",
    "<<: {a: 1}",
    "[" * 3_000,
    "{a: " * 3_000,
    "- " * 3_000,
    "? " * 3_000,
    "a: |\n" + " x\n" * 3_000,
    "--- a\n--- b\n",
    "%YAML 9.9\n---\na: b",
    "\x00",
    "\ufeff\ufeff",
    "a:\tb",
    "'" + "x" * 50_000,
    "x" * 300_000,
    "costproof_claims: 1\nclaims:\n" + "- {stage: sam, flops: 9**9**9**9}\n" * 40,
)


@dataclass(slots=True)
class Outcome:
    """What the inputs came to."""

    ended: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)
    slowest: float = 0.0
    slowest_input: str = ""


def formula(rng: random.Random, depth: int = 0) -> str:
    """A text of the grammar, sometimes steep."""
    if depth > 3 or rng.random() < 0.25:
        return rng.choice((*NAMES[:6], str(rng.randrange(100)), str(rng.randrange(10**9))))
    kind = rng.randrange(8)
    left = formula(rng, depth + 1)
    if kind == 0:
        return f"({left})**{rng.choice((0, 1, 2, 3, -1, 5, 64))}"
    if kind == 1:
        return f"{rng.choice(('ceiling', 'floor'))}({left} / {rng.randrange(1, 20)})"
    if kind == 2:
        return f"{rng.choice(('Min', 'Max'))}({left}, {formula(rng, depth + 1)})"
    if kind == 3:
        return f"-({left})"
    return f"({left}) {rng.choice('+-*/')} ({formula(rng, depth + 1)})"


def mutated(rng: random.Random, text: str) -> str:
    """A few characters deleted, doubled or replaced by tokens."""
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(TOKENS) + text[at + rng.randrange(3) :]
    return text


def one_input(rng: random.Random, number: int) -> tuple[str, str]:
    """(reader, text): the attacks first, then everything in turn."""
    if number < len(ATTACKS):
        return "formula", ATTACKS[number]
    if number < len(ATTACKS) + len(YAML_ATTACKS):
        return "file", YAML_ATTACKS[number - len(ATTACKS)]
    kind = number % 10
    if kind < 1:
        return "formula", formula(rng)
    if kind < 4:
        return "formula", mutated(rng, formula(rng))
    if kind < 7:
        return "formula", "".join(rng.choice(TOKENS) for _ in range(rng.randrange(1, 25)))
    if kind < 9:
        return "number", "".join(rng.choice("0123456789.eEkMGT+-_, ") for _ in range(rng.randrange(12)))
    body = f"costproof_claims: 1\nclaims:\n- stage: sam\n  flops: {formula(rng)}\n  params: 5 M\n"
    return "file", mutated(rng, body) if rng.random() < 0.8 else body


def feed(reader: str, text: str) -> str:
    """Read one text; says how it ended. Anything but our errors is raised."""
    try:
        if reader == "formula":
            expr = parse(text)
            term_count(expr)
            program = compile_expression(expr)
            try:
                program.run(dict.fromkeys(program.symbols, 97))
            except ZeroDivisionError:
                return "divides by zero"
        elif reader == "number":
            amount(text, where="$")
        else:
            claims_from_text(text, where="fuzz")
    except CostproofError:
        return "refused"
    return "read"


WATCHED = ("open", "exec", "os.system", "subprocess.Popen", "os.posix_spawn", "import", "socket.connect")


def _late_import(arguments: tuple[object, ...]) -> bool:
    """Sympy loads parts of itself when it first needs them: its modules, their files, their code."""
    subject = getattr(arguments[0], "co_filename", arguments[0]) if arguments else ""
    name = str(subject)
    return name.startswith(("sympy.", "mpmath.")) or "/sympy/" in name or "/mpmath/" in name


def fuzz(inputs: int, seed: int, *, seconds: float | None = None) -> Outcome:
    """Feed the inputs; ``seconds`` ends early."""
    rng = random.Random(seed)
    outcome = Outcome()
    watching = [True]

    def spy(event: str, arguments: tuple[object, ...]) -> None:
        if watching[0] and event in WATCHED and not _late_import(arguments):
            outcome.bad.append(f"{event} {arguments[:1]}"[:200])

    # What is imported late is imported now, so that the watch sees what an input does.
    for reader, text in (("file", "costproof_claims: 1\nclaims: [{stage: a, flops: '(S+1)/2'}]"), ("number", "1 G")):
        feed(reader, text)
    for text in ATTACKS:
        if len(text) < 100:
            feed("formula", text)
    sys.dont_write_bytecode = True  # of what is imported later all the same
    sys.addaudithook(spy)
    start = time.perf_counter()
    for number in range(inputs):
        reader, text = one_input(rng, number)
        began = time.perf_counter()
        try:
            outcome.ended[f"{reader}: {feed(reader, text)}"] += 1
        except Exception as error:
            outcome.bad.append(f"{type(error).__name__} from a {reader}: {text[:200]!r}")
        took = time.perf_counter() - began
        if took > outcome.slowest:
            outcome.slowest, outcome.slowest_input = took, f"{reader}: {text[:200]!r}"
        if seconds is not None and time.perf_counter() - start > seconds:
            break
    watching[0] = False
    return outcome
