"""The ``history`` command: which images a moving tag named."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from imagefactory import workflows
from imagefactory.commands.options import HERE, File, Json, Repository, workspace_of
from imagefactory.publishing.moving import LAST, Move, State
from imagefactory.system import ui

app = typer.Typer(add_completion=False)
_COLOURS = {State.CURRENT: "green", State.PAST: "", State.UNFINISHED: "yellow"}


@app.command("history", epilog="Example: imagefactory history nightly --last 30")
def history_command(
    tag: Annotated[str, typer.Argument(metavar="TAG", help="A moving tag.")],
    last: Annotated[
        int, typer.Option("--last", metavar="N", min=1, help="Show this many moves.")
    ] = LAST,
    file: File = HERE,
    repository: Repository = None,
    json: Json = False,
) -> None:
    """Show which images a moving tag named, the newest first, as the registry records it."""
    moves = workflows.history(workspace_of(file), tag, repository, last)
    if json:
        ui.emit_json([asdict(move) for move in moves])
        return
    if not moves:
        ui.say(f"{tag} never named an image")
        return
    columns = ["n", "when", "image", "digest", "state", "by"]
    # of moves by other machines, only what the registry keeps is known
    shown = columns if any(move.by for move in moves) else columns[:-1]
    ui.table(tag, shown, [_row(move)[: len(shown)] for move in moves])


def _row(move: Move) -> list[ui.Part]:
    return [
        "" if move.number is None else str(move.number),
        move.at or "unknown",
        move.image or "unknown",
        move.digest[:19],
        ui.styled(move.state, _COLOURS.get(move.state, "red")),
        f"{move.action} by {move.by}" if move.by else "",
    ]
