"""The verify station: observe an image, judge what was observed, return a receipt."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from imagefactory import __version__
from imagefactory.building import disk, records
from imagefactory.errors import CheckFailedError, SetupError, fail
from imagefactory.locking.lock import Lock, Resolution
from imagefactory.locking.store import digest as lock_digest
from imagefactory.planning.cell_plan import LABEL, CellPlan
from imagefactory.settings import Settings
from imagefactory.system import platforms, temporary, ui
from imagefactory.system.background import in_background
from imagefactory.system.engine import Engine, ImageInfo
from imagefactory.verifying import (
    choice,
    circumstances,
    compiling,
    modes,
    probe,
    reports,
    server,
)
from imagefactory.verifying.check_registry import count, judge, reached
from imagefactory.verifying.choice import Choice
from imagefactory.verifying.client import PYTHON
from imagefactory.verifying.gpu import running
from imagefactory.verifying.models.models import TinyModel
from imagefactory.verifying.outside.judged import Judged
from imagefactory.verifying.receipt import CheckResult, Level, Outcome, Receipt
from imagefactory.verifying.subject import Expectation, Probed, Ran, Subject

#: Judges what is in the image of a digest.
Content = Callable[[str], Judged]
#: -I: neither the working directory, nor variables, nor the user's folder bend the interpreter;
#: -S: nor does what is in site-packages; -B: nothing is compiled before the probes have looked.
PROBE_OPTIONS = ("-I", "-S", "-B", "-")
#: Variables that bend a program before its first line; the probe runs without them. What the image
#: sets LD_LIBRARY_PATH to stays: libraries of a CUDA base are found by it.
BENDING = re.compile(r"PYTHON|LD_(?!LIBRARY_PATH$)|GLIBC_TUNABLES|GCONV_PATH|MALLOC_|LOCPATH")
#: Bytes that are read of the probe's output; that of a good image has a twentieth of it.
PROBE_BYTES = 16 << 20
#: Bytes that containers need on the engine's disk, for each byte of an image that the engine has
#: not unpacked yet, and in any case.
UNPACKED, SCRATCH = 3, 1 << 30
NO_SPACE = re.compile(r"(?i)no space left on device|disk quota exceeded")
#: The theme whose probe takes as long as that of all others, where it is emulated.
COMPILERS = "compilers"
#: Seconds for the probe. Emulated, starting Python takes seconds, importing torch half a minute and
#: a proof minutes.
PROBE_TIMEOUT, PROBE_TIMEOUT_EMULATED = 1200.0, 3600.0
#: Models that are served at a time on a GPU: most of a start is spent on the processor.
AT_ONCE = 4
#: Seconds for all modes of the entrypoint together, which run beside the probe.
MODE_TIMEOUT, MODE_TIMEOUT_EMULATED = 300.0, 1800.0


def verify(
    image_ref: str,
    *,
    engine: Engine,
    lock: Lock | None,
    settings: Settings,
    now: datetime,
    expected: Expectation | None = None,
    patience: server.Patience | None = None,
    content: Content | None = None,
    level: Level = Level.SERVE,
    models: Sequence[str] | None = None,
) -> Receipt:
    """Run ``image_ref`` in containers and judge it.

    ``expected`` is what the caller knows that the image should be; without it the image's own label
    says which resolution of ``lock`` it was made from. ``content`` judges what is in the image of a
    digest without running it, while the image runs. ``level`` is how far it goes: nothing runs for
    STATIC, no server for IMPORT, and GPU needs one. ``models`` are the tiny models to serve, as of
    ``choice.parse``. Saving the receipt is up to the caller.

    Raises CheckFailedError if the reference names another image at the end, SetupError if the
    engine fails or its disk has no room.
    """
    image = engine.inspect_image(image_ref)
    chosen = choice.choose(image, level, models)
    _mind_the_disk(engine, image)
    if level is Level.GPU:
        running.check(engine, image)  # before all else takes its time
    judging = in_background(content, image.digest) if content else None
    inside = Inside(
        engine=engine,
        image=image,
        settings=settings,
        expected=expected,
        level=level,
        chosen=chosen,
    )
    subject = observe(inside, lock=lock, patience=patience, files_judged=judging is not None)
    if judging:
        with ui.step(f"{image_ref}: comparing its files with the lock"):
            subject = replace(subject, content=judging.result())
        if level is not Level.STATIC:
            subject = prove_inside(inside, subject)
    after = engine.inspect_image(image_ref).digest
    if after != image.digest:
        raise fail(
            CheckFailedError,
            "verify-image-changed",
            f"{image_ref} was {image.digest} and became {after} while it was verified",
            fix="verify it again when nothing builds that tag",
        )
    results = judge(subject, level)
    _mind_the_machine(engine, image, results)
    return Receipt(
        digest=image.digest,
        tag=image_ref,
        cell=subject.label("cell"),
        build_key=subject.label("build-key"),
        verified_at=now.astimezone(UTC).isoformat(timespec="seconds"),
        checks=results,
        version=__version__,
        unproven=tuple(subject.label("unproven").split()),
        level=reached(results),
        **circumstances.of(subject, engine),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """An image whose programs are run, and what the caller knows that it should be."""

    engine: Engine
    image: ImageInfo
    settings: Settings
    expected: Expectation | None
    level: Level
    chosen: Choice

    @property
    def emulated(self) -> bool:
        """Whether this machine emulates its programs."""
        return not platforms.is_native(self.image.platform)

    def probe(self, **wanted: Any) -> Probed:
        """Run the probe; ``wanted`` are options of ``probe.program``."""
        base = self.expected.cell.flavor.base if self.expected and self.emulated else None
        if base is None:
            return run_probe(self.engine, self.image, **wanted)
        with compiling.offered(base.name, base.python, self.settings) as folder:
            return run_probe(self.engine, self.image, compiler=folder, **wanted)


def observe(
    inside: Inside, *, lock: Lock | None, patience: server.Patience | None, files_judged: bool
) -> Subject:
    """Observe everything about an image that checks use.

    With ``files_judged`` its files are judged from outside, too.
    """
    engine, image = inside.engine, inside.image
    if inside.level is Level.STATIC:
        return _subject(inside, lock, Probed(report=None, error="nothing was run"), {})
    note = f" ({image.platform} is emulated here)" if inside.emulated else ""
    brief = files_judged and inside.emulated
    timeout = MODE_TIMEOUT_EMULATED if inside.emulated else MODE_TIMEOUT
    modes_run = in_background(modes.observe, engine, image, timeout=timeout)
    with ui.step(f"{image.ref}: looking inside{note}"):
        probed = look_inside(inside) if brief else inside.probe()
    with ui.step(f"{image.ref}: entrypoint modes"):
        runs = modes_run.result()
    if not inside.emulated and probed.facts("entrypoint").get("ray"):
        with ui.step(f"{image.ref}: a Ray cluster"):
            runs[modes.RAY_CLUSTER] = modes.ray_cluster(engine, image, timeout=timeout)
    gpu = None
    if inside.level is Level.GPU:
        with ui.step(f"{image.ref}: computing on the GPU"):
            gpu = running.observe(engine, image)
    served = _serve_all(inside, patience or server.Patience())
    return replace(
        _subject(inside, lock, probed, runs),
        server=served.pop(server.MODEL.name, None),
        gpu=gpu,
        models={**inside.chosen.impossible, **served},
        lacking=inside.chosen.lacking,
    )


def _subject(inside: Inside, lock: Lock | None, probed: Probed, runs: Mapping[str, Ran]) -> Subject:
    image, expected = inside.image, inside.expected
    return Subject(
        image=image,
        probed=probed,
        entrypoint=runs,
        server=None,
        resolution=expected.resolution if expected else find_resolution(lock, image),
        expected=expected,
        builds=records.read(
            inside.settings.state / records.FOLDER, image.labels.get(f"{LABEL}.build-key", "")
        ),
    )


def look_inside(inside: Inside) -> Probed:
    """What has to run in an emulated image whose files are judged from outside.

    No proof is run, and its compilers run beside the rest, which mostly is the import of torch.
    """
    rest = tuple(theme for theme in probe.sources() if theme != COMPILERS)
    compiled = in_background(inside.probe, themes=(COMPILERS,), files_judged=True, proofs=())
    probed = inside.probe(themes=rest, files_judged=True, proofs=())
    return reports.merged(probed, compiled.result(), COMPILERS)


def prove_inside(inside: Inside, subject: Subject) -> Subject:
    """Run those proofs in the image that could not be run on this machine."""
    left = subject.content.to_prove if subject.content else ()
    if not left:
        return subject
    with ui.step(f"{inside.image.ref}: proofs that only the image itself can run"):
        more = inside.probe(themes=("patches",), files_judged=True, proofs=left)
    return replace(subject, probed=reports.with_proofs(subject.probed, more))


def expectation(plan: CellPlan) -> Expectation:
    """What the image of ``plan`` should be."""
    return Expectation(
        cell=plan.cell,
        build_key=plan.build_key,
        lock_digest=lock_digest(plan.resolution),
        resolution=plan.resolution,
        unproven=plan.unproven,
    )


def find_resolution(lock: Lock | None, image: ImageInfo) -> Resolution | None:
    """The resolution that the image's label names, if ``lock`` (still) has it."""
    wanted = image.labels.get(f"{LABEL}.lock-digest")
    resolutions = lock.installable() if lock else ()
    return next(
        (resolution for resolution in resolutions if lock_digest(resolution) == wanted), None
    )


