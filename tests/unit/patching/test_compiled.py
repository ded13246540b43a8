"""When what a compiler made for a proof is taken for another compilation, and when not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imagefactory.inbuild import overlay
from imagefactory.patching import compiled, tracing
from imagefactory.patching.compiled import ASKED, FOLDER, REPORT, WHOLE_REPORT, Compiled

#: What the compiler of these tests reads: of the tree, of the folder that it is run in.
HEADERS = ("csrc/a.h", "csrc/deep/b.h")
SOURCE = '#include "{tree}/csrc/a.h"\n#include "own.h"\n'


class Machine:
    """A tree, a folder with a source, and a compiler that counts how often it is run."""

    def __init__(self, at: Path, store: Path, bin_: Path) -> None:
        self.tree, self.folder = at / "tree", at / "folder"
        self.system = bin_ / "system.h"
        self.compiler, self.runs = bin_ / "g++", 0
        for path, text in (
            (self.tree / "csrc/a.h", '#include DEEP(b)\n#if __has_include("maybe.h")\n#endif\n'),
            (self.tree / "csrc/deep/b.h", '#if __has_include("near.h")\n#endif\n'),
            (self.tree / "csrc/other.h", "int other;\n"),
            (self.folder / "own.h", "int own;\n"),
            (self.folder / "x.cpp", SOURCE.format(tree=self.tree)),
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (self.folder / "extra").touch()
        (self.tree / "first").mkdir()
        self.words = ["-std=c++17", "-w", f"-I{self.tree}/first", f"-I{self.tree}/csrc", "-DA=1"]
        self.made: dict[str, str] = {"x": "program"}
        self.code, self.reported, self.removed = 0, True, ""
        self.looked = list[list[str]]()
        self.memory = Compiled(store, str(self.tree), self.looked.append, self._run)

    def _run(self, argv: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        self.runs += 1
        folder = Path(options["cwd"] or self.folder)
        for name, text in self.made.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        if self.removed:
            (folder / self.removed).unlink()
        read = [*(str(self.tree / name) for name in HEADERS), "own.h", str(self.system)]
        report = options.get("env", {}).get(WHOLE_REPORT)
        if self.reported and report:
            Path(report).write_text("x.o: " + " \\\n ".join(read) + "\n")
        return subprocess.CompletedProcess(
            argv, self.code, f"{self.tree}/csrc/a.h:1", f"{folder}/x.cpp"
        )

    def argv(self) -> list[str]:
        return [str(self.compiler), *self.words, "x.cpp", "-o", "x"]

    def compile(self, **options: object) -> Any:
        return self.memory.run(self.argv(), **{**ASKED, "cwd": self.folder, **options})


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Machine]:
    """The same sources at two places, for one run; the first has compiled."""
    bin_, store = tmp_path / "bin", tmp_path / "store"
    for folder in (bin_, store):
        folder.mkdir()
    for name in compiled.COMPILERS:
        (bin_ / name).write_text(name)
        (bin_ / name).chmod(0o755)
    (bin_ / "system.h").write_text("#include <nv/target>\n")
    monkeypatch.setenv("PATH", str(bin_))
    return [Machine(tmp_path / place, store, bin_) for place in ("one", "far/two")]


def test_what_was_compiled_at_another_place_is_there_without_compiling(
    machines: list[Machine],
) -> None:
    one, two = machines
    first = one.compile()
    assert (one.runs, first.returncode) == (1, 0)
    second = two.compile()
    assert two.runs == 0
    assert (second.returncode, second.args) == (0, two.argv())
    assert second.stdout == f"{two.tree}/csrc/a.h:1"
    assert second.stderr == f"{two.folder}/x.cpp"
    assert (two.folder / "x").read_text() == "program"
    assert os.access(two.folder / "x", os.X_OK)
    assert one.compile().stdout == first.stdout
    assert one.runs == 1


def write(name: str, text: str = "int new;\n") -> Callable[[Machine], object]:
    def change(machine: Machine) -> None:
        path = machine.tree.parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    return change


def words(*more: str) -> Callable[[Machine], object]:
    return lambda machine: machine.words.extend(more)


def named(variable: str) -> Callable[[Machine], object]:
    return lambda machine: os.environ.update({variable: str(machine.folder.parent)})


CHANGES: dict[str, Callable[[Machine], object]] = {
    "the source": write("folder/x.cpp", '#include "own.h"\n'),
    "a header of the tree": write("tree/csrc/deep/b.h"),
    "a header beside the source": write("folder/own.h"),
    "a header that hides another": write("tree/first/deep/b.h"),
    "a header that hides one beside it": write("tree/csrc/own.h"),
    "a header that was asked for": write("tree/csrc/maybe.h"),
    "a header that one beside it asked for": write("tree/csrc/deep/near.h"),
    "a header that was asked for, beside the source": write("tree/first/maybe.h"),
    "a header that hides one of the system": write("tree/first/nv/target"),
    "a header that is gone": lambda machine: (machine.tree / HEADERS[1]).unlink(),
    "a header of the system": lambda machine: machine.system.write_text("int more;\n"),
    "the compiler": lambda machine: machine.compiler.write_text("another"),
    "the compiler below": lambda machine: (machine.compiler.parent / "gcc").write_text("another"),
    "a definition": words("-DB"),
    "the standard": words("-std=c++20"),
    "the target": words("-gencode=arch=compute_121,code=sm_121"),
    "where it looks": words("-Inew"),
    "the order": lambda machine: machine.words.reverse(),
    "another file of the tree": lambda m: m.words.append(f"{m.tree}/csrc/other.h"),
    "a variable": named("CPATH"),
    "flags in a variable": named("NVCC_APPEND_FLAGS"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_anything_that_decides_what_is_made_is_compiled(
    machines: list[Machine], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    for name in ("CPATH", "NVCC_APPEND_FLAGS"):
        monkeypatch.setenv(name, "old")
    one, two = machines
    one.compile()
    CHANGES[what](two)
    two.compile()
    assert two.runs == 1


IRRELEVANT: dict[str, Callable[[Machine], object]] = {
    "nothing": lambda _: None,
    "a file that is not read": write("tree/csrc/other.h"),
    "a name that nothing asks for": write("tree/first/unasked.h"),
    "another file beside the source": write("folder/y.cpp"),
    "where records of this proof go": named("IMAGEFACTORY_TRACE"),
    "where its temporary files are": named("TMPDIR"),
}


@pytest.mark.parametrize("what", IRRELEVANT)
def test_what_does_not_matter_to_it_is_not_compiled(
    machines: list[Machine], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    one, two = machines
    for name in ("IMAGEFACTORY_TRACE", "TMPDIR"):
        monkeypatch.setenv(name, str(one.folder))
    one.compile()
    IRRELEVANT[what](two)
    two.compile()
    assert two.runs == 0


FORGOTTEN: dict[str, Callable[[Machine], object]] = {
    "an option that is not known": words("-include", "own.h"),
    "options in a file": words("@options"),
    "a folder in an option that is not known": words("-isystem/x"),
    "a plugin": words("-fplugin=x"),
    "a failure": lambda machine: setattr(machine, "code", 1),
    "a signal": lambda machine: setattr(machine, "code", -9),
    "a report that is missing": lambda machine: setattr(machine, "reported", False),
    "a file that it removes": lambda machine: setattr(machine, "removed", "extra"),
    "a made file with the tree's path": lambda m: m.made.update(x=f"at {m.tree}/csrc"),
    "a made file with the folder's path": lambda m: m.made.update(x=f"at {m.folder}"),
    "a header that it changes": lambda machine: machine.made.update({"own.h": "changed"}),
}


@pytest.mark.parametrize("what", FORGOTTEN)
def test_what_is_not_understood_is_not_remembered(machines: list[Machine], what: str) -> None:
    for machine in machines:
        FORGOTTEN[what](machine)
        machine.compile()
        assert machine.runs == 1


@pytest.mark.parametrize(
    "options", [{"cwd": None}, {"text": False}, {"check": True}, {"input": "x"}, {"env": {}}]
)
def test_a_command_that_is_not_of_the_proofkit_is_run(
    machines: list[Machine], options: dict[str, object]
) -> None:
    for machine in machines:
        for _ in range(2):
            machine.compile(**options)
        assert machine.runs == 2


@pytest.mark.parametrize("inside", [".", "csrc"])
def test_only_compilers_outside_of_the_tree_are_remembered(
    machines: list[Machine], tmp_path: Path, inside: str
) -> None:
    for machine in machines:
        for number in (1, 2):
            machine.compile(cwd=machine.tree / inside)
            assert machine.runs == number
        machine.compiler = tmp_path / "bin/program"
        machine.compile()
        assert machine.runs == 3


@pytest.mark.parametrize("name", ["a b", "a#b", "a$b", "a\\b", "ä"])
def test_a_path_that_reports_may_write_otherwise_is_compiled(
    tmp_path: Path, machines: list[Machine], name: str
) -> None:
    store = tmp_path / "store"
    odd = [Machine(tmp_path / name / place, store, tmp_path / "bin") for place in "12"]
    for machine in odd:
        machine.compile()
    assert [machine.runs for machine in odd] == [1, 0 if name == "ä" else 1]


def test_what_is_read_and_looked_for_in_the_tree_is_told_whether_it_is_compiled_or_not(
    machines: list[Machine],
) -> None:
    for machine in machines:
        machine.words.append(f"{machine.tree}/csrc/other.h")
        machine.compile()
    (looked,) = machines[0].looked
    assert (machines[1].runs, machines[1].looked) == (0, [looked])
    names = ("a.h", "deep/b.h", "other.h", "maybe.h", "near.h", "nv/target", "own.h")
    searched = [f"{folder}/{name}" for folder in ("csrc", "first") for name in names]
    assert sorted(looked) == sorted([*searched, "csrc/deep/near.h"])


@pytest.mark.parametrize("code", [0, 1])
def test_what_a_compiler_reads_is_told_when_it_fails_too(
    machines: list[Machine], code: int
) -> None:
    machines[0].code = code
    machines[0].compile()
    assert {*HEADERS} <= {*machines[0].looked[0]}


@pytest.mark.parametrize(
    ("name", "stays"), [("kept/x.ptx", True), ("kept/x.cubin", True), ("kept/x.ii", False)]
)
def test_of_what_nvcc_keeps_only_what_it_makes_is_remembered(
    machines: list[Machine], name: str, stays: bool
) -> None:
    for machine in machines:
        machine.words += ["--keep", "--keep-dir", str(machine.folder / "kept")]
        machine.made[name] = "text" if stays else str(machine.tree)
        machine.compile()
    assert machines[1].runs == 0
    assert (machines[1].folder / name).exists() is stays


@pytest.mark.parametrize("text", ["", "{", "[]", '{"files": [["9", "x", 1]], "reads": {}}'])
def test_a_damaged_record_is_none(machines: list[Machine], text: str) -> None:
    one, two = machines
    one.compile()
    (record,) = one.memory.store.glob("*/*/made.json")
    record.write_text(text)
    two.compile()
    assert two.runs == 1
    assert two.compile().stdout == f"{two.tree}/csrc/a.h:1"
    assert two.runs == 1


def test_a_record_that_is_being_written_is_none(machines: list[Machine]) -> None:
    one, two = machines
    one.compile()
    (record,) = one.memory.store.glob("*/*/made.json")
    record.parent.rename(record.parent.with_name(".part"))
    two.compile()
    assert two.runs == 1


def test_without_room_for_it_a_proof_compiles_each_time(
    machines: list[Machine], tmp_path: Path
) -> None:
    shutil.rmtree(tmp_path / "store")
    (tmp_path / "store").write_text("a full disk, as it were")
    for machine in machines:
        assert machine.compile().stdout == f"{machine.tree}/csrc/a.h:1"
        assert machine.runs == 1


PROGRAM = """
#include "a.h"
extern "C" int puts(const char *);
#if __has_include("maybe.h")
#define SAID "maybe"
#else
#define SAID VALUE
#endif
int main() { puts(SAID); return VALUE[0] != '1'; }
"""
PROOF = f"""
import tempfile
from pathlib import Path

