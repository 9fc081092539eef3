"""Implement ``costproof.prove``, ``costproof.verify`` and ``costproof.derive``.

A proof runs its pieces on all cores and writes a certificate. A closed form is derived from a model's graph and checked
at random sizes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from costproof.compare.proof.certificate import Certificate, Settings, differences, read_certificate
from costproof.compare.proof.closed_form import ClosedForm, Notation, closed_form, render
from costproof.compare.proof.judge import Answer
from costproof.ledger.aside import take
from costproof.ledger.environment import RULES, environment, require
from costproof.ledger.errors import EXIT_FINDINGS, EXIT_OK, BadInput, did_you_mean
from costproof.ledger.files import MAX_BYTES, first_bytes
from costproof.ledger.progress import Progress, silent
from costproof.ledger.schema import adapter
from costproof.ledger.writing import write_texts
from costproof.models.proof import Piece, Proof, Provable, Proves, WithProof
from costproof.models.registry import TARGETS
from costproof.models.target import Exportable, Runnable, WithMemory, WithStorage, lacking
from costproof.opgraph.rules.files import Files, versions_in_force, with_rules_in_force
from costproof.patches.flash_attention import FLASH
from costproof.processes import Pool
from costproof.reports.outputs import variants
from costproof.reports.report import check_folder
from costproof.run import proof_pieces
from costproof.run.count_lock import count_lock
from costproof.run.prepare import load_run_target
from costproof.run.proof_pieces import assemble_certificate, proof_domain
from costproof.run.request import RunRequest, request
from costproof.tracers.cache import cache_enabled
from costproof.tracers.derive.subject import POINTS, Subject, subject
from costproof.tracers.sources import preload_modules
from costproof.weights.stored import Stored

if TYPE_CHECKING:
    from costproof.tracers.derive.closed import SizeCheck

SAMPLES: Final = 64
SEED: Final = 1
MOST_SAMPLES: Final = 10_000
"""Limit of random configurations when a certificate is repeated, since its author may ask for too many."""
_SHOWN: Final = 120
_MOST_POINTS: Final = 1_000
RUN_STEPS: Final = (3, 2, 5, 12, 4, 7, 2, 9)
"""Decode steps of the real runs in a proof; three different numbers determine a polynomial of degree 2.

