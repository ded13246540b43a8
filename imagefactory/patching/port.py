"""Ports patches to releases, and creates drafts of new patches.

Whatever needs manual work is left in a work tree.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from imagefactory.errors import InputError, fail
from imagefactory.patching import authoring, rebase, sources, worktree
from imagefactory.patching.measure import Bench, Measured
from imagefactory.patching.merge import changed_files, diff_of
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
    """

    patch: str
    version: str
    outcome: str
    base: str
    did: str
    done: bool

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


def port(patch: Patch, version: str, patches: Path, bench: Bench, settings: Settings) -> Ported:
    """Make ``patch`` work on ``version``.

    That extends the range of a variant, adds a merged variant, leaves a work tree to finish, or
    does nothing if nothing is needed. Changes go to the project's folder ``patches``, where a stock
    patch is copied first.
    """
    new = sources.fetch(patch.project, version, settings)
    step = step_for(patch, new)
    (now,) = bench.series(new, [step])
    if step.exempt or (step.variant and now.state is State.NEEDED) or now.state is State.OBSOLETE:
        outcome = "already works" if now.state is State.NEEDED else now.state.value
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
    did = _write(patch, new, rebased, patches, settings)
    return _ported(
        patch,
        version,
        rebased.outcome.value,
        base=old.version,
        did=did,
        done=rebased.outcome.succeeded,
    )


def _ported(
    patch: Patch, version: str, outcome: str, *, did: str, done: bool, base: str = ""
) -> Ported:
    return Ported(patch=patch.name, version=version, outcome=outcome, base=base, did=did, done=done)


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
) -> str:
    moved = "".join(f"; moved: {line}" for line in rebased.moved)
    if rebased.outcome is Outcome.OBSOLETE or rebased.outcome is Outcome.UNKNOWN:
        return rebased.seen.reason
    if rebased.text is not None:
        own = authoring.in_project(patch, patches)
        file = authoring.add_variant(own, new.version, rebased.text)
        note = f"; {rebased.note}" if rebased.note else ""
        return f"added {file.name} to {own.shown}{moved}{note}"
    work = worktree.begin(settings, patch.name, new, kind="port", files=rebased.files)
    names = [f"{file.new} ({file.conflicts})" for file in rebased.files if file.conflicts]
    why = (
        f"conflicts in {', '.join(names)}"
        if names
        else f"merged, but its proof fails: {rebased.seen.reason}"
    )
    return f"{why}{moved}; edit {work.tree}, then: imagefactory patch continue {patch.name}"


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
        authoring.write_draft(
            patches / work.patch, work.version, text, summary="", notes=work.notes
        )
        worktree.remove(work)
        did = f"wrote the draft {work.patch}; next: write its proof and fill in its patch.yaml"
        return Ported(
            patch=work.patch, version=work.version, outcome="draft", base="", did=did, done=True
        )
    if patch is None:
        raise fail(
            InputError,
            "patch-unknown",
            f"the patch {work.patch!r} does not exist any more",
            where=str(work.folder),
        )
    seen = _measured(patch, text, pristine, bench, work)
    if seen.state is not State.NEEDED:
        fix = f"edit {work.tree}, then: imagefactory patch continue {work.patch}"
        raise fail(
            InputError, "port-not-proven", f"{work.patch} is {seen.state}: {seen.reason}", fix=fix
        )
    own = authoring.in_project(patch, patches)
    file = authoring.add_variant(own, work.version, text)
    worktree.remove(work)
    return _ported(own, work.version, "edited", did=f"added {file.name} to {own.shown}", done=True)


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
    authoring.write_draft(patches / name, source.version, text, summary="", notes="")
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
    if (patches / name).exists():
        fix = f"choose another name, or use imagefactory patch port {name}"
        raise fail(
            InputError,
            "patch-exists",
            f"the patch {name} exists already",
            where=str(patches / name),
            fix=fix,
        )
    return sources.fetch(project, target(project, version, settings), settings)
