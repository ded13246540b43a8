"""Applies and proves patches on upstream's sources, as the build does; results are cached."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from imagefactory.inbuild import overlay, proofkit
from imagefactory.patching import compiled, conflicts, tracing
from imagefactory.patching.patch import Patch, State, Step
from imagefactory.patching.reads import Read, Reads, as_read
from imagefactory.patching.sources import SourceTree
from imagefactory.settings import Settings
from imagefactory.system import files, temporary


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One patch on one release.

    Attributes:
        project: the upstream project.
        patch: the patch's name.
        version: the release.
        state: what was measured.
        reason: one line: what the proof saw, the hunk that does not apply, or the declared reason.
        evidence: how it was measured: kind of proof and source hash, or ``declared``.
        measured_at: when (RFC 3339); empty if the state is declared.
        detail: for a conflict, the hunk and the file around it.
    """

    project: str
    patch: str
    version: str
    state: State
    reason: str
    evidence: str
    measured_at: str = ""
    detail: str = ""

    def as_dict(self) -> dict[str, str]:
        """The row as plain JSON values."""
        return asdict(self)


class Bench:
    """Measures patches; results are cached by the content of patches, proofs, sources and tools.

    ``cuda`` is the toolchain for proofs that compile, or None; ``fresh`` ignores cached results.
    """

    def __init__(
        self, settings: Settings, *, cuda: Path | None = None, fresh: bool = False
    ) -> None:
        self._cache = settings.cache / "proofs"
        self._reads = Reads(self._cache / "by-content", fresh=fresh)
        self._env: Mapping[str, str] = {proofkit.CUDA: str(cuda)} if cuda else {}
        self._tools = (
            f"{sys.version_info[:2]} {cuda.parents[1].name if cuda else 'no toolchain'}".encode()
        )
        self._fresh = fresh

    @cached_property
    def _compiled(self) -> Path:
        """A folder for what compilers made for proofs; it goes with this bench."""
        made = ExitStack()
        weakref.finalize(self, made.close)
        return made.enter_context(temporary.folder(prefix="imagefactory-compiled-"))

    def series(self, tree: SourceTree, steps: Sequence[Step]) -> list[Measured]:
        """The state of every patch of a series, each applied on top of those before it."""
        wanted = [step for step in steps if not step.exempt]
        rows = iter(self._states(tree, wanted))
        return [_declared(step, tree) if step.exempt else next(rows) for step in steps]

    def each(self, tree: SourceTree, steps: Sequence[Step]) -> list[Measured]:
        """The state of every patch by itself.

        A patch is not measured again on a release in which all that its proof reads is the same as
        in another one. If ``fresh``, that holds for releases that this bench has not measured.
        """
        rows: dict[str, Measured] = {}
        for step in steps:
            if step.exempt:
                rows[step.patch.name] = _declared(step, tree)
            elif found := self._known(tree, step):
                rows[step.patch.name] = found
        rest = [step for step in steps if step.patch.name not in rows]
        if rest:
            with copy_of(tree.root) as copy:
                for step in rest:
                    rows[step.patch.name] = self._alone(tree, step, copy)
        return [rows[step.patch.name] for step in steps]

    def _known(self, tree: SourceTree, step: Step) -> Measured | None:
        """What was measured on this release, or on another one with the same content."""
        rows = None if self._fresh else _read(self._file(tree, [step]))
        if rows:
            return rows[0]
        found = self._reads.find(self._question(step), tree.root)
        if not found:
            return None
        source = f"{_kind(step)} on {tree.sha256[:12]}"
        row = Measured(
            **{
                **found,
                "version": tree.version,
                "state": State(found["state"]),
                "evidence": f"{source}, same as on {found['version']}",
            }  # type: ignore[arg-type]  # all others are strings
        )
        _write(self._file(tree, [step]), [row])
        return row

    def _alone(self, tree: SourceTree, step: Step, copy: Path) -> Measured:
        """Measure one patch on a copy of ``tree``, which is as before afterwards."""
        with temporary.folder(prefix="imagefactory-trace-") as traces:
            (row,) = self._measure(tree, [step], copy, traces)
            reads = _traced(traces)
        names = overlay.touched(step.variant.diff) if step.variant else []
        for path in names:
            (copy / path).unlink(missing_ok=True)
            if (tree.root / path).is_file():
                (copy / path).parent.mkdir(parents=True, exist_ok=True)
                _link(str(tree.root / path), str(copy / path))
        if row.state is not State.UNKNOWN:  # may be conclusive once a tool is installed
            _write(self._file(tree, [step]), [row])
            if reads is not None:
                more: list[Read] = [(path, False) for path in names]
                self._reads.add(self._question(step), tree.root, [*reads, *more], row.as_dict())
        return row

    def _states(self, tree: SourceTree, steps: Sequence[Step]) -> list[Measured]:
        """The longest cached prefix of the series, and the rest measured on top of it."""
        files = [self._file(tree, steps[:number]) for number in range(1, len(steps) + 1)]
        known: list[Measured] = []
        if not self._fresh:
            known = next(
                (rows for file in reversed(files) if (rows := _read(file)) is not None), []
            )
        rows = known + (self._measured(tree, steps, known) if len(known) < len(steps) else [])
        for number in range(len(known), len(steps)):
            if rows[number].state is State.UNKNOWN:  # may be conclusive once a tool is installed
                break
            _write(files[number], rows[: number + 1])
        return rows

    def _measured(
        self, tree: SourceTree, steps: Sequence[Step], known: Sequence[Measured]
    ) -> list[Measured]:
        """Measure the steps after those that are ``known``."""
        with copy_of(tree.root) as copy:
            for step, row in zip(steps, known, strict=False):
                if step.variant and row.state.applied:
                    overlay.git_apply(copy, step.variant.diff)
            return self._measure(tree, steps[len(known) :], copy)

    def _measure(
        self, tree: SourceTree, steps: Sequence[Step], copy: Path, traces: Path | None = None
    ) -> list[Measured]:
        """Measure ``steps`` on a copy of ``tree``; ``traces`` gets what the proofs read."""
        when = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        prover = self._prover(steps, traces)
        done = overlay.apply_series(copy, [_row(step) for step in steps], prover)
        return [
            _judged(step, State(one.state), one.detail, tree, when)
            for step, one in zip(steps, done, strict=True)
        ]

    def _prover(self, steps: Sequence[Step], traces: Path | None) -> overlay.Prover:
        """Runs proofs, except for those that need a tool that this machine does not have."""
        of = {step.patch.proof.script: step.patch.proof for step in steps if step.patch.proof}
        moves = {
            s.patch.proof.script: s.variant.moved for s in steps if s.patch.proof and s.variant
        }

        def prove(script: Path, tree: Path) -> tuple[int, str]:
            if lacking := proofkit.missing(of[script].needs, {**os.environ, **self._env}):
                return overlay.INCONCLUSIVE, f"inconclusive: {lacking}"
            with (
                at_old_paths(tree, moves.get(script, {})),
                temporary.folder(prefix="imagefactory-proof-") as folder,
            ):
                env = {**self._env, "TMPDIR": str(folder)}  # a killed compiler leaves files there
                if traces is None:
                    return overlay.prove(script, tree, env)
                out = traces / f"{len(list(traces.iterdir()))}.trace"
                more = {tracing.PROOF: str(script.resolve()), tracing.TRACE: str(out)}
                if not compiled.COMPILERS.isdisjoint(of[script].needs):
                    more[tracing.COMPILED] = str(self._compiled)
                return overlay.prove(Path(tracing.__file__), tree, {**env, **more})

        return prove

    def _file(self, tree: SourceTree, steps: Sequence[Step]) -> Path:
        return self._cache / f"{self._key([tree.sha256.encode()], steps)}.json"

    def _question(self, step: Step) -> str:
        programs = (Path(tracing.__file__), Path(compiled.__file__))
        return self._key([_sha(one) for one in programs], [step])

    def _key(self, parts: list[bytes], steps: Sequence[Step]) -> str:
        programs = (Path(overlay.__file__), *sorted(Path(proofkit.__file__).parent.glob("*.py")))
        parts = [*parts, self._tools, *map(_sha, programs)]
        for step in steps:
            proof = step.patch.proof
            parts += [step.patch.name.encode(), _sha(proof.script) if proof else b""]
            parts.append(_sha(step.variant.diff) if step.variant else b"")
            moved = dict(step.variant.moved) if step.variant else {}
            parts.append(f"{proof.kind if proof else ''} {sorted(moved.items())}".encode())
        return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _judged(step: Step, state: State, reason: str, tree: SourceTree, when: str) -> Measured:
    """A row for what was measured, with the files that upstream moved and the lines that differ."""
    proof = step.patch.proof
    evidence = f"{_kind(step)} on {tree.sha256[:12]}"
    if proof and proof.kind == "installed" and state is State.NEEDED:
        state, evidence = State.DECLARED, f"declared; its diff applies to {tree.sha256[:12]}"
        reason = f"sources do not show whether it is needed: {reason}"
    why = step.patch.why_no_diff(step.version)
    if state is State.CONFLICT and step.variant is None and why:
        state, reason = State.MISSING, f"{why}; {reason.partition(': ')[2] or reason}"
    diff = _nearest_diff(step)
    moved = conflicts.moved(diff, tree.root) if diff and state in _UNFIT else {}
    said = "; ".join(f"upstream moved {old}, perhaps to {new}" for old, new in moved.items())
    return Measured(
        project=step.patch.project,
        patch=step.patch.name,
        version=tree.version,
        state=state,
        reason=f"{said}; {reason}" if said else reason,
        evidence=evidence,
        measured_at=when,
        detail=_detail(step, state, tree),
    )


