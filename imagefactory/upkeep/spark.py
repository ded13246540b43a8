"""What decides how well a DGX Spark serves models: driver, memory, clocks, network.

On a GB10, CPU and GPU share one memory. nvidia-smi reports neither its size nor a power limit
(``[N/A]``), so memory is read from ``/proc/meminfo``.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from imagefactory.errors import SetupError
from imagefactory.matrix.cell_rules import is_new_enough
from imagefactory.system import shell
from imagefactory.system.engine import ContainerMemory
from imagefactory.upkeep import spark_network
from imagefactory.upkeep.finding import Finding, of

GIB = 1024**3
GPU = "NVIDIA GB10"
#: Names of the product line: NVIDIA's own machines, prototypes, and those of other makers that say
#: so; the family is the same for all of them, but early firmware leaves it out.
_FAMILY = "DGX Spark"
_PRODUCT = re.compile(r"DGX[ _]?Spark|\bGB10\b", re.IGNORECASE)
#: The share of memory that an image's server takes unless it is given another one.
DEFAULT_SHARE = 0.75
#: The share of memory in page cache above which large models may fail to load.
MOST_CACHE = 0.25
MOST_SWAPPINESS = 10
#: Bytes of memory, or of swap, that are worth mentioning.
WORTH_MENTIONING = GIB
#: A GB10 runs at about 2.4 GHz under load; after a failed negotiation with its power supply at 0.5
#: to 0.9 GHz. What it does when idle says nothing.
SLOW_MHZ, BUSY_PERCENT = 1000, 50
_CLOCKS = "clocks.sm", "clocks.max.sm", "power.draw", "power.limit", "utilization.gpu"
_PROCESSES = "pid", "process_name", "used_memory"
_OF_CONTAINER = re.compile(r"docker[-/]([0-9a-f]{64})")


def nvidia_smi(*words: str) -> str | None:
    """What nvidia-smi writes; None if there is none, or it fails."""
    try:
        done = shell.run(["nvidia-smi", *words], quiet=True, timeout=30)
    except SetupError:
        return None
    return done.out if done.ok else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where a machine's state is read: the files below ``root``, and its nvidia-smi."""

    root: Path = Path("/")
    smi: Callable[..., str | None] = nvidia_smi

    def text(self, path: str) -> str:
        """The text of a file; empty if it cannot be read."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""

    def rows(self, what: str, *fields: str) -> list[list[str]]:
        """The values that nvidia-smi reports, without units."""
        query, form = f"--query-{what}={','.join(fields)}", "--format=csv,noheader,nounits"
        lines = (self.smi(query, form) or "").splitlines()
        rows = [[value.strip() for value in line.split(",")] for line in lines]
        return [row for row in rows if len(row) == len(fields)]


def examine(
    machine: Machine,
    drivers: Mapping[str, str],
    containers: Callable[[], Sequence[ContainerMemory]],
) -> list[Finding]:
    """Examine a DGX Spark; on another machine, only say that it is none.

    ``drivers`` are what needs the driver, and the oldest one for it; ``containers`` looks up what
    running containers hold.
    """
    gpus = machine.rows("gpu", "name", "driver_version")
    product = _product(machine)
    on_gb10 = [version for name, version in gpus if name == GPU]
    if not on_gb10 and not _is_spark(machine, product):
        what = product or f"{os.uname().machine} without a name"
        return [of("spark", f"no DGX Spark ({what}): not checked for serving models")]
    return [
        of("spark", f"{product or 'unnamed'}, {f'{len(on_gb10)} GB10' if on_gb10 else 'no GPU'}"),
        _driver(on_gb10, drivers),
        *_memory(machine),
        _holders(machine, containers()),
        *_clocks(machine),
        *spark_network.examine(machine.root),
    ]


def _product(machine: Machine) -> str:
    return machine.text("sys/class/dmi/id/product_name")


def _is_spark(machine: Machine, product: str) -> bool:
    family = machine.text("sys/class/dmi/id/product_family")
    return family == _FAMILY or bool(_PRODUCT.search(product))


def _driver(versions: Sequence[str], drivers: Mapping[str, str]) -> Finding:
    if not versions:
        remedy = "install NVIDIA's driver (DGX OS: sudo apt full-upgrade), reboot, run nvidia-smi"
        return of("driver", "nvidia-smi finds no GB10", remedy)
    driver = versions[0]
    late = {what: oldest for what, oldest in drivers.items() if not is_new_enough(driver, oldest)}
    runs = ", ".join(what for what in drivers if what not in late) or "nothing of the matrix"
    if not late:
        return of("driver", f"{driver} runs {runs}")
    needs = "; ".join(f"{what} needs {oldest}" for what, oldest in late.items())
    remedy = "upgrade the driver (DGX OS: sudo apt full-upgrade, reboot), or choose an older `cuda`"
    return of("driver", f"{driver} runs {runs}; {needs}", remedy)


def _memory(machine: Machine) -> Iterator[Finding]:
    found = re.findall(r"(?m)^(\w+): +(\d+) kB", machine.text("proc/meminfo"))
    sizes = {name: int(kilobytes) * 1024 for name, kilobytes in found}
    total = sizes.get("MemTotal", 0)
    if not total or "MemAvailable" not in sizes:
        yield of("memory", "/proc/meminfo says nothing", "run imagefactory outside a sandbox")
        return
    available = sizes["MemAvailable"]
    share = int(100 * available / total) / 100
    seen = (
        f"{available / GIB:.1f} of {total / GIB:.1f} GiB available: at most "
        f"--gpu-memory-utilization {share:.2f}"
    )
    remedy = f"stop what holds memory, or serve with less than the default of {DEFAULT_SHARE}"
    yield of("memory", seen, remedy if share < DEFAULT_SHARE else "")
    cached = max(available - sizes.get("MemFree", available), 0)
    drop = "if a large model does not load: sync; echo 3 | sudo tee /proc/sys/vm/drop_caches"
    seen = f"{cached / GIB:.1f} GiB, which CUDA does not count as free"
    yield of("page cache", seen, drop if cached > MOST_CACHE * total else "")
    yield _swap(machine, sizes.get("SwapTotal", 0), sizes.get("SwapFree", 0))


def _swap(machine: Machine, total: int, free: int) -> Finding:
    swappiness = machine.text("proc/sys/vm/swappiness")
    if not total:
        return of("swap", "none")
    seen = f"{(total - free) / GIB:.1f} of {total / GIB:.1f} GiB used, swappiness {swappiness}"
    remedies = []
    if total - free > WORTH_MENTIONING:
        remedies.append("stop what does not fit, then sudo swapoff -a && sudo swapon -a")
    if swappiness.isdigit() and int(swappiness) > MOST_SWAPPINESS:
        remedies.append(
            "sudo sysctl vm.swappiness=1 (kept in /etc/sysctl.d), so that a model is not swapped "
            "out for page cache"
        )
    return of("swap", seen, "; ".join(remedies))


def _holders(machine: Machine, containers: Iterable[ContainerMemory]) -> Finding:
    """Who holds memory: what CUDA allocates is in no container's own count."""
    names, held = {}, Counter[tuple[str, str]]()
    for one in containers:
        names[one.id] = one.name
        held[f"container {one.name}", f"docker stop {one.name}"] += one.bytes
    for pid, program, mebibytes in machine.rows("compute-apps", *_PROCESSES):
        who, stop = f"{Path(program).name} (process {pid})", f"kill {pid}"
        if found := _OF_CONTAINER.search(machine.text(f"proc/{pid}/cgroup")):
            name = names.get(found[1], found[1][:12])
            who, stop = f"container {name}", f"docker stop {name}"
        held[who, stop] += int(mebibytes) << 20 if mebibytes.isdigit() else 0
    large = [one for one in held.most_common() if one[1] >= WORTH_MENTIONING]
    if not large:
        return of("held by others", "nothing")
    seen = ", ".join(f"{who}: {size / GIB:.1f} GiB" for (who, _), size in large)
    remedy = "what is not wanted: " + "; ".join(stop for (_, stop), _ in large)
    return of("held by others", seen, remedy)


def _clocks(machine: Machine) -> Iterator[Finding]:
    for clock, fastest, draw, limit, load in machine.rows("gpu", *_CLOCKS):
        limited = f"power limit {limit} W" if limit[:1].isdigit() else "no power limit reported"
        seen = f"{clock} of {fastest} MHz at {load} % load, {draw} W, {limited}"
        slow = clock.isdigit() and load.isdigit() and int(clock) < SLOW_MHZ
        if slow and int(load) >= BUSY_PERCENT:
            remedy = (
                "if it stays there, unplug the power supply from wall and machine for a minute: "
                "it has been negotiated at low power"
            )
            yield of("clocks", seen, remedy)
        else:
            yield of("clocks", seen)
