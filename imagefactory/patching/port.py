"""Ports patches to releases, and creates drafts of new patches.

Whatever needs manual work is left in a work tree.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from imagefactory.errors import InputError, Problem, fail
from imagefactory.patching import authoring, rebase, sources, worktree
from imagefactory.patching.measure import Bench, Measured
from imagefactory.patching.merge import MARKERS, MergedFile, changed_files, diff_of
from imagefactory.patching.patch import Patch, State, Variant
from imagefactory.patching.rebase import Outcome, Rebased
from imagefactory.patching.sources import SourceTree
from imagefactory.patching.status import step_for
from imagefactory.patching.worktree import WorkTree
from imagefactory.settings import Settings

#: A tree that differs in more files than this is another release, not an edited copy of this one.
MAX_FILES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Ported:
    """The result of porting one patch to one release.

    Attributes:
        patch: its name.
        version: the release.
        outcome: ``already works``, ``n/a``, or how rebasing it ended.
        base: the release that its diff was made for; empty if nothing was rebased.
        did: what was written, moved, or is left to do, in one line.
        done: whether nothing is left to do.
        detail: for conflicts, both sides' lines.
    """

    patch: str
    version: str
    outcome: str
    base: str
    did: str
    done: bool
    detail: str = ""

    def as_dict(self) -> dict[str, str | bool]:
        """The row as plain JSON values."""
        return asdict(self)


def target(project: str, asked: str, settings: Settings) -> str:
    """The release that ``asked`` means: ``latest`` is the newest that is not a pre-release.

    Raises InputError if there is none.
    """
    known = sources.releases(project, SpecifierSet(), settings)
    if asked == "latest":
        return [text for text in known if not Version(text).is_prerelease][-1]
    try:
        found = next((text for text in known if Version(text) == Version(asked)), None)
    except InvalidVersion:
        found = None
    if found is None:
        what = f"there is no {project} {asked}"
        raise fail(
            InputError, "port-target", what, fix=f"use latest, or one of: {', '.join(known[-8:])}"
        )
    return found


def targets(projects: Sequence[str], asked: str, settings: Settings) -> dict[str, str]:
    """The release of each of ``projects`` that ``asked`` means; without those that have none.

    Raises InputError if none of them has it.
    """
    found: dict[str, str] = {}
    problems: list[Problem] = []
    for project in projects:
        try:
            found[project] = target(project, asked, settings)
        except InputError as error:
            problems += error.problems
    if not found:
        raise InputError(problems)
    return found


def port(patch: Patch, version: str, patches: Path, bench: Bench, settings: Settings) -> Ported:
    """Make ``patch`` work on ``version``.

    That extends the range of a variant, adds a merged variant, leaves a work tree to finish, or
    does nothing if nothing is needed. Changes go to the project's folder ``patches``, where a stock
    patch is copied first.
    """
    new = sources.fetch(patch.project, version, settings)
    step = step_for(patch, new)
    (now,) = bench.series(new, [step])
    if step.exempt or (step.variant and now.state.applied) or now.state is State.OBSOLETE:
        works = "already works" if now.state.proven else "already applies"
        outcome = works if now.state.applied else now.state.value
        return _ported(patch, version, outcome, did=now.reason, done=True)
    origin = _origin(patch, version, settings)
    if origin is None:
        return _ported(
            patch,
            version,
            now.state.value,
            did=f"has no diff to start from: {now.reason}",
            done=False,
        )
    variant, old = origin
    rebased = rebase.rebase(patch, variant.diff, old, new, bench)
    did, done = _write(patch, new, rebased, patches, settings)
    return _ported(
        patch,
        version,
        rebased.outcome.value,
        base=old.version,
        did=did,
        done=done,
        detail="" if done else "\n".join(conflict_lines(rebased.files)),
    )


def _ported(
    patch: Patch,
    version: str,
    outcome: str,
    *,
    did: str,
    done: bool,
    base: str = "",
    detail: str = "",
) -> Ported:
    return Ported(
        patch=patch.name,
        version=version,
        outcome=outcome,
        base=base,
        did=did,
        done=done,
        detail=detail,
    )


def _origin(patch: Patch, version: str, settings: Settings) -> tuple[Variant, SourceTree] | None:
    """The variant to start from, and a release in its range: the nearest before, else after."""
    found = [
        (Version(release), variant)
        for variant in patch.variants
        for release in sources.releases(patch.project, variant.versions, settings)
    ]
    wanted = Version(version)
    before = [pair for pair in found if pair[0] < wanted]
    after = [pair for pair in found if pair[0] > wanted]
    chosen = (
        max(before, key=lambda pair: pair[0])
        if before
        else min(after, key=lambda pair: pair[0])
        if after
        else None
    )
    return (chosen[1], sources.fetch(patch.project, str(chosen[0]), settings)) if chosen else None


def _write(
    patch: Patch, new: SourceTree, rebased: Rebased, patches: Path, settings: Settings
) -> tuple[str, bool]:
    """Write what rebasing led to; what was done, and whether nothing is left to do.

    A diff that no proof confirms becomes a variant only of a draft, which no image can have, or of
    a patch that is unproven anyway.
    """
    reason = rebased.seen.reason
    if rebased.outcome is Outcome.OBSOLETE:
        return reason, True
    if rebased.outcome is Outcome.UPSTREAM:
        if rebased.seen.state is State.UNKNOWN or patch.draft or patch.unproven:
            return "upstream has every line of the patch; nothing was written", True
        return f"upstream has every line of the patch, but its proof still fails: {reason}", False
    moved = "".join(f"; moved: {old} -> {path}" for old, path in rebased.moved.items())
    proven = rebased.seen.state.proven
    if rebased.text is not None and (proven or patch.draft or patch.unproven):
        own = authoring.in_project(patch, patches)
        file = authoring.add_variant(own, new.version, rebased.text, rebased.moved)
        note = f"; {rebased.note}" if rebased.note else ""
        unproven = "" if proven else f"; not proven: {reason}"
        return f"added {file.name} to {own.shown}{moved}{note}{unproven}", True
    if rebased.outcome is Outcome.UNKNOWN:
        return reason, False
    work = worktree.begin(settings, patch.name, new, kind="port", files=rebased.files)
    names = [f"{file.new} ({file.conflicts})" for file in rebased.files if file.conflicts]
    if rebased.outcome is Outcome.UNPROVEN:
        why = f"merged, but its proof is inconclusive: {reason}"
    elif rebased.fault:
        why = f"the merge was refused: {rebased.fault}"
    else:
        why = f"conflicts in {', '.join(names)}" if names else f"its proof fails: {reason}"
        why = why if names else f"merged, but {why}"
    return f"{why}{moved}; edit {work.tree}, then: imagefactory patch continue {patch.name}", False


#: Lines of each side of a conflict that are shown.
SHOWN = 12


def conflict_lines(files: Sequence[MergedFile]) -> Iterator[str]:
    """Every conflict with its file and line, and the lines of both sides, in short."""
    for file in files:
        text = (file.text or b"").decode("utf-8", "replace").splitlines() if file.conflicts else []
        kept = 0
        for number, line in enumerate(text, start=1):
            if line.startswith("<<<<<<< "):
                yield f"{file.new}:{number}: upstream and the patch changed the same lines"
                kept = 1
            if not kept:
                continue
            side = line.startswith((*MARKERS, "======="))
            kept = 1 if side else kept + 1
            if side or kept <= SHOWN + 1:
                yield f"    {line}"
            elif kept == SHOWN + 2:
                yield "    ..."
            if line.startswith(">>>>>>> "):
                kept = 0


def finish(
    work: WorkTree, patch: Patch | None, patches: Path, bench: Bench, settings: Settings
) -> Ported:
    """Turn a finished work tree into a variant, if the proof passes on it, or into a new draft.

    Raises InputError if it has conflict markers or no changes, or if the proof fails.
    """
    project = work.patch.partition("/")[0]
    pristine = sources.fetch(project, work.version, settings)
    text = worktree.diff_against(work, pristine)
    if work.kind == "new":
        authoring.write_draft(patches / work.patch, work.version, text, work.words)
        worktree.remove(work)
        return _written(work)
    if patch is None:
        raise fail(
            InputError,
            "patch-unknown",
            f"the patch {work.patch!r} does not exist any more",
            where=str(work.folder),
        )
    seen = _measured(patch, text, pristine, bench, work)
    if not seen.state.applied:
        fix = f"edit {work.tree}, then: imagefactory patch continue {work.patch}"
        raise fail(
            InputError, "port-not-proven", f"{work.patch} is {seen.state}: {seen.reason}", fix=fix
        )
    own = authoring.in_project(patch, patches)
    file = authoring.add_variant(own, work.version, text)
    worktree.remove(work)
    return _ported(own, work.version, "edited", did=f"added {file.name} to {own.shown}", done=True)


def _written(work: WorkTree) -> Ported:
    """The result for a work tree that became a new patch."""
    did = f"wrote the draft {work.patch}; next: write its proof and fill in its patch.yaml"
    if work.words.unproven:
        did = f"wrote the unproven patch {work.patch}"
    outcome = "unproven" if work.words.unproven else "draft"
    return Ported(
        patch=work.patch, version=work.version, outcome=outcome, base="", did=did, done=True
    )


def _measured(
    patch: Patch, text: str, pristine: SourceTree, bench: Bench, work: WorkTree
) -> Measured:
    diff = work.folder / "work.diff"
    diff.write_text(text, encoding="utf-8")
    return rebase.measure(patch, diff, pristine, bench)


def begin_new(name: str, version: str, patches: Path, settings: Settings) -> WorkTree:
    """A work tree for a new patch on the sources of ``version``.

    Raises InputError if ``name`` is invalid or taken.
    """
    source = source_for(name, version, patches, settings)
    return worktree.begin(settings, name, source, kind="new")


def from_tree(name: str, version: str, tree: Path, patches: Path, settings: Settings) -> str:
    """Write a draft from a tree that was edited elsewhere; returns its diff.

    Raises InputError if ``name`` is invalid or taken, or ``tree`` is not an edited copy of the
    release.
    """
    source = source_for(name, version, patches, settings)
    names = [name for name in changed_files(source.root, tree) if (tree / name).is_file()]
    ours = [name for name in names if Path(name).suffix in sources.TEXT]
    text = diff_of(source.root, tree, ours)
    if not text or len(ours) > MAX_FILES:
        what = f"{len(ours)} files in {tree} differ from {source.project} {source.version}"
        fix = "pass an edited copy of the release's top folder, and its version with --on"
        raise fail(InputError, "patch-tree", what, where=str(tree), fix=fix)
    authoring.write_draft(patches / name, source.version, text, authoring.Words())
    return text


def source_for(name: str, version: str, patches: Path, settings: Settings) -> SourceTree:
    """The sources for a new patch. Raises InputError if its ``name`` is invalid or taken."""
    project, _, own = name.partition("/")
    if project not in sources.DISTRIBUTIONS or not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", own):
        what = f"{name!r} is not a valid patch name"
        fix = (
            "use PROJECT/NAME with lower-case letters, digits, dots and dashes; PROJECT is one of: "
            f"{', '.join(sources.DISTRIBUTIONS)}"
        )
        raise fail(InputError, "patch-name", what, fix=fix)
    if (patches / name / "patch.yaml").exists():
        fix = f"choose another name, or use imagefactory patch port {name}"
        raise fail(
            InputError,
            "patch-exists",
            f"the patch {name} exists already",
            where=str(patches / name),
            fix=fix,
        )
    return sources.fetch(project, target(project, version, settings), settings)
