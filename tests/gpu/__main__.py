"""Runs the probes on the GPU of this machine, and servers if there is vLLM; writes a record.

``python -m gpu [--python PYTHON]``: PYTHON is one with torch, and perhaps with vLLM. Exits with 1
if anything is wrong, or a planted fault is not found; with 3 if PYTHON has no torch, or no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu import records

RUNNER = records.ROOT / "imagefactory" / "verifying" / "gpu" / "probe_runner.py"
SERVERS = Path(__file__).parent / "servers.py"


def run(python: str, *words: str) -> Any:
    """What a program prints as JSON."""
    paths = (str(records.ROOT), str(records.ROOT / "tests"), os.environ.get("PYTHONPATH", ""))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    done = subprocess.run([python, *words], env=env, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    return json.loads(done.stdout)


def no_gpu(python: str) -> str:
    """Why this machine has no GPU for that Python; empty if it has one."""
    found = run(python, str(RUNNER), "--json", "--only", "identity")["probes"]["identity"]
    return str(found["error"]).partition("\n")[0]


def record(python: str, *, parallel: int, serve: bool) -> dict[str, Any]:
    """Run everything."""
    probes = run(python, str(RUNNER), "--json", "--plants")
    vllm = probes["versions"].get("vllm") if serve else None
    servers = run(python, str(SERVERS), "--parallel", str(parallel)) if vllm else None
    identity = probes["probes"]["identity"]["facts"]
    major, minor = identity.get("capability", (0, 0))
    return {
        "schema": 1,
        "made": datetime.now(UTC).date().isoformat(),
        "device": identity.get("name", "unknown"),
        "capability": f"sm_{major}{minor}",
        "driver": identity.get("driver", ""),
        "python": probes["python"],
        "versions": probes["versions"],
        "probes": probes,
        "servers": servers,
    }


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(prog="gpu", description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="a Python with torch")
    parser.add_argument("--folder", type=Path, default=records.FOLDER, help="where records go")
    parser.add_argument("--parallel", type=int, default=4, help="servers at the same time")
    parser.add_argument("--no-servers", action="store_true", help="run the probes alone")
    options = parser.parse_args()
    missing = no_gpu(options.python)
    if missing:
        print(f"no GPU for {options.python}: {missing}", file=sys.stderr)
        return 3
    made = record(options.python, parallel=options.parallel, serve=not options.no_servers)
    options.folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^a-z0-9]+", "-", made["device"].lower()).strip("-")
    path = options.folder / f"{name}-{made['made']}.json"
    path.write_text(json.dumps(made, separators=(",", ":")) + "\n", encoding="utf-8")
    rows = list(records.rows(made))
    for row in rows:
        mark = "ok" if row.good else "WRONG"
        print(f"{mark:5} {row.name:34} {row.judged.outcome:4} {row.judged.detail[:200]}")
    print(f"recorded in {path}")
    return 0 if all(row.good for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
