"""The one adapter to the container engine.

Docker with Buildx, the machine's own or the project's private one.
"""

from __future__ import annotations

import json
import secrets
import socket
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from imagefactory.errors import CheckFailedError, SetupError, fail
from imagefactory.system import cache_records, platforms, shell
from imagefactory.system.platforms import Platform

if TYPE_CHECKING:
    from python_on_whales import DockerClient

#: Clients that look images up side by side.
ASKED_AT_ONCE = 4
#: Steps of a Dockerfile that make no layer.
_NO_LAYER = ("ENV ", "LABEL ", "EXPOSE ", "ENTRYPOINT ", "CMD ", "ARG ")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageInfo:
    """An image in the engine: reference, digest (manifest or index), platform, labels, environment,
    size in bytes.

    ``layers`` are the digests of its unpacked layers: equal for equal content, whenever and
    wherever it was imported.
    """

    ref: str
    digest: str
    layers: tuple[str, ...]
    platform: str
    labels: Mapping[str, str]
    env: Mapping[str, str]
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningContainer:
    """A container that runs in the background; ``host_port`` is on 127.0.0.1."""

    docker: tuple[str, ...]
    id: str
    host_port: int

    def logs(self) -> str:
        """Everything it has written so far."""
        # one stream for both, so that lines stay in the order in which they were written
        return shell.run([*self.docker, "logs", self.id], quiet=True, join=True).out

    def alive(self) -> bool:
        """Whether its main process runs."""
        return (
            shell.run(
                [*self.docker, "inspect", "-f", "{{.State.Running}}", self.id], quiet=True
            ).out.strip()
            == "true"
        )

    def stop(self, timeout: float) -> int:
        """SIGTERM, after ``timeout`` seconds SIGKILL; the exit code of its main process."""
        shell.run([*self.docker, "stop", "--time", str(int(timeout)), self.id], quiet=True)
        return int(shell.run([*self.docker, "wait", self.id], quiet=True).out.strip() or -1)

    def remove(self) -> None:
        """Take it away, running or not."""
        shell.run([*self.docker, "rm", "--force", "--volumes", self.id], quiet=True)


