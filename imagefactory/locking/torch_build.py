"""Identifies the build of a torch wheel.

METADATA is not enough (torch 2.10.0 for aarch64 says ``2.10.0``, but is a CPU build).
``torch/version.py`` in the wheel is, and ranged reads fetch it without downloading the wheel.
"""

from __future__ import annotations

import ast
import zipfile

from imagefactory.errors import CheckFailedError, Problem, fail
from imagefactory.locking import remote_wheel
from imagefactory.locking.lock import TorchBuild, Wheel
from imagefactory.settings import Settings

MEMBER = "torch/version.py"
_OTHER_TORCH = "choose another torch version"


def read(wheel: Wheel, url: str, settings: Settings) -> TorchBuild:
    """The build of a torch wheel, from a local folder or by ranged reads of ``url``.

    Raises CheckFailedError if the wheel has no
    readable ``torch/version.py``, SetupError if it cannot be downloaded.
    """
    paths = [folder / wheel.filename for folder in settings.find_links]
    local = next((path for path in paths if path.is_file()), None)
    try:
        if local is not None:
            with zipfile.ZipFile(local) as archive:
                text = archive.read(MEMBER).decode()
        else:
            text = remote_wheel.member(wheel, url, settings, lambda _: MEMBER).decode()
        found = facts(text)
    except (KeyError, SyntaxError, UnicodeDecodeError, *remote_wheel.DAMAGED) as error:
        what = f"{wheel.filename} has no readable {MEMBER}: {error!r}"
        raise fail(CheckFailedError, "torch-unreadable", what, fix=_OTHER_TORCH) from None
    if not found["version"]:
        what = f"{wheel.filename}: {MEMBER} has no version"
        raise fail(CheckFailedError, "torch-unreadable", what, fix=_OTHER_TORCH)
    return TorchBuild(version=found["version"], cuda=found["cuda"])


def check(build: TorchBuild, channel: str, *, where: str) -> Problem | None:
    """The problem with ``build`` in a cell of ``channel``; None if they match."""
    local = build.version.partition("+")[2]
    locked = f"the locked torch is {build.version} (CUDA {build.cuda})"
    if channel == "cpu":
        if local == "cpu" and build.cuda is None:
            return None
        what = f"{locked}, but this is a cell of channel cpu"
        fix = "pin the +cpu build; if no index has it, set PIP_FIND_LINKS to a folder that does"
        return Problem(code="torch-not-cpu", where=where, what=what, fix=fix)
    if local == channel and build.cuda == f"{channel[2:4]}.{channel[4:]}":
        return None
    if build.cuda is None:
        what = (
            f"the locked torch is {build.version}, a CPU build; "
            "vLLM's CUDA extensions cannot be loaded with it"
        )
        fix = (
            f"choose a torch that has a {channel} build for this platform, a vllm that pins such a "
            "torch, or take torch from an index that has such builds (`indexes` in matrix.yaml), "
            f"such as https://download.pytorch.org/whl/{channel}"
        )
        return Problem(code="torch-cpu-build", where=where, what=what, fix=fix)
    what = f"{locked}, but the cell declares channel {channel}"
    fix = f'write channel: "{local}", or choose a torch that has a {channel} build'
    return Problem(code="torch-other-channel", where=where, what=what, fix=fix)


def facts(text: str) -> dict[str, str | None]:
    """``version`` and ``cuda`` that the text of a ``torch/version.py`` assigns."""
    found: dict[str, str | None] = {"version": None, "cuda": None}
    for node in ast.parse(text).body:
        targets = (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AnnAssign)
            else []
        )
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        for target in targets:
            name = target.id.strip("_") if isinstance(target, ast.Name) else ""
            if name in found and isinstance(value, ast.Constant):
                found[name] = None if value.value is None else str(value.value)
    return found
