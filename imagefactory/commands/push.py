"""The command that pushes what was verified."""

from __future__ import annotations

from typing import Annotated

import typer

from imagefactory.commands.options import HERE, File, Json, Select, engine_of, workspace_of
from imagefactory.publishing import publishing
from imagefactory.system import ui

app = typer.Typer(add_completion=False)


@app.command("push", epilog="Example: imagefactory push --select flavor=gb10 --to ghcr.io/me/vllm")
def push_command(
    file: File = HERE,
    select: Select = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="REPO", help="Repository instead of the matrix's own."),
    ] = None,
    json: Json = False,
) -> None:
    """Push images by digest: only those whose last verification of exactly that digest passed."""
    workspace = workspace_of(file)
    engine = engine_of(workspace.settings)
    cells = workspace.cells(select or [])
    plans = workspace.plans(cells, workspace.look(cells, engine))
    ready = publishing.allowed(plans, engine, workspace.settings.receipts)
    repository = to or workspace.matrix.repository
    done = publishing.push(engine, ready, repository)
    if json:
        ui.emit_json([one.as_dict() for one in done])
    else:
        rows = [
            [
                one.cell,
                one.reference,
                one.digest[:19],
                f"{one.blobs_sent} sent, {one.blobs_there} there",
            ]
            for one in done
        ]
        ui.table("push", ["cell", "reference", "digest", "blobs"], rows)
