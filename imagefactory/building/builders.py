"""Build caches in a registry, for machines that start without any cache."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from imagefactory.system import reference

_TAG = 128


def cache_ref(repository: str, target: str) -> str:
    """The cache of one bake target. Two targets that write one ref race, and one of them is lost
    without a word.

    Raises InputError if ``repository`` is none.
    """
    reference.repository(repository)
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
