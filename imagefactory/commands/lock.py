"""The command that writes wheels.lock, or holds it against the indexes."""

from __future__ import annotations

from typing import Annotated

import typer

from imagefactory.commands.options import HERE, File, Json, workspace_of
from imagefactory.errors import CheckFailedError
from imagefactory.locking import locking, store
from imagefactory.system import ui
from imagefactory.workspace import Workspace

app = typer.Typer(add_completion=False)


@app.command("lock", epilog="Example: imagefactory lock --upgrade-package transformers")
def lock_command(
    file: File = HERE,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Resolve nothing: is every cell covered, is every hash still served?"
        ),
    ] = False,
    upgrade: Annotated[
        bool, typer.Option("--upgrade", "-U", help="Resolve everything anew.")
    ] = False,
    package: Annotated[
        list[str] | None,
        typer.Option("--upgrade-package", "-P", help="Let only this package move; repeatable."),
    ] = None,
    json: Json = False,
) -> None:
    """Write wheels.lock: every wheel of every cell, by hash."""
    workspace = workspace_of(file)
    cells = workspace.matrix.cells
    if check:
        _check_lock(workspace, json=json)
        return
    old = workspace.lock_if_any
    new, changes = locking.update(
        old,
        cells,
        workspace.settings,
        toolchains=workspace.matrix.toolchains,
        upgrade=upgrade,
        upgrade_packages=tuple(package or ()),
    )
    if new != old:
        store.write(workspace.lock_file, new)
    if json:
        ui.emit_json([change.as_dict() for change in changes])
        return
    for change in changes if old else ():
        ui.say(str(change))
    wheels = sum(len(resolution.wheels) for resolution in new.resolutions)
    ui.say(
        f"wheels.lock: {len(new.resolutions)} resolutions, {wheels} wheels, {len(changes)} changes"
    )


def _check_lock(workspace: Workspace, *, json: bool) -> None:
    with ui.step("asking every place for every hash"):
        problems = locking.check(
            workspace.lock,
            workspace.matrix.cells,
            workspace.settings,
            toolchains=workspace.matrix.toolchains,
        )
    if json:
        ui.emit_json([problem.as_dict() for problem in problems])
    if problems:
        raise CheckFailedError(problems)
    ui.say(
        f"wheels.lock covers all {len(workspace.matrix.cells)} cells, and every "
        "wheel is still served"
    )
