"""The command, against a fake server on loopback."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from support.bench_server import Behaviour, events, part, serving
from support.machine import settings
from typer.testing import CliRunner

from imagefactory import opening
from imagefactory.benchmarking import comparing
from imagefactory.benchmarking.comparing import Verdict
from imagefactory.benchmarking.metrics import Spread
from imagefactory.commands import bench
from imagefactory.errors import CheckFailedError, FactoryError, InputError, SetupError
from imagefactory.system import ui
from imagefactory.system.engine import ImageInfo
from imagefactory.workspace import Workspace

SMALL = ("--repeats", "3", "--prompt-tokens", "40", "--output-tokens", "4")
DIGEST = "sha256:" + "ab" * 32
Run = Callable[..., Any]


class FakeEngine:
    images: ClassVar[dict[str, ImageInfo]] = {}

    def find_images(self, refs: list[str]) -> dict[str, ImageInfo]:
        return {ref: self.images[ref] for ref in refs if ref in self.images}

    def publishing(self, _: int) -> tuple[str, str]:
        return "vllm:one", DIGEST


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command; its JSON, its text, or the error that it raises."""
    workspace = Workspace(matrix=tmp_path, project=tmp_path, settings=settings(tmp_path))
    monkeypatch.setattr(opening, "connect_if_any", lambda _: FakeEngine())
    monkeypatch.setattr(bench, "workspace_of", lambda _: workspace)
    monkeypatch.setattr(ui, "_results", [])
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    def run(*argv: str) -> Any:
        done = CliRunner().invoke(bench.app, argv)
        if isinstance(done.exception, FactoryError):
            raise done.exception
        assert done.exit_code == 0, done.output
        return ui._results.pop() if "--json" in argv else done.output

    return run


def test_each_level_is_measured_after_a_round_that_does_not_count(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "geheim")
    behaviour = Behaviour()
    with serving(behaviour) as url:
        found = run(f"{url}/v1/", "--concurrency", "1,3", *SMALL, "--json")
    assert (found["model_id"], found["image"], found["digest"]) == ("tiny", "vllm:one", DIGEST)
    one, three = found["levels"]
    assert (one["max_concurrency"], one["completed"], one["failed"]) == (1, 3, 0)
    assert (three["max_concurrency"], three["completed"]) == (3, 9)
    assert three["output_lens"] == [4] * 9
    assert three["input_lens"] == [40] * 9  # 20 words, as the server counts two tokens for each
    assert found["prefix_cache_hits"] == 0
    assert len(behaviour.seen) == 2 + 1 + 3 + 3 + 9
    assert behaviour.keys == {"Bearer geheim"}
    assert all(body["ignore_eos"] for body in behaviour.seen)
    beginnings = {body["prompt"].split()[0] for body in behaviour.seen}
    salts = {body["cache_salt"] for body in behaviour.seen}
    assert len(beginnings) == len(salts) == len(behaviour.seen)
    assert json.loads(Path(found["file"]).read_text())["levels"] == found["levels"]


def test_the_table_has_every_figure_and_warns_of_what_makes_them_wrong(run: Run) -> None:
    with serving(Behaviour(hits=16)) as url:
        shown = run(url, "--model", "other", "--concurrency", "2", *SMALL)
    for title in ("prefill (tokens/s)", "TTFT (ms)", "TPOT (ms)", "ITL (ms)", "output (tokens/s)"):
        assert title in shown
    assert "128 tokens came from the prefix cache" in shown
    assert "kept as" in shown


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (events(part("a"), done=False), "the stream broke off after 1 parts"),
        (events({"error": {"message": "engine died"}}), "engine died"),
    ],
)
def test_a_request_that_fails_in_mid_stream_is_counted_and_fails_the_command(
    run: Run, broken: bytes, why: str
) -> None:
    with serving(Behaviour(broken={4: broken})) as url, pytest.raises(CheckFailedError) as raised:
        run(url, "--concurrency", "1", *SMALL, "--json")
    (problem,) = raised.value.problems
    assert problem.what.startswith("1 of 3 requests failed: ")
    assert why in problem.what
    found = ui._results.pop()
    assert isinstance(found, dict)
    assert found["file"] is None, "its figures are not kept"
    assert [error != "" for error in found["levels"][0]["errors"]] == [False, True, False]
    assert found["levels"][0]["completed"] == 2


