"""Ports patches to releases, and makes drafts of new ones.

What a person has to decide waits in a work tree.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from imagefactory.errors import InputError, fail
from imagefactory.patching import authoring, sources, worktree
from imagefactory.patching import carry as carrying
from imagefactory.patching.carry import Carried, Outcome
from imagefactory.patching.measure import Bench, Measured
from imagefactory.patching.merge import changed_files, diff_of
from imagefactory.patching.patch import Patch, State, Variant
from imagefactory.patching.sources import SourceTree
from imagefactory.patching.status import step_for
from imagefactory.patching.worktree import WorkTree
from imagefactory.settings import Settings

#: A patch of more files than that is another release, not a change.
MOST_FILES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Ported:
    """What became of one patch on one release.

    Attributes:
        patch: its name.
        version: the release.
        outcome: ``works already``, ``n/a``, or an outcome of carrying it.
        base: the release that its text came from; empty where nothing was carried.
        did: what was written, moved, or is left for a person, in one line.
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
    """The release that ``--to`` names; ``latest`` is the newest final one.

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
            InputError, "port-target", what, fix=f"latest, or one of: {', '.join(known[-8:])}"
        )
    return found


def port(patch: Patch, version: str, bench: Bench, settings: Settings) -> Ported:
    """Make ``patch`` work on ``version``.

    Nothing to do, a range grown, a variant merged, or a work tree to finish.
    """
    new = sources.fetch(patch.project, version, settings)
    step = step_for(patch, new)
    (now,) = bench.series(new, [step])
    if step.exempt or (step.variant and now.state is State.NEEDED) or now.state is State.OBSOLETE:
        outcome = "works already" if now.state is State.NEEDED else now.state.value
        return _ported(patch, version, outcome, did=now.reason, done=True)
    origin = _origin(patch, version, settings)
    if origin is None:
        return _ported(
            patch,
            version,
            now.state.value,
            did=f"has no text to begin with: {now.reason}",
            done=False,
        )
    variant, old = origin
    carried = carrying.carry(patch, variant.diff, old, new, bench)
    did = _write(patch, new, carried, settings)
    return _ported(
        patch,
        version,
        carried.outcome.value,
        base=old.version,
        did=did,
        done=carried.outcome.arrived,
    )


def _ported(
    patch: Patch, version: str, outcome: str, *, did: str, done: bool, base: str = ""
) -> Ported:
    return Ported(patch=patch.name, version=version, outcome=outcome, base=base, did=did, done=done)


def _origin(patch: Patch, version: str, settings: Settings) -> tuple[Variant, SourceTree] | None:
    """The variant to begin with, and the release that it was made for.

    The nearest one before, else after.
    """
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


def _write(patch: Patch, new: SourceTree, carried: Carried, settings: Settings) -> str:
    moved = "".join(f"; moved: {line}" for line in carried.moved)
    if carried.outcome is Outcome.OBSOLETE or carried.outcome is Outcome.UNKNOWN:
        return carried.seen.reason
    if carried.text is not None:
        file = authoring.add_variant(patch, new.version, carried.text)
        return "; ".join(
            [
                f"wrote {file.name} into {patch.shown}{moved}",
                *([carried.note] if carried.note else []),
            ]
        )
    work = worktree.begin(settings, patch.name, new, kind="port", files=carried.files)
    places = [f"{file.new} ({file.conflicts})" for file in carried.files if file.conflicts]
    why = (
        f"conflicts in {', '.join(places)}"
        if places
        else f"merged, and its proof fails: {carried.seen.reason}"
    )
    return f"{why}{moved}; edit {work.tree}, then: imagefactory patch continue {patch.name}"


def go_on(
    work: WorkTree, patch: Patch | None, patches: Path, bench: Bench, settings: Settings
) -> Ported:
    """Finish a work tree: its diff becomes a variant if the proof is green on it, or the draft of a
    new entry.

    Raises InputError for conflict markers, for no change, or for a port that its proof does not
    accept.
    """
    project = work.patch.partition("/")[0]
    pristine = sources.fetch(project, work.version, settings)
    text = worktree.finished(work, pristine)
    if work.kind == "new":
        authoring.write_draft(
            patches / work.patch, work.version, text, summary="", notes=work.notes
        )
        worktree.close(work)
        did = f"wrote the draft {work.patch}: its proof and its words are to be written"
        return Ported(
            patch=work.patch, version=work.version, outcome="draft", base="", did=did, done=True
        )
    if patch is None:
        raise fail(
            InputError,
            "patch-unknown",
            f"there is no patch {work.patch!r} any more",
            where=str(work.folder),
        )
    seen = _judged(patch, text, pristine, bench, work)
    if seen.state is not State.NEEDED:
        fix = f"mend {work.tree}, then: imagefactory patch continue {work.patch}"
        raise fail(
            InputError, "port-not-proven", f"{work.patch} is {seen.state}: {seen.reason}", fix=fix
        )
    file = authoring.add_variant(patch, work.version, text)
    worktree.close(work)
    return _ported(
        patch, work.version, "by hand", did=f"wrote {file.name} into {patch.shown}", done=True
    )


def _judged(
    patch: Patch, text: str, pristine: SourceTree, bench: Bench, work: WorkTree
) -> Measured:
    diff = work.folder / "work.diff"
    diff.write_text(text, encoding="utf-8")
    return carrying.judge(patch, diff, pristine, bench)


def begin_new(name: str, version: str, patches: Path, settings: Settings) -> WorkTree:
    """A work tree for a new patch on the sources of ``version``.

    Raises InputError for a name that cannot be one.
    """
    source = source_for(name, version, patches, settings)
    return worktree.begin(settings, name, source, kind="new")


def from_tree(name: str, version: str, tree: Path, patches: Path, settings: Settings) -> str:
    """Write the draft of a patch from a tree that was edited elsewhere; returns its diff.

    Raises InputError for a name that cannot be one, or a tree that is no edited copy of the
    release.
    """
    source = source_for(name, version, patches, settings)
    names = [name for name in changed_files(source.root, tree) if (tree / name).is_file()]
    ours = [name for name in names if Path(name).suffix in sources.TEXT]
    text = diff_of(source.root, tree, ours)
    if not text or len(ours) > MOST_FILES:
        what = f"{len(ours)} files of {tree} differ from {source.project} {source.version}"
        fix = "name the folder that holds the release's files, edited, and its version with --on"
        raise fail(InputError, "patch-tree", what, where=str(tree), fix=fix)
    authoring.write_draft(patches / name, source.version, text, summary="", notes="")
    return text


def source_for(name: str, version: str, patches: Path, settings: Settings) -> SourceTree:
    """The sources that a new patch ``name`` is made on.

    Raises InputError if it cannot have that name.
    """
    project, _, own = name.partition("/")
    if project not in sources.DISTRIBUTIONS or not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", own):
        what = f"{name!r} is no name of a patch"
        fix = (
            "PROJECT/NAME in small letters and dashes; the project is one of: "
            f"{', '.join(sources.DISTRIBUTIONS)}"
        )
        raise fail(InputError, "patch-name", what, fix=fix)
    if (patches / name).exists():
        fix = f"another name, or imagefactory patch port {name}"
        raise fail(
            InputError,
            "patch-exists",
            f"there is a patch {name} already",
            where=str(patches / name),
            fix=fix,
        )
    return sources.fetch(project, target(project, version, settings), settings)
