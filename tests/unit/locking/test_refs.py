"""Git refs of vLLM: locked with what differs from their base, refused where that is not Python."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from support import ROOT, matrices, projects
from support.machine import settings as settings_of
from support.project import stock_patches
from support.upstream import ROW, TOOLS, Upstream, cell_of, locked_with, vllm, wanted

from imagefactory.errors import CheckFailedError, InputError
from imagefactory.locking import refs, store, wheelhouse
from imagefactory.locking.failures import Failures
from imagefactory.locking.lock import LockedToolchain, Resolution
from imagefactory.locking.locked_sources import LockedRef
from imagefactory.matrix.cell import Cell
from imagefactory.matrix.explain import explain
from imagefactory.matrix.policies import Policies
from imagefactory.matrix.select import select
from imagefactory.patching import catalog, sources
from imagefactory.planning import image_config, wheel_plan
from imagefactory.planning.wheel_plan import WheelPlan
from imagefactory.publishing import tags
from imagefactory.settings import Settings
from imagefactory.system.platforms import Platform
from imagefactory.watching.assessing import leads
from imagefactory.wheels import required

pytestmark = pytest.mark.programs


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Upstream:
    return vllm(tmp_path_factory.mktemp("upstream") / "vllm")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return settings_of(tmp_path_factory.mktemp("machine"))


def test_a_branch_is_locked_as_its_commit_with_the_version_that_it_leads_to(
    upstream: Upstream, settings: Settings
) -> None:
    ref, commit = wanted(upstream), upstream.git("rev-parse", "main")
    found = refs.lock_ref(ref, settings)
    assert (found.commit, found.differs, found.requires) == (commit, (), ())
    assert found.version == f"0.33.1.dev2+g{commit[:9]}"
    assert found.base_commit == upstream.git("rev-parse", "v0.33.0^{commit}")
    assert found.answers(ref)
    assert not found.answers(replace(ref, base="0.22.1"))
    (left,) = (settings.cache / "git").glob("*.git")
    (left / "config.lock").touch()  # by a git that was killed
    nightly = refs.lock_ref(
        replace(ref, base=f"0.33.1.dev1+g{commit[:8]}.cu130", prs=(7,)), settings
    )
    assert nightly.base_commit == commit


def test_a_mirror_gives_the_same_bytes_under_its_own_url_and_instead_of_upstream(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror, ref = tmp_path / "mirror.git", wanted(upstream, "main", 7)
    upstream.git("clone", "--quiet", "--mirror", str(upstream.folder), str(mirror))
    there = replace(ref, repository=f"file://{mirror}")
    github = replace(ref, repository="https://github.invalid/vllm-project/vllm")
    config = tmp_path / "config"
    config.write_text(f'[url "file://{mirror}"]\n  insteadOf = {github.repository}\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    one, two = (
        refs.lock_ref(wanted, settings_of(tmp_path / f"machine{number}"))
        for number, wanted in enumerate((there, github))
    )
    assert one.commit == two.commit == upstream.git("rev-parse", "main")
    assert one.source.sha256 == two.source.sha256
    assert two.source.url.startswith(f"git+{github.repository}@")


def test_pull_requests_are_merged_in_order_to_the_same_bytes_anywhere(
    upstream: Upstream, settings: Settings, tmp_path: Path
) -> None:
    found = refs.lock_ref(wanted(upstream, "main", 7), settings)
    (pull,) = found.pulls
    assert (pull.number, pull.commit) == (7, upstream.git("rev-parse", "pull7"))
    assert pull.base == found.commit
    assert found.version.endswith(".pr7")
    elsewhere = replace(settings, cache=tmp_path / "elsewhere")
    source = found.source
    for one in (settings, elsewhere):
        file = wheelhouse.fetch(source.url, source.sha256, source.filename, one)
        assert wheelhouse.sha_of(file) == source.sha256
    tree = sources.of_cell(
        "vllm", cell_of(tmp_path, wanted(upstream, "main", 7)), locked_with(found), settings
    )
    assert "two\n" in (tree.root / "vllm/envs.py").read_text()
    assert (tree.root / "vllm/new.py").read_text() == "newer\n"
    assert (tree.version, tree.released) == (found.version, False)


def resolved(cell: Cell) -> Resolution:
    return projects.resolution_of(cell)


@pytest.mark.parametrize(
    ("ref", "prs", "says"),
    [
        ("kernels", (), "it changes cmake/b.cmake, csrc/a.cu, and the binaries of 0.33.0 lack"),
        ("needs", (), "requires leaf<2, which has no wheel in it"),
    ],
)
def test_a_ref_that_is_not_only_python_is_refused_with_what_is_in_the_way(
    upstream: Upstream, settings: Settings, tmp_path: Path, ref: str, prs: tuple[int, ...], says: str
) -> None:  # fmt: skip
    cell = cell_of(tmp_path, wanted(upstream, ref, *prs), ("numpy==2.3", "sympy"))
    failures = Failures()
    found = refs.renewed(None, [cell], [resolved(cell)], settings, failures, upgrade=False)
    assert found == ()
    (failure,) = failures.rows
    assert failure.cells == (cell.name,)
    assert says in " ".join(problem.what for problem in failure.error.problems)
    assert {problem.code for problem in failure.error.problems} == {refs.REFUSED}


def test_all_that_decides_the_binaries_is_compared_with_the_base(
    upstream: Upstream, settings: Settings
) -> None:
    names = ["CMakeLists.txt", "cmake/b.cmake", "csrc/a.cu", "rust-toolchain.toml", "rust/src/x.rs"]
    upstream.branch("all", {**dict.fromkeys(names, "new\n"), "vllm/x.py": "new\n"})
    assert refs.lock_ref(wanted(upstream, "all"), settings).differs == tuple(names)


def test_an_override_decides_what_a_ref_requires_and_another_wheel_is_no_base(
    upstream: Upstream, settings: Settings, tmp_path: Path
) -> None:
    cell = cell_of(
        tmp_path, wanted(upstream, "needs"), ("numpy==2.3", "numpy"), ('vllm: "0.33.0"', "vllm: needs"),
    )  # fmt: skip
    locked = refs.lock_ref(wanted(upstream, "needs"), settings)
    own = resolved(cell)
    (left,) = refs.problems(cell, locked, own)
    assert "leaf<2" in left.what  # and not that numpy is too old, which an override decides
    more = replace(own, wheels=(*own.wheels, projects.wheel("leaf", "1.5")))
    assert list(refs.problems(cell, locked, more)) == []
    other = replace(locked, base="0.32.0")
    assert (
        "is 0.32.0, but the cell's wheel of vllm is 0.33.0"
        in next(refs.problems(cell, other, more)).what
    )


@pytest.fixture(scope="module")
def locked(upstream: Upstream, settings: Settings) -> LockedRef:
    return refs.lock_ref(wanted(upstream, "main", 7), settings)


def test_a_lock_with_refs_is_read_as_it_was_written(
    upstream: Upstream, locked: LockedRef, tmp_path: Path
) -> None:
    lock = locked_with(locked, replace(locked, pulls=(), differs=("a",), requires=("b>=1",)))
    path = tmp_path / "wheels.lock"
    store.write(path, lock, guards=tmp_path)
    assert {*store.read(path).refs} == {*lock.refs}
    path.write_text(
        path.read_text().replace(f'commit = "{locked.commit}"', 'commit = "--upload-pack=x"')
    )
    with pytest.raises(InputError):
        store.read(path)
    cells = [cell_of(tmp_path, wanted(upstream, "kernels"))]
    assert [problem.code for problem in refs.uncovered(lock, cells)] == [
        "lock-uncovered",
        "lock-dead",
        "lock-dead",
    ]


def plan_of(cell: Cell, ref: LockedRef) -> WheelPlan:
    tools = LockedToolchain(
        name="t", platform=Platform.AMD64, requirements=(), wheels=(projects.wheel("wheel", "1"),)
    )
    lock = replace(locked_with(ref), toolchains=(tools,))
    made = wheel_plan.compose(
        refs.bound(cell, lock), resolved(cell), (), lock,
        templates=(ROOT / "templates",), project=Path("/"), uv_version="1",
    )  # fmt: skip
    assert made is not None
    return made


def test_the_wheel_of_a_ref_has_its_version_and_the_binaries_of_its_base(
    upstream: Upstream, locked: LockedRef, tmp_path: Path
) -> None:
    cell = cell_of(tmp_path, wanted(upstream, "main", 7))
    made = plan_of(cell, locked)
    assert made.official
    assert (made.version, made.official.version, made.compiles) == (locked.version, "0.33.0", False)
    assert made.parts[0].sha256 == locked.source.sha256
    assert made.ref == locked
    source = replace(locked.source, sha256="0" * 64)
    other = {
        plan_of(cell, replace(locked, source=source)).key,
        plan_of(cell, replace(locked, version="0.33.2.dev1+g1")).key,
    }
    assert made.key not in other
    assert len(other) == 2


def wheel_file(folder: Path, name: str, *requires: str) -> Path:
    folder.mkdir()
    lines = "".join(f"Requires-Dist: {line}\n" for line in requires)
    with zipfile.ZipFile(folder / name, "w") as file:
        file.writestr("vllm-1.dist-info/METADATA", f"Metadata-Version: 2.4\nName: vllm\n{lines}\n")
    return folder / name


def test_a_wheel_that_requires_what_the_lock_does_not_know_is_refused(
    upstream: Upstream, locked: LockedRef, tmp_path: Path
) -> None:
    plan = plan_of(
        cell_of(tmp_path, wanted(upstream, "main", 7)), replace(locked, requires=("b>=1",))
    )
    official = wheel_file(tmp_path / "a", "official.whl", "numpy >=1.0", "x; extra == 'more'")
    required.check(plan, wheel_file(tmp_path / "b", "made.whl", "numpy>=1.0", "b >= 1"), official)
    other = wheel_file(tmp_path / "c", "made.whl", "numpy>=1.0", "leaf<2", "y; extra == 'more'")
    required.check(replace(plan, ref=None), other, official)
    with pytest.raises(CheckFailedError) as caught:
        required.check(plan, other, official)
    assert "made.whl requires leaf<2, which neither" in caught.value.problems[0].what


def test_a_cell_is_called_by_the_ref_and_its_image_has_the_version_and_the_commit(
    upstream: Upstream, locked: LockedRef, tmp_path: Path
) -> None:
    free = cell_of(tmp_path, wanted(upstream, "main", 7))
    assert leads(free, Policies()) == []  # no row of it is replaced by a release
    cell = refs.bound(free, locked_with(locked))
    assert refs.bound(free, None) is free
    assert cell.name == "gb10-vllm-main-pr7-torch2-14-0-cu130-py313-arm64"
    assert cell.tag == "example/vllm:gb10-vllmmain-pr7-torch2.14.0-py3.13"
    assert cell.requirements[0] == "vllm==0.33.0"
    assert [override.requirement for override in cell.overrides] == ["numpy==2.3"]
    assert select([cell], ["vllm=main-pr7"]) == select([cell], ["vllm=0.33.1*"]) == (cell,)
    rows = {what: value for what, value, *_ in explain(cell)}
    assert (rows["vllm"], rows["commit"], rows["binaries"]) == (
        locked.version,
        locked.commit,
        "vllm 0.33.0",
    )
    assert {what: value for what, value, *_ in explain(free)}["commit"] == "not locked"
    base = projects.lock_of([cell]).bases[0]
    labels = image_config.labels(cell, resolved(free), (), base, base_digest="x")
    assert labels["io.imagefactory.pin.vllm"] == locked.version
    assert labels["io.imagefactory.commit"] == locked.commit
    assert tags.axes_of(labels, "linux/arm64")["vllm"] == "main-pr7"


@pytest.mark.parametrize(
    ("version", "diff"),
    [("0.33.1.dev12+g1", True), ("0.34.0rc1.dev5+g1", True), ("0.14.0rc1.dev5+g1", False)],
)
def test_patches_of_a_ref_are_those_of_the_release_that_it_leads_to(
    upstream: Upstream, tmp_path: Path, version: str, diff: bool
) -> None:
    cell = cell_of(tmp_path, wanted(upstream))
    name = "vllm/mtp-exclusion"
    flavor = replace(cell.flavor, patches=(name,))
    cell = replace(cell, axes={**cell.axes, "vllm": version}, flavor=flavor)
    (step,) = catalog.series(stock_patches(), cell)
    coming = stock_patches()[name].variant(version.partition("rc")[0].partition(".dev")[0])
    assert (step.variant, step.version) == (coming if diff else None, version)


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        ("{ref: main, base: '0.33.0'}", "matrix-ref-tools"),
        ("{ref: main, base: '0.33.0', tools: u}", "matrix-unknown-toolchain"),
        ("{ref: main, base: '0.33.0', tools: t, prs: [1, 1]}", "matrix-same-pr"),
        ("{ref: main, base: a, tools: t}", "matrix-bad-version"),
        ("{ref: main, tools: t}", "matrix-missing-key"),
        ("{ref: '--upload-pack=x', base: '0.33.0', tools: t}", "matrix-wrong-value"),
        ("{ref: a..b, base: '0.33.0', tools: t}", "matrix-wrong-value"),
        ("{ref: main, base: '0.33.0', tools: t, repository: 'https://u:p@h/x'}", "matrix-credentials"),
        ("{ref: main, base: '0.33.0', tools: t, repository: vllm}", "matrix-ref-url"),
        ("{ref: main, base: '0.33.0', tools: t, repository: 'ext::sh'}", "matrix-ref-url"),
        ("{ref: main, base: '0.33.0', tools: t, repository: 'ssh://-x'}", "matrix-ref-url"),
    ],
)  # fmt: skip
def test_a_wrong_ref_is_reported_with_its_line(tmp_path: Path, entry: str, code: str) -> None:
    row = f'vllm: ["0.33.0", {entry}]'
    changes = (ROW, row), ("defaults:\n", TOOLS), ('vllm: "0.33.0"}', "channel: cu130}")
    (problem,) = matrices.problems(matrices.changed(tmp_path, *changes))
    assert problem.code == code
    line = int(str(problem.where).rpartition(":")[2])
    assert entry[:5] in (tmp_path / "matrix.yaml").read_text().splitlines()[line - 1]


@pytest.mark.parametrize(
    ("written", "url"),
    [
        ("git@github.com:me/vllm.git", "ssh://git@github.com/me/vllm.git"),
        ("/srv/vllm.git", "file:///srv/vllm.git"),
        ("../vllm", "https://, ssh:// or file:///"),
    ],
)
def test_a_repository_that_is_no_url_is_told_as_one(tmp_path: Path, written: str, url: str) -> None:
    row = f"vllm: ['0.33.0', {{ref: main, base: '0.33.0', tools: t, repository: '{written}'}}]"
    changes = (ROW, row), ("defaults:\n", TOOLS), ('vllm: "0.33.0"}', "channel: cu130}")
    (problem,) = matrices.problems(matrices.changed(tmp_path, *changes))
    assert url in problem.fix


def test_only_vllm_can_be_a_ref(tmp_path: Path) -> None:
    row = 'torch: ["2.11.0", "2.14.0"]', "torch: ['2.11.0', {ref: main, base: '2.14.0'}]"
    found = matrices.problems(matrices.changed(tmp_path, row))
    assert "matrix-ref-axis" in {problem.code for problem in found}
