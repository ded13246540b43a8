"""Runs campaigns and prints a table by subject: ``python -m mutants [NAME ...]``.

Exits with 1 if more mutants of a subject survived than the ``GOAL`` of its campaign allows: the
share of them that must be killed or known to be harmless, all of them unless it says otherwise.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import cast

from support.score import is_missed

import mutants
from imagefactory.system import tables
from mutants import Campaign, Mutant


def main() -> int:
    names = [
        found.name for found in pkgutil.iter_modules(mutants.__path__) if found.name != "__main__"
    ]
    options = argparse.ArgumentParser(prog="mutants", description="Mutate patches and code.")
    options.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    given = options.parse_args()
    if unknown := sorted(set(given.names) - set(names)):
        options.error(f"no campaign named {', '.join(unknown)}; there are {', '.join(names)}")
    rows, survived, ended, missed = list[list[str]](), list[Mutant](), list[Mutant](), False
    for name in given.names or names:
        campaign = cast(Campaign, importlib.import_module(f"mutants.{name}"))
        start = time.monotonic()
        subjects = defaultdict[str, list[Mutant]](list)
        with tempfile.TemporaryDirectory(prefix=f"mutants-{name}-") as folder:
            for mutant in campaign.campaign(Path(folder)):
                subjects[mutant.subject].append(mutant)
        alive = [m for tried in subjects.values() for m in tried if not (m.killed or m.harmless)]
        goal = getattr(campaign, "GOAL", 1.0)
        counts = [
            (subject, len(tried), len(tried) - sum(m.subject == subject for m in alive))
            for subject, tried in subjects.items()
        ]
        whole = ("in all", sum(row[1] for row in counts), sum(row[2] for row in counts))
        missed |= any(is_missed(tried, held, goal) for _, tried, held in [*counts, whole])
        rows += [[name, subject, str(tried), str(held)] for subject, tried, held in counts]
        rows.append(
            [name, "in all", str(whole[1]), f"{whole[2]}, {time.monotonic() - start:.1f} s"]
        )
        survived += alive
        ended += [m for tried in subjects.values() for m in tried if m.ended]
    columns = ["campaign", "subject", "tried", "killed or harmless"]
    for line in tables.layout(columns, rows, width=None):
        print(line.plain)
    for mutant in survived:
        print(f"survived: {mutant.subject}: {mutant.change}", file=sys.stderr)
    for mutant in ended:
        print(f"killed by no test, but never done: {mutant.change}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
