"""Reads ``patches/`` and selects the series of a cell. Pure, except for reading files."""

from __future__ import annotations

import graphlib
import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imagefactory.errors import InputError, Problem, fail
from imagefactory.locking.tags import BUILT
from imagefactory.matrix.cell import Cell
from imagefactory.patching import diffs
from imagefactory.patching.patch import (
    IMPORTED,
    PROJECTS,
    Exemption,
    Kind,
    KindOn,
    NoDiff,
    Origin,
    Patch,
    Proof,
    Source,
    Stage,
    Step,
    Variant,
)
from imagefactory.patching.schema import PatchFile
from imagefactory.system import files as regular
from imagefactory.system import yamlfile
from imagefactory.system.yamlfile import Loc, Positions

#: Project and name: folders of the catalogue, and of build contexts.
NAME = re.compile(r"[a-z0-9][a-z0-9-]*/[a-z0-9][a-z0-9.-]*")
#: Bytes.
LARGEST_PROOF = 1_000_000
Catalog = Mapping[str, Patch]


def load(*folders: Path) -> Catalog:
    """Every patch below ``folders``, by name.

    A patch in an earlier folder replaces the one of the same name in a later folder. Raises
    InputError with the problems of all patches.
    """
    problems: list[Problem] = []
    found: dict[str, Patch] = {}
    for name, (file, origin) in files(*folders).items():
        # what is not in the project is shown by its full path
        root = None if origin is Origin.STOCK and len(folders) > 1 else folders[0].parent
        try:
            found[name] = _read(file, name, origin, root)
        except InputError as error:
            problems += error.problems
    problems += _order_problems(found)
    if problems:
        raise InputError(problems)
    return found


def files(*folders: Path) -> dict[str, tuple[Path, Origin]]:
    """The ``patch.yaml`` of every patch, by name, and where the patch comes from.

    The last of ``folders`` is the stock catalogue.
    """
    *own, stock = (
        {f"{file.parts[-3]}/{file.parts[-2]}": file for file in folder.glob("*/*/patch.yaml")}
        for folder in folders
    )
    found = {name: (file, Origin.STOCK) for name, file in stock.items()}
    for name, file in (pair for folder in reversed(own) for pair in folder.items()):
        found[name] = file, Origin.REPLACES_STOCK if name in stock else Origin.PROJECT
    return dict(sorted(found.items()))


def series(catalog: Catalog, cell: Cell) -> tuple[Step, ...]:
    """The patches of ``cell`` in the order of application, each with the variant for its version.

    Raises InputError for a patch that does not exist, is a draft, belongs to a project that the
    cell has no version of, or changes sources that the cell does not compile.
    """
    problems = []
    for name in cell.flavor.patches:
        if name not in catalog:
            fix = f"available: {', '.join(catalog) or 'none'}"
            what = f"flavor {cell.flavor.name} lists the patch {name}, which does not exist"
            problems.append(
                Problem(code="patch-unknown", where=str(cell.flavor.location), what=what, fix=fix)
            )
        elif name.partition("/")[0] not in cell.axes:
            what = f"{cell.name} has no version of {name.partition('/')[0]}, which {name} changes"
            fix = f"give the cell that axis, or remove {name} from flavor {cell.flavor.name}"
            problems.append(
                Problem(
                    code="patch-no-version", where=str(cell.flavor.location), what=what, fix=fix
                )
            )
        elif catalog[name].draft:
            what = f"flavor {cell.flavor.name} lists {name}, which is a draft without a proof"
            fix = (
                f"write its proof, then remove `draft` from {catalog[name].shown}; or write "
                "`unproven: true` there instead of both"
            )
            problems.append(
                Problem(code="patch-draft", where=str(cell.flavor.location), what=what, fix=fix)
            )
        elif catalog[name].stage is Stage.SOURCE and not _is_compiled(catalog[name], cell):
            what = (
                f"{name} changes sources of compiled code, but {cell.name} installs "
                f"{catalog[name].project}'s binaries from a wheel"
            )
            fix = (
                f"remove {name} from flavor {cell.flavor.name}, or compile them there: "
                "`build: {binaries: compiled, …}`"
            )
            problems.append(
                Problem(code="patch-stage", where=str(cell.flavor.location), what=what, fix=fix)
            )
    if problems:
        raise InputError(problems)
    return tuple(_step(catalog[name], cell) for name in _ordered(cell.flavor.patches, catalog))


def _is_compiled(patch: Patch, cell: Cell) -> bool:
    return patch.project == BUILT and cell.build is not None and cell.build.compiles


