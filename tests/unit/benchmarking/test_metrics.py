"""The figures of requests, computed by hand."""

from __future__ import annotations

from collections.abc import Iterator
from random import SystemRandom

import pytest
from support.bench_server import events, part, usage

from imagefactory.benchmarking import metrics, prompts, streaming
from imagefactory.benchmarking.trace import Round, Trace


class FakeClock:
    """Stands still until a server takes its time."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def server(self, *timed: tuple[float, bytes]) -> Iterator[bytes]:
        """A server that takes so many seconds for each part of its answer."""
        for seconds, content in timed:
            self.now += seconds
            yield content


def read(*timed: tuple[float, bytes]) -> Trace:
    clock = FakeClock()
    return streaming.read(clock.server(*timed), clock, clock.now)


def test_a_server_that_takes_known_times_has_the_figures_that_follow() -> None:
    trace = read(
        (0.5, events(part(" a"), done=False)),
        (0.1, events(part(" b"), done=False)),
        (0.3, events(part(" c d"), done=False)),  # two tokens, as speculative decoding sends them
        (9.0, events(usage(200, 4))),
    )
    assert (trace.prompt_tokens, trace.output_tokens, trace.text) == (200, 4, " a b c d")
    assert trace.ttft == pytest.approx(0.5)
    assert trace.itls == pytest.approx((0.1, 0.3))
    assert trace.e2el == pytest.approx(0.9)  # vLLM's ends with the last token, too
    assert trace.tpot == pytest.approx(0.4 / 3)
    assert trace.prefill_throughput == pytest.approx(400)
    assert trace.decode_throughput == pytest.approx(7.5)


def test_an_event_may_be_split_anywhere_and_comments_are_no_tokens() -> None:
    content = b": ping\n\n" + events(part(""), part("b"), usage(7, 2))
    trace = read(*((0.1, bytes([byte])) for byte in content))
    assert (len(trace.arrived), trace.output_tokens) == (2, 2)  # a token may have no text


def test_the_role_that_a_chat_begins_with_is_no_token_but_reasoning_is() -> None:
    deltas = [{"role": "assistant", "content": ""}, {"reasoning": "x"}, {"content": "y"}]
    parts = [events({"choices": [{"delta": delta}]}, done=False) for delta in deltas]
    trace = read((1, parts[0]), (1, parts[1]), (1, parts[2]), (0, events(usage(5, 2))))
    assert trace.ttft == pytest.approx(2)
    assert trace.text == "y"


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (events(part("a"), usage(5, 1), done=False), "the stream broke off after 1 parts"),
        (events(part("a")), "the server sent no usage"),
        (events(usage(5, 0)), "no token arrived"),
        (b"data: {half\n\n", "not a JSON object: {half"),
        (events({"error": {"message": "engine died"}}), "error in mid-stream: engine died"),
    ],
)
def test_a_stream_that_is_not_whole_is_a_failure(content: bytes, error: str) -> None:
    with pytest.raises(streaming.StreamError, match=error):
        read((0.1, content))


def request(started: float, first: float, last: float, *, error: str = "") -> Trace:
    """Twenty tokens in, and three out."""
    arrived = (first, (first + last) / 2, last)
    return Trace(started=started, arrived=arrived, prompt_tokens=20, output_tokens=3, error=error)


def test_rates_are_over_the_time_of_all_rounds_and_spreads_are_numpys_percentiles() -> None:
    rounds = [
        Round(traces=(request(0, 1, 3), request(0, 2, 4))),  # 6 tokens in 4 s
        Round(traces=(request(10, 11, 12), Trace(started=10, error="gone"))),  # 3 tokens in 2 s
    ]
    found = metrics.summary(rounds, concurrency=2, model="tiny")
    assert (found["num_prompts"], found["completed"], found["failed"]) == (4, 3, 1)
    assert (found["max_concurrency"], found["rounds"], found["duration"]) == (2, 2, 6)
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (60, 9)
    assert found["output_throughput"] == pytest.approx(9 / 6)
    assert found["request_throughput"] == pytest.approx(3 / 6)
    assert found["total_token_throughput"] == pytest.approx(69 / 6)
    assert found["mean_ttft_ms"] == pytest.approx(4000 / 3)
    assert (found["median_ttft_ms"], found["samples_ttft_ms"]) == (1000, 3)
    assert found["p90_ttft_ms"] == pytest.approx(1800)  # numpy.percentile([1000, 1000, 2000], 90)
    assert found["std_ttft_ms"] == pytest.approx(471.4045)  # numpy.std of the same
    assert found["median_tpot_ms"] == 1000  # 2 s / 2, 2 s / 2 and 1 s / 2
    assert found["p10_tpot_ms"] == pytest.approx(600)
    assert (found["median_decode_throughput"], found["p90_decode_throughput"]) == (1, 1.8)
    assert found["median_output_throughput"] == 1.5
    assert (found["errors"], found["ttfts"]) == (["", "", "", "gone"], [1, 2, 1, 0.0])


def test_the_times_between_tokens_that_came_together_are_not_taken_for_speed() -> None:
    def figures(last: float) -> dict[str, object]:
        return metrics.summary([Round(traces=(request(0, 1, last),))], concurrency=1, model="m")

    steady, burst = figures(3), figures(1.00001)
    assert (steady["in_bursts"], steady["samples_tpot_ms"]) == (False, 1)
    assert (burst["in_bursts"], burst["samples_tpot_ms"], burst["samples_itl_ms"]) == (True, 0, 0)
    assert burst["samples_ttft_ms"] == 1


def test_nothing_that_was_answered_gives_zeros_as_in_vllm() -> None:
    found = metrics.summary([Round(traces=(Trace(started=1, error="x"),))], concurrency=1, model="")
    assert (found["completed"], found["output_throughput"], found["p99_itl_ms"]) == (0, 0, 0)


def test_prompts_have_the_same_text_in_every_run_after_a_beginning_of_their_own() -> None:
    one, other = (prompts.prompt(50, number=3, nonce=nonce) for nonce in ("a1", "b2"))
    assert len(one.split()) == len(other.split()) == 50
    assert (one[:2], other[:2], one[2:]) == ("a1", "b2", other[2:])
    assert prompts.prompt(50, number=4, nonce="a1") != one
    assert prompts.words_for(1000, words=64, counted=80) == 800


@pytest.mark.parametrize("depth", [0.0, 0.5, 1.0])
def test_a_needle_is_at_its_depth_between_two_sentences(depth: float) -> None:
    hidden = prompts.needle(depth, SystemRandom())
    text = prompts.haystack(2000, hidden, number=1, nonce="n")
    hay, _, question = text.partition("\n\n")
    before, _, after = hay.partition(hidden.sentence)
    assert (question, hidden.code in hidden.sentence) == (hidden.question, True)
    assert len(before) / len(hay) == pytest.approx(depth, abs=0.02)
    assert before.rstrip().endswith((".", "n"))
    assert hidden.code not in before + after + question
