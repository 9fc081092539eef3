"""Damage captures, claims, configurations, baselines and certificates, and use them as the commands do."""

from __future__ import annotations

import json
import random
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from costproof import api
from costproof.claims import claims_from_text, judge_claims
from costproof.claims.effects import Mistakes
from costproof.compare.proof.certificate import read_certificate
from costproof.ledger.baseline import BASELINE, fold_capture, parse_baseline
from costproof.ledger.capture import CAPTURE, parse_capture
from costproof.ledger.errors import CostproofError
from costproof.ledger.files import json_in
from costproof.ledger.schema import to_data
from costproof.run.proof import prepare_repeat
from tests.support.toy import asked, hostile, incomplete, toy, wrong

VALUES: Final[tuple[Any, ...]] = (
    None, True, False, 0, 1, -1, 2, 7, 10**6, 10**12, 10**18, 10**40, 10**299, 1.5, 1e300, "", "x", "0", "7", [], {},
    "prefill", "sam", "analytic", "flops", "calls", "params", "prompt", "(root)", "a.b", "../../x", "<script>", "`|`",
    "\x1b[31m", "\u202e", "n", "H**2", "zzz", "1/0", "ceiling(n/3)", "(n+H+b)**64", "-n", "n/7", "x" * 300, [1], [None],
    {"a": 1}, [[[]]], "gelu", "sdpa", "eager", "float32",
)  # fmt: skip


CAPTURES: Final = (toy, wrong, incomplete, hostile, asked)


