"""Git refs of vLLM: locked with what differs from their base, refused where that is not Python."""

from __future__ import annotations

import subprocess
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from support import ROOT, matrices, projects
from support.machine import settings as settings_of
from support.project import stock_patches

from imagefactory.errors import CheckFailedError, FactoryError, InputError, SetupError
from imagefactory.locking import refs, store, wheelhouse
from imagefactory.locking.failures import Failures
from imagefactory.locking.lock import Lock, LockedToolchain, Resolution
from imagefactory.locking.locked_sources import LockedRef
from imagefactory.matrix import matrix
from imagefactory.matrix.cell import Cell, VllmRef
from imagefactory.matrix.explain import explain
from imagefactory.matrix.policies import Policies
from imagefactory.matrix.select import select
from imagefactory.patching import catalog, sources
from imagefactory.planning import image_config, wheel_plan
from imagefactory.planning.wheel_plan import WheelPlan
from imagefactory.publishing import tags
from imagefactory.settings import Settings
from imagefactory.system.platforms import Platform
from imagefactory.system.yamlfile import Location
from imagefactory.watching import others
from imagefactory.watching.assessing import leads
from imagefactory.wheels import required

ROW = 'vllm: ["0.22.1", "0.33.0"]'
TOOLS = "toolchains:\n  t: {requirements: [wheel==0.45.1], platforms: [linux/amd64]}\ndefaults:\n"
LINES = "".join(f"line {number}\n" for number in range(20))