A cost that is linear in the context is of degree 2 in the number of steps N. One step is in every draw.
"""
_PEAK_DRAWS: Final = 4
"""Number of random configurations at which the live peak is compared, each by an export of its own."""


def prove(
    target: str | RunRequest,
    *,
    out: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    progress: Progress = silent,
    **choices: Any,
) -> Certificate:
    """Prove that the formulas of a target equal its graphs.

    Args:
        target: the target.
        out: folder of the certificate; finished pieces are saved there, so that an interrupted proof resumes.
        jobs: number of processes (default: one per core).
        progress: called with the steps.
        choices: ``samples`` (random configurations to draw), ``seed``, the settings that ``costproof.settings(target,
            "prove")`` lists, ``config``, and other choices of a run.

    Raises:
        BadInput: invalid settings, or a target that does not define the domain of a proof.
    """
    asked = request(target, verb="prove", **choices)
    with count_lock(asked.rules):
        model, proof = prepare_proof(asked)
        if out is None:
            return carry_out_proof(model, proof, jobs=jobs, progress=progress)
        folder = Path(out)
        check_folder(folder, (output.file for output in variants("certificate").values()))
        with ProofCheckpoint(folder, model.name, proof.settings) as kept:
            certificate = carry_out_proof(model, proof, kept=kept, jobs=jobs, progress=progress)
            write_texts({folder / o.file: o.text(certificate) for o in variants("certificate").values()})
            if certificate.verdict != "incomplete":
                kept.remove()
        return certificate


def prepare_proof(asked: RunRequest) -> tuple[WithProof, Proof]:
    """Return the target of a request and its proof; nothing is traced. Raises as :func:`prove`."""
    target = load_run_target(asked)
    if not isinstance(target, WithProof):
        raise BadInput(
            "this target does not define the domain of a proof",
            where=target.name,
            expected="a target with a method proof(samples, seed)",
            fix=f"costproof derive {asked.target} checks the closed form of a graph at random sizes",
        )
    require("trace", "a proof")
    chosen: dict[str, Any] = {"samples": SAMPLES, "seed": SEED, **asked.prove}
    if chosen["samples"] < 0:
        raise BadInput("--samples out of range", where="--samples", expected="0 or more", got=chosen["samples"])
    proof = target.proof(**chosen)
    return target, with_runs(replace(proof, settings=replace(proof.settings, stored=_stored(target, proof))))


def _stored(target: WithProof, proof: Proof) -> str:
    """Return as JSON the checkpoint formats that a proof depends on beyond the normalised configuration; or empty."""
    if not isinstance(target, WithStorage) or not isinstance(factory := TARGETS.load(target.name), Proves):
        return ""
    again, own = factory.from_normalised(proof.settings.config), replace(target.stored, folder="")
    if isinstance(again, WithStorage) and again.stored == own:
        return ""
    return adapter(Stored).dump_json(own, exclude_defaults=True).decode()


def with_runs(proof: Proof) -> Proof:
    """Return the proof with additional pieces that run some random configurations and count every decode step.

    The graph of one step and its formula are summed over N steps by the same code; these runs are an independent check.
    Torch has no FLOP formula for FlashAttention's operators, so such draws are left out. Where the live peak is a
    formula, it is compared in the identities and in the first draws.
    """
    drawn = (
        p
        for p in proof.pieces
        if p.phase == "draws" and p.workload.new_tokens and isinstance(p.target, Runnable) and p.workload.mesh.one
        if p.workload.attention != FLASH
    )
    runs = (
        Piece(f"runs: {p.workload.name}, {steps} steps", "runs", p.target, replace(p.workload, new_tokens=steps))
        for p, steps in zip(drawn, RUN_STEPS, strict=False)
    )
    return replace(proof, pieces=(*proof.pieces, *runs, *_peaks(proof)))


def _peaks(proof: Proof) -> Iterator[Piece[Provable]]:
    """Yield the pieces that compare live peaks by formula with those of graphs.

    There is no formula for a loop over experts, for views whose side is a symbol, and for ranks of a mesh.
    """
    known = [
        p
        for p in proof.pieces
        if isinstance(p.target, WithMemory) and not p.asked and p.workload.mesh.one
        if p.workload.experts != "eager"
    ]
    drawn = [p for p in known if p.phase == "draws"][:_PEAK_DRAWS]
    for piece in (*(p for p in known if p.phase == "identities"), *drawn):
        name = piece.id.partition(": ")[2] if piece.phase == "identities" else piece.workload.name
        yield Piece(f"peaks: {name}", "peaks", piece.target, piece.workload, sizes=piece.sizes)


def carry_out_proof(
    target: WithProof,
    proof: Proof,
    *,
    kept: ProofCheckpoint | None = None,
    jobs: int | None = None,
    progress: Progress = silent,
) -> Certificate:
    """Run all pieces of a proof on ``jobs`` cores, and assemble the certificate."""
    if jobs is not None and not 1 <= jobs <= 256:
        raise BadInput("--jobs out of range", where="--jobs", expected="1 to 256", got=jobs)
    return assemble_certificate(_carry_out(proof.pieces, kept, jobs or os.cpu_count() or 1, progress), target, proof)


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of repeating the proof of a certificate, next to the certificate."""

    certificate: Certificate
    """The certificate of the repeated proof."""
    versions: tuple[str, ...]
    """Packages whose versions differ from those of the certificate; they do not affect the result."""
    differences: tuple[str, ...]
    """Differences between the new proof and the certificate."""

    def table_rows(self) -> Sequence[object]:
        """Return the claims of the new proof."""
        return self.certificate.claims

    @property
    def exit_code(self) -> int:
        """Exit code of the new proof; 1 if it succeeded but differs."""
        return self.certificate.exit_code or (EXIT_FINDINGS if self.differences else 0)


def verify(
    certificate: str | os.PathLike[str],
    *,
    rules: Files = (),
    jobs: int | None = None,
    progress: Progress = silent,
) -> Verification:
    """Repeat the proof of a certificate with its own settings, and compare.

    Args:
        certificate: the file.
        rules: Python files with operator rules, which are executed: those that the certificate was made with.
        jobs: number of processes (default: one per core).
        progress: called with the steps.

    Raises:
        BadInput: the file is not a certificate, or is about an unknown target.
    """
    old = read_certificate(Path(certificate))
    with count_lock(rules):
        new = carry_out_proof(*prepare_repeat(old), jobs=jobs, progress=progress)
    before, now = old.environment, new.environment
    every = dict.fromkeys((*now, *({RULES} & before.keys())))
    versions = (
        f"{k}: {before.get(k)} in the certificate, {now.get(k)} now" for k in every if before.get(k) != now.get(k)
    )
    return Verification(new, tuple(versions), differences(old, new))


