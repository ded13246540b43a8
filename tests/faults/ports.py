"""Ports of small patches through invented upstream histories, and spoilt diffs.

A port is right, refused, or already upstream: what it writes is run and compared with what the
patch is for. A spoilt diff is one clear error, or is applied exactly.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from faults import Outcome
from imagefactory.errors import FactoryError
from imagefactory.inbuild import overlay
from imagefactory.patching import catalog, diffs
from imagefactory.patching.measure import Bench
from imagefactory.patching.merge import diff_of
from imagefactory.patching.patch import Patch, Step
from imagefactory.patching.rebase import Outcome as Ported
from imagefactory.patching.rebase import Rebased, rebase
from imagefactory.patching.sources import SourceTree
from imagefactory.settings import from_environment

Lines = list[str]
NAME = "pkg/pick.py"
BASE = """\
import os

LIMIT = 3


def first(cap):
    return cap >= (8, 0)


def pick(cap, forced=None):
    if forced:
        return forced
    # newest first
    if cap >= (10, 0):
        return name_of(
            "flash",
            cap,
        )
    if cap >= (9, 0):
        return "hopper"
    return "plain"


def name_of(name, cap):
    return name


def last(cap):
    return "a" if first(cap) else "b"
""".splitlines()
GUARD = ["    if cap == (12, 1):", "        return name_of(", '            "marlin",']
GUARD += ["            cap,", "        )"]
CAPS = [(7, 5), (8, 9), (9, 0), (10, 0), (12, 0), (12, 1), (12, 2)]
YAML = """\
summary: s
purpose: p
symptom: y
evidence: []
remove_when: r
stage: installed
variants:
  - {versions: "<2", diff: a.diff}
findings: f
proof: {run: proof.py, kind: static}
"""


def at(lines: Lines, text: str) -> int:
    """The index of the first line with ``text``; the end if there is none."""
    return next((i for i, line in enumerate(lines) if text in line), len(lines))


def guarded(lines: Lines, where: str) -> Lines:
    """``lines`` with the patch's lines before the line with ``where``."""
    index = at(lines, where)
    return [*lines[:index], *GUARD, *lines[index:]]


def replaced(old: str, new: Sequence[str]) -> Callable[[Lines, random.Random], Lines]:
    """A change of upstream: the line with ``old`` becomes ``new``."""

    def change(lines: Lines, _random: random.Random) -> Lines:
        index = at(lines, old)
        return [*lines[:index], *new, *lines[index + 1 :]]

    return change


def shifted(lines: Lines, dice: random.Random) -> Lines:
    """Another function at the top."""
    more = [f"def other_{i}(x):\n    return {i}\n" for i in range(dice.randint(1, 9))]
    return [*"\n".join(more).splitlines(), "", *lines]


def moved_down(lines: Lines, _random: random.Random) -> Lines:
    """The function at the end of the file."""
    start, end = at(lines, "def pick"), at(lines, "def name_of")
    return [*lines[:start], *lines[end:], "", "", *lines[start:end]]


def without_block(lines: Lines, _random: random.Random) -> Lines:
    """Nothing is left of the function's choices."""
    start, end = at(lines, "# newest first"), at(lines, 'return "plain"')
    return [*lines[:start], '    return "none"', *lines[end + 1 :]]


def taken(lines: Lines, _random: random.Random) -> Lines:
    """The patch itself."""
    return guarded(lines, "# newest first")


def taken_apart(lines: Lines, _random: random.Random) -> Lines:
    """The patch itself, next to another change."""
    return replaced("# newest first", ["    # the newest first"])(taken(lines, _random), _random)


HISTORY: Mapping[str, Callable[[Lines, random.Random], Lines]] = {
    "lines above": shifted,
    "function moved": moved_down,
    "block deleted": without_block,
    "already there": taken,
    "already there, changed nearby": taken_apart,
    "comment changed": replaced("# newest first", ["    # the newest first"]),
    "call like the patch's": replaced(
        "# newest first", ["    log(", "        cap,", "    )", "    # newest first"]
    ),
    "early return": replaced("# newest first", ['    return "early"', "    # newest first"]),
    "condition changed": replaced("(10, 0)", ["    if cap[0] >= 10:"]),
    "function renamed": lambda lines, _: [line.replace("pick(", "choose(") for line in lines],
    "variable renamed": lambda lines, _: [line.replace("cap", "capability") for line in lines],
    "reindented": lambda lines, _: [line.replace("    ", "  ") for line in lines],
    "new branch": replaced(
        "# newest first", ["    # newest first", "    if cap >= (13, 0):", '        return "new"']
    ),
}


