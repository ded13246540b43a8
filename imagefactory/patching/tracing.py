"""Runs a proof and records which paths of its tree it looked at. Standard library only.

    IMAGEFACTORY_PROOF=proof.py IMAGEFACTORY_TRACE=OUT python tracing.py TREE

OUT gets a line of JSON for each path that was opened, examined or listed, relative to TREE, and
whether it was listed, with those that compilers included; for a folder that was searched, what for.
``null`` if that is not known, because another program was run on the tree. It is written when the
proof has ended; one that the proof runs (``proofkit.again``) writes beside it.
"""

from __future__ import annotations

import atexit
import functools
import gc
import glob
import json
import os
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

#: The environment names the file to which GCC, below nvcc too, reports the headers it included.
GCC_REPORT = "DEPENDENCIES_OUTPUT"
#: The environment names the folder with what compilers made for other trees, if it is to be used.
COMPILED = "IMAGEFACTORY_COMPILED"
COMPILERS = frozenset({"g++", "gcc", "nvcc"})
#: The environment names where the record goes, and the proof.
TRACE, PROOF = "IMAGEFACTORY_TRACE", "IMAGEFACTORY_PROOF"
#: New objects between two collections of garbage. Proofs parse whole packages and keep the trees:
#: Python's own 700 cost them a tenth of their time.
COLLECTED = 200_000
#: As in proofkit, which this program runs without.
SEARCH, SEARCHED, TRACER = "imagefactory.search", "imagefactory.searched", "IMAGEFACTORY_TRACER"


class Recorder:
    """What a proof looked at below ``root``.

    Attributes:
        root: the tree, resolved.
        paths: relative paths that were opened, examined or listed.
        listed: those that were listed.
        searched: folders, and the names and texts that were searched for in them.
        known: whether ``paths`` is everything.
        include: folders in which compilers searched for headers.
        reports: variables with one of which compilers report headers to this program.
    """

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.paths: set[str] = set()
        self.listed: set[str] = set()
        self.searched: set[tuple[str, str, str]] = set()
        self.is_searching = False
        self.known = True
        self.include: set[str] = set()
        self.reports = {GCC_REPORT}

    def note(self, path: object, *, listed: bool = False) -> None:
        """Record ``path`` if it is in the tree."""
        if self.is_searching:
            return
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        if isinstance(path, str | os.PathLike):
            full = os.path.abspath(path)  # noqa: PTH100 - pathlib would examine the path again
            if full == self.root or full.startswith(self.root + os.sep):
                relative = os.path.relpath(full, self.root)
                self.paths.add(relative)
                if listed:
                    self.listed.add(relative)

    def hear(self, event: str, arguments: tuple[object, ...]) -> None:
        """Handle one of Python's audit events."""
        if event in (SEARCH, SEARCHED):
            if event == SEARCH:
                folder, names, text = map(str, arguments)
                self.searched.add((os.path.relpath(folder, self.root), names, text))
            self.is_searching = event == SEARCH
        elif event in ("open", "os.listdir", "os.scandir"):
            self.note(arguments[0], listed=event != "open")
        elif event == "subprocess.Popen":
            self._ran(arguments[1], arguments[2], arguments[3])
        elif event == "os.posix_spawn":  # with which subprocess starts programs from Python 3.13 on
            self._ran(arguments[1], None, arguments[2])
        elif event in ("os.system", "os.exec"):
            self.known = False

    def _ran(self, argv: object, folder: object, env: object) -> None:
        words = [os.fspath(word) for word in argv] if isinstance(argv, list | tuple) else [argv]
        texts = [word if isinstance(word, str) else str(word) for word in words]
        variables = env if isinstance(env, Mapping) else os.environ
        given = {os.fsdecode(name): os.fsdecode(value) for name, value in variables.items()}
        if os.path.basename(texts[0]) in COMPILERS:  # noqa: PTH119 - as in note
            self.known = self.known and not self.reports.isdisjoint(given)
            self.include.update(text[2:] for text in texts if text.startswith("-I"))
            for text in texts[1:]:
                if not text.startswith("-"):
                    self.note(text)
        elif __file__ in texts:
            pass  # it writes a record of its own
        elif any(self.root in text for text in (*texts, str(folder or _here()), *given.values())):
            self.known = False

    def headers(self, report: Path) -> None:
        """Record the headers that compilers included, and where they looked for them first."""
        text = report.read_text(encoding="utf-8") if report.is_file() else ""
        names = {word for word in text.replace("\\\n", " ").split() if not word.endswith(":")}
        inside = [Path(name) for name in names if name.startswith(self.root)]
        roots = {Path(name) for name in self.include} | {path.parent for path in inside}
        for path in inside:
            self.note(path)
            for found in [root for root in roots if path.is_relative_to(root)]:
                for root in roots:
                    self.note(root / path.relative_to(found))


def _here() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 - as in note
    except OSError:
        return ""


def watch(recorder: Recorder) -> None:
    """Record from now on; what examines a path has no audit event."""

    def noting(examine: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(examine)
        def examined(path, *args, **options):  # type: ignore[no-untyped-def]
            recorder.note(path)
            return examine(path, *args, **options)

        return examined

    sys.addaudithook(recorder.hear)
    for name in ("stat", "lstat", "access"):
        setattr(os, name, noting(getattr(os, name)))
    # Python 3.13 looks up names without wildcards with the lstat of when glob was imported
    globber: Any = getattr(glob, "_StringGlobber", None)
    if hasattr(globber, "lstat"):
        globber.lstat = staticmethod(os.lstat)


def remember_compilers(recorder: Recorder) -> None:
    """Take what compilers made earlier in this run for what they would make again."""
    import subprocess  # noqa: PLC0415 - few proofs compile

    sys.path.append(str(Path(__file__).parents[2]))
    from imagefactory.patching import compiled  # noqa: PLC0415 - as above

    sys.path.pop()
    recorder.reports.add(compiled.WHOLE_REPORT)
    memory = compiled.Compiled(Path(os.environ[COMPILED]), recorder.root, recorder.paths.update)
    setattr(subprocess, "run", memory.run)  # noqa: B010


def write(recorder: Recorder, out: Path, report: Path) -> None:
    """Write what was recorded."""
    recorder.headers(report)
    rows: list[object] = [[path, path in recorder.listed] for path in sorted(recorder.paths)]
    rows += [[folder, [names, text]] for folder, names, text in sorted(recorder.searched)]
    lines: Sequence[object] = rows if recorder.known else [None]
    out.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def main(tree: str, *more: str) -> None:
    """Run the proof as if it had been started itself."""
    proof, out = os.environ[PROOF], Path(os.environ[TRACE])
    if more:
        out = out.with_suffix(f".{os.getpid()}.trace")
    os.environ[TRACER] = __file__
    report = out.with_suffix(".headers")
    os.environ[GCC_REPORT] = str(report)
    recorder = Recorder(Path(tree).resolve())
    atexit.register(write, recorder, out, report)
    sys.argv = [proof, tree, *more]
    gc.set_threshold(COLLECTED)
    sys.path[0] = str(Path(proof).parent)
    if COMPILED in os.environ:
        remember_compilers(recorder)
    watch(recorder)
    runpy.run_path(proof, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
