"""Adapter for buildx builders other than the engine's own.

A bigger machine, an arm64 one, a cluster.
"""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from imagefactory.errors import InputError, SetupError, fail
from imagefactory.system import platforms, shell
from imagefactory.system.archive import unpack
from imagefactory.system.engine import Engine
from imagefactory.system.platforms import Platform

_TAG = 128
SWAPPED = "docker-image://"


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """A builder by name: buildx's driver for it, and the platforms that its nodes run natively.

    One a node.
    """

    name: str
    driver: str
    platforms: tuple[Platform, ...]

    @property
    def platform(self) -> Platform:
        """The platform on which its build stages run."""
        return self.platforms[0]

    @property
    def is_elsewhere(self) -> bool:
        """Whether it has a store of its own.

        It does not see the engine's images, and its images have to be loaded.
        """
        return self.driver != "docker"


def find(engine: Engine, name: str) -> Builder:
    """The builder ``name``, started if it is not running.

    Raises SetupError if there is none, or it does not answer.
    """
    done = shell.run(
        [*engine.docker, "buildx", "inspect", "--bootstrap", name], env=engine.environment
    )
    driver = re.search(r"^Driver:\s*(\S+)", done.out, re.MULTILINE)
    first = re.findall(r"^Platforms:\s*([^\s,*]+)", done.out, re.MULTILINE)
    if not done.ok or driver is None or not any(map(platforms.parse, first)):
        there = shell.run(
            [*engine.docker, "buildx", "ls", "--format", "{{.Name}}"],
            env=engine.environment,
            quiet=True,
        )
        names = ", ".join(dict.fromkeys(there.out.split())) or "docker buildx ls lists them"
        said = (done.err or done.out).strip().splitlines()
        what = f"no builder {name} answers: {said[-1] if said else 'buildx said nothing'}"
        raise fail(
            SetupError,
            "no-builder",
            what,
            fix=f"there are: {names}; or docker buildx create, see docs/builders.md",
        )
    natives = [found for name in first if (found := platforms.parse(name))]
    return Builder(name=name, driver=driver[1], platforms=tuple(dict.fromkeys(natives)))


def layout(engine: Engine, image: str, cache: Path) -> str:
    """An image of the engine's as a build context for a builder elsewhere.

    ``oci-layout://FOLDER@DIGEST``.
    """
    found = engine.inspect_image(image)
    folder = cache / "layouts" / found.digest.removeprefix("sha256:")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(folder.name + ".lock")):
        if not folder.is_dir():
            with (
                tempfile.TemporaryDirectory(dir=folder.parent) as name,
                engine.saved(image) as stream,
            ):
                part = Path(name) / "layout"
                with tarfile.open(fileobj=stream, mode="r|") as archive:
                    unpack(archive, part)
                part.rename(folder)
    manifests = json.loads((folder / "index.json").read_text(encoding="utf-8"))["manifests"]
    return f"oci-layout://{folder}@{manifests[0]['digest']}"


def cache_ref(repository: str, target: str) -> str:
    """The cache of one bake target. Two targets that write one ref race, and one of them is lost
    without a word.

    Raises InputError for a reference that has a tag or a digest already.
    """
    if "@" in repository or ":" in repository.rpartition("/")[2]:
        what = f"{repository} has a tag or a digest: every target gets a tag of its own"
        raise fail(
            InputError, "cache-ref", what, fix="name a repository, such as ghcr.io/me/vllm-cache"
        )
    tag = f"cache-{re.sub(r'[^A-Za-z0-9_.-]', '-', target)}"
    if tag != f"cache-{target}" or len(tag) > _TAG:
        tag = f"{tag[: _TAG - 17]}-{hashlib.sha256(target.encode()).hexdigest()[:16]}"
    return f"{repository}:{tag}"


def caches(repository: str, targets: Iterable[str]) -> dict[str, dict[str, list[str]]]:
    """What each bake target reads and writes.

    All steps are kept (mode ``max``): with the image's layers alone, BuildKit runs every install
    step once more to see that what it would copy from there is what it has.
    """
    refs = {target: cache_ref(repository, target) for target in targets}
    return {
        target: {
            "cache-from": [f"type=registry,ref={ref}"],
            "cache-to": [
                f"type=registry,ref={ref},mode=max,compression=zstd,force-compression=true"
            ],
        }
        for target, ref in refs.items()
    }