class InProcess(Bench):
    """Runs proofs without starting Python: ``judge`` is the proof of every patch."""

    def _prover(self, steps: Sequence[Step], traces: Path | None) -> overlay.Prover:
        del steps, traces
        return lambda _script, tree: judge(tree)


def judge(tree: Path) -> tuple[int, str]:
    """The proof: ``pick`` gives Marlin to 12.1."""
    path = next(iter(sorted(tree.rglob("pick.py"))), None)
    answers = _answers(path.read_text()) if path else "there is no pick.py"
    if isinstance(answers, str) or "pick" not in answers:
        return overlay.INCONCLUSIVE, str(answers)
    found = answers["pick"][CAPS.index((12, 1))]
    return (overlay.RIGHT if found == "marlin" else overlay.SYMPTOM), f"12.1 gets {found}"


def results(text: str) -> dict[str, list[str]]:
    """What every function of one argument answers for each capability."""
    space: dict[str, object] = {"log": lambda *_: None}
    exec(compile(text, "pick.py", "exec"), space)  # noqa: S102 - made here
    return {
        name: [str(space[name](cap)) for cap in CAPS]  # type: ignore[operator]
        for name in ("pick", "choose", "first", "last")
        if callable(space.get(name))
    }


def attack(seed: int, count: int, folder: Path) -> Iterator[Outcome]:
    """Two ports for each spoilt diff."""
    dice = random.Random(seed)  # noqa: S311 - not for secrets
    (folder / "patches/vllm/one").mkdir(parents=True)
    entry = folder / "patches/vllm/one"
    (entry / "patch.yaml").write_text(YAML)
    (entry / "proof.py").write_text("")
    (entry / "a.diff").write_text("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n")
    patch = catalog.load(folder / "patches")["vllm/one"]
    using = replace(from_environment({"HOME": str(folder)}), cache=folder / "cache")
    bench = InProcess(using, fresh=True)
    for number in range(count):
        one = folder / str(number)
        try:
            if number % 3 == 2:
                yield _spoilt(dice, one)
            else:
                yield _port(dice, one, patch, bench)
        except Exception as error:  # noqa: BLE001 - a crash is what the attack looks for
            held = isinstance(error, FactoryError)
            yield Outcome(fault=f"{number}", held=held, detail=f"{type(error).__name__}: {error}")


def _tree(root: Path, name: str, lines: Lines) -> SourceTree:
    path = root / name
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(lines) + "\n")
    return SourceTree(project="vllm", version="1.0", root=root, sha256=str(root))


def _port(dice: random.Random, folder: Path, patch: Patch, bench: Bench) -> Outcome:
    """Port the patch through one to three changes of upstream."""
    where = dice.choice(["# newest first", "(10, 0)"])
    names = dice.sample(sorted(HISTORY), dice.randint(1, 3))
    lines = list(BASE)
    for name in names:
        lines = HISTORY[name](lines, dice)
    moved = dice.random() < 0.25
    old = _tree(folder / "old", NAME, BASE)
    new = _tree(folder / "new", "pkg/deep/pick.py" if moved else NAME, lines)
    _tree(folder / "patched", NAME, guarded(BASE, where))
    diff = folder / "a.diff"
    diff.write_text(diff_of(old.root, folder / "patched", [NAME]))
    done = rebase(patch, diff, old, new, bench)
    fault = f"{', '.join(names)}{', file moved' if moved else ''}: {done.outcome}"
    wrong = _wrong(done, lines, folder)
    return Outcome(fault=fault, held=not wrong, detail=wrong)


