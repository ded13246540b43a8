"""The ``audit`` command: judges locked wheels before anything is built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from imagefactory import audits
from imagefactory.auditing import auditing
from imagefactory.auditing.auditing import Audit
from imagefactory.auditing.gpu_code import Way
from imagefactory.auditing.judging import Extension
from imagefactory.commands.options import HERE, File, Json, Select, workspace_of
from imagefactory.commands.tables import AUDITED
from imagefactory.errors import FactoryError, InputError
from imagefactory.planning.decision import Uncovered
from imagefactory.system import ui

WAYS = {Way.NATIVE: "green", Way.FAMILY: "green", Way.NONE: "dim"}

app = typer.Typer(add_completion=False)


@app.command("audit", epilog="Example: imagefactory audit 'gb10*'")
def audit_command(
    cells: Annotated[
        list[str] | None, typer.Argument(metavar="CELL", help="Cells, as for --select.")
    ] = None,
    file: File = HERE,
    select: Select = None,
    json: Json = False,
) -> None:
    """Check whether the locked wheels of each cell work together, before anything is built.

    Reads symbols, libraries, versions and GPU code of the extensions of vLLM, FlashInfer and
    extras, by ranged requests where the wheels are not on this machine.
    """
    found, uncovered = audits.audit(workspace_of(file), [*(cells or ()), *(select or ())])
    if json:
        ui.emit_json([*(one.as_dict() for one in found), *map(_uncovered, uncovered)])
    else:
        _show(found, uncovered)
    error = _error(found, uncovered)
    if error:
        raise error


def _uncovered(one: Uncovered) -> dict[str, object]:
    problems = [problem.as_dict() for problem in one.problems]
    return {"cell": one.cell.name, "state": "not locked", "problems": problems}


def _error(found: Sequence[Audit], uncovered: Sequence[Uncovered]) -> FactoryError | None:
    """As of the audits; InputError if all that is wrong is the lock."""
    failed = auditing.error(found)
    unlocked = [problem for one in uncovered for problem in one.problems]
    if failed is None:
        return InputError(dict.fromkeys(unlocked)) if unlocked else None
    return type(failed)(dict.fromkeys([*failed.problems, *unlocked]))


def _show(found: Sequence[Audit], uncovered: Sequence[Uncovered]) -> None:
    rows: list[list[ui.Part]] = [
        [
            ui.styled(one.cell, "bold"),
            ui.styled(one.state, AUDITED[one.state]),
            ", ".join(dict.fromkeys(problem.code for problem in one.problems)),
        ]
        for one in found
    ]
    rows += [
        [ui.styled(one.cell.name, "bold"), ui.styled("not locked", "red"), ""] for one in uncovered
    ]
    ui.table("audit", ["cell", "result", "problems"], rows)
    for note in dict.fromkeys(note for one in found for note in one.notes):
        ui.say(f"note: {note}")
    groups: dict[tuple[str, int], list[Extension]] = {}
    for one in found:
        for extension in one.extensions if one.capability else ():
            group = groups.setdefault((extension.wheel, one.capability or 0), [])
            if extension not in group:
                group.append(extension)
    for (wheel, capability), extensions in groups.items():
        _show_gpu_code(wheel, capability, extensions)


def _show_gpu_code(wheel: str, capability: int, extensions: Sequence[Extension]) -> None:
    rows: list[list[ui.Part]] = [
        [
            one.name,
            ui.styled(str(one.way), WAYS.get(one.way or Way.NONE, "")),
            ", ".join(one.targets(capability)),
        ]
        for one in extensions
        if one.gpu.targets or one.gpu.damaged
    ]
    if rows:
        columns = ["extension", "runs as", "code by target"]
        ui.table(f"\nGPU code of {wheel} for sm_{capability}", columns, rows)
