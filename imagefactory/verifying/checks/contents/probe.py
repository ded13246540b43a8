"""What is in the image but should not be, and what should be but is not."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from imagefactory.verifying.probe_core import Context

#: Files without a use at run time, anywhere in site-packages, except for libraries that kernels are
#: linked with.
UNUSED = (".pyc", ".pyo", ".whl", ".a")
LINKED = ("libnvshmem_device.a", "libcudadevrt.a", "libcudart_static.a")
#: What installers leave behind.
CACHES = ("/root/.cache/pip", "/root/.cache/uv", "/var/lib/apt/lists")


def facts(context: Context) -> dict[str, Any]:
    """Paths of unused files, of dangling links and of files that a RECORD names in vain.

    If the files are judged from outside, only installers' caches are looked for: they may be in a
    base that nothing is known about.
    """
    caches = [str(path) for cache in CACHES for path in Path(cache).glob("*")]
    if context.files_judged:
        return {"unused": sorted(caches)}
    site = context.site
    unused, dangling = caches, []
    for root in dict.fromkeys((site, Path(os.environ.get("CUDA_HOME") or site))):
        for folder, _, names in os.walk(root):
            for name in names:
                path = os.path.join(folder, name)  # noqa: PTH118 - 60,000 Paths take seconds
                if name.endswith(UNUSED) and root == site and name not in LINKED:
                    unused.append(path)
                elif os.path.islink(path) and not os.path.exists(path):  # noqa: PTH110, PTH114
                    dangling.append(path)
    missing = [
        file
        for distribution in importlib.metadata.distributions()
        for file in context.recorded(distribution)
        if not os.path.lexists(site / file)
    ]
    return {"unused": sorted(unused), "dangling": sorted(dangling), "missing": sorted(missing)}
