"""Whose a container or a temporary folder is: a process that runs, or one that is gone."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

#: The label of every container that imagefactory creates.
LABEL = "io.imagefactory.owner"
#: Seconds after which what another machine, boot or PID namespace left behind counts as orphaned:
#: its processes cannot be seen from here, and nothing of ours takes so long.
FOREIGN_SECONDS = 24 * 3600
_PROC = Path("/proc")


@cache
def mine() -> str:
    """This process: boot, PID namespace, PID, start time in clock ticks, and the time now.

    A PID alone is reused.
    """
    pid = os.getpid()
    return f"{_machine()}-{pid}-{_started(pid)}-{int(time.time())}"


os.register_at_fork(after_in_child=mine.cache_clear)  # which is another process


def gone(owner: str, now: float | None = None) -> bool:
    """Whether the process that ``mine`` described in ``owner`` has ended.

    Of another machine, boot or PID namespace only the age counts. What is not an owner has not
    ended.
    """
    try:
        machine, pid, started, since = owner.rsplit("-", 3)
        number, ticks, age = int(pid), int(started), (now or time.time()) - int(since)
    except ValueError:
        return False
    if machine == _machine():
        return _started(number) != ticks
    return bool(machine) and age > FOREIGN_SECONDS


@cache
def _machine() -> str:
    """The boot and the PID namespace; PIDs can be compared within it. Empty parts off Linux."""
    boot = namespace = ""
    with suppress(OSError):
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip().replace("-", "")
        namespace = (_PROC / "self/ns/pid").readlink().name.strip("pid:[]")
    return f"{boot}.{namespace}"


def _started(pid: int) -> int:
    """When the process started, in clock ticks after boot; -1 if there is none, or a zombie."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return -1
    fields = text.rpartition(")")[2].split()  # the name before it may hold anything
    return -1 if fields[0] in ("Z", "X") else int(fields[19])
