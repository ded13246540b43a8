"""Rendered Dockerfiles are read before they are trusted: they are short, and say what they do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import ROOT
from support.plans import all_planned, base_image, deb
from support.project import project_lock

from imagefactory.errors import InputError
from imagefactory.locking.lock import LockedBase
from imagefactory.matrix.cell import request_of
from imagefactory.planning import cell_plan, render
from imagefactory.planning.cell_plan import ROOT as ROOT_CONTEXT
from imagefactory.planning.cell_plan import CellPlan
from imagefactory.system.platforms import Platform

LINES, COLUMNS = 150, 120
#: Values that would be something else than text where a Dockerfile or a shell reads them bare.
HOSTILE = (
    'x" RUN="1',
    "x\\",
    "$(reboot) ${HOME}",
    "<<EOF",
    "# a comment",
    "x && reboot",
    "--mount=type=secret,id=ca",
)


def too_long(text: str) -> list[str]:
    """What of a Dockerfile nobody can review: lines by their numbers, and its length."""
    rows = text.splitlines()
    wide = [f"line {n}: {len(row)}" for n, row in enumerate(rows, 1) if len(row) > COLUMNS]
    return wide + ([f"{len(rows)} lines"] if len(rows) > LINES else [])


def with_summary(plan: CellPlan, summary: str) -> CellPlan:
    """The plan of the same cell with another text in its flavor."""
    flavor = replace(plan.cell.flavor, summary=summary)
    return cell_plan.compose(
        replace(plan.cell, flavor=flavor),
        plan.resolution,
        plan.series,
        plan.base,
        templates=(ROOT / "templates",),
        toolchain=plan.toolchain,
    )


def instructions(text: str) -> list[str]:
    """The instructions of a Dockerfile, each without its arguments."""
    whole = text.replace(" \\\n", " ").splitlines()
    return [line.partition(" ")[0] for line in whole if line and not line.startswith("#")]


@pytest.mark.parametrize("plan", all_planned(), ids=lambda plan: plan.cell.name)
def test_the_dockerfile_of_a_cell_can_be_reviewed(plan: CellPlan) -> None:
    assert too_long(plan.dockerfile) == []


def test_a_line_that_is_too_long_is_found() -> None:
    (found,) = too_long(with_summary(all_planned()[0], "a long story " * 12).dockerfile)
    assert found.startswith("line ")
    assert too_long("RUN x\n" * 151) == ["151 lines"]


def builder_of(base: LockedBase, reference: str) -> str:
    """The Dockerfile of the builder on a base."""
    text = render.base_dockerfile((ROOT / "templates",), base, reference)
    assert too_long(text) == []
    return text


@pytest.mark.parametrize("plan", all_planned(), ids=lambda plan: plan.cell.name)
def test_nothing_runs_on_the_target(plan: CellPlan) -> None:
    packages = base_image(plan.cell.flavor.base, Platform.ARM64, deb("apt"), suite="trixie")
    builder = builder_of(packages.locked, ROOT_CONTEXT)
    assert "FROM --platform=$BUILDPLATFORM root AS builder" in builder
    assert "apt-get" not in builder
    *_, last = plan.dockerfile.split("\nFROM ")
    assert last.startswith("packages AS image\n")
    kinds = {"packages", "COPY", "ENV", "LABEL", "EXPOSE", "ENTRYPOINT", "CMD"}
    assert set(instructions(last)) == {*kinds, "HEALTHCHECK"}


@pytest.mark.parametrize("added", [0, 1])
def test_a_builder_on_an_image_of_a_registry_gets_the_packages_that_it_lacks(added: int) -> None:
    base = base_image(all_planned()[0].cell.flavor.base, Platform.ARM64, *added * [deb("g++")])
    builder = builder_of(base.locked, base.reference)
    assert "apt-get" not in builder
    assert builder.count("COPY --from=root / /") == added


@pytest.mark.parametrize("summary", HOSTILE)
def test_a_text_of_the_matrix_adds_no_instruction(summary: str) -> None:
    plan = all_planned()[-1]
    hostile = with_summary(plan, summary).dockerfile
    assert instructions(hostile) == instructions(plan.dockerfile)
    assert f"description={render.quote(summary)}" in hostile


def test_a_text_that_breaks_the_line_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        with_summary(all_planned()[-1], "x\nRUN reboot")
    assert caught.value.problems[0].code == "render-unsafe-value"


def test_every_cell_of_the_matrix_is_looked_at() -> None:
    lock = project_lock()
    assert {plan.resolution for plan in all_planned()} == {
        lock.find(request_of(plan.cell)) for plan in all_planned()
    }
    assert {plan.cell.flavor.name for plan in all_planned()} >= {"cpu", "gb10"}
    assert any(plan.toolchain for plan in all_planned())
