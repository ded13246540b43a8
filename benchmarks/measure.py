"""What the image benchmark measures with.

A clock, a registry whose bytes are counted, the files of an image.
"""

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
    """The wall seconds of ``work``."""
    began = time.monotonic()
    work()
    return time.monotonic() - began


def command(work: Callable[[], None]) -> None:
    """Run a benchmark as a program.

    Errors are told, and what was made goes when it is interrupted or terminated.
    """

    def terminated(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, terminated)
    try:
        work()
    except FactoryError as error:
        ui.failure(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        ui.say("interrupted; what was made is gone")
        sys.exit(130)


def must(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    quiet: bool = False,
) -> str:
    """Run ``argv``; what it wrote. Raises SetupError if it fails."""
    done = shell.run(argv, env=env, cwd=cwd, join=True, quiet=quiet)
    if not done.ok:
        told = "\n".join(done.out.strip().splitlines()[-25:])
        raise fail(
            SetupError,
            "bench-step",
            f"exit {done.code}: {shell.show(argv)}\n{told}",
            fix="run it by hand",
        )
    return done.out


def bake(
    engine: Engine, file: Path, target: str, *, cold: bool = False, keep: bool = True
) -> float:
    """The wall seconds of one bake, as somebody would type it; ``cold`` takes nothing from the
    cache.

    Without ``keep`` its steps run, and no image is made of them.

    With --no-cache, BuildKit empties the cache mounts as well: a cold build downloads its wheels.
    """
    argv = [
        *engine.docker,
        "buildx",
        "bake",
        "--file",
        str(file),
        "--progress=plain",
        *["--no-cache"] * cold,
        target,
    ]
    argv += [] if keep else ["--set", f"{target}.output=type=cacheonly"]
    # the docker driver would otherwise write an image of every linked target, that is, of the bases
    return clock(lambda: must(argv, env={**engine.environment, "BUILDX_NO_DEFAULT_LOAD": "1"}))


def files_of(engine: Engine, image: str, platform: str) -> Files:
    """The files of ``image``, from an export; nothing of the image is run."""
    name = f"imagefactory-bench-{secrets.token_hex(6)}"
    must(
        [
            *engine.docker,
            "create",
            "--name",
            name,
            "--pull",
            "never",
            "--platform",
            platform,
            image,
            "true",
        ]
    )
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
    """A real registry on loopback that began empty; every byte in it was pushed by this run."""

    address: str
    store: Path

    def stored(self) -> int:
        """Bytes of all blobs: layers, configurations and manifests."""
        return sum(
            path.stat().st_size for path in self.store.glob("docker/registry/v2/blobs/*/*/*/data")
        )

    def push(self, engine: Engine, image: str, tag: str) -> int:
        """Push ``image``; the bytes that the registry did not have before."""
        reference, before = f"{self.address}/bench:{tag}", self.stored()
        engine.tag(image, reference)
        try:
            must([*engine.docker, "push", "--quiet", reference], env=engine.environment)
        finally:
            engine.untag(reference)
        return self.stored() - before

    def size(self, tag: str) -> int:
        """Compressed bytes of one image, whatever it shares with others."""
        answer = requests.get(
            f"http://{self.address}/v2/bench/manifests/{tag}",
            headers={"Accept": _MANIFESTS},
            timeout=30,
        )
        answer.raise_for_status()
        told = answer.json()
        if "manifests" in told:
            return len(answer.content) + sum(self.size(one["digest"]) for one in told["manifests"])
        return (
            len(answer.content)
            + int(told["config"]["size"])
            + sum(int(layer["size"]) for layer in told["layers"])
        )


@contextmanager
def registry(engine: Engine) -> Iterator[Registry]:
    """An empty registry, gone with all that it holds on any way out."""
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
    """How much more a registry stores than the distinct content of its images: 1.0 is none.

    The share of the compressed bytes that it had to store, over the share of the file bytes that
    differ by SHA-256.
    """
    distinct: dict[str, int] = {}
    for one in images:
        distinct |= one.distinct
    return stored / sum(sizes) / (sum(distinct.values()) / sum(one.total for one in images))


def unpacked(plan: CellPlan, settings: Settings) -> int:
    """Bytes of all files in the wheels of a cell and of its toolchain.

    As the wheels' own directories say.
    """
    wheels = [*plan.resolution.wheels, *(plan.toolchain.wheels if plan.toolchain else ())]
    urls: dict[str, str] = {}
    for index in settings.indexes:
        for page in indexes.pages(index, {wheel.name for wheel in wheels}).values():
            urls |= {file.digests.get("sha256", ""): file.url for file in page.files}

    def held(wheel: Wheel) -> int:
        here = indexes.local(wheel, settings.find_links)
        with zipfile.ZipFile(here) if here else RemoteZip(urls[wheel.sha256]) as archive:
            return sum(member.file_size for member in archive.infolist())

    with ThreadPoolExecutor(8) as pool:
        return sum(pool.map(held, wheels))


def room(engine: Engine, size: float, patience: float = 300.0) -> None:
    """Wait until the engine's disk has ``size`` bytes free: it deletes unused steps by itself, a
    while after a build.

    Raises SetupError if it has not within ``patience`` seconds.
    """
    until = time.monotonic() + patience
    while (free := disk.free(engine.data_root)) is not None and free < size:
        if time.monotonic() > until:
            what = (
                f"{free / 1e9:.1f} GB are free at {engine.data_root}, the next image "
                f"needs {size / 1e9:.1f} GB"
            )
            raise fail(SetupError, "bench-room", what, fix="docker buildx prune, or a bigger disk")
        time.sleep(5)


def alone(stack: ExitStack, path: Path) -> None:
    """Hold the lock ``path`` until ``stack`` unwinds: benchmarks name images alike.

    SetupError if another runs.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        stack.enter_context(FileLock(path, timeout=0))
    except Timeout:
        raise fail(
            SetupError, "bench-running", "another benchmark runs on this engine", fix="wait for it"
        ) from None


def prune(engine: Engine, *, downloads: bool = False) -> None:
    """Empty the build cache, of ``downloads`` too if that is said.

    Two large cells beside each other fill a disk.
    """
    kept = [] if downloads else ["--filter", "type=regular"]
    must([*engine.docker, "buildx", "prune", "--all", "--force", *kept])


def remove_images(engine: Engine) -> None:
    """Take away what benchmarks made, by name: an image of equal content may be somebody's."""
    argv = [*engine.docker, "image", "ls", "--format", "{{.Repository}}:{{.Tag}}", "--filter"]
    for name in shell.run([*argv, f"reference={REPOSITORY}:*"], quiet=True).out.split():
        engine.untag(name)


def machine(engine: Engine) -> list[tuple[str, str]]:
    """What the seconds depend on."""
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


def told(rows: Sequence[tuple[str, str]]) -> None:
    """Facts, one a line."""
    for name, value in rows:
        ui.out.print(f"{name + ':':<13} {ui.escape(value)}")
