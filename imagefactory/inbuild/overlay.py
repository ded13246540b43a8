"""Applies a series to an installed tree and proves every patch. Standard library and git only: it
runs in the builder.

    python overlay.py TREE SERIES OUT

``SERIES`` holds ``series.json`` (a list of ``{"name", "diff", "proof"}``, in order, paths below
``SERIES``; one with ``exempt`` means nothing for this version and is only recorded, as is one with
``compiled``, which the wheel's binaries have in them). Every patch is judged by its proof: red
before and green after is ``needed``; green before is ``obsolete`` and left out. One without a
proof is ``unproven``: it has to apply, and that is all that is known of it. All patches are
tried, so that the failure of one hides no other; if any failed, TREE is byte-identical to what it
was and nothing is written to OUT. Otherwise OUT gets the changed files, and ``OUT.json`` the record
of what was done.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

PROOF_SECONDS = 300
RIGHT, SYMPTOM, INCONCLUSIVE = 0, 1, 3
COMPILED, UNPROVEN = "compiled in", "unproven"
#: Runs a proof on a tree; its exit code, and what it saw.
Prover = Callable[[Path, Path], tuple[int, str]]


@dataclass
class Applied:
    """What happened to one patch.

    ``files`` maps each touched path to the SHA-256 of its state after the series.
    """

    name: str
    state: str
    detail: str = ""
    offsets: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    created: list[str] = field(default_factory=list)


def git_apply(tree: Path, diff: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """``git apply`` in ``tree``, which is never taken for a part of a repository around it.

    Inside another repository git silently skips paths outside its index; the ceiling and the absent
    GIT_DIR stop that.
    """
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    env["GIT_CEILING_DIRECTORIES"] = str(tree.resolve().parent)
    argv = [
        "git",
        "-c",
        "core.autocrlf=false",
        "apply",
        "--verbose",
        "-p1",
        "--whitespace=nowarn",
        *options,
    ]
    return subprocess.run(
        [*argv, str(diff.resolve())],
        cwd=tree,
        env={**env, "LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=False,
    )


def touched(diff: Path) -> list[str]:
    """The paths a diff touches, old and new names, in order."""
    names: dict[str, None] = {}
    for line in diff.read_text(encoding="utf-8").splitlines():
        found = re.match(r"^(?:---|\+\+\+) (?:[ab]/)(.+?)(?:\t.*)?$", line)
        if found:
            names[found[1]] = None
    return list(names)


def sources_of(diff: Path) -> list[str]:
    """The files that a diff changes or removes: those that must exist."""
    names = re.findall(r"^--- a/([^\t\n]+)", diff.read_text(encoding="utf-8"), re.MULTILINE)
    return list(dict.fromkeys(names))


def prove(script: Path, tree: Path, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run a proof; its exit code (anything but 0, 1 and 3 counts as inconclusive) and last line.

    It finds ``proofkit`` beside this program. ``env`` is added to the environment: it names the
    tools that a proof may use, such as ``IMAGEFACTORY_CUDA``.
    """
    argv = [sys.executable, "-B", str(script.resolve()), str(tree.resolve())]
    full = {**os.environ, **(env or {})}
    path = (str(Path(__file__).resolve().parent), full.get("PYTHONPATH", ""))
    full["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=PROOF_SECONDS, check=False, env=full
        )
    except subprocess.TimeoutExpired:
        return INCONCLUSIVE, f"inconclusive: no end after {PROOF_SECONDS} s"
    # standard error may hold warnings of the code that the proof runs
    lines = [
        line
        for line in (done.stdout if done.stdout.strip() else done.stderr).splitlines()
        if line.strip()
    ]
    known = done.returncode in (RIGHT, SYMPTOM, INCONCLUSIVE)
    code = done.returncode if known else INCONCLUSIVE
    return code, lines[-1] if lines else f"exit {done.returncode}"


