"""Processes that have ended."""

from __future__ import annotations

from imagefactory.system import owner


def dead_owner() -> str:
    """The owner of what a process left that has ended: its PID is another process's now."""
    machine, pid, started, since = owner.mine().rsplit("-", 3)
    return f"{machine}-{pid}-{int(started) - 1}-{since}"
