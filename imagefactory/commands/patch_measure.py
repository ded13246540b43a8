"""The ``imagefactory patch`` commands that list and measure patches: list, status, check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from imagefactory import opening, workflows
from imagefactory.commands.options import HERE, File, Json, workspace_of
from imagefactory.errors import CheckFailedError, InputError, fail
from imagefactory.patching import catalog, sources, status
from imagefactory.patching.measure import Bench, Measured
from imagefactory.patching.patch import Origin, Patch, State
from imagefactory.patching.sources import SourceTree
from imagefactory.settings import Settings
from imagefactory.system import files, ui

app = typer.Typer(add_completion=False)
COLOURS = {
    State.NEEDED: "green",
    State.DECLARED: "green",
    State.UNPROVEN: "bold yellow",
    State.OBSOLETE: "cyan",
    State.NOT_APPLICABLE: "dim",
    State.UNKNOWN: "yellow",
    State.CONFLICT: "bold red",
    State.MISSING: "yellow",
    State.BROKEN: "bold red",
}
#: Short forms for the narrow columns of the table; the states are spelled out below it.
SHORT = {State.NOT_APPLICABLE: "n/a", State.UNKNOWN: "?"}


@app.command("status", epilog="Example: imagefactory patch status --vllm '>=0.22' --json")
def status_command(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="PATCH", help="Patches; by default all.")
    ] = None,
    file: File = HERE,
    vllm: Annotated[str | None, typer.Option(help="vLLM releases, as a PEP 440 specifier.")] = None,
    flashinfer: Annotated[
        str | None,
        typer.Option(help="FlashInfer releases; by default those that the vLLM releases pin."),
    ] = None,
    prove: Annotated[
        bool, typer.Option("--prove", help="Run every proof again and ignore cached results.")
    ] = False,
    markdown: Annotated[
        Path | None, typer.Option(metavar="PAGE", help="Also write the results to this page.")
    ] = None,
    json: Json = False,
) -> None:
    """Measure every patch, or those that are named, on every release.

    A patch is needed, declared (sources do not show whether it is needed), obsolete, conflict,
    broken, unproven (it applies, and has no proof), not applicable (n/a) or unknown (?). It is a
    fix, unless the table says otherwise.
    """
    workspace = workspace_of(file)
    settings = workspace.settings
    known = catalog.load(*workspace.patches)
    wanted = dict.fromkeys(names or known)
    patches = [catalog.find(known, name) for name in wanted]
    if markdown:
        files.check_target(markdown)
    specifiers = {
        "vllm": _specifier("--vllm", vllm),
        "flashinfer": _specifier("--flashinfer", flashinfer),
    }
    bench = opening.bench(workspace, patches, fresh=prove)
    rows = _measured(patches, specifiers, bench, settings)
    if markdown:
        files.write_text(markdown, status.markdown(rows, patches))
    by_name = {patch.name: patch for patch in patches}
    if json:
        ui.emit_json([_row(row, by_name[row.patch]) for row in rows])
        return
    rows = status.shown(rows)
    for project in sorted({row.project for row in rows}):
        _matrix(project, [row for row in rows if row.project == project], by_name)
    _stories(rows, by_name)


def _row(row: Measured, patch: Patch) -> dict[str, str]:
    return {**row.as_dict(), "kind": patch.kind_on(row.version), "origin": patch.origin}


@app.command("list", epilog="Example: imagefactory patch list --json")
def list_command(file: File = HERE, json: Json = False) -> None:
    """List the patches: what each is for, and the releases that it has a diff for."""
    patches = catalog.load(*workspace_of(file).patches).values()
    rows = [
        {
            "patch": patch.name,
            "kind": _kind(patch),
            "versions": "; ".join(_range(variant.versions) for variant in patch.variants),
            "origin": patch.origin.value,
            "summary": patch.summary,
        }
        for patch in patches
    ]
    if json:
        ui.emit_json(rows)
        return
    columns = ["patch", "kind", "versions", "origin", "summary"]
    ui.table("patches", columns, [[row[column] for column in columns] for row in rows])


def _kind(patch: Patch) -> str:
    if patch.draft:
        return "draft"
    return "unproven" if patch.unproven else patch.kind.value


def _range(versions: SpecifierSet) -> str:
    """A specifier with its lower bound first."""
    return ",".join(sorted(map(str, versions), key=lambda text: (text[:1] == "<", text)))


def _specifier(option: str, text: str | None) -> SpecifierSet | None:
    try:
        return None if text is None else SpecifierSet(text)
    except InvalidSpecifier:
        what = f"{option} {text!r} is not a version specifier"
        fix = "write a PEP 440 specifier, such as '>=0.22,<0.24'"
        raise fail(InputError, "patch-bad-versions", what, fix=fix) from None


def _measured(
    patches: Sequence[Patch],
    specifiers: Mapping[str, SpecifierSet | None],
    bench: Bench,
    settings: Settings,
) -> list[Measured]:
    """The state of each patch on every release of its project.

    A project that vLLM pins is measured at those versions. Raises InputError for a specifier that
    no release matches.
    """
    trees: list[SourceTree] = []

    def source(project: str, version: str) -> SourceTree:
        trees.append(sources.fetch(project, version, settings))
        return trees[-1]

    rows: list[Measured] = []
    for project in sorted({patch.project for patch in patches}, key=lambda name: name != "vllm"):
        own = [patch for patch in patches if patch.project == project]
        wanted = specifiers.get(project)
        versions = [] if wanted else sources.pinned(project, trees)
        versions = versions or sources.releases(project, wanted, settings)
        if not versions:
            last = sources.releases(project, None, settings)[-1:]
            what = f"no release of {project} matches {str(wanted)!r}"
            fix = f"the newest release is {last[0]}" if last else "imagefactory doctor"
            raise fail(InputError, "patch-no-release", what, where=f"--{project}", fix=fix)
        pairs = [(project, version) for version in versions]
        with ui.step(f"measuring {len(own)} patches on {len(pairs)} releases of {project}"):
            done, failed = status.measure_as_fetched(own, pairs, source, bench, ui.say)
        for (_, version), why in failed.items():
            ui.warn(f"{project} {version} is not measured: {why}")
        rows += [*done, *status.without_sources(own, failed)]
    return status.by_patch(rows)


def _matrix(project: str, rows: Sequence[Measured], known: Mapping[str, Patch]) -> None:
    """Show patches by release, in as many tables as the terminal's width requires."""
    versions = sorted({row.version for row in rows}, key=Version)
    patches = list(dict.fromkeys(row.patch for row in rows))
    states = {(row.patch, row.version): row.state for row in rows}
    width = max(len(name) for name in patches) - len(project)
    fit = max((ui.out.width - width - 16) // 11, 1)
    for start in range(0, len(versions), fit):
        shown = versions[start : start + fit]
        lines = [
            [
                name.partition("/")[2],
                known[name].kind.value,
                *(_cell(states[name, version]) for version in shown),
            ]
            for name in patches
        ]
        title = f"{project}: patches by release" if not start else ""
        ui.table(title, ["patch", "kind", *shown], lines)


def _cell(state: State) -> ui.Part:
    return ui.styled(SHORT.get(state, state.value), COLOURS[state])


def _stories(rows: Sequence[Measured], patches: Mapping[str, Patch]) -> None:
    lines = []
    # worth a column only where patches come from two folders
    mixed = any(patch.origin is not Origin.STOCK for patch in patches.values())
    for name in dict.fromkeys(row.patch for row in rows):
        own, patch = [row for row in rows if row.patch == name], patches[name]
        origin = [patch.origin.value] if mixed else []
        lines.append(
            [
                name,
                status.history(own, patch),
                patch.kind.value,
                patch.proof.kind if patch.proof else "none",
                _age(own),
                *origin,
            ]
        )
    columns = ["patch", "measured", "kind", "proof", "oldest result", *(["from"] if mixed else [])]
    ui.table("summary", columns, lines)
    for row in rows:
        if row.state.stops_build or row.state is State.UNKNOWN:
            shown = ui.styled(f"{row.patch} on {row.version}", COLOURS[row.state])
            ui.line(shown, f": {row.reason}")


def _age(rows: Sequence[Measured]) -> str:
    """How long ago the oldest of ``rows`` was measured."""
    times = [row.measured_at for row in rows if row.measured_at]
    if not times:
        return ""
    seconds = int((datetime.now(UTC) - datetime.fromisoformat(min(times))).total_seconds())
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{seconds // length} {unit} ago"
    return "now"


@app.command("check", epilog="Example: imagefactory patch check 'gb10*'")
def check_command(
    cell: Annotated[str, typer.Argument(metavar="CELL", help="A cell, or a selection of cells.")],
    file: File = HERE,
    json: Json = False,
) -> None:
    """Try the whole patch series of a cell on its sources, as a build would.

    Exits with 1 if a patch would stop the build.
    """
    done = workflows.check_patches(workspace_of(file), [cell])
    if json:
        ui.emit_json([{"cell": one.cell, **row.as_dict()} for one in done for row in one.rows])
    else:
        lines = [
            [one.cell, row.patch, _cell(row.state), row.reason] for one in done for row in one.rows
        ]
        ui.table("patches", ["cell", "patch", "state", "details"], lines)
    problems = [problem for one in done for problem in one.problems]
    if problems:
        raise CheckFailedError(problems)