def run_probe(
    engine: Engine, image: ImageInfo, *, compiler: Path | None = None, **wanted: Any
) -> Probed:
    """Run the probe in a container without a network. Raises SetupError if the engine fails.

    ``compiler`` is the folder of ``compiling.offered``, ``wanted`` are options of
    ``probe.program``.
    """
    began = time.monotonic()
    native = platforms.is_native(image.platform)
    timeout = PROBE_TIMEOUT if native else PROBE_TIMEOUT_EMULATED
    try:
        done = engine.run(
            image.digest,
            PROBE_OPTIONS,
            platform=image.platform,
            entrypoint=PYTHON,
            env={name: "" for name in image.env if BENDING.match(name)},
            stdin=probe.program(compiler=compiling.SOCKET if compiler else "", **wanted),
            mounts=[(compiler, compiling.FOLDER)] if compiler else [],
            network="none",
            timeout=timeout,
            most=PROBE_BYTES,
        )
    except SetupError as error:
        if error.problems[0].code != "command-timeout":
            raise
        return Probed(
            report=None,
            error=f"still running after {timeout:.0f} s",
            seconds=time.monotonic() - began,
        )
    seconds = time.monotonic() - began
    if done.cut:
        flood = f"{PYTHON} wrote more than {PROBE_BYTES >> 20} MiB and was ended"
        return Probed(report=None, error=flood, seconds=seconds)
    try:
        return Probed(report=reports.read(done.out), seconds=seconds)
    except ValueError as fault:
        ran = Ran(code=done.code, out="", err=done.err)
        return Probed(report=None, error=f"{fault}; {PYTHON} ended with {ran}", seconds=seconds)


