"""Images in the engine: looked up, named, described, and sent to a registry."""

from __future__ import annotations

import json
import re
import tarfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from imagefactory.system import reference as references
from imagefactory.system import registry_failures, shell, ui
from imagefactory.system.engine.docker import GoneError, Part, failure
from imagefactory.system.registry_failures import RegistryError, error_of

if TYPE_CHECKING:
    from python_on_whales import Image

#: Processes that look images up side by side.
LOOK_UPS = 4
#: Times that a push is tried.
PUSHES = 3
#: Seconds until a pull that is to end does.
_PULL_CHECKED = 0.05
#: Times that images are listed while the engine removes parts of another one.
LISTINGS = 5
_NO_SNAPSHOT = re.compile(r"snapshot \S+ does not exist")
#: Docker's client has lost its daemon, not the registry.
_ENGINE_GONE = re.compile(r"docker daemon|docker\.sock|error during connect", re.IGNORECASE)
#: Steps of a Dockerfile that make no layer.
_NO_LAYER = ("ENV ", "LABEL ", "EXPOSE ", "HEALTHCHECK ", "ENTRYPOINT ", "CMD ", "ARG ")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageInfo:
    """An image in the engine.

    Attributes:
        ref: the reference that was asked for.
        digest: ``sha256:...``, of its manifest or index; of its config in an engine without the
            containerd image store.
        layers: digests of its unpacked layers, bottom first: equal for equal content, whenever and
            wherever it was imported.
        platform: OCI platform, such as ``linux/arm64``.
        labels: its labels.
        env: the environment of its containers.
        size: bytes that it takes in the engine.
    """

    ref: str
    digest: str
    layers: tuple[str, ...]
    platform: str
    labels: Mapping[str, str]
    env: Mapping[str, str]
    size: int


