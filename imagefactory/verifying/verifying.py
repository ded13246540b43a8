"""The verify station: observe an image, judge what was observed, return a receipt."""

from __future__ import annotations

import json
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from imagefactory import __version__
from imagefactory.errors import CheckFailedError, SetupError, fail
from imagefactory.locking.lock import Lock, Resolution
from imagefactory.locking.store import digest as lock_digest
from imagefactory.planning.cell_plan import LABEL, CellPlan
from imagefactory.settings import Settings
from imagefactory.system import platforms, ui
from imagefactory.system.engine import Engine, ImageInfo
from imagefactory.verifying import modes, probe, server
from imagefactory.verifying.check_registry import judge
from imagefactory.verifying.receipt import Receipt
from imagefactory.verifying.subject import Expectation, Probed, Subject

PYTHON = "/opt/venv/bin/python"
#: Emulated, starting Python takes seconds, importing torch half a minute and a proof minutes.
PROBE_TIMEOUT = 3600.0
MODE_TIMEOUT = 300.0


def verify(
    image_ref: str,
    *,
    engine: Engine,
    lock: Lock | None,
    settings: Settings,
    now: datetime,
    expected: Expectation | None = None,
    patience: server.Patience | None = None,
) -> Receipt:
    """Run ``image_ref`` in containers and judge it.

    ``expected`` is what the caller knows that the image should be; without it the image's own label
    says which resolution of ``lock`` it was made from. Saving the receipt is up to the caller.

    Raises CheckFailedError if the reference names another image at the end, SetupError if the
    engine fails.
    """
    image = engine.inspect_image(image_ref)
    subject = observe(
        image, engine=engine, lock=lock, settings=settings, expected=expected, patience=patience
    )
    after = engine.inspect_image(image_ref).digest
    if after != image.digest:
        raise fail(
            CheckFailedError,
            "verify-image-changed",
            f"{image_ref} was {image.digest} and became {after} while it was verified",
            fix="verify it again when nothing builds that tag",
        )
    return Receipt(
        digest=image.digest,
        tag=image_ref,
        cell=subject.label("cell"),
        build_key=subject.label("build-key"),
        verified_at=now.astimezone(UTC).isoformat(timespec="seconds"),
        checks=judge(subject),
        version=__version__,
    )


def observe(
    image: ImageInfo,
    *,
    engine: Engine,
    lock: Lock | None,
    settings: Settings,
    expected: Expectation | None,
    patience: server.Patience | None,
) -> Subject:
    """Observe everything about ``image`` that checks use."""
    note = (
        ""
        if platforms.is_native(image.platform)
        else f" ({image.platform} is emulated here, which takes minutes)"
    )
    with ui.step(f"{image.ref}: looking inside{note}"):
        probed = run_probe(engine, image)
    with ui.step(f"{image.ref}: entrypoint modes"):
        runs = modes.observe(engine, image, timeout=MODE_TIMEOUT)
    served = None
    if image.labels.get(f"{LABEL}.channel") == "cpu":
        with ui.step(f"{image.ref}: serving a model"):
            served = _serve(engine, image, settings, patience or server.Patience())
    return Subject(
        image=image,
        probed=probed,
        entrypoint=runs,
        server=served,
        resolution=expected.resolution if expected else find_resolution(lock, image),
        expected=expected,
    )


def expectation(plan: CellPlan) -> Expectation:
    """What the image of ``plan`` should be."""
    return Expectation(
        cell=plan.cell,
        build_key=plan.build_key,
        lock_digest=lock_digest(plan.resolution),
        resolution=plan.resolution,
    )


def find_resolution(lock: Lock | None, image: ImageInfo) -> Resolution | None:
    """The resolution that the image's label names, if ``lock`` (still) has it."""
    wanted = image.labels.get(f"{LABEL}.lock-digest")
    resolutions = lock.installable() if lock else ()
    return next(
        (resolution for resolution in resolutions if lock_digest(resolution) == wanted), None
    )


def run_probe(engine: Engine, image: ImageInfo) -> Probed:
    """Run the probe in a container without a network."""
    began = time.monotonic()
    try:
        done = engine.run(
            image.ref,
            # -P: nothing in the working directory is a module; -B: nothing is compiled before the
            # probes have looked
            ["-B", "-P", "-"],
            platform=image.platform,
            entrypoint=PYTHON,
            stdin=probe.program(),
            network="none",
            timeout=PROBE_TIMEOUT,
        )
    except SetupError as error:
        if error.problems[0].code != "command-timeout":
            raise
        return Probed(
            report=None,
            error=f"still running after {PROBE_TIMEOUT:.0f} s",
            seconds=time.monotonic() - began,
        )
    seconds = time.monotonic() - began
    try:
        report = json.loads(done.out.strip().splitlines()[-1])
    except (ValueError, IndexError):
        report = None
    if not isinstance(report, dict):
        said = (done.err or done.out).strip()[-1000:] or "no output"
        return Probed(
            report=None, error=f"{PYTHON} ended with exit {done.code}: {said}", seconds=seconds
        )
    return Probed(report=report, seconds=seconds)


def _serve(
    engine: Engine, image: ImageInfo, settings: Settings, patience: server.Patience
) -> server.ServerRun:
    settings.cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="smoke-model-", dir=settings.cache) as folder:
        return server.observe(engine, image, folder=Path(folder) / "model", patience=patience)
