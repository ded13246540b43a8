"""Runs attacks and prints what held: ``python -m faults [--seed N] [--count N] [NAME ...]``.

Exits with 1 if a fault was not held. Without ``--count`` each attack is short, as in CI.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
import tempfile
import time
from pathlib import Path
from typing import cast

import faults
from faults import Attack, Outcome
from imagefactory.system import tables

#: Faults that an attack tries in its short form.
SHORT = 50


def main() -> int:
    names = [
        found.name for found in pkgutil.iter_modules(faults.__path__) if found.name != "__main__"
    ]
    options = argparse.ArgumentParser(prog="faults", description="Attack the factory.")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--count", type=int, default=SHORT, help="faults per attack")
    options.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    given = options.parse_args()
    if unknown := sorted(set(given.names) - set(names)):
        options.error(f"no attack named {', '.join(unknown)}; there are {', '.join(names)}")
    rows, failed = [], list[tuple[str, Outcome]]()
    for name in given.names or names:
        attack = cast(Attack, importlib.import_module(f"faults.{name}"))
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=f"faults-{name}-") as folder:
            found = list(attack.attack(given.seed, given.count, Path(folder)))
        took = time.monotonic() - start
        held = sum(outcome.held for outcome in found)
        rows.append([name, str(len(found)), str(held), f"{took:.1f} s"])
        failed += [(name, outcome) for outcome in found if not outcome.held]
    for line in tables.layout(["attack", "tried", "held", "time"], rows, width=None):
        print(line.plain)
    for name, outcome in failed:
        print(f"not held: {name}: {outcome.fault}: {outcome.detail}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
