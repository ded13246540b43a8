"""Tools of the image benchmark: a clock, a registry that counts bytes, the files of an image."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import requests
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

ROOT = Path(__file__).parents[1]
#: Every image that a benchmark makes has a name in here, so that all of them can be taken away.
REPOSITORY = "imagefactory/bench"
_MANIFESTS = (
    "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, "
    "application/vnd.docker.distribution.manifest.list.v2+json, "
    "application/vnd.docker.distribution.manifest.v2+json"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """The regular files of an image, merged over its layers.

    Bytes of all, and sha256 -> bytes of the distinct ones.
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
        output = "\n".join(done.out.strip().splitlines()[-25:])
        what = f"exit {done.code}: {shell.show(argv)}\n{output}"
        raise fail(SetupError, "bench-step", what, fix="run it by hand")
    return done.out


def bake(
    engine: Engine, file: Path, target: str, *, cold: bool = False, keep: bool = True
) -> float:
    """The wall-clock seconds of one plain bake; ``cold`` bakes without cache.

    Without ``keep``, its steps run, but no image is written. With --no-cache, BuildKit empties the
    cache mounts as well, so that a cold build downloads its wheels.
    """
    argv = [*engine.docker, "buildx", "bake", "--file", str(file), "--progress=plain"]
    argv += ["--no-cache"] if cold else []
    argv += [] if keep else ["--set", f"{target}.output=type=cacheonly"]
    argv.append(target)
    # otherwise the docker driver would also write an image of every linked target, the bases
    return clock(lambda: must(argv, env={**engine.environment, "BUILDX_NO_DEFAULT_LOAD": "1"}))


def files_of(engine: Engine, image: str, platform: str) -> Files:
    """The files of ``image``, from an export; nothing in the image is run."""
    name = f"imagefactory-bench-{secrets.token_hex(6)}"
    options = ["--name", name, "--pull", "never", "--platform", platform]
    must([*engine.docker, "create", *options, image, "true"])
    try:
        export = shlex.join([*engine.docker, "export", name])
        reader = shlex.join([sys.executable, str(Path(__file__).with_name("tarfiles.py"))])
        lines = must(["bash", "-o", "pipefail", "-c", f"{export} | {reader}"]).splitlines()
    finally:
        shell.run([*engine.docker, "rm", "--force", name], quiet=True)
    rows = [(digest, int(size)) for digest, size in (line.split() for line in lines)]
    return Files(total=sum(size for _, size in rows), distinct=dict(rows))


@dataclass(frozen=True, slots=True)
class Registry:
    """A real registry on loopback that started empty; this run pushed every byte in it."""

    address: str
    store: Path

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
            must([*engine.docker, "push", "--quiet", reference], env=engine.environment)
        finally:
            engine.untag(reference)
        return self.stored() - before

    def size(self, tag: str) -> int:
        """Compressed bytes of one image, including those that it shares with others."""
        answer = requests.get(
            f"http://{self.address}/v2/bench/manifests/{tag}",
            headers={"Accept": _MANIFESTS},
            timeout=30,
        )
        answer.raise_for_status()
        manifest, own = answer.json(), len(answer.content)
        if "manifests" in manifest:
            return own + sum(self.size(one["digest"]) for one in manifest["manifests"])
        return own + sum(int(one["size"]) for one in (manifest["config"], *manifest["layers"]))


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
            yield Registry(f"127.0.0.1:{port}", Path(store))
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
        for page in indexes.pages(index, {wheel.name for wheel in wheels}).values():
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
    kept = [] if downloads else ["--filter", "type=regular"]
    must([*engine.docker, "buildx", "prune", "--all", "--force", *kept])


def remove_images(engine: Engine) -> None:
    """Remove the images of benchmarks, by name; images of the same content may be in use."""
    argv = [*engine.docker, "image", "ls", "--format", "{{.Repository}}:{{.Tag}}", "--filter"]
    for name in shell.run([*argv, f"reference={REPOSITORY}:*"], quiet=True).out.split():
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


def print_facts(rows: Sequence[tuple[str, str]]) -> None:
    """Print facts, one per line."""
    for name, value in rows:
        ui.out.print(f"{name + ':':<13} {ui.escape(value)}")
