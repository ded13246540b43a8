"""The first version that breaks a cell: which ones are tried, and what is said of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version
from support.watched import NOW, SETTINGS, locked, record, write

from imagefactory import workflows
from imagefactory.commands import bisect as command
from imagefactory.errors import CheckFailedError, InputError, SetupError, fail
from imagefactory.locking import store
from imagefactory.locking.failures import Failure
from imagefactory.locking.locking import Renewed
from imagefactory.nightly import bisect
from imagefactory.nightly.bisect import Found, Outcome, Trial, search
from imagefactory.system import ui
from imagefactory.watching.releases import Listing, Recorded, Release, wheel_file
from imagefactory.workspace import Workspace

VERSIONS = [Version(f"0.34.0.dev{number}+g{number:07x}.cu130") for number in range(1, 33)]


def judged(first_bad: int, unknown: Collection[int] = ()) -> Callable[[Version], Trial]:
    def trial(version: Version) -> Trial:
        number = version.dev or 0
        outcome = Outcome.BAD if number >= first_bad else Outcome.GOOD
        return Trial(version=version, outcome=Outcome.UNKNOWN if number in unknown else outcome)

    return trial


def searched(first_bad: int, unknown: Collection[int] = (), most: int = 99) -> Found:
    return search(VERSIONS, judged(first_bad, unknown), lambda tried: tried < most)


@pytest.mark.parametrize("first_bad", [2, 9, 16, 17, 31, 32])
def test_the_first_bad_version_is_found_in_as_many_trials_as_halving_takes(first_bad: int) -> None:
    found = searched(first_bad)
    assert (found.good.dev, found.bad.dev, found.between) == (first_bad - 1, first_bad, ())
    assert len(found.trials) <= 2 + 5
    assert found.commits == f"{first_bad - 1:07x}...{first_bad:07x}"
    assert found.why.outcome is Outcome.BAD


def test_versions_that_cannot_be_tried_stay_in_the_range() -> None:
    found = searched(16, unknown={14, 15, 16, 17})
    assert (found.good.dev, found.bad.dev) == (13, 18)
    assert [one.dev for one in found.between] == [14, 15, 16, 17]


def test_a_budget_leaves_a_range() -> None:
    found = searched(9, most=4)
    assert len(found.trials) == 4
    assert found.good < VERSIONS[8] <= found.bad
    assert found.between


@pytest.mark.parametrize(("first_bad", "said"), [(1, "is bad, not good"), (99, "is good, not bad")])
def test_ends_that_are_not_what_they_are_said_to_be_are_refused(first_bad: int, said: str) -> None:
    with pytest.raises(InputError, match=said):
        searched(first_bad)


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A project of which releases from 0.30.0 on cannot be locked."""
    store.write(tmp_path / "wheels.lock", locked(write(tmp_path)), guards=tmp_path)
    monkeypatch.setattr(workflows, "lock", lock)
    monkeypatch.setattr(workflows, "check_patches", lambda *_: (Checked(),))
    return Workspace(matrix=tmp_path / "matrix.yaml", project=tmp_path, settings=SETTINGS)


class Checked:
    problems = ()


def lock(workspace: Workspace, declared: Any, _: object) -> tuple[Renewed, bool]:
    (cell,) = declared.cells
    error = fail(CheckFailedError, "lock-no-solution", f"vllm {cell.vllm}: torch==9 is nowhere")
    bad = Version(cell.vllm) >= Version("0.30")
    failures = (Failure(name="x", cells=(cell.name,), error=error, kept=False),) if bad else ()
    return Renewed(lock=store.read(workspace.lock), changes=(), failures=failures), False


def run(workspace: Workspace, good: str | None, bad: str, known: Recorded | None = None) -> Found:
    return bisect.run(
        workspace, "*vllm0-29-0*", (good, bad), NOW, most=12, upstream=known or record()
    )


def test_releases_between_two_are_tried_in_a_copy_of_the_project(workspace: Workspace) -> None:
    before = workspace.matrix.read_bytes()
    found = run(workspace, None, "0.33.0")
    assert (str(found.good), str(found.bad), found.between) == ("0.29.0", "0.30.0", ())
    assert found.commits == "v0.29.0...v0.30.0"
    assert (found.why.step, found.why.problems[0].what) == (
        "lock",
        "vllm 0.30.0: torch==9 is nowhere",
    )
    assert workspace.matrix.read_bytes() == before


