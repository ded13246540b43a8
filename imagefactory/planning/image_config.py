"""The configuration of an image: its labels and its environment. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from imagefactory.locking.lock import LockedBase, LockedToolchain, Resolution
from imagefactory.locking.store import digest as lock_digest
from imagefactory.matrix.cell import Base, Cell
from imagefactory.patching.patch import Step, unproven

LABEL = "io.imagefactory"
#: Where the toolchain is in an image.
CUDA_HOME = "/opt/cuda"
#: The folder that holds everything that is compiled or fetched at run time.
CACHE = "/root/.cache"
#: Where the entrypoint starts.
WORKING_FOLDER = "/root"
_VENV = "/opt/venv"
#: Debian's own PATH.
_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


def environment(
    cell: Cell, toolchain: LockedToolchain | None, locked: LockedBase
) -> dict[str, str]:
    """The image's environment variables, without those that are only its base's.

    Those of the flavor win.
    """
    home = cuda_home(cell, toolchain, locked)
    env = {
        "PATH": ":".join([f"{_VENV}/bin", *_path(cell.flavor.base, locked)]),
        "VIRTUAL_ENV": _VENV,
        "IMAGEFACTORY_CHANNEL": cell.channel,
        "IMAGEFACTORY_SERVE_ARGS": json.dumps(list(cell.flavor.serve_args)),
        # what is compiled at run time is worth keeping: below the one folder that users mount
        "TORCHINDUCTOR_CACHE_DIR": f"{CACHE}/torchinductor",
    }
    if cell.channel != "cpu":
        env |= {
            # the NVIDIA container runtime gives containers with these access to the GPU
            "NVIDIA_VISIBLE_DEVICES": "all",
            "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
            "TRITON_CACHE_DIR": f"{CACHE}/triton",
            # what the driver compiles from PTX: on a GB10 all of vLLM's FlashAttention
            "CUDA_CACHE_PATH": f"{CACHE}/cuda",
        }
    if home:
        env |= {
            "CUDA_HOME": home,
            # Triton brings a ptxas for each generation of GPUs; the image's own replaces both
            "TRITON_PTXAS_PATH": f"{home}/bin/ptxas",
            "TRITON_PTXAS_BLACKWELL_PATH": f"{home}/bin/ptxas",
        }
    return {**env, **cell.flavor.env}


def _path(base: Base, locked: LockedBase) -> Sequence[str]:
    """The PATH of the base: what the matrix says, else that of its image, else Debian's."""
    if base.path:
        return base.path
    own = dict(locked.env or ()).get("PATH", "")
    folders = own.split(":") if own else list(_PATH)
    compilers = f"{base.cuda_home}/bin"
    return folders if base.cuda_home is None or compilers in folders else [compilers, *folders]


def cuda_home(cell: Cell, toolchain: LockedToolchain | None, locked: LockedBase) -> str | None:
    """Where the image has compilers: a toolchain's, else those that the base brings."""
    if toolchain:
        return CUDA_HOME
    return cell.flavor.base.cuda_home or _cuda_home_of(dict(locked.env or ()))


def _cuda_home_of(env: Mapping[str, str]) -> str | None:
    """Where an image with this environment has a CUDA toolkit; None if it says nothing of one.

    NVIDIA's images set no CUDA_HOME. They all have the toolkit's folder on their PATH, but only
    those with compilers (``-devel``) also set LIBRARY_PATH, for linkers.
    """
    named = env.get("CUDA_HOME") or env.get("CUDA_PATH")
    if named:
        return named
    folders = (one.removesuffix("/bin") for one in env.get("PATH", "").split(":"))
    homes = (one for one in folders if one.rpartition("/")[2].startswith("cuda"))
    linked = env.get("LIBRARY_PATH", "").split(":")
    return next((home for home in homes if any(x.startswith(f"{home}/") for x in linked)), None)


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
    if cell.ref:
        found |= {f"{LABEL}.ref": cell.ref.words, f"{LABEL}.commit": cell.ref.commit}
    if names := unproven(series):
        found[f"{LABEL}.unproven"] = " ".join(names)
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
    if step.variant and step.patch.unproven:
        return f"{step.variant.diff.name} (unproven)"
    return step.variant.diff.name if step.variant else "n/a" if step.exempt else "proof only"
