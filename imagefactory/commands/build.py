"""The ``build`` command: builds what changed, and verifies it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from imagefactory import audits, pipeline
from imagefactory.building import builders
from imagefactory.commands import tables
from imagefactory.commands.options import (
    HERE,
    BuilderNames,
    Json,
    Select,
    builders_of,
    workspace_of,
)
from imagefactory.errors import InputError, fail
from imagefactory.planning.decision import Decision, Uncovered
from imagefactory.results import Built, Watcher
from imagefactory.system import shell, ui

app = typer.Typer(add_completion=False)


@app.command("build", epilog="Example: imagefactory build --matrix --select flavor=cpu")
def build_command(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Matrix file.")] = HERE,
    matrix: Annotated[
        bool, typer.Option("--matrix", help="Build the cells of the matrix file (matrix.yaml).")
    ] = False,
    select: Select = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan; build nothing.")
    ] = False,
    no_verify: Annotated[
        bool, typer.Option("--no-verify", help="Do not verify the images.")
    ] = False,
    no_audit: Annotated[
        bool,
        typer.Option("--no-audit", help="Also build cells whose wheels do not work together."),
    ] = False,
    builder: BuilderNames = None,
    cache: Annotated[
        str | None,
        typer.Option(
            "--cache",
            metavar="REPOSITORY",
            help="Repository for build caches, with a tag for each bake target.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="DIR",
            help="Write OCI layouts to DIR/CELL instead of the engine; verifies nothing.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Build all changed cells in one bake, and verify their images."""
    if not matrix:
        what, fix = "no cells to build", "imagefactory build --matrix [FILE] [--select EXPR]"
        raise fail(InputError, "build-what", what, fix=fix)
    if cache is not None:
        builders.cache_ref(cache, "")  # reject a bad repository before anything is built
    workspace = workspace_of(path)
    if dry_run:
        plan = partial(pipeline.plan, allow_uncovered=True) if no_audit else audits.plan
        tables.result_of_plan(plan(workspace, select or [], allow_no_engine=False), json=json)
        return
    silent = Watcher()
    shown = Watcher(planned=tables.plan, verified=tables.receipt)
    built = pipeline.build(
        workspace,
        select or [],
        silent if json else shown,
        builders=builders_of(builder),
        cache=cache,
        output=output.absolute() if output else None,
        skip_audit=no_audit,
        skip_verify=no_verify,
    )
    if json:
        ui.emit_json([_as_dict(row, built) for row in built.planned.rows])
    else:
        _show_built(built, output)
    if output and any(result.ok for result in built.results.values()):
        chosen = [word for one in select or [] for word in ("--select", one)]
        chosen += ["--file", str(path)] if path != HERE else []
        by_hand = shell.show(["imagefactory", "verify", "--from", str(output), *chosen])
        ui.say(f"not verified yet: {by_hand}")
    if built.error:
        raise built.error


def _as_dict(row: Decision | Uncovered, built: Built) -> dict[str, object]:
    if isinstance(row, Uncovered):
        name, problems = row.cell.name, row.problems
    else:
        name = row.plan.cell.name
        problems = built.stopped.get(name, ())
    result = built.results.get(name)
    receipt = next((one for one in built.receipts if one.cell == name), None)
    return {
        **row.as_dict(),
        "result": result.as_dict() if result else None,
        "stopped": [problem.as_dict() for problem in problems],
        "receipt": receipt.as_dict() if receipt else None,
    }


def _show_built(built: Built, output: Path | None) -> None:
    table: list[list[ui.Part]] = []
    for row in built.planned.decisions:
        name = row.plan.cell.name
        result = built.results.get(name)
        if result:
            end = ui.styled("built", "green") if result.ok else ui.styled("failed", "red")
            on = f" on {result.builder}" if result.builder else ""
            note = f"{result.seconds:.0f} s{on}" if result.ok else f"log: {result.log}"
        elif name in built.stopped:
            end, note = ui.styled("blocked", "red"), built.stopped[name][0].code
        else:
            end, note = ui.styled("unchanged", "green"), ""
        image = str(output / name) if output else row.plan.cell.tag
        table.append([ui.styled(name, "bold"), end, note, image])
    for left_out in built.planned.uncovered:
        end, note = ui.styled("blocked", "red"), left_out.problems[0].code
        table.append([ui.styled(left_out.cell.name, "bold"), end, note, left_out.cell.tag])
    ui.table("build", ["cell", "result", "", "image"], table)
