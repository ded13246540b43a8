"""GPUs for containers: how Docker is asked for them, and what to do if it gives none."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence

from imagefactory.errors import SetupError, fail
from imagefactory.system import shell
from imagefactory.system.engine.docker import said_by_docker

TOOLKIT = (
    "on a machine with an NVIDIA GPU, install the NVIDIA container toolkit, then: sudo nvidia-ctk "
    "runtime configure --runtime=docker && sudo systemctl restart docker"
)
#: How a container gets all GPUs: by the hook of the NVIDIA container toolkit, else by CDI.
BY_HOOK, BY_CDI = ("--gpus", "all"), ("--device", "nvidia.com/gpu=all")
_NO_HOOK = re.compile(r'could not select device driver "(nvidia)?"')
_BY_DOCKER = re.compile("(?m)^docker: ")
#: What the engine says if it has no GPU for a container, and what to do then; the first that fits.
_REMEDIES = (
    (r"unsatisfied condition", "update the NVIDIA driver of that machine"),
    (
        r"nvidia-container-cli|nvidia-container-runtime",
        "nvidia-smi has to work on that machine: install its driver, or reboot after an update",
    ),
    (r"could not select device driver|nvidia\.com/gpu", TOOLKIT),
)


def place(words: Sequence[str]) -> int | None:
    """Where the options of ``docker run`` ask for GPUs by the hook; None if they do not."""
    pairs = itertools.pairwise(words)
    return next((number for number, pair in enumerate(pairs) if pair == BY_HOOK), None)


def check(done: shell.Completed) -> None:
    """Raise SetupError ``gpu-missing`` if the engine had no GPU for a container that wants one."""
    said = said_by_docker(done)
    found = _BY_DOCKER.search(said)  # all before is what a program in the container wrote
    said = said[found.start() :] if found else ""
    fix = next((fix for pattern, fix in _REMEDIES if re.search(pattern, said)), None)
    if not done.ok and fix:
        last = said.splitlines()[-1].removeprefix("docker: Error response from daemon: ")
        what = f"the engine has no GPU for containers: {last}"
        raise fail(SetupError, "gpu-missing", what, fix=fix)


def run(
    call: Callable[[tuple[str, ...]], shell.Completed], again: Callable[[], object]
) -> shell.Completed:
    """``call`` with the options by which the engine has GPUs; ``again`` comes between two calls.

    Raises SetupError ``gpu-missing`` if there are none.
    """
    first = call(BY_HOOK)
    if first.ok or not _NO_HOOK.search(first.err):
        check(first)
        return first
    again()
    done = call(BY_CDI)
    if not done.ok and '"cdi"' in done.err:  # nor does the engine know CDI
        check(first)
    check(done)
    return done