class Snapshot:
    """The bytes of some files of a tree, to go back to."""

    def __init__(self, tree: Path, names: Sequence[str]) -> None:
        self.tree = tree
        self.before = {n: (tree / n).read_bytes() if (tree / n).is_file() else None for n in names}
        self.folders = {
            f for n in names for f in (tree / n).parents if f != tree and not f.exists()
        }

    def restore(self) -> None:
        """Make every file what it was.

        Files that were not there go, and so do folders that came with them.
        """
        for name, data in self.before.items():
            if data is None:
                (self.tree / name).unlink(missing_ok=True)
            elif (self.tree / name).read_bytes() != data:
                (self.tree / name).write_bytes(data)
        for folder in sorted(self.folders, reverse=True):
            if folder.is_dir() and folder.is_relative_to(self.tree):
                folder.rmdir()


def apply_one(
    tree: Path, name: str, diff: Path | None, proof: Path, prover: Prover = prove
) -> Applied:
    """Apply and prove one patch in ``tree``; on any failure the tree is as before."""
    before, saw = prover(proof, tree)
    if before == RIGHT:
        return Applied(name, "obsolete", f"the proof passes without the patch: {saw}")
    if diff is None and before == INCONCLUSIVE:
        return Applied(name, "unknown", f"no variant for this version; {saw}")
    if diff is None:
        return Applied(name, "conflict", f"no variant for this version, and the proof fails: {saw}")
    names = touched(diff)
    snapshot = Snapshot(tree, names)
    done = git_apply(tree, diff)
    if done.returncode != 0:
        snapshot.restore()
        return _does_not_apply(tree, name, diff, done.stderr, (before, saw))
    offsets = [line for line in done.stderr.splitlines() if "offset" in line]
    reverse = git_apply(tree, diff, "--reverse", "--check")
    after, now = prover(proof, tree)
    if reverse.returncode != 0 or after == SYMPTOM or (before, after) == (SYMPTOM, INCONCLUSIVE):
        snapshot.restore()
        why = (
            now
            if reverse.returncode == 0
            else "the tree does not hold what the diff says after applying it"
        )
        return Applied(name, "broken", f"applies, and its proof still fails: {why}")
    state = "needed" if (before, after) == (SYMPTOM, RIGHT) else "unknown"
    created = [n for n in names if snapshot.before[n] is None and (tree / n).is_file()]
    return Applied(name, state, saw, offsets, dict.fromkeys(names, ""), created)


def apply_unproven(tree: Path, name: str, diff: Path | None) -> Applied:
    """Apply a patch that has no proof; if it does not fit, the tree is as before."""
    if diff is None:
        return Applied(name, "conflict", "no variant for this version, and no proof to ask")
    names = touched(diff)
    snapshot = Snapshot(tree, names)
    done = git_apply(tree, diff)
    if done.returncode != 0 or git_apply(tree, diff, "--reverse", "--check").returncode != 0:
        snapshot.restore()
        said = [line for line in done.stderr.splitlines() if line.startswith("error")]
        if git_apply(tree, diff, "--reverse", "--check").returncode == 0:
            said.append("the tree has all of it already: upstream has taken it over")
        return Applied(name, "conflict", "\n".join(said))
    offsets = [line for line in done.stderr.splitlines() if "offset" in line]
    created = [n for n in names if snapshot.before[n] is None and (tree / n).is_file()]
    saw = "it applies; it has no proof"
    return Applied(name, UNPROVEN, saw, offsets, dict.fromkeys(names, ""), created)


def _does_not_apply(
    tree: Path, name: str, diff: Path, said: str, proof: tuple[int, str]
) -> Applied:
    """A conflict, unless its files are gone and the proof does not say that it is needed."""
    gone = [n for n in sources_of(diff) if not (tree / n).is_file()]
    if gone and proof[0] == INCONCLUSIVE:
        return Applied(name, "unknown", f"there is no {', '.join(gone)}; {proof[1]}")
    errors = "\n".join(line for line in said.splitlines() if line.startswith("error"))
    return Applied(name, "conflict", errors)


