"""The command line: thin functions over the stations; errors are caught here and nowhere else."""

from __future__ import annotations

import os
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from imagefactory import __version__, doctor, port_cli, push, receipt, ui
from imagefactory import build as building
from imagefactory.engine import Engine
from imagefactory.errors import CheckFailedError, FactoryError, InputError, Problem, SetupError, fail
from imagefactory.locking import station as locking
from imagefactory.locking import store
from imagefactory.matrix.explain import explain
from imagefactory.patching.model import State
from imagefactory.plan import CellPlan
from imagefactory.settings import Settings, from_environment
from imagefactory.verify import junit
from imagefactory.verify import station as verifying
from imagefactory.workspace import Row, Workspace, decide

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="vLLM images for DGX Spark: declared, locked by hash, patched with proof, built, verified, pushed.",
)

app.add_typer(port_cli.app, name="patch")

INTERRUPTED, TERMINATED = 130, 143
HERE = Path("matrix.yaml")
File = Annotated[Path, typer.Option("--file", "-f", help="Matrix file; lock, patches and templates are beside it.")]
Select = Annotated[
    list[str] | None,
    typer.Option(
        "--select", "-s", help="Cells: a name glob, or axis=value terms: 'flavor=gb10 vllm=0.3*'. Repeat for OR."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="JSON on standard output, for programs.")]


def main() -> None:
    """Run a command, show its errors, exit 0 done, 1 a check failed, 2 wrong input, 3 wrong machine, 130 Ctrl-C."""
    signal.signal(signal.SIGTERM, _terminated)
    try:
        app()
    except FactoryError as error:
        ui.failure(error)
        sys.exit(error.exit_code)
    except SystemExit as end:
        if end.code == INTERRUPTED:
            ui.say("interrupted; what was finished stays, and the next run goes on from there")
        raise


def _terminated(*_: object) -> None:
    """End as a failure does, so that whatever runs for us is stopped too; the default would leave it behind."""
    sys.exit(TERMINATED)


def _settings(file: Path) -> Settings:
    return from_environment(os.environ, file.resolve().parent)


def _workspace(file: Path) -> Workspace:
    return Workspace(file, _settings(file))


def _engine(settings: Settings) -> Engine:
    return Engine.connect(os.environ, settings.state)


def _engine_if_any(settings: Settings) -> Engine | None:
    try:
        return _engine(settings)
    except SetupError:
        return None


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
    workspace = _workspace(file)
    if explained:
        _explain(workspace, explained, json=json)
        return
    engine = _engine_if_any(workspace.settings)
    cells = workspace.cells(select or [])
    rows = decide(workspace.plans(cells, workspace.look(cells, engine)), engine)
    if json:
        ui.emit_json([row.as_dict() for row in rows])
    else:
        _show_plan(rows)


def _explain(workspace: Workspace, name: str, *, json: bool) -> None:
    rows = [row for cell in workspace.cells([name]) for row in explain(cell)]
    if json:
        ui.emit_json([dict(zip(("what", "value", "where", "section"), row, strict=True)) for row in rows])
    else:
        ui.table(name, ["what", "value", "where", "section"], [[ui.escape(text) for text in row] for row in rows])


def _show_plan(rows: list[Row]) -> None:
    colour = {"build": "yellow", "skip": "green"}
    ui.table(
        "plan",
        ["cell", "platform", "action", "build key", "why"],
        [
            [
                f"[bold]{row.plan.cell.name}[/bold]\n[dim]{row.plan.cell.tags[0]}[/dim]",
                row.plan.cell.platform,
                f"[{colour[row.action]}]{row.action}[/]",
                row.plan.build_key[:12],
                ui.escape(row.reason),
            ]
            for row in rows
        ],
    )


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
    workspace = _workspace(file)
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
    workspace = _workspace(file)
    engine = _engine_if_any(workspace.settings)
    cells = workspace.cells(select or [])
    found = workspace.look_everywhere(cells, engine)
    plans = workspace.plans(cells, found)
    if out is None:
        for plan in plans:
            sys.stdout.write(plan.dockerfile)
        return
    path = workspace.write_bake(out.resolve(), plans, found, engine.platform if engine else cells[0].platform)
    ui.say(f"wrote {path}; build it with: docker buildx bake -f {path}")


