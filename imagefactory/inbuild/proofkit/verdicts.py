"""How a proof ends: a verdict, or why there is none."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, NoReturn

RIGHT, SYMPTOM, INCONCLUSIVE = 0, 1, 3


class Inconclusive(BaseException):
    """Nothing can be said on this machine, or of sources laid out like these; its text says why.

    It passes through upstream's own ``except Exception``.
    """


class Verdict(NamedTuple):
    """How a proof ends: RIGHT, SYMPTOM or INCONCLUSIVE, and what was seen."""

    code: int
    reason: str


def verdict(symptoms: Iterable[str], right: str) -> Verdict:
    """SYMPTOM with everything that is wrong, said once each; RIGHT if there is nothing."""
    found = "; ".join(dict.fromkeys(symptoms))
    return Verdict(SYMPTOM, found) if found else Verdict(RIGHT, right)


def main(judge: Callable[[Path], Verdict]) -> NoReturn:
    """Judge the tree that the command line names, print the verdict and exit with its code.

    Whatever goes wrong in ``judge`` is inconclusive: Python's own exit code for it is that of a
    symptom.
    """
    if len(sys.argv) != 2:
        end(INCONCLUSIVE, f"usage: python {sys.argv[0]} TREE")
    tree = Path(sys.argv[1]).resolve()
    if not tree.is_dir():
        end(INCONCLUSIVE, f"there is no folder {tree}")
    try:
        code, reason = judge(tree)
    except Inconclusive as why:
        code, reason = INCONCLUSIVE, str(why)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - sources fail in ways nobody knows yet
        at = traceback.extract_tb(error.__traceback__)[-1]
        line = f"{Path(at.filename).name} line {at.lineno}"
        code, reason = INCONCLUSIVE, f"{type(error).__name__}: {error} ({line})"
    end(code, reason.replace(f"{tree}/", ""))


def end(code: int, reason: str) -> NoReturn:
    """Print one line and exit."""
    line = " ".join(reason.split())
    print(f"inconclusive: {line}" if code == INCONCLUSIVE else line)
    sys.exit(code)
