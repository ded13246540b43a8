"""The ``imagefactory patch`` commands."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from imagefactory import ui
from imagefactory.errors import CheckFailedError, InputError, Problem, fail
from imagefactory.patching import catalog, sources, status
from imagefactory.patching.model import State
from imagefactory.patching.sources import SourceTree
from imagefactory.settings import Settings, from_environment
from imagefactory.workspace import Workspace

app = typer.Typer(no_args_is_help=True, help="Patches: measured, not declared.")
HERE = Path("matrix.yaml")
COLOURS = {
    State.NEEDED: "green",
    State.OBSOLETE: "cyan",
    State.NOT_APPLICABLE: "dim",
    State.UNKNOWN: "yellow",
    State.CONFLICT: "red",
    State.BROKEN: "red",
}
File = Annotated[Path, typer.Option("--file", "-f", help="Matrix file; patches are beside it.")]
Json = Annotated[bool, typer.Option("--json", help="JSON on standard output, for programs.")]


@app.command("status", epilog="Example: imagefactory patch status --vllm '>=0.22'")
def status_command(
    file: File = HERE,
    vllm: Annotated[str | None, typer.Option(help="Releases of vLLM, any PEP 440 specifier.")] = None,
    flashinfer: Annotated[str | None, typer.Option(help="Releases of FlashInfer, any PEP 440 specifier.")] = None,
    prove: Annotated[bool, typer.Option("--prove", help="Run every proof again, whatever is kept.")] = False,
    markdown: Annotated[Path | None, typer.Option(metavar="PAGE", help="Write the matrix as a page.")] = None,
    json: Json = False,
) -> None:
    """Measure every patch against every release: needed, obsolete, conflict, broken, n/a or unknown."""
    settings = from_environment(os.environ, file.resolve().parent)
    patches = list(catalog.load(settings.project / "patches").values())
    asked = {"vllm": _specifier("--vllm", vllm), "flashinfer": _specifier("--flashinfer", flashinfer)}
    trees = [tree for project in sorted({p.project for p in patches}) for tree in _trees(project, asked, settings)]
    with ui.step(f"measuring {len(patches)} patches on {len(trees)} releases"):
        rows = status.measure(patches, trees, settings, prove=prove)
    if markdown:
        markdown.write_text(status.markdown(rows, patches), encoding="utf-8")
    if json:
        ui.emit_json([row.as_dict() for row in rows])
    else:
        for project in sorted({row.project for row in rows}):
            _table(project, [row for row in rows if row.project == project])


def _specifier(option: str, text: str | None) -> SpecifierSet | None:
    try:
        return None if text is None else SpecifierSet(text)
    except InvalidSpecifier:
        what = f"{option} {text!r} is no version specifier"
        raise fail(
            InputError, "patch-bad-versions", what, fix="write it as in PEP 440, such as '>=0.22,<0.24'"
        ) from None


def _trees(project: str, asked: dict[str, SpecifierSet | None], settings: Settings) -> list[SourceTree]:
    found = []
    for version in sources.releases(project, asked.get(project), settings):
        with ui.step(f"sources of {project} {version}"):
            found.append(sources.fetch(project, version, settings))
    return found


def _table(project: str, rows: list[status.Measured]) -> None:
    # releases go down and patches across: there are always more releases than a line has room for
    versions = sorted({row.version for row in rows}, key=Version)
    patches = list(dict.fromkeys(row.patch for row in rows))
    states = {(row.patch, row.version): row.state for row in rows}
    lines = [[v, *(f"[{COLOURS[states[p, v]]}]{states[p, v]}[/]" for p in patches)] for v in versions]
    ui.table(f"{project}: patches by release", ["release", *(p.partition("/")[2] for p in patches)], lines)
    for row in rows:
        if row.state.stops_build or row.state is State.UNKNOWN:
            ui.out.print(f"[{COLOURS[row.state]}]{row.patch} on {row.version}[/]: {ui.escape(row.reason)}")


@app.command("check", epilog="Example: imagefactory patch check 'gb10*'")
def check_command(
    cell: Annotated[str, typer.Argument(metavar="CELL", help="A cell, or a selection of cells.")],
    file: File = HERE,
    json: Json = False,
) -> None:
    """Try the whole series of a cell on its sources, as the build does; exit 1 if a patch stops the cell."""
    settings = from_environment(os.environ, file.resolve().parent)
    workspace = Workspace(file, settings)
    found = catalog.load(settings.project / "patches")
    problems, rows = [], []
    for one in workspace.cells([cell]):
        steps = catalog.series(found, one)
        if not steps:
            continue
        tree = sources.fetch("vllm", one.axes["vllm"], settings)
        for step, done in zip(steps, status.apply_to_copy(tree.root, steps), strict=True):
            rows.append({"cell": one.name, "patch": step.patch.name, "state": done.state, "reason": done.detail})
            if State(done.state).stops_build:
                fix = f"see {step.patch.shown}; imagefactory patch status shows the other releases"
                where = str(step.variant.diff) if step.variant else step.patch.shown
                what = f"{one.name}: {step.patch.name} is {done.state}: {done.detail}"
                problems.append(Problem(code=f"patch-{done.state}", where=where, what=what, fix=fix))
    if json:
        ui.emit_json(rows)
    else:
        shown = [
            [r["cell"], r["patch"], f"[{COLOURS[State(r['state'])]}]{r['state']}[/]", ui.escape(r["reason"])]
            for r in rows
        ]
        ui.table("patches", ["cell", "patch", "state", "seen"], shown)
    if problems:
        raise CheckFailedError(problems)
