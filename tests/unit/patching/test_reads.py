"""When a stored result holds for another tree, and what a proof is seen to read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.machine import settings
from support.patches import DIFF, PATCH, make

from imagefactory.inbuild import overlay, proofkit
from imagefactory.patching import catalog, compiled, measure, status, tracing
from imagefactory.patching.measure import Bench
from imagefactory.patching.patch import Patch, State, Step
from imagefactory.patching.reads import Read, Reads
from imagefactory.patching.sources import SourceTree
from imagefactory.patching.tracing import SEARCH, SEARCHED, Recorder

FILE: Read = ("f", False)
LISTED: Read = ("d", True)
SEEN: Read = ("d", False)
GONE: Read = ("gone", False)
SEARCHED_FOR: Read = ("d", (r".*\.py", "tw"))
READS = {FILE, LISTED, SEEN, GONE, SEARCHED_FOR}


def write(name: str, text: str = "new") -> Callable[[Path], object]:
    def change(root: Path) -> None:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)

    return change


def empty(root: Path) -> None:
    for path in (root / "d").iterdir():
        path.unlink()
    (root / "d").rmdir()


#: What happens to a tree, and which reads find something else then.
CHANGES: list[tuple[Callable[[Path], object], set[Read]]] = [
    (lambda _: None, set()),
    (write("other"), set()),
    (write("f"), {FILE}),
    (lambda root: (root / "f").unlink(), {FILE}),
    (write("gone"), {GONE}),
    (lambda root: (root / "gone").mkdir(), {GONE}),
    (write("d/a.py", "two, too"), {SEARCHED_FOR}),
    (write("d/a.py", "none"), {SEARCHED_FOR}),
    (write("d/b.txt", "two"), set()),
    (write("d/new.py", "two"), {LISTED, SEARCHED_FOR}),
    (write("d/new.py", "one"), {LISTED}),
    (write("d/new.txt", "two"), {LISTED}),
    (lambda root: (root / "d/a.py").rename(root / "d/z.py"), {LISTED, SEARCHED_FOR}),
    (empty, {LISTED, SEEN, SEARCHED_FOR}),
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "tree").mkdir()
    for name, text in (("f", "file"), ("d/a.py", "two"), ("d/b.txt", "b")):
        write(name, text)(tmp_path / "tree")
    return tmp_path / "tree"


def test_a_result_holds_where_all_that_was_read_is_the_same(tmp_path: Path, root: Path) -> None:
    for number, (change, differ) in enumerate(CHANGES):
        at = tmp_path / str(number)
        at.mkdir()
        for name in ("f", "d/a.py", "d/b.txt"):
            write(name, (root / name).read_text())(at)
        store = tmp_path / f"store-{number}"
        for read in READS:
            Reads(store).add(str(read[1]) + read[0], at, [read], {"of": str(read)})
        Reads(store).add("all", at, READS, {"of": "all"})
        change(at)
        found = {r for r in READS if Reads(store).find(str(r[1]) + r[0], at) == {"of": str(r)}}
        assert (number, READS - found) == (number, differ)
        assert (Reads(store).find("all", at) is None) is bool(differ)


def test_results_are_by_question_and_fresh_ones_are_of_this_run(tmp_path: Path, root: Path) -> None:
    Reads(tmp_path).add("key", root, [FILE], {"state": "needed"})
    assert Reads(tmp_path).find("key", root) == {"state": "needed"}
    assert Reads(tmp_path).find("other", root) is None
    fresh = Reads(tmp_path, fresh=True)
    assert fresh.find("key", root) is None
    fresh.add("key", root, [FILE, GONE], {"state": "broken"})
    assert fresh.find("key", root) == {"state": "broken"}


@pytest.mark.parametrize("text", ["", "[]", "{", "3", "[[[]], {}]", "[null, {}]"])
def test_a_damaged_result_counts_as_none_and_hides_no_other(
    tmp_path: Path, root: Path, text: str
) -> None:
    write("0.json", text)(tmp_path / "key")
    assert Reads(tmp_path).find("key", root) is None
    Reads(tmp_path).add("key", root, [FILE], {"state": "needed"})
    assert Reads(tmp_path).find("key", root) == {"state": "needed"}


@pytest.fixture
def recorder(root: Path) -> Recorder:
    return Recorder(root)


def test_what_is_opened_examined_or_listed_in_the_tree_is_recorded(
    root: Path, recorder: Recorder
) -> None:
    recorder.hear("open", (str(root / "f"), "r", 0))
    recorder.hear("open", (os.fsencode(root / "bytes"), "r", 0))
    recorder.hear("open", (root / "x/../path", "r", 0))
    for other in (f"{root}2/x", str(root.parent), "/etc/passwd", 3, None):
        recorder.hear("open", (other, "r", 0))
    recorder.note(root)
    recorder.hear("something", (str(root / "no"),))
    assert recorder.paths == {"f", "bytes", "path", "."}
    assert recorder.listed == set()
    recorder.hear("os.listdir", (str(root / "d"),))
    recorder.hear("os.scandir", (str(root / "e"),))
    assert recorder.listed == {"d", "e"}
    assert recorder.known


def test_of_a_search_it_is_recorded_what_for_and_not_what_it_opened(
    root: Path, recorder: Recorder
) -> None:
    recorder.hear(SEARCH, (str(root / "d"), "names", "text"))
    recorder.hear("open", (str(root / "d/a.py"), "r", 0))
    recorder.hear("os.scandir", (str(root / "d"),))
    recorder.hear(SEARCHED, ())
    recorder.hear("open", (str(root / "f"), "r", 0))
    assert recorder.searched == {("d", "names", "text")}
    assert (recorder.paths, recorder.listed) == ({"f"}, set())


def test_the_names_of_the_events_are_proofkit_s() -> None:
    ours = (tracing.SEARCH, tracing.SEARCHED, tracing.TRACER)
    assert ours == (proofkit.SEARCH, proofkit.SEARCHED, proofkit.TRACER)


@pytest.mark.parametrize(
    ("argv", "folder", "is_known"),
    [
        (["/usr/bin/g++", "-I{0}/inc", "-c", "{0}/x.cu"], None, True),
        (["nvcc", "{0}/x.cu"], "{0}", True),
        (["ls", "-l"], None, True),
        (["python", tracing.__file__, "{0}"], None, True),
        (["cat", "{0}/x.cu"], None, False),
        (["cat", "x.cu"], "{0}", False),
        ("cat {0}/x.cu", None, False),
        ([b"cat", Path("{0}/x.cu")], None, False),
    ],
)
def test_a_program_that_is_no_compiler_may_read_anything(
    root: Path, recorder: Recorder, argv: object, folder: str | None, is_known: bool
) -> None:
    words = [argv] if isinstance(argv, str) else list(argv)  # type: ignore[call-overload]
    given = [type(w)(str(w).format(root)) if not isinstance(w, bytes) else w for w in words]
    at = folder.format(root) if folder else None
    env = {tracing.GCC_REPORT: "/report"}
    words_or_text = given[0] if isinstance(argv, str) else given
    recorder.hear("subprocess.Popen", ("exe", words_or_text, at, env))
    assert recorder.known is is_known
    if folder is None:  # as Python 3.13 reports the same program once more
        recorder.hear("os.posix_spawn", ("exe", given, env))
    assert recorder.known is is_known
    assert recorder.paths == ({"x.cu"} if words[0] in ("/usr/bin/g++", "nvcc") else set())
    assert recorder.include == ({f"{root}/inc"} if words[0] == "/usr/bin/g++" else set())


@pytest.mark.parametrize(
    ("argv", "env", "is_known"),
    [
        (["python", "-c", "import vllm"], {"PYTHONPATH": "/x"}, True),
        (["python", "-c", "import vllm"], {"PYTHONPATH": "/x:{0}"}, False),
        (["python", "-c", "import vllm"], {b"PYTHONPATH": "{0}"}, False),
        (["g++", "x.cu"], {"CPATH": "/x"}, False),  # nothing reports its headers
    ],
)
def test_the_environment_of_a_program_may_name_the_tree(
    root: Path, recorder: Recorder, argv: list[str], env: dict[Any, str], is_known: bool
) -> None:
    named = {name: value.format(root) for name, value in env.items()}
    given = {
        name: os.fsencode(value) if isinstance(name, bytes) else value
        for name, value in named.items()
    }
    recorder.hear("subprocess.Popen", ("exe", argv, None, given))
    assert recorder.known is is_known


def test_a_program_inherits_the_environment_and_the_folder_of_a_proof(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_known() -> bool:
        recorder = Recorder(root)
        recorder.hear("subprocess.Popen", ("exe", ["git", "grep", "x"], None, None))
        return recorder.known

    assert is_known()
    with monkeypatch.context() as changed:
        changed.chdir(root)
        assert not is_known()
    monkeypatch.setenv("PYTHONPATH", str(root))
    assert not is_known()


@pytest.mark.parametrize("event", ["os.system", "os.exec"])
def test_what_another_program_reads_is_not_known(
    tmp_path: Path, recorder: Recorder, event: str
) -> None:
    recorder.hear("open", (f"{recorder.root}/f", "r", 0))
    recorder.hear(event, ("x",))
    tracing.write(recorder, tmp_path / "out", tmp_path / "none")
    assert (tmp_path / "out").read_text() == "null\n"


#: Ways to look for a file; pathlib and glob take others from release to release of Python.
LOOKING = (
    "tree.joinpath('{}').exists()",
    "tree.joinpath('{}').is_file()",
    "tree.joinpath('{}').is_dir()",
    "tree.joinpath('{}').is_symlink()",
    "tree.joinpath('{}').resolve()",
    "list(tree.joinpath('empty').glob('{}'))",
    "list(tree.glob('*/{}'))",
    "list(tree.rglob('{}'))",
    "glob.glob(f'{{tree}}/{}')",
    "os.path.lexists(tree / '{}')",
    "os.access(tree / '{}', os.R_OK)",
    "shutil.which('{}', path=str(tree))",
)


@pytest.mark.programs
def test_however_a_proof_looks_for_a_file_it_is_recorded(tmp_path: Path, root: Path) -> None:
    (root / "empty").mkdir()
    for number, way in enumerate(LOOKING):
        lines = ("import glob, os, pathlib, shutil, sys", "tree = pathlib.Path(sys.argv[1])")
        (tmp_path / "proof.py").write_text("\n".join((*lines, way.format("sought"))))
        out = tmp_path / str(number)
        env = {**os.environ, tracing.PROOF: str(tmp_path / "proof.py"), tracing.TRACE: str(out)}
        subprocess.run([sys.executable, tracing.__file__, str(root)], env=env, check=True)
        rows = [json.loads(line) for line in out.read_text().splitlines()]
        assert any(path.endswith("sought") or is_listed for path, is_listed in rows), (way, rows)


def test_the_headers_of_a_compiler_are_recorded_with_where_it_looked_first(
    tmp_path: Path, root: Path, recorder: Recorder
) -> None:
    recorder.include.add(f"{root}/inc")
    report = tmp_path / "report"
    report.write_text(f"x.o: \\\n {root}/csrc/a.h \\\n /usr/include/b.h\n{root}/y.o: {root}/f\n")
    recorder.hear("os.listdir", (str(root / "d"),))
    recorder.hear(SEARCH, (str(root), "n", "t"))
    recorder.hear(SEARCHED, ())
    tracing.write(recorder, tmp_path / "out", report)
    rows = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    looked = dict(rows[:-1])
    assert looked == {
        **dict.fromkeys(
            ("csrc/a.h", "inc/a.h", "a.h", "f", "csrc/f", "inc/f", "inc/csrc/a.h"), False
        ),
        "csrc/csrc/a.h": False,
        "d": True,
    }
    assert rows[-1] == [".", ["n", "t"]]


@pytest.fixture
def patch(tmp_path: Path) -> Patch:
    declared = 'no_diff:\n  - {versions: "==0.24.*", reason: too much}\n'
    (make(tmp_path, text=PATCH + declared) / "b.diff").write_text(DIFF.replace("zwei", "other"))
    (found,) = catalog.load(tmp_path / "patches").values()
    return found


def tree_of(root: Path, version: str = "0.22.1") -> SourceTree:
    return SourceTree(project="vllm", version=version, root=root, sha256="aa")


def test_a_stored_result_is_of_exactly_these_inputs(
    tmp_path: Path, root: Path, patch: Patch, monkeypatch: pytest.MonkeyPatch
) -> None:
    using, tree = settings(tmp_path), tree_of(root)
    step = status.step_for(patch, tree)
    assert step.variant is not None
    assert patch.proof is not None
    (tmp_path / "other.py").write_text("other")

    def of(**changes: object) -> Step:
        return replace(step, patch=replace(patch, **changes))  # type: ignore[arg-type]

    other = replace(step.variant, diff=patch.variants[1].diff)
    steps = {
        "as it is": [step],
        "name": [of(name="vllm/two")],
        "proof": [of(proof=replace(patch.proof, script=tmp_path / "other.py"))],
        "kind of proof": [of(proof=replace(patch.proof, kind="host"))],
        "no proof": [of(proof=None)],
        "diff": [replace(step, variant=other)],
        "no diff": [replace(step, variant=None)],
        "moved": [replace(step, variant=replace(step.variant, moved={"a": "b"}))],
        "series": [step, of(name="vllm/two")],
        "order": [of(name="vllm/two"), step],
    }
    keys = {name: Bench(using)._file(tree, rows) for name, rows in steps.items()}
    keys["sources"] = Bench(using)._file(replace(tree, sha256="bb"), [step])
    for number in (1, 2):
        cuda = tmp_path / f"toolchains/t-{number}/nvidia/cu13"
        keys[f"tools {number}"] = Bench(using, cuda=cuda)._file(tree, [step])
    question = Bench(using)._question(step)
    for program in (overlay, proofkit):
        with monkeypatch.context() as patched:
            patched.setattr(program, "__file__", str(tmp_path / "other.py"))
            keys[program.__name__] = Bench(using)._file(tree, [step])
    assert len(set(keys.values())) == len(keys)
    assert Bench(using)._file(tree, [step]) == keys["as it is"]
    for program in (tracing, compiled):
        with monkeypatch.context() as patched:
            patched.setattr(program, "__file__", str(tmp_path / "other.py"))
            assert Bench(using)._question(step) != question


@pytest.mark.parametrize("state", State)
def test_a_patch_is_missing_only_where_it_is_declared_to_have_no_diff_and_is_needed(
    root: Path, patch: Patch, state: State
) -> None:
    def judged(version: str, *, with_diff: bool = False) -> tuple[State, str]:
        tree = tree_of(root, version)
        step = status.step_for(patch, tree)
        assert step.variant is None
        variant = patch.variants[0] if with_diff else None
        row = measure._judged(replace(step, variant=variant), state, "no diff: two", tree, "now")
        return row.state, row.reason

    if state is State.CONFLICT:
        assert judged("0.24.1") == (State.MISSING, "too much; two")
    else:
        assert judged("0.24.1")[0] is state
    assert judged("0.25.0")[0] is state
    assert judged("0.24.1", with_diff=True)[0] is state


@pytest.mark.parametrize("version", ["0.24.0", "0.24.1", "0.24.0rc1", "0.25", "0.23"])
def test_what_a_patch_declares_holds_for_pre_releases_too(tmp_path: Path, version: str) -> None:
    text = PATCH.replace('">=0.22,<0.23"', '">=0.24.0rc1,<0.25"')
    for name, more in (("no_diff", ""), ("not_applicable", ""), ("kinds", "kind: latent, ")):
        text += f'{name}:\n  - {{versions: ">=0.24.0rc1,<0.25", {more}reason: why}}\n'
    make(tmp_path, text=text)
    (patch,) = catalog.load(tmp_path / "patches").values()
    inside, exemption = version.startswith("0.24"), patch.exemption(version)
    assert (patch.variant(version) is not None) is inside
    assert (exemption.reason if exemption else "") == ("why" if inside else "")
    assert patch.why_no_diff(version) == ("why" if inside else "")
    assert patch.kind_on(version) == ("latent" if inside else "fix")


@pytest.mark.parametrize(
    ("version", "diff"),
    [("0.21", None), ("0.22.5", "a.diff"), ("0.30", "a.diff"), ("0.40", "b.diff")],
)
def test_the_diff_to_start_from_is_that_of_the_releases_before(
    patch: Patch, version: str, diff: str | None
) -> None:
    found = patch.last_before(version)
    assert (found.diff.name if found else None) == diff
