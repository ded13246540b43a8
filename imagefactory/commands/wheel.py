"""The ``wheel`` command: builds wheels of vLLM and extras from source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from imagefactory import opening, workflows
from imagefactory.commands.options import (
    HERE,
    BuilderNames,
    File,
    Json,
    Select,
    builders_of,
    workspace_of,
)
from imagefactory.errors import CheckFailedError, InputError, Problem, fail
from imagefactory.matrix.cell import Cell
from imagefactory.matrix.select import select as select_cells
from imagefactory.planning.wheel_plan import Trial
from imagefactory.system import ui
from imagefactory.wheels.make import Made, Tried

app = typer.Typer(add_completion=False)


@app.command("wheel", epilog="Example: imagefactory wheel --select flavor=gb10-wheel")
def wheel_command(
    file: File = HERE,
    select: Select = None,
    again: Annotated[
        bool, typer.Option("--again", help="Rebuild them without cache, and lock the result.")
    ] = False,
    builder: BuilderNames = None,
    units: Annotated[
        list[str] | None,
        typer.Option(
            "--try",
            metavar="GLOB",
            help="Build no wheel; only compile these source files and show the result.",
        ),
    ] = None,
    targets: Annotated[
        list[str] | None,
        typer.Option(
            "--target", metavar="SM", help="With --try: the GPU, such as sm_121a; repeatable."
        ),
    ] = None,
    count: Annotated[
        str,
        typer.Option(
            "--count",
            metavar="REGEX",
            help="With --try: count matching instructions in the machine code.",
        ),
    ] = "",
    json: Json = False,
) -> None:
    """Build vLLM wheels from patched sources (`build` of a flavor), and the `extras` of flavors."""
    workspace = workspace_of(file)
    cells = select_cells(opening.declared(workspace).cells, select or [])
    if units:
        cells = tuple(cell for cell in cells if cell.build)
        trial = Trial(units=tuple(units), targets=tuple(targets or ()), count=count)
        tried = workflows.try_units(workspace, _only(cells), trial, builders_of(builder))
        _show_tried(tried, count, json=json)
        return
    if targets or count:
        what, fix = "--target and --count need --try", "add the files to compile: --try GLOB"
        raise fail(InputError, "try-what", what, fix=fix)
    cells = tuple(cell for cell in cells if cell.build or cell.flavor.extras)
    made = workflows.wheels_of(workspace, cells, builders_of(builder), again=again) if cells else ()
    if json:
        ui.emit_json([one.as_dict() for one in made])
        return
    if not made:
        ui.say("nothing to build: no selected cell has a flavor with `build` or `extras`")
        return
    rows = [
        [one.built.key[:12], _result(one), one.built.wheel.sha256, str(one.path)] for one in made
    ]
    ui.table("wheels", ["key", "result", "sha256", "file"], rows)
    for one in (one for one in made if one.patches):
        _show_patches(f"patches in {one.built.wheel.filename}", one.patches)


def _result(made: Made) -> str:
    return "built" if made.fresh else "unchanged"


def _only(cells: Sequence[Cell]) -> Cell:
    if len(cells) == 1:
        return cells[0]
    names = ", ".join(cell.name for cell in cells) or "no cell with `build`"
    what = f"--try needs exactly one cell, but this selects {names}"
    fix = "select one: imagefactory wheel --select CELL --try GLOB"
    raise fail(InputError, "try-which", what, fix=fix)


def _show_patches(title: str, patches: tuple[dict[str, Any], ...]) -> None:
    rows = [[patch["name"], patch["state"], patch["detail"]] for patch in patches]
    ui.table(title, ["patch", "state", "details"], rows)


def _show_tried(tried: Tried, count: str, *, json: bool) -> None:
    """Show the compiled units; raises CheckFailedError for those that do not compile."""
    if json:
        ui.emit_json({"units": tried.units, "patches": tried.patches})
    else:
        rows = [
            [
                unit["unit"],
                unit["target"],
                ui.styled("failed", "red") if unit["error"] else ui.styled("compiled", "green"),
                "ccache" if unit["cached"] else f"{unit['seconds']:.0f} s",
                "" if unit["cached"] else f"{unit['memory'] / 2**30:.1f} GiB",
                _code(unit["code"], count),
            ]
            for unit in tried.units
        ]
        ui.table("units", ["unit", "target", "result", "time", "memory", "machine code"], rows)
        _show_patches("patches in their sources", tried.patches)
    failed = [unit for unit in tried.units if unit["error"]]
    if failed:
        raise CheckFailedError(
            Problem(
                code="unit-failed",
                where=unit["unit"],
                what=f"for {unit['target']}: {unit['error']}",
                fix="fix the patch, or choose another --target",
            )
            for unit in failed
        )


def _code(code: dict[str, dict[str, int]], count: str) -> str:
    return ", ".join(
        f"{arch}: {row['instructions']} instructions"
        + (f", {row['matching']} match {count}" if count else "")
        for arch, row in code.items()
    )