def test_a_server_that_refuses_is_quoted(run: Run) -> None:
    refusal = (400, "maximum context length is 256")
    with serving(Behaviour(refusal=refusal)) as url, pytest.raises(CheckFailedError) as raised:
        run(url, *SMALL)
    assert "HTTP 400: maximum context length is 256" in str(raised.value)


@pytest.mark.usefixtures("run")
def test_figures_that_cannot_be_kept_are_shown(tmp_path: Path) -> None:
    """Measuring may have taken an hour."""
    settings(tmp_path).state.write_text("no folder")
    with serving(Behaviour()) as url:
        done = CliRunner().invoke(bench.app, [url, "--concurrency", "1", *SMALL])
    assert isinstance(done.exception, OSError)
    assert "TTFT (ms)" in done.output


def test_a_page_instead_of_an_answer_is_quoted_on_one_line(run: Run) -> None:
    page = (404, "<html>\n  <h1>Error</h1>\n</html>")
    with serving(Behaviour(refusal=page)) as url, pytest.raises(CheckFailedError) as raised:
        run(url, *SMALL)
    assert "\n" not in raised.value.problems[0].what


@pytest.mark.parametrize("option", ["--timeout", "--start", "--prompt-tokens", "--context"])
def test_numbers_beyond_all_reason_are_refused(option: str) -> None:
    done = CliRunner().invoke(bench.app, ["http://127.0.0.1:1", option, "10000000000000"])
    assert done.exit_code == 2
    assert option in done.output


def test_a_server_that_is_down_a_model_that_is_not_served_and_bad_options_are_errors(
    run: Run,
) -> None:
    with serving(Behaviour()) as url, pytest.raises(InputError, match="tiny, other"):
        run(url, "--model", "gone")
    with pytest.raises(SetupError, match="connection refused"):
        run(url, *SMALL)
    with serving(Behaviour(models=())) as url, pytest.raises(CheckFailedError, match="no model"):
        run(url)
    with pytest.raises(InputError) as raised:
        run("http://x", "--concurrency", "0,x", "--needle", "2")
    assert len(raised.value.problems) == 2
    for text in ("ftp://x", "host:8000", "http://", "http://u:p@h", "http://h:port"):
        with pytest.raises(InputError, match="not the address"):
            run(text)


@pytest.mark.parametrize(
    ("behaviour", "lost"),
    [
        (Behaviour(), []),
        (Behaviour(sees=0.6), ["depth 0.9"]),
        (Behaviour(thinks_only=True), ["depth 0.1", "depth 0.5", "depth 0.9"]),
    ],
)
def test_a_needle_is_found_if_the_answer_says_it(
    run: Run, behaviour: Behaviour, lost: list[str]
) -> None:
    argv = ("--concurrency", "1", *SMALL, "--needle", "0.1,0.5,0.9", "--context", "2000", "--json")
    problems: tuple[str, ...] = ()
    with serving(behaviour) as url:
        try:
            found = run(url, *argv)
        except CheckFailedError as error:
            problems = tuple(problem.what for problem in error.problems)
            found = ui._results.pop()
    assert [depth in what for depth, what in zip(lost, problems, strict=True)] == [True] * len(lost)
    assert [one["depth"] for one in found["needles"]] == [0.1, 0.5, 0.9]
    assert all(1900 < one["input_len"] < 2100 for one in found["needles"])


def spread(low: float, median: float, high: float, samples: int = 5) -> Spread:
    return Spread(median=median, low=low, high=high, samples=samples)


@pytest.mark.parametrize(
    ("after", "of_rates", "of_times"),
    [
        (spread(13, 14, 15), Verdict.FASTER, Verdict.SLOWER),
        (spread(5, 6, 7), Verdict.SLOWER, Verdict.FASTER),
        (spread(11, 14, 17), Verdict.SAME, Verdict.SAME),
        (spread(13, 14, 15, samples=2), Verdict.UNKNOWN, Verdict.UNKNOWN),
    ],
)
def test_only_spreads_that_do_not_overlap_differ(
    after: Spread, of_rates: Verdict, of_times: Verdict
) -> None:
    before = spread(9, 10, 12)
    assert comparing.verdict(before, after, more_is_better=True) is of_rates
    assert comparing.verdict(before, after, more_is_better=False) is of_times


