"""The command line: thin functions over the stations; errors are caught here and nowhere else."""

from __future__ import annotations

import errno
import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from imagefactory import __version__, build_cli, doctor, image_cli, port_cli, prune_cli, push, ui, wheel_cli
from imagefactory.errors import CheckFailedError, FactoryError, SetupError, fail
from imagefactory.locking import station as locking
from imagefactory.locking import store
from imagefactory.matrix.explain import explain
from imagefactory.options import (
    HERE,
    File,
    Json,
    Select,
    engine_if_any,
    engine_of,
    settings_of,
    show_plan,
    workspace_of,
)
from imagefactory.workspace import Workspace, decide

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="vLLM images for DGX Spark: declared, locked by hash, patched with proof, built, verified, pushed.",
)

app.add_typer(port_cli.app, name="patch")
app.command("inspect", epilog="Example: imagefactory inspect imagefactory/vllm:gb10-vllm0.22.1")(
    image_cli.inspect_command
)
app.command(
    "diff", epilog="Example: imagefactory diff imagefactory/vllm:gb10-vllm0.22.1 imagefactory/vllm:gb10-vllm0.33.0"
)(image_cli.diff_command)
app.command("rebuild", epilog="Example: imagefactory rebuild --diff imagefactory/vllm:cpu-vllm0.32.0")(
    image_cli.rebuild_command
)
app.command("build", epilog="Example: imagefactory build --matrix --select flavor=cpu")(build_cli.build_command)
app.command("wheel", epilog="Example: imagefactory wheel --select flavor=gb10-wheel")(wheel_cli.wheel_command)
app.command("prune", epilog="Example: imagefactory prune --dry-run")(prune_cli.prune_command)
app.command("verify", epilog="Example: imagefactory verify imagefactory/vllm:cpu-vllm0.32.0 --junit report.xml")(
    build_cli.verify_command
)

INTERRUPTED, TERMINATED = 130, 143


def main() -> None:
    """Run a command, show its errors, exit 0 done, 1 a check failed, 2 wrong input, 3 wrong machine, 130 Ctrl-C."""
    signal.signal(signal.SIGTERM, _terminated)
    try:
        app()
    except (FactoryError, OSError) as error:
        known = error if isinstance(error, FactoryError) else _of_the_machine(error)
        ui.failure(known)
        sys.exit(known.exit_code)
    except SystemExit as end:
        if end.code == INTERRUPTED:
            ui.say("interrupted; what was finished stays, and the next run goes on from there")
        raise


