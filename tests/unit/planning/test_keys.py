"""Build keys: whatever decides the content of an image or a wheel changes its key."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from support.plans import base_image, deb, planned
from support.project import project_lock
from support.variants import variants

from imagefactory.locking.lock import LockedToolchain
from imagefactory.matrix.cell import Cell
from imagefactory.planning import cell_plan, context
from imagefactory.planning.cell_plan import CellPlan

#: What is not in the content of an image, by the paths of `variants`, and why.
NOT_IN_AN_IMAGE = {
    r"(.*\.)?locations?\b.*": "only messages show where a value is written",
    r"cell\.axes.?flavor.*": "the name of the flavor counts, as the flavor itself has it",
    r"cell\.tags.*": "names of an image are outside of it",
    r"cell\.(flavor\.)?(requirements|overrides|indexes).*": "decide the lock, whose wheels count",
    r"cell\.flavor\.(patches.*|toolchain|build|extras.*)": "the series, wheels and compilers count",
    r"(cell\.flavor\.)?base\.base\..*|cell\.flavor\.base\.(name|image|suite|python|packages).*": (
        "what is locked for the base counts"
    ),
    r"cell\.flavor\.base\.glibc": "only wheels of the index are chosen by it, by the lock",
    r"base\.locked\.(name|platform|created|digest|packages|debs|builder).*": (
        "the digest of the base has them"
    ),
    r"resolution\.(name|platform|python|glibc|channel|requirements|overrides|indexes).*": (
        "the question to the resolver; its answer counts"
    ),
    r"resolution\.torch\.cuda": "stands in the wheel of torch, whose hash counts",
    r"(resolution|toolchain)\.wheels\[\]\.(size|index|filename|requires).*": (
        "where a wheel is from, its size and what it requires follow from its hash"
    ),
    r"toolchain\.(name|platform|requirements).*": "its wheels count",
}
IGNORED = re.compile("|".join(f"(?:{path})" for path in NOT_IN_AN_IMAGE))


@cache
def toolchain() -> LockedToolchain:
    found = project_lock().toolchain("cuda13.0", planned().cell.platform)
    assert found is not None
    return found


def key(templates: Path = ROOT / "templates", **changes: Any) -> str:
    made = planned()
    given = {name: getattr(made, name) for name in ("cell", "resolution", "series", "base")}
    given |= {"toolchain": toolchain(), **changes}
    return cell_plan.compose(**given, templates=(templates,)).build_key


def inputs() -> Iterator[tuple[str, Any, Any]]:
    """Every variant of every input: the input, the path of the change and the changed value."""
    made = planned()
    given = {"cell": made.cell, "resolution": made.resolution, "base": made.base}
    for name, value in {**given, "toolchain": toolchain()}.items():
        for path, other in variants(value):
            yield name, f"{name}.{path}".rstrip("."), other


def is_new(name: str, other: Any, before: str) -> bool:
    """Whether the plan with ``other`` has another key; a plan that cannot be made has none."""
    try:
        return key(**{name: other}) != before
    except (AttributeError, KeyError, ValueError):  # a cell without a platform, for one
        return True


def test_every_input_of_an_image_changes_its_key_but_those_that_are_not_in_it() -> None:
    before = key()
    forgotten = [
        path
        for name, path, other in inputs()
        if not IGNORED.fullmatch(path) and not is_new(name, other, before)
    ]
    assert forgotten == []


def test_an_input_that_is_not_in_an_image_exists() -> None:
    paths = [path for _, path, _ in inputs()]
    unknown = [rule for rule in NOT_IN_AN_IMAGE if not any(re.fullmatch(rule, p) for p in paths)]
    assert unknown == []


def test_an_image_without_compilers_is_another() -> None:
    assert key(toolchain=None) != key()


@pytest.mark.parametrize("folder", ["inbuild", "templates", "stack"])
def test_the_content_of_each_program_and_template_is_in_the_key(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs, templates = tmp_path / "inbuild", tmp_path / "templates"
    shutil.copytree(context._INBUILD, programs, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "templates", templates)
    shutil.copytree(context._STACK, tmp_path / "stack")
    monkeypatch.setattr(context, "_INBUILD", programs)
    monkeypatch.setattr(context, "_STACK", tmp_path / "stack")
    before = key(templates)
    stacked = [path.name for path in context._STACK.glob("*.py")]
    names = {"inbuild": context.PROGRAMS["image"], "templates": OF_AN_IMAGE, "stack": stacked}[
        folder
    ]
    seen = set()
    for name in names:
        file = tmp_path / folder / name
        content = file.read_bytes()
        file.write_bytes(content + b"# changed\n")
        seen.add(key(templates))
        file.write_bytes(content)
    assert len(seen - {before}) == len(names)
    assert key(templates) == before


#: The templates that decide an image; the others are of wheels.
OF_AN_IMAGE = ("Dockerfile.j2", "base.Dockerfile.j2", "entrypoint", "nodes.py")


def test_every_template_is_of_an_image_or_of_a_wheel() -> None:
    found = {path.name for path in (ROOT / "templates").iterdir()}
    assert found >= {*OF_AN_IMAGE}
    of_wheels = {f"{name}.Dockerfile.j2" for name in ("wheel", "compiled", "extra")}
    assert found - {*OF_AN_IMAGE} == of_wheels


@pytest.mark.parametrize("part", ["diff", "proof"])
def test_the_content_of_a_patch_is_in_the_key_not_its_name(part: str, tmp_path: Path) -> None:
    first, *others = planned().series
    assert first.variant is not None
    assert first.patch.proof is not None
    own = first.patch.proof
    file = first.variant.diff if part == "diff" else own.script
    copy = tmp_path / file.name
    copy.write_bytes(file.read_bytes())

    def changed() -> str:
        proof = replace(own, script=copy) if part == "proof" else own
        diff = copy if part == "diff" else first.variant.diff  # type: ignore[union-attr]
        step = replace(
            first,
            patch=replace(first.patch, proof=proof),
            variant=replace(first.variant, diff=diff),  # type: ignore[type-var]
        )
        return key(series=(step, *others))

    assert changed() == key()
    copy.write_bytes(copy.read_bytes() + b"\n")
    assert changed() != key()


def test_the_order_and_the_number_of_patches_are_in_the_key() -> None:
    series = planned().series
    exempt = replace(series[0], variant=None, exempt="not here")
    keys = {
        key(series=series),
        key(series=series[::-1]),
        key(series=series[1:]),
        key(series=()),
        key(series=(exempt, *series[1:])),
        key(series=(replace(exempt, exempt="for another reason"), *series[1:])),
        key(series=(replace(exempt, exempt=""), *series[1:])),
    }
    assert len(keys) == 7


#: What does not change what a base of packages is assembled from.
NOT_IN_A_BASE = re.compile(
    r"name|created|image|env|packages.*|(builder|compiler).*|debs\[\]\.(arch|size|archive|path)"
)


def test_every_input_of_a_base_of_packages_changes_its_digest() -> None:
    base = planned().cell.flavor.base
    image = base_image(base, planned().cell.platform, deb("apt"), suite="trixie")
    forgotten = [
        path
        for path, other in variants(image.locked)
        if not NOT_IN_A_BASE.fullmatch(path)
        and cell_plan.base_image(base, other).digest == image.digest
    ]
    assert forgotten == []


def test_the_programs_that_assemble_a_base_are_in_its_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "debian"
    shutil.copytree(context._ASSEMBLER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    made = planned()

    def digest() -> str:
        platform = made.cell.platform
        return base_image(made.cell.flavor.base, platform, deb("apt"), suite="trixie").digest

    before = digest()
    monkeypatch.setattr(context, "_ASSEMBLER", folder)
    assert digest() == before
    for file in [path for path in folder.iterdir() if path.is_file()]:
        content = file.read_bytes()
        file.write_bytes(content + b"# changed\n")
        assert digest() != before, file.name
        file.write_bytes(content)


@pytest.mark.parametrize(
    ("debs", "suite", "is_new"), [(0, None, False), (1, None, True), (1, "trixie", False)]
)
def test_what_adds_packages_to_an_image_of_a_registry_is_in_the_key_if_any_are_added(
    monkeypatch: pytest.MonkeyPatch, debs: int, suite: str | None, is_new: bool
) -> None:
    made = planned()
    base = base_image(made.cell.flavor.base, made.cell.platform, *debs * [deb("g++")], suite=suite)
    before = key(base=base)
    monkeypatch.setattr(context, "assembler", lambda: "other")
    # the digest of a base of packages has the programs that assemble it
    assert (key(base=base) != before) == is_new


def of(made: CellPlan, name: str) -> str:
    return made.labels[f"io.imagefactory.{name}"]


def test_the_same_content_for_another_cell_is_another_image() -> None:
    made = planned()
    other: Cell = replace(made.cell, name="other")
    assert key(cell=other) != key()
    assert of(made, "cell") == made.cell.name
