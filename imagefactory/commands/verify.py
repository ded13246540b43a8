"""The command that runs an image and judges it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from imagefactory.commands.options import HERE, File, Json, Select, engine_of, workspace_of
from imagefactory.errors import CheckFailedError
from imagefactory.system import ui
from imagefactory.system.engine import Engine
from imagefactory.verifying import junit, receipt, report, verifying
from imagefactory.verifying.receipt import Receipt
from imagefactory.workspace import Workspace

app = typer.Typer(add_completion=False)


@app.command(
    "verify",
    epilog="Example: imagefactory verify imagefactory/vllm:cpu-vllm0.32.0 --junit report.xml",
)
def verify_command(
    tags: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TAG]...", help="Images; or name cells with --select."),
    ] = None,
    file: File = HERE,
    select: Select = None,
    junit_file: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML.")
    ] = None,
    json: Json = False,
) -> None:
    """Run an image in containers and judge it; exit 1 if a required check fails."""
    workspace = workspace_of(file)
    engine = engine_of(workspace.settings)
    names = list(tags or []) or [cell.tag for cell in workspace.cells(select or [])]
    receipts = verify_all(workspace, engine, names, show=not json)
    if junit_file:
        junit.write(junit_file, *receipts)
    if json:
        ui.emit_json([one.as_dict() for one in receipts])
    problems = receipt.problems(receipts)
    if problems:
        raise CheckFailedError(problems)


def verify_all(
    workspace: Workspace, engine: Engine, tags: list[str], *, show: bool
) -> list[Receipt]:
    """Verify images one after the other, and keep a receipt of each."""
    lock = workspace.lock_if_any
    done = []
    for tag in tags:
        made = verifying.verify(
            tag, engine=engine, lock=lock, settings=workspace.settings, now=datetime.now(UTC)
        )
        receipt.save(workspace.settings.receipts, made)
        done.append(made)
        if show:
            report.show(made)
    return done
