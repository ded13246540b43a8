"""Reading BuildKit's progress stream, in both of the shapes that Buildx writes it."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefactory.building.progress import Event, Progress
from imagefactory.building.view import View


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


def test_steps_are_told_apart_by_target(indent: int | None) -> None:
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


@given(st.lists(st.text()))
def test_no_output_makes_the_reader_fail(lines: list[str]) -> None:
    progress = Progress(targets=("one",))
    for line in lines:
        list(progress.feed(line))


def test_a_program_that_counts_is_shown_line_by_line_with_the_file_and_not_its_folders(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with View(["wheel"]) as view:
        view.feed(
            Event(
                "wheel",
                "[3/33] Building CUDA object CMakeFiles/_C.dir/csrc/a/nvfp4_quant.cu.o",
                log=True,
            )
        )
        view.feed(
            Event(
                "wheel",
                "-- Found Torch: /torch/torch/lib/libtorch.so\nnot [3/33] counted",
                log=True,
            )
        )
    said = capsys.readouterr().err
    assert "wheel [3/33] Building CUDA object nvfp4_quant.cu.o" in said
    assert "Torch" not in said
    assert "not [3/33]" not in said