def test_nightly_wheels_are_tried_too_and_name_their_commits(workspace: Workspace) -> None:
    known = record()
    (newest,) = [one for one in known.listing("vllm").releases if str(one.version) == "0.29.0"]
    lines = known.lines[newest.wheels[0].filename]
    names = [
        f"vllm-{v}-cp38-abi3-manylinux_2_28_aarch64.whl"
        for v in ("0.29.1.dev1+gaaaaaaa", "0.30.0.dev2+gbbbbbbb", "0.30.0rc1.dev3+gccccccc")
    ]
    wheels = [wheel for name in names if (wheel := wheel_file(name))]
    dev = tuple(Release(version=wheel.version, wheels=(wheel,)) for wheel in wheels)
    listing = Listing((*known.listing("vllm").releases, *dev))
    more = Recorded(
        {**known.listings, "vllm": listing}, {**known.lines, **dict.fromkeys(names, lines)}
    )
    found = run(workspace, "0.29.0", "0.30.0", more)
    assert (str(found.good), found.commits) == ("0.30.0rc1.dev3+gccccccc", "ccccccc...v0.30.0")


def test_a_release_that_has_a_row_is_tried_with_the_values_of_that_row(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def check(_: Workspace, names: list[str]) -> tuple[Checked]:
        tried.extend(names)
        return (Checked(),)

    monkeypatch.setattr(workflows, "check_patches", check)
    found = bisect.run(workspace, "*vllm0-22-0*", (None, "0.30.0"), NOW, most=99, upstream=record())
    assert (str(found.good), str(found.bad)) == ("0.29.0", "0.30.0")
    assert "gb10-vllm0-29-0-torch2-13-0-cu130-fi0-6-18-py313-arm64" in tried


@pytest.mark.parametrize(
    ("name", "end"),
    [("lock", "0.33.0 is unknown, not bad"), ("check_patches", "0.29.0 is unknown")],
)
def test_what_the_machine_or_the_network_is_to_blame_for_is_no_verdict(
    name: str, end: str, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflows, name, down("index-down"))
    with pytest.raises(InputError, match=end) as caught:
        run(workspace, None, "0.33.0")
    assert caught.value.problems[0].detail == "no index answers"


def down(code: str) -> Callable[..., None]:
    def raises(*_: object) -> None:
        raise fail(SetupError, code, "no index answers", fix="try again")

    return raises


def test_a_version_without_sources_is_judged_by_its_lock_and_says_so(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(workflows, "check_patches", down(bisect.NO_SOURCES))
    assert str(run(workspace, None, "0.33.0").bad) == "0.30.0"
    assert "0.29.0: good, as far as its patches are not concerned" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("good", "bad", "code"),
    [
        (None, "0.99.0", "bisect-end"),
        ("0.33.0", "0.30.0", "bisect-end"),
        (None, "newest", "bisect-version"),
    ],
)
def test_ends_that_the_index_does_not_have_are_refused(
    good: str | None, bad: str, code: str, workspace: Workspace
) -> None:
    with pytest.raises(InputError) as caught:
        run(workspace, good, bad)
    assert caught.value.problems[0].code == code


def test_the_command_shows_the_version_the_reason_and_the_commits(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bisect, "run", partial(bisect.run, upstream=record()))
    monkeypatch.setattr(command, "workspace_of", lambda _: workspace)
    show = partial(command.bisect_command, "*vllm0-29-0*", bad="0.33.0", max_tries=12)
    show()
    out = capsys.readouterr().out
    assert "0.30.0 is the first bad version; 0.29.0 is good" in out
    assert "lock: vllm 0.30.0: torch==9 is nowhere" in out
    assert "compare/v0.29.0...v0.30.0" in out
    show(json=True)
    ui.finish()
    found = json.loads(capsys.readouterr().out)
    assert (found["bad"], found["between"]) == ("0.30.0", [])
    assert found["trials"][0]["outcome"] == "bad"
