"""Runs the probes in a container that has this machine's GPUs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from imagefactory.errors import SetupError
from imagefactory.system.engine import Engine, ImageInfo, Limits
from imagefactory.system.shell import Completed
from imagefactory.verifying.client import PYTHON

#: Where the container finds this folder.
FOLDER = "/opt/imagefactory-gpu"
#: Seconds for all probes, and bytes of their report.
TIMEOUT, MOST = 600.0, 4 << 20
#: torch, nvcc and 1 GiB of test data; where memory is unified, the GPU's is counted, too.
MEMORY = 32 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRun:
    """What the probes reported, or why they did not."""

    report: Mapping[str, Any] | None
    error: str = ""
    seconds: float = 0.0


def check(engine: Engine, image: ImageInfo) -> None:
    """Raise SetupError ``gpu-missing`` if the engine has no GPU for a container of ``image``.

    What is wrong with its Python is for the probes to show.
    """
    _run(engine, image, "-c", "")


def observe(engine: Engine, image: ImageInfo) -> GpuRun:
    """Run all probes in ``image``. Raises SetupError ``gpu-missing`` as ``check`` does."""
    began = time.monotonic()
    done = _run(
        engine,
        image,
        *("-I", "-B", f"{FOLDER}/probe_runner.py", "--json"),
        env={"HOME": "/tmp", "TRITON_CACHE_DIR": "/tmp/triton"},  # noqa: S108 - in the container
        mounts=[(Path(__file__).parent, FOLDER)],
        limits=Limits(memory=MEMORY),
        most=MOST,
    )
    seconds = time.monotonic() - began
    if done is None:
        late = f"the probes are still running after {TIMEOUT:.0f} s"
        return GpuRun(report=None, error=late, seconds=seconds)
    try:
        return GpuRun(report=read(done.out), seconds=seconds)
    except ValueError as error:
        said = (done.err.strip().splitlines() or ["no output"])[-1]
        return GpuRun(report=None, error=f"{error}; exit {done.code}: {said}", seconds=seconds)


def _run(engine: Engine, image: ImageInfo, *argv: str, **options: Any) -> Completed | None:
    """How the image's Python ends; None if it does not in time. Raises SetupError otherwise."""
    try:
        return engine.run(
            image.digest,
            argv,
            platform=image.platform,
            entrypoint=PYTHON,
            network="none",
            timeout=TIMEOUT,
            gpus=True,
            **options,
        )
    except SetupError as error:
        if error.problems[0].code != "command-timeout":
            raise
        return None


def read(text: str) -> dict[str, Any]:
    """The report, in the shape of ``probe_runner.report``. Raises ValueError if it is none."""
    try:
        report = json.loads(text, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("the report of the probes is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"the report of the probes is not JSON: {error}") from None
    probes = report.get("probes") if isinstance(report, dict) else None
    if not isinstance(probes, dict) or not all(map(_is_result, probes.values())):
        raise ValueError("the report of the probes has another shape")
    return {**report}


def _is_result(value: object) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("facts"), dict)
        and isinstance(value.get("error"), str)
        and type(value.get("seconds")) in (int, float)
    )


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")