class Engine:
    """Docker through its CLI; ``docker`` is the argument list that every command starts with."""

    def __init__(
        self, *, binary: str = "docker", host: str | None = None, config: str | None = None
    ) -> None:
        self.docker: tuple[str, ...] = (
            binary,
            *(("--config", config) if config else ()),
            *(("--host", host) if host else ()),
        )
        self._client: dict[str, Any] = {"client_call": [binary], "config": config, "host": host}
        self.private = host is not None
        #: For programs that call docker by themselves, such as the project's scripts.
        self.environment: dict[str, str] = {
            **({"DOCKER_HOST": host} if host else {}),
            **({"DOCKER_CONFIG": config} if config else {}),
        }

    @classmethod
    def connect(cls, environ: Mapping[str, str], state: Path) -> Engine:
        """The engine to use: the machine's own if it answers, else the private one of
        ``scripts/engine``.

        Raises SetupError if none answers.
        """
        own = cls()
        if own.alive():
            return own
        folder = Path(environ.get("IMAGEFACTORY_ENGINE_DIR") or state / "engine")
        try:
            told = json.loads((folder / "env.json").read_text(encoding="utf-8"))
            private = cls(
                binary=told["docker"], host=told["DOCKER_HOST"], config=told["DOCKER_CONFIG"]
            )
        except (OSError, ValueError, KeyError):
            private = None
        if private and private.alive():
            return private
        raise fail(
            SetupError,
            "no-engine",
            "no container engine answers (a docker client alone is none)",
            fix=(
                "start Docker, or bring up a private engine with scripts/engine up; "
                "imagefactory doctor tells more"
            ),
        )

    @cached_property
    def client(self) -> DockerClient:
        """The same through python-on-whales, whose import takes a quarter of a second.

        Only where it is used.
        """
        from python_on_whales import DockerClient  # noqa: PLC0415

        return DockerClient(**self._client)

    def alive(self) -> bool:
        """Whether a daemon answers and Buildx is there."""
        try:
            server, buildx, _ = self._told
        except SetupError:
            return False
        return bool(server and buildx)

    @cached_property
    def _told(self) -> tuple[str, str, str]:
        """Versions of engine and Buildx, as they name themselves, and the engine's platform.

        Empty for no answer.
        """
        server = ["version", "--format", "{{.Server.Version}} {{.Server.Os}}/{{.Server.Arch}}"]
        with ThreadPoolExecutor(2) as pool:
            asked = pool.map(
                lambda words: shell.run([*self.docker, *words], quiet=True, timeout=20),
                (server, ["buildx", "version"]),
            )
            engine, buildx = (done.out.strip() if done.ok else "" for done in asked)
        version, _, platform = engine.partition(" ")
        return version, buildx, platform

    @property
    def version(self) -> tuple[str, str]:
        """Versions of engine and Buildx, as they name themselves."""
        return self._told[:2]

    @property
    def platform(self) -> Platform:
        """The engine's own platform, on which build stages run natively.

        Raises SetupError for one that images are not made on.
        """
        found = platforms.parse(self._told[2])
        if found is None:
            what = (
                f"the engine runs on {self._told[2]}, and images are built on "
                f"{' or '.join(Platform)}"
            )
            raise fail(SetupError, "engine-platform", what, fix="use an engine on one of them")
        return found

    @cached_property
    def data_root(self) -> str:
        """Folder on the engine's machine that holds its images."""
        return (
            shell.run(
                [*self.docker, "info", "--format", "{{.DockerRootDir}}"], quiet=True
            ).out.strip()
            or "/"
        )

    def find_images(self, refs: Iterable[str]) -> dict[str, ImageInfo]:
        """The images that are there, by the reference asked for; one look-up for all."""
        wanted = list(dict.fromkeys(refs))
        if not wanted:
            return {}
        # the client asks for one name after the other
        parts = [wanted[number::ASKED_AT_ONCE] for number in range(min(ASKED_AT_ONCE, len(wanted)))]
        with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
            told = pool.map(
                lambda part: shell.run([*self.docker, "image", "inspect", *part], quiet=True), parts
            )
        rows = [row for done in told for row in json.loads(done.out or "[]")]
        by_name = {name: row for row in rows for name in (*(row.get("RepoTags") or ()), row["Id"])}
        return {ref: _info(ref, by_name[ref]) for ref in wanted if ref in by_name}

    def inspect_image(self, ref: str) -> ImageInfo:
        """The image ``ref``. Raises CheckFailedError if the engine has none of that name."""
        from python_on_whales.exceptions import DockerException, NoSuchImage  # noqa: PLC0415 - as above

        try:
            data = self.client.image.inspect(ref)
        except NoSuchImage:
            raise fail(
                CheckFailedError,
                "image-missing",
                f"the engine has no image {ref}",
                fix="imagefactory plan lists the tags; imagefactory build --matrix makes them",
            ) from None
        except DockerException as error:
            raise fail(
                SetupError,
                "engine-failed",
                f"image inspect {ref}: {error}",
                fix="imagefactory doctor",
            ) from None
        done = shell.run([*self.docker, "image", "inspect", data.id], quiet=True)
        return _info(ref, json.loads(done.out)[0])

    def history(self, ref: str) -> list[tuple[str, int]]:
        """What made each layer of an image, and its unpacked bytes, from the bottom up; steps
        without a layer left out.

        Docker rounds the sizes to three digits.
        """
        done = shell.run(
            [
                *self.docker,
                "image",
                "history",
                "--no-trunc",
                "--human=false",
                "--format",
                "{{json .}}",
                ref,
            ],
            quiet=True,
        )
        rows = [json.loads(line) for line in done.out.splitlines() if line.strip()]
        made = [(str(row["CreatedBy"]), int(row["Size"])) for row in reversed(rows)]
        return [(text, size) for text, size in made if not text.startswith(_NO_LAYER)]

    def read_file(self, ref: str, path: str) -> str | None:
        """The text of a file inside an image, None if it is not there.

        Nothing of the image is run.
        """
        name = _container_name()
        created = shell.run(
            [*self.docker, "create", "--name", name, "--pull", "never", ref, "true"], quiet=True
        )
        if not created.ok:
            return None
        try:
            with tempfile.TemporaryDirectory() as folder:
                target = Path(folder) / "file"
                shell.run([*self.docker, "cp", f"{name}:{path}", str(target)], quiet=True)
                return target.read_text(encoding="utf-8") if target.is_file() else None
        finally:
            shell.run([*self.docker, "rm", "--force", name], quiet=True)

    @contextmanager
    def export(self, ref: str) -> Iterator[IO[bytes]]:
        """All files of an image as one tar stream; nothing of the image is run."""
        name = _container_name()
        made = shell.run(
            [*self.docker, "create", "--name", name, "--pull", "never", ref, "true"], quiet=True
        )
        if not made.ok:
            raise fail(
                CheckFailedError,
                "image-missing",
                f"{ref}: {made.err.strip()}",
                fix="imagefactory plan",
            )
        try:
            with shell.pipe([*self.docker, "export", name]) as stream:
                yield stream
        finally:
            shell.run([*self.docker, "rm", "--force", name], quiet=True)

    @contextmanager
    def saved(self, ref: str) -> Iterator[IO[bytes]]:
        """An image as an OCI layout in one tar stream."""
        with shell.pipe([*self.docker, "save", ref]) as stream:
            yield stream

    def blobs(self, ref: str) -> dict[str, int]:
        """Digest -> bytes of everything that a push of ``ref`` sends.

        Layers as they are compressed, and its config.
        """
        with self.saved(ref) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
            return {
                m.name.rpartition("/")[2]: m.size
                for m in archive
                if m.isreg() and m.name.startswith("blobs/")
            }

    def run(
        self,
        image: str,
        argv: Sequence[str],
        *,
        platform: str,
        env: Mapping[str, str] | None = None,
        entrypoint: str | None = None,
        stdin: str | None = None,
        network: str | None = None,
        timeout: float,
        mounts: Sequence[tuple[Path, str]] = (),
        shm_size: str | None = None,
    ) -> shell.Completed:
        """Run a container to its end and remove it. Raises SetupError after ``timeout`` seconds."""
        name = _container_name()
        options = [
            *("--rm", "--name", name, "--pull", "never", "--platform", platform),
            *(("--interactive",) if stdin is not None else ()),
            *(("--entrypoint", entrypoint) if entrypoint else ()),
            *(("--network", network) if network else ()),
            *_common(env, mounts, shm_size),
        ]
        try:
            return shell.run(
                [*self.docker, "run", *options, image, *argv], stdin=stdin, timeout=timeout
            )
        except BaseException:  # a container outlives its client: remove it on a timeout or Ctrl-C
            shell.run([*self.docker, "rm", "--force", "--volumes", name], quiet=True)
            raise

    def start(
        self,
        image: str,
        argv: Sequence[str],
        *,
        platform: str,
        env: Mapping[str, str] | None = None,
        mounts: Sequence[tuple[Path, str]] = (),
        publish: int,
        shm_size: str | None = None,
    ) -> RunningContainer:
        """Start a container in the background with ``publish`` reachable on a free loopback port
        of the host.
        """
        port, name = _free_port(), _container_name()
        options = [
            *(
                "--detach",
                "--name",
                name,
                "--pull",
                "never",
                "--platform",
                platform,
                "--publish",
                f"127.0.0.1:{port}:{publish}",
            ),
            *_common(env, mounts, shm_size),
        ]
        done = shell.run([*self.docker, "run", *options, image, *argv])
        if not done.ok:
            shell.run([*self.docker, "rm", "--force", "--volumes", name], quiet=True)
            raise fail(
                CheckFailedError,
                "container-start",
                f"{image} does not start: {done.err.strip()}",
                fix="run the command above",
            )
        return RunningContainer(docker=self.docker, id=done.out.strip(), host_port=port)

    def names(self, repository: str) -> list[str]:
        """Every reference in ``repository``."""
        argv = [*self.docker, "image", "ls", "--format", "{{.Repository}}:{{.Tag}}", "--filter"]
        done = shell.run([*argv, f"reference={repository}:*"], quiet=True)
        return [line for line in done.out.split() if not line.endswith(":<none>")]

    def used_images(self) -> set[str]:
        """Digests of the images that containers, running or not, were made from."""
        listed = shell.run(
            [*self.docker, "ps", "--all", "--no-trunc", "--quiet"], quiet=True
        ).out.split()
        if not listed:
            return set()
        done = shell.run(
            [*self.docker, "container", "inspect", "--format", "{{.Image}}", *listed], quiet=True
        )
        return set(done.out.split())

    def cache_records(self) -> list[cache_records.CacheRecord]:
        """BuildKit's cache, record by record."""
        done = shell.run([*self.docker, "buildx", "du", "--verbose"], quiet=True)
        return cache_records.parse(done.out)

    def forget_cache(self, records: Sequence[str]) -> None:
        """Take these records away; those in use, or that others stand on, stay."""
        for name in records:  # the filter takes one value
            shell.run(
                [*self.docker, "buildx", "prune", "--all", "--force", "--filter", f"id={name}"],
                quiet=True,
            )

    def tag(self, source: str, target: str) -> None:
        """Give the image ``source`` the further name ``target``."""
        self.client.image.tag(source, target)

    def untag(self, ref: str) -> None:
        """Take the name ``ref`` away; the image goes only if it was its last name."""
        shell.run([*self.docker, "image", "rm", "--no-prune", ref], quiet=True)

    def emulates(self, platform: Platform) -> bool:
        """Whether the kernel runs programs of ``platform`` (its own, or through binfmt_misc)."""
        handler = Path("/proc/sys/fs/binfmt_misc", platform.emulator)
        return platform == platforms.here() or handler.exists()


