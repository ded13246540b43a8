"""``bench RECIPE``, with an engine whose containers are fake servers in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.bench_server import Behaviour, serving
from support.program import Run, run

from imagefactory import opening
from imagefactory.benchmarking import serving as lending
from imagefactory.planning import vllm_settings
from imagefactory.planning.vllm_settings import VllmSettings
from imagefactory.system.engine import ImageInfo
from imagefactory.verifying import leftovers

__all__ = ["run"]
RECIPE = 'summary: mine\nmodel: org/mine\nweights: bf16\nhardware: [cpu]\nvllm: ">=0.22"\n'
IMAGE = "imagefactory/vllm:cpu-vllm0.32.0-torch2.13.0-cpu"
DIGEST = f"sha256:{'1' * 64}"
INFO = ImageInfo(
    ref=IMAGE,
    digest=DIGEST,
    layers=(),
    platform="linux/amd64",
    labels={"io.imagefactory.pin.vllm": "0.32.0"},
    env={"IMAGEFACTORY_CHANNEL": "cpu"},
    size=1,
)
SMALL = ("--concurrency", "1", "--repeats", "3", "--prompt-tokens", "40", "--output-tokens", "4")


@dataclass
class Container:
    """A container that runs, or has ended."""

    code: int | None

    def alive(self) -> bool:
        return self.code is None

    def exit_code(self) -> int:
        return self.code or 0

    def logs(self, *, last: int) -> str:
        return f"the last {last} lines"


@dataclass
class FakeEngine:
    """An engine with one image, whose containers serve or end."""

    code: int | None = None
    serves: bool = True
    behaviour: Behaviour = field(default_factory=Behaviour)
    events: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)

    def find_images(self, refs: Sequence[str]) -> dict[str, ImageInfo]:
        return dict.fromkeys(refs, INFO)

    @contextmanager
    def lent(
        self, arguments: Callable[[str, Mapping[str, str]], Sequence[str]]
    ) -> Iterator[Container]:
        self.words += arguments("imagefactory-0123", {"owner": "me"})
        port = self.words[self.words.index("--publish") + 1].split(":")[1]
        with serving(self.behaviour, int(port) if self.serves else 0):
            self.events.append("started")
            try:
                yield Container(self.code)
            finally:
                self.events.append("removed")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    fake = FakeEngine()
    known = VllmSettings(variables=frozenset(), options=frozenset())
    monkeypatch.setattr(opening, "connect", lambda _: fake)
    monkeypatch.setattr(opening, "connect_if_any", lambda _: fake)
    monkeypatch.setattr(leftovers, "sweep", lambda *_: fake.events.append("swept"))
    monkeypatch.setattr(vllm_settings, "of_cell", lambda *_: known)
    monkeypatch.setattr(lending, "POLL", 0.01)
    return fake


@pytest.fixture
def mine(tmp_path: Path) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(RECIPE)
    return str(path)


def test_a_recipe_is_served_for_the_time_of_the_benchmark_and_kept_by_its_digest(
    run: Run, mine: str, engine: FakeEngine
) -> None:
    done = run("bench", mine, *SMALL)
    assert done.code == 0, done.err
    assert engine.events == ["swept", "started", "removed"]
    assert "owner=me" in engine.words
    assert f"imagefactory/vllm@{DIGEST}" in engine.words
    assert done.out.startswith(f"{IMAGE} ")
    assert f"benchmarks/{DIGEST.replace(':', '-')}/" in done.err


@pytest.mark.parametrize(
    ("code", "seconds", "what"),
    [
        (7, "60", "the server ended with exit status 7"),
        (None, "1", "the server was not healthy after"),
    ],
)
def test_a_server_that_does_not_start_is_told_with_its_log_and_removed(
    run: Run, mine: str, engine: FakeEngine, code: int | None, seconds: str, what: str
) -> None:
    engine.serves, engine.code = False, code
    done = run("bench", mine, *SMALL, "--start", seconds)
    assert done.code == 1
    assert what in done.err
    assert "the last 25 lines" in done.err
    assert engine.events[-1] == "removed"


def test_the_server_goes_when_the_benchmark_fails(run: Run, mine: str, engine: FakeEngine) -> None:
    engine.behaviour.refusal = (500, "boom")
    done = run("bench", mine, *SMALL)
    assert (done.code, "boom" in done.err) == (1, True)
    assert engine.events[-1] == "removed"


def test_what_is_neither_an_address_nor_a_recipe_is_refused(run: Run, engine: FakeEngine) -> None:
    unknown = run("bench", "nonsense")
    assert (unknown.code, "there is no recipe 'nonsense'" in unknown.err) == (2, True)
    assert run("bench", "spark:8888").code == 2
    assert engine.events == []
