"""Nothing but the engine's package calls docker, or knows the library that does."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import ROOT

PACKAGE = ROOT / "imagefactory" / "system" / "engine"
#: The commands that are shown to people; tests of that package, the docker that they call, and
#: tests of how command lines are shown; tests that call docker on other machines, over ssh; and two
#: that run images as a person would, with options or programs that the package has no use for.
OTHERS = (
    ROOT / "imagefactory" / "launching" / "docker.py",
    ROOT / "tests" / "unit" / "system" / "engine",
    ROOT / "tests" / "unit" / "system" / "test_commandline.py",
    ROOT / "tests" / "support" / "docker.py",
    ROOT / "tests" / "e2e" / "machines.py",
    ROOT / "tests" / "e2e" / "test_cluster.py",
    ROOT / "tests" / "e2e" / "test_exported.py",
    ROOT / "tests" / "e2e" / "test_served.py",
    Path(__file__),
)
PROGRAMS = ("docker", "buildx", "docker-buildx")
#: What every finding contains; a file without it need not be parsed.
SUSPECT = re.compile("docker|buildx|python_on_whales|_argv")
#: A command line as text, such as ``docker run``.
COMMAND = re.compile(rf"(\S*/)?({'|'.join(PROGRAMS)})(\s|$)")
#: Functions that run what they are given, or take it apart.
RUNNERS = re.compile(
    r"run|stream|pipe|attach|must|call|check_call|check_output|getoutput|system|popen|Popen|split"
    r"|exec[lv]p?e?|spawn[lv]p?e?|create_subprocess_(exec|shell)"
)
#: How an engine or a client of it keeps its command line.
KEPT = ("docker", "_docker", "_argv")


def text_of(node: ast.AST) -> str:
    """What a string literal begins with; empty for anything else."""
    if isinstance(node, ast.JoinedStr) and node.values:
        return text_of(node.values[0])
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def is_program(node: ast.AST) -> bool:
    return text_of(node).rpartition("/")[2] in PROGRAMS


def name_of(function: ast.AST) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def imports_the_library(node: ast.AST) -> bool:
    names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
    if isinstance(node, ast.Import):
        names += [alias.name for alias in node.names]
    return any(name.partition(".")[0] == "python_on_whales" for name in names)


def is_command_line(node: ast.AST) -> bool:
    if not isinstance(node, ast.List | ast.Tuple) or not node.elts:
        return False
    inside = node.elts if isinstance(node, ast.List) else []
    return is_program(node.elts[0]) or any(COMMAND.match(text_of(part)) for part in inside)


def takes_a_client(node: ast.AST) -> bool:
    if isinstance(node, ast.Starred):
        return name_of(node.value) in KEPT
    return isinstance(node, ast.Attribute) and node.attr in ("_docker", "_argv")


def runs_text(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not RUNNERS.fullmatch(name_of(node.func)):
        return False
    owner = [node.func.value] if isinstance(node.func, ast.Attribute) else []
    return any(COMMAND.match(text_of(part)) for part in [*node.args[:1], *owner])


WRONG: dict[Callable[[ast.AST], bool], str] = {
    imports_the_library: "imports python-on-whales",
    is_command_line: "is a command line of docker's",
    takes_a_client: "takes the client of an engine",
    runs_text: "runs docker",
}


def found_in(source: str) -> Iterator[tuple[int, str]]:
    """Line and reason of everything in ``source`` that is the engine package's business."""
    if not SUSPECT.search(source):
        return
    for node in ast.walk(ast.parse(source)):
        for is_wrong, reason in WRONG.items():
            if is_wrong(node):
                yield getattr(node, "lineno", 0), reason


def sources() -> list[Path]:
    files = [
        file
        for folder in ("imagefactory", "benchmarks", "tests", "scripts")
        for file in sorted((ROOT / folder).rglob("*.py"))
    ]
    mine = (PACKAGE, *OTHERS)
    return [file for file in files if not any(file.is_relative_to(one) for one in mine)]


def test_only_the_engines_package_calls_docker() -> None:
    checked = sources()
    assert len(checked) > 150
    found = [
        f"{file.relative_to(ROOT)}:{line}: {reason}"
        for file in checked
        for line, reason in found_in(file.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_the_engines_package_is_seen_to_call_docker() -> None:
    found = [
        reason
        for file in PACKAGE.glob("*.py")
        for _, reason in found_in(file.read_text(encoding="utf-8"))
    ]
    assert {"imports python-on-whales", "takes the client of an engine"} <= set(found)


@pytest.mark.parametrize(
    "planted",
    [
        "import python_on_whales",
        "from python_on_whales.exceptions import NoSuchImage",
        "argv = ['docker', 'run', image]",
        "argv = ('/usr/bin/docker', 'push', image)",
        "must(['buildx', 'bake'])",
        "shell.run([*engine.docker, 'push', image])",
        "argv = [*self.engine._argv, 'push']",
        "engine._docker.call('push', image)",
        "words = ['bash', '-c', 'docker ps']",
        "words = ['bash', '-c', f'docker rm {name}']",
        "shell.run('docker ps'.split())",
        "shlex.split('docker ps')",
        "subprocess.run(f'docker rm {name}', shell=True)",
        "os.system('/usr/bin/docker ps')",
        "os.execlp('docker', 'ps')",
    ],
)
def test_a_call_of_docker_is_seen(planted: str) -> None:
    assert list(found_in(f"def work():\n    {planted}\n"))


@pytest.mark.parametrize(
    "harmless",
    [
        "fix = 'docker login, or name another --to REPO'",
        "raise fail(SetupError, 'disk-full', what, fix='docker buildx prune')",
        "engine = Engine(binary='docker')",
        "assert {'engine', 'buildx', 'disk'} <= names",
        "found = Builder(name='default', driver='docker')",
        "shell.run([script, 'registry-up'], env=engine.environment)",
        "'docker: not found'.startswith('docker')",
    ],
)
def test_advice_to_a_person_is_none(harmless: str) -> None:
    assert list(found_in(f"def work():\n    {harmless}\n")) == []