class Upstream:
    """A repository with a release and commits after it, on branches and in pull requests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")
        self.git("config", "uploadpack.allowFilter", "true")

    def git(self, *argv: str) -> str:
        who = "-c", "user.name=a", "-c", "user.email=a@b", "-c", "gc.auto=0"
        done = subprocess.run(
            ["git", "-C", str(self.folder), *who, *argv], check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def commit(self, files: Mapping[str, str]) -> str:
        for name, text in files.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "a change")
        return self.git("rev-parse", "HEAD")

    def branch(self, name: str, files: Mapping[str, str], *, start: str = "main") -> str:
        self.git("checkout", "--quiet", "-b", name, start)
        commit = self.commit(files)
        self.git("checkout", "--quiet", "main")
        return commit

    def pull(self, number: int, files: Mapping[str, str]) -> None:
        head = self.branch(f"pull{number}", files)
        self.git("update-ref", f"refs/pull/{number}/head", head)


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Upstream:
    made = Upstream(tmp_path_factory.mktemp("upstream") / "vllm")
    made.commit(
        {
            "csrc/a.cu": "one\n",
            "vllm/envs.py": LINES,
            "requirements/cuda.txt": "-r common.txt\n--extra-index-url x\ntorch==2.14.0\n",
            "requirements/common.txt": "numpy >= 1.0 # for arrays\n",
        }
    )
    made.git("tag", "v0.33.0")
    made.commit({"vllm/new.py": "new\n"})
    made.commit({"vllm/new.py": "newer\n"})
    made.branch("kernels", {"csrc/a.cu": "two\n", "cmake/b.cmake": "b\n"})
    made.branch("needs", {"requirements/common.txt": "numpy>=1.0\nnumpy>=3\nleaf<2\n"})
    made.pull(7, {"vllm/envs.py": LINES.replace("line 2\n", "two\n")})
    made.pull(8, {"vllm/envs.py": LINES.replace("line 2\n", "zwei\n")})
    made.pull(9, {"csrc/a.cu": "three\n"})
    made.git("update-ref", "refs/pull/5/head", "main~1")
    return made


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return settings_of(tmp_path_factory.mktemp("machine"))


def wanted(upstream: Upstream, ref: str = "main", *prs: int, base: str = "0.33.0") -> VllmRef:
    return VllmRef(
        repository=f"file://{upstream.folder}",
        ref=ref,
        prs=prs,
        base=base,
        tools="t",
        words="-".join([ref, *(f"pr{number}" for number in prs)]),
        location=Location(file="matrix.yaml", line=27),
    )


def cell_of(folder: Path, ref: VllmRef, *changes: tuple[str, str]) -> Cell:
    """The cell of the ref in a matrix with others."""
    prs = f"prs: {list(ref.prs)}, " if ref.prs else ""
    entry = f"{{ref: {ref.ref}, {prs}base: '{ref.base}', tools: t, repository: '{ref.repository}'}}"
    row = f'vllm: ["0.22.1", {entry}]'
    path = matrices.changed(folder, (ROW, row), ("defaults:\n", TOOLS), *changes)
    (found,) = (cell for cell in matrix.load(path).cells if cell.ref)
    return found


def locked_with(*found: LockedRef) -> Lock:
    return Lock(created="2026-11-20", tools=(), resolutions=(), refs=found)


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


def test_a_pull_request_on_a_release_brings_only_its_own_changes(
    upstream: Upstream, settings: Settings, tmp_path: Path
) -> None:
    ref = wanted(upstream, "v0.33.0", 7)
    found = refs.lock_ref(ref, settings)
    assert found.version == f"0.33.0+g{found.commit[:9]}.pr7"
    tree = sources.of_cell("vllm", cell_of(tmp_path, ref), locked_with(found), settings)
    assert "two\n" in (tree.root / "vllm/envs.py").read_text()
    assert not (tree.root / "vllm/new.py").exists()


@pytest.mark.parametrize(
    ("ref", "prs", "base", "kind", "says"),
    [
        ("main", (7, 8), "0.33.0", CheckFailedError, "pull request 8 conflicts with what it is merged into: vllm/envs.py"),
        ("gone", (), "0.33.0", SetupError, "has no tag or branch gone"),
        ("main", (5,), "0.33.0", CheckFailedError, "pull request 5 has no commits that main"),
        ("main", (6,), "0.33.0", SetupError, "has no pull request 6"),
        ("main", (), "0.34.0", InputError, "has no tag v0.34.0"),
        ("main", (), "0.34.0.dev1+gabcdef1", InputError, "has no commit abcdef1"),
        ("v0.33.0", (), "0.33.0", InputError, "is 0.33.0 itself"),
        ("0" * 40, (), "0.33.0", SetupError, "git fetch"),
    ],
)  # fmt: skip
def test_what_cannot_be_locked_is_one_error(
    upstream: Upstream, settings: Settings, ref: str, prs: tuple[int, ...], base: str,
    kind: type[FactoryError], says: str,
) -> None:  # fmt: skip
    with pytest.raises(kind) as caught:
        refs.lock_ref(wanted(upstream, ref, *prs, base=base), settings)
    (problem,) = caught.value.problems
    assert says in problem.what
    assert problem.fix


def resolved(cell: Cell) -> Resolution:
    return projects.resolution_of(cell)


@pytest.mark.parametrize(
    ("ref", "prs", "says"),
    [
        ("kernels", (), "it changes cmake/b.cmake, csrc/a.cu, and the binaries of 0.33.0 lack"),
        ("main", (9,), "it changes csrc/a.cu"),
        ("needs", (), "requires numpy>=3, but it has numpy 2.3"),
        ("needs", (), "requires leaf<2, which has no wheel"),
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


def test_an_override_decides_what_a_ref_requires_and_another_wheel_is_no_base(
    upstream: Upstream, settings: Settings, tmp_path: Path
) -> None:
    cell = cell_of(
        tmp_path, wanted(upstream, "needs"), ("numpy==2.3", "numpy"), ('vllm: "0.33.0"', "vllm: needs"),
    )  # fmt: skip
    locked = refs.lock_ref(wanted(upstream, "needs"), settings)
    own = resolved(cell)
    (left,) = refs.problems(cell, locked, own)
    assert "leaf<2" in left.what
    more = replace(own, wheels=(*own.wheels, projects.wheel("leaf", "1.5")))
    assert list(refs.problems(cell, locked, more)) == []
    other = replace(locked, base="0.32.0")
    assert (
        "is 0.32.0, but the cell's wheel of vllm is 0.33.0"
        in next(refs.problems(cell, other, more)).what
    )


def test_a_branch_moves_only_with_an_upgrade_and_stays_where_it_was_if_it_cannot(
    tmp_path: Path, settings: Settings
) -> None:
    moving = Upstream(tmp_path / "moving")
    moving.commit({"csrc/a.cu": "1", "requirements/cuda.txt": ""})
    moving.git("tag", "v0.33.0")
    first = moving.commit({"vllm/a.py": "1"})
    cell = cell_of(tmp_path, wanted(moving))

    def renewed(old: Lock | None, *, upgrade: bool) -> tuple[LockedRef, Failures]:
        failures = Failures()
        rows = [resolved(cell)]
        (found,) = refs.renewed(old, [cell], rows, settings, failures, upgrade=upgrade)
        return found, failures

    lock = locked_with(renewed(None, upgrade=False)[0])
    second = moving.commit({"vllm/a.py": "2"})
    assert renewed(lock, upgrade=False)[0].commit == first
    moved = renewed(lock, upgrade=True)[0]
    assert moved.commit == second
    moving.commit({"csrc/a.cu": "2"})
    kept, failures = renewed(locked_with(moved), upgrade=True)
    assert kept == moved
    assert [one.kept for one in failures.rows] == [True]
    moving.git("reset", "--quiet", "--hard", "v0.33.0")  # a force push: the archive is kept
    source = kept.source
    assert wheelhouse.fetch(source.url, source.sha256, source.filename, settings).is_file()
    rows = [row for lookup in others._sources([cell], lock) for row in lookup[1]()]
    assert [(row.current, row.newest) for row in rows] == [(first, moving.git("rev-parse", "main"))]


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
        ("{ref: main, base: '0.33.0', tools: t, repository: vllm}", "matrix-wrong-value"),
    ],
)  # fmt: skip
def test_a_wrong_ref_is_reported_with_its_line(tmp_path: Path, entry: str, code: str) -> None:
    row = f'vllm: ["0.33.0", {entry}]'
    changes = (ROW, row), ("defaults:\n", TOOLS), ('vllm: "0.33.0"}', "channel: cu130}")
    (problem,) = matrices.problems(matrices.changed(tmp_path, *changes))
    assert problem.code == code
    line = int(str(problem.where).rpartition(":")[2])
    assert entry[:5] in (tmp_path / "matrix.yaml").read_text().splitlines()[line - 1]


def test_only_vllm_can_be_a_ref(tmp_path: Path) -> None:
    row = 'torch: ["2.11.0", "2.14.0"]', "torch: ['2.11.0', {ref: main, base: '2.14.0'}]"
    found = matrices.problems(matrices.changed(tmp_path, row))
    assert "matrix-ref-axis" in {problem.code for problem in found}
