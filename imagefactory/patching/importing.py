"""Imports diffs as a draft or an unproven patch: a file, a folder such as other projects keep, or
what an address gives.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet

from imagefactory.errors import InputError, Problem, fail
from imagefactory.inbuild import overlay
from imagefactory.patching import (
    authoring,
    catalog,
    conflicts,
    diffs,
    fetched,
    incoming,
    partial,
    sources,
    worktree,
)
from imagefactory.patching.authoring import Words
from imagefactory.patching.fetched import Fetched
from imagefactory.patching.incoming import Message, Part
from imagefactory.patching.measure import copy_of
from imagefactory.patching.merge import diff_of
from imagefactory.patching.sources import SourceTree
from imagefactory.patching.worktree import WorkTree
from imagefactory.settings import Settings
from imagefactory.system import files, temporary

SUFFIXES = (".diff", ".patch")
#: The first component of a path in a diff, and the project that it belongs to.
PROJECTS = {
    "vllm": "vllm",
    "csrc": "vllm",
    "cmake": "vllm",
    "requirements": "vllm",
    "setup.py": "vllm",
    "CMakeLists.txt": "vllm",
    "flashinfer": "flashinfer",
}
#: Bytes of a script that are searched for addresses of diffs.
_LARGEST_SCRIPT = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A new patch, or the work tree for one.

    Attributes:
        patch: its name.
        version: the release that it applies to, or that most of it applies to.
        left: the files that are not diffs and were not imported.
        skipped: the files that diffs change and no image contains, such as tests.
        empty: files without lines that diffs add, remove or only rename the mode of.
        fetches: addresses of diffs in scripts beside the imported ones.
        source: where it was fetched from, and the hash of what came; empty for files.
        work: the work tree to finish; None if the patch was written.
    """

    patch: str
    version: str
    left: tuple[str, ...]
    skipped: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    fetches: tuple[str, ...] = ()
    source: str = ""
    work: WorkTree | None = None

    def as_dict(self) -> dict[str, str | list[str]]:
        """The result as plain JSON values, without the work tree."""
        return {
            "patch": self.patch,
            "version": self.version,
            "left": list(self.left),
            "skipped": list(self.skipped),
            "empty": list(self.empty),
            "fetches": list(self.fetches),
            "source": self.source,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """What is imported: texts by the name that messages have for them, and what is beside them."""

    shown: str
    name: str
    texts: Mapping[str, bytes]
    left: tuple[str, ...] = ()
    fetches: tuple[str, ...] = ()
    project: str | None = None
    origin: Fetched | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """What of it makes a patch: the parts of each diff, and the names of what was left out."""

    diffs: tuple[tuple[Part, ...], ...]
    skipped: tuple[str, ...]
    empty: tuple[str, ...]


def import_diffs(
    what: str,
    patches: Path,
    settings: Settings,
    *,
    name: str | None = None,
    on: str | None = None,
    unproven: bool = False,
) -> Imported:
    """Create a draft from the diffs in ``what``, on the newest release to which all of them apply.

    ``what`` is a file, a folder, or an address (see ``fetched.address_of``). With ``unproven``, the
    patch may go into images without a proof. If the diffs apply to no release, open a work tree on
    the release to which most of them applies, with conflict markers for the rest. With ``on``, only
    that release is tried. Raises InputError for diffs that are malformed or belong to no known
    project, SetupError if an address cannot be reached.
    """
    given = _given(what)
    kept = _kept(given)
    project = _project(kept, given)
    full = _full_name(name, project, given, patches)
    words = _words(given, kept, unproven=unproven)
    with temporary.folder(prefix="imagefactory-import-") as folder:
        plain = [_written(folder, number, parts) for number, parts in enumerate(kept.diffs)]
        names = sorted({n for parts in kept.diffs for p in parts for n in (p.old, p.new) if n})
        tree, text = _newest_match(plain, names, project, on, settings)
        work = None
        if not text:
            if any(part.renamed for parts in kept.diffs for part in parts):
                raise _no_release(f"{project} {tree.version}", given.shown)
            merged = partial.merged([diff.read_text(encoding="utf-8") for diff in plain], tree)
            work = worktree.begin(settings, full, tree, kind="new", files=merged, words=words)
    if not work:
        authoring.write_draft(patches / full, tree.version, text, words)
    return Imported(
        patch=full,
        version=tree.version,
        left=given.left,
        skipped=kept.skipped,
        empty=kept.empty,
        fetches=given.fetches,
        source=f"{words.address} (sha256 {words.sha256[:12]})" if words.address else "",
        work=work,
    )


def _given(what: str) -> _Given:
    path = Path(what)
    address = None if path.exists() else fetched.address_of(what)
    if address:
        origin = fetched.fetch(address)
        return _Given(
            shown=origin.source.address,
            name=address.name,
            texts={origin.source.address: origin.content},
            project=address.project,
            origin=origin,
        )
    if path.is_file():
        return _Given(shown=what, name=path.stem, texts={what: _content(path)})
    if not path.is_dir():
        what_is = f"{what} does not exist"
        fix = "pass a diff, a folder of diffs, a pull request such as vllm#12345, or a commit"
        raise fail(InputError, "import-missing", what_is, fix=fix)
    inside = sorted(file for file in path.rglob("*") if file.is_file())
    found = [file for file in inside if file.suffix in SUFFIXES]
    left = [file for file in inside if file not in found]
    scripts = [file for file in left if file.suffix == ".sh" or not file.suffix]
    fetches = dict.fromkeys(one for file in scripts for one in _addresses_in(file))
    if not found:
        fix = "; ".join(f"a script fetches one: imagefactory patch import {one}" for one in fetches)
        fix = fix or (
            "pass a folder with .patch or .diff files; turn the changes of a script into a "
            "diff with imagefactory patch new"
        )
        raise fail(InputError, "import-empty", f"{path} contains no diff", where=str(path), fix=fix)
    return _Given(
        shown=what,
        name=path.resolve().name,
        texts={str(file): _content(file) for file in found},
        left=tuple(str(file.relative_to(path)) for file in left),
        fetches=tuple(fetches),
    )


def _content(path: Path) -> bytes:
    try:
        return files.read(path, diffs.LARGEST)
    except OSError as error:
        what, fix = f"the diff cannot be read: {error.strerror}", "import a smaller part of it"
        raise fail(InputError, "diff-unreadable", what, where=str(path), fix=fix) from None


def _addresses_in(script: Path) -> list[str]:
    with script.open(encoding="utf-8", errors="replace") as file:
        return fetched.addresses_in(file.read(_LARGEST_SCRIPT))


def _kept(given: _Given) -> _Kept:
    """What an image may contain of the diffs.

    Raises InputError with all that is wrong with that, or if nothing is left.
    """
    problems: list[Problem] = []
    found: list[tuple[Part, ...]] = []
    skipped: dict[str, None] = {}
    empty: dict[str, None] = {}
    for shown, data in given.texts.items():
        broken = tuple(incoming.unreadable(data, shown))
        problems += broken
        if broken:
            continue
        flashinfer = None if given.project is None else given.project == "flashinfer"
        for message in incoming.messages(data, shown, flashinfer=flashinfer):
            shipped = [part for part in message.parts if _is_shipped(part)]
            skipped |= dict.fromkeys(p.shown_name for p in message.parts if p not in shipped)
            for part in message.parts:
                problems += incoming.crossing(part, shown)
            full = tuple(part for part in shipped if part.changes)
            if shipped or not message.parts:
                own = Message(shown=shown, length=message.length, parts=tuple(shipped))
                nothing = "diff-empty" if message.parts and not full else ""
                problems += (one for one in own.problems(data) if one.code != nothing)
            empty |= dict.fromkeys(part.shown_name for part in shipped if part not in full)
            if full:
                found.append(full)
    if problems:
        raise InputError(dict.fromkeys(problems))
    if not found:
        left = [*skipped, *empty]
        what = f"the diffs change only {', '.join(left)}, which no image contains"
        fix = "nothing of it makes a patch"
        raise fail(InputError, "import-empty", what, where=given.shown, fix=fix)
    return _Kept(diffs=tuple(found), skipped=tuple(skipped), empty=tuple(empty))


def _is_shipped(part: Part) -> bool:
    return incoming.is_shipped(part.name) or (part.renamed and incoming.is_shipped(part.old))


def _words(given: _Given, kept: _Kept, *, unproven: bool) -> Words:
    """What the patch.yaml of the new patch says."""
    origin = given.origin.source.address if given.origin else Path(given.shown).name or given.name
    notes = f"Imported from {origin}; not measured yet."
    reasons = {"no image contains it": kept.skipped, "it has no lines": kept.empty}
    for reason, names in reasons.items():
        if names:
            notes += f" Left out, because {reason}: {', '.join(names)}."
    if given.left:
        notes += f" Not imported, please review: {', '.join(given.left)}."
    subjects = (incoming.subject(data) for data in given.texts.values())
    return Words(
        summary=next(filter(None, subjects), ""),
        notes=notes,
        origin=origin,
        unproven=unproven,
        address=given.origin.source.address if given.origin else "",
        sha256=given.origin.source.sha256 if given.origin else "",
        imported=given.origin.content if given.origin else b"",
    )


def _full_name(name: str | None, project: str, given: _Given, patches: Path) -> str:
    full = name or f"{project}/{re.sub('[^a-z0-9]+', '-', given.name.lower()).strip('-')}"
    fix = "choose another name with --name"
    if not catalog.NAME.fullmatch(full) or full.partition("/")[0] != project:
        what = f"{full!r} is not the name of a patch of {project}"
        raise fail(InputError, "patch-name", what, fix=f"{fix}, such as {project}/my-fix")
    if (patches / full / "patch.yaml").exists():
        what = f"the patch {full} exists already"
        raise fail(InputError, "patch-exists", what, where=str(patches / full), fix=fix)
    return full


def _project(kept: _Kept, given: _Given) -> str:
    """The project that all of the diffs belong to. Raises InputError if there is none."""
    found: dict[str, None] = {}
    problems = []
    for part in (part for parts in kept.diffs for part in parts):
        for path in filter(None, dict.fromkeys((part.old, part.new))):
            project = PROJECTS.get(path.partition("/")[0])
            if project:
                found.setdefault(project)
                continue
            what = f"{path} belongs to no known project"
            fix = f"paths begin with one of: {', '.join(PROJECTS)}"
            where = f"{part.shown}:{part.named}"
            problems.append(Problem(code="import-project", where=where, what=what, fix=fix))
    if problems:
        raise InputError(problems)
    if len(found) != 1:
        what = (
            f"the diffs change {' and '.join(found) or 'nothing'}, but a patch belongs to "
            "one project"
        )
        fix = "import them separately"
        raise fail(InputError, "import-projects", what, where=given.shown, fix=fix)
    return next(iter(found))


def _no_release(tried: str, shown: str) -> InputError:
    return InputError(
        Problem(
            code="import-nowhere",
            where=shown,
            what=f"it renames files and applies to no release; most of it applies to {tried}",
            fix="write it without renames: git diff --no-renames",
        )
    )


def _written(folder: Path, number: int, parts: Sequence[Part]) -> Path:
    path = folder / f"{number:03}.diff"
    path.write_text("".join(part.text for part in parts), encoding="utf-8")
    return path


def _newest_match(
    plain: Sequence[Path], names: list[str], project: str, on: str | None, settings: Settings
) -> tuple[SourceTree, str]:
    """The newest release to which all diffs apply in order, and their combined diff.

    If there is none, the newest of those to which most hunks apply, and an empty text.
    """
    wanted = SpecifierSet(f"=={on}") if on else None
    releases = sources.releases(project, wanted, settings)
    if not releases:
        raise fail(
            InputError,
            "port-target",
            f"there is no {project} {on}",
            fix="imagefactory patch status lists the releases",
        )
    texts = [diff.read_text(encoding="utf-8") for diff in plain]
    tried: list[tuple[int, SourceTree]] = []
    for version in reversed(releases):
        tree = sources.fetch(project, version, settings)
        text = _applied(plain, names, tree)
        if text:
            return tree, text
        tried.append((partial.fitting(texts, tree), tree))
    fitting, best = max(tried, key=lambda pair: pair[0])
    if not fitting:
        span = f"{releases[0]} - {releases[-1]}"
        raise InputError(
            Problem(
                code="import-nowhere",
                what=f"no hunk applies to any release of {project} ({span})",
                fix="pass the release that it was made for with --on, or start over: "
                "imagefactory patch new",
                detail="\n".join(conflicts.explain(text, tried[0][1].root) for text in texts),
            )
        )
    return best, ""


def _applied(plain: Sequence[Path], names: list[str], tree: SourceTree) -> str:
    """The diff of the files ``names`` that all of ``plain`` make; empty if one does not apply."""
    with copy_of(tree.root) as copy:
        if any(overlay.git_apply(copy, diff).returncode for diff in plain):
            return ""
        return diff_of(tree.root, copy, names)
