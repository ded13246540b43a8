"""Where source trees come from: parsed from the matrix, resolved by git, packed as one archive."""

from __future__ import annotations

import io
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from support.matrices import GOOD, problems
from support.matrices import write as write_matrix

from imagefactory.errors import SetupError
from imagefactory.locking import gitref, toolchains, wheelhouse
from imagefactory.locking.lock import Lock
from imagefactory.matrix import matrix, origins
from imagefactory.matrix.cell import Cell
from imagefactory.matrix.origins import Kind
from imagefactory.settings import Settings
from imagefactory.system import archive


@pytest.mark.parametrize(
    ("text", "kind", "address", "ref", "inside"),
    [
        (
            "git+https://github.com/nvidia/cutlass.git@v4.4.2",
            Kind.GIT,
            "https://github.com/nvidia/cutlass.git",
            "v4.4.2",
            "",
        ),
        (
            "git+ssh://git@host/me/vllm@feature/fp4",
            Kind.GIT,
            "ssh://git@host/me/vllm",
            "feature/fp4",
            "",
        ),
        (
            f"https://host/a.tar.gz#sha256={'0' * 64}",
            Kind.ARCHIVE,
            "https://host/a.tar.gz",
            "0" * 64,
            "",
        ),
        (
            "wheel:flashinfer-python/flashinfer/data",
            Kind.WHEEL,
            "flashinfer-python",
            "",
            "flashinfer/data",
        ),
        ("./third_party/cutlass", Kind.FOLDER, "./third_party/cutlass", "", ""),
        ("/src/cutlass", Kind.FOLDER, "/src/cutlass", "", ""),
    ],
)
def test_an_origin_is_parsed(text: str, kind: Kind, address: str, ref: str, inside: str) -> None:
    found = origins.of(text)
    assert (found.kind, found.address, found.ref, found.inside) == (kind, address, ref, inside)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "cutlass",
        "git+https://host/a",
        "git+ssh://git@host/a",
        "git+https://host/a@",
        "https://host/a.tar.gz",
        "https://host/a.tar.gz#sha256=12",
        "wheel:flashinfer-python",
        "wheel:/inside",
    ],
)
def test_an_origin_without_an_address_or_version_is_not_parsed(text: str) -> None:
    assert origins.parse(text) is None