def _wrong(done: Rebased, lines: Lines, folder: Path) -> str:
    """What is wrong with a port; empty if it is right, refused or already upstream."""
    before = _answers("\n".join(lines))
    if done.outcome in (Ported.OBSOLETE, Ported.UPSTREAM):
        there = "marlin" in "\n".join(lines)
        return "" if there else "upstream does not have the change"
    if done.text is None or done.outcome in (Ported.UNPROVEN, Ported.UNKNOWN):  # nothing is written
        return "" if done.seen.reason or done.fault else "refused without a reason"
    diff = folder / "ported.diff"
    diff.write_text(done.text)
    applied = overlay.git_apply(folder / "new", diff)
    if applied.returncode:
        return f"the ported diff does not apply: {applied.stderr}"
    text = next((folder / "new").rglob("pick.py")).read_text()
    after = _answers(text)
    if not isinstance(after, dict) or not isinstance(before, dict):
        return f"does not run: {after}" if isinstance(before, dict) else ""
    name = "pick" if "pick" in before else "choose"
    marlin = CAPS.index((12, 1))
    expected = {**before, name: [*before[name]]}
    expected[name][marlin] = "marlin"
    return "" if after == expected else f"{after} instead of {expected}\n{text}"


def _answers(text: str) -> dict[str, list[str]] | str:
    try:
        return results(text)
    except Exception as error:  # noqa: BLE001 - histories may break the module by themselves
        return f"{type(error).__name__}: {error}"


def _spoilt(dice: random.Random, folder: Path) -> Outcome:
    """Spoil a diff; it must be rejected, or do exactly what the good one does."""
    old = _tree(folder / "old", NAME, BASE)
    good = [line.replace("LIMIT = 3", "LIMIT = 4") for line in guarded(BASE, "# newest first")]
    _tree(folder / "patched", NAME, good)
    text = diff_of(old.root, folder / "patched", [NAME])
    name = dice.choice(sorted(SPOILS))
    diff = folder / "a.diff"
    diff.write_bytes(SPOILS[name](text, dice).encode())
    problems = list(diffs.problems(diff, "a.diff"))
    if problems:
        clear = all(problem.where and problem.what and problem.fix for problem in problems)
        return Outcome(fault=name, held=clear, detail=str(problems))
    applied = overlay.git_apply(old.root, diff)
    found = (old.root / NAME).read_text()
    if applied.returncode:
        held = "error: " in applied.stderr and found.splitlines() == BASE
        return Outcome(fault=name, held=held, detail=applied.stderr)
    exact = found == "\n".join(good) + "\n"
    return Outcome(fault=name, held=exact, detail="applied, and the result is another one")


def _counts(text: str, dice: random.Random) -> str:
    old = dice.choice([",6 ", ",7 ", ",11 ", ",12 "])
    return text.replace(old, f",{dice.randint(1, 15)} ", 1)


def _cut(text: str, dice: random.Random) -> str:
    """Cut inside the last hunk; what ends with a hunk is a diff of its own."""
    start = text.rindex("@@ ") + 6
    return text[: dice.randint(start, len(text) - 2)]


def _crlf_line(text: str, dice: random.Random) -> str:
    lines = text.split("\n")
    lines[dice.randrange(len(lines) - 1)] += "\r"
    return "\n".join(lines)


SPOILS: Mapping[str, Callable[[str, random.Random], str]] = {
    "counts of a hunk": _counts,
    "offsets of hunks": lambda text, dice: text.replace("@@ -", f"@@ -{dice.randint(1, 9)}", 1),
    "truncated": _cut,
    "CRLF": lambda text, _: text.replace("\n", "\r\n"),
    "one line with CRLF": _crlf_line,
    "no newline at the end": lambda text, _: text.rstrip("\n"),
    "mode change": lambda text, _: text.replace("--- a", "old mode 100644\nnew mode 100755\n--- a"),
    "no diff --git line": lambda text, _: text[text.index("--- a") :],
    "a context line lost its blank": lambda text, _: text.replace("\n \n", "\n\n"),
    "lines swapped": lambda text, _: text.replace("--- a", "+++ x", 1).replace("+++ b", "--- b", 1),
}