def _kind(step: Step) -> str:
    return f"{step.patch.proof.kind} proof" if step.patch.proof else "git apply"


_UNFIT = (State.CONFLICT, State.UNKNOWN)


def _nearest_diff(step: Step) -> str:
    """The diff of the step's variant, else of the last one before its version, else empty."""
    variant = step.variant or step.patch.last_before(step.version)
    return variant.diff.read_text(encoding="utf-8") if variant else ""


def applies(tree: SourceTree, diff: Path) -> bool:
    """Whether ``diff`` applies to ``tree``, which is not changed."""
    return overlay.git_apply(tree.root, diff, "--check").returncode == 0


@contextmanager
def at_old_paths(tree: Path, moved: Mapping[str, str]) -> Iterator[None]:
    """Meanwhile the files that upstream ``moved`` are at their old paths in ``tree``, too."""
    names = [old for old, new in moved.items() if (tree / new).is_file()]
    snapshot = overlay.Snapshot(tree, names)
    try:
        for old in names:
            (tree / old).parent.mkdir(parents=True, exist_ok=True)
            (tree / old).unlink(missing_ok=True)
            shutil.copyfile(tree / moved[old], tree / old)
        yield
    finally:
        snapshot.restore()


def _traced(folder: Path) -> list[Read] | None:
    """All that proofs read; None if that is not known, or no proof was run."""
    traces = sorted(folder.glob("*.trace"))
    rows = [
        json.loads(line)
        for trace in traces
        for line in trace.read_text(encoding="utf-8").splitlines()
    ]
    known = bool(traces) and None not in rows
    return [as_read(path, how) for path, how in rows] if known else None


