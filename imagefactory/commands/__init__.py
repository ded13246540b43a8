"""One module per command, loaded when the command is called; its ``app`` is the command."""

from __future__ import annotations

#: In the order of the pipeline, as ``--help`` lists them.
COMMANDS = (
    "init",
    "plan",
    "lock",
    "audit",
    "outdated",
    "export",
    "patch",
    "wheel",
    "render",
    "build",
    "verify",
    "key",
    "recipe",
    "push",
    "promote",
    "rollback",
    "history",
    "nightly",
    "dashboard",
    "bisect",
    "inspect",
    "sbom",
    "diff",
    "rebuild",
    "cluster",
    "bench",
    "prune",
    "memory",
    "doctor",
    "engine",
)
