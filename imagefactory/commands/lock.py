"""The ``lock`` command: writes wheels.lock, or checks it against the matrix and the indexes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated

import typer
from packaging.utils import canonicalize_name

from imagefactory import audits, opening, workflows
from imagefactory.auditing.auditing import Audit
from imagefactory.commands.options import HERE, File, Json, workspace_of
from imagefactory.errors import (
    CheckFailedError,
    FactoryError,
    InputError,
    Problem,
    SetupError,
    fail,
)
from imagefactory.locking import bases, changes, locking, store
from imagefactory.locking.lock import Lock
from imagefactory.locking.locking import Renewed
from imagefactory.matrix import matrix
from imagefactory.matrix.matrix import Matrix
from imagefactory.system import ui
from imagefactory.workspace import Workspace

_PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
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
    no_audit: Annotated[
        bool, typer.Option("--no-audit", help="Do not check whether the wheels work together.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="List every wheel that changed.")
    ] = False,
    json: Json = False,
) -> None:
    """Write wheels.lock: every wheel and every base of every cell, by hash.

    What cannot be resolved is reported at the end; everything else is written. So are the cells
    whose wheels cannot work together (imagefactory audit).
    """
    packages = tuple(package or ())
    for name in packages:
        if not _PACKAGE.fullmatch(name):
            what, fix = f"{name!r} is not the name of a package", "write the name alone"
            raise fail(InputError, "package-name", what, fix=fix)
    workspace = workspace_of(file)
    declared = matrix.load(workspace.matrix)
    if check:
        _check_lock(workspace, declared, json=json)
        return
    old, now = opening.read_lock(workspace), datetime.now(UTC)
    for problem in declared.policies.expired(now.date()):
        ui.warn(f"{problem.where}: {problem.what}")
    renewed, writes = workflows.lock(
        workspace,
        declared,
        now,
        upgrade=upgrade,
        upgrade_base=upgrade_base,
        upgrade_packages=packages,
    )
    audited = () if no_audit or not renewed.lock.resolutions else _audits(workspace, old)
    for name in _unknown(packages, renewed.lock):
        ui.warn(f"{name} is no package of wheels.lock, so there is nothing to upgrade")
    summaries = changes.summarize(renewed.changes, renewed.lock, packages)
    if json:
        ui.emit_json(
            {
                "written": writes,
                "summary": [summary.as_dict() for summary in summaries],
                "changes": [change.as_dict() for change in renewed.changes],
                "failed": [failure.as_dict() for failure in renewed.failures],
                "audits": [{"cell": one.cell, "state": one.state} for one in audited],
            }
        )
    else:
        for line in renewed.changes if verbose else summaries:
            ui.say(str(line))
        _say_what_was_written(renewed, writes=writes)
    _raise(renewed.error, [problem for one in audited for problem in one.problems])


def _unknown(packages: Iterable[str], lock: Lock) -> list[str]:
    """Those of ``packages`` that are in no part of ``lock``."""
    known = {wheel.name for part in lock.resolutions for wheel in part.wheels}
    known |= {wheel.name for part in lock.toolchains for wheel in part.wheels}
    known |= {one.wheel.name for one in lock.unpackers}
    return [name for name in packages if canonicalize_name(name) not in known]


def _audits(workspace: Workspace, old: Lock | None) -> tuple[Audit, ...]:
    """The audits of what is locked; a lock is none the worse for what could not be read."""
    try:
        found = audits.audit_locked(workspace, old)
    except FactoryError as error:
        ui.warn(f"not audited: {error.problems[0].what}")
        return ()
    for problem in dict.fromkeys(one.unknown for one in found if one.unknown):
        ui.warn(problem.what)
    return found


def _raise(failed: FactoryError | None, wrong: list[Problem]) -> None:
    """Raise what failed, together with what is ``wrong`` with the wheels."""
    if failed and wrong:
        kind = CheckFailedError if isinstance(failed, SetupError) else type(failed)
        raise kind(dict.fromkeys([*failed.problems, *wrong]))
    if failed:
        raise failed
    if wrong:
        raise CheckFailedError(dict.fromkeys(wrong))


def _say_what_was_written(renewed: Renewed, *, writes: bool) -> None:
    for failure in renewed.failures:
        ui.say(str(failure))
    count = len(renewed.lock.resolutions)
    wheels = sum(len(resolution.wheels) for resolution in renewed.lock.resolutions)
    state = "written" if writes else "unchanged" if count else "not written"
    noun = "resolution" if count == 1 else "resolutions"
    ui.say(f"wheels.lock is {state}: {count} {noun}, {wheels} wheels")


def _check_lock(workspace: Workspace, declared: Matrix, *, json: bool) -> None:
    lock, cells = store.read(workspace.lock), declared.cells
    settings = replace(workspace.settings, named=declared.indexes)
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
