"""Tools of the image benchmark: a clock, a registry that counts bytes, the files of an image."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import socket
import sys
import tarfile
import tempfile
import time
import zipfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout
from remotezip import RemoteZip

from imagefactory.building import disk
from imagefactory.errors import FactoryError, SetupError, fail
from imagefactory.locking import indexes
from imagefactory.locking.lock import Wheel
from imagefactory.planning.cell_plan import CellPlan
from imagefactory.settings import Settings
from imagefactory.system import shell, ui
from imagefactory.system.engine import Engine
from imagefactory.system.registry import Registries

ROOT = Path(__file__).parents[1]
#: All images of benchmarks have names in this repository, so that all of them can be removed.
REPOSITORY = "imagefactory/bench"
#: The number of lines of a failed step's output to show.
SHOWN = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """The regular files of an image, merged over its layers.

    Attributes:
        total: bytes of all files.
        distinct: SHA-256 -> bytes of the distinct ones.
    """

    total: int
    distinct: Mapping[str, int]


def clock(work: Callable[[], object]) -> float:
    """The wall-clock seconds of ``work``."""
    start = time.monotonic()
    work()
    return time.monotonic() - start


def command(work: Callable[[], None]) -> None:
    """Run a benchmark as a program, with clear errors and clean-up when it is interrupted."""

    def terminated(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, terminated)
    try:
        work()
    except FactoryError as error:
        ui.failure(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        ui.say("interrupted; everything that was created has been removed")
        sys.exit(130)


def must(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    quiet: bool = False,
) -> str:
    """Run ``argv`` and return its output. Raises SetupError if it fails."""
    done = shell.run(argv, env=env, cwd=cwd, join=True, quiet=quiet)
    if not done.ok:
        last = "\n".join(done.out.strip().splitlines()[-SHOWN:])
        what = f"exit {done.code}: {shell.show(argv)}\n{last}"
        raise fail(SetupError, "bench-step", what, fix="run it by hand")
    return done.out


def bake(
    engine: Engine, file: Path, target: str, *, cold: bool = False, keep: bool = True
) -> float:
    """The wall-clock seconds of one bake.

    ``cold`` bakes without cache; BuildKit then empties the cache mounts as well, so that wheels are
    downloaded again. Without ``keep``, the steps run, but no image is written. Raises SetupError if
    the bake fails.
    """
    last: deque[str] = deque(maxlen=SHOWN)
    start = time.monotonic()
    code = engine.bake(
        file,
        [target],
        on_line=last.append,
        progress="plain",
        cached=not cold,
        overrides=[] if keep else [f"{target}.output=type=cacheonly"],
    )
    seconds = time.monotonic() - start
    if code:
        what = f"baking {target} failed with exit {code}:\n{''.join(last)}"
        fix = engine.bake_command(file, [target])
        raise fail(SetupError, "bench-step", what, fix=fix)
    return seconds


def files_of(engine: Engine, image: str) -> Files:
    """The files of ``image``, from an export; nothing in the image is run."""
    total, distinct = 0, {}
    with engine.export(image) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            # hard links to a file have no bytes of their own
            data = tar.extractfile(member) if member.isreg() else None
            if data is not None:
                digest = hashlib.sha256()
                while piece := data.read(1 << 20):
                    digest.update(piece)
                distinct[digest.hexdigest()] = member.size
                total += member.size
    return Files(total=total, distinct=distinct)


@dataclass(frozen=True, slots=True)
class Registry:
    """A real registry on loopback that started empty; this run pushed every byte in it."""

    address: str
    store: Path
    registries: Registries

    def stored(self) -> int:
        """Bytes of all blobs: layers, configurations and manifests."""
        return sum(
            path.stat().st_size for path in self.store.glob("docker/registry/v2/blobs/*/*/*/data")
        )

    def push(self, engine: Engine, image: str, tag: str) -> int:
        """Push ``image``; returns the number of bytes that the registry did not have before."""
        reference, before = f"{self.address}/bench:{tag}", self.stored()
        engine.tag(image, reference)
        try:
            engine.push(reference)
        finally:
            engine.untag(reference)
        return self.stored() - before

    def size(self, tag: str) -> int:
        """Compressed bytes of one image, including those that it shares with others."""
        reference = f"{self.address}/bench:{tag}"
        manifest = self.registries.manifest(reference)
        if manifest is None:
            raise fail(SetupError, "bench-step", f"{reference} is missing", fix="run it again")
        inner = sum(part.size for part in manifest.manifests)
        return manifest.size + inner + sum(self.registries.blobs(reference).values())


@contextmanager
def registry(engine: Engine) -> Iterator[Registry]:
    """An empty registry, removed with its content in any case."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    script = str(ROOT / "scripts" / "engine")
    with tempfile.TemporaryDirectory(prefix="imagefactory-bench-") as store:
        try:
            must([script, "registry-up", port, store], env=engine.environment)
            yield Registry(f"127.0.0.1:{port}", Path(store), engine.registries)
        finally:
            shell.run([script, "registry-down", port], env=engine.environment, quiet=True)


