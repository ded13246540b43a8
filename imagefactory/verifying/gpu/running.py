"""Runs the probes in a container that has this machine's GPUs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from imagefactory.errors import SetupError, fail
from imagefactory.system.engine import NO_GPU, Engine, ImageInfo, Limits
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


def observe(engine: Engine, image: ImageInfo) -> GpuRun:
    """Run all probes in ``image``. Raises SetupError if this machine has no GPU for containers."""
    began = time.monotonic()
    done = engine.run(
        image.digest,
        ("-I", "-B", f"{FOLDER}/probe_runner.py", "--json"),
        platform=image.platform,
        entrypoint=PYTHON,
        env={"HOME": "/tmp", "TRITON_CACHE_DIR": "/tmp/triton"},  # noqa: S108 - in the container
        mounts=[(Path(__file__).parent, FOLDER)],
        network="none",
        timeout=TIMEOUT,
        limits=Limits(memory=MEMORY),
        most=MOST,
        gpus=True,
    )
    seconds = time.monotonic() - began
    if any(text in done.err for text in NO_GPU):
        what = f"this machine has no GPU for containers: {done.err.strip().splitlines()[-1]}"
        fix = "install the NVIDIA container toolkit, or verify without --gpu"
        raise fail(SetupError, "gpu-missing", what, fix=fix)
    try:
        return GpuRun(report=read(done.out), seconds=seconds)
    except ValueError as error:
        said = (done.err.strip().splitlines() or ["no output"])[-1]
        return GpuRun(report=None, error=f"{error}; exit {done.code}: {said}", seconds=seconds)


def read(text: str) -> dict[str, Any]:
    """The report, in the shape of ``probe_runner.report``. Raises ValueError if it is none."""
    try:
        report = json.loads(text, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("the report of the probes is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"the report of the probes is no JSON: {error}") from None
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
    raise ValueError(f"{text} is no number")