def prepare_repeat(old: Certificate) -> tuple[WithProof, Proof]:
    """Return the target of a certificate and its proof; nothing is traced.

    Raises:
        BadInput: the target is unknown here, or the settings are damaged or do not match the rest of the certificate.
    """
    name, settings = old.target.name, old.settings
    if not 0 <= settings.samples <= MOST_SAMPLES:
        raise BadInput("too many configurations to repeat", where="$.settings.samples", got=settings.samples,
                       expected=f"0 to {MOST_SAMPLES:,}")  # fmt: skip
    factory = TARGETS.load(name)
    if not isinstance(factory, Proves):
        raise BadInput("this target cannot be rebuilt from a certificate", where="$.target.name", got=name)
    try:
        target: Any = factory.from_normalised(settings.config)
        if settings.stored:
            target = replace(target, stored=adapter(Stored).validate_json(settings.stored))
        proof = with_runs(target.proof(settings.samples, settings.seed, **settings.chosen))
        proof = replace(proof, settings=replace(proof.settings, stored=settings.stored))
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput("the certificate's configuration is damaged", where="$.settings", got=error) from error
    info = target.info()
    stated = {"target.config_hash": (old.target.config_hash, info.config_hash)}
    stated |= {f"coverage.{k}": (getattr(old.coverage, k), v) for k, v in proof_domain(proof).items()}
    for place, (stated_value, recomputed) in stated.items():
        if stated_value != recomputed:
            raise BadInput(
                "the settings do not match the certificate",
                where=f"$.{place}",
                expected=str(recomputed)[:_SHOWN],
                got=str(stated_value)[:_SHOWN],
                fix=f"costproof prove {name} makes a certificate anew",
            )
    return target, proof


def _carry_out(
    tasks: Sequence[Piece[Provable]], kept: ProofCheckpoint | None, processes: int, progress: Progress
) -> list[tuple[str, str, Answer | str]]:
    """Run all pieces of a proof without a saved answer; return (phase, id, answer or error) of all, in order."""
    found: dict[str, Answer | str] = dict(kept.read()) if kept is not None else {}
    todo = [t for t in tasks if t.id not in found]
    phases = {t.id: t.phase for t in tasks}
    totals = Counter(phases.values())
    done = totals - Counter(t.phase for t in todo)
    for phase, total in totals.items():
        if done[phase] or phase == todo[0].phase:  # the first piece takes a minute: report the total at once
            progress(phase, done[phase], total)
    with Pool[Answer](processes, ready=preload_modules(tasks[0].target) if tasks else ()) as pool:
        for ended in pool.results({t.id: with_rules_in_force(partial(proof_pieces.carry_out_piece, t)) for t in todo}):
            found[ended.name] = ended.result() if ended.error is None else str(ended.error)
            if kept is not None and ended.error is None:
                kept.add(ended.name, ended.result())
            phase = phases[ended.name]
            done[phase] += 1
            progress(phase, done[phase], totals[phase])
    return [(t.phase, t.id, found[t.id]) for t in tasks]


NAME: Final = "certificate.progress.jsonl"
_BEGINS: Final = '{"proof": "'
_LINE: Final = tuple[str, Answer]


