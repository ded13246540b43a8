"""Rendered Dockerfiles are read before they are trusted: they are short, and say what they do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import ROOT
from support.plans import all_planned
from support.project import project_lock

from imagefactory.errors import InputError
from imagefactory.matrix.cell import Base, request_of
from imagefactory.planning import cell_plan, render
from imagefactory.planning.cell_plan import ROOT as ROOT_CONTEXT
from imagefactory.planning.cell_plan import CellPlan

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
        uv_version="1",
        toolchain=plan.toolchain,
    )


def instructions(text: str) -> list[str]:
    """The instructions of a Dockerfile, each without its arguments."""
    whole = text.replace(" \\\n", " ").splitlines()
    return [line.partition(" ")[0] for line in whole if line and not line.startswith("#")]


@pytest.mark.parametrize("plan", all_planned(), ids=lambda plan: plan.cell.name)
def test_the_dockerfile_of_a_cell_can_be_reviewed(plan: CellPlan) -> None:
    assert too_long(plan.dockerfile) == []


@pytest.mark.parametrize("plan", all_planned(), ids=lambda plan: plan.cell.name)
def test_a_layer_is_two_or_three_lines(plan: CellPlan) -> None:
    stages = plan.dockerfile.split("\nFROM ")
    layers = [stage for stage in stages if " AS layer-" in stage.partition("\n")[0]]
    assert len(layers) == len([name for name in plan.files if name.startswith("layers/")])
    assert max(len(stage.partition("\n\n")[0].splitlines()) for stage in layers) == 3


def test_a_line_that_is_too_long_is_found() -> None:
    (found,) = too_long(with_summary(all_planned()[0], "a long story " * 12).dockerfile)
    assert found.startswith("line ")
    assert too_long("RUN x\n" * 151) == ["151 lines"]


def stages_of(base: Base, reference: str) -> tuple[str, str]:
    """The Dockerfile of a base, split before its second stage."""
    text = render.base_dockerfile((ROOT / "templates",), base, reference)
    assert too_long(text) == []
    builder, _, bottom = text.partition(f"FROM {reference} AS base\n")
    return builder, bottom


@pytest.mark.parametrize("plan", all_planned(), ids=lambda plan: plan.cell.flavor.base.name)
def test_nothing_runs_on_the_target_in_a_base_of_packages(plan: CellPlan) -> None:
    builder, bottom = stages_of(plan.cell.flavor.base, ROOT_CONTEXT)
    assert "FROM --platform=$BUILDPLATFORM root AS builder" in builder
    assert "apt-get" not in builder
    assert instructions(bottom) == ["COPY"]


def test_packages_are_installed_on_an_image_of_a_registry() -> None:
    base = replace(all_planned()[0].cell.flavor.base, suite=None)
    builder, bottom = stages_of(base, f"debian@sha256:{'0' * 64}")
    assert "install -y --no-install-recommends git python3 python3-venv" in builder
    assert all(f" {package} \\\n" in bottom for package in base.packages)


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
