"""The system of a base is assembled once for what is locked, and never for an image by digest."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import zstandard
from support.machine import settings
from support.plans import base_image, deb, planned

from imagefactory.building import bases, tarball
from imagefactory.building.debian import debian, overlay
from imagefactory.building.debian.debian import Assembled
from imagefactory.building.tree import Entry, Kind, Tree
from imagefactory.errors import InputError
from imagefactory.locking import registry_bases
from imagefactory.locking.debian import files
from imagefactory.locking.debian.skeleton import Skeleton
from imagefactory.locking.lock import Deb
from imagefactory.planning.cell_plan import BaseImage
from imagefactory.system.platforms import Platform


@pytest.fixture
def assembled(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The packages of every system that was assembled."""
    made: list[list[str]] = []

    def fetch(debs: Sequence[Deb], day: str, _: object) -> list[Path]:
        assert day == "2026-11-20"
        return [Path(deb.name) for deb in debs]

    def assemble(
        packages: Sequence[Path], *, platform: Platform, suite: str, epoch: int, folder: Path
    ) -> Assembled:
        assert (platform, suite, epoch) == (Platform.ARM64, "trixie", 315532800)
        made.append([path.name for path in packages])
        folder.mkdir(parents=True)
        index = {"manifests": [{"digest": f"sha256:{len(made)}"}]}
        (folder / "index.json").write_text(json.dumps(index))
        return Assembled(folder=folder, digest="", layer="sha256:1", size=0)

    monkeypatch.setattr(files, "fetch", fetch)
    monkeypatch.setattr(debian, "assemble", assemble)
    monkeypatch.setattr(bases, "_check", lambda *_: None)
    return made


def image(*debs: Deb) -> BaseImage:
    return base_image(planned().cell.flavor.base, Platform.ARM64, *debs, suite="trixie")


def test_each_stage_has_a_system_of_its_own_that_is_assembled_once(
    assembled: list[list[str]], tmp_path: Path
) -> None:
    base = image(deb("apt"), deb("bash"))
    first = bases.contexts(base, "base", settings(tmp_path))
    assert first["root"].startswith(f"oci-layout://{tmp_path}")
    assert first["root"].endswith("@sha256:1")
    assert bases.contexts(base, "base", settings(tmp_path)) == first
    assert bases.contexts(base, "builder", settings(tmp_path)) != first
    locked = replace(base.locked, compiler=(deb("ccache"),))
    assert bases.contexts(replace(base, locked=locked), "compiler", settings(tmp_path)) != first
    assert assembled == [["apt", "bash"], ["apt", "bash", "git"], ["apt", "bash", "git", "ccache"]]


def test_other_packages_are_another_system(assembled: list[list[str]], tmp_path: Path) -> None:
    for version in ("1", "2"):
        bases.contexts(image(deb("apt", version)), "base", settings(tmp_path))
    assert len(assembled) == 2


def test_an_image_of_a_registry_needs_no_context(
    assembled: list[list[str]], tmp_path: Path
) -> None:
    base = base_image(planned().cell.flavor.base, Platform.ARM64)
    assert bases.contexts(base, "base", settings(tmp_path)) == {}
    assert assembled == []