def test_results_are_compared_by_file_digest_and_tag_and_only_with_their_like(
    run: Run, tmp_path: Path
) -> None:
    with serving(Behaviour()) as url:
        kept = run(url, "--concurrency", "1,2", *SMALL, "--json")
    slower = json.loads(Path(kept["file"]).read_text())
    for key in ("median", "p10", "p90"):
        slower["levels"][0][f"{key}_ttft_ms"] += 1e6
    slow = tmp_path / "slow.json"
    slow.write_text(json.dumps(slower))
    rows = run("diff", DIGEST[:19], str(slow), "--json")
    ttft, other = (
        next(row for row in rows if (row["concurrency"], row["metric"]) == (level, "ttft_ms"))
        for level in (1, 2)
    )
    assert (ttft["verdict"], other["verdict"], other["percent"]) == ("slower", "same", 0)
    different = run("diff", "vllm:one", str(slow))
    assert "slower" in different
    assert "the same result" not in different
    assert "A and B are the same result" in run("diff", "vllm:one", DIGEST)

    slow.write_text(json.dumps({**slower, "model_id": "else", "prompt_tokens": 9}))
    with pytest.raises(InputError) as raised:
        run("diff", "vllm:one", str(slow))
    assert [problem.code for problem in raised.value.problems] == ["bench-unlike"] * 2
    with pytest.raises(InputError, match="no result of 'vllm:two'"):
        run("diff", "vllm:two", str(slow))


def test_a_tag_is_that_of_a_server_that_was_started_by_digest(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `recipe run` does it, so that the container's image has no tag."""
    monkeypatch.setattr(FakeEngine, "publishing", lambda *_: (f"vllm@{DIGEST}", DIGEST))
    with serving(Behaviour()) as url:
        run(url, "--concurrency", "1", *SMALL)
    with pytest.raises(InputError, match="no result of 'vllm:one'"):
        run("diff", "vllm:one", DIGEST)
    info = ImageInfo(ref="", digest=DIGEST, layers=(), platform="", labels={}, env={}, size=1)
    monkeypatch.setattr(FakeEngine, "images", {"vllm:one": info})
    assert f"A: vllm@{DIGEST}" in run("diff", "vllm:one", DIGEST)
    for name in ("", "sha256:", "a b", "ab"):
        with pytest.raises(InputError, match=f"no result of '{name}'"):
            run("diff", name, DIGEST)


def test_a_damaged_result_among_the_others_is_passed_over(run: Run, tmp_path: Path) -> None:
    with serving(Behaviour()) as url:
        kept = Path(run(url, "--concurrency", "1", *SMALL, "--json")["file"])
    damaged = kept.with_name("99999999-000000.json")
    damaged.write_text(kept.read_text()[:-20])
    shown = run("diff", "vllm:one", str(kept))
    assert "same" in shown
    assert f"{damaged}: it is not a result of imagefactory bench" in " ".join(shown.split("\n"))


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"levels": []},
        {"levels": [{"max_concurrency": 1, "failed": 0}]},
        {"url": ...},
        {"digest": 5},
        {"image": ["vllm"]},
        {"median_ttft_ms": math.nan, "p10_ttft_ms": math.nan, "p90_ttft_ms": math.nan},
        {"p90_ttft_ms": math.inf},
        {"median_ttft_ms": 10**400},
        {"p10_ttft_ms": 9e9, "p90_ttft_ms": 1},
        {"p10_ttft_ms": -1},
        {"max_concurrency": "1"},
    ],
    ids=lambda change: str(change)[:40],
)
def test_a_file_that_is_no_result_is_named(run: Run, tmp_path: Path, change: Any) -> None:
    with serving(Behaviour()) as url:
        kept = run(url, "--concurrency", "1", *SMALL, "--json")
    (level,) = kept["levels"]
    kept["levels"] = [{**level, **{key: change[key] for key in change.keys() & level.keys()}}]
    data = {**kept, **{key: change[key] for key in change.keys() - level.keys()}}
    data = {key: value for key, value in data.items() if value is not ...}
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(data))
    with pytest.raises(InputError, match=r"bad\.json: it is not a result"):
        run("diff", str(path), kept["file"])