def git(folder: Path, *arguments: str) -> str:
    argv = [
        "git",
        "-C",
        str(folder),
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "-c",
        "commit.gpgsign=false",
    ]
    argv += ["-c", "protocol.file.allow=always", *arguments]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "cutlass"
    (folder / "include").mkdir(parents=True)
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "config", "uploadpack.allowAnySHA1InWant", "true")
    (folder / "include/a.h").write_text("one\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "one")
    git(folder, "tag", "--annotate", "v1", "-m", "v1")
    (folder / "include/a.h").write_text("two\n")
    git(folder, "commit", "--quiet", "--all", "-m", "two")
    return folder


def members(path: Path) -> dict[str, tuple[int, int, str]]:
    with tarfile.open(path) as tar:
        return {
            m.name: (m.mode, int(m.mtime), (tar.extractfile(m) or io.BytesIO()).read().decode())
            for m in tar
            if m.isreg()
        }


@pytest.mark.programs
def test_a_tag_a_branch_and_a_commit_resolve_to_a_commit(repository: Path) -> None:
    url = f"file://{repository}"
    first, second = (
        git(repository, "rev-parse", "v1^{commit}"),
        git(repository, "rev-parse", "main"),
    )
    assert gitref.commit_of(url, "v1") == first
    assert gitref.commit_of(url, "main") == second
    assert gitref.commit_of(url, second) == second


@pytest.mark.programs
def test_a_missing_ref_and_a_missing_repository_are_reported(
    repository: Path, tmp_path: Path
) -> None:
    with pytest.raises(SetupError) as caught:
        gitref.commit_of(f"file://{repository}", "v2")
    assert caught.value.problems[0].code == "no-such-ref"
    with pytest.raises(SetupError) as caught:
        gitref.commit_of(f"file://{tmp_path}/none", "v2")
    assert caught.value.problems[0].code == "git-failed"


@pytest.mark.programs
def test_the_tree_of_a_commit_is_packed_reproducibly_without_gits_own_files(
    repository: Path, tmp_path: Path
) -> None:
    url, commit = f"file://{repository}", git(repository, "rev-parse", "v1^{commit}")
    for name in ("a.tar", "b.tar"):
        gitref.pack(url, commit, tmp_path / name)
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
    assert members(tmp_path / "a.tar") == {
        "src/include/a.h": (0o644, archive.EPOCH, "one\n"),
        "src/run.sh": (0o755, archive.EPOCH, "#!/bin/sh\n"),
    }


@pytest.mark.programs
def test_submodules_are_packed_at_their_commit_and_a_missing_one_is_reported(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # by default git refuses submodules that are local folders, as these are
    for name, value in {"COUNT": "1", "KEY_0": "protocol.file.allow", "VALUE_0": "always"}.items():
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    outer = tmp_path / "outer"
    outer.mkdir()
    git(outer, "init", "--quiet", "--initial-branch=main")
    git(outer, "config", "uploadpack.allowAnySHA1InWant", "true")
    git(outer, "submodule", "--quiet", "add", f"file://{repository}", "third_party/cutlass")
    git(outer, "-C", "third_party/cutlass", "checkout", "--quiet", "v1")
    git(outer, "add", ".")
    git(outer, "commit", "--quiet", "-m", "with a submodule")
    commit = git(outer, "rev-parse", "main")
    gitref.pack(f"file://{outer}", commit, tmp_path / "a.tar")
    assert members(tmp_path / "a.tar")["src/third_party/cutlass/include/a.h"][2] == "one\n"
    repository.rename(tmp_path / "renamed")
    with pytest.raises(SetupError) as caught:
        gitref.pack(f"file://{outer}", commit, tmp_path / "b.tar")
    assert "submodule" in caught.value.problems[0].what
    assert not (tmp_path / "b.tar").exists()


def settings_in(folder: Path) -> Settings:
    return Settings(
        state=folder / "state",
        cache=folder / "cache",
        indexes=("http://127.0.0.1:9/simple",),
        find_links=(),
        ca_bundle=None,
    )


def cell_of(folder: Path, url: str) -> Cell:
    build = (
        "    build: {binaries: compiled, tools: t, extensions: [x], "
        f"sources: {{A_SRC_DIR: 'git+{url}@v1'}}}}\n"
        "    toolchain: t\n    env: {TORCH_CUDA_ARCH_LIST: 12.1a}\n"
    )
    tools = (
        "toolchains:\n  t: {requirements: [wheel==0.45.1], platforms: [linux/amd64]}\ndefaults:\n"
    )
    path = write_matrix(folder, "    env: {A: b}\n", build)
    path.write_text(path.read_text().replace("defaults:\n", tools))
    return matrix.load(path).cells[0]


@pytest.mark.programs
def test_a_ref_is_locked_as_its_commit_and_fetched_by_commit_later(
    repository: Path, tmp_path: Path
) -> None:
    url, settings = f"file://{repository}", settings_in(tmp_path)
    cell = cell_of(tmp_path, url)
    wanted = next(one for one in toolchains.wanted_sources([cell]) if not one.version)
    source = toolchains.lock_source(wanted, settings)
    commit = git(repository, "rev-parse", "v1^{commit}")
    assert (source.name, source.version, source.url) == (
        f"git+{url}@v1",
        commit,
        f"git+{url}@{commit}",
    )
    git(repository, "tag", "--force", "v1", "main")
    lock = Lock(created="", tools=(), resolutions=(), sources=(source,))
    assert wanted.find_in(lock) == source
    moved = toolchains.lock_source(wanted, settings)
    assert moved.version != commit
    other_cache = replace(settings, cache=tmp_path / "other")
    path = wheelhouse.fetch(source.url, source.sha256, source.filename, other_cache)
    assert wheelhouse.sha_of(path) == source.sha256


def test_the_hash_of_a_folder_changes_when_one_byte_changes(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f/a").write_text("one")
    before = archive.sha_of_folder(tmp_path / "f")
    assert archive.sha_of_folder(tmp_path / "f") == before
    (tmp_path / "f/a").write_text("two")
    assert archive.sha_of_folder(tmp_path / "f") != before


BUILD = (
    "    build: "
    "{binaries: compiled, tools: t, extensions: [x], sources: {A_SRC_DIR: ./a}}\n    toolchain: t\n"
)


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("extensions: [x], ", "", "matrix-build-lacks"),
        ("    toolchain: t\n", "", "matrix-build-lacks"),
        ("TORCH_CUDA_ARCH_LIST", "B", "matrix-build-lacks"),
        ("./a", "a", "matrix-bad-origin"),
        ("binaries: compiled", "binaries: official", "matrix-build-idle"),
    ],
)
def test_a_build_with_missing_or_useless_settings_is_reported_with_its_line(
    tmp_path: Path, old: str, new: str, code: str
) -> None:
    text = GOOD.replace(
        "    env: {A: b}\n", BUILD + '    env: {TORCH_CUDA_ARCH_LIST: "12.1a"}\n'
    ).replace(
        "defaults:\n",
        "toolchains:\n  t: {requirements: [wheel==0.45.1], platforms: [linux/amd64]}\ndefaults:\n",
    )
    path = tmp_path / "matrix.yaml"
    path.write_text(text)
    assert problems(path) == []
    path.write_text(text.replace(old, new))
    found = problems(path)
    assert {problem.code for problem in found} == {code}
    assert all("matrix.yaml:" in (problem.where or "") for problem in found)
