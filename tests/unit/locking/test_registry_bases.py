"""Bases that are images of a registry: `lock` reads their digests and environments from there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.debian import BASIC, COMPILERS, key, package
from support.debian import serve as serve_archive
from support.debian import write as write_archive
from support.debs import tar
from support.image_layers import debian
from support.index import serve, wheels_of_matrix
from support.machine import settings as machine_settings
from support.matrices import changed, write
from support.plans import inputs_with
from support.registry import FakeRegistry, digest_of, fake_registry

from imagefactory.commands import lock as lock_module
from imagefactory.errors import InputError, Problem, SetupError
from imagefactory.locking import bases, registry_bases, store
from imagefactory.locking.failures import combined
from imagefactory.locking.lock import Lock, LockedBase
from imagefactory.locking.locking import Renewed
from imagefactory.matrix import matrix
from imagefactory.matrix.cell import Cell, SourceBuild
from imagefactory.planning import planning
from imagefactory.settings import Settings
from imagefactory.system.platforms import Platform
from imagefactory.system.registry import Registries

MADE_UP = f"sha256:{'0' * 64}"
DOWN = "127.0.0.1:9"
BOTH = ("linux/amd64", "linux/arm64")
EMPTY = Lock(created="2026-11-20", tools=(), resolutions=())
ENV = {"PATH": "/usr/local/cuda/bin:/usr/bin", "CUDA_VERSION": "13.0.2"}
DEBIAN = [debian()]
LOCKED_ENV = tuple(sorted(ENV.items()))


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with fake_registry() as made:
        yield made


@pytest.fixture
def machine(tmp_path: Path) -> Settings:
    return machine_settings(tmp_path)


def cells(folder: Path, image: str) -> tuple[Cell, ...]:
    return matrix.load(write(folder, "suite: trixie", f"image: {image}")).cells


def renewed(
    lock: Lock,
    cells: tuple[Cell, ...],
    machine: Settings,
    *,
    upgrade: bool = False,
    held: tuple[str, ...] = (),
) -> Renewed:
    kept = Renewed(lock=lock, changes=(), failures=())
    return bases.renew(kept, lock, cells, machine, upgrade=upgrade, held=held)


def problems(folder: Path, image: str, machine: Settings) -> list[Problem]:
    error = combined(renewed(EMPTY, cells(folder, image), machine).failures)
    return list(error.problems) if error else []


def test_the_digest_and_the_environment_of_each_platform_are_locked_and_read_back(
    tmp_path: Path, registry: FakeRegistry, machine: Settings
) -> None:
    digest = registry.put_image("cuda", "13", *BOTH, "unknown/unknown", env=ENV, layers=DEBIAN)
    for reference in ("cuda:13", f"cuda:13@{digest}"):
        declared = cells(tmp_path, f"{registry.address}/{reference}")
        lock = bases.update(EMPTY, declared, machine)
        assert [(one.platform, one.digest, one.env) for one in lock.bases] == [
            (Platform.AMD64, digest, LOCKED_ENV),
            (Platform.ARM64, digest, LOCKED_ENV),
        ]
        store.write(tmp_path / "wheels.lock", lock, guards=tmp_path)
        assert store.read(tmp_path / "wheels.lock") == lock


def test_a_lock_without_environments_gets_those_of_the_digests_that_it_has(
    tmp_path: Path, registry: FakeRegistry, machine: Settings
) -> None:
    old = registry.put_image("cuda", "13", *BOTH, env=ENV, layers=DEBIAN)
    declared = cells(tmp_path, f"{registry.address}/cuda:13")
    lock = bases.update(EMPTY, declared, machine)
    registry.put_image("cuda", "13", *BOTH, env={"PATH": "/other"}, layers=DEBIAN)
    earlier = replace(lock, bases=tuple(replace(one, env=None) for one in lock.bases))
    again = bases.update(earlier, declared, machine)
    assert {(one.digest, one.env) for one in again.bases} == {(old, LOCKED_ENV)}
    assert bases.update(again, declared, machine) is again
    held = renewed(again, declared, machine, upgrade=True, held=("trixie",))
    assert held.lock is again
    upgraded = bases.update(again, declared, machine, upgrade=True)
    assert {one.env for one in upgraded.bases} == {(("PATH", "/other"),)}


def test_a_digest_that_the_registry_does_not_have_is_an_error_with_its_line(
    tmp_path: Path, registry: FakeRegistry, machine: Settings
) -> None:
    (problem,) = problems(tmp_path, f"{registry.address}/cuda:13@{MADE_UP}", machine)
    assert (problem.code, str(problem.where)) == ("base-unknown", f"{tmp_path}/matrix.yaml:7")
    assert f"imagetools inspect {registry.address}/cuda:13" in problem.fix


@pytest.mark.parametrize("platforms", [("linux/amd64",), ("linux/amd64", "unknown/unknown")])
def test_an_index_without_the_platform_of_a_cell_is_an_error(
    tmp_path: Path, registry: FakeRegistry, machine: Settings, platforms: tuple[str, ...]
) -> None:
    digest = registry.put_image("cuda", "13", *platforms)
    (problem,) = problems(tmp_path, f"{registry.address}/cuda@{digest}", machine)
    assert problem.code == "base-other-platform"
    assert "no image for linux/arm64, only for linux/amd64" in problem.what


def test_the_digest_of_one_platforms_image_is_only_for_that_platform(
    tmp_path: Path, registry: FakeRegistry, machine: Settings
) -> None:
    registry.put_image("cuda", "13", *BOTH, layers=DEBIAN)
    arm = digest_of(registry.manifests["cuda", "13-arm64"])
    (problem,) = problems(tmp_path, f"{registry.address}/cuda@{arm}", machine)
    assert "no image for linux/amd64, only for linux/arm64" in problem.what


def test_an_image_of_each_platform_is_read_from_an_index_and_from_one_of_its_own(
    tmp_path: Path, registry: FakeRegistry
) -> None:
    index = registry.put_image("cuda", "13", *BOTH, "unknown/unknown", env=ENV, layers=DEBIAN)
    own = {one: digest_of(registry.manifests["cuda", f"13-{one[6:]}"]) for one in BOTH}
    name, asked = f"{registry.address}/cuda", Registries(tmp_path)

    def images(digest: str) -> dict[str, tuple[str, object]]:
        found = asked.manifest(f"{name}@{digest}")
        assert found is not None
        read = registry_bases._images(name, found, asked)
        return {one: (digest, config["config"]["Env"]) for one, (digest, config) in read.items()}

    env = [f"{key}={value}" for key, value in ENV.items()]
    assert images(index) == {one: (digest, env) for one, digest in own.items()}
    for platform, digest in own.items():
        assert images(digest) == {platform: (digest, env)}
        for locked in (index, digest):
            base = LockedBase(
                name="x",
                platform=Platform(platform),
                created="2026-11-22",
                image=f"{name}:13@{index}",
                digest=locked,
                suite=None,
                packages=(),
                debs=(),
                builder=(),
            )
            there = registry_bases.image_of(replace(base, image=f"{name}@{index}"), asked)
            assert (there.name, there.digest, len(there.layers)) == (name, digest, 1)
            assert there.config["architecture"] == platform[6:]
    gone = replace(base, digest=MADE_UP, image=name)
    with pytest.raises(SetupError, match="the registry does not have it for linux/arm64"):
        registry_bases.image_of(gone, asked)


def test_a_configuration_that_is_not_the_one_of_the_digest_is_an_error(
    tmp_path: Path, registry: FakeRegistry, machine: Settings
) -> None:
    registry.put_image("cuda", "13", *BOTH, env=ENV, layers=DEBIAN)
    registry.contents = dict.fromkeys(registry.contents, b"{}")
    (problem,) = problems(tmp_path, f"{registry.address}/cuda:13", machine)
    assert problem.code == "registry-failed"


def test_a_new_base_is_not_locked_if_its_registry_does_not_answer(
    tmp_path: Path, machine: Settings
) -> None:
    (problem,) = problems(tmp_path, f"{DOWN}/cuda@{MADE_UP}", machine)
    assert problem.code == "registry-unreachable"


def test_a_locked_base_is_kept_if_its_registry_does_not_answer(
    tmp_path: Path,
    registry: FakeRegistry,
    machine: Settings,
    capsys: pytest.CaptureFixture[str],
) -> None:
    digest = registry.put_image("cuda", "13", *BOTH, layers=DEBIAN)
    declared = cells(tmp_path, f"{registry.address}/cuda@{digest}")
    lock = bases.update(EMPTY, declared, machine)
    registry.broken = 100
    again = renewed(lock, declared, machine)
    assert (again.lock, again.failures) == (lock, ())
    assert "inconclusive" in capsys.readouterr().err


def test_a_base_whose_digest_is_gone_is_not_locked_any_more(
    tmp_path: Path, registry: FakeRegistry, machine: Settings
) -> None:
    digest = registry.put_image("cuda", "13", *BOTH, layers=DEBIAN)
    declared = cells(tmp_path, f"{registry.address}/cuda@{digest}")
    lock = bases.update(EMPTY, declared, machine)
    registry.manifests.clear()
    again = renewed(lock, declared, machine)
    assert again.lock.bases == ()
    assert [str(one).partition(" (")[0] for one in again.failures] == ["base trixie"]


@pytest.mark.programs
def test_a_made_up_digest_blocks_only_its_own_cells(
    tmp_path: Path,
    registry: FakeRegistry,
    machine: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good = registry.put_image("cuda", "13", *BOTH, env=ENV, layers=DEBIAN)
    wrong = f"  wrong: {{extends: trixie, image: {registry.address}/cuda@{MADE_UP}}}\n"
    path = changed(
        tmp_path,
        ("    suite: trixie\n", f"    image: {registry.address}/cuda@{good}\n"),
        ("flavors:\n", f"{wrong}flavors:\n  wrong: {{extends: gb10, base: wrong}}\n"),
        ("{flavor: gb10, platform: linux/amd64", "{flavor: wrong, platform: linux/amd64"),
        ('["0.22.1", "0.33.0"]', '["0.22.1"]'),
        ('["2.11.0", "2.14.0"]', '["2.11.0"]'),
        ('when: {vllm: "0.33.0"}', 'when: {vllm: "0.22.1"}'),
        ("py{python}", "py{python}-{flavor}"),
    )
    with serve(wheels_of_matrix(tmp_path / "files"), tmp_path / "www") as url:
        monkeypatch.setenv("UV_DEFAULT_INDEX", url)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        with pytest.raises(InputError) as caught:
            lock_module.lock_command(file=path, no_audit=True)
    assert [problem.code for problem in caught.value.problems] == ["base-unknown"]
    lock, declared = store.read(tmp_path / "wheels.lock"), matrix.load(path)
    assert {one.digest for one in lock.bases} == {good}
    inputs = replace(inputs_with(lock, machine), matrix=declared)
    covered, uncovered = planning.split(declared.cells, inputs)
    assert {one.flavor.name for one in covered} == {"gb10"}
    assert [one.cell.flavor.name for one in uncovered] == ["wrong"]


@pytest.fixture
def archives(tmp_path: Path, machine: Settings) -> Iterator[Settings]:
    owner = key()
    write_archive(
        tmp_path / "debian",
        owner,
        *BASIC,
        *COMPILERS,
        package("tool", depends="lib"),
        package("lib"),
    )
    with serve_archive(tmp_path / "debian", owner) as found:
        yield replace(machine, debian=found)


def test_the_packages_that_an_image_lacks_are_locked(
    tmp_path: Path, registry: FakeRegistry, archives: Settings
) -> None:
    layer = debian("apt", "base-files", "git", "lib")
    registry.put_image("debian", "slim", *BOTH, layers=[layer])
    image = ("suite: trixie", f"image: {registry.address}/debian:slim")
    path = changed(tmp_path, image, ("packages: [python3]", "packages: [python3, tool]"))
    declared = matrix.load(path).cells
    lock = bases.update(EMPTY, declared, archives)
    for base in lock.bases:
        assert [deb.name for deb in base.debs] == ["python3", "tool"]
        assert [deb.name for deb in base.builder] == ["python3-venv"]
        assert base.compiler is None
    one = declared[0]
    build = SourceBuild(binaries="compiled", tools="x", location=one.flavor.location)
    compiling = replace(one, flavor=replace(one.flavor, build=build))
    lock = bases.update(lock, [compiling], archives)
    assert [deb.name for deb in lock.bases[0].compiler or ()] == [
        *("ccache", "g++", "libhash", "libpython3-dev")
    ]
    store.write(tmp_path / "wheels.lock", lock, guards=tmp_path)
    assert store.read(tmp_path / "wheels.lock") == lock
    assert bases.check(lock, [compiling], archives) == []


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (debian("apt", os_release="ID=rocky\nPRETTY_NAME='Rocky Linux 9'\n"), "Rocky Linux 9"),
        (tar({"etc/os-release": "ID=alpine\n"}), "no dpkg"),
        (debian("apt", os_release=""), "without os-release"),
    ],
    ids=["rocky", "alpine", "unknown"],
)
def test_an_image_that_packages_cannot_be_added_to_is_refused(
    tmp_path: Path, registry: FakeRegistry, machine: Settings, layer: bytes, why: str
) -> None:
    registry.put_image("other", "9", *BOTH, layers=[layer])
    (problem,) = problems(tmp_path, f"{registry.address}/other:9", machine)
    assert (problem.code, problem.where) == ("base-no-packages", "trixie linux/amd64")
    assert why in problem.what
    assert "git, python3, python3-venv" in (problem.fix or "")
