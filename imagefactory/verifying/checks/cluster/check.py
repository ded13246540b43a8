"""The checks that images for several machines have what these need to find each other."""

from __future__ import annotations

import errno
import os

from imagefactory.verifying.check_registry import Verdict, check, count, excused, failed, passed
from imagefactory.verifying.modes import RAY_CLUSTER, RAY_NODES
from imagefactory.verifying.subject import Subject

#: The driver of the network cards of a DGX Spark.
DRIVER = "mlx5"
PACKAGE = "libibverbs1"


@check("cluster-rdma", needs="facts")
def rdma(subject: Subject) -> Verdict:
    """RDMA: libibverbs, libmlx5 and librdmacm open, libibverbs has every symbol that NCCL looks up,
    the driver of ConnectX cards is registered, and the search for devices ends without an error.

    Fails for a base that names the libraries and lacks one, or has one that NCCL cannot use: it
    would go on over TCP without a word. That it takes RDMA can only be seen on two machines with
    such cards.
    """
    facts = subject.facts["cluster"]["rdma"]
    expected = subject.expected
    wanted = expected is not None and PACKAGE in expected.cell.flavor.base.packages
    if not facts["installed"]:
        return failed(f"the image lacks {PACKAGE}") if wanted else passed("no RDMA in this image")
    faults = [f"{name}: {error}" for name, error in facts["errors"].items()]
    if facts.get("missing"):
        faults.append(f"libibverbs lacks {', '.join(facts['missing'])}")
    if DRIVER not in facts["drivers"]:
        faults.append(f"no driver {DRIVER} in /etc/libibverbs.d")
    found, code = facts.get("devices"), facts.get("errno", 0)
    if code not in (0, errno.ENOSYS):
        faults.append(f"ibv_get_device_list: {os.strerror(code)}")
    if faults:
        return failed("; ".join(faults))
    here = "no RDMA in this kernel" if found is None else count(found, "device")
    return passed(f"opens, with all symbols that NCCL looks up; {here}")


@check("cluster-nccl", needs=("facts", "lock"))
def nccl(subject: Subject) -> Verdict:
    """NCCL loads, and says that it is of the locked version.

    Fails for an NCCL that another wheel has replaced, that does not load, or that is not locked.
    """
    wheels = subject.resolution.wheels if subject.resolution else ()
    locked = next((one.version for one in wheels if one.name.startswith("nvidia-nccl-cu")), None)
    found = subject.facts["cluster"]["nccl"]
    if locked is None and found is None:
        return passed("no NCCL in this image")
    if found is None or found["error"]:
        return failed(f"NCCL {locked} does not load: {found['error'] if found else 'no library'}")
    if found["version"] != locked:
        return failed(f"NCCL is {found['version']}, and not {locked or 'in the lock'}")
    return passed(f"NCCL {locked}, as locked")


@check("cluster-ray", needs="facts", excusable=True)
def ray(subject: Subject) -> Verdict:
    """``ray-head`` and ``ray-worker``, in two containers on one network, become one Ray cluster.

    Fails for either one that does not start, or that the head does not see. Not tried for images
    that this machine can only emulate.
    """
    run = subject.entrypoint.get(RAY_CLUSTER)
    if not subject.probed.facts("entrypoint").get("ray"):
        return passed("no Ray in this image")
    if run is None:
        return excused("Ray is not started where it is emulated")
    if run.code != 0 or run.out.strip() != str(RAY_NODES):
        return failed(f"a head and a worker: {run}", seconds=run.seconds)
    return passed("a head and a worker see each other", seconds=run.seconds)
