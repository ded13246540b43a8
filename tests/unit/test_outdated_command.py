"""``imagefactory outdated`` as a user sees it: what it shows, writes and returns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import ROOT
from support.json_index import JsonIndex, serve
from support.program import Run, runner
from support.terminal import Terminal
from support.watched import locked, write

from imagefactory.locking import store
from imagefactory.system import ui


@pytest.fixture
def index() -> Iterator[tuple[JsonIndex, str]]:
    record = json.loads((ROOT / "tests/data/releases.json").read_text())
    with serve(record) as found:
        yield found


@pytest.fixture
def run(
    tmp_path: Path,
    index: tuple[JsonIndex, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    store.write(tmp_path / "wheels.lock", locked(write(tmp_path)), guards=tmp_path)
    environment = {"XDG_CACHE_HOME": "cache", "XDG_STATE_HOME": "state", "PIP_FIND_LINKS": ""}
    for name, value in {**environment, "UV_DEFAULT_INDEX": index[1]}.items():
        monkeypatch.setenv(name, str(tmp_path / value) if value in ("cache", "state") else value)
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.chdir(tmp_path)
    return runner(monkeypatch, capsys, tmp_path, command="outdated")


def test_it_shows_what_is_newer_and_writes_the_rows_when_asked(tmp_path: Path, run: Run) -> None:
    done = run()
    assert done.code == 0
    assert "vllm 0.29.0 requires torch==2.13.0" in done.out
    assert "new row  vllm 0.29.0 -> 0.33.0" in done.out
    assert done.err.splitlines()[-1].startswith("2 outdated, 12 held")
    assert run("--exit-code").code == 1
    before = (tmp_path / "matrix.yaml").read_text()
    found = json.loads(run("--json").out)
    assert {row["state"] for row in found["rows"]} == {"outdated", "held"}
    assert [one["new"]["vllm"] for one in found["candidates"]] == ["0.22.1", "0.33.0"]
    assert found["written"] is False
    assert (tmp_path / "matrix.yaml").read_text() == before
    done = run("--update")
    assert (done.code, "changed rows" in done.out) == (0, True)
    assert "matrix.yaml is written; next: imagefactory lock" in done.err
    assert '"0.22.1", "0.29.0", "0.33.0"' in (tmp_path / "matrix.yaml").read_text()
    again = run("--update", "--json")
    assert (json.loads(again.out)["candidates"], again.code) == ([], 0)


def test_an_outage_ends_with_3_and_shows_the_rest(index: tuple[JsonIndex, str], run: Run) -> None:
    index[0].down.add("torch")
    done = run()
    assert done.code == 3
    assert "nvidia-nccl-cu13" in done.out
    assert "unknown: " in done.out
    assert "error: torch: " in done.err
    assert "(HTTP 503)" in done.err


def test_tables_fit_80_columns(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(ui, "out", terminal.console())
    assert run("--all").code == 0
    assert max(map(len, terminal.lines)) <= 80
    assert any("flashinfer-python" in line for line in terminal.lines)