def _step(patch: Patch, cell: Cell) -> Step:
    version = cell.axes[patch.project]
    # 0.34.0rc1.dev5 is neither in >=0.34 nor in <0.34; for a ref, the release it leads to counts
    coming = [Version(version).base_version] if cell.ref and patch.project == BUILT else []
    for one in (version, *coming):
        exemption, variant = patch.exemption(one), patch.variant(one)
        if exemption:
            return Step(patch=patch, version=version, variant=None, exempt=exemption.reason)
        if variant:
            return Step(patch=patch, version=version, variant=variant)
    return Step(patch=patch, version=version, variant=None)


def _ordered(names: Sequence[str], catalog: Catalog) -> list[str]:
    """``names`` in the given order, but each patch behind those that its ``after`` lists."""
    sorter = graphlib.TopologicalSorter(
        {n: [a for a in catalog[n].after if a in names] for n in names}
    )
    sorter.prepare()
    out: list[str] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready(), key=list(names).index)
        out += ready
        sorter.done(*ready)
    return out


def _order_problems(catalog: Catalog) -> Iterator[Problem]:
    for patch in catalog.values():
        for name in patch.after:
            if name not in catalog:
                what = f"`after` lists {name}, which does not exist"
                yield Problem(
                    code="patch-unknown",
                    where=f"{patch.shown}:1",
                    what=what,
                    fix="correct or remove it",
                )
    try:
        graphlib.TopologicalSorter(
            {p.name: [a for a in p.after if a in catalog] for p in catalog.values()}
        ).prepare()
    except graphlib.CycleError as error:
        names = " -> ".join(error.args[1])
        fix = "remove one of their `after` entries"
        where = f"{catalog[error.args[1][0]].shown}:1"
        yield Problem(code="patch-cycle", where=where, what=f"circular `after`: {names}", fix=fix)


def _read(file: Path, name: str, origin: Origin, root: Path | None) -> Patch:
    """Read a patch; messages show its files relative to ``root``, if it is given."""
    shown = _shown(file, root)
    entry, positions = yamlfile.read(file, PatchFile, prefix="patch", shown=shown)
    problems: list[Problem] = []
    variants = tuple(
        Variant(
            versions=_specifier(v.versions, ("variants", i, "versions"), positions, problems),
            diff=file.parent / v.diff,
            location=positions.locate(("variants", i)),
            moved=v.moved,
        )
        for i, v in enumerate(entry.variants)
    )
    exemptions = tuple(
        Exemption(
            versions=_specifier(e.versions, ("not_applicable", i, "versions"), positions, problems),
            reason=e.reason,
        )
        for i, e in enumerate(entry.not_applicable)
    )
    no_diff = tuple(
        NoDiff(
            versions=_specifier(n.versions, ("no_diff", i, "versions"), positions, problems),
            reason=n.reason,
        )
        for i, n in enumerate(entry.no_diff)
    )
    kinds = tuple(
        KindOn(
            versions=_specifier(k.versions, ("kinds", i, "versions"), positions, problems),
            kind=Kind(k.kind),
            reason=k.reason,
        )
        for i, k in enumerate(entry.kinds)
    )
    patch = Patch(
        name=name,
        origin=origin,
        folder=file.parent,
        shown=shown,
        draft=entry.draft,
        summary=entry.summary.strip(),
        kind=Kind(entry.kind),
        kinds=kinds,
        stage=entry.where,
        after=tuple(entry.after),
        variants=variants,
        exemptions=exemptions,
        no_diff=no_diff,
        proof=_proof(entry, file, positions, shown, problems),
        text={
            "symptom": entry.symptom,
            "remove_when": entry.remove_when,
            "findings": entry.findings,
        },
        source=Source(**entry.imported.model_dump()) if entry.imported else None,
    )
    problems += _file_problems(patch, positions, root)
    if problems:
        raise InputError(problems)
    return patch


def _proof(
    entry: PatchFile, file: Path, positions: Positions, shown: str, problems: list[Problem]
) -> Proof | None:
    """The patch's proof; None for one that says that it is unproven."""
    one = entry.proof
    if one and entry.unproven:
        where = str(positions.locate(("unproven",)))
        what, fix = "a patch with a proof is not unproven", "remove `unproven`, or the proof"
        problems.append(Problem(code="patch-unproven", where=where, what=what, fix=fix))
    elif one is None and not entry.unproven:
        what = "the patch has no proof"
        fix = "write one, or write `unproven: true` if it may go into images without"
        problems.append(Problem(code="patch-no-proof", where=f"{shown}:1", what=what, fix=fix))
    if one is None:
        return None
    return Proof(script=file.parent / one.run, kind=one.kind, needs=tuple(one.needs))


