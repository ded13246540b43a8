"""The engine: which one is used, what it is, and everything that can be asked of it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from imagefactory.errors import SetupError, fail
from imagefactory.system import platforms, ssh
from imagefactory.system.engine.builds import Builds
from imagefactory.system.engine.containers import Containers
from imagefactory.system.engine.docker import Docker
from imagefactory.system.engine.images import Images
from imagefactory.system.engine.scratch import Scratch
from imagefactory.system.engine.services import Services
from imagefactory.system.platforms import Platform

if TYPE_CHECKING:
    from imagefactory.system.registry import Registries

#: Seconds that an engine has to say which one it is.
ANSWER_SECONDS = 20
#: Seconds for a call of Docker's client on another machine, which may be switched off meanwhile.
REMOTE_SECONDS = 120


class Engine(Images, Containers, Scratch, Services, Builds):
    """Docker with Buildx: the machine's own engine, the project's private one, or another's.

    ``binary`` is Docker's client, ``host`` the engine's address and ``config`` the folder of the
    client's configuration; Docker's own defaults apply to what is None. ``timeout`` is for calls
    of the client that have no limit of their own.
    """

    def __init__(
        self,
        *,
        binary: str = "docker",
        host: str | None = None,
        config: str | None = None,
        timeout: float | None = None,
    ) -> None:
        super().__init__(Docker(binary=binary, host=host, config=config, timeout=timeout))
        self.private = host is not None
        #: For programs that call docker by themselves, such as the project's scripts.
        self.environment: Mapping[str, str] = self._docker.environment
        self._config = Path(config) if config else None

    @cached_property
    def registries(self) -> Registries:
        """The client of registries, with the credentials that a push uses."""
        from imagefactory.system.registry import Registries  # noqa: PLC0415 - rarely used

        return Registries(self._config)

    @classmethod
    def connect(cls, environ: Mapping[str, str], state: Path) -> Engine:
        """The engine to use: the machine's own if it answers, else that of ``scripts/engine``.

        Raises SetupError ``no-engine`` if none answers.
        """
        own = cls()
        if own.alive():
            return own
        known = _private(environ, state)
        if known:
            binary, host, config = known
            private = cls(binary=binary, host=host, config=config)
            if private.alive():
                return private
        raise fail(
            SetupError,
            "no-engine",
            "no container engine answers (a Docker client alone is none)",
            fix=(
                "start Docker, or start a private engine with imagefactory engine up; "
                "imagefactory doctor says more"
            ),
        )

    @classmethod
    def of_machine(cls, host: str, environ: Mapping[str, str], state: Path) -> Engine:
        """The engine of another machine, which Docker's client reaches over ssh.

        ``host`` is ``[user@]host[:port]``. No engine has to run on this machine.
        """
        return cls(binary=client(environ, state), host=ssh.url(host), timeout=REMOTE_SECONDS)

    def alive(self) -> bool:
        """Whether a daemon answers and Buildx is installed."""
        try:
            server, buildx, _ = self._identity
        except SetupError:
            return False
        return bool(server and buildx)

    @cached_property
    def _identity(self) -> tuple[str, str, str]:
        """Versions of engine and Buildx, as they name themselves, and the engine's platform.

        Each is empty if there was no answer.
        """
        server = ("version", "--format", "{{.Server.Version}} {{.Server.Os}}/{{.Server.Arch}}")
        with ThreadPoolExecutor(2) as pool:
            asked = pool.map(
                lambda words: self._docker.call(*words, timeout=ANSWER_SECONDS),
                (server, ("buildx", "version")),
            )
            engine, buildx = (done.out.strip() if done.ok else "" for done in asked)
        version, _, platform = engine.partition(" ")
        return version, buildx, platform

    @property
    def version(self) -> tuple[str, str]:
        """Versions of engine and Buildx, as they name themselves."""
        return self._identity[:2]

    @property
    def platform(self) -> Platform:
        """The engine's own platform, on which build stages run natively.

        Raises SetupError for one that images are not made on.
        """
        found = platforms.parse(self._identity[2])
        if found is None:
            what = (
                f"the engine runs on {self._identity[2]}, and images are built on "
                f"{' or '.join(Platform)}"
            )
            raise fail(SetupError, "engine-platform", what, fix="use an engine on one of them")
        return found

    @cached_property
    def data_root(self) -> str:
        """Folder on the engine's machine that holds its images."""
        return self._info[0] or "/"

    @cached_property
    def shares_loopback(self) -> bool:
        """Whether the engine reaches servers on this machine's loopback address.

        One on another machine, in a virtual machine or without root has another such address.
        """
        return Path(self.data_root).is_dir() and "rootless" not in self._info[1]

    @cached_property
    def has_containerd_store(self) -> bool:
        """Whether images are in containerd's store, where a layer that is unpacked stays so."""
        return "io.containerd.snapshotter" in self._info[2]

    @cached_property
    def _info(self) -> tuple[str, str, str]:
        """Its folder, security options and kind of image store; empty without an answer."""
        shown = "{{println .DockerRootDir}}{{println .SecurityOptions}}{{println .DriverStatus}}"
        lines = self._docker.call("info", "--format", shown).out.splitlines()
        root, security, store = (*lines, "", "", "")[:3]
        return root, security, store

    def blob_folder(self, digest: str) -> Path | None:
        """The folder of this machine with the engine's blobs, named by their SHA-256.

        None if the blob ``digest`` cannot be read there: the engine is on another machine, say, or
        its files belong to somebody else.
        """
        for root in (Path(self.data_root, "containerd", "daemon"), Path("/var/lib/containerd")):
            folder = root / "io.containerd.content.v1.content" / "blobs" / "sha256"
            if os.access(folder / digest.removeprefix("sha256:"), os.R_OK):
                return folder
        return None

    def emulates(self, platform: Platform) -> bool:
        """Whether the kernel runs programs of ``platform``: its own, or through binfmt_misc."""
        handler = Path("/proc/sys/fs/binfmt_misc", platform.emulator)
        return platform == platforms.here() or handler.exists()


def client(environ: Mapping[str, str], state: Path) -> str:
    """Docker's client on this machine: its own, else the private engine's."""
    own, known = shutil.which("docker", path=environ.get("PATH")), _private(environ, state)
    return own or (known[0] if known else "docker")


def _private(environ: Mapping[str, str], state: Path) -> tuple[str, str, str] | None:
    """Client, address and configuration of the engine of ``scripts/engine``, if it was started."""
    folder = Path(environ.get("IMAGEFACTORY_ENGINE_DIR") or state / "engine")
    try:
        known = json.loads((folder / "env.json").read_text(encoding="utf-8"))
        return known["docker"], known["DOCKER_HOST"], known["DOCKER_CONFIG"]
    except (OSError, ValueError, KeyError):
        return None
