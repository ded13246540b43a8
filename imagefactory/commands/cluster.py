"""The ``imagefactory cluster`` commands."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from imagefactory import opening
from imagefactory.cluster import cluster as clusters
from imagefactory.cluster import declaration, following, judging, looking, rules, running
from imagefactory.cluster.cluster import Member, Tunings
from imagefactory.cluster.declaration import Cluster
from imagefactory.cluster.looking import Facts
from imagefactory.cluster.running import Seen
from imagefactory.commands.options import Json, workspace_of
from imagefactory.commands.recipe_check import STOCK
from imagefactory.commands.recipe_target import TUNINGS, files_of_tunings
from imagefactory.errors import CheckFailedError, InputError, fail
from imagefactory.examples import examples
from imagefactory.launching import compose, docker, quadlet
from imagefactory.launching.launching import TUNINGS as INSIDE
from imagefactory.launching.launching import check_cache
from imagefactory.matrix.cell import Cell
from imagefactory.recipes import checking, recipes
from imagefactory.settings import from_environment
from imagefactory.system import files, shell, ssh, ui
from imagefactory.system.engine import Engine
from imagefactory.upkeep.finding import Health
from imagefactory.workspace import Workspace

app = typer.Typer(
    name="cluster",
    add_completion=False,
    no_args_is_help=True,
    help="Serve one model on several machines, reached over ssh.",
)
File = Annotated[Path, typer.Option("--file", "-f", help="The file that declares the cluster.")]
HERE = Path("cluster.yaml")
#: Seconds for the head to serve: a large model is loaded for ten to fifteen minutes.
START_SECONDS = 1800
#: Lines of each container that `logs` prints.
LAST = 50


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
    for member, path, text in rows if not json else ():
        ui.line(str(path) if path else f"# {member.node.host}: {member.role}")
        if not path:
            ui.line(text)
    if tunings := rows[0][0].tunings:
        ui.warn(_by_hand(tunings, file.parent / TUNINGS, rows[0][0].launch.image, to))


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


@app.command("up", epilog="Example: imagefactory cluster up --timeout 3600")
def up_command(
    file: File = HERE,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", metavar="SECONDS", min=1, max=86400, help="Time to load the model."
        ),
    ] = START_SECONDS,
    json: Json = False,
) -> None:
    """Start the containers, and wait until the head serves.

    Tuned kernels in the folder tunings beside the file are put on each node first. What already
    runs as it is declared is left alone. If a container ends meanwhile, its last lines
    are shown and the others are stopped.
    """
    members = read(file)
    for name in members[0].launch.passed_on:
        if name not in os.environ:
            ui.warn(f"{name} is not set here, so containers do not get it")
    _show(running.up(members, _engine_of, timeout=timeout), json=json)
    head = members[0].node
    address = f"[{head.address}]" if ":" in head.address else head.address
    ui.say(f"{head.host} serves at http://{address}:{declaration.load(file).port}/v1")


@app.command("status", epilog="Example: imagefactory cluster status")
def status_command(file: File = HERE, json: Json = False) -> None:
    """Show what runs on each node.

    Exits with 1 if a container does not run or the head does not serve, with 3 if a node does not
    answer.
    """
    seen = running.status(read(file), _engine_of)
    _show(seen, json=json)
    running.raise_errors([one.error for one in seen])
    if not all(one.good for one in seen):
        raise typer.Exit(1)


@app.command("logs", epilog="Example: imagefactory cluster logs --follow --node spark2")
def logs_command(
    file: File = HERE,
    last: Annotated[
        int | None,
        typer.Option(
            *("--last", "--tail", "-n"),
            metavar="N",
            min=1,
            help=f"Lines of each container: {LAST} by default, or all with --since.",
        ),
    ] = None,
    since: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="Only lines of the last 10m or 1h30m, or since 2026-01-31T10:00."
        ),
    ] = "",
    node: Annotated[
        str | None, typer.Option("--node", metavar="HOST", help="Of this node alone.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with new lines, until all containers end.")
    ] = False,
) -> None:
    """Print the last lines of each container, also of those that have ended.

    Exits with 3 if a node does not answer; the lines of the others are printed.
    """
    members = [one for one in read(file) if node in (None, one.node.host)]
    if not members:
        fix = "imagefactory cluster show lists them"
        raise fail(InputError, "cluster-node", f"{file} has no node {node}", fix=fix)

    if since and not following.is_time(since):
        fix = "write 10m, 24h or 2026-01-31T10:00"
        raise fail(InputError, "cluster-since", f"{since!r} is no time", fix=fix)
    lines = last or (None if since else LAST)

    def show(member: Member, text: str) -> None:
        ui.line(f"{member.node.host} | {text}")

    if follow:
        errors = following.follow(members, _engine_of, last=lines, since=since, show=show)
        running.raise_errors(errors)
        return
    answers = running.logs(members, _engine_of, last=lines, since=since)
    for member, found in zip(members, answers, strict=True):
        for text in found.splitlines() if isinstance(found, str) else ():
            show(member, text)
    running.raise_errors(answers)


@app.command("down", epilog="Example: imagefactory cluster down")
def down_command(file: File = HERE, json: Json = False) -> None:
    """Stop and remove the cluster's containers; images, volumes and all else stay.

    Running requests get 30 seconds. Exits with 3 if a node does not answer; its containers stay.
    """
    members = read(file)
    answers = running.down(members, _engine_of)
    pairs = [(m, n) for m, n in zip(members, answers, strict=True) if isinstance(n, int)]
    if json:
        ui.emit_json({"removed": {member.node.host: number for member, number in pairs}})
    else:
        for member, number in pairs:
            ui.line(f"{member.node.host}: {number} removed" if number else f"{member.node.host}: -")
    running.raise_errors(answers)


def _by_hand(tunings: Tunings, folder: Path, image: str, to: Form) -> str:
    """How nodes get tuned kernels that `up` would put there."""
    name = tunings.volume
    there = (
        f"'podman volume create {name} && podman volume import {name} -'"
        if to is Form.QUADLET
        else f"docker run --rm -i -v {name}:{INSIDE} --entrypoint tar {image} -x -C {INSIDE}"
    )
    what = f"tuned kernels are in the volume {name} of each node, where only `cluster up` puts them"
    pack = shell.show(["tar", "-C", str(folder), "-c", "."])
    return f"{what}; otherwise: {pack} | ssh HOST {there}"


def _show(seen: Sequence[Seen], *, json: bool) -> None:
    if json:
        ui.emit_json({"nodes": [_row(one) for one in seen]})
        return
    rows = [[str(value) for value in _row(one).values()] for one in seen]
    ui.table("", list(_row(seen[0])), rows)


def _row(one: Seen) -> dict[str, str | int]:
    found = one.service
    return {
        "host": one.member.node.host,
        "container": one.member.launch.name,
        "role": one.member.role,
        "state": f"exited {found.code}" if found and one.state == "exited" else one.state,
        "health": found.health if found else "",
        "since": found.since[:19].replace("T", " ") if found else "",
    }


def _look(member: Member) -> Facts:
    return looking.look(member, _docker_of)


def _engine_of(host: str) -> Engine:
    """The engine of a node that can be reached."""
    ssh.reach(host)
    return _docker_of(host)


def _docker_of(host: str) -> Engine:
    return Engine.of_machine(host, os.environ, from_environment(os.environ).state)


def read(file: Path) -> tuple[Member, ...]:
    """What the file declares for each node. Raises InputError, and CheckFailedError for a recipe.

    A cell is one of the matrix that lies next to the file.
    """
    found = declaration.load(file)
    if found.image:
        return _members(found, found.image, file.parent)
    matrix = file.parent / "matrix.yaml"
    workspace = workspace_of(matrix)
    cells = {cell.name: cell for cell in opening.declared(workspace).cells}
    cell = cells.get(found.cell or "")
    if cell is None:
        what, fix = f"{matrix} has no cell {found.cell}", "imagefactory plan lists them"
        raise fail(InputError, "cluster-cell", what, where=str(file), fix=fix)
    if found.recipe:
        found = _with_recipe(found, found.recipe, cell, workspace)
    return _members(found, cell.tag, file.parent)


def _members(found: Cluster, image: str, project: Path) -> tuple[Member, ...]:
    tuned = files_of_tunings(project / TUNINGS)
    members = clusters.members(found, image, Tunings(tuned) if tuned else None)
    for one in members:
        check_cache(one.launch)
    return members


def _with_recipe(found: Cluster, name: str, cell: Cell, workspace: Workspace) -> Cluster:
    """The cluster with what its recipe says for the cell's vLLM, which is checked first."""
    recipe = recipes.find(name, workspace.recipes, STOCK)
    count = len(found.nodes)
    if count not in recipe.nodes or not recipe.is_for(cell):
        numbers = " or ".join(map(str, recipe.nodes))
        what = (
            f"recipe {name} is for {numbers} node{'s' * (numbers != '1')}, not {count}"
            if count not in recipe.nodes
            else f"recipe {name} is not for cell {cell.name}"
        )
        fix = f"imagefactory recipe show {name}"
        raise fail(InputError, "cluster-recipe", what, where=found.file, fix=fix)
    checked = checking.against_cells([recipe], opening.read(workspace), only=cell.name)
    if problems := [one for row in checked if row.nodes == count for one in row.problems]:
        raise CheckFailedError(dict.fromkeys(problems))
    setup = recipe.on(cell.vllm, count)
    own = {key: one for key, one in setup.options.items() if f"--{key}" not in rules.DERIVED}
    args = replace(setup, options=own).arguments
    return clusters.serving(found, recipe.model, args, setup.env, recipe.user)
