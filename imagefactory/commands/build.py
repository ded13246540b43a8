"""The command that builds, and verifies what it built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import typer

from imagefactory.building import builders, building
from imagefactory.commands.options import (
    HERE,
    BuilderName,
    Json,
    Select,
    engine_of,
    show_plan,
    workspace_of,
)
from imagefactory.errors import CheckFailedError, InputError, Problem, SetupError, fail
from imagefactory.matrix.cell import Cell
from imagefactory.patching.patch import State
from imagefactory.planning.cell_plan import CellPlan
from imagefactory.system import ui
from imagefactory.system.engine import Engine, ImageInfo
from imagefactory.system.platforms import Platform
from imagefactory.verifying import receipt
from imagefactory.verifying.receipt import Receipt
from imagefactory.workspace import Found, Row, Workspace, decide

app = typer.Typer(add_completion=False)


@app.command("build", epilog="Example: imagefactory build --matrix --select flavor=cpu")
def build_command(
    path: Annotated[Path, typer.Argument(metavar="[FILE]", help="Matrix file.")] = HERE,
    matrix: Annotated[
        bool, typer.Option("--matrix", help="Build the cells of the matrix file (matrix.yaml).")
    ] = False,
    select: Select = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan; build nothing.")
    ] = False,
    no_verify: Annotated[
        bool, typer.Option("--no-verify", help="Leave out the verification at the end.")
    ] = False,
    builder: BuilderName = None,
    cache: Annotated[
        str | None,
        typer.Option(
            "--cache",
            metavar="REPOSITORY",
            help="Read and write build caches there, a tag for each target.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Build what changed, in one bake, and verify it."""
    if not matrix:
        fix = "imagefactory build --matrix [FILE] [--select EXPR]"
        raise fail(InputError, "build-what", "say what to build", fix=fix)
    if cache:
        builders.cache_ref(cache, "")  # told before anything is built
    workspace = workspace_of(path)
    with ThreadPoolExecutor(1) as aside:  # matrix and lock are read while the engine answers
        answer = aside.submit(engine_of, workspace.settings)
        cells = workspace.cells(select or [])
        _ = workspace.lock
    engine = answer.result()
    there = engine.builder(builder) if builder and not dry_run else None
    if not dry_run:
        workspace.make_wheels(cells, engine, there=there)
    native = there.platform if there else engine.platform
    with ThreadPoolExecutor(
        1
    ) as aside:  # looking for a hundred images takes the engine as long as planning takes us
        images = aside.submit(engine.find_images, [cell.tag for cell in cells])
        planned, found = _planned(workspace, engine, cells, native, make=not dry_run)
    rows = decide(planned, images.result())
    if not json:
        show_plan(rows)
    plans = [row.plan for row in rows if row.action == "build"]
    if dry_run:
        if json:
            ui.emit_json([row.as_dict() for row in rows])
        return
    stopped = _stopped_by_patches(workspace, plans)
    plans = [plan for plan in plans if plan.cell.name not in stopped]
    results: list[building.BuildResult] = []
    if plans:
        elsewhere = workspace.images_for(there, found.values(), engine)
        bakefile = workspace.write_bake(
            workspace.contexts, plans, found, native, elsewhere=elsewhere, cache=cache
        )
        results = building.bake(engine, plans, bakefile, workspace.settings.logs, builder=builder)
    built = {result.cell: result for result in results}
    good = [
        r.plan.cell.tag
        for r in rows
        if r.action == "skip" or _is_built(built.get(r.plan.cell.name))
    ]
    known = images.result() if not built else engine.find_images(good)
    receipts = (
        [] if no_verify else _verify_unless_passed(workspace, engine, good, known, show=not json)
    )
    if json:
        ui.emit_json([_build_row(row, built.get(row.plan.cell.name), stopped) for row in rows])
    else:
        _show_results(rows, built, stopped)
    _judge(results, receipts, [problem for problems in stopped.values() for problem in problems])


