"""Writes patch entries: adds a variant to a ``patch.yaml``, or creates the draft of a new entry."""

from __future__ import annotations

import io
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imagefactory.errors import InputError, fail
from imagefactory.patching.patch import IMPORTED, Origin, Patch
from imagefactory.patching.sources import DISTRIBUTIONS
from imagefactory.system import files

if TYPE_CHECKING:
    from ruamel.yaml import YAML

DRAFT_PROOF = '''"""Runs upstream's own code on the case that goes wrong."""

from pathlib import Path

import proofkit


def judge(tree: Path) -> proofkit.Verdict:
    """The symptom is what a user meets without the patch."""
    raise proofkit.Inconclusive("this proof is not written yet")


if __name__ == "__main__":
    proofkit.main(judge)
'''


def in_project(patch: Patch, patches: Path) -> Patch:
    """``patch`` as it is in the folder ``patches``, where a stock patch is copied before a change.

    The copy replaces the stock patch from then on.
    """
    target = patches / patch.name
    if patch.folder == target:
        return patch
    others = shutil.ignore_patterns("__pycache__", "patch.yaml")
    shutil.copytree(patch.folder, target, ignore=others, dirs_exist_ok=True)
    # last: until then the folder, which a kill may leave behind, is no patch
    files.write_text(
        target / "patch.yaml", (patch.folder / "patch.yaml").read_text(encoding="utf-8")
    )
    return replace(
        patch,
        origin=Origin.REPLACES_STOCK,
        folder=target,
        shown=str((target / "patch.yaml").relative_to(patches.parent)),
        variants=tuple(
            replace(variant, diff=target / variant.diff.relative_to(patch.folder))
            for variant in patch.variants
        ),
        proof=(
            replace(patch.proof, script=target / patch.proof.script.relative_to(patch.folder))
            if patch.proof
            else None
        ),
    )


def add_variant(
    patch: Patch, version: str, text: str, moved: Mapping[str, str] | None = None
) -> Path:
    """Make ``text`` the patch's diff for ``version``, see ``_range_beside``; returns its file.

    If an adjacent variant has the same diff, its range is extended. A variant with another diff
    that covered the release no longer does. The ranges of all others stay as they are written,
    and the rest of ``patch.yaml`` byte for byte.
    ``moved`` maps old paths of files to those of ``version``.
    """
    yaml = _yaml()
    file = patch.folder / "patch.yaml"
    data = yaml.load(file.read_text(encoding="utf-8"))
    same = next((v for v in patch.variants if v.diff.read_text(encoding="utf-8") == text), None)
    low, high = _range_beside(patch, version)
    diff = same.diff if same else _free_name(patch, version, low)
    rows = []
    for variant in patch.variants:
        rows += [(part, variant.diff.name) for part in without(variant.versions, low, high)]
    rows.append(((low, high), diff.name))
    kept = _joined(rows)
    moves = {variant.diff.name: variant.moved for variant in patch.variants}
    if moved:
        moves[diff.name] = moved
    written = {
        (bounds_of(SpecifierSet(row["versions"])), row["diff"]): row["versions"]
        for row in data["variants"]
    }
    data["variants"] = [
        {
            "versions": written.get((bounds, name)) or _quoted(_range_text(bounds)),
            "diff": name,
            **({"moved": dict(moves[name])} if moves.get(name) else {}),
        }
        for bounds, name in kept
    ]
    if not same:
        files.write_text(diff, text)
    _dump(yaml, data, file)
    for gone in {variant.diff.name for variant in patch.variants} - {name for _, name in kept}:
        (patch.folder / gone).unlink()
    return diff


def release_range(project: str, version: str) -> tuple[Version, Version]:
    """The releases that a diff for ``version`` covers, as a half-open range.

    For vLLM 0.33.1 it is [0.33, 0.34).
    """
    parts = Version(version).release[: DISTRIBUTIONS[project].steps]
    return _dotted(parts), _dotted((*parts[:-1], parts[-1] + 1))


def _range_beside(patch: Patch, version: str) -> tuple[Version, Version]:
    """The releases of ``release_range`` that a new diff covers.

    Other variants keep theirs, unless they cover ``version``: one that does loses it, and what
    comes after it in that range.
    """
    low, high = release_range(patch.project, version)
    at = _dotted(Version(version).release)
    for variant in patch.variants:
        first, last = bounds_of(variant.versions)
        if last is not None and last <= at:
            low = max(low, last)
        elif first is not None and first > at:
            high = min(high, first)
        elif first is None or first < at:
            low = max(low, at)
    return low, high


def _dotted(parts: Sequence[int]) -> Version:
    return Version(".".join(map(str, parts)))


Bounds = tuple[Version | None, Version | None]


def bounds_of(versions: SpecifierSet) -> Bounds:
    """A specifier as a half-open range. Raises InputError if it is not one."""
    low: Version | None = None
    high: Version | None = None
    for specifier in versions:
        value = specifier.version.removesuffix(".*")
        if specifier.operator == ">=":
            low = Version(value)
        elif specifier.operator == "<":
            high = Version(value)
        elif specifier.operator == "==":
            low = Version(value)
            high = Version(f"{low.major}.{low.minor}.{low.micro}.1")
            if value != specifier.version:  # ==0.22.* is all of 0.22
                high = _dotted((*low.release[:-1], low.release[-1] + 1))
        else:
            fix = 'write it as a range, such as ">=0.22,<0.24"'
            what = f"the range {versions} cannot be changed automatically"
            raise fail(InputError, "patch-bad-versions", what, fix=fix)
    return low, high