def surplus(stored: int, sizes: Sequence[int], images: Sequence[Files]) -> float:
    """How much a registry stores, relative to the distinct content of its images.

    This is the share of the compressed bytes that it stores, divided by the share of the file
    bytes that are distinct by SHA-256; 1.0 means that nothing is stored twice.
    """
    distinct: dict[str, int] = {}
    for one in images:
        distinct |= one.distinct
    return stored / sum(sizes) / (sum(distinct.values()) / sum(one.total for one in images))


def unpacked(plan: CellPlan, settings: Settings) -> int:
    """Bytes of all files in the wheels of a cell and its toolchain, from the zip directories."""
    wheels = [*plan.resolution.wheels, *(plan.toolchain.wheels if plan.toolchain else ())]
    urls: dict[str, str] = {}
    for index in settings.indexes:
        for page in indexes.pages(index, {wheel.name for wheel in wheels}, settings).values():
            urls |= {file.digests.get("sha256", ""): file.url for file in page.files}

    def size_of(wheel: Wheel) -> int:
        local = indexes.local(wheel, settings.find_links)
        with zipfile.ZipFile(local) if local else RemoteZip(urls[wheel.sha256]) as archive:
            return sum(member.file_size for member in archive.infolist())

    with ThreadPoolExecutor(8) as pool:
        return sum(pool.map(size_of, wheels))


def wait_for_space(engine: Engine, size: float, patience: float = 300.0) -> None:
    """Wait until the engine's disk has ``size`` bytes free.

    The engine deletes unused steps itself, some time after a build. Raises SetupError if the space
    is not free within ``patience`` seconds.
    """
    deadline = time.monotonic() + patience
    while (free := disk.free(engine.data_root)) is not None and free < size:
        if time.monotonic() > deadline:
            what = (
                f"{free / 1e9:.1f} GB are free at {engine.data_root}, but the next image "
                f"needs {size / 1e9:.1f} GB"
            )
            raise fail(SetupError, "bench-room", what, fix="docker buildx prune, or a larger disk")
        time.sleep(5)


def run_exclusively(stack: ExitStack, path: Path) -> None:
    """Hold the lock ``path`` until ``stack`` unwinds, as benchmarks use the same image names.

    Raises SetupError if another benchmark is running.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        stack.enter_context(FileLock(path, timeout=0))
    except Timeout:
        what, fix = "another benchmark is running on this engine", "wait for it to finish"
        raise fail(SetupError, "bench-running", what, fix=fix) from None


def prune(engine: Engine, *, downloads: bool = False) -> None:
    """Empty the build cache, and with ``downloads`` the downloaded wheels.

    The caches of two large cells would fill a disk.
    """
    engine.prune_cache(only=None if downloads else "type=regular")


def remove_images(engine: Engine) -> None:
    """Remove the images of benchmarks, by name; images of the same content may be in use."""
    for name in engine.names(REPOSITORY):
        engine.untag(name)


def machine(engine: Engine) -> list[tuple[str, str]]:
    """The facts about this machine that the times depend on."""
    cpu = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next(
        (line.partition(":")[2].strip() for line in cpu if line.startswith("model name")),
        os.uname().machine,
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    server, buildx = engine.version
    return [
        ("machine", f"{os.cpu_count()} cores of {model}, {memory:.0f} GiB memory"),
        ("load before", " ".join(f"{load:.2f}" for load in os.getloadavg())),
        ("free disk", f"{shutil.disk_usage('/').free / 1e9:.0f} GB"),
        ("engine", f"Docker {server} on {engine.platform}, Buildx {buildx.split()[1]}"),
        ("date", f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"),
    ]


def show(rows: Sequence[tuple[str, str]]) -> None:
    """Print facts, one per line."""
    for name, value in rows:
        ui.line(f"{name + ':':<13} {value}")
