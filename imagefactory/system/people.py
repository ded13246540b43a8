"""Who runs this."""

from __future__ import annotations

import getpass
import os
import socket


def me() -> str:
    """``USER@HOST``; with the number of a user that has no name, as in many containers."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
