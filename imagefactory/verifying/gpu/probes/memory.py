"""Memory: who says how much there is, and whether what is written is read again.

On unified memory (GB10) nvidia-smi reports none: the kernel's own figures are those to believe.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

FAULTS = {"memory": ("lost-write", "no-figures")}
#: Elements of 8 bytes that are written and read: 1 GiB.
ELEMENTS = 1 << 27


def memory(torch: Any, plant: str) -> dict[str, Any]:
    """The figures of the kernel, CUDA and nvidia-smi; write 1 GiB and read it again."""
    known = _meminfo()
    free, total = torch.cuda.mem_get_info()
    written = torch.arange(ELEMENTS, device="cuda", dtype=torch.int64)
    if plant == "lost-write":
        written[ELEMENTS // 2] = 0
    right = written == torch.arange(ELEMENTS, device="cuda", dtype=torch.int64)
    found = {
        "integrated": bool(torch.cuda.get_device_properties(0).is_integrated),
        "meminfo_total": known.get("MemTotal", 0),
        "meminfo_available": known.get("MemAvailable", 0),
        "cuda_total": total,
        "cuda_free": free,
        "smi_total": _smi(),
        "bytes": ELEMENTS * 8,
        "wrong": ELEMENTS - int(right.sum()),
    }
    return {**found, "meminfo_total": 0, "cuda_total": 0} if plant == "no-figures" else found


def _meminfo() -> dict[str, int]:
    """Bytes, by the names in /proc/meminfo."""
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    pairs = (line.split() for line in lines)
    return {words[0].rstrip(":"): int(words[1]) << 10 for words in pairs if len(words) == 3}


def _smi() -> str:
    """What nvidia-smi says is the total, such as ``143771 MiB`` or ``[N/A]``; empty without it."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    query = [program, "--query-gpu=memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().split("\n")[0][:100]


PROBES = {"memory": memory}