class ProofCheckpoint:
    """File with the answers of finished pieces of a proof, as a context manager; an interrupted proof resumes from it.

    The first line identifies the proof. The file is locked by one proof at a time, and answers of a proof with other
    settings or other code are discarded.
    """

    def __init__(self, folder: Path, target: str, settings: Settings) -> None:
        self.path = folder / NAME
        self.head = json.dumps({"proof": _fingerprint(target, settings)}).encode()

    def __enter__(self) -> ProofCheckpoint:
        """Open and lock the file.

        Raises:
            BadInput: another proof has it, it belongs to another program, or it cannot be written.
        """
        try:
            if self.path.is_symlink() or (self.path.exists() and not self._ours()):
                raise BadInput(
                    "a file of this name exists, and costproof did not write it",
                    where=str(self.path),
                    expected="the answers of an interrupted proof, or no file",
                    fix="choose another folder with -o",
                )
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = take(self.path, "a+b", "another proof is being made in this folder")
        except OSError as error:
            got = error.strerror or type(error).__name__
            raise BadInput(
                "cannot write a file", where=str(self.path), got=got, fix="choose another place with -o"
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _ours(self) -> bool:
        """Return whether the file begins like a checkpoint of costproof; its end may be missing."""
        begins = self.head[: len(_BEGINS)]
        return self.path.is_file() and begins.startswith(first_bytes(self.path, len(begins)))

    def read(self) -> list[tuple[str, Answer]]:
        """Return the saved answers if settings and code are the same; drop an incomplete last line.

        A file of more than :data:`MAX_BYTES` is started again.
        """
        self._file.seek(0)
        content = self._file.read(MAX_BYTES + 1)
        head, *lines = content.split(b"\n")
        if head != self.head or not lines or len(content) > MAX_BYTES:
            self._file.truncate(0)
            self._file.write(self.head + b"\n")
            self._file.flush()
            return []
        self._file.truncate(self._file.tell() - len(lines[-1]))
        line = adapter(_LINE)
        found = []
        for text in lines[:-1]:
            with suppress(ValueError):
                found.append(line.validate_json(text))
        return found

    def add(self, name: str, answer: Answer) -> None:
        """Append the result of a finished piece of the proof."""
        self._file.write(adapter(_LINE).dump_json((name, answer)) + b"\n")
        self._file.flush()

    def remove(self) -> None:
        """Delete the file with the saved answers."""
        self.path.unlink(missing_ok=True)


def _fingerprint(target: str, settings: Settings) -> str:
    """Return a hash of everything that decides an answer: settings, versions, and the code of costproof."""
    root = Path(__file__).parents[1]
    asked = [target, asdict(settings), environment() | versions_in_force()]
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode())
    for path in sorted(root.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Derivation:
    """A derived closed form, and the sizes at which it was compared with counts."""

    form: ClosedForm
    points: tuple[SizeCheck, ...]

    @property
    def wrong(self) -> tuple[SizeCheck, ...]:
        """The sizes at which the closed form and the count differ."""
        return tuple(p for p in self.points if not p.equal)

    @property
    def exit_code(self) -> int:
        """0 if the closed form equals the count at all compared sizes, else 1."""
        return EXIT_FINDINGS if self.wrong else EXIT_OK

    def text(self, how: Notation = "text") -> str:
        """Return the closed form as ``text``, ``latex``, ``python`` or ``yaml`` (a claims file)."""
        return render(self.form, how)

    def table_rows(self) -> Sequence[object]:
        """Return the formulas, one row for each pattern of modules and kind of operator."""
        return self.form.lines

    def __repr__(self) -> str:
        return self.text().rstrip("\n")


def derive(target: str | RunRequest, stage: str | None = None, **choices: Any) -> Derivation:
    """Derive the closed form of a stage from its graph, and check it against counts at random sizes.

    Args:
        target: a target or an address.
        stage: required if there are several stages.
        choices: ``points``, the number of sizes to check; and choices of a run.

    Raises:
        BadInput: there is no such target, stage, file or factory.
        Incomplete: it cannot be exported, or an operator has no cost rule.
    """
    asked = request(target, verb="derive", stage=stage, **choices)
    with count_lock(asked.rules), cache_enabled(not asked.no_cache):
        points, export_subject = prepare_derivation(asked)  # requires torch
        of = export_subject()
        from costproof.tracers.derive.closed import derive as derived  # imports torch

        found = derived(of, points=points)
    form = closed_form(of.name, found.nodes, of.config, of.fixed, found.holds, of.counted)
    return Derivation(form, found.points)


def prepare_derivation(asked: RunRequest) -> tuple[int, Callable[[], Subject]]:
    """Return the number of sizes to check, and a function that exports the stage.

    The request is checked; nothing is traced yet.

    Raises:
        BadInput: there is no such target, stage or file, or too many points.
        Incomplete: torch is not installed.
    """
    target, points = asked.target, asked.derive.get("points", POINTS)
    if not isinstance(points, int) or not 0 <= points <= _MOST_POINTS:
        raise BadInput("--points out of range", where="--points", expected=f"0 to {_MOST_POINTS}", got=points)
    require("trace", "a form read off a graph")
    model = load_run_target(asked)
    stages = model.info().stages
    stage = asked.derive.get("stage") or (stages[0] if len(stages) == 1 else None)
    if stage not in stages:
        raise BadInput(
            "no such stage" if stage else "no stage is named",
            where=str(stage or "STAGE"),
            expected="one of " + ", ".join(stages),
            fix=did_you_mean(str(stage or ""), stages),
        )
    if not isinstance(model, Exportable):
        raise BadInput(
            "this target has no graph from which a formula can be derived",
            where=target,
            got=lacking(model, ["static"])["static"],
        )
    return points, lambda: subject(model, str(stage), model.name if len(stages) == 1 else f"{model.name} {stage}")