def _mind_the_disk(engine: Engine, image: ImageInfo) -> None:
    """Raise SetupError if the engine has no room to unpack the image and to run it."""
    available = disk.free(engine.data_root)
    unpacked = engine.is_unpacked(image.digest)
    needed = SCRATCH + (0 if unpacked else image.size * UNPACKED)
    if available is not None and available < needed:
        raise fail(
            SetupError,
            "disk-full",
            f"verifying {image.ref} needs {needed / disk.GIB:.1f} GiB on the engine's disk, which "
            f"has {available / disk.GIB:.1f} GiB free",
            fix="imagefactory prune, or remove images that are not needed",
        )


def _mind_the_machine(engine: Engine, image: ImageInfo, results: Sequence[CheckResult]) -> None:
    """Raise SetupError if checks failed because the disk filled up, which the image did not do."""
    full = [
        check.name
        for check in results
        if check.outcome is Outcome.FAIL and NO_SPACE.search(check.detail)
    ]
    available = disk.free(engine.data_root)
    if full and (available is None or available < SCRATCH):
        raise fail(
            SetupError,
            "disk-full",
            f"the disk was full while {image.ref} was verified ({', '.join(full)})",
            fix="free some disk space, for example with imagefactory prune, and verify it again",
        )


def _serve_all(inside: Inside, patience: server.Patience) -> dict[str, server.ServerRun]:
    """Serve each model that was chosen: one by one, on a GPU several at a time."""
    models, gpus = inside.chosen.served, inside.level is Level.GPU
    if not models:
        return {}
    engine, image, settings = inside.engine, inside.image, inside.settings
    ended = threading.Event()
    patience = replace(patience, ended=ended)

    def one(model: TinyModel, compiled: str | None = None) -> server.ServerRun:
        began = time.monotonic()
        run = _serve(engine, image, settings, patience, gpus=gpus, compiled=compiled, model=model)
        if len(models) > 1:
            right = sum(answer.right for answer in run.answers)
            said = run.fault or f"{right} of {len(run.answers)} answers right"
            ui.say(f"  {model.name}: {said}, {time.monotonic() - began:.0f} s")
        return run

    with ui.step(f"{image.ref}: serving {count(len(models), 'model')}"):
        if not gpus:
            return {model.name: one(model) for model in models}
        with engine.volume() as compiled, ThreadPoolExecutor(AT_ONCE) as pool:
            runs = {model.name: pool.submit(one, model, compiled) for model in models}
            try:
                wait(runs.values(), return_when=FIRST_EXCEPTION)
            finally:  # after an error, nobody waits for the others
                ended.set()
                pool.shutdown(wait=False, cancel_futures=True)
            for run in runs.values():
                if run.done() and not run.cancelled():
                    run.result()  # raises its error
            return {name: run.result() for name, run in runs.items()}


def _serve(
    engine: Engine,
    image: ImageInfo,
    settings: Settings,
    patience: server.Patience,
    *,
    gpus: bool,
    compiled: str | None = None,
    model: TinyModel = server.MODEL,
) -> server.ServerRun:
    settings.cache.mkdir(parents=True, exist_ok=True)
    with temporary.folder(prefix="imagefactory-model-", parent=settings.cache) as folder:
        path = folder / "model"
        return server.observe(
            engine,
            image,
            folder=path,
            patience=patience,
            gpus=gpus,
            compiled=compiled,
            model=model,
        )
