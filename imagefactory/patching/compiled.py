"""Remembers what compilers made, for proofs of one run: most of it is made again and again.

The pristine and the patched sources, and neighbouring releases, agree in most of what proofs
compile. A compilation is found again if its arguments, its environment, the compiler and the
sources that it names are the same, and if all files that it read have the same content, and no
other file is where it looked for one: the names of all ``#include`` and ``__has_include``, in every
folder that is searched, count as looked for. The tree and the folder in which the compiler runs
have another path each time, so they count as the same; what is made must not depend on them.
Whatever is not understood is compiled, and not remembered, and neither is a failure: memory or disk
space may have been short. Standard library only.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: The environment names the folder with what was made; it is of one run of the factory.
FOLDER = "IMAGEFACTORY_COMPILED"
COMPILERS = frozenset({"g++", "gcc", "nvcc"})
#: The environment names the file to which GCC, below nvcc too, reports the headers it included:
#: without those of the system, and with them. It heeds the first if it has both.
REPORT, WHOLE_REPORT = "DEPENDENCIES_OUTPUT", "SUNPRO_DEPENDENCIES"
#: Options that are known to name no file but what they name here.
PLAIN = re.compile(
    r"-(std=[\w+]+|w|W\w[\w-]*|O\w?|[DU]\w+(=.*)?|I.+|cubin|E|P|c|fpermissive"
    r"|gencode=[\w=,]+|-keep|-expt-[\w-]+)"
)
WITH_VALUE = frozenset({"-o", "-x", "--keep-dir"})
#: What ``proofkit.command`` asks of ``subprocess.run``; anything else is run as it is.
ASKED = {"capture_output": True, "text": True, "errors": "replace", "check": False}
#: Lines for the preprocessor, and what may be the name of a header in them, asked for or defined.
DIRECTIVE = re.compile(rb"^[ \t]*#.*", re.MULTILINE)
NAMED = re.compile(rb"[<\"]([^<>\"\s]+)[>\"]")
Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]


@dataclass(frozen=True, slots=True)
class Places:
    """The two folders whose paths do not matter: of the sources, and where a compiler runs."""

    tree: str
    folder: str

    @property
    def marks(self) -> tuple[tuple[str, str], ...]:
        """What stands for each of them."""
        return (self.tree, "\0tree\0"), (self.folder, "\0folder\0")

    @property
    def are_apart(self) -> bool:
        """Whether their paths can be told apart, and found in what a compiler reports."""
        apart = not any(
            one == other or _is_in(one, other)
            for one, other in itertools.permutations((self.tree, self.folder))
        )
        return apart and not re.search(r"[^\w./+@~=-]", self.tree + self.folder)

    def hidden(self, text: str) -> str:
        """``text`` without these paths."""
        for path, mark in self.marks:
            text = text.replace(path, mark)
        return text

    def shown(self, text: str) -> str:
        """``text`` with these paths again."""
        for path, mark in self.marks:
            text = text.replace(mark, path)
        return text

    def are_in(self, data: bytes) -> bool:
        """Whether ``data`` has one of these paths."""
        return any(os.fsencode(path) in data for path, _ in self.marks)

    def print_of(self, path: str) -> str:
        """The content of a file, in which these paths do not matter; empty if there is none.

        A file of the system is as it is for as long as its size and time are.
        """
        hidden = self.hidden(path)
        try:
            if hidden == path:
                found = os.stat(path)  # noqa: PTH116 - thousands of times
                return f"{found.st_size} {found.st_mtime_ns}"
            if hidden.startswith("\0tree"):
                return _sha(_content(path))
            data = _content(path)
        except OSError:
            return ""
        for place, mark in self.marks:
            data = data.replace(os.fsencode(place), mark.encode())
        return _sha(data)


class Compiled:
    """Runs compilers for a proof, or gives what the same compilation made earlier in this run.

    Attributes:
        store: the folder with what was made.
        tree: the sources.
        looked: gets the paths in the tree that were read, or looked for, each time.
    """

    def __init__(
        self,
        store: Path,
        tree: str,
        looked: Callable[[list[str]], object],
        run: Run = subprocess.run,
    ) -> None:
        self.store, self.tree, self.looked, self._run = store, tree, looked, run
        self._one = threading.Lock()

    def run(self, argv: Any, *more: Any, **options: Any) -> Any:
        """As ``subprocess.run``."""
        compilation = self._compilation(argv, options) if not more else None
        if compilation is None:
            return self._run(argv, *more, **options)
        with self._one:  # what it makes is told from what was there
            return self._found(compilation) or self._made(compilation, options)

    def _compilation(self, argv: object, options: Mapping[str, object]) -> Compilation | None:
        asked = {name: value for name, value in options.items() if name != "cwd"}
        folder = options.get("cwd")
        if asked != ASKED or not isinstance(folder, str | os.PathLike):
            return None
        if not isinstance(argv, list | tuple):
            return None
        words = [os.fspath(word) for word in argv]
        places = Places(self.tree, os.path.abspath(folder))  # noqa: PTH100 - no stat
        return Compilation.of(words, places) if places.are_apart else None

    def _found(self, wanted: Compilation) -> Done | None:
        """What the same compilation made, if there was one; its files are written."""
        for file in sorted((self.store / wanted.key).glob("[!.]*/made.json")):
            try:
                made = json.loads(file.read_text(encoding="utf-8"))
                files = {name: (file.parent / name).read_bytes() for name, _, _ in made["files"]}
            except (OSError, ValueError, TypeError, LookupError):
                continue
            if not wanted.holds(made["reads"]):
                continue
            for name, path, mode in made["files"]:
                target = Path(wanted.places.folder, path)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(files[name])
                target.chmod(mode)
            self.looked(_in_tree(made["reads"]))
            said = [wanted.places.shown(made[name]) for name in ("stdout", "stderr")]
            return subprocess.CompletedProcess(wanted.argv, 0, *said)
        return None

    def _made(self, wanted: Compilation, options: Mapping[str, Any]) -> Done:
        """Compile, and remember what is made."""
        places = wanted.places
        before = _states(places.folder)
        with tempfile.TemporaryDirectory() as name:
            out = Path(name, "report")
            env = {key: value for key, value in os.environ.items() if key != REPORT}
            done = self._run(wanted.argv, **options, env={**env, WHOLE_REPORT: str(out)})
            headers = wanted.headers(out) if out.is_file() else None
        if headers is None:  # it did not come so far
            return done
        reads = wanted.reads(headers, self.store)
        self.looked(_in_tree(reads))
        after = _states(places.folder)
        new = [path for path, state in after.items() if before.get(path) != state]
        files = {path: _content(path) for path in new if wanted.keeps(path)}
        is_whole = before.keys() <= after.keys() and reads.keys().isdisjoint(
            map(places.hidden, new)
        )
        if done.returncode == 0 and is_whole and not any(map(places.are_in, files.values())):
            with suppress(OSError):  # as without room to remember it
                self._remember(wanted, done, reads, files)
        return done

    def _remember(
        self, wanted: Compilation, done: Done, reads: Mapping[str, str], files: Mapping[str, bytes]
    ) -> None:
        folder, hidden = self.store / wanted.key, wanted.places.hidden
        folder.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=folder, prefix="."))
        rows = []
        for number, (path, data) in enumerate(files.items()):
            (part / str(number)).write_bytes(data)
            inside = os.path.relpath(path, wanted.places.folder)
            rows.append([str(number), inside, Path(path).stat().st_mode & 0o777])
        made = {
            "files": rows,
            "reads": reads,
            "stdout": hidden(done.stdout),
            "stderr": hidden(done.stderr),
        }
        (part / "made.json").write_text(json.dumps(made), encoding="utf-8")
        part.rename(folder / part.name[1:])


@dataclass(frozen=True)
class Compilation:
    """One command of a compiler that is understood.

    Attributes:
        argv: the command.
        places: where it is run, and on which sources.
        sources: the files that it names.
        searched: the folders in which it looks for headers.
        kept: folders for what it makes on the way.
    """

    argv: list[str]
    places: Places
    sources: tuple[str, ...]
    searched: tuple[str, ...]
    kept: tuple[str, ...]

    @classmethod
    def of(cls, argv: list[str], places: Places) -> Compilation | None:
        """None if ``argv`` is no compiler, or one of its options is not known here."""
        if Path(argv[0]).name not in COMPILERS:
            return None

        def at(path: str) -> str:
            return os.path.normpath(os.path.join(places.folder, path))  # noqa: PTH118 - no stat

        sources, searched, kept = list[str](), list[str](), list[str]()
        words = iter(argv[1:])
        for word in words:
            if word in WITH_VALUE:
                value = next(words, "")
                kept += [at(value)] if word == "--keep-dir" else []
            elif not word.startswith(("-", "@")):
                sources.append(at(word))
            elif PLAIN.fullmatch(word):
                searched += [at(word[2:])] if word.startswith("-I") else []
            else:
                return None
        return cls(argv, places, tuple(sources), tuple(searched), tuple(kept))

    @functools.cached_property
    def key(self) -> str:
        """The hash of all that is known before it is run."""
        ours = ("IMAGEFACTORY_TRACE", "TMPDIR", FOLDER, REPORT)
        env = {name: value for name, value in os.environ.items() if name not in ours}
        parts = [
            [self.places.hidden(word) for word in self.argv],
            [self.places.print_of(path) for path in self.sources],
            {name: self.places.hidden(value) for name, value in sorted(env.items())},
            [_identity(name) for name in (self.argv[0], *sorted(COMPILERS))],
        ]
        return _sha(json.dumps(parts).encode())

    def headers(self, report: Path) -> list[str]:
        """The files that were included, as GCC reports them."""
        text = report.read_text(encoding="utf-8").replace("\\\n", " ")
        names = {word for word in text.split() if not word.endswith(":")}
        folder = self.places.folder
        return sorted({os.path.normpath(os.path.join(folder, n)) for n in names})  # noqa: PTH118

    def reads(self, headers: Iterable[str], store: Path) -> dict[str, str]:
        """What was read, and what was looked for elsewhere, with what is there."""
        read = {*headers, *self.sources}
        looked = {path for path in self._looked_for(read, store) if self._is_own(path)} - read
        rows = {path: self.places.print_of(path) for path in read}
        rows |= {path: _there(path) for path in looked}
        return {self.places.hidden(path): was for path, was in rows.items()}

    def _looked_for(self, read: set[str], store: Path) -> set[str]:
        """Where each header that is named would be found, if it were there."""
        own = {path for path in read if self._is_own(path)}
        names = _names("\n".join(f"#{word}" for word in self.argv).encode())
        names |= self._system_names(sorted(read - own), store)
        names |= {path[len(at) + 1 :] for path in read for at in self.searched if _is_in(path, at)}
        found = {(folder, name) for folder in self.searched for name in names}
        for path in own:
            folders = (os.path.dirname(path), *self.searched)  # noqa: PTH120 - thousands of times
            found |= {(at, name) for at in folders for name in _named(path)}
        return {os.path.normpath(os.path.join(*one)) for one in found}  # noqa: PTH118 - as above

    def _is_own(self, path: str) -> bool:
        return any(_is_in(path, place) for place, _ in self.places.marks)

    def _system_names(self, paths: Iterable[str], store: Path) -> set[str]:
        """As ``_names`` of all these; most compilations read the same headers of the system."""
        prints = "".join(f"{path} {self.places.print_of(path)}\n" for path in paths)
        file = store / f"{_sha(prints.encode())}.json"
        with suppress(OSError, ValueError):
            return set(json.loads(file.read_text(encoding="utf-8")))
        names = {name for path in paths for name in _named(path)}
        with suppress(OSError):
            part = file.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps(sorted(names)), encoding="utf-8")
            part.replace(file)
        return names

    def holds(self, reads: Mapping[str, str]) -> bool:
        """Whether all that was read is the same here."""
        shown = ((self.places.shown(path), was) for path, was in reads.items())
        return all(
            (_there(path) if was == "there" else self.places.print_of(path)) == was
            for path, was in shown
        )

    def keeps(self, path: str) -> bool:
        """Whether a file that it made can be asked for: of nvcc's own ones it is the PTX only."""
        inside = any(_is_in(path, folder) for folder in self.kept)
        return not inside or path.endswith((".ptx", ".cubin"))


