"""What a person sees of a running bake, on a terminal and in a log."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from imagefactory.building.live_view import View
from imagefactory.building.progress import Event, Progress
from imagefactory.building.timings import Timings, Took
from imagefactory.system import ui

CELL = "gb10-vllm0-22-1-torch2-11-0-cu130-fi0-6-12-py313-arm64"
TORCH = (
    "[{} layer-torch 1/2] RUN --mount=type=cache,id=wheels,target=/root/.cache/uv uv pip install"
)


def vertex(digest: str, name: str, **more: Any) -> dict[str, Any]:
    return {"vertexes": [{"digest": digest, "name": name, **more}]}


def feed(view: View, progress: Progress, *objects: dict[str, Any]) -> None:
    for thing in objects:
        for event in progress.feed(json.dumps(thing) + "\n"):
            view.feed(event)


def shown(view: View, width: int = 80, height: int = 24) -> list[str]:
    """The lines of the live view as they are on a terminal."""
    console = Console(file=io.StringIO(), width=width, height=height, emoji=False)
    console.print(view)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().rstrip("\n").split("\n")


def running(*cells: str) -> tuple[View, Progress]:
    progress = Progress(targets=cells)
    view = View(progress)
    for cell in cells:
        feed(view, progress, vertex(f"{cell}1", TORCH.format(cell)))
        feed(view, progress, vertex(f"{cell}2", f"[{cell} layer-vllm 1/1] RUN python3 vllm.py"))
    return view, progress


def test_a_cell_is_shown_with_its_step_of_so_many_and_the_bytes_of_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    view, progress = running(CELL)
    assert shown(view) == [f"building {CELL}  0 s", "    [0/2] waiting"]
    feed(view, progress, vertex(f"{CELL}1", TORCH.format(CELL), started="t"))
    status = {"vertex": f"{CELL}1", "id": "sha256:0", "current": 17 * 10**8, "total": 34 * 10**8}
    feed(view, progress, {"statuses": [status]})
    assert shown(view)[1] == "    [0/2] layer-torch RUN uv pip install  1.70 GB of 3.40 GB"
    feed(view, progress, vertex(f"{CELL}2", f"[{CELL} layer-vllm 1/1] RUN x", started="t"))
    assert shown(view)[1].endswith("1.70 GB of 3.40 GB  +1")
    feed(view, progress, vertex(f"{CELL}1", TORCH.format(CELL), started="t", completed="t"))
    assert shown(view)[1] == "    [1/2] layer-vllm RUN python3 vllm.py"


def test_an_export_says_what_it_is_at_and_ends_the_cell() -> None:
    view, progress = running("one", "two")
    export = "[one] exporting to image"
    feed(view, progress, vertex("e", export, started="t"))
    feed(view, progress, {"statuses": [{"vertex": "e", "id": "pushing layers"}]})
    assert shown(view)[1:3] == ["  one", "    [0/3] exporting to image: pushing layers"]
    feed(view, progress, vertex("e", export, started="t", completed="t"))
    assert shown(view)[1:] == ["  two", "    [0/2] waiting", "  one", "    [1/3] done"]


def test_a_cell_that_failed_says_so_and_stays() -> None:
    view, progress = running("one", "two")
    feed(view, progress, vertex("one1", TORCH.format("one"), error="exit code: 1"))
    assert shown(view)[1:3] == ["  one", "    [1/2] failed"]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 10), (200, 50)])
def test_many_cells_fit_the_terminal_the_running_ones_first(width: int, height: int) -> None:
    cells = [f"{CELL}-{number}" for number in range(40)]
    view, progress = running(*cells)
    feed(view, progress, vertex(f"{cells[33]}1", TORCH.format(cells[33]), started="t"))
    lines = shown(view, width, height)
    assert len(lines) < height
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("building 40 cells")
    assert lines[1].strip() == ui.shorten(cells[33], width - 2)
    assert lines[-1].strip().startswith("and ")
    assert lines[-1].endswith(" waiting")


def test_names_of_steps_are_data() -> None:
    progress = Progress(targets=("one",))
    view = View(progress)
    feed(view, progress, vertex("1", "[one x 1/1] RUN [red]echo :100: \x1b[2J", started="t"))
    assert shown(view)[1] == r"    [0/1] x RUN [red]echo :100: \x1b[2J"


def test_what_is_left_is_said_only_where_earlier_builds_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timings = Timings(tmp_path)
    progress = Progress(targets=("one", "two"))
    now = 1000.0
    monkeypatch.setattr("imagefactory.building.live_view.time.monotonic", lambda: now)
    view = View(progress, timings=timings, kinds={"one": "gb10", "two": "cpu"})
    for cell in ("one", "two"):
        feed(view, progress, vertex(f"{cell}1", TORCH.format(cell)))
    timings.add([Took(what="gb10", warm=False, seconds=200)])
    assert shown(view)[0] == "building 2 cells  0 s"
    timings.add([Took(what="cpu", warm=False, seconds=90)])
    timings.add([Took(what="cpu", warm=True, seconds=5000)])
    assert shown(view)[0] == "building 2 cells  0 s  about 3 min left"
    now += 170
    assert shown(view)[0] == "building 2 cells  2 min 50 s  about 30 s left"
    now += 60
    assert shown(view)[0] == "building 2 cells  3 min 50 s"
    feed(view, progress, vertex("two1", TORCH.format("two"), cached=True, completed="t"))
    assert shown(view)[0] == "building 2 cells  3 min 50 s  about 80 min left"


def test_a_log_has_a_line_where_a_long_step_begins_and_one_where_it_ends(
    capsys: pytest.CaptureFixture[str],
) -> None:
    progress = Progress(targets=("one", "two"))
    began, ended = "2026-11-22T01:08:10Z", "2026-11-22T01:08:44.5Z"
    copied = "[two image 2/5] COPY --link --from=layer-torch /layer/ /"
    with View(progress) as view:
        feed(
            view,
            progress,
            vertex("a", TORCH.format("one")),
            vertex("a", TORCH.format("one"), started=began),
            vertex("a", TORCH.format("one"), started=began),
            vertex("a", TORCH.format("one"), started=began, completed=ended),
            vertex("b", "[two layer 1/2] RUN x", started=began, cached=True),
            vertex("b", "[two layer 1/2] RUN x", started=began, completed=ended, cached=True),
            vertex("c", copied, started=began),
            vertex("c", copied, started=began, completed=ended),
            vertex("d", "[two internal] load metadata for debian", started=began, completed=ended),
            vertex("e", "[two image 3/5] COPY a b", started=began, completed=ended),
            vertex("f", "[two image 4/5] RUN [y]", started=began, error="exit code: 1\n:100:"),
        )
    lines = [line.split("s ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert lines == [
        "one [0/1] layer-torch RUN uv pip install ...",
        "one [1/1] layer-torch RUN uv pip install  34 s",
        "two [1/1] layer RUN x  cached",
        "two [2/2] image COPY --link --from=layer-torch /layer/ /  34 s",
        "two FAILED image RUN [y]: exit code: 1 :100:",
    ]


def test_a_program_that_counts_is_shown_line_by_line_with_the_file_and_not_its_folders(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with View(Progress(targets=("wheel",))) as view:
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