def test_what_is_added_to_an_image_of_a_registry_is_assembled_over_what_it_has(
    assembled: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[list[str]] = []

    def add(packages: Sequence[Path], image: Skeleton, *, folder: Path, **_: object) -> Assembled:
        assert image is has
        made.append([path.name for path in packages])
        folder.mkdir(parents=True)
        (folder / "index.json").write_text(json.dumps({"manifests": [{"digest": "sha256:9"}]}))
        return Assembled(folder=folder, digest="", layer="sha256:1", size=0)

    has = Skeleton(nodes={})
    monkeypatch.setattr(registry_bases, "skeleton", lambda *_: has)
    monkeypatch.setattr(overlay, "assemble", add)
    base = base_image(planned().cell.flavor.base, Platform.ARM64, deb("g++"))
    base = replace(base, locked=replace(base.locked, builder=(deb("git"),)))
    assert bases.contexts(base, "base", settings(tmp_path))["root"].endswith("@sha256:9")
    bases.contexts(base, "builder", settings(tmp_path))
    assert (made, assembled) == ([["g++"], ["g++", "git"]], [])
    builder_only = replace(base, locked=replace(base.locked, debs=()))
    assert bases.contexts(builder_only, "base", settings(tmp_path)) == {}
    bases.contexts(builder_only, "builder", settings(tmp_path))
    assert made[2:] == [["git"]]


def test_what_is_added_to_an_image_is_part_of_the_build_key() -> None:
    base = planned().cell.flavor.base
    keys = [
        planned(base_image(base, Platform.ARM64, *debs)).build_key
        for debs in ((), (deb("g++"),), (deb("gcc-14"),))
    ]
    assert len(set(keys)) == len(keys)


def test_the_digest_covers_the_packages_the_platform_and_the_assembler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = planned().cell.flavor.base
    digests = [
        image(deb("apt")).digest,
        image(deb("apt", "2")).digest,
        image(deb("apt"), deb("bash")).digest,
        base_image(base, Platform.AMD64, deb("apt"), suite="trixie").digest,
    ]
    monkeypatch.setattr("imagefactory.planning.context.assembler", lambda: "another")
    digests.append(image(deb("apt")).digest)
    assert len(set(digests)) == len(digests)
    day = replace(image(deb("apt")).locked, created="2026-11-21")
    assert replace(image(deb("apt")), locked=day).digest == digests[-1]


def status_of(rows: Mapping[str, str]) -> str:
    """dpkg's status of a system with these packages."""
    return "\n".join(
        f"Package: {name}\nStatus: install ok installed\nArchitecture: arm64\n{row}"
        for name, row in rows.items()
    )


def assembling(status: str) -> Callable[..., Assembled]:
    """Assembles a system with this status."""

    def assemble(*_: object, folder: Path, **__: object) -> Assembled:
        (folder / "blobs/sha256").mkdir(parents=True)
        tree = Tree()
        entry = Entry(kind=Kind.FILE, mode=0o644, content=status.encode())
        tree.put("var/lib/dpkg/status", entry)
        archive = b"".join(tarball.blocks(tree, 0))
        (folder / "blobs/sha256/1").write_bytes(zstandard.compress(archive))
        (folder / "index.json").write_text(json.dumps({"manifests": [{"digest": "sha256:2"}]}))
        return Assembled(folder=folder, digest="", layer="sha256:1", size=0)

    return assemble


@pytest.mark.parametrize(
    ("left_out", "what"),
    [
        ("", ""),
        ("libc6", "python3 3.1 depends on libc6 (>= 2.36)"),
        ("mawk", "base-files 1 depends on awk"),
        ("python3", "the matrix names python3"),
    ],
)
def test_a_system_that_lacks_what_its_packages_depend_on_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_out: str, what: str
) -> None:
    rows = {
        "base-files": "Version: 1\nPre-Depends: awk\n",
        "libc6": "Version: 2.41\n",
        "mawk": "Version: 1\nProvides: awk\n",
        "python3": "Version: 3.1\nDepends: libc6 (>= 2.36), gone | mawk:any\nRecommends: x\n",
    }
    status = status_of({name: row for name, row in rows.items() if name != left_out})
    monkeypatch.setattr(files, "fetch", lambda *_: [])
    monkeypatch.setattr(debian, "assemble", assembling(status))
    wanted = image(*(deb(name) for name in rows))
    wanted = replace(wanted, locked=replace(wanted.locked, packages=("python3",)))
    if not left_out:
        assert bases.contexts(wanted, "base", settings(tmp_path))
        return
    for _ in range(2):  # it is not kept
        with pytest.raises(InputError) as caught:
            bases.contexts(wanted, "base", settings(tmp_path))
        found = caught.value.problems[0]
        assert found.code == "lock-incomplete"
        assert found.what == f"{what}, which is not among its packages"
    assert [path.suffix for path in (tmp_path / "cache/bases").iterdir()] == [".lock"]


@pytest.mark.parametrize(
    ("left_out", "what"),
    [
        ("", ""),
        ("g++-14", "g++ 4 depends on g++-14"),
        ("libc-bin", "libc6 2.42 depends on libc-bin (= 2.42)"),  # upgraded with what needs it
        ("g++", "the matrix names g++"),
    ],
)
def test_what_is_added_to_an_image_of_a_registry_has_what_it_depends_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_out: str, what: str
) -> None:
    before = {
        "libc-bin": "Version: 2.41\n",
        "libc6": "Version: 2.41\nDepends: libc-bin (= 2.41)\n",
        "slim": "Version: 1\nDepends: left-out-by-the-image\n",
    }
    new = {
        "g++": "Version: 4\nDepends: g++-14, libc6 (>= 2.42)\n",
        "g++-14": "Version: 14\n",
        "libc-bin": "Version: 2.42\n",
        "libc6": "Version: 2.42\nDepends: libc-bin (= 2.42)\n",
    }
    after = before | {name: row for name, row in new.items() if name != left_out}
    has = SimpleNamespace(status=status_of(before))
    monkeypatch.setattr(files, "fetch", lambda *_: [])
    monkeypatch.setattr(registry_bases, "skeleton", lambda *_: has)
    monkeypatch.setattr(overlay, "assemble", assembling(status_of(after)))
    wanted = base_image(planned().cell.flavor.base, Platform.ARM64, *map(deb, new))
    wanted = replace(wanted, locked=replace(wanted.locked, packages=("g++",)))
    if not left_out:
        assert bases.contexts(wanted, "base", settings(tmp_path))
        return
    with pytest.raises(InputError) as caught:
        bases.contexts(wanted, "base", settings(tmp_path))
    assert [one.what for one in caught.value.problems] == [
        f"{what}, which is not among its packages"
    ]
