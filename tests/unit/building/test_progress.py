"""Reading BuildKit's progress stream, in both of the shapes that Buildx writes it."""

from __future__ import annotations

import base64
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefactory.building.progress import Progress


def vertex(digest: str, name: str, **more: object) -> dict[str, object]:
    return {"vertexes": [{"digest": digest, "name": name, "started": "t", **more}]}


@pytest.fixture(params=[None, 2], ids=["one object a line", "one object over many lines"])
def indent(request: pytest.FixtureRequest) -> int | None:
    value: int | None = request.param
    return value


def feed(
    progress: Progress, indent: int | None, *objects: dict[str, object]
) -> list[tuple[str | None, str]]:
    events = []
    for thing in objects:
        for line in json.dumps(thing, indent=indent).splitlines(keepends=True):
            events += [(event.target, event.text) for event in progress.feed(line)]
    return events


def test_steps_are_distinguished_by_target(indent: int | None) -> None:
    events = feed(
        Progress(targets=("one", "two")),
        indent,
        vertex("a", "[one layer-vllm 2/3] RUN uv pip install"),
        vertex("a", "[one layer-vllm 2/3] RUN uv pip install", completed="t"),
        vertex("b", "[two internal] load build definition", completed="t", cached=True),
    )
    assert events == [
        ("one", "start [layer-vllm 2/3] RUN uv pip install"),
        ("one", "done [layer-vllm 2/3] RUN uv pip install"),
        ("two", "cached load build definition"),
    ]


def test_log_lines_arrive_with_the_target_of_their_step(indent: int | None) -> None:
    data = base64.b64encode(b"Installed 194 packages\n").decode()
    events = feed(
        Progress(targets=("one", "two")),
        indent,
        vertex("a", "[two layer 1/1] RUN x"),
        {"logs": [{"vertex": "a", "data": data}]},
    )
    assert events[-1] == ("two", "Installed 194 packages")


def test_the_step_that_failed_is_blamed_and_the_cancelled_ones_are_not(indent: int | None) -> None:
    progress = Progress(targets=("one", "two"))
    feed(
        progress,
        indent,
        vertex("a", "[one layer 1/1] RUN x", completed="t", error="exit code: 1"),
        vertex("b", "[two layer 1/1] RUN y", completed="t", error="context canceled"),
    )
    assert list(progress.failed()) == ["one"]


def test_a_shared_stage_that_failed_is_named_by_its_own_target(indent: int | None) -> None:
    progress = Progress(targets=("one", "two"))
    feed(
        progress,
        indent,
        vertex(
            "a", "[base-trixie-arm64 base 2/3] RUN apt-get", completed="t", error="exit code: 100"
        ),
    )
    assert list(progress.failed()) == ["base-trixie-arm64"]


def test_what_is_not_progress_is_kept_for_the_error_message() -> None:
    progress = Progress(targets=("one",))
    assert list(progress.feed("ERROR: failed to solve: no such host\n")) == []
    assert progress.stray == ["ERROR: failed to solve: no such host"]


# what Buildx writes, each field with a value of any type in its place
NAMES = st.sampled_from(["a", "", "sha256:00", "[one x 1/2] RUN y", "[", "[] ", "[one] exporting"])
ANY = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), NAMES, st.lists(NAMES, max_size=2)
)
KEYS = "digest", "name", "started", "completed", "cached", "error", "vertex", "data", "id"
ENTRY = st.dictionaries(st.sampled_from([*KEYS, "current", "total"]), ANY, max_size=5)
ENTRIES = st.one_of(ANY, st.lists(st.one_of(ENTRY, ANY), max_size=3))
STATUS = st.dictionaries(
    st.sampled_from(["vertexes", "statuses", "logs"]), ENTRIES, max_size=3
).map(json.dumps)


@given(st.lists(st.one_of(STATUS, st.text('{}[]" \na:1', max_size=9)), max_size=6))
def test_no_output_makes_the_reader_fail(lines: list[str]) -> None:
    progress = Progress(targets=("one",))
    for line in lines:
        list(progress.feed(line))
    assert all(0 <= tally.done <= tally.known for tally in progress.tallies.values())


