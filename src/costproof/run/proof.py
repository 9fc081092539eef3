"""One proof: the pieces, carried out on all cores, kept as they finish, put together into a certificate."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from costproof.compare.proof.assemble import assemble
from costproof.compare.proof.certificate import Certificate, Settings
from costproof.compare.proof.judge import Answer
from costproof.ledger.environment import environment
from costproof.ledger.errors import BadInput, Problems
from costproof.ledger.extras import require
from costproof.ledger.files import write_texts
from costproof.ledger.progress import Progress, silent
from costproof.ledger.schema import adapter
from costproof.models.proof import MadeAgain, Piece, WithProof
from costproof.models.registry import TARGETS
from costproof.processes import Pool, Say
from costproof.run.proof_tasks import carried_out

if TYPE_CHECKING:
    from costproof.models.target import Target

SAMPLES: Final = 500
SEED: Final = 1
_PROGRESS_FILE: Final = "certificate.progress.jsonl"


def prove(
    target: Target,
    *,
    samples: int = SAMPLES,
    seed: int = SEED,
    sides: tuple[int, int] | None = None,
    folder: Path | None = None,
    processes: int | None = None,
    progress: Progress = silent,
) -> Certificate:
    """Prove that the formulas of a target equal its graphs; arguments and errors as for :func:`costproof.api.prove`."""
    if not isinstance(target, WithProof):
        raise BadInput(
            "this target does not say what a proof ranges over",
            where=target.name,
            expected="a target with a method proof(samples, seed, sizes)",
        )
    require("trace", "a proof")
    if samples < 0:
        raise Problems(
            "the proof cannot be made",
            [BadInput("--samples out of range", where="--samples", expected="0 or more", got=samples)],
        )
    proof = target.proof(samples, seed, sides)
    kept = None if folder is None else _Kept(folder / _PROGRESS_FILE, proof.settings)
    answers = _carry_out(proof.pieces, kept, processes or os.cpu_count() or 1, progress)
    certificate = assemble(
        answers,
        settings=proof.settings,
        target=target.info(),
        conventions=target.conventions(proof.usual),
        environment=environment(),
        domain=proof.domain,
        drawn=proof.drawn,
        symbols={s: d for s, d in target.symbol_docs().items() if s not in target.info().symbols},
    )
    if kept is not None and certificate.verdict != "incomplete":
        kept.remove()
    return certificate


def repeat(
    certificate: Certificate,
    *,
    processes: int | None = None,
    progress: Progress = silent,
) -> Certificate:
    """Make the proof of a certificate again, from its own settings; errors as for :func:`costproof.api.verify`."""
    name, settings = certificate.target.name, certificate.settings
    factory = TARGETS.load(name)
    if not isinstance(factory, MadeAgain):
        raise BadInput("this target cannot be made of a certificate", where="$.target.name", got=name)
    try:
        target = factory.from_normalised(settings.config)
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput("the certificate's configuration is damaged", where="$.settings.config", got=error) from error
    return prove(
        target,
        samples=settings.samples,
        seed=settings.seed,
        sides=(settings.least_side, settings.most_side),
        processes=processes,
        progress=progress,
    )


def _carry_out(
    tasks: Sequence[Piece], kept: _Kept | None, processes: int, progress: Progress
) -> list[tuple[str, str, Answer | str]]:
    """(phase, id, answer or why there is none) of all tasks, in their order."""
    found: dict[str, Answer | str] = dict(kept.read()) if kept is not None else {}
    totals: dict[str, int] = {}
    done: dict[str, int] = {}
    for task in tasks:
        totals[task.phase] = totals.get(task.phase, 0) + 1
        done[task.phase] = done.get(task.phase, 0) + (task.id in found)
    phases = {t.id: t.phase for t in tasks}
    todo = [t for t in tasks if t.id not in found]
    begun = {phase for phase, count in done.items() if count} | {t.phase for t in todo[:1]}
    for phase, total in totals.items():
        if phase in begun:  # the first piece takes a minute: say at once what there is to do
            progress(phase, done[phase], total)
    with Pool[Answer](processes) as pool:
        for ended in pool.results({t.id: partial(_answer, t) for t in todo}):
            found[ended.name] = ended.result() if ended.error is None else str(ended.error)
            if kept is not None and ended.error is None:
                kept.add(ended.name, ended.result())
            phase = phases[ended.name]
            done[phase] += 1
            progress(phase, done[phase], totals[phase])
    return [(t.phase, t.id, found[t.id]) for t in tasks]


def _answer(piece: Piece, say: Say) -> Answer:
    return carried_out(piece)


class _Kept:
    """Answers of finished pieces, one per line, behind a line that says what they are answers to."""

    def __init__(self, path: Path, settings: Settings) -> None:
        self.path = path
        self.head = json.dumps({"proof": _fingerprint(settings)})

    def read(self) -> Iterable[tuple[str, Answer]]:
        """What an interrupted proof of the same thing left; a line cut off in the middle is done again."""
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            lines = []
        if not lines or lines[0] != self.head:
            write_texts({self.path: self.head + "\n"})
            return []
        found = []
        for line in lines[1:]:
            try:
                data = json.loads(line)
                found.append((data["id"], adapter(Answer).validate_python(data["answer"])))
            except (ValueError, KeyError, TypeError):
                continue
        return found

    def add(self, name: str, answer: Answer) -> None:
        """Append one answer."""
        data = {"id": name, "answer": adapter(Answer).dump_python(answer, mode="json")}
        with self.path.open("a", encoding="utf-8") as out:
            out.write(json.dumps(data) + "\n")

    def remove(self) -> None:
        """The proof is finished."""
        self.path.unlink(missing_ok=True)


def _fingerprint(settings: Settings) -> str:
    """What an answer depends on: configuration, seed, versions, and our own code."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256(json.dumps([settings.config, settings.seed, environment()], sort_keys=True).encode())
    for path in sorted(root.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
