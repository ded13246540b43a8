"""The ``bisect`` command: finds the first version of vLLM that breaks a cell."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from imagefactory.commands.options import HERE, File, Json, workspace_of
from imagefactory.nightly import bisect
from imagefactory.nightly.bisect import COMPARE, Found
from imagefactory.system import ui

app = typer.Typer(add_completion=False)


@app.command("bisect", epilog="Example: imagefactory bisect gb10-vllm0-33-0-* --bad 0.34.0.dev9")
def bisect_command(
    cell: Annotated[str, typer.Argument(metavar="CELL", help="A cell, as for --select.")],
    bad: Annotated[
        str, typer.Option("--bad", metavar="VERSION", help="A version of vLLM that breaks it.")
    ],
    good: Annotated[
        str | None,
        typer.Option(
            "--good", metavar="VERSION", help="One that does not; the cell's own if left."
        ),
    ] = None,
    file: File = HERE,
    max_tries: Annotated[
        int, typer.Option("--max-tries", metavar="N", min=2, help="Try at most N versions.")
    ] = 12,
    max_minutes: Annotated[
        float | None,
        typer.Option(
            "--max-minutes", metavar="M", min=0, help="Try no further one after this many minutes."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Find the first version of vLLM that breaks a cell: its lock, or its patches.

    The versions that the index has between a good and a bad one are tried in a copy of the
    project, nightly wheels among them. Nothing is built.
    """
    found = bisect.run(
        workspace_of(file),
        cell,
        (good, bad),
        datetime.now(UTC),
        most=max_tries,
        minutes=max_minutes,
    )
    if json:
        ui.emit_json(_as_dict(found))
    else:
        _show(found)


def _as_dict(found: Found) -> dict[str, object]:
    rows = [
        {
            "version": str(one.version),
            "outcome": one.outcome,
            "step": one.step,
            "problems": [problem.as_dict() for problem in one.problems],
        }
        for one in found.trials
    ]
    return {
        "good": str(found.good),
        "bad": str(found.bad),
        "between": [str(one) for one in found.between],
        "commits": found.commits,
        "compare": f"{COMPARE}{found.commits}",
        "trials": rows,
    }


def _show(found: Found) -> None:
    first = "the first bad version" if not found.between else "the first that is known to be bad"
    ui.line(f"{found.bad} is {first}; {found.good} is good")
    for problem in found.why.problems:
        ui.line(f"  {found.why.step}: {problem.what}")
    ui.line(f"commits: {COMPARE}{found.commits}")
    if found.between:
        ui.line(f"not tried, or not to be tried: {', '.join(map(str, found.between))}")