def apply_series(
    tree: Path, steps: Sequence[tuple[str, Path | None, Path | None]], prover: Prover = prove
) -> list[Applied]:
    """Apply all patches in order.

    If any fails the tree is byte-identical to what it was, and all are reported.
    """
    names = [n for _, diff, _ in steps if diff for n in touched(diff)]
    whole = Snapshot(tree, list(dict.fromkeys(names)))
    done = [
        apply_one(tree, name, diff, proof, prover) if proof else apply_unproven(tree, name, diff)
        for name, diff, proof in steps
    ]
    if any(patch.state in ("conflict", "broken") for patch in done):
        whole.restore()
        return done
    for patch in done:
        for n in patch.files:
            patch.files[n] = (
                hashlib.sha256((tree / n).read_bytes()).hexdigest() if (tree / n).is_file() else ""
            )
    return done


def _settled(tree: Path, series: Path, row: dict[str, Any]) -> Applied | None:
    """A patch that is not applied here: exempt, or in the wheel already, where its proof must hold.

    One that changed only what was compiled has no proof here; the files that it was compiled into
    are recorded.
    """
    if row.get("exempt"):
        return Applied(row["name"], "n/a", row["exempt"])
    if row.get("compiled"):
        found = sorted(path for pattern in row["compiled"] for path in tree.glob(pattern))
        if len(found) < len(row["compiled"]):
            return Applied(
                row["name"], "broken", f"the wheel lacks one of {', '.join(row['compiled'])}"
            )
        hashes = {
            str(path.relative_to(tree)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in found
        }
        proven = "proven on the sources, when the wheel was made"
        state, saw = COMPILED, proven
        if row.get(UNPROVEN):
            state, saw = UNPROVEN, "compiled in; it has no proof"
        return Applied(row["name"], state, saw, [], hashes)
    if not row.get("in_wheel"):
        return None
    state, code, saw = UNPROVEN, RIGHT, "in the wheel; it has no proof"
    if not row.get(UNPROVEN):
        state, (code, saw) = "in the wheel", prove(series / row["proof"], tree)
    if code == SYMPTOM:
        return Applied(
            row["name"], "broken", f"the wheel should have it, and its proof fails: {saw}"
        )
    names = (
        [name for name in touched(series / row["diff"]) if (tree / name).is_file()]
        if row["diff"]
        else []
    )
    hashes = {name: hashlib.sha256((tree / name).read_bytes()).hexdigest() for name in names}
    return Applied(row["name"], state, saw, [], hashes)


def main(tree: Path, series: Path, out: Path) -> int:
    """Apply the series and write the overlay.

    Exit 1 with every reason if a patch conflicts or is broken.
    """
    rows = json.loads((series / "series.json").read_text(encoding="utf-8"))
    wanted = [
        row for row in rows if not any(row.get(key) for key in ("exempt", "in_wheel", "compiled"))
    ]
    steps = [
        (
            row["name"],
            series / row["diff"] if row["diff"] else None,
            None if row.get(UNPROVEN) else series / row["proof"],
        )
        for row in wanted
    ]
    applied = iter(apply_series(tree, steps))
    done = [_settled(tree, series, row) or next(applied) for row in rows]
    for patch in done:
        print(f"patch {patch.name}: {patch.state}: {patch.detail}")
        for line in patch.offsets:
            print(f"    {line}")
    if any(patch.state in ("conflict", "broken") for patch in done):
        return 1
    out.mkdir(parents=True, exist_ok=True)
    inside = {row["name"] for row in rows if row.get("in_wheel") or row.get("compiled")}
    for name in sorted({n for patch in done if patch.name not in inside for n in patch.files}):
        target = out / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(tree / name, target)
    record = [asdict(patch) for patch in done]
    out.with_name(out.name + ".json").write_text(
        json.dumps(record, indent=1) + "\n", encoding="utf-8"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(*(Path(argument) for argument in sys.argv[1:4])))