CONFIGS: Final[dict[str, dict[str, Any]]] = {
    "gpt2": {"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": 50},
    "llama": {
        "model_type": "llama", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "vocab_size": 50,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64, "head_dim": 8,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
}  # fmt: skip


CLAIMS: Final[list[dict[str, Any]]] = [
    {"costproof_claims": "1", "title": "t", "claims": [
        {"stage": "sam", "flops": "1792"}, {"stage": "decode", "flops": "432", "conventions": {"unit": "mac"}},
        {"id": "all", "stage": "total", "flops": "2.7 K"}, {"id": "all", "stage": "total", "params": "83"},
    ]},
    {"costproof_claims": "1", "at": {"B": "1"}, "workload": {"batch": "1"}, "claims": [
        {"stage": "sam", "invocation": "crops", "flops": "2*n*(H/16)**2*sam_hidden**2"},
        {"stage": "decode", "module": "text.attn", "flops": "4*B*text_hidden*N*(P + 1)"},
        {"stage": "decode", "kv_cache_bytes": "36", "at": {"P": "10"}},
    ]},
]  # fmt: skip


CERTIFIED: Final = Path(__file__).parents[2] / "docs" / "certificates" / "vit-l-16.json"


_JUDGED: Final = (toy(), wrong())


Path_ = tuple[Any, ...]


def places(value: Any, before: Path_ = ()) -> Iterator[Path_]:
    """The path to everything below a value."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*before, key)
        yield from places(value[key], (*before, key))


def damaged(good: Any, known: Sequence[Path_], draw: random.Random) -> Any:
    """One to four changes; what they leave as it was is shared with the good one."""
    made = good
    for _ in range(draw.choice((1, 1, 2, 3, 4))):
        try:
            made = _damaged(made, draw.choice(known), draw.choice(known), draw)
        except (AttributeError, IndexError, KeyError, TypeError):
            continue  # an earlier change took the place away
    return made


def _damaged(made: Any, path: Path_, other: Path_, draw: random.Random) -> Any:
    *above, key = path
    made = inside = made.copy()
    for step in above:
        inside[step] = inside = inside[step].copy()
    kind, here = draw.randrange(6), inside[key]
    if kind == 0:
        del inside[key]
    elif kind == 1:
        there = made
        for step in other:
            there = there[step]
        # Below itself it would have no end.
        inside[key] = json.loads(json.dumps(there))
    elif kind == 2 and isinstance(inside, list):
        inside.insert(key, here)
    elif kind == 2:
        inside[str(draw.choice(VALUES))] = here
    elif kind == 3 and isinstance(here, int) and not isinstance(here, bool):
        inside[key] = draw.choice((here + 1, here - 1, -here, here * 2, here // 2))
    else:
        inside[key] = draw.choice(VALUES)
    return made


def use_capture(raw: bytes, number: int, path: Path) -> None:
    """Read, compare, and render, draw or explain it in one of all ways."""
    made = parse_capture(json_in(raw, where="x", what="capture"), where="x")
    found = api.compare(made)
    assert found.sentence
    ways: list[Callable[[], object]] = [lambda name=name: found.render(name) for name in api.formats()]  # type: ignore[misc]
    ways += [lambda stage=stage: api.explain(made, stage) for stage in made.target.stages[:2]]  # type: ignore[misc]
    ways += [lambda kind=kind: api.graph(made, kind) for kind in ("dot", "svg", "mmd")]  # type: ignore[misc]
    ways[number % len(ways)]()


def use_claims(raw: bytes, number: int, path: Path) -> None:
    """Read, and judge against a capture that is right or one that is wrong. JSON is YAML too."""
    found = claims_from_text(raw.decode(), where="x")
    judge_claims(found, _JUDGED[number % len(_JUDGED)], Mistakes(), truth="x")


def use_config(raw: bytes, number: int, path: Path) -> None:
    """Count by the formulas."""
    target = json.loads(raw)
    name = target.get("model_type") if isinstance(target, dict) else None
    known = next((k for k in CONFIGS if k == name), "gpt2")
    path.write_bytes(raw)
    api.capture(known, config=path, sources=("analytic",), text_tokens=4)


def use_baseline(raw: bytes, number: int, path: Path) -> None:
    """Read."""
    parse_baseline(json_in(raw, where="x", what="baseline"), where="x")


def use_certificate(raw: bytes, number: int, path: Path) -> None:
    """Read, and lay out the proof that repeats it; nothing is traced."""
    path.write_bytes(raw)
    prepare_repeat(read_certificate(path))


def refused(work: Callable[[], object]) -> bool:
    """Whether work ended in an error of ours."""
    try:
        work()
    except CostproofError as error:
        return bool(str(error))
    return False


KINDS: Final[dict[str, tuple[Callable[[], list[Any]], Callable[[bytes, int, Path], None]]]] = {
    "captures": (lambda: [to_data(CAPTURE, made()) for made in CAPTURES], use_capture),
    "claims": (lambda: CLAIMS, use_claims),
    "configurations": (lambda: list(CONFIGS.values()), use_config),
    "certificates": (lambda: [json.loads(CERTIFIED.read_bytes())], use_certificate),
    "baselines": (lambda: [to_data(BASELINE, fold_capture(made())) for made in (toy, wrong)], use_baseline),
}
"""Kind -> good files, and what is done with a damaged one."""


def fuzzed(kind: str, inputs: int, seed: int, path: Path) -> tuple[Counter[str], float, list[str]]:
    """How so many damaged files of a kind ended, the seconds of the slowest, and tracebacks."""
    made, use = KINDS[kind]
    files = [(file, list(places(file))) for file in made()]
    draw, ends, slowest, traces = random.Random(seed), Counter[str](), 0.0, []
    for number in range(inputs):
        raw = json.dumps(damaged(*draw.choice(files), draw)).encode()
        began = time.process_time()
        try:
            ends["refused" if refused(lambda raw=raw, number=number: use(raw, number, path)) else "accepted"] += 1  # type: ignore[misc]
        except Exception:
            ends["a bug of ours"] += 1
            traces.append("\n  ".join(traceback.format_exc().splitlines()[-7:]))
        slowest = max(slowest, time.process_time() - began)
    return ends, slowest, traces
