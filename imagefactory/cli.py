"""The command line: finds commands, and is the only code that catches errors and shows them."""

from __future__ import annotations

import os
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from importlib import import_module
from typing import Annotated, Any, cast

import typer
from typer.core import TyperArgument, TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command

from imagefactory import __version__, commands, redaction
from imagefactory.errors import FactoryError, InputError, SetupError, fail, of_the_machine
from imagefactory.settings import from_environment
from imagefactory.system import shell, signing, ui


class _OnDemand(Mapping[str, Any]):
    """The commands by name; a command's module is loaded when it is looked up.

    Loading all of them takes a tenth of a second, which a build over unchanged cells should not
    spend.
    """

    def __getitem__(self, name: str) -> Any:
        if name not in commands.COMMANDS:
            raise KeyError(name)
        return _plain(get_command(import_module(f"{commands.__name__}.{name}").app))

    def __iter__(self) -> Iterator[str]:
        return iter(commands.COMMANDS)

    def __len__(self) -> int:
        return len(commands.COMMANDS)


#: What help calls the value of an option that has no name of its own for it, by its type.
VALUES = {
    "<path>": "PATH",
    "<str>": "TEXT",
    "<list[str]>": "TEXT",
    "<int range>": "N",
    "<float range>": "SECONDS",
}


def _plain(command: Any) -> Any:
    """``command`` with help that has no boxes, names no Python types and cuts no sentence off."""
    command.rich_markup_mode = None
    command.short_help = (command.help or "").partition("\n\n")[0]
    for parameter in command.params:
        if isinstance(parameter, TyperArgument):
            parameter.display_type_rich = lambda **_: ""  # type: ignore[method-assign]
        elif not (parameter.metavar or parameter.type_descriptor.is_choice):
            parameter.metavar = VALUES.get(parameter.display_type(None))
    for child in getattr(command, "commands", {}).values():
        _plain(child)
    return command


class _Group(TyperGroup):
    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        self.commands = cast("MutableMapping[str, Any]", _OnDemand())


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},  # commands inherit it
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help=(
        "vLLM images for DGX Spark: declared, locked by hash, patched with "
        "proof, built, verified, pushed."
    ),
)

INTERRUPTED, TERMINATED = 130, 143
_STOPPED = {
    INTERRUPTED: ("interrupted", "interrupted"),
    TERMINATED: ("terminated", "stopped by SIGTERM"),
}


def main() -> None:
    """Run a command, show its result and its errors, and exit.

    0 done, 1 a check failed, 2 wrong input, 3 wrong machine, 130 Ctrl-C, 143 SIGTERM. With
    ``--json`` standard output holds one JSON document; see ``system.ui`` for what is in it.
    """
    signal.signal(signal.SIGTERM, _terminated)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure:  # a terminal that cannot show a character gets an escape, not a traceback
            reconfigure(errors="backslashreplace")
    # Python 3.12 and above show them for the sources of others, which several commands parse
    warnings.filterwarnings("ignore", category=SyntaxWarning)
    json = _wants_json(sys.argv[1:])
    try:
        signing.withhold(os.environ)
        _check_output()
        _check_texts()
        shell.LOG.open(from_environment(os.environ).logs / "commands.log")
        code = _run()
        if code not in _STOPPED:
            ui.finish()
    except (FactoryError, OSError) as error:
        known = error if isinstance(error, FactoryError) else of_the_machine(error)
        ui.failure(known)
        _finish(known, known.exit_code, wanted=json)
        sys.exit(known.exit_code)
    except Exception as error:  # noqa: BLE001 - its traceback is shown, without secrets
        bug = fail(FactoryError, "internal-error", f"{type(error).__name__}: {error}", fix=REPORT)
        _finish(bug, bug.exit_code, wanted=json)
        sys.stderr.write(redaction.hide(traceback.format_exc()))
        sys.exit(bug.exit_code)
    if code in _STOPPED:
        name, what = _STOPPED[code]
        ui.say(f"{what}; finished steps are kept, and the next run continues from there")
        _finish(fail(FactoryError, name, what, fix="run it again"), code, wanted=json)
    sys.exit(code)


def _finish(error: FactoryError, code: int, *, wanted: bool) -> None:
    """Write the document of a command that failed, unless that is what failed."""
    try:
        ui.finish(error, code, wanted=wanted)
        sys.stdout.flush()
    except OSError:  # what is left in the buffer would fail again when Python ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _check_output() -> None:
    """Raise SetupError if standard output is closed: a file opened later would become it."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - a number
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - as above
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - as above
        what, fix = "standard output is closed", "redirect it, to /dev/null if it is not wanted"
        raise fail(SetupError, "output-closed", what, fix=fix)


def _check_texts() -> None:
    """Raise SetupError if Python drops docstrings: help is made of them, and files of images."""
    if sys.flags.optimize > 1:
        what, fix = "Python runs with -OO, which would change images", "unset PYTHONOPTIMIZE"
        raise fail(SetupError, "python-oo", what, fix=fix)


REPORT = "this is a bug: report it with the traceback on standard error"


def _run() -> int:
    """Run the command and return its exit code.

    Raises FactoryError, and whatever else the command raises.
    """
    try:
        return int(app(prog_name="imagefactory", standalone_mode=False) or 0)
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except TyperException as error:
        return _misused(error)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)


def _misused(error: TyperException) -> int:
    """Raise InputError for a wrong command line; print the help of a group without a command."""
    text = error.format_message().replace(": Value error, ", ": ")  # as pydantic begins them
    if text.startswith("Usage:"):
        ui.err.print(ui.styled(text, ""))
        return InputError.exit_code
    path = getattr(getattr(error, "ctx", None), "command_path", "imagefactory")
    raise fail(InputError, "usage", text.rstrip("."), fix=f"{path} --help") from None


def _wants_json(argv: Sequence[str]) -> bool:
    """Whether ``--json`` is among the options, which a wrong command line may never get to read."""
    return "--json" in argv[: argv.index("--")] if "--" in argv else "--json" in argv


def _terminated(*_: object) -> None:
    """End as a failure does: the default would leave the programs behind that run for us."""
    sys.exit(TERMINATED)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        ui.line(f"imagefactory {__version__}")
        raise typer.Exit
