"""Applies and proves patches on upstream's sources, as the build does; results are cached."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from imagefactory.inbuild import overlay, proofkit
from imagefactory.patching import conflicts
from imagefactory.patching.patch import Patch, State, Step
from imagefactory.patching.sources import SourceTree
from imagefactory.settings import Settings


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
        self._env: Mapping[str, str] = {proofkit.CUDA: str(cuda)} if cuda else {}
        self._tools = (
            f"{sys.version_info[:2]} {cuda.parents[1].name if cuda else 'no toolchain'}".encode()
        )
        self._fresh = fresh

    def series(self, tree: SourceTree, steps: Sequence[Step]) -> list[Measured]:
        """The state of every patch of a series, each applied on top of those before it."""
        wanted = [step for step in steps if not step.exempt]
        rows = iter(self._states(tree, wanted))
        return [_declared(step, tree) if step.exempt else next(rows) for step in steps]

    def _states(self, tree: SourceTree, steps: Sequence[Step]) -> list[Measured]:
        """The longest cached prefix of the series, and the rest measured on top of it."""
        files = [
            self._cache / f"{self._key(tree, steps[:number])}.json"
            for number in range(1, len(steps) + 1)
        ]
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
        when = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        with copy_of(tree.root) as copy:
            for step, row in zip(steps, known, strict=False):
                if step.variant and row.state is State.NEEDED:
                    overlay.git_apply(copy, step.variant.diff)
            steps = steps[len(known) :]
            done = overlay.apply_series(copy, [_row(step) for step in steps], self._prover(steps))
        return [
            Measured(
                project=step.patch.project,
                patch=step.patch.name,
                version=tree.version,
                state=State(one.state),
                reason=one.detail,
                evidence=f"{step.patch.proof.kind} proof on {tree.sha256[:12]}",
                measured_at=when,
                detail=_detail(step, State(one.state), tree),
            )
            for step, one in zip(steps, done, strict=True)
        ]

    def _prover(self, steps: Sequence[Step]) -> overlay.Prover:
        """Runs proofs, but for those that need what this machine does not have."""
        needs = {step.patch.proof.script: step.patch.proof.needs for step in steps}

        def prove(script: Path, tree: Path) -> tuple[int, str]:
            if lacking := proofkit.missing(needs[script], {**os.environ, **self._env}):
                return overlay.INCONCLUSIVE, f"inconclusive: {lacking}"
            return overlay.prove(script, tree, self._env)

        return prove

    def _key(self, tree: SourceTree, steps: Sequence[Step]) -> str:
        programs = (overlay.__file__, proofkit.__file__)
        parts = [tree.sha256.encode(), self._tools, *(_sha(Path(file)) for file in programs)]
        for step in steps:
            parts += [step.patch.name.encode(), _sha(step.patch.proof.script)]
            parts.append(_sha(step.variant.diff) if step.variant else b"")
        return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _read(file: Path) -> list[Measured] | None:
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))
        return [Measured(**{**row, "state": State(row["state"])}) for row in rows]
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _write(file: Path, rows: Sequence[Measured]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(f".{threading.get_ident()}")
    part.write_text(json.dumps([row.as_dict() for row in rows]), encoding="utf-8")
    part.replace(file)


@contextmanager
def copy_of(root: Path) -> Iterator[Path]:
    """A temporary copy of a source tree, as hard links: git replaces files, never edits them."""
    with tempfile.TemporaryDirectory(prefix=".imagefactory-tree-", dir=root.parent) as name:
        yield Path(shutil.copytree(root, Path(name) / "tree", copy_function=_link))


def _link(source: str, target: str) -> None:
    Path(target).hardlink_to(source)


def _row(step: Step) -> tuple[str, Path | None, Path]:
    return step.patch.name, step.variant.diff if step.variant else None, step.patch.proof.script


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
