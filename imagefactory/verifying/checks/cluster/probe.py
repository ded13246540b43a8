"""Whether the libraries open that NCCL uses between machines, and which NCCL there is.

No GPU and no RDMA device is needed for that. NCCL opens libibverbs itself, and goes on over TCP
without a word where it cannot.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from imagefactory.verifying.probe_core import Context

LEAVES_TRACES = True
VERBS = "libibverbs.so.1"
#: librdmacm is not NCCL's, but that of other transports (UCX, NIXL).
LIBRARIES = (VERBS, "libmlx5.so.1", "librdmacm.so.1")
#: What NCCL looks up in libibverbs (src/misc/ibvsymbols.cc), by the version of the symbols.
SYMBOLS = {
    "IBVERBS_1.1": (
        *("get_device_list", "free_device_list", "get_device_name", "open_device", "close_device"),
        *("get_async_event", "ack_async_event", "query_device", "query_port", "query_gid"),
        *("query_qp", "alloc_pd", "dealloc_pd", "reg_mr", "dereg_mr", "create_cq", "destroy_cq"),
        *("create_qp", "modify_qp", "destroy_qp", "fork_init", "event_type_str"),
    ),
    "IBVERBS_1.8": ("reg_mr_iova2",),
    "IBVERBS_1.10": ("query_ece", "set_ece"),
    "IBVERBS_1.12": ("reg_dmabuf_mr",),
}
NCCL = "nvidia/nccl/lib/libnccl.so.2"
DPKG, DRIVERS = Path("/var/lib/dpkg/info"), Path("/etc/libibverbs.d")


def facts(context: Context) -> dict[str, Any]:
    """The RDMA libraries, the devices that they find, and NCCL."""
    return {"rdma": rdma(), "nccl": nccl(context.site / NCCL)}


def rdma() -> dict[str, Any]:
    """Whether the libraries are installed and open, and what libibverbs says of devices.

    ``errno`` is what the search for devices ended with: ENOSYS where the kernel has no RDMA.
    """
    errors = {name: opening(name) for name in LIBRARIES}
    found: dict[str, Any] = {
        "installed": not errors[VERBS] or any(DPKG.glob("libibverbs1*.list")),
        "errors": {name: error for name, error in errors.items() if error},
        "drivers": sorted(path.stem for path in DRIVERS.glob("*.driver")),
    }
    if not errors[VERBS]:
        verbs = ctypes.CDLL(VERBS, use_errno=True)
        found["missing"] = missing(verbs)
        found["devices"], found["errno"] = devices(verbs)
    return found


def opening(library: str) -> str | None:
    """Why ``library`` does not open."""
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return str(error)
    return None


def missing(verbs: ctypes.CDLL) -> list[str]:
    """The symbols of ``SYMBOLS`` that the library lacks in that version."""
    lookup = ctypes.CDLL(None).dlvsym
    lookup.restype = ctypes.c_void_p
    lookup.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
    return [
        f"ibv_{name}@{version}"
        for version, names in SYMBOLS.items()
        for name in names
        if not lookup(
            verbs._handle,  # noqa: SLF001 - what dlvsym takes
            f"ibv_{name}".encode(),
            version.encode(),
        )
    ]


def devices(verbs: ctypes.CDLL) -> tuple[int | None, int]:
    """How many devices there are; None and the error if that cannot be said."""
    try:
        search, free = verbs.ibv_get_device_list, verbs.ibv_free_device_list
    except AttributeError:
        return None, 0
    search.restype, search.argtypes = ctypes.c_void_p, (ctypes.POINTER(ctypes.c_int),)
    free.restype, free.argtypes = None, (ctypes.c_void_p,)
    count = ctypes.c_int()
    ctypes.set_errno(0)
    listed = search(ctypes.byref(count))
    if not listed:
        return None, ctypes.get_errno()
    free(listed)
    return count.value, 0


def nccl(path: Path) -> dict[str, Any] | None:
    """The version that NCCL itself says it is, or why it does not load; None if there is none."""
    if not os.path.lexists(path):
        return None
    number = ctypes.c_int()
    try:
        code = ctypes.CDLL(str(path)).ncclGetVersion(ctypes.byref(number))
    except (OSError, AttributeError) as error:
        return {"version": None, "error": str(error)}
    major, rest = divmod(number.value, 10000)
    version = f"{major}.{rest // 100}.{rest % 100}"
    return {"version": version, "error": f"ncclGetVersion: {code}" if code else None}
