"""What is imported, as what, and for which release; and the toolchain that proofs compile with."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.specifiers import SpecifierSet
from support.machine import settings
from support.patches import make

from imagefactory.errors import InputError, SetupError
from imagefactory.inbuild import overlay
from imagefactory.locking import uv_indexes
from imagefactory.locking.lock import LockedToolchain
from imagefactory.locking.store import digest
from imagefactory.patching import (
    conflicts,
    cuda_home,
    fetched,
    importing,
    partial,
    sources,
)
from imagefactory.patching.patch import Source
from imagefactory.patching.sources import SourceTree
from imagefactory.system import shell
from imagefactory.system.platforms import Platform


def tree_of(root: Path, version: str = "0.22.1") -> SourceTree:
    return SourceTree(project="vllm", version=version, root=root, sha256="ab" * 32)


def test_a_folder_gives_its_diffs_in_order_and_names_what_else_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "_addresses_in", lambda file: [f"from {file.name}", "twice"])
    root = tmp_path / "mods/fix"
    for name in ("b.patch", "a/c.diff", "run.sh", "a/apply", "notes.txt", "x.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    found = importing._given(str(root))
    assert (found.shown, found.name) == (str(root), "fix")
    assert {Path(name).name: data for name, data in found.texts.items()} == {
        "c.diff": b"a/c.diff",
        "b.patch": b"b.patch",
    }
    assert [*found.texts] == sorted(found.texts)
    assert found.left == ("a/apply", "notes.txt", "run.sh", "x.py")
    assert found.fetches == ("from apply", "twice", "from run.sh")
    one = importing._given(str(root / "b.patch"))
    assert (one.shown, one.name, one.left) == (str(root / "b.patch"), "b", ())
    assert one.texts == {str(root / "b.patch"): b"b.patch"}


@pytest.mark.parametrize(
    ("script", "fix"),
    [
        ("", "pass a folder with .patch or .diff files; turn"),
        ("run.sh", "a script fetches one: imagefactory patch import u; a script fetches one: imag"),
    ],
)
def test_a_folder_without_a_diff_says_what_its_scripts_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, fix: str
) -> None:
    monkeypatch.setattr(importing, "_addresses_in", lambda _: ["u", "v"])
    (tmp_path / (script or "x.txt")).touch()
    with pytest.raises(InputError) as caught:
        importing._given(str(tmp_path))
    (problem,) = caught.value.problems
    assert (problem.code, problem.where) == ("import-empty", str(tmp_path))
    assert problem.fix.startswith(fix)


def test_an_address_is_fetched_unless_there_is_a_file_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    one = fetched.Fetched(content=b"c", source=Source(address="shown", sha256="ab"))
    monkeypatch.setattr(fetched, "fetch", lambda _: one)
    found = importing._given("vllm#7")
    assert (found.shown, found.name, found.project) == ("shown", "pr-7", "vllm")
    assert (found.texts, found.origin) == ({"shown": b"c"}, one)
    Path("vllm#7").write_text("d")
    assert importing._given("vllm#7").texts == {"vllm#7": b"d"}
    with pytest.raises(InputError) as caught:
        importing._given("nothing")
    assert caught.value.problems[0].code == "import-missing"


@pytest.mark.parametrize(
    ("applies", "fits", "on", "found"),
    [
        ({"3", "1"}, {}, None, ("3", "the diff")),
        ({"1"}, {}, None, ("1", "the diff")),
        (set(), {"1": 2, "2": 5, "3": 1}, None, ("2", "")),
        (set(), {"1": 2, "2": 2, "3": 0}, None, ("2", "")),  # the newest of the best
        (set(), {}, None, "import-nowhere"),
        (set(), {"1": 1}, "9", "port-target"),
    ],
)
def test_the_newest_release_that_fits_is_taken_else_the_one_that_fits_best(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    applies: set[str],
    fits: dict[str, int],
    on: str | None,
    found: tuple[str, str] | str,
) -> None:
    def releases(_: str, wanted: SpecifierSet | None, __: object) -> list[str]:
        return [text for text in "123" if wanted is None or wanted.contains(text)]

    monkeypatch.setattr(sources, "releases", releases)
    monkeypatch.setattr(sources, "fetch", lambda _, version, __: tree_of(tmp_path, version))
    applied = lambda _, __, tree: "the diff" * (tree.version in applies)  # noqa: E731
    monkeypatch.setattr(importing, "_applied", applied)
    monkeypatch.setattr(partial, "fitting", lambda _, tree: fits.get(tree.version, 0))
    monkeypatch.setattr(conflicts, "explain", lambda text, root: f"{text} {root}")
    plain = [tmp_path / "1.diff"]
    plain[0].write_text("text")
    given = plain, ["x.py"], "vllm", on, settings(tmp_path)
    if isinstance(found, str):
        with pytest.raises(InputError) as caught:
            importing._newest_match(*given)
        (problem,) = caught.value.problems
        assert problem.code == found
        if found == "import-nowhere":
            assert problem.detail == f"text {tmp_path}"
            assert "of vllm (1 - 3)" in problem.what
        return
    tree, text = importing._newest_match(*given)
    assert (tree.version, text) == found


@pytest.mark.parametrize(("fails", "text"), [((), "made"), ((1,), ""), ((0, 1), "")])
def test_diffs_apply_if_each_does_on_top_of_those_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: tuple[int, ...], text: str
) -> None:
    asked: list[object] = []

    def git_apply(copy: Path, diff: Path) -> object:
        asked.append((copy, diff))
        return SimpleNamespace(returncode=int(int(diff.name) in fails))

    monkeypatch.setattr(overlay, "git_apply", git_apply)
    monkeypatch.setattr(importing, "copy_of", lambda _: nullcontext(tmp_path / "copy"))

    def diff_of(*given: object) -> str:
        asked.append(given)
        return "made"

    monkeypatch.setattr(importing, "diff_of", diff_of)
    diffs = [Path("0"), Path("1")]
    assert importing._applied(diffs, ["x.py"], tree_of(tmp_path)) == text
    tried = diffs[: (min(fails) + 1 if fails else 2)]
    assert asked[: len(tried)] == [(tmp_path / "copy", diff) for diff in tried]
    assert asked[len(tried) :] == ([(tmp_path, tmp_path / "copy", ["x.py"])] if text else [])


@pytest.mark.parametrize(
    ("name", "given", "found"),
    [
        (None, "My Fix_2", "vllm/my-fix-2"),
        (None, "--x--", "vllm/x"),
        ("vllm/other", "x", "vllm/other"),
        ("flashinfer/other", "x", "patch-name"),
        ("vllm/", "x", "patch-name"),
        (None, "...", "patch-name"),
        (None, "one", "patch-exists"),
    ],
)
def test_a_patch_is_called_after_its_file_unless_a_name_is_given(
    tmp_path: Path, name: str | None, given: str, found: str
) -> None:
    make(tmp_path)
    own = importing._Given(shown="x", name=given, texts={})
    if not found.startswith("patch-"):
        assert importing._full_name(name, "vllm", own, tmp_path / "patches") == found
        return
    with pytest.raises(InputError) as caught:
        importing._full_name(name, "vllm", own, tmp_path / "patches")
    (problem,) = caught.value.problems
    where = str(tmp_path / "patches/vllm/one") if found == "patch-exists" else None
    assert (problem.code, problem.where) == (found, where)
    assert "--name" in problem.fix


TOOLCHAIN = LockedToolchain(name="cuda", platform=Platform.AMD64, requirements=(), wheels=())


@pytest.mark.parametrize(
    ("done", "files", "code"),
    [
        (True, ("bin/nvcc", "lib/x"), ""),
        (True, ("bin/nvcc", "lib64/x"), ""),
        (True, ("bin/ptxas",), "toolchain-empty"),
        (False, ("bin/nvcc",), "toolchain-install"),
    ],
)
def test_a_toolchain_is_installed_by_hash_from_the_project_s_indexes_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: bool, files: tuple[str, ...], code: str
) -> None:
    asked: list[list[str]] = []

    def run(argv: list[str], env: Mapping[str, str]) -> object:
        asked.append(argv)
        prefix = Path(argv[argv.index("--target") + 1])
        for name in files:
            (prefix / "nvidia/cu13" / name).parent.mkdir(parents=True, exist_ok=True)
            (prefix / "nvidia/cu13" / name).touch()
        assert Path(argv[argv.index("--requirements") + 1]).is_file()
        assert env == uv_indexes.environment(own)
        return SimpleNamespace(ok=done, err="x" * 900 + "why\n")

    own = settings(tmp_path, "https://h.example/simple")
    monkeypatch.setattr(shell, "run", run)
    if code:
        with pytest.raises(SetupError) as caught:
            cuda_home.prepare(TOOLCHAIN, own)
        (problem,) = caught.value.problems
        assert problem.code == code
        said = f"cuda: {'x' * 597}why"
        assert problem.what == (said if not done else "prefix contains no nvcc")
        assert not [path for path in (own.cache / "toolchains").iterdir() if path.is_dir()]
        return
    home = cuda_home.prepare(TOOLCHAIN, own)
    assert cuda_home.prepare(TOOLCHAIN, own) == home
    assert home.name == "cu13"
    assert (home / "lib64/x").is_file()
    digits = digest(TOOLCHAIN).removeprefix("sha256:")[:16]
    assert home.parents[1] == own.cache / "toolchains" / f"cuda-{digits}"
    (argv,) = asked
    assert argv[1:4] == ["pip", "install", "--python"]
    assert argv[4] == sys.executable
    for option in ("--no-deps", "--require-hashes", "--no-config", "--quiet"):
        assert option in argv
    assert argv[argv.index("--only-binary") + 1] == ":all:"
    assert argv[-len(options := uv_indexes.options(own)) :] == list(options)
