"""Ways to spoil one input of a valid project so that it is invalid by construction."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import tomli_w
import yaml

from imagefactory.system.signing import VARIABLE
from support import ROOT
from support.bad_files import (
    CLUSTER,
    CLUSTER_VALUES,
    RECIPE,
    RECIPE_VALUES,
    SIGNING_KEYS,
    TRUSTED_KEYS,
)
from support.bad_texts import DIFFS, LOCK_TEXTS, TEMPLATES, YAML_TEXTS
from support.bad_values import (
    ARGUMENTS,
    COMMANDS,
    DELETE,
    JUNK,
    LOCK_VALUES,
    MATRIX_VALUES,
    PATCH_VALUES,
    VARIABLES,
    Loc,
)

CHECK = ("plan", "--check")
RENDER = ("plan",)
PATCH = Path("patches/vllm/one")
FILES = (
    "matrix.yaml",
    "wheels.lock",
    f"{PATCH}/patch.yaml",
    f"{PATCH}/a.diff",
    f"{PATCH}/proof.py",
)
CHARACTERS = "\u202e\u2066\u200b\ufeff\x07\x1b\x85\u2028"


@dataclass(frozen=True, kw_only=True)
class Bad:
    """A bad input: what it is, and how the factory gets it; ``placed`` if its line is known."""

    what: str
    argv: Sequence[str] = CHECK
    environ: Mapping[str, str] = field(default_factory=dict)
    program: Callable[[], tuple[int, str]] | None = None
    placed: bool = False


def one(chance: Random, number: int, project: Path) -> Bad:
    """Spoil ``project`` in one way; the kinds take turns."""
    kinds = (
        *(_matrix, _lock, _patch, _matrix, _lock, _diff, _argument, _lock, _variable, _file),
        *(_template, _junk, _cluster, _recipe, _key),
    )
    return kinds[number % len(kinds)](chance, project)


def _leaves(value: Any, loc: Loc = ()) -> Iterator[tuple[Loc, Any]]:
    yield loc, value
    if isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(item, (*loc, key))


def _put(data: Any, loc: Loc, value: object) -> None:
    for part in loc[:-1]:
        data = data[part]
    if value is DELETE:
        del data[loc[-1]]
    else:
        data[loc[-1]] = value


def _other(chance: Random, value: Any, *, digits: bool = True) -> Any:
    """A value of another type, or of no meaning."""
    if isinstance(value, bool):
        return chance.choice(["maybe", 7, [], {"a": "b"}])
    if isinstance(value, int):
        return chance.choice(["", "many", [1], {"a": 1}, -1, 1.5, True])
    if isinstance(value, str):
        bad = value + chance.choice(CHARACTERS) if len(value) % 2 else chance.choice(CHARACTERS)
        return chance.choice([{"a": {"b": "c"}}, [[value]], 7, 1.5, True, "", bad])
    if isinstance(value, list):
        return chance.choice(["x", {"a": {"b": "c"}}, 7, [7], [{"a": "b"}]])
    return chance.choice(["x", ["x"], 7, {**value, "zzz": {"x": {"y": "z"}}}])


def _spoilt(chance: Random, data: Any, listed: Sequence[tuple[Loc, object]]) -> str:
    if chance.random() < 0.5:
        loc, value = chance.choice(listed)
    else:
        loc, old = chance.choice([pair for pair in _leaves(data) if pair[0]])
        value = _other(chance, old)
    _put(data, loc, value)
    shown = "nothing" if value is DELETE else ascii(value)[:60]
    return f"{'.'.join(map(str, loc))} is {shown}"


def _yaml_file(chance: Random, file: Path, listed: Sequence[tuple[Loc, object]]) -> str:
    if chance.random() < 0.2:
        what, text = chance.choice(YAML_TEXTS)
        file.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
        return what
    data = yaml.safe_load(file.read_text())
    what = _spoilt(chance, data, listed)
    file.write_text(yaml.safe_dump(data, sort_keys=False))
    return what


def _matrix(chance: Random, project: Path) -> Bad:
    what = _yaml_file(chance, project / "matrix.yaml", MATRIX_VALUES)
    return Bad(what=f"matrix: {what}", placed=True)


def _patch(chance: Random, project: Path) -> Bad:
    if chance.random() < 0.15:
        return chance.choice(_PATCH_FILES)(project)
    what = _yaml_file(chance, project / PATCH / "patch.yaml", PATCH_VALUES)
    return Bad(what=f"patch.yaml: {what}", placed=True)


def _link(name: str, target: str) -> Callable[[Path], Bad]:
    def spoil(project: Path) -> Bad:
        (project / PATCH / name).unlink()
        (project / PATCH / name).symlink_to(target)
        return Bad(what=f"{name} is a link to {target}", placed=True)

    return spoil


def _renamed(to: str) -> Callable[[Path], Bad]:
    def spoil(project: Path) -> Bad:
        target = project / "patches" / to
        target.parent.mkdir(parents=True, exist_ok=True)
        (project / PATCH).rename(target)
        return Bad(what=f"the patch is named {to!r}", placed=True)

    return spoil


_PATCH_FILES: Sequence[Callable[[Path], Bad]] = (
    _link("proof.py", "/etc/passwd"),
    _link("a.diff", "/etc/passwd"),
    _link("proof.py", "../../../matrix.yaml"),
    _link("proof.py", "proof.py"),
    _renamed("vllm/-x"),
    _renamed("vllm/a b"),
    _renamed("--help/x"),
    _renamed("nobody/x"),
    _renamed("vllm/\u202ex"),
)


def _lock(chance: Random, project: Path) -> Bad:
    file = project / "wheels.lock"
    if chance.random() < 0.15:
        what, change = chance.choice(LOCK_TEXTS)
        file.write_bytes(change(file.read_bytes()))
        return Bad(what=f"lock: {what}", placed=True)
    data = tomllib.loads(file.read_text())
    what = _spoilt(chance, data, LOCK_VALUES)
    file.write_text(tomli_w.dumps(data))
    return Bad(what=f"lock: {what}", placed=True)


def _diff(chance: Random, project: Path) -> Bad:
    file = project / PATCH / "a.diff"
    what, change = chance.choice(DIFFS)
    file.write_bytes(change(file.read_bytes()))
    return Bad(what=f"diff: {what}", placed=True)


def _argument(chance: Random, project: Path) -> Bad:
    argv = chance.choice(ARGUMENTS)
    return Bad(what=f"arguments: {ascii(' '.join(argv))[:70]}", argv=argv)


def _variable(chance: Random, project: Path) -> Bad:
    name, value, argv = chance.choice(VARIABLES)
    return Bad(what=f"variable {name}={ascii(value)[:50]}", environ={name: value}, argv=argv)


def _template(chance: Random, project: Path) -> Bad:
    """A template of the project's own instead of imagefactory's."""
    folder = project / "templates"
    folder.mkdir()
    name = chance.choice(("Dockerfile.j2", "base.Dockerfile.j2"))
    if chance.random() < 0.2:
        name = chance.choice((name, "entrypoint", "nodes.py"))
        what, make = chance.choice(
            [row for row in _NOT_FILES if row[0] not in ("missing", "empty")]
        )
        make(folder / name)
        return Bad(what=f"{name} is {what}", argv=RENDER)
    what, change = chance.choice(TEMPLATES)
    text = change((ROOT / "templates" / name).read_bytes())
    (folder / name).write_bytes(text)
    return Bad(what=f"{name}: {what}", argv=RENDER)


def _junk(chance: Random, _: Path) -> Bad:
    """A command with arguments that no command takes."""
    command = chance.choice(COMMANDS)
    junk = [chance.choice(JUNK) for _ in range(chance.randint(1, 4))]
    if junk == ["--"]:
        junk.append("--junk")
    argv = (*command, *junk)
    return Bad(what=f"arguments: {ascii(' '.join(argv))[:90]}", argv=argv)


def _changed(chance: Random, data: Any, listed: Sequence[tuple[Loc, object]]) -> tuple[str, bytes]:
    """A file with one invalid value, and what that is."""
    data = copy.deepcopy(dict(data))
    loc, value = chance.choice(listed)
    _put(data, loc, value)
    shown = "nothing" if value is DELETE else ascii(value)[:60]
    return f"{'.'.join(map(str, loc))} is {shown}", yaml.safe_dump(data, sort_keys=False).encode()


def _cluster(chance: Random, project: Path) -> Bad:
    what, text = _changed(chance, CLUSTER, CLUSTER_VALUES)
    (project / "cluster.yaml").write_bytes(text)
    form = chance.choice((("--json",), ("--to", "compose"), ("--to", "quadlet"), ()))
    return Bad(what=f"cluster: {what}", argv=("cluster", "show", *form), placed=True)


def _recipe(chance: Random, project: Path) -> Bad:
    what, text = _changed(chance, RECIPE, RECIPE_VALUES)
    (project / "recipes").mkdir()
    (project / "recipes/mine.yaml").write_bytes(text)
    argv = chance.choice((("recipe", "show", "mine"), ("recipe", "list"), ("memory", "mine")))
    return Bad(what=f"recipe: {what}", argv=argv, placed=True)


def _key(chance: Random, project: Path) -> Bad:
    if chance.random() < 0.5:
        content = chance.choice(TRUSTED_KEYS)
        (project / "trusted-keys").write_bytes(content)
        return Bad(what=f"trusted keys: {ascii(content)[:60]}", argv=("key", "list"))
    value, argv = chance.choice(SIGNING_KEYS), ("key", chance.choice(("list", "show")))
    return Bad(what=f"key: {ascii(value)[:60]}", argv=argv, environ={VARIABLE: value})


def _file(chance: Random, project: Path) -> Bad:
    if chance.random() < 0.25:
        return chance.choice(_PROGRAMS)(project)
    name, (what, make) = chance.choice(FILES), chance.choice(_NOT_FILES)
    if what == "empty" and name.endswith("proof.py"):  # which is a proof, of nothing
        name = "wheels.lock"
    path = project / name
    path.unlink()
    make(path)
    return Bad(what=f"{name} is {what}")


_NOT_FILES: Sequence[tuple[str, Callable[[Path], object]]] = (
    ("a pipe", os.mkfifo),
    ("a folder", Path.mkdir),
    ("a link to itself", lambda path: path.symlink_to(path.name)),
    ("an endless device", lambda path: path.symlink_to("/dev/zero")),
    ("a full device", lambda path: path.symlink_to("/dev/full")),
    ("a memory file", lambda path: path.symlink_to("/proc/self/mem")),
    ("missing", str),
    ("empty", Path.touch),
    ("random bytes", lambda path: path.write_bytes(Random(0).randbytes(9999))),  # noqa: S311
    ("large", lambda path: path.write_bytes(b"\n" * 200_000_000)),
)


def _shell(text: str) -> Callable[[Path], Bad]:
    def spoil(project: Path) -> Bad:
        def run() -> tuple[int, str]:
            command = ["sh", "-c", f'"$0" -m imagefactory {text}', sys.executable]
            environ = {**os.environ, "DOCKER_HOST": "unix:///nonexistent"}
            done = subprocess.run(
                command,
                cwd=project,
                env=environ,
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            return done.returncode, done.stderr

        return Bad(what=f"in a shell: {text}", program=run)

    return spoil


_PROGRAMS = tuple(
    map(
        _shell,
        (
            "plan --check --json >&-",
            "plan --check --json >&- <&-",
            "plan --json >/dev/full",
            "verify -- --help",
            "plan -f /dev/stdin </dev/zero",
        ),
    )
)
