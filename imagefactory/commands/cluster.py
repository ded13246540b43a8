"""The ``imagefactory cluster`` commands."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from imagefactory import opening
from imagefactory.cluster import cluster as clusters
from imagefactory.cluster import declaration, judging, looking
from imagefactory.cluster.cluster import Member
from imagefactory.cluster.looking import Facts
from imagefactory.commands.options import Json, workspace_of
from imagefactory.errors import InputError, fail
from imagefactory.examples import examples
from imagefactory.launching import compose, docker, quadlet
from imagefactory.settings import from_environment
from imagefactory.system import files, ui
from imagefactory.system.engine import Engine
from imagefactory.upkeep.finding import Health

app = typer.Typer(
    name="cluster",
    add_completion=False,
    no_args_is_help=True,
    help="Serve one model on several machines, reached over ssh.",
)
File = Annotated[Path, typer.Option("--file", "-f", help="The file that declares the cluster.")]
HERE = Path("cluster.yaml")


class Form(StrEnum):
    """What starts the containers of a node."""

    DOCKER = "docker"
    COMPOSE = "compose"
    QUADLET = "quadlet"


#: How each form is written, and the end of its file's name.
_FORMS = {
    Form.DOCKER: (docker.text, ".sh"),
    Form.COMPOSE: (compose.text, ".compose.yaml"),
    Form.QUADLET: (quadlet.text, ".container"),
}


@app.command("init", epilog="Example: imagefactory cluster init")
def init_command(file: File = HERE, json: Json = False) -> None:
    """Write an example with comments, for two DGX Sparks."""
    if file.exists():
        what, fix = f"{file} exists already", "edit it, or name another one: --file"
        raise fail(InputError, "cluster-exists", what, fix=fix)
    files.write_text(file, examples.cluster())
    if json:
        ui.emit_json({"written": str(file)})
        return
    ui.line(str(file))
    ui.say("edit it, then run: imagefactory cluster show && imagefactory cluster check")


@app.command("show", epilog="Example: imagefactory cluster show --to compose --output nodes")
def show_command(
    file: File = HERE,
    to: Annotated[Form, typer.Option("--to", help="What starts the containers.")] = Form.DOCKER,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Write a file for each node there."),
    ] = None,
    json: Json = False,
) -> None:
    """Show what runs on each node; nothing is started, and no node is asked.

    Containers are not privileged: they have no capabilities, and get no new ones.
    """
    write, ending = _FORMS[to]
    rows = []
    for member in read(file):
        path = output / f"{member.launch.name}{ending}" if output else None
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write_text(path, write(member.launch))
        rows.append((member, path, write(member.launch)))
    if json:
        ui.emit_json(
            [
                {
                    "host": member.node.host,
                    "rank": member.rank,
                    "name": member.launch.name,
                    "file": str(path) if path else None,
                    "text": text,
                }
                for member, path, text in rows
            ]
        )
        return
    for member, path, text in rows:
        ui.line(str(path) if path else f"# {member.node.host}: {member.role}")
        if not path:
            ui.line(text)


@app.command("check", epilog="Example: imagefactory cluster check")
def check_command(file: File = HERE, json: Json = False) -> None:
    """Check over ssh whether the nodes can serve the model together; nothing is changed.

    Image, driver, network, RDMA, memory and clock of each node, and what to do about each problem.
    Exits with 1 if something is wrong, with 3 if a node does not answer.
    """
    members = read(file)
    found = judging.judge(members, looking.everywhere(members, _look))
    if json:
        ui.emit_json(
            [
                {"host": one.member.node.host, **finding.as_dict()}
                for one in found
                for finding in one.findings
            ]
        )
    else:
        colour = {Health.GOOD: "green", Health.NOTE: "yellow", Health.BAD: "red"}
        rows: list[list[ui.Part]] = [
            [one.member.node.host, f.name, ui.styled(f.health, colour[f.health]), f.seen, f.remedy]
            for one in found
            for f in one.findings
        ]
        ui.table("", ["node", "check", "status", "found", "remedy"], rows)
    if not all(one.reached for one in found):
        raise typer.Exit(3)
    if any(finding.health is Health.BAD for one in found for finding in one.findings):
        raise typer.Exit(1)


def _look(member: Member) -> Facts:
    return looking.look(member, _engine_of)


def _engine_of(host: str) -> Engine:
    return Engine.of_machine(host, os.environ, from_environment(os.environ).state)


def read(file: Path) -> tuple[Member, ...]:
    """What the file declares for each node. Raises InputError."""
    found = declaration.load(file)
    return clusters.members(found, found.image or _image_of(found.cell or "", file))


def _image_of(name: str, file: Path) -> str:
    """The image of a cell of the matrix that lies next to the cluster's file."""
    matrix = file.parent / "matrix.yaml"
    cells = {cell.name: cell for cell in opening.declared(workspace_of(matrix)).cells}
    if name not in cells:
        what = f"{matrix} has no cell {name}"
        raise fail(
            InputError, "cluster-cell", what, where=str(file), fix="imagefactory plan lists them"
        )
    return cells[name].tag