def _planned(
    workspace: Workspace, engine: Engine, cells: Sequence[Cell], native: Platform, *, make: bool
) -> tuple[list[CellPlan], Found]:
    """Plans and bases; what is wrong is told before a base is made."""
    found = workspace.look_everywhere(cells, engine)
    plans = workspace.plans(cells, found)
    wanted = {(base.base.name, native) for base in found.values()}
    if not make or (
        wanted <= found.keys() and all(base.origin != "unresolved" for base in found.values())
    ):
        return plans, found
    found = workspace.ensure(cells, engine, native=native)
    return workspace.plans(cells, found), found


def _stopped_by_patches(
    workspace: Workspace, plans: list[CellPlan]
) -> dict[str, tuple[Problem, ...]]:
    """The cells that a patch stops, and why; told before anything is built."""
    try:
        done = workspace.try_series([(plan.cell, plan.series) for plan in plans])
    except SetupError as error:
        ui.warn(f"patches are tried in the builder only: {error.problems[0].what}")
        return {}
    for row in (row for one in done for row in one.rows if row.state is State.OBSOLETE):
        ui.say(
            f"{row.patch} is obsolete on {row.project} {row.version}, and left out: {row.reason}"
        )
    return {one.cell: one.problems for one in done if one.problems}


def _is_built(result: building.BuildResult | None) -> bool:
    return result is not None and result.ok


def _build_row(
    row: Row, result: building.BuildResult | None, stopped: dict[str, tuple[Problem, ...]]
) -> dict[str, object]:
    problems = [problem.as_dict() for problem in stopped.get(row.plan.cell.name, ())]
    return {**row.as_dict(), "result": result.as_dict() if result else None, "stopped": problems}


def _show_results(
    rows: list[Row], built: dict[str, building.BuildResult], stopped: dict[str, tuple[Problem, ...]]
) -> None:
    table = []
    for row in rows:
        name = row.plan.cell.name
        result = built.get(name)
        if result is None:
            end, note = (
                ("[red]stopped[/]", stopped[name][0].code)
                if name in stopped
                else ("[green]unchanged[/]", "")
            )
        else:
            end = "[green]built[/]" if result.ok else "[red]failed[/]"
            note = f"{result.seconds:.0f} s" if result.ok else f"log: {result.log}"
        table.append([f"[bold]{name}[/bold]", end, note, row.plan.cell.tag])
    ui.table("build", ["cell", "result", "", "image"], table)


def _verify_unless_passed(
    workspace: Workspace,
    engine: Engine,
    tags: Sequence[str],
    images: Mapping[str, ImageInfo],
    *,
    show: bool,
) -> list[Receipt]:
    """Verify those of ``tags`` whose very digest has not passed already."""
    folder = workspace.settings.receipts
    before = {
        tag: receipt.load(folder, images[tag].digest) if tag in images else None for tag in tags
    }
    passed = [one for one in before.values() if one and one.passed]
    if passed:
        oldest = min(one.verified_at for one in passed)
        ui.say(
            f"{len(passed)} of {len(tags)} verified before, since {oldest}; "
            "imagefactory verify does it again"
        )
    left = [tag for tag, one in before.items() if not (one and one.passed)]
    if not left:
        return []
    from imagefactory.commands.verify import verify_all  # noqa: PLC0415 - brings NumPy, which nothing else here needs

    return verify_all(workspace, engine, left, show=show)


def _judge(
    results: Sequence[building.BuildResult], receipts: Sequence[Receipt], stopped: Sequence[Problem]
) -> None:
    """Raise for everything that is not as it should be, so that the exit code says so."""
    problems = [
        *stopped,
        *(
            Problem(
                code="build-failed",
                where=r.cell,
                what=f"{r.error} (log: {r.log})",
                fix=f"reproduce: {r.reproduce}",
            )
            for r in results
            if not r.ok
        ),
        *receipt.problems(receipts),
    ]
    if problems:
        raise CheckFailedError(problems)
