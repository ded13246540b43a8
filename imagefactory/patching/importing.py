"""Imports a plain diff, or a folder of diffs such as other projects keep, as a draft patch."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet

from imagefactory.errors import InputError, Problem, fail
from imagefactory.inbuild import overlay
from imagefactory.patching import authoring, conflicts, diffs, partial, sources, worktree
from imagefactory.patching.measure import copy_of
from imagefactory.patching.merge import diff_of
from imagefactory.patching.sources import SourceTree
from imagefactory.patching.worktree import WorkTree
from imagefactory.settings import Settings

SUFFIXES = (".diff", ".patch")
#: The first component of paths that no image contains.
NOT_SHIPPED = frozenset({"docs", "tests", "benchmarks", "examples", ".github", ".buildkite"})
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
#: The prefix of paths in diffs that were made in an installed tree.
_INSTALLED = re.compile(r"^(?:.*/)?(?:site|dist)-packages/")
_HEADER = re.compile(r"^(--- |\+\+\+ )([^\t\n]+)", re.MULTILINE)
#: The first line of each file in a diff; what git writes before it is dropped or ignored.
_FILE = re.compile(r"^--- [^\n]+\n(?=\+\+\+ )", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A new draft, or the work tree for one.

    Attributes:
        patch: its name.
        version: the release that it applies to, or that most of it applies to.
        left: the files that are not diffs and were not imported.
        skipped: the files that diffs change and no image contains, such as tests.
        work: the work tree to finish; None if the draft was written.
    """

    patch: str
    version: str
    left: tuple[str, ...]
    skipped: tuple[str, ...] = ()
    work: WorkTree | None = None


def import_diffs(
    path: Path, patches: Path, settings: Settings, *, name: str | None = None, on: str | None = None
) -> Imported:
    """Create a draft from the diffs at ``path``, on the newest release to which all of them apply.

    If there is none, open a work tree on the release to which most of them applies, with conflict
    markers for the rest. With ``on``, only that release is tried. Raises InputError for diffs that
    are malformed or belong to no known project.
    """
    files, left = _files(path)
    # read as bytes: reading as text would silently convert line endings
    texts = {file: normal(file.read_bytes().decode("utf-8", "surrogateescape")) for file in files}
    with tempfile.TemporaryDirectory(prefix="imagefactory-import-") as folder:
        problems = [
            problem
            for number, (file, text) in enumerate(texts.items())
            for problem in diffs.problems(_written(Path(folder), number, text), str(file))
        ]
        if problems:
            raise InputError(problems)
        texts, skipped = _shipped(texts, path)
        files = list(texts)
        plain = [_written(Path(folder), number, text) for number, text in enumerate(texts.values())]
        project = _project(texts)
        full = _full_name(name, project, path, patches)
        notes = _notes(path, left, skipped)
        tree, text = _newest_match(plain, project, on, settings)
        if not text:
            merged = partial.merged([diff.read_text(encoding="utf-8") for diff in plain], tree)
            work = worktree.begin(settings, full, tree, kind="new", files=merged, notes=notes)
            return Imported(patch=full, version=tree.version, left=left, skipped=skipped, work=work)
    authoring.write_draft(patches / full, tree.version, text, summary=_subject(files), notes=notes)
    return Imported(patch=full, version=tree.version, left=left, skipped=skipped)


def _shipped(texts: Mapping[Path, str], path: Path) -> tuple[dict[Path, str], tuple[str, ...]]:
    """The diffs without the files that no image contains, and those.

    Raises InputError if nothing is left.
    """
    kept, skipped = {}, dict[str, None]()
    for file, text in texts.items():
        rest, names = without_unshipped(text)
        skipped |= dict.fromkeys(names)
        if rest.strip():
            kept[file] = rest
    if not kept:
        what = f"the diffs change only {', '.join(skipped)}, which no image contains"
        fix = "nothing of it makes a patch"
        raise fail(InputError, "import-empty", what, where=str(path), fix=fix)
    return kept, tuple(skipped)


def without_unshipped(text: str) -> tuple[str, list[str]]:
    """A diff in normal form without the files that no image contains, and the names of those."""
    starts = [match.start() for match in _FILE.finditer(text)]
    if not starts:
        return text, []
    kept, names = [text[: starts[0]]], []
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        part = text[start:end]
        paths = [match[2].strip() for match in _HEADER.finditer(part)][:2]
        inside = next((path[2:] for path in reversed(paths) if path != "/dev/null"), "")
        if inside.partition("/")[0] in NOT_SHIPPED:
            names.append(inside)
        else:
            kept.append(part)
    return "".join(kept) if len(kept) > 1 else "", names


