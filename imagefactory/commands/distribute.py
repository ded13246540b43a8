"""The ``distribute`` command: verified images to other machines, over ssh or from a registry."""

from __future__ import annotations

from typing import Annotated

import typer

from imagefactory import transfers
from imagefactory.commands.options import HERE, File, Json, Select, check_images, workspace_of
from imagefactory.errors import CheckFailedError
from imagefactory.system import ui
from imagefactory.transport.distributing import Delivered, State

app = typer.Typer(add_completion=False)


@app.command(
    "distribute", epilog="Example: imagefactory distribute spark1 me@spark2 --select flavor=gb10"
)
def distribute_command(
    hosts: Annotated[
        list[str], typer.Argument(metavar="HOST", help="[USER@]HOST[:PORT], as for ssh.")
    ],
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", "-t", metavar="TAG", help="An image of the engine. Repeat for more."),
    ] = None,
    select: Select = None,
    from_registry: Annotated[
        str | None,
        typer.Option(
            "--from-registry",
            metavar="REF",
            help="Let them pull from a registry: an image, or the repository of those named.",
        ),
    ] = None,
    file: File = HERE,
    json: Json = False,
) -> None:
    """Send verified images to the engines of other machines, all at once.

    Each gets only the blobs that it lacks, through ssh, from this machine. Docker has to run there,
    and nothing else. After a cut, it goes on with the layer in which that was. With --from-registry
    the blobs come from a registry, with the account that docker login has kept on this machine;
    after the registry was away for some seconds, such a pull starts over.
    """
    check_images(*(tag or []))
    workspace, named = workspace_of(file), (tag or [], select or [])
    if from_registry is None:
        rows = transfers.distribute(workspace, hosts, *named)
    else:
        rows = transfers.distribute_from_registry(workspace, hosts, from_registry, *named)
    if json:
        ui.emit_json([row.as_dict() for row in rows])
    else:
        ui.table("", ["host", "image", "digest", "", "sent"], [_row(row) for row in rows])
    failed = [problem for row in rows for problem in row.problems]
    if failed:
        raise CheckFailedError(failed)


def _row(one: Delivered) -> list[ui.Part]:
    state = ui.styled("failed", "red") if one.state is State.FAILED else str(one.state)
    sent = f"{ui.size(one.bytes_sent)} in {one.blobs_sent} blobs" if one.bytes_sent else ""
    return [one.host, one.reference, one.digest[:19], state, sent]
