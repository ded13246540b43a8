"""The ``lock`` command: writes wheels.lock, or checks it against the matrix and the indexes."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from imagefactory import opening
from imagefactory.commands.options import HERE, File, Json, workspace_of
from imagefactory.errors import CheckFailedError, InputError
from imagefactory.locking import locking, pinned_bases, store
from imagefactory.matrix import matrix
from imagefactory.matrix.matrix import Matrix
from imagefactory.system import ui
from imagefactory.system.registry import Registries
from imagefactory.workspace import Workspace

app = typer.Typer(add_completion=False)


@app.command("lock", epilog="Example: imagefactory lock --upgrade-package transformers")
def lock_command(
    file: File = HERE,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Only check that every cell is covered and every wheel is still available.",
        ),
    ] = False,
    upgrade: Annotated[bool, typer.Option("--upgrade", "-U", help="Upgrade all packages.")] = False,
    package: Annotated[
        list[str] | None,
        typer.Option("--upgrade-package", "-P", help="Upgrade only this package; repeatable."),
    ] = None,
    json: Json = False,
) -> None:
    """Write wheels.lock: every wheel of every cell, by hash."""
    workspace = workspace_of(file)
    declared = matrix.load(workspace.matrix)
    if check:
        _check_lock(workspace, declared, json=json)
        return
    unknown = pinned_bases.check(declared.cells, Registries())
    if unknown:
        raise InputError(unknown)
    old = opening.read_lock(workspace)
    new, changes = locking.update(
        old,
        declared.cells,
        replace(workspace.settings, named=declared.indexes),
        toolchains=declared.toolchains,
        upgrade=upgrade,
        upgrade_packages=tuple(package or ()),
    )
    if new != old:
        opening.write_lock(workspace, new)
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
    with ui.step("checking that every wheel is still available"):
        problems = locking.check(
            store.read(workspace.lock),
            declared.cells,
            replace(workspace.settings, named=declared.indexes),
            toolchains=declared.toolchains,
        )
    if json:
        ui.emit_json([problem.as_dict() for problem in problems])
    if problems:
        raise CheckFailedError(problems)
    ui.say(f"wheels.lock covers all {len(declared.cells)} cells, every wheel is still available")
