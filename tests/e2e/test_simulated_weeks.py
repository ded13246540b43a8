"""Weeks of real releases, replayed from a record of PyPI, in which everything goes wrong once."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import past_index
import pytest
import simulated_weeks
from simulated_year import Seen

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Seen, str]]]:
    """Each night by its day, with the release that had the tag `nightly` after it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("UV_HTTP_RETRIES", "0")
        record = past_index.load(simulated_weeks.RECORD)
        folder = tmp_path_factory.mktemp("weeks")
        found = simulated_weeks.nights(record, folder)
        yield {seen.day: (seen, _release(year.tag)) for _, seen, year in found}


def _release(cell: str) -> str:
    return cell.split("-torch", maxsplit=1)[0].removeprefix("gb10-vllm").replace("-", ".")


def test_each_night_ends_as_it_should_and_the_next_one_repairs_it(
    nights: dict[str, tuple[Seen, str]],
) -> None:
    ends = [(day[5:], seen.state, tag) for day, (seen, tag) in nights.items()]
    assert ends == [
        ("07-26", "green", "0.26.0"),
        ("07-27", "broken", "0.26.0"),  # the index is down
        ("07-28", "green", "0.26.0"),
        ("07-29", "green", "0.26.0"),  # a wheel was yanked
        ("07-30", "nothing new", "0.26.0"),
        ("08-11", "broken", "0.26.0"),  # torch is a CPU build
        ("08-12", "broken", "0.26.0"),  # a patch drifted, and the disk is full
        ("08-13", "broken", "0.26.0"),  # the registry dies
        ("08-14", "green", "0.27.1"),
    ]


@pytest.mark.parametrize(
    ("day", "where", "text"),
    [
        ("2026-07-27", "upstream (detect)", "HTTP 503"),
        ("2026-08-11", "row vllm 0.26.0 -> 0.27.0", "2.13.0+cpu, a CPU build"),
        ("2026-08-12", "vllm0-27-1", "No space left on device"),
        ("2026-08-13", "vllm0-27-1", "cut off in a layer"),
    ],
)
def test_the_report_names_what_broke(
    day: str, where: str, text: str, nights: dict[str, tuple[Seen, str]]
) -> None:
    (line,) = [one for one in nights[day][0].broken if where in one]
    assert text in line


def test_a_yanked_wheel_is_named_and_replaced(nights: dict[str, tuple[Seen, str]]) -> None:
    seen, _ = nights["2026-07-29"]
    assert any(line.startswith("nvidia-cudnn-frontend 1.26.0: yanked") for line in seen.news)
    assert any("changed" in line for line in seen.did)


def test_the_drifted_patch_is_ported_unaided_to_what_todays_catalogue_has(
    nights: dict[str, tuple[Seen, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    hands = [text for seen, _ in nights.values() for text in seen.hands]
    assert hands == [text for seen, _ in nights.values() for text in seen.wrong] == []
    merged = "vllm/nvfp4-routing-sm121 on 0.27.1: merged"
    assert any(line.startswith(merged) for line in nights["2026-08-12"][0].did)
    _, *reached = dict.fromkeys(tag for _, tag in nights.values())
    days = [[seen for seen, tag in nights.values() if tag == release] for release in reached]
    unaided = sum(not any(seen.hands for seen in found) for found in days)
    with capsys.disabled():
        sys.stdout.write(f"\nsimulated weeks: {unaided} of {len(reached)} taken over unaided\n")
