"""The command line: commands are found here, and errors are caught, here and nowhere else."""

from __future__ import annotations

import errno
import signal
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup
from typer.main import get_command

from imagefactory import __version__, commands
from imagefactory.errors import FactoryError, SetupError, fail
from imagefactory.system import ui


class _OnDemand(Mapping[str, Any]):
    """The commands by name; a command's module is loaded when it is asked for.

    What the others bring takes a tenth of a second, which a build over unchanged cells has no use
    for.
    """

    def __getitem__(self, name: str) -> Any:
        if name not in commands.COMMANDS:
            raise KeyError(name)
        return get_command(import_module(f"{commands.__name__}.{name}").app)

    def __iter__(self) -> Iterator[str]:
        return iter(commands.COMMANDS)

    def __len__(self) -> int:
        return len(commands.COMMANDS)


class _Group(TyperGroup):
    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        self.commands = cast("MutableMapping[str, Any]", _OnDemand())


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help=(
        "vLLM images for DGX Spark: declared, locked by hash, patched with "
        "proof, built, verified, pushed."
    ),
)

INTERRUPTED, TERMINATED = 130, 143


def main() -> None:
    """Run a command, show its errors, exit 0 done, 1 a check failed, 2 wrong input.

    3 wrong machine, 130 Ctrl-C.
    """
    signal.signal(signal.SIGTERM, _terminated)
    try:
        app()
    except (FactoryError, OSError) as error:
        known = error if isinstance(error, FactoryError) else _of_the_machine(error)
        ui.failure(known)
        sys.exit(known.exit_code)
    except SystemExit as end:
        if end.code == INTERRUPTED:
            ui.say("interrupted; what was finished stays, and the next run goes on from there")
        raise


def _of_the_machine(error: OSError) -> FactoryError:
    """What the system refused: most often a full disk, or a folder that is not ours to write."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    fix = (
        "imagefactory prune makes room, and what was finished stays"
        if full
        else "check the path and who may write it"
    )
    what = (
        f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
    )
    return fail(SetupError, "disk-full" if full else "system-refused", what, fix=fix)


def _terminated(*_: object) -> None:
    """End as a failure does, so that whatever runs for us is stopped too.

    The default would leave it behind.
    """
    sys.exit(TERMINATED)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        ui.out.print(f"imagefactory {__version__}")
        raise typer.Exit
