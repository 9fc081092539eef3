"""One proof: the pieces, carried out on all cores, kept as they finish, put together into a certificate."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from costproof.compare.proof.assemble import Domain, assemble
from costproof.compare.proof.certificate import Certificate, Settings
from costproof.ledger.environment import environment
from costproof.ledger.errors import BadInput, CostproofError, Problems
from costproof.ledger.extras import require
from costproof.ledger.files import write_texts
from costproof.ledger.schema import adapter
from costproof.models.deepseek_ocr.target import DeepseekOcr
from costproof.processes import Pool, Say
from costproof.run.proof_tasks import Answer, AnySideTask, DrawTask, IdentityTask, PageTask, SideTask, Task

if TYPE_CHECKING:
    from costproof.models.target import Target

Progress = Callable[[str, int, int], None]

SAMPLES: Final = 500
SEED: Final = 1
_CHUNK: Final = 5
_PROGRESS_FILE: Final = "certificate.progress.jsonl"


def prove(
    target: Target,
    *,
    samples: int = SAMPLES,
    seed: int = SEED,
    sides: tuple[int, int] | None = None,
    folder: Path | None = None,
    processes: int | None = None,
    progress: Progress = lambda phase, done, total: None,
) -> Certificate:
    """Prove that the formulas of a target equal its graphs.

    Args:
        samples: random configurations to draw.
        sides: least and most side of a view in pixels; 64 to 2048 unless given.
        folder: where finished pieces are kept, so that an interrupted proof goes on; nowhere if ``None``.
        processes: the number of cores unless given.

    Raises:
        BadInput: settings that make no proof, or a target whose domain is not described.
    """
    from costproof.models.deepseek_ocr import domain
    from costproof.models.deepseek_ocr.any_side import whole_step

    if not isinstance(target, DeepseekOcr):
        raise BadInput(
            "this target does not say what a proof ranges over", where=target.name, expected="the target deepseek-ocr"
        )
    require("trace", "a proof")
    config = target.config
    least, most = sides or (domain.LEAST_SIDE, domain.MOST_SIDE)
    _check(samples, least, most, domain.sides(config, least, most), config.sam.stride)
    tasks: list[Task] = [
        AnySideTask(config),
        *([AnySideTask(config, whole=True)] if whole_step(config.sam) != config.sam.stride else []),
        *(IdentityTask(config, w) for w in domain.variants() if w.attention == "sdpa" or _eager(target)),
        *(SideTask(config, side) for side in domain.sides(config, least, most)),
        *(PageTask(config, w) for w in domain.pages(config)),
        *(DrawTask(seed, tuple(range(i, min(i + _CHUNK, samples)))) for i in range(0, samples, _CHUNK)),
    ]
    settings = Settings(samples, seed, least, most, json.dumps(config.normalised(), sort_keys=True))
    kept = None if folder is None else _Kept(folder / _PROGRESS_FILE, settings)
    answers = _carry_out(tasks, kept, processes or os.cpu_count() or 1, progress)
    certificate = assemble(
        answers,
        settings=settings,
        target=target.info(),
        conventions=target.conventions(domain.variants()[0]),
        environment=environment(),
        domain=Domain(
            sides=domain.sides(config, least, most),
            tried_sides=domain.symbolic_sides(config),
            pages=tuple(w.name for w in domain.pages(config)),
            ranges={name: len(values) for name, values in domain.RANGES.items()},
            independent=domain.INDEPENDENT,
            choices=Counter(c for number in range(samples) for c in domain.choices(domain.draw(seed, number))),
            not_varied=domain.NOT_VARIED,
        ),
        draw=lambda number: domain.draw(seed, number).target.config.symbols(),
    )
    if kept is not None and certificate.verdict != "incomplete":
        kept.remove()
    return certificate


def repeat(
    certificate: Certificate,
    *,
    processes: int | None = None,
    progress: Progress = lambda phase, done, total: None,
) -> Certificate:
    """Make the proof of a certificate again, from its own settings.

    Raises:
        BadInput: it is about a target that is not known here, or its configuration is damaged.
    """
    from costproof.models.deepseek_ocr.config import from_normalised

    if certificate.target.name != "deepseek-ocr":
        raise BadInput("no such target", where="$.target.name", expected="deepseek-ocr", got=certificate.target.name)
    settings = certificate.settings
    try:
        target = DeepseekOcr(from_normalised(json.loads(settings.config)))
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


def _eager(target: DeepseekOcr) -> bool:
    """Whether the native eager attention can run this configuration: it cannot share key/value heads."""
    return target.config.text.heads == target.config.text.kv_heads


def _check(samples: int, least: int, most: int, sides: Sequence[int], step: int) -> None:
    problems: list[CostproofError] = []
    if samples < 0:
        problems.append(BadInput("a proof cannot draw so few", where="--samples", expected="0 or more", got=samples))
    if least < 1 or not sides or most > 8192:
        problems.append(
            BadInput(
                "no side to enumerate",
                where="--sides",
                expected=f"a range within 1 to 8192 that holds a multiple of {step}",
                got=f"{least}-{most}",
            )
        )
    if problems:
        raise Problems("the proof cannot be made", problems)


def _carry_out(
    tasks: Sequence[Task], kept: _Kept | None, processes: int, progress: Progress
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


def _answer(task: Task, say: Say) -> Answer:
    return task.run()


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