@app.command("build", epilog="Example: imagefactory build --matrix --select flavor=cpu")
def build_command(
    path: Annotated[Path, typer.Argument(metavar="[FILE]", help="Matrix file.")] = HERE,
    matrix: Annotated[bool, typer.Option("--matrix", help="Build the cells of the matrix file (matrix.yaml).")] = False,
    select: Select = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan; build nothing.")] = False,
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Leave out the verification at the end.")] = False,
    json: Json = False,
) -> None:
    """Build what changed, in one bake, and verify it."""
    if not matrix:
        fix = "imagefactory build --matrix [FILE] [--select EXPR]"
        raise fail(InputError, "build-what", "say what to build", fix=fix)
    workspace = _workspace(path)
    engine = _engine(workspace.settings)
    cells = workspace.cells(select or [])
    workspace.plans(cells, workspace.look_everywhere(cells, engine))  # what is wrong is told before anything is made
    found = workspace.look_everywhere(cells, engine) if dry_run else workspace.ensure(cells, engine)
    rows = decide(workspace.plans(cells, found), engine)
    if not json:
        _show_plan(rows)
    plans = [row.plan for row in rows if row.action == "build"]
    if dry_run:
        if json:
            ui.emit_json([row.as_dict() for row in rows])
        return
    stopped = _stopped_by_patches(workspace, plans)
    plans = [plan for plan in plans if plan.cell.name not in stopped]
    results: list[building.BuildResult] = []
    if plans:
        bakefile = workspace.write_bake(workspace.contexts, plans, found, engine.platform)
        results = building.bake(engine, plans, bakefile, workspace.settings.logs)
    built = {result.cell: result for result in results}
    good = [r.plan.cell.tags[0] for r in rows if r.action == "skip" or _is_built(built.get(r.plan.cell.name))]
    receipts = [] if no_verify else _verify_all(workspace, engine, good, show=not json, unless_receipt=True)
    if json:
        ui.emit_json([_build_row(row, built.get(row.plan.cell.name), stopped) for row in rows])
    else:
        _show_results(rows, built, stopped)
    _judge(results, receipts, [problem for problems in stopped.values() for problem in problems])


def _stopped_by_patches(workspace: Workspace, plans: list[CellPlan]) -> dict[str, tuple[Problem, ...]]:
    """The cells that a patch stops, and why; told before anything is built."""
    try:
        done = workspace.try_series([(plan.cell, plan.series) for plan in plans])
    except SetupError as error:
        ui.warn(f"patches are tried in the builder only: {error.problems[0].what}")
        return {}
    for row in (row for one in done for row in one.rows if row.state is State.OBSOLETE):
        ui.say(f"{row.patch} is obsolete on {row.project} {row.version}, and left out: {row.reason}")
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
            end, note = ("[red]stopped[/]", stopped[name][0].code) if name in stopped else ("[green]unchanged[/]", "")
        else:
            end = "[green]built[/]" if result.ok else "[red]failed[/]"
            note = f"{result.seconds:.0f} s" if result.ok else f"log: {result.log}"
        table.append([f"[bold]{name}[/bold]", end, note, row.plan.cell.tags[0]])
    ui.table("build", ["cell", "result", "", "image"], table)


def _judge(
    results: list[building.BuildResult], receipts: list[receipt.Receipt], stopped: list[Problem] | None = None
) -> None:
    """Raise for everything that is not as it should be, so that the exit code says so."""
    problems = stopped or []
    problems += [
        Problem(code="build-failed", where=r.cell, what=f"{r.error} (log: {r.log})", fix=f"reproduce: {r.reproduce}")
        for r in results
        if not r.ok
    ]
    for one in receipts:
        bad = [check for check in one.checks if check.required and check.outcome is not receipt.Outcome.PASS]
        problems += [
            Problem(code="check-failed", where=one.tag, what=f"{check.name}: {check.detail}", fix="see docs/verify.md")
            for check in bad
        ]
    if problems:
        raise CheckFailedError(problems)


def _verify_all(
    workspace: Workspace, engine: Engine, tags: list[str], *, show: bool, unless_receipt: bool = False
) -> list[receipt.Receipt]:
    """Verify images one after the other; an image whose exact digest has passed already can be left as it is."""
    lock = workspace.lock if workspace.lock_file.exists() else None
    done = []
    for tag in tags:
        digest = engine.inspect_image(tag).digest
        known = receipt.load(workspace.settings.receipts, digest)
        if unless_receipt and known and known.passed:
            ui.say(f"{tag}: {digest[:19]} was verified on {known.verified_at}; imagefactory verify does it again")
            continue
        made = verifying.verify(tag, engine=engine, lock=lock, settings=workspace.settings, now=datetime.now(UTC))
        receipt.save(workspace.settings.receipts, made)
        done.append(made)
        if show:
            verifying.render_table(made)
    return done


@app.command("verify", epilog="Example: imagefactory verify imagefactory/vllm:cpu-vllm0.32.0 --junit report.xml")
def verify_command(
    tags: Annotated[
        list[str] | None, typer.Argument(metavar="[TAG]...", help="Images; or name cells with --select.")
    ] = None,
    file: File = HERE,
    select: Select = None,
    junit_file: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML.")] = None,
    json: Json = False,
) -> None:
    """Run an image in containers and judge it; exit 1 if a required check fails."""
    workspace = _workspace(file)
    engine = _engine(workspace.settings)
    names = list(tags or []) or [cell.tags[0] for cell in workspace.cells(select or [])]
    receipts = _verify_all(workspace, engine, names, show=not json)
    if junit_file:
        junit.write(junit_file, *receipts)
    if json:
        ui.emit_json([one.as_dict() for one in receipts])
    _judge([], receipts)


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
    workspace = _workspace(file)
    engine = _engine(workspace.settings)
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
    findings = doctor.examine(_settings(file), os.environ)
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