def _in_tree(reads: Iterable[str]) -> list[str]:
    """The paths of what was read that are in the tree, from its top."""
    top = "\0tree\0/"
    return [path[len(top) :] for path in reads if path.startswith(top)]


def _is_in(path: str, folder: str) -> bool:
    return path.startswith(f"{folder}/")


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _content(path: str) -> bytes:
    return Path(path).read_bytes()


def _there(path: str) -> str:
    return "there" if os.path.isfile(path) else ""  # noqa: PTH113 - thousands of times


def _names(data: bytes) -> set[str]:
    """The names that a file includes, or asks for."""
    lines = DIRECTIVE.findall(data.replace(b"\\\n", b" "))
    found = {name for line in lines for name in NAMED.findall(line)}
    return {name.decode(errors="replace") for name in found}


def _named(path: str) -> set[str]:
    try:
        return _names(_content(path))
    except OSError:
        return set()


def _identity(name: str) -> str:
    """Which program ``name`` is."""
    found = shutil.which(name)
    if not found:
        return ""
    real = os.path.realpath(found)
    state = os.stat(real)  # noqa: PTH116 - as above
    return f"{real} {state.st_size} {state.st_mtime_ns}"


def _states(folder: str) -> dict[str, tuple[int, int, int]]:
    """The files below a folder, and what changes when they are written."""
    found: dict[str, tuple[int, int, int]] = {}
    for at, _, names in os.walk(folder):
        for name in names:
            path = f"{at}/{name}"
            state = os.lstat(path)
            found[path] = state.st_ino, state.st_size, state.st_mtime_ns
    return found
