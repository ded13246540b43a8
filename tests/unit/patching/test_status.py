"""Which release needs which patch: sources fetched by hash, proofs run, results cached."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet
from support.machine import DOWN, settings
from support.patches import DIFF, make
from support.sources import TREES, publish

from imagefactory import stock
from imagefactory.commands import patch_measure
from imagefactory.errors import InputError, SetupError, fail
from imagefactory.inbuild import proofkit
from imagefactory.locking import indexes
from imagefactory.patching import catalog, sources, status
from imagefactory.patching.measure import Bench, Measured
from imagefactory.patching.patch import Patch, State
from imagefactory.system import ui

PROOF = """\
import pathlib, sys
text = (pathlib.Path(sys.argv[1]) / "x.py").read_text()
ran = pathlib.Path({ran!r})
ran.write_text(ran.read_text() + "ran ")
print(text.split()[1])
raise SystemExit(0 if "zwei" in text else 1)
"""


@pytest.fixture
def patch(tmp_path: Path) -> Patch:
    folder = make(tmp_path)
    (folder / "proof.py").write_text(PROOF.format(ran=str(tmp_path / "ran")))
    (tmp_path / "ran").write_text("")
    text = (folder / "patch.yaml").read_text()
    (folder / "patch.yaml").write_text(
        text + 'not_applicable:\n  - {versions: "==0.23.0", reason: never there}\n'
    )
    return next(iter(catalog.load(tmp_path / "patches").values()))


@pytest.mark.programs
def test_states_are_measured_per_release(tmp_path: Path, index: str, patch: Patch) -> None:
    using = settings(tmp_path, index)
    trees = [sources.fetch("vllm", version, using) for version in TREES]
    rows = {row.version: row for row in status.measure([patch], trees, Bench(using))}
    assert {version: row.state for version, row in rows.items()} == {
        "0.22.1": State.NEEDED,
        "0.22.2": State.OBSOLETE,
        "0.22.3": State.CONFLICT,
        "0.23.0": State.NOT_APPLICABLE,
    }
    assert "x.py" in rows["0.22.3"].reason
    assert rows["0.23.0"].reason == "never there"
    assert trees[0].sha256[:12] in rows["0.22.1"].evidence
    page = status.markdown(list(rows.values()), [patch])
    assert "| 0.22.1 | needed |" in page


@pytest.mark.programs
def test_a_release_without_a_diff_for_a_declared_reason_is_missing_it(
    tmp_path: Path, index: str, patch: Patch
) -> None:
    text = (patch.folder / "patch.yaml").read_text()
    declared = text.replace("not_applicable:", "no_diff:").replace("never there", "too much")
    (patch.folder / "patch.yaml").write_text(declared)
    (again,) = catalog.load(tmp_path / "patches").values()
    using = settings(tmp_path, index)
    trees = [sources.fetch("vllm", version, using) for version in ("0.22.1", "0.23.0")]
    rows = status.measure([again], trees, Bench(using))
    assert [(row.state, row.reason) for row in rows] == [
        (State.NEEDED, "two"),
        (State.MISSING, "too much; two"),
    ]


def test_without_releases_nothing_is_measured(tmp_path: Path) -> None:
    assert status.measure([], [], Bench(settings(tmp_path))) == []


@pytest.mark.programs
def test_the_status_says_which_patches_are_the_projects_own(
    tmp_path: Path, index: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stock, "ROOT", tmp_path / "stock")
    monkeypatch.setenv("UV_DEFAULT_INDEX", index)
    for folder in ("state", "cache"):
        monkeypatch.setenv(f"XDG_{folder.upper()}_HOME", str(tmp_path / folder))
    for root, name in (("stock", "one"), ("stock", "two"), ("project", "two")):
        (make(tmp_path / root, f"vllm/{name}") / "proof.py").write_text("raise SystemExit(1)")
    origins = {"vllm/one": "stock", "vllm/two": "project, replaces stock"}
    matrix = tmp_path / "project/matrix.yaml"
    patch_measure.status_command(file=matrix, vllm="==0.22.1", json=True)
    ui.finish()
    rows = json.loads(capsys.readouterr().out)
    assert {row["patch"]: row["origin"] for row in rows} == origins
    patch_measure.status_command(file=matrix, vllm="==0.22.1")
    summary = capsys.readouterr().out.splitlines()
    for name, origin in origins.items():
        assert any(line.startswith(name) and line.endswith(origin) for line in summary)


@pytest.mark.parametrize("vllm", ["==99", ">=0.22,<0.22"])
def test_releases_that_there_are_not_are_an_error_and_not_an_empty_table(
    tmp_path: Path, index: str, monkeypatch: pytest.MonkeyPatch, vllm: str
) -> None:
    monkeypatch.setattr(stock, "ROOT", tmp_path / "stock")
    monkeypatch.setenv("UV_DEFAULT_INDEX", index)
    for folder in ("state", "cache"):
        monkeypatch.setenv(f"XDG_{folder.upper()}_HOME", str(tmp_path / folder))
    make(tmp_path)
    with pytest.raises(InputError) as caught:
        patch_measure.status_command(file=tmp_path / "matrix.yaml", vllm=vllm)
    (problem,) = caught.value.problems
    assert (problem.code, problem.where) == ("patch-no-release", "--vllm")
    assert problem.what.startswith("no release of vllm matches")
    assert problem.fix == f"the newest release is {list(TREES)[-1]}"


@pytest.mark.programs
def test_measuring_does_not_change_the_cached_sources(
    tmp_path: Path, index: str, patch: Patch
) -> None:
    using = settings(tmp_path, index)
    tree = sources.fetch("vllm", "0.22.1", using)
    status.measure([patch], [tree], Bench(using))
    assert (tree.root / "x.py").read_text() == TREES["0.22.1"]
    assert sorted(path.name for path in tree.root.iterdir()) == [".source.json", "x.py"]


@pytest.mark.programs
def test_results_are_cached_until_the_patch_the_proof_or_the_sources_change(
    tmp_path: Path, index: str, patch: Patch
) -> None:
    using = settings(tmp_path, index)
    tree = sources.fetch("vllm", "0.22.1", using)
    first = status.measure([patch], [tree], Bench(using))
    ran = (tmp_path / "ran").read_text()
    assert status.measure([patch], [tree], Bench(using)) == first
    assert (tmp_path / "ran").read_text() == ran
    status.measure([patch], [tree], Bench(using, fresh=True))
    assert len((tmp_path / "ran").read_text()) == 2 * len(ran)
    (patch.folder / "a.diff").write_text(DIFF.replace("zwei", "other"))
    (row,) = status.measure([patch], [tree], Bench(using))
    assert row.state is State.BROKEN


@pytest.mark.programs
def test_results_are_cached_until_proofkit_changes(
    tmp_path: Path, index: str, patch: Patch, monkeypatch: pytest.MonkeyPatch
) -> None:
    using = settings(tmp_path, index)
    tree = sources.fetch("vllm", "0.22.1", using)
    status.measure([patch], [tree], Bench(using))
    ran = (tmp_path / "ran").read_text()
    (tmp_path / "kit").mkdir()
    (tmp_path / "kit/source.py").write_text("# another one\n")
    monkeypatch.setattr(proofkit, "__file__", str(tmp_path / "kit/__init__.py"))
    status.measure([patch], [tree], Bench(using))
    assert (tmp_path / "ran").read_text() == 2 * ran


def test_all_releases_are_measured_unless_a_specifier_is_given(tmp_path: Path, index: str) -> None:
    using = settings(tmp_path, index)
    assert sources.releases("vllm", None, using) == list(TREES)
    assert sources.releases("vllm", SpecifierSet("<0.22.3"), using) == ["0.22.1", "0.22.2"]


def test_sources_are_files_of_the_right_kind_with_a_version_on_the_first_index_that_has_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages: dict[str, list[Any]] = {
        "first": [SimpleNamespace(package_type="sdist", version="odd")],
        "second": [
            SimpleNamespace(package_type=kind, version=version)
            for kind in ("sdist", "wheel")
            for version in ("1.0", "not a version", None, "2.0")
        ],
        "third": [SimpleNamespace(package_type="sdist", version="3.0")],
    }
    asked: list[tuple[str, list[str]]] = []

    def page(index: str, names: list[str], _: object) -> dict[str, Any]:
        asked.append((index, names))
        return {names[0]: SimpleNamespace(files=pages[index])}

    monkeypatch.setattr(indexes, "pages", page)
    using = settings(tmp_path, *pages)
    for project, kind in (("vllm", "sdist"), ("flashinfer", "wheel")):
        found = sources._files(project, using)
        assert [(one.package_type, one.version) for one in found] == [(kind, "1.0"), (kind, "2.0")]
    names = [("vllm", index) for index in pages][:2], [("flashinfer-python", i) for i in pages][:2]
    assert asked == [(index, [name]) for part in names for name, index in part]
    only = settings(tmp_path, "first")
    assert sources._files("vllm", only) == []


@pytest.mark.parametrize(
    "suffix",
    [
        *[".py", ".pyi", ".cu", ".cuh", ".h", ".hpp", ".inl", ".cpp", ".cc", ".cmake", ".txt"],
        *[".toml", ".jinja", ".json"],
    ],
)
def test_what_patches_and_proofs_read_is_unpacked(suffix: str) -> None:
    def wanted(path: str, kind: str = "sdist") -> bool:
        return sources._is_wanted(PurePosixPath(path), sources.TEXT_OF[kind])

    assert wanted(f"vllm-1/x{suffix}")
    assert wanted(f"x{suffix}", "wheel")
    for path in (
        f"/x{suffix}",
        f"a/../x{suffix}",
        f"a.egg-info/x{suffix}",
        f"a.dist-info/x{suffix}",
    ):
        assert not wanted(path)
    assert not wanted("logo.png")
    assert (wanted("include/vector"), wanted("include/vector", "wheel")) == (False, True)


def test_cached_sources_need_no_index(tmp_path: Path, index: str) -> None:
    tree = sources.fetch("vllm", "0.22.1", settings(tmp_path, index))
    offline = settings(tmp_path, DOWN)
    assert sources.fetch("vllm", "0.22.1", offline) == tree
    assert sources.releases("vllm", None, offline) == ["0.22.1"]


@pytest.mark.parametrize("mark", ['{"sha256": "0"}', "{", ""])
def test_sources_that_another_version_unpacked_or_a_kill_left_are_fetched_again(
    tmp_path: Path, index: str, mark: str
) -> None:
    tree = sources.fetch("vllm", "0.22.1", settings(tmp_path, index))
    (tree.root / "x.py").unlink()
    (tree.root / sources.MARK).write_text(mark)
    assert sources.fetch("vllm", "0.22.1", settings(tmp_path, index)) == tree
    assert (tree.root / "x.py").read_text() == TREES["0.22.1"]


def test_sources_that_do_not_have_the_hash_on_the_index_are_rejected(
    tmp_path: Path, index: str
) -> None:
    publish(tmp_path / "sdists", tmp_path / "www", wrong=True)
    with pytest.raises(SetupError) as caught:
        sources.fetch("vllm", "0.22.1", settings(tmp_path, index))
    assert caught.value.problems[0].code == "sources-corrupt"
    assert not (tmp_path / "cache/sources/vllm/0.22.1").exists()


def damaged(what: str) -> bytes:
    """An sdist of several files, with a fault."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for number in range(3):
            member = tarfile.TarInfo(f"vllm-1/vllm/{number}.py")
            member.size = 512
            archive.addfile(member, io.BytesIO(b"#" * 512))
    text = bytearray(content.getvalue())
    if what == "another file":
        text[1024:1034] = b"garbage..."  # tarfile takes that for the end
    packed = gzip.compress(bytes(text))
    if what == "another file":
        return packed[:-8] + gzip.compress(content.getvalue())[-8:]
    return {"a page": b"<html>", "empty": b"", "half": packed[: len(packed) // 2]}[what]


@pytest.mark.parametrize("what", ["a page", "empty", "half", "another file"])
@pytest.mark.parametrize("name", ["vllm-1.tar.gz", "vllm-1-py3-none-any.whl"])
def test_sources_without_a_hash_that_are_damaged_are_rejected(
    tmp_path: Path, what: str, name: str
) -> None:
    with pytest.raises(SetupError) as caught:
        sources._write_texts(io.BytesIO(damaged(what)), name, tmp_path / "tree", sources.TEXT, "00")
    assert caught.value.problems[0].code == "sources-corrupt"
    assert list(tmp_path.iterdir()) == []


def test_a_missing_source_tree_leaves_its_release_unknown(tmp_path: Path, patch: Patch) -> None:
    tree = sources.SourceTree(project="vllm", version="0.22.1", root=tmp_path, sha256="")

    def source(_project: str, version: str) -> sources.SourceTree:
        if version == "0.22.1":
            return tree
        raise fail(SetupError, "sources-unreachable", "no index", fix="")

    pairs = [("vllm", "0.22.1"), ("vllm", "0.22.2")]
    known: Any = {"project": "vllm", "patch": "vllm/x", "state": State.NEEDED}
    found = Measured(**known, version="0.22.1", reason="", evidence="")
    bench: Any = SimpleNamespace(each=lambda _tree, _steps: [found])
    rows, failed = status.measure_as_fetched([patch], pairs, source, bench)
    assert rows == [found]
    assert failed == {("vllm", "0.22.2"): "no index"}
    (row,) = status.without_sources([patch], failed)
    assert (row.version, row.state, row.reason) == (
        "0.22.2",
        State.UNKNOWN,
        "no sources: no index",
    )
    with pytest.raises(SetupError):
        status.measure_as_fetched([patch], pairs[1:], source, bench)


@pytest.mark.programs
def test_a_release_with_the_same_content_is_not_proven_again(
    tmp_path: Path, index: str, patch: Patch
) -> None:
    using = settings(tmp_path, index)
    trees = [sources.fetch("vllm", version, using) for version in ("0.22.1", "0.22.2")]
    (trees[1].root / "x.py").write_text(TREES["0.22.1"])
    (trees[1].root / "y.py").write_text("not read\n")
    first, second = (status.measure([patch], [tree], Bench(using))[0] for tree in trees)
    assert (tmp_path / "ran").read_text().count("ran") == 2
    assert (second.state, second.version) == (first.state, "0.22.2")
    assert second.evidence.endswith("same as on 0.22.1")
    assert trees[1].sha256[:12] in second.evidence


@pytest.mark.programs
def test_a_proof_that_only_an_installed_tree_confirms_leaves_a_declared_state(
    tmp_path: Path, index: str, patch: Patch
) -> None:
    text = (patch.folder / "patch.yaml").read_text().replace("kind: static", "kind: installed")
    (patch.folder / "patch.yaml").write_text(text)
    (patch,) = catalog.load(tmp_path / "patches").values()
    tree = sources.fetch("vllm", "0.22.1", settings(tmp_path, index))
    (row,) = status.measure([patch], [tree], Bench(settings(tmp_path, index)))
    assert row.state is State.DECLARED
    assert row.evidence.startswith("declared; its diff applies to")


def test_a_project_is_measured_at_the_releases_that_vllm_pins(tmp_path: Path) -> None:
    trees = []
    for version, line in (
        ("0.1", "flashinfer-python==0.6.4"),
        ("0.2", "flashinfer-python==0.6.11.post2  # why"),
    ):
        root = tmp_path / version
        (root / "requirements").mkdir(parents=True)
        (root / "requirements/cuda.txt").write_text(
            f"# a comment\ntorch==2\n{line}\nflashinfer-cubin==0.6.9\n"
        )
        trees.append(sources.SourceTree(project="vllm", version=version, root=root, sha256=""))
    assert sources.pinned("flashinfer", trees) == ["0.6.4", "0.6.11.post2"]
    assert sources.pinned("vllm", trees) == []


SEARCHING = """\
import pathlib, sys, proofkit
if len(sys.argv) > 2:
    (pathlib.Path(sys.argv[1]) / "of_the_child").is_file()
    raise SystemExit(0)
found = proofkit.holding(pathlib.Path(sys.argv[1]), r".*\\.py", "tw")
proofkit.again(sys.argv[1], "child")
raise SystemExit(0 if len(found) != 1 else 1)
"""


@pytest.mark.programs
def test_of_a_search_only_what_it_finds_counts_as_read(
    tmp_path: Path, index: str, patch: Patch
) -> None:
    (patch.folder / "proof.py").write_text(SEARCHING)
    using = settings(tmp_path, index)
    trees = [sources.fetch("vllm", version, using) for version in ("0.22.1", "0.22.2")]
    second = trees[1].root
    (second / "x.py").write_text(TREES["0.22.1"])
    (second / "y.py").write_text("not found\n")
    first, same = (status.measure([patch], [tree], Bench(using))[0] for tree in trees)
    assert (first.state, same.evidence.endswith("same as on 0.22.1")) == (State.NEEDED, True)
    step = status.step_for(patch, trees[1])
    for name, text in (("y.py", "two\n"), ("of_the_child", "")):
        assert Bench(using)._reads.find(Bench(using)._question(step), second)
        was = (second / name).read_bytes() if (second / name).is_file() else None
        (second / name).write_text(text)
        assert Bench(using)._reads.find(Bench(using)._question(step), second) is None
        if was is not None:
            (second / name).write_bytes(was)
