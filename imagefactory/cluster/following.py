"""Follows the logs of a cluster's containers, until they end."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from datetime import datetime
from queue import Queue
from threading import Event, Thread

from imagefactory.cluster.cluster import Member
from imagefactory.cluster.looking import EngineOf, everywhere
from imagefactory.errors import FactoryError
from imagefactory.system import ssh, ui
from imagefactory.system.engine import Engine, Service

#: Seconds between questions whether a node is there, and questions in a row that it may miss.
ASK, MISSES = 15.0, 1
#: Lines that wait to be shown, and characters after which a line goes on as another one.
WAITING, LONGEST = 1000, 65536

#: Times as Docker takes them: a duration of Go, seconds of Unix, or a date.
_DURATION = r"(?:[0-9]+(?:\.[0-9]+)?(?:ns|us|µs|ms|s|m|h))+"
_UNIX = r"[0-9]{1,10}(?:\.[0-9]{1,9})?"
_DATE = (
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}(?:T[0-9]{2}(?::[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?)?)?)"
    r"(?:Z|[+-][0-9]{2}:[0-9]{2})?"
)

#: A line of a node's log; None at its end.
_Lines = Queue[tuple[Member, str | None]]


def is_time(text: str) -> bool:
    """Whether Docker takes ``text`` as the time since which a log is shown."""
    date = re.fullmatch(_DATE, text)
    if date is None:
        return re.fullmatch(f"{_DURATION}|{_UNIX}", text) is not None
    try:
        datetime.fromisoformat(date[1])
    except ValueError:
        return False
    return True


def follow(
    members: Sequence[Member],
    engine_of: EngineOf,
    *,
    last: int | None,
    since: str = "",
    show: Callable[[Member, str], None],
) -> list[FactoryError]:
    """Show the last lines of each node's container, and those that it writes until it ends.

    Returns the errors of nodes that do not answer, or no longer; each is said at once, and the
    others go on. However the call ends, the readers have ended.
    """
    errors: list[FactoryError] = []

    def failed(error: FactoryError) -> None:
        errors.append(error)
        ui.warn(error.problems[0].what)

    def find(member: Member) -> tuple[Engine, Service | None]:
        engine = engine_of(member.node.host)
        return engine, engine.service(member.launch.name)

    found = everywhere(members, find)
    lines: _Lines = Queue(WAITING)
    gone: dict[int, FactoryError] = {}
    over = Event()
    with ExitStack() as stack:
        readers: dict[int, subprocess.Popen[str]] = {}
        for member, answer in zip(members, found, strict=True):
            if isinstance(answer, FactoryError):
                failed(answer)
                continue
            engine, container = answer
            if container is None:
                ui.warn(f"{member.node.host}: there is no container {member.launch.name}")
            else:
                # from this thread: a Ctrl-C at the terminal is for us, and ends them in order
                log = engine.follow_service_log(member.launch.name, last=last, since=since)
                readers[member.rank] = process = stack.enter_context(log)
                Thread(target=_read, args=(member, process, lines), daemon=True).start()
                minded = (member, engine_of, process, gone, over)
                Thread(target=_mind, args=minded, daemon=True).start()
        stack.callback(_interrupt, readers)  # is called before each is waited for
        stack.callback(over.set)
        _show(readers, lines, show, failed, gone)
    return errors


def _read(member: Member, process: subprocess.Popen[str], lines: _Lines) -> None:
    with suppress(ValueError):  # the pipe was closed: nobody reads on
        while process.stdout and (line := process.stdout.readline(LONGEST)):
            lines.put((member, line.removesuffix("\n")))
    lines.put((member, None))


def _mind(
    member: Member,
    engine_of: EngineOf,
    process: subprocess.Popen[str],
    gone: dict[int, FactoryError],
    over: Event,
) -> None:
    """End the reader of a node that has fallen silent: it would wait for hours."""
    missed = 0
    while not over.wait(ASK) and process.poll() is None:
        try:
            engine_of(member.node.host)
            missed = 0
        except FactoryError as error:
            missed += 1
            if missed > MISSES:
                gone[member.rank] = error
                process.send_signal(signal.SIGINT)
                return


def _show(
    readers: dict[int, subprocess.Popen[str]],
    lines: _Lines,
    show: Callable[[Member, str], None],
    failed: Callable[[FactoryError], None],
    gone: dict[int, FactoryError],
) -> None:
    """Show lines until all readers have ended."""
    latest: dict[int, str] = {}
    left = len(readers)
    while left:
        member, line = lines.get()
        if line is not None:
            latest[member.rank] = line
            show(member, line)
            continue
        left -= 1
        code = readers[member.rank].wait()
        if member.rank in gone:
            failed(gone[member.rank])
        elif code:
            why = latest.get(member.rank, f"exit {code}, without a reason")
            failed(ssh.unreachable(member.node.host, f"docker logs: {why}"))
        else:
            ui.say(f"{member.node.host}: {member.launch.name} does not run")


def _interrupt(readers: dict[int, subprocess.Popen[str]]) -> None:
    """Ask all readers to end, so that they do it at the same time."""
    for process in readers.values():
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
