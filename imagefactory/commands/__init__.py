"""One module a command: ``app`` in it is the command, and is loaded when somebody asks for it."""

from __future__ import annotations

#: In the order of the pipeline, as ``--help`` lists them.
COMMANDS = (
    "plan",
    "lock",
    "patch",
    "wheel",
    "render",
    "build",
    "verify",
    "push",
    "inspect",
    "diff",
    "rebuild",
    "prune",
    "doctor",
)
