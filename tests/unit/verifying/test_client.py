"""What a server is asked, byte for byte, and what is made of what comes back."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, nullcontext
from typing import Any

import pytest

from imagefactory.verifying import client
from imagefactory.verifying.answers import Answer, Refusal, UnansweredError
from imagefactory.verifying.client import SHOWN, Client
from imagefactory.verifying.models.words import Question

QUESTION = Question(prompt="the capital of", answer=("Paris",), extra={"tools": [1]})


class Noting(Client):
    """A client that notes what it would send, and gets the same answer to everything."""

    def __init__(self, status: int = 200, text: str = "{}") -> None:
        super().__init__(nullcontext, model="m", seconds=1)  # type: ignore[arg-type]
        self.sent: list[tuple[str, str, Any]] = []
        self.closed = 0
        self.said = status, text

    def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> tuple[int, str]:
        self.sent.append((method, path, body))
        return self.said

    def close(self) -> None:
        self.closed += 1


COMPLETION = {"model": "m", "temperature": 0, "max_tokens": 16, "prompt": "the capital of"}
CHAT = {
    "model": "m",
    "temperature": 0,
    "max_tokens": 16,
    "logprobs": True,
    "tools": [1],
    "messages": [{"role": "user", "content": "the capital of"}],
}


STREAM = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize(
    ("kind", "path", "body"),
    [
        ("completion", "/v1/completions", {**COMPLETION, "logprobs": 1}),
        ("chat", "/v1/chat/completions", CHAT),
        ("reasoning", "/v1/chat/completions", CHAT),
        ("call", "/v1/chat/completions", CHAT),
        ("stream", "/v1/chat/completions", {**CHAT, **STREAM}),
        ("call-stream", "/v1/chat/completions", {**CHAT, **STREAM}),
    ],
)
def test_each_kind_of_question_has_its_request(kind: str, path: str, body: object) -> None:
    asked = Noting()
    asked.ask(kind, QUESTION)
    assert asked.sent == [("POST", path, body)]


def test_a_misuse_is_part_of_a_request_that_is_right_otherwise_and_ends_the_connection() -> None:
    asked = Noting(400, "x" * 6000)
    found = asked.misuse("a fault", {"max_tokens": -1})
    body = {"model": "m", "prompt": "the", "max_tokens": -1}
    assert asked.sent == [("POST", "/v1/completions", body)]
    assert found == Refusal(request="a fault", status=400, text="x" * client.REFUSAL)
    assert asked.closed == 1
    asked.misuse("a fault", {})
    assert asked.sent[-1][2] == {**body, "max_tokens": 1}


@pytest.mark.parametrize(
    ("text", "names", "error"),
    [
        ('{"data": [{"id": "a"}, {"id": 5}]}', ("a", "5"), ""),
        ('{"data": []}', (), ""),
        ('{"data": [{}]}', (), "KeyError: 'id'"),
        ("{}", (), "KeyError: 'data'"),
        ("[]", (), "TypeError: "),
        ("no", (), "UnansweredError: not JSON"),
    ],
)
def test_the_list_of_models_is_read_or_the_reason_is_said(
    text: str, names: tuple[str, ...], error: str
) -> None:
    asked = Noting(text=text)
    found, said = asked.models()
    assert asked.sent == [("GET", "/v1/models", None)]
    assert (found, said[: len(error)], bool(said)) == (names, error, bool(error))
    assert len(Noting(text=json.dumps({"data": {"y" * 999: 1}})).models()[1]) <= SHOWN


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ('{"usage": {"completion_tokens": 128}}', 128),
        ('{"usage": {"completion_tokens": Infinity}}', 0),
        ('{"usage": {"completion_tokens": NaN}}', 0),
        ('{"usage": {"completion_tokens": null}}', 0),
        ('{"usage": []}', 0),
        ("[]", 0),
        ("no", 0),
    ],
)
def test_tokens_are_counted_or_there_are_none(text: str, tokens: int) -> None:
    asked = Noting(text=text)
    assert asked.count_tokens("the", 128) == tokens
    assert asked.sent[0][2]["ignore_eos"]


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (201, False), (503, False)])
def test_only_200_is_healthy(status: int, *, healthy: bool) -> None:
    asked = Noting(status)
    assert asked.healthy() == healthy
    assert asked.sent == [("GET", "/health", None)]


@pytest.mark.parametrize(
    ("status", "text", "said", "finish"),
    [
        (200, '{"choices": [{"text": " Paris", "finish_reason": "stop"}]}', " Paris", "stop"),
        (200, '{"choices": []}', "JSON of another shape than expected: IndexError: ", ""),
        (200, '{"choices": [5]}', "JSON of another shape than expected: TypeError: ", ""),
        (200, "[]", "JSON of another shape than expected: TypeError: ", ""),
        (200, "no", "not JSON (JSONDecodeError): 'no'", ""),
        (500, "z" * 999, "z" * (SHOWN // 2) + "…", ""),
    ],
)
def test_an_answer_is_what_was_said_or_why_it_was_not_read(
    status: int, text: str, said: str, finish: str
) -> None:
    found = Noting(status, text).ask("completion", QUESTION, when="now")
    assert (found.kind, found.question, found.when) == ("completion", QUESTION, "now")
    assert found.text.startswith(said)
    assert len(found.text) <= SHOWN
    # what could not be read has no status: nothing was answered
    assert (found.status, found.finish) == (status, finish)
    assert 0 <= found.seconds < 60


def test_garbage_behind_a_right_answer_is_no_right_answer_however_far_behind_it_is() -> None:
    def right(text: str) -> bool:
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        choice = {"text": text, "finish_reason": "stop"}
        body = json.dumps({"choices": [choice], "usage": usage})
        return Noting(text=body).ask("completion", QUESTION).right

    assert right(" Paris ")
    assert not right(" Paris" + " " * 2 * SHOWN + "!!!!")


class Peer:
    """The other end of connections, each with what it sends; the client closes its own."""

    def __init__(self, stack: ExitStack, *sends: bytes) -> None:
        self.stack, self.sends, self.ends = stack, list(sends), list[socket.socket]()

    def dial(self) -> Any:
        ours, theirs = (self.stack.enter_context(one) for one in socket.socketpair())
        self.ends.append(theirs)
        theirs.sendall(self.sends.pop(0))
        return closing(ours)

    def client(self, seconds: float = 20) -> Client:
        return Client(self.dial, model="m", seconds=seconds)


@pytest.fixture
def peer() -> Iterator[Callable[..., Peer]]:
    with ExitStack() as stack:
        yield lambda *sends: Peer(stack, *sends)


def response(body: str, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", body]).encode()


def test_a_connection_is_kept_until_either_side_ends_it(peer: Callable[..., Peer]) -> None:
    other = peer(response("ok"), response("last"))
    asked = other.client()
    assert asked._request("GET", "/0")[1] == "ok"
    for number, header in ((1, "X: y"), (2, "Connection: close")):
        other.ends[0].sendall(response("ok", header))
        assert asked._request("GET", f"/{number}")[1] == "ok"
    assert asked._request("GET", "/3")[1] == "last"
    first, second = other.ends
    assert first.recv(9999).count(b"HTTP/1.1\r\n") == 3
    asked.close()
    asked.close()
    sent = second.recv(9999).decode()
    assert sent.startswith("GET /3 HTTP/1.1\r\n")
    assert "Content-Type" not in sent
    assert second.recv(1) == b""


def test_a_body_is_json_and_says_so(peer: Callable[..., Peer]) -> None:
    other = peer(response("ok", status="404 No"))
    assert other.client()._request("POST", "/x", {"a": [1]}) == (404, "ok")
    head, _, body = other.ends[0].recv(9999).decode().partition("\r\n\r\n")
    assert "Content-Type: application/json" in head
    assert json.loads(body) == {"a": [1]}


def test_an_answer_may_have_so_many_bytes_and_the_next_is_asked_elsewhere(
    monkeypatch: pytest.MonkeyPatch, peer: Callable[..., Peer]
) -> None:
    monkeypatch.setattr(client, "MOST_BYTES", 4)
    other = peer(response("1234"), b"nonsense\r\n\r\n", response("1"))
    asked = other.client()
    assert asked._request("GET", "/")[1] == "1234"
    other.ends[0].sendall(response("12345"))
    with pytest.raises(UnansweredError, match="more than 4 bytes"):
        asked._request("GET", "/")
    with pytest.raises(UnansweredError, match="BadStatusLine"):
        asked._request("GET", "/")
    assert asked._request("GET", "/") == (200, "1")
    assert len(other.ends) == 3
    asked.close()


@pytest.mark.parametrize("error", [OSError("x"), http.client.HTTPException("x"), ValueError("x")])
def test_what_a_cut_leads_to_is_no_answer_in_time_and_anything_else_stays_what_it_is(
    error: Exception,
) -> None:
    def cut(seconds: float) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs, client._deadline(ours, seconds):
            if not seconds:
                assert theirs.recv(1) == b"", "the connection was cut"
            raise error

    with pytest.raises(UnansweredError, match="no end of the answer within 0 s"):
        cut(0)
    with pytest.raises(type(error)):
        cut(60)


def test_a_deadline_that_is_kept_ends_with_its_answer() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        with client._deadline(ours, 60):
            pass
        ours.sendall(b"x")
        assert theirs.recv(1) == b"x"


def test_no_connection_is_no_answer() -> None:
    def refuses() -> Any:
        raise ConnectionRefusedError("nobody listens")

    asked = Client(refuses, model="m", seconds=1)
    assert not asked.healthy()
    found: Answer = asked.ask("chat", QUESTION)
    assert (found.status, found.text) == (None, "ConnectionRefusedError: nobody listens")
    refusal = asked.misuse("a fault", {})
    assert (refusal.status, refusal.request) == (None, "a fault")
