"""What buildx builders other than the engine's own need: base images, and caches in a registry.

Such a builder is a bigger machine, an arm64 one, a cluster.
"""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path

from filelock import FileLock

from imagefactory.errors import InputError, fail
from imagefactory.system.archive import unpack
from imagefactory.system.engine import Engine

_TAG = 128
SWAPPED = "docker-image://"


def layout(engine: Engine, image: str, cache: Path) -> str:
    """An image of the engine's as a build context for a builder elsewhere.

    Gives ``oci-layout://FOLDER@DIGEST``.
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