def _specifier(text: str, loc: Loc, positions: Positions, problems: list[Problem]) -> SpecifierSet:
    try:
        found = SpecifierSet(text)
        for one in found:
            Version(one.version.removesuffix(".*"))  # `===` takes any text
    except ValueError:
        where = str(positions.locate(loc))
        fix = 'write it as in PEP 440, such as ">=0.22,<0.23"'
        problems.append(
            Problem(
                code="patch-bad-versions",
                where=where,
                what=f"{text!r} is not a version range",
                fix=fix,
            )
        )
        return SpecifierSet()
    return found


def _shown(file: Path, root: Path | None) -> str:
    return str(file.relative_to(root) if root else file)


def _file_problems(patch: Patch, positions: Positions, root: Path | None) -> Iterator[Problem]:
    proof = patch.proof.script if patch.proof else None
    links = [variant.diff for variant in patch.variants] + ([proof] if proof else [])
    for file in dict.fromkeys(file for file in links if file.is_symlink()):
        what, fix = f"{file.name} is a symbolic link", "put the file itself into the patch's folder"
        yield Problem(code="patch-link", where=f"{patch.shown}:1", what=what, fix=fix)
    if not NAME.fullmatch(patch.name):
        what = f"{patch.name!r} is not the name of a patch"
        fix = "name its folders with lower-case letters, digits and -"
        yield Problem(code="patch-bad-name", where=f"{patch.shown}:1", what=what, fix=fix)
    elif patch.project not in PROJECTS:
        what = f"{patch.project} is not a project that can be patched"
        fix = f"put it into the folder of one: {', '.join(PROJECTS)}"
        yield Problem(code="patch-unknown-project", where=f"{patch.shown}:1", what=what, fix=fix)
    if proof and not proof.is_file():
        where = str(positions.locate(("proof", "run")))
        what = f"{patch.name} has no proof: there is no file {proof.name}"
        yield Problem(
            code="patch-no-proof",
            where=where,
            what=what,
            fix="write the check that fails without the patch",
        )
    elif proof and not _is_text(proof):
        what, fix = f"{proof.name} is not Python source", "save it as UTF-8"
        where = str(positions.locate(("proof", "run")))
        yield Problem(code="patch-no-proof", where=where, what=what, fix=fix)
    for variant in patch.variants:
        if not variant.diff.is_file():
            what = f"there is no file {variant.diff.name}"
            yield Problem(
                code="patch-no-diff",
                where=str(variant.location),
                what=what,
                fix="create the file, or correct its name",
            )
        else:
            yield from diffs.problems(variant.diff, _shown(variant.diff, root))
    yield from _source_problems(patch, positions)
    for one, other in itertools.combinations(patch.variants, 2):
        both = next((v for v in _corners(patch) if v in one.versions and v in other.versions), None)
        if both:
            what = f"two variants cover {both}: {one.versions} and {other.versions}"
            fix = "make the ranges disjoint"
            yield Problem(code="patch-overlap", where=str(other.location), what=what, fix=fix)


def _source_problems(patch: Patch, positions: Positions) -> Iterator[Problem]:
    """What is wrong with the record of what the patch was imported from."""
    if patch.source is None:
        return
    try:
        data = regular.read(patch.folder / IMPORTED, diffs.LARGEST)
    except OSError:
        data = b""
    if hashlib.sha256(data).hexdigest() != patch.source.sha256:
        where = str(positions.locate(("imported", "sha256")))
        what = f"{IMPORTED} is missing, or not what {patch.source.address} gave"
        fix = f"restore {IMPORTED}, or remove `imported`"
        yield Problem(code="patch-imported", where=where, what=what, fix=fix)


def _is_text(file: Path) -> bool:
    try:
        return "\0" not in regular.read_text(file, LARGEST_PROOF)
    except (OSError, UnicodeDecodeError):
        return False


def _corners(patch: Patch) -> list[Version]:
    """Versions at and just above every bound: ranges that overlap do so at one of these."""
    bounds = [s.version.removesuffix(".*") for v in patch.variants for s in v.versions]
    return [
        Version(text) for bound in bounds for text in (bound, f"{Version(bound).base_version}.1")
    ]


def find(catalog: Catalog, name: str) -> Patch:
    """The patch ``name``. Raises InputError, listing all patches, if it does not exist."""
    if name not in catalog:
        raise fail(
            InputError,
            "patch-unknown",
            f"there is no patch {name!r}",
            fix=f"available: {', '.join(catalog)}",
        )
    return catalog[name]
