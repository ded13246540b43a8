"""What a torch wheel really is.

Its METADATA does not tell (torch 2.10.0 for aarch64 says ``2.10.0`` and is a CPU build);
``torch/version.py`` inside it does, and ranged reads get that file without the wheel.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

import requests
import stamina
from remotezip import RemoteIOError, RemoteZip

from imagefactory.errors import CheckFailedError, Problem, SetupError, fail
from imagefactory.inbuild.identity import facts
from imagefactory.locking.lock import TorchBuild, Wheel

MEMBER = "torch/version.py"


def read(wheel: Wheel, url: str, folders: Sequence[Path]) -> TorchBuild:
    """The torch that ``wheel`` holds, from a local folder that has it or by ranged reads of
    ``url``.

    Raises CheckFailedError if the wheel has no readable ``torch/version.py``, SetupError if it
    cannot be reached.
    """
    local = next(
        (folder / wheel.filename for folder in folders if (folder / wheel.filename).is_file()), None
    )
    try:
        if local is not None:
            with zipfile.ZipFile(local) as archive:
                text = archive.read(MEMBER).decode()
        else:
            text = _remote(url)
        found = facts(text)
    except (RemoteIOError, requests.RequestException, OSError) as error:
        what = f"{wheel.filename} cannot be read: {error}"
        raise fail(
            SetupError, "torch-unreachable", what, fix="imagefactory doctor checks the indexes"
        ) from None
    except (KeyError, SyntaxError, UnicodeDecodeError, zipfile.BadZipFile) as error:
        what = f"{wheel.filename} does not say what torch it is: {error!r}"
        raise fail(
            CheckFailedError, "torch-unreadable", what, fix="choose another torch version"
        ) from None
    if not found["version"]:
        what = f"{wheel.filename}: {MEMBER} names no version"
        raise fail(CheckFailedError, "torch-unreadable", what, fix="choose another torch version")
    return TorchBuild(version=found["version"], cuda=found["cuda"])


@stamina.retry(on=(RemoteIOError, requests.ConnectionError), attempts=3)
def _remote(url: str) -> str:
    with RemoteZip(url) as archive:
        data: bytes = archive.read(MEMBER)
    return data.decode()


def judge(build: TorchBuild, channel: str, *, where: str) -> Problem | None:
    """What is wrong with installing ``build`` into a cell of ``channel``; None if nothing is."""
    local = build.version.partition("+")[2]
    if channel == "cpu":
        if local == "cpu" and build.cuda is None:
            return None
        what = (
            f"the locked torch is {build.version} (CUDA {build.cuda}), and this is "
            "a cell of channel cpu"
        )
        fix = (
            "pin the +cpu build; on machines without it, set PIP_FIND_LINKS to a folder that has it"
        )
        return Problem(code="torch-not-cpu", where=where, what=what, fix=fix)
    wanted = f"{channel[2:4]}.{channel[4:]}"
    if local == channel and build.cuda == wanted:
        return None
    if build.cuda is None:
        what = (
            f"the locked torch is {build.version}, a CPU build: vLLM's CUDA "
            "extensions cannot load beside it"
        )
        fix = (
            f"choose a torch that is published as a {channel} build for this "
            "platform, or another vllm that pins one"
        )
        return Problem(code="torch-cpu-build", where=where, what=what, fix=fix)
    what = (
        f"the locked torch is {build.version} (CUDA {build.cuda}), the cell "
        f"declares channel {channel}"
    )
    fix = f'write channel: "{local}", or choose a torch that is a {channel} build'
    return Problem(code="torch-other-channel", where=where, what=what, fix=fix)