def _read(file: Path) -> list[Measured] | None:
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))
        return [Measured(**{**row, "state": State(row["state"])}) for row in rows]
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _write(file: Path, rows: Sequence[Measured]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(file, json.dumps([row.as_dict() for row in rows]))


@contextmanager
def copy_of(root: Path) -> Iterator[Path]:
    """A temporary copy of a source tree, as hard links: git replaces files, never edits them."""
    with temporary.folder(prefix="imagefactory-tree-", parent=root.parent) as folder:
        yield Path(shutil.copytree(root, folder / "tree", copy_function=_link))


def _link(source: str, target: str) -> None:
    os.link(source, target)


def _row(step: Step) -> tuple[str, Path | None, Path | None]:
    proof = step.patch.proof.script if step.patch.proof else None
    return step.patch.name, step.variant.diff if step.variant else None, proof


def _detail(step: Step, state: State, tree: SourceTree) -> str:
    if state is not State.CONFLICT or step.variant is None:
        return ""
    return conflicts.explain(step.variant.diff.read_text(encoding="utf-8"), tree.root)


def _declared(step: Step, tree: SourceTree) -> Measured:
    patch: Patch = step.patch
    return Measured(
        project=patch.project,
        patch=patch.name,
        version=tree.version,
        state=State.NOT_APPLICABLE,
        reason=step.exempt,
        evidence="declared",
    )


def _sha(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()
