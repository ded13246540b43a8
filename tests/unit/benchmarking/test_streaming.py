"""What arrives from servers that are broken in ways that vLLM is not, and what is sent to them."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from support.bench_server import Behaviour, events, part, serving, usage

from imagefactory.benchmarking import streaming
from imagefactory.benchmarking.streaming import Server, StreamError
from imagefactory.benchmarking.trace import Trace
from imagefactory.errors import InputError, SetupError


def read(*rows: Any) -> Trace:
    clock = count().__next__
    return streaming.read([events(*rows)], lambda: float(clock()), 0.0)


@pytest.mark.parametrize(
    "row",
    [
        {"choices": ["x"]},
        {"choices": 7},
        {"choices": [{"text": 5}]},
        {"choices": [{"delta": "x"}]},
        {"choices": [{"delta": {"content": ["x"]}}]},
    ],
    ids=str,
)
def test_an_event_that_is_no_part_of_an_answer_is_quoted(row: dict[str, Any]) -> None:
    with pytest.raises(StreamError, match=r"no part of an answer: .*choices"):
        read(part("a"), row, usage(9, 2))


@pytest.mark.parametrize("counted", [5, "5", float("nan"), {"prompt_tokens": 3}, [1, 2]], ids=str)
def test_a_usage_without_numbers_is_none(counted: object) -> None:
    with pytest.raises(StreamError, match="no usage"):
        read(part("a"), {"usage": counted})
    with pytest.raises(StreamError, match="no usage"):
        read(part("a"), {"usage": {"prompt_tokens": True, "completion_tokens": True}})


@pytest.mark.parametrize(("prompt", "output"), [(-3, 2), (3, 0), (0, 2), (10**400, 2), (3, 10**30)])
def test_tokens_that_cannot_be_are_refused(prompt: int, output: int) -> None:
    with pytest.raises(StreamError, match="the server counts"):
        read(part("a"), usage(prompt, output))


@pytest.mark.parametrize("said", ["x", "1e999", "", "nan"])
def test_a_metric_that_is_no_number_is_unknown(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"vllm:prefix_cache_hits_total {said}\n"
    monkeypatch.setattr("imagefactory.system.web.text_of", lambda _: text)
    assert Server("http://x", key=None, seconds=1).prefix_hits() is None


@pytest.mark.parametrize("key", ["sk-geheim\n", "sk geheim", "sk-geh€im"])
def test_a_key_that_cannot_be_sent_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(InputError) as caught:
        streaming.check_key(key)
    assert "geh" not in str(caught.value)
    assert streaming.check_key("sk-proj_1.2+3=") == "sk-proj_1.2+3="
    assert streaming.check_key(None) is None


def test_a_certificate_that_is_not_trusted_is_said_as_such(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import requests  # noqa: PLC0415 - takes 50 ms to load

    def fails(*_: object, **__: object) -> None:
        raise requests.exceptions.SSLError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed")

    monkeypatch.setattr(requests.Session, "send", fails)
    with serving(Behaviour()) as url, pytest.raises(SetupError, match="REQUESTS_CA_BUNDLE"):
        Server(url, key=None, seconds=1).models()
