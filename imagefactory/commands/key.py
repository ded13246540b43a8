"""The ``key`` commands: keys that sign receipts, and those whose signatures count."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from imagefactory.commands.options import HERE, File, Json, workspace_of
from imagefactory.errors import InputError, SetupError, fail
from imagefactory.system import files, people, signing, ui
from imagefactory.system.signing import PublicKey
from imagefactory.verifying.receipt_store import TRUSTED

app = typer.Typer(
    name="key",
    add_completion=False,
    no_args_is_help=True,
    help="Make and trust the keys that sign receipts.",
)


@app.command("new", epilog="Example: imagefactory key new --comment ci@example.org")
def new_command(
    comment: Annotated[
        str | None, typer.Option("--comment", help="Whose key it is; by default USER@HOST.")
    ] = None,
    json: Json = False,
) -> None:
    """Make the key of this user. Every verification signs its receipt with it from then on."""
    path = signing.key_file(os.environ)
    if path is None:
        raise fail(SetupError, "no-home", "neither HOME nor XDG_CONFIG_HOME is set", fix="set HOME")
    owner = comment if comment is not None else people.me()
    made = signing.new_signer(path, signing.printable(owner))
    if json:
        ui.emit_json({**_row(made.key), "file": str(path)})
        return
    ui.line(made.key.line)
    ui.say(f"{path} is the private half; the line above is for others: imagefactory key trust")


@app.command("show", epilog="Example: imagefactory key show > spark.pub")
def show_command(json: Json = False) -> None:
    """Print the public half of this machine's key, for `key trust` elsewhere."""
    found = signing.find_signer(os.environ)
    if found is None:
        raise fail(InputError, "no-key", "this machine has no key", fix="imagefactory key new")
    if json:
        ui.emit_json(_row(found.key))
    else:
        ui.line(found.key.line)


@app.command("trust", epilog="Example: imagefactory key trust spark.pub")
def trust_command(
    key: Annotated[
        str, typer.Argument(metavar="FILE|LINE", help="A public key, as `key show` prints it.")
    ],
    file: File = HERE,
    json: Json = False,
) -> None:
    """Let receipts count in this project that a key has signed. Remove its line to end that."""
    workspace = workspace_of(file)
    if not workspace.project.is_dir():
        what, fix = f"{workspace.project} is no folder", "name the matrix with --file"
        raise fail(InputError, "no-project", what, fix=fix)
    is_line = key.startswith(signing.KIND)
    new = signing.parse_keys(key, "LINE") if is_line else _read(Path(key))
    path = workspace.project / TRUSTED
    known = signing.read_keys(path)
    added = [one for one in new if one not in known]
    if added:
        text = files.read_text(path, signing.LARGEST_KEYS) if path.exists() else ""
        text += "" if not text or text.endswith("\n") else "\n"
        files.write_text(path, text + "".join(f"{one.line}\n" for one in added))
    if json:
        ui.emit_json([{**_row(one), "added": one in added} for one in new])
        return
    for one in new:
        ui.line(f"{one} {'counts now' if one in added else 'counted already'} ({path})")


@app.command("list", epilog="Example: imagefactory key list --json")
def list_command(file: File = HERE, json: Json = False) -> None:
    """List the keys whose signatures count in this project."""
    path = workspace_of(file).project / TRUSTED
    trust = signing.trust(os.environ, path)
    own = trust.signer.key if trust.signer else None
    rows = [{**_row(one), "own": one == own} for one in trust.keys]
    if json:
        ui.emit_json(rows)
    elif not rows:
        ui.say("there is no key: receipts are not signed, and unsigned ones count")
    else:
        shown = [[one.id, one.comment, "own" if one == own else TRUSTED] for one in trust.keys]
        ui.table("", ["key", "whose", "from"], shown)


def _read(path: Path) -> tuple[PublicKey, ...]:
    found = signing.read_keys(path)
    if not found:
        what, fix = f"{path} has no public key", "name a file that imagefactory key show has made"
        raise fail(InputError, "trusted-key", what, fix=fix)
    return found


def _row(key: PublicKey) -> dict[str, object]:
    return {"id": key.id, "comment": key.comment, "line": key.line}
