"""The configuration of an image: its labels and its environment. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence

from imagefactory.locking.lock import LockedBase, LockedToolchain, Resolution
from imagefactory.locking.store import digest as lock_digest
from imagefactory.matrix.cell import Cell
from imagefactory.patching.patch import Step

LABEL = "io.imagefactory"
#: Where the toolchain is in an image.
CUDA_HOME = "/opt/cuda"
#: The folder that holds everything that is compiled or fetched at run time.
CACHE = "/root/.cache"
_VENV = "/opt/venv"
#: Debian's own PATH.
_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


def environment(cell: Cell, toolchain: LockedToolchain | None) -> dict[str, str]:
    """The image's environment variables; those of the flavor win."""
    base, home = cell.flavor.base, cuda_home(cell, toolchain)
    own = (f"{base.cuda_home}/bin", *_PATH) if base.cuda_home else _PATH
    env = {
        "PATH": ":".join([f"{_VENV}/bin", *(base.path or own)]),
        "VIRTUAL_ENV": _VENV,
        "IMAGEFACTORY_CHANNEL": cell.channel,
        "IMAGEFACTORY_SERVE_ARGS": json.dumps(list(cell.flavor.serve_args)),
    }
    if cell.channel != "cpu":
        env |= {
            # the NVIDIA container runtime gives containers with these access to the GPU
            "NVIDIA_VISIBLE_DEVICES": "all",
            "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
            # what is compiled at run time is worth keeping: below the one folder that users mount
            "TRITON_CACHE_DIR": f"{CACHE}/triton",
            "TORCHINDUCTOR_CACHE_DIR": f"{CACHE}/torchinductor",
        }
    if home:
        env |= {
            "CUDA_HOME": home,
            # Triton brings a ptxas for each generation of GPUs; the image's own replaces both
            "TRITON_PTXAS_PATH": f"{home}/bin/ptxas",
            "TRITON_PTXAS_BLACKWELL_PATH": f"{home}/bin/ptxas",
        }
    return {**env, **cell.flavor.env}


def cuda_home(cell: Cell, toolchain: LockedToolchain | None) -> str | None:
    """Where the image has compilers: a toolchain's, else those that the base brings."""
    return CUDA_HOME if toolchain else cell.flavor.base.cuda_home


def labels(
    cell: Cell,
    resolution: Resolution,
    series: Sequence[Step],
    base: LockedBase,
    *,
    base_digest: str,
) -> dict[str, str]:
    """The image's labels but for the build key, which depends on them."""
    oci = "org.opencontainers.image"
    found = {
        f"{oci}.title": f"vLLM {cell.axes['vllm']} ({cell.flavor.name})",
        f"{oci}.description": cell.flavor.summary,
        f"{oci}.version": cell.vllm,
        f"{oci}.created": f"{resolution.created}T00:00:00Z",
        f"{LABEL}.cell": cell.name,
        f"{LABEL}.flavor": cell.flavor.name,
        f"{LABEL}.channel": cell.channel,
        f"{LABEL}.torch": resolution.torch.version,
        f"{LABEL}.lock-digest": lock_digest(resolution),
        **{f"{LABEL}.pin.{axis}": value for axis, value in cell.pins.items()},
        **{f"{LABEL}.patch.{s.patch.name.replace('/', '.')}": _variant_text(s) for s in series},
    }
    if base.suite:  # no image that a registry has
        found |= {f"{LABEL}.base-suite": base.suite, f"{LABEL}.base-digest": base_digest}
    else:
        found |= {f"{oci}.base.name": base.image, f"{oci}.base.digest": base_digest}
    if cell.flavor.driver:
        found[f"{LABEL}.minimum-driver"] = cell.flavor.driver
    for one in cell.driver_overrides:
        found[f"{LABEL}.driver-override"] = f"{one.driver}: {one.reason}"
    return found


def _variant_text(step: Step) -> str:
    return step.variant.diff.name if step.variant else "n/a" if step.exempt else "proof only"
