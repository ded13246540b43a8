"""The ``lock`` command: writes wheels.lock, or checks it against the matrix and the indexes."""

from __future__ import annotations

from typing import Annotated

import typer

from imagefactory import opening
from imagefactory.commands.options import HERE, File, Json, workspace_of
from imagefactory.errors import CheckFailedError
from imagefactory.locking import bases, locking, store
from imagefactory.matrix import matrix
from imagefactory.matrix.matrix import Matrix
from imagefactory.system import ui
from imagefactory.workspace import Workspace

app = typer.Typer(add_completion=False)


@app.command("lock", epilog="Example: imagefactory lock --upgrade-package transformers")
def lock_command(
    file: File = HERE,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Only check that every cell is covered and everything is still available.",
        ),
    ] = False,
    upgrade: Annotated[
        bool, typer.Option("--upgrade", "-U", help="Upgrade all packages, those of bases too.")
    ] = False,
    upgrade_base: Annotated[
        bool,
        typer.Option(
            "--upgrade-base", help="Upgrade the bases: Debian packages, and digests of images."
        ),
    ] = False,
    package: Annotated[
        list[str] | None,
        typer.Option("--upgrade-package", "-P", help="Upgrade only this package; repeatable."),
    ] = None,
    json: Json = False,
) -> None:
    """Write wheels.lock: every wheel and every base of every cell, by hash."""
    workspace = workspace_of(file)
    declared = matrix.load(workspace.matrix)
    if check:
        _check_lock(workspace, declared, json=json)
        return
    old = opening.read_lock(workspace)
    new, changes = locking.update(
        old,
        declared.cells,
        workspace.settings,
        toolchains=declared.toolchains,
        upgrade=upgrade,
        upgrade_packages=tuple(package or ()),
    )
    if new != old:
        opening.write_lock(workspace, new)  # before the bases: they may fail for another reason
    based = bases.update(new, declared.cells, workspace.settings, upgrade=upgrade or upgrade_base)
    if based != new:
        opening.write_lock(workspace, based)
    changes += bases.changes(old, based)
    if json:
        ui.emit_json([change.as_dict() for change in changes])
        return
    for change in changes if old else ():
        ui.say(str(change))
    wheels = sum(len(resolution.wheels) for resolution in new.resolutions)
    ui.say(
        f"wheels.lock: {len(new.resolutions)} resolutions, {wheels} wheels, {len(changes)} changes"
    )


def _check_lock(workspace: Workspace, declared: Matrix, *, json: bool) -> None:
    lock, cells, settings = store.read(workspace.lock), declared.cells, workspace.settings
    with ui.step("checking that everything in wheels.lock is still available"):
        problems = [
            *locking.check(lock, cells, settings, toolchains=declared.toolchains),
            *bases.check(lock, cells, settings),
        ]
    if json:
        ui.emit_json([problem.as_dict() for problem in problems])
    if problems:
        raise CheckFailedError(problems)
    ui.say(f"wheels.lock covers all {len(cells)} cells, everything in it is still available")