def _common(
    env: Mapping[str, str] | None, mounts: Sequence[tuple[Path, str]], shm_size: str | None
) -> list[str]:
    options = [
        option for name, value in (env or {}).items() for option in ("--env", f"{name}={value}")
    ]
    options += [option for path, inside in mounts for option in ("--volume", f"{path}:{inside}:ro")]
    return options + (["--shm-size", shm_size] if shm_size else [])


def _info(ref: str, row: Mapping[str, object]) -> ImageInfo:
    config = row.get("Config")
    settings: Mapping[str, object] = config if isinstance(config, dict) else {}
    labels, env = settings.get("Labels"), settings.get("Env")
    rootfs = row.get("RootFS")
    layers = rootfs.get("Layers") if isinstance(rootfs, dict) else None
    pairs = [str(item).partition("=") for item in env] if isinstance(env, list) else []
    return ImageInfo(
        ref=ref,
        digest=str(row["Id"]),
        layers=tuple(layers) if isinstance(layers, list) else (),
        platform=f"{row['Os']}/{row['Architecture']}",
        labels=labels if isinstance(labels, dict) else {},
        env={name: value for name, _, value in pairs},
        size=int(str(row["Size"])),
    )


def _container_name() -> str:
    return f"imagefactory-{secrets.token_hex(6)}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