class Images(Part):
    """What the adapter does with images."""

    def find_images(self, refs: Iterable[str]) -> dict[str, ImageInfo]:
        """Those of ``refs`` (``name:tag`` or a digest) that exist, by reference.

        One look-up for all of them. Raises SetupError if the engine does not answer.
        """
        wanted = list(dict.fromkeys(refs))
        if not wanted:
            return {}
        # Docker looks one name up after the other
        parts = [wanted[number::LOOK_UPS] for number in range(min(LOOK_UPS, len(wanted)))]
        with ThreadPoolExecutor(LOOK_UPS) as pool:
            rows = [row for found in pool.map(self._rows, parts) for row in found]
        by_name = {name: row for row in rows for name in (*(row.get("RepoTags") or ()), row["Id"])}
        return {ref: _from_row(ref, by_name[ref]) for ref in wanted if ref in by_name}

    def _rows(self, refs: Sequence[str]) -> list[dict[str, Any]]:
        done = self._docker.call("image", "inspect", *refs)
        if not done.ok and "no such image" not in done.err.lower():
            raise failure("docker image inspect", done.err)
        rows: list[dict[str, Any]] = json.loads(done.out or "[]")
        return rows

    def inspect_image(self, ref: str) -> ImageInfo:
        """The image ``ref``. Raises CheckFailedError ``image-missing`` if there is none."""
        with self._docker.whales(f"inspecting {ref}", image=ref) as client:
            return _from_model(ref, client.image.inspect(ref))

    def names(self, repository: str) -> list[str]:
        """Every reference in ``repository``."""
        wanted = f"reference={repository}:*"
        argv = ("image", "ls", "--format", "{{.Repository}}:{{.Tag}}", "--filter", wanted)
        tries = 1
        while not (done := self._docker.call(*argv)).ok:
            if tries == LISTINGS or not _NO_SNAPSHOT.search(done.err):
                raise failure("docker image ls", done.err or done.out)
            tries += 1
        return [name for name in done.out.split() if not name.endswith(":<none>")]

    def tag(self, source: str, target: str) -> None:
        """Give the image ``source`` the further name ``target``.

        Raises CheckFailedError ``image-missing`` if there is no such image.
        """
        with self._docker.whales(f"naming {source} {target}", image=source) as client:
            client.image.tag(source, target)

    def untag(self, ref: str) -> None:
        """Remove the name ``ref``; the image goes only if that was its last name.

        A name that does not exist is fine. Raises SetupError if the engine keeps it, for a
        container that uses it, say.
        """
        with suppress(GoneError), self._docker.whales(f"removing {ref}") as client:
            client.image.remove(ref, prune=False)

    def is_unpacked(self, ref: str) -> bool:
        """Whether the engine has unpacked all layers, which it does when it first runs an image."""
        done = self._docker.call("image", "history", "--human=false", "--format", "{{.Size}}", ref)
        if done.ok:
            return any(int(size) for size in done.out.split())
        if _NO_SNAPSHOT.search(done.err):
            return False  # it has unpacked some of them, for another image
        raise failure("docker image history", done.err, ref)

    def history(self, ref: str) -> list[tuple[str, int]]:
        """What made each layer of an image, and its unpacked bytes, from the bottom up.

        Steps that make no layer are left out. Docker rounds the sizes to three digits. The image
        must be unpacked.
        """
        options = ("--no-trunc", "--human=false", "--format", "{{json .}}")
        listed = self._docker.must("image", "history", *options, ref, image=ref)
        rows = [json.loads(line) for line in listed.splitlines() if line.strip()]
        made = [(str(row["CreatedBy"]), int(row["Size"])) for row in reversed(rows)]
        return [(text, size) for text, size in made if not text.startswith(_NO_LAYER)]

    @contextmanager
    def saved(self, ref: str) -> Iterator[IO[bytes]]:
        """An image as an OCI layout in one tar stream."""
        with self._docker.pipe("save", ref) as stream:
            yield stream

    def load(self, layout: Path) -> None:
        """Load the images in an OCI layout, a folder or tar archive, with the names that they have.

        Raises SetupError if the engine does not take it.
        """
        with ExitStack() as stack:
            if layout.is_dir():
                stream = stack.enter_context(shell.pipe(["tar", "-C", str(layout), "-c", "."]))
            else:
                stream = stack.enter_context(layout.open("rb"))
            client = stack.enter_context(self._docker.whales(f"loading {layout}"))
            client.image.load(iter(partial(stream.read, 1 << 20), b""), quiet=True)

    def pull(self, ref: str, platform: str, cancelled: threading.Event) -> bool:
        """Fetch an image from its registry and unpack it; whether all of it is there.

        It ends when ``cancelled`` is set, too.
        """
        words = ("pull", "--quiet", "--platform", platform, ref)
        with self._docker.stream(*words, env={}, quiet=True) as process:
            while process.poll() is None and not cancelled.wait(_PULL_CHECKED):
                pass
            return process.poll() == 0

    def by_digest(self, pattern: str) -> list[str]:
        """The names that are digests, ``repository@digest``, in repositories like ``pattern``."""
        row = '{{if eq .Tag "<none>"}}{{.Repository}}@{{.Digest}}{{end}}'
        options = ("--digests", "--format", row, "--filter", f"reference={pattern}")
        return self._docker.call("image", "ls", *options).out.split()

    def untag_all(self, refs: Sequence[str]) -> None:
        """As ``untag``, for many at once, and as far as possible."""
        if refs:
            self._docker.call("image", "rm", "--no-prune", *refs)

    def blobs(self, ref: str) -> dict[str, int]:
        """Digest -> bytes of everything that an image consists of.

        Layers as they are compressed, config and manifest. Reads the whole image.
        """
        with self.saved(ref) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
            return {
                m.name.rpartition("/")[2]: m.size
                for m in archive
                if m.isreg() and m.name.startswith("blobs/")
            }

    def push(self, reference: str) -> None:
        """Send the image of that name to its registry.

        A cut connection or a registry that is away for a moment is tried again. What the registry
        has then is the registry's to say. Raises RegistryError if it does not take the image,
        SetupError ``engine-failed`` if the engine does not answer, or its client is killed.
        """
        import stamina  # noqa: PLC0415 - only a push needs it

        stamina.instrumentation.set_on_retry_hooks([])  # by default it logs its own event names
        for attempt in stamina.retry_context(
            on=_is_transient, attempts=PUSHES, timeout=None, wait_initial=1.0
        ):
            with attempt:
                if attempt.num > 1:
                    ui.warn(f"{reference}: the push broke off, attempt {attempt.num} of {PUSHES}")
                self._push(reference)

    def _push(self, reference: str) -> None:
        done = self._docker.call("push", "--quiet", reference, quiet=False)
        if done.ok:
            return
        said = " ".join((done.err or done.out).strip().splitlines()[-1:]) or "Docker gave no reason"
        if _ENGINE_GONE.search(said):
            raise failure("docker push", said)
        name = references.parse(reference)
        # an address or a tag in the message says nothing about the failure
        kind = registry_failures.of_text(said.replace(reference, "").replace(name.host, ""))
        raise error_of(kind, name.host, name.path, f"{reference}: {said}")


def _is_transient(error: Exception) -> bool:
    return isinstance(error, RegistryError) and error.transient


def _from_row(ref: str, row: Mapping[str, Any]) -> ImageInfo:
    config = row.get("Config") or {}
    return ImageInfo(
        ref=ref,
        digest=str(row["Id"]),
        layers=tuple((row.get("RootFS") or {}).get("Layers") or ()),
        platform=f"{row['Os']}/{row['Architecture']}",
        labels=config.get("Labels") or {},
        env=_pairs(config.get("Env")),
        size=int(row["Size"]),
    )


def _from_model(ref: str, image: Image) -> ImageInfo:
    return ImageInfo(
        ref=ref,
        digest=image.id,
        layers=tuple(image.root_fs.layers or ()),
        platform=f"{image.os}/{image.architecture}",
        labels=image.config.labels or {},
        env=_pairs(image.config.env),
        size=image.size,
    )


def _pairs(env: Iterable[str] | None) -> dict[str, str]:
    return {name: value for name, _, value in (pair.partition("=") for pair in env or ())}