def _full_name(name: str | None, project: str, path: Path, patches: Path) -> str:
    full = name or f"{project}/{re.sub('[^a-z0-9]+', '-', path.stem.lower()).strip('-')}"
    if (patches / full / "patch.yaml").exists():
        fix = "choose another name with --name"
        raise fail(
            InputError,
            "patch-exists",
            f"the patch {full} exists already",
            where=str(patches / full),
            fix=fix,
        )
    return full


def _files(path: Path) -> tuple[list[Path], tuple[str, ...]]:
    """The diffs, in order, and the names of all other files."""
    if path.is_file():
        return [path], ()
    if not path.is_dir():
        raise fail(
            InputError,
            "import-missing",
            f"{path} does not exist",
            fix="pass a diff, or a folder of diffs",
        )
    inside = sorted(file for file in path.rglob("*") if file.is_file())
    found = [file for file in inside if file.suffix in SUFFIXES]
    if not found:
        fix = (
            "pass a folder with .patch or .diff files; turn the changes of a script into a "
            "diff with imagefactory patch new"
        )
        raise fail(InputError, "import-empty", f"{path} contains no diff", where=str(path), fix=fix)
    return found, tuple(str(file.relative_to(path)) for file in inside if file not in found)


def normal(text: str) -> str:
    """A diff with ``a/`` and ``b/`` before every path, and no paths of its author's machine."""

    def normalized(match: re.Match[str]) -> str:
        marker, path = match[1], match[2].strip(" ")
        if path == "/dev/null":
            return match[0]
        bare = path[2:] if path.startswith(("a/", "b/")) else path
        return f"{marker}{'a' if marker == '--- ' else 'b'}/{_INSTALLED.sub('', bare)}"

    lines = [
        line
        for line in text.splitlines(keepends=True)
        if not line.startswith(("diff --git ", "index "))
    ]
    return _HEADER.sub(normalized, "".join(lines))


def _project(texts: dict[Path, str]) -> str:
    found: dict[str, Path] = {}
    problems = []
    for file, text in texts.items():
        for match in _HEADER.finditer(text):
            first = match[2].strip().partition("/")[2].partition("/")[0]
            if match[2].strip() == "/dev/null":
                continue
            if first in PROJECTS:
                found.setdefault(PROJECTS[first], file)
            else:
                line = text[: match.start()].count("\n") + 1
                what = f"{match[2].strip()} belongs to no known project"
                fix = f"paths begin with one of: {', '.join(PROJECTS)}"
                problems.append(
                    Problem(code="import-project", where=f"{file}:{line}", what=what, fix=fix)
                )
    if problems:
        raise InputError(problems)
    if len(found) != 1:
        what = (
            f"the diffs change {' and '.join(found) or 'nothing'}, but a patch belongs to "
            "one project"
        )
        raise fail(InputError, "import-projects", what, fix="import them separately")
    return next(iter(found))


def _written(folder: Path, number: int, text: str) -> Path:
    path = folder / f"{number:03}.diff"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    return path


def _newest_match(
    plain: Sequence[Path], project: str, on: str | None, settings: Settings
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
    best: tuple[int, SourceTree] | None = None
    for version in reversed(releases):
        tree = sources.fetch(project, version, settings)
        text = _applied(plain, tree)
        if text:
            return tree, text
        fitting = partial.fitting(texts, tree)
        if best is None or fitting > best[0]:
            best = fitting, tree
    if best is None or not best[0]:
        newest = sources.fetch(project, releases[-1], settings)
        span = f"{releases[0]} - {releases[-1]}"
        raise InputError(
            Problem(
                code="import-nowhere",
                what=f"no hunk applies to any release of {project} ({span})",
                fix="pass the release that it was made for with --on, or start over: "
                "imagefactory patch new",
                detail="\n".join(conflicts.explain(text, newest.root) for text in texts),
            )
        )
    return best[1], ""


def _applied(plain: Sequence[Path], tree: SourceTree) -> str:
    """The diff from ``tree`` to ``tree`` with all of ``plain`` applied; empty if one does not."""
    with copy_of(tree.root) as copy:
        if any(overlay.git_apply(copy, diff).returncode for diff in plain):
            return ""
        return diff_of(
            tree.root, copy, sorted({name for diff in plain for name in overlay.touched(diff)})
        )


def _subject(files: Sequence[Path]) -> str:
    """The subject of the first file in mail format, else an empty string."""
    for file in files:
        found = re.search(
            r"^Subject: (?:\[PATCH[^]]*\] )?(.+)$", file.read_text(errors="replace"), re.MULTILINE
        )
        if found:
            return found[1].strip()
    return ""


def _notes(path: Path, left: Sequence[str], skipped: Sequence[str]) -> str:
    notes = f"Imported from {path.name}; not measured yet."
    if skipped:
        notes += f" Left out, because no image contains it: {', '.join(skipped)}."
    return f"{notes} Not imported, please review: {', '.join(left)}." if left else notes