def _of_the_machine(error: OSError) -> FactoryError:
    """What the system refused: most often a full disk, or a folder that is not ours to write."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    fix = (
        "imagefactory prune makes room, and what was finished stays" if full else "check the path and who may write it"
    )
    what = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
    return fail(SetupError, "disk-full" if full else "system-refused", what, fix=fix)


def _terminated(*_: object) -> None:
    """End as a failure does, so that whatever runs for us is stopped too; the default would leave it behind."""
    sys.exit(TERMINATED)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        ui.out.print(f"imagefactory {__version__}")
        raise typer.Exit


@app.command("plan", epilog="Example: imagefactory plan --select flavor=gb10 --json")
def plan_command(
    file: File = HERE,
    select: Select = None,
    explained: Annotated[
        str | None, typer.Option("--explain", metavar="CELL", help="Show where every value of one cell comes from.")
    ] = None,
    json: Json = False,
) -> None:
    """List the cells, and what a build would do for each."""
    workspace = workspace_of(file)
    if explained:
        _explain(workspace, explained, json=json)
        return
    engine = engine_if_any(workspace.settings)
    cells = workspace.cells(select or [])
    plans = workspace.plans(cells, workspace.look(cells, engine))
    rows = decide(plans, engine.find_images(cell.tags[0] for cell in cells) if engine else None)
    if json:
        ui.emit_json([row.as_dict() for row in rows])
    else:
        show_plan(rows)


def _explain(workspace: Workspace, name: str, *, json: bool) -> None:
    rows = [row for cell in workspace.cells([name]) for row in explain(cell)]
    if json:
        ui.emit_json([dict(zip(("what", "value", "where", "section"), row, strict=True)) for row in rows])
    else:
        ui.table(name, ["what", "value", "where", "section"], [[ui.escape(text) for text in row] for row in rows])


@app.command("lock", epilog="Example: imagefactory lock --upgrade-package transformers")
def lock_command(
    file: File = HERE,
    check: Annotated[
        bool, typer.Option("--check", help="Resolve nothing: is every cell covered, is every hash still served?")
    ] = False,
    upgrade: Annotated[bool, typer.Option("--upgrade", "-U", help="Resolve everything anew.")] = False,
    package: Annotated[
        list[str] | None, typer.Option("--upgrade-package", "-P", help="Let only this package move; repeatable.")
    ] = None,
    json: Json = False,
) -> None:
    """Write wheels.lock: every wheel of every cell, by hash."""
    workspace = workspace_of(file)
    cells = workspace.matrix.cells
    if check:
        _check_lock(workspace, json=json)
        return
    old = workspace.lock if workspace.lock_file.exists() else None
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
    ui.say(f"wheels.lock: {len(new.resolutions)} resolutions, {wheels} wheels, {len(changes)} changes")


def _check_lock(workspace: Workspace, *, json: bool) -> None:
    with ui.step("asking every place for every hash"):
        problems = locking.check(
            workspace.lock, workspace.matrix.cells, workspace.settings, toolchains=workspace.matrix.toolchains
        )
    if json:
        ui.emit_json([problem.as_dict() for problem in problems])
    if problems:
        raise CheckFailedError(problems)
    ui.say(f"wheels.lock covers all {len(workspace.matrix.cells)} cells, and every wheel is still served")


@app.command("render", epilog="Example: imagefactory render --select flavor=cpu --out out/")
def render_command(
    file: File = HERE,
    select: Select = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write build contexts and the bake file here.")
    ] = None,
) -> None:
    """Print the Dockerfiles of the selected cells, or write all that Buildx reads."""
    workspace = workspace_of(file)
    engine = engine_if_any(workspace.settings)
    cells = workspace.cells(select or [])
    found = workspace.look_everywhere(cells, engine)
    plans = workspace.plans(cells, found)
    if out is None:
        for plan in plans:
            sys.stdout.write(plan.dockerfile)
        return
    path = workspace.write_bake(out.resolve(), plans, found, engine.platform if engine else cells[0].platform)
    ui.say(f"wrote {path}; build it with: docker buildx bake -f {path}")


@app.command("push", epilog="Example: imagefactory push --select flavor=gb10 --to ghcr.io/me/vllm")
def push_command(
    file: File = HERE,
    select: Select = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="REPO", help="Repository instead of the matrix's own.")
    ] = None,
    json: Json = False,
) -> None:
    """Push images by digest: only those whose last verification of exactly that digest passed."""
    workspace = workspace_of(file)
    engine = engine_of(workspace.settings)
    cells = workspace.cells(select or [])
    plans = workspace.plans(cells, workspace.look(cells, engine))
    ready = push.allowed(plans, engine, workspace.settings.receipts)
    repository = to or workspace.matrix.repository
    done = [one for plan, image in ready for one in push.push(engine, plan, image, repository)]
    if json:
        ui.emit_json([one.as_dict() for one in done])
    else:
        rows = [
            [one.cell, one.reference, one.digest[:19], f"{one.blobs_sent} sent, {one.blobs_there} there"]
            for one in done
        ]
        ui.table("push", ["cell", "reference", "digest", "blobs"], rows)


@app.command("doctor", epilog="Example: imagefactory doctor --json")
def doctor_command(file: File = HERE, json: Json = False) -> None:
    """What this machine offers for building, and the remedy for what it lacks; exit 3 if it cannot build."""
    findings = doctor.examine(settings_of(file), os.environ)
    if json:
        ui.emit_json([finding.as_dict() for finding in findings])
    else:
        colour = {doctor.Health.GOOD: "green", doctor.Health.NOTE: "yellow", doctor.Health.BAD: "red"}
        rows = [
            [f.name, f"[{colour[f.health]}]{f.health}[/]", ui.escape(f.seen), ui.escape(f.remedy)] for f in findings
        ]
        ui.table("doctor", ["what", "is", "seen", "remedy"], rows)
    if any(finding.health is doctor.Health.BAD for finding in findings):
        raise typer.Exit(3)