def test_nesting_beyond_all_measure_is_no_progress() -> None:
    progress = Progress(targets=("one",))
    assert list(progress.feed('{"vertexes": ' + "[" * 100_000 + "}")) == []
    assert len(progress.stray) == 1


def test_a_long_stream_is_read_in_time_linear_in_its_length() -> None:
    def seconds(steps: int) -> float:
        progress = Progress(targets=("one", "two"))
        lines = [
            json.dumps(vertex(f"{n}", f"[{target} s {n}/9] RUN x", **ended)) + "\n"
            for n in range(steps)
            for target in ("one", "two")
            for ended in ({}, {"completed": "t"})
        ]
        began = time.process_time()
        for line in lines:
            list(progress.feed(line))
        return time.process_time() - began

    assert seconds(1600) < 12 * max(seconds(400), 0.005)  # four times as long; squared: sixteen


def test_a_target_knows_how_many_of_its_steps_are_done_and_which_it_shares(
    indent: int | None,
) -> None:
    progress = Progress(targets=("one", "two"))
    shared, own = "[one base 1/1] RUN apt-get", "[one layer 1/2] RUN x"
    feed(
        progress,
        indent,
        vertex("i", "[one internal] load build definition", completed="t"),
        {"vertexes": [{"digest": "a", "name": shared}, {"digest": "b", "name": own}]},
        vertex("a", "[two base 1/1] RUN apt-get"),
    )
    one, two = progress.tallies["one"], progress.tallies["two"]
    assert (one.known, one.done, two.known, two.done) == (2, 0, 1, 0)
    assert [step.name for step in two.running.values()] == ["[base 1/1] RUN apt-get"]
    feed(progress, indent, vertex("a", shared, completed="t", cached=True))
    assert (one.done, one.cached, two.done, two.cached) == (1, 1, 1, 1)
    assert (two.running, one.warm, two.warm) == ({}, True, True)
    feed(progress, indent, vertex("b", own, error="exit code: 1"))
    assert (one.done, one.exported) == (2, False)


def test_a_target_is_exported_when_its_image_is_written(indent: int | None) -> None:
    progress = Progress(targets=("one",))
    name = "[one] exporting to image"
    feed(progress, indent, vertex("a", name))
    feed(progress, indent, {"statuses": [{"vertex": "a", "id": "exporting layers"}]})
    assert (progress.steps["a"].part, progress.tallies["one"].exported) == (
        "exporting layers",
        False,
    )
    feed(
        progress,
        indent,
        {"statuses": [{"vertex": "a", "id": "exporting layers", "completed": "t"}]},
        vertex("a", name, completed="t"),
    )
    assert (progress.steps["a"].part, progress.tallies["one"].exported) == ("", True)


def test_the_bytes_of_a_step_are_those_of_all_of_its_transfers(indent: int | None) -> None:
    progress = Progress(targets=("one",))
    feed(progress, indent, vertex("a", "[one base 1/1] FROM debian"))
    for current in (10, 60):
        feed(
            progress,
            indent,
            {
                "statuses": [
                    {"vertex": "a", "id": "sha256:00", "current": current, "total": 100},
                    {"vertex": "a", "id": "sha256:11", "current": 2 * current, "total": 200},
                    {"vertex": "unknown", "id": "x", "current": 1, "total": 2},
                ]
            },
        )
    assert (progress.steps["a"].current, progress.steps["a"].total) == (180, 300)


def test_how_long_a_step_and_a_target_took_is_read_from_their_time_stamps(
    indent: int | None,
) -> None:
    def at(second: int) -> str:
        return f"2026-11-22T01:08:{second:02}.139348334Z"

    progress = Progress(targets=("one",))
    for digest, begin, end in (("1", 10, 12), ("2", 11, 44)):
        name = f"[one x {digest}/2] RUN x"
        feed(progress, indent, vertex(digest, name, started=at(begin), completed=at(end)))
    assert progress.steps["2"].seconds == 33
    assert progress.tallies["one"].seconds == 34