def without(versions: SpecifierSet, low: Version, high: Version) -> list[Bounds]:
    """The range of ``versions`` without [low, high)."""
    first, last = bounds_of(versions)
    if (first is not None and first >= high) or (last is not None and last <= low):
        return [(first, last)]
    before: list[Bounds] = [(first, low)] if first is None or first < low else []
    after: list[Bounds] = [(high, last)] if last is None or last > high else []
    return before + after


def _joined(rows: Sequence[tuple[Bounds, str]]) -> list[tuple[Bounds, str]]:
    """Ranges in order; adjacent ones with the same diff are merged."""
    joined: list[tuple[Bounds, str]] = []
    for bounds, name in sorted(rows, key=lambda row: row[0][0] or Version("0")):
        if joined and joined[-1][1] == name and joined[-1][0][1] == bounds[0]:
            joined[-1] = ((joined[-1][0][0], bounds[1]), name)
        else:
            joined.append((bounds, name))
    return joined


def _range_text(bounds: Bounds) -> str:
    low, high = bounds
    return ",".join([*([f">={low}"] if low else []), *([f"<{high}"] if high else [])])


def _free_name(patch: Patch, version: str, low: Version) -> Path:
    whole = low == release_range(patch.project, version)[0]
    names = [f"{low}.diff"] if whole else []
    names += [f"{version}.diff", *(f"{version}-{n}.diff" for n in range(2, 100))]
    listed = {variant.diff.name for variant in patch.variants}
    # another file is what a run left that was killed before it listed it
    return next(patch.folder / name for name in names if name not in listed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What is known about a new patch beside its diff.

    Attributes:
        summary: what it changes, in one line; empty if that is not known.
        notes: its findings.
        origin: what it was imported from, as its author knows it.
        unproven: whether it may go into images without a proof.
        address: where it was fetched from; empty if it was not.
        sha256: of what came from there.
        imported: what came from there.
    """

    summary: str = ""
    notes: str = ""
    origin: str = ""
    unproven: bool = False
    address: str = ""
    sha256: str = ""
    imported: bytes = b""


def write_draft(folder: Path, version: str, text: str, words: Words) -> None:
    """Write a new entry with all that is known, and placeholders for what the author must add.

    An unproven one needs nothing more. ``patch.yaml`` is written last: a folder without it is no
    patch.
    """
    folder.mkdir(parents=True, exist_ok=True)
    low, high = release_range(folder.parent.name, version)
    files.write_text(folder / f"{low}.diff", text)
    origin = words.address or words.origin
    texts = {
        "purpose": "TODO: why it is needed",
        "symptom": "TODO: what a user sees without it",
        "remove_when": "TODO: what makes it unnecessary",
    }
    if words.unproven:
        texts = {
            "purpose": f"Imported from {origin}.",
            "symptom": "Not shown by any proof.",
            "remove_when": "A release has it, or nobody needs it.",
        }
    unknown = "TODO: what it changes, in one line"
    data: dict[str, object] = {
        ("unproven" if words.unproven else "draft"): True,
        "summary": words.summary or (f"changes of {origin}" if words.unproven else unknown),
        "purpose": texts["purpose"],
        "symptom": texts["symptom"],
        "evidence": [],
        "remove_when": texts["remove_when"],
        "stage": "installed" if _is_python(text) else "source",
        "variants": [{"versions": _quoted(f">={low},<{high}"), "diff": f"{low}.diff"}],
        "findings": words.notes or "Not measured yet.",
    }
    if words.address:
        (folder / IMPORTED).write_bytes(words.imported)
        data["imported"] = {"address": words.address, "sha256": _quoted(words.sha256)}
    if not words.unproven:
        if not (folder / "proof.py").exists():
            files.write_text(folder / "proof.py", DRAFT_PROOF)
        data["proof"] = {"run": "proof.py", "kind": "behaviour"}
    _dump(_yaml(), data, folder / "patch.yaml")


def _is_python(text: str) -> bool:
    lines = [line.split("\t")[0].strip() for line in text.splitlines()]
    names = [line[6:] for line in lines if line.startswith(("--- a/", "+++ b/"))]
    return all(name.endswith((".py", ".pyi")) or name.startswith("flashinfer/") for name in names)


def _quoted(text: str) -> str:
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString  # noqa: PLC0415 - as below

    quoted: str = DoubleQuotedScalarString(text)
    return quoted


def _yaml() -> YAML:
    from ruamel.yaml import YAML  # noqa: PLC0415 - takes 0.1 s, which only these commands need

    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4096  # keep the author's line breaks
    yaml.indent(mapping=2, sequence=4, offset=2)
    return yaml


def _dump(yaml: YAML, data: Any, file: Path) -> None:
    buffer = io.StringIO()
    yaml.dump(data, buffer)
    files.write_text(file, buffer.getvalue())