import proofkit


def judge(tree):
    with tempfile.TemporaryDirectory() as name:
        Path(name, "x.cpp").write_text({PROGRAM!r})
        argv = ["g++", f"-I{{tree}}/first", f"-I{{tree}}", "x.cpp", "-o", "x"]
        code, said = proofkit.command(argv, Path(name))
        if code == 0:
            code, said = proofkit.command([Path(name, "x")])
        return proofkit.Verdict(code, said)


proofkit.main(judge)
"""


@pytest.mark.programs
def test_a_real_compiler_is_run_for_what_is_new_and_for_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proof, store, out = tmp_path / "proof.py", tmp_path / "store", tmp_path / "0.trace"
    proof.write_text(PROOF)
    store.mkdir()
    env = {
        tracing.PROOF: str(proof),
        tracing.TRACE: str(out),
        tracing.COMPILED: str(store),
    }

    def proven(number: int, header: str, **more: str) -> tuple[int, str]:
        tree = tmp_path / f"tree-{number}"
        for name, text in {"a.h": header, **more}.items():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_text(text)
        return overlay.prove(Path(tracing.__file__), tree, env)

    def remembered() -> int:
        return len([*store.glob("*/*/made.json")])

    assert proven(1, '#define VALUE "1"\n') == (0, "1")
    reads = [json.loads(line) for line in out.read_text().splitlines()]
    assert proven(2, '#define VALUE "1"\n', **{"b.h": "new"}) == (0, "1")
    assert [json.loads(line) for line in out.read_text().splitlines()] == reads
    assert remembered() == 1
    assert proven(3, '#define VALUE "2"\n') == (1, "2")
    assert proven(4, '#define VALUE "1"\n', **{"first/a.h": '#define VALUE "3"\n'}) == (1, "3")
    assert proven(5, '#define VALUE "1"\n', **{"maybe.h": ""}) == (0, "maybe")
    assert remembered() == 4
    monkeypatch.setenv("CPLUS_INCLUDE_PATH", str(tmp_path))
    assert proven(1, '#define VALUE "1"\n') == (0, "1")
    assert remembered() == 5


def test_the_names_in_the_environment_are_the_same_everywhere() -> None:
    assert (tracing.COMPILED, tracing.GCC_REPORT) == (FOLDER, REPORT)
    assert tracing.COMPILERS == compiled.COMPILERS
