"""The verify station: observe an image, judge what was observed, hand back a receipt."""

from __future__ import annotations

import json
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from rich.markup import escape

from imagefactory.errors import CheckFailedError, SetupError, fail
from imagefactory.locking.lock import Lock, Resolution
from imagefactory.locking.store import digest as lock_digest
from imagefactory.planning.cell_plan import LABEL
from imagefactory.settings import Settings
from imagefactory.system import platforms, ui
from imagefactory.system.engine import Engine, ImageInfo
from imagefactory.verifying import modes, probe, server
from imagefactory.verifying.receipt import CheckResult, Outcome, Receipt
from imagefactory.verifying.registry import judge
from imagefactory.verifying.subject import Expectation, Probed, Subject

PYTHON = "/opt/venv/bin/python"
#: Emulated, starting Python takes seconds, importing torch half a minute and a proof minutes.
PROBE_TIMEOUT = 3600.0
MODE_TIMEOUT = 300.0
MARKS = {
    Outcome.PASS: "[green]pass[/green]",
    Outcome.FAIL: "[red]FAIL[/red]",
    Outcome.SKIP: "[yellow]skip[/yellow]",
}

WORDS = {Outcome.PASS: "passed", Outcome.FAIL: "failed", Outcome.SKIP: "skipped"}


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
    """Run the smoke containers of ``image_ref`` and judge it.

    ``expected`` is what the caller knows that the image should be; without it the image's label
    says from which resolution of ``lock`` it claims to be made. The receipt is the caller's to
    save.
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
    """Everything that checks may want to know about ``image``."""
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


def find_resolution(lock: Lock | None, image: ImageInfo) -> Resolution | None:
    """The resolution that the image's label names, if ``lock`` (still) has it."""
    wanted = image.labels.get(f"{LABEL}.lock-digest")
    resolutions = lock.installable() if lock else ()
    return next(
        (resolution for resolution in resolutions if lock_digest(resolution) == wanted), None
    )


def run_probe(engine: Engine, image: ImageInfo) -> Probed:
    """Run the probe in a container without a network."""
    source = Path(probe.__file__).read_text(encoding="utf-8")
    began = time.monotonic()
    try:
        done = engine.run(
            image.ref,
            # -P: nothing in the working directory is a module; -B: nothing is compiled before the
            # probe has looked
            ["-B", "-P", "-"],
            platform=image.platform,
            entrypoint=PYTHON,
            stdin=source,
            network="none",
            timeout=PROBE_TIMEOUT,
        )
    except SetupError as error:
        if error.problems[0].code != "command-timeout":
            raise
        return Probed(
            facts=None,
            error=f"no end after {PROBE_TIMEOUT:.0f} s",
            seconds=time.monotonic() - began,
        )
    seconds = time.monotonic() - began
    try:
        facts = json.loads(done.out.strip().splitlines()[-1])
    except (ValueError, IndexError):
        said = (done.err or done.out).strip()[-1000:] or "no output"
        return Probed(
            facts=None, error=f"{PYTHON} ended with exit {done.code}: {said}", seconds=seconds
        )
    return Probed(facts=facts, seconds=seconds)


def _serve(
    engine: Engine, image: ImageInfo, settings: Settings, patience: server.Patience
) -> server.ServerRun:
    settings.cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="smoke-model-", dir=settings.cache) as folder:
        return server.observe(engine, image, folder=Path(folder) / "model", patience=patience)


def render_table(receipt: Receipt) -> None:
    """The results as a table on standard output."""
    rows = [
        [_name(check), MARKS[check.outcome], f"{check.seconds:.1f} s", _detail(check)]
        for check in receipt.checks
    ]
    ui.table(f"{receipt.tag} {receipt.digest[:19]}", ["check", "", "took", "seen"], rows)
    for text, names in _explanations(receipt).items():
        ui.out.print(f"[red]{', '.join(names)}[/red]: {escape(text)}")
    counts = {
        outcome: sum(check.outcome is outcome for check in receipt.checks) for outcome in Outcome
    }
    verdict = "[green]verified[/green]" if receipt.passed else "[red]not verified[/red]"
    ui.out.print(
        f"{verdict}: " + ", ".join(f"{counts[outcome]} {word}" for outcome, word in WORDS.items())
    )


def _name(check: CheckResult) -> str:
    return check.name if check.required else f"{check.name} [dim](not required)[/dim]"


def _detail(check: CheckResult) -> str:
    text = escape(check.detail.partition("\n")[0])
    return f"[yellow]{text}[/yellow]" if check.outcome is Outcome.SKIP else text


def _explanations(receipt: Receipt) -> dict[str, list[str]]:
    """What failures say below their first line, each text once with the checks that say it.

    They share one log.
    """
    names: dict[str, list[str]] = {}
    for check in receipt.checks:
        text = check.detail.partition("\n")[2]
        if check.outcome is Outcome.FAIL and text:
            names.setdefault(text, []).append(check.name)
    return names
