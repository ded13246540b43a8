"""The checks of the server against broken servers on real sockets."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.verify_fake_server import QUICK, FakeEngine
from support.verify_fakes import CPU, Good, image_info

from imagefactory.verifying import client, server
from imagefactory.verifying.receipt import Outcome


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


def observe(engine: FakeEngine, folder: Path) -> server.ServerRun:
    return server.observe(engine, image_info(), folder=folder, patience=QUICK)


def red(run: server.ServerRun) -> dict[str, str]:
    """The checks that fail for this run, with what they say."""
    image = Good(torch=CPU)
    image.server = run
    return {
        name: result.detail
        for name, result in image.results().items()
        if result.outcome is Outcome.FAIL
    }


def test_a_good_server_passes_and_was_asked_for_greedy_answers(
    engine: FakeEngine, tmp_path: Path
) -> None:
    run = observe(engine, tmp_path)
    assert red(run) == {}
    assert {(body["temperature"], body["model"]) for body in engine.behaviour.seen} == {
        (0, server.MODEL_NAME)
    }
    assert len([answer for answer in run.answers if answer.kind == "completion"]) >= 2
    assert {refusal.status for refusal in run.refusals} == {400}


def test_the_container_gets_the_model_and_options_in_quotes(
    engine: FakeEngine, tmp_path: Path
) -> None:
    observe(engine, tmp_path)
    assert "model.safetensors" in engine.started["files"]
    assert engine.started["mounts"] == [(tmp_path, engine.started["env"]["MODEL"])]
    assert "'{\"mode\": 0}'" in engine.started["env"]["VLLM_EXTRA_ARGS"]
    assert engine.started["shm_size"] == "1g"
    on = {name for name, value in engine.started["env"].items() if value == "1"}
    assert on == {"VLLM_CPU_KVCACHE_SPACE", "HF_HUB_OFFLINE", "VLLM_NO_USAGE_STATS"}


#: The checks that read answers, and that are red where none is right.
TEXT = {f"server-{name}" for name in ("completions", "chat", "stream", "reasoning", "calls")}


def test_every_completion_500_fails_although_health_is_200_and_shows_the_log(
    engine: FakeEngine, tmp_path: Path
) -> None:
    engine.behaviour.status = 500
    faults = red(observe(engine, tmp_path))
    assert faults.keys() == TEXT
    assert "HTTP 500" in faults["server-completions"]
    assert "EngineDeadError" in faults["server-completions"]
    assert "Illegal instruction" in faults["server-completions"]


@pytest.mark.parametrize(
    "models", [{"data": []}, {"data": [{"id": "other"}]}, {"error": "no"}, "nonsense"]
)
def test_a_wrong_list_of_models_fails(engine: FakeEngine, tmp_path: Path, models: object) -> None:
    engine.behaviour.models = models
    assert red(observe(engine, tmp_path)).keys() == {"server-models"}


def test_a_server_that_hangs_fails_in_time(engine: FakeEngine, tmp_path: Path) -> None:
    engine.behaviour.hang = 2
    patience = replace(QUICK, answer=0.2)
    began = time.monotonic()
    faults = red(server.observe(engine, image_info(), folder=tmp_path, patience=patience))
    assert time.monotonic() - began < 10
    assert "no response" in faults["server-completions"]


def test_a_server_that_is_right_once_and_garbage_afterwards_fails(
    engine: FakeEngine, tmp_path: Path
) -> None:
    engine.behaviour.good_for = 11
    faults = red(observe(engine, tmp_path))
    assert faults.keys() == TEXT
    assert "asked again: HTTP 200, '!!!!!' and not 'Tokyo .'" in faults["server-chat"]


def test_a_server_that_is_garbage_under_concurrency_fails(
    engine: FakeEngine, tmp_path: Path
) -> None:
    engine.behaviour.good_at_once = 1
    faults = red(observe(engine, tmp_path))
    assert faults.keys() == {"server-completions"}
    assert "asked with 7 others: HTTP 200, '!!!!!' and not" in faults["server-completions"]


def test_an_answer_that_never_ends_is_cut_off(engine: FakeEngine, tmp_path: Path) -> None:
    engine.behaviour.trickle = 0.02
    patience = replace(QUICK, answer=0.1)
    began = time.monotonic()
    faults = red(server.observe(engine, image_info(), folder=tmp_path, patience=patience))
    assert time.monotonic() - began < 10
    assert faults.keys() == TEXT
    assert "no end of the answer within 0.1 s" in faults["server-completions"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b" " * (client.MOST_BYTES + 1), "an answer of more than 1048576 bytes"),
        (b"[" * 100_000, "not JSON (RecursionError)"),
        (b"\xff\xfe", "not JSON"),
        (b"[1,2]", "JSON of another shape"),
        (b"{}", "JSON of another shape"),
        (b'{"choices": [{"text": NaN, "message": 3}]}', "'nan' and not"),
        (b'{"choices": [{"text": "\\ud800\\u001b[31m", "message": {}}]}', "not 'Paris .'"),
    ],
)
def test_an_answer_is_data_that_may_be_anything(
    engine: FakeEngine, tmp_path: Path, body: bytes, says: str
) -> None:
    engine.behaviour.body = body
    faults = red(observe(engine, tmp_path))
    assert faults.keys() == TEXT
    assert says in faults["server-completions"]


def test_a_server_that_takes_too_much_memory_fails(engine: FakeEngine, tmp_path: Path) -> None:
    engine.behaviour.out_of_memory = True
    said = red(observe(engine, tmp_path))["server-limits"]
    assert "a process of it was killed for taking more than" in said
    assert engine.started["limits"].memory in (server.MEMORY, server.MEMORY_EMULATED)


def test_a_server_that_takes_too_much_memory_at_the_start_is_reported_as_such(
    engine: FakeEngine, tmp_path: Path
) -> None:
    engine.behaviour.health, engine.behaviour.alive = 503, False
    engine.behaviour.out_of_memory = True
    assert red(observe(engine, tmp_path)).keys() == {"server-starts", "server-limits"}


def test_a_server_that_floods_its_log_fails_and_shows_little_of_it(
    engine: FakeEngine, tmp_path: Path
) -> None:
    engine.behaviour.log = "x" * (5 << 20)
    faults = red(observe(engine, tmp_path))
    assert faults.keys() == {"server-limits"}
    assert "it wrote 4 MiB of log or more" in faults["server-limits"]
    assert len(faults["server-limits"]) < 1000


@pytest.mark.parametrize(
    ("own", "extra"),
    [
        (None, "--dtype float32 --enforce-eager --compilation-config '{\"mode\": 0}'"),
        ('["--dtype", "nonsense"]', "--enforce-eager --compilation-config '{\"mode\": 0}'"),
        ('["--compilation_config.mode=3", "--no-enforce-eager"]', "--dtype float32"),
        ('["-cc.mode=3", "--no-enforce-eager"]', "--dtype float32"),
        ("no JSON", "--dtype float32 --enforce-eager --compilation-config '{\"mode\": 0}'"),
    ],
)
def test_the_image_s_own_options_stay_in_effect(
    engine: FakeEngine, tmp_path: Path, own: str | None, extra: str
) -> None:
    image = image_info(env={"IMAGEFACTORY_SERVE_ARGS": own} if own else {})
    server.observe(engine, image, folder=tmp_path, patience=QUICK)
    assert engine.started["env"]["VLLM_EXTRA_ARGS"] == extra
    assert "IMAGEFACTORY_SERVE_ARGS" not in engine.started["env"]


def test_the_server_is_reached_through_an_isolated_program_in_the_container(
    engine: FakeEngine, tmp_path: Path
) -> None:
    observe(engine, tmp_path)
    assert {tuple(argv[:4]) for argv in engine.container.attached} == {
        ("/opt/venv/bin/python", "-I", "-S", "-c")
    }


@pytest.mark.programs
def test_the_relay_waits_for_the_server_and_passes_bytes_on_both_ways() -> None:
    with socket.socket() as served:
        served.bind(("127.0.0.1", 0))
        port = str(served.getsockname()[1])
        argv = [sys.executable, "-I", "-S", "-c", client.RELAY, port, "5"]
        ours, theirs = socket.socketpair()
        with (
            ours,
            theirs,
            subprocess.Popen(argv, stdin=theirs.fileno(), stdout=theirs.fileno()) as relay,
        ):
            served.listen()
            peer, _ = served.accept()
            with peer:
                ours.sendall(b"question")
                assert peer.recv(100) == b"question"
                peer.sendall(b"answer")
                assert ours.recv(100) == b"answer"
            assert relay.wait(5) == 0


STREAMED = {f"server-{name}" for name in ("stream", "reasoning", "calls")}


@pytest.mark.parametrize(
    ("broken", "checks", "says"),
    [
        ({"done": ""}, STREAMED, "without [DONE]"),
        ({"streamed": "Tokyo"}, STREAMED, "stream 'which city is the capital of Japan ?', asked"),
        ({"reasoning": "reasoning_content"}, {"server-reasoning"}, "'<reasoning_content>  let me"),
        ({"reasoning": "thoughts"}, {"server-reasoning"}, "'Tokyo .' and not '<think> let me"),
        ({"arguments": "}"}, {"server-calls"}, '\'neighbour (not JSON) {"country": "Japan"}}\''),
        ({"finish": "length"}, TEXT, "finish_reason 'length' and not 'stop'"),
        ({"more": ("",)}, STREAMED, "the stream goes on after finish_reason 'stop'"),
        ({"usage": None}, TEXT, "no usage, which says how many tokens there are: None"),
        ({"usage": {"prompt_tokens": 0}}, TEXT, "no usage, which says how many tokens there are"),
        ({"usage": {"completion_tokens": True}}, TEXT, "no usage, which says how many tokens"),
        ({"usage": {"total_tokens": 99}}, TEXT, "a usage of 5 and 8 tokens, and of 99 in total"),
        (
            {"usage": {"completion_tokens": 9, "total_tokens": 14}},
            {*TEXT} - {"server-stream"},
            "a usage of 9 tokens, and logprobs of 8",
        ),
        (
            {"usage": {"completion_tokens": 1, "total_tokens": 6}},
            TEXT,
            "a usage of 1 tokens, and logprobs of 3",
        ),
        ({"logprob": float("nan")}, {"server-logprobs"}, "a logprob of nan"),
        ({"logprob": None}, {"server-logprobs"}, "a logprob of nan"),
        ({"logprob": -4.0}, {"server-logprobs"}, "a word had a chance of 0.02 only"),
        ({"refusal": 200}, {"server-refusals"}, "max_tokens of -1: HTTP 200"),
        ({"refusal": 500}, {"server-refusals"}, "a temperature that is no number: HTTP 500"),
        ({"good_after_refusal": False}, TEXT, "asked again: HTTP 200, '!!!!!' and not"),
        ({"lives_for": 0}, TEXT, "no response, 'RemoteDisconnected"),
        ({"lives_for": 4}, TEXT - {"server-completions", "server-chat"}, "no call was asked for"),
        ({"lives_for": 11}, {"server-completions"}, "asked with 7 others: no response"),
        ({"text": " "}, TEXT, "'' and not 'Paris .' (it is empty)"),
        ({"text": "!!!!!"}, TEXT, "'!!!!!' and not 'Paris .' (only '!', token 0"),
        ({"text": "of the of the of the of"}, TEXT, "(it repeats itself)"),
        ({"text": "Paris ."}, TEXT, "'Paris .' and not 'Rome .'"),
        ({"text": "Paris . !"}, TEXT, "'Paris . !' and not 'Paris .'"),
    ],
)
def test_an_answer_that_is_wrong_in_one_way_is_red_and_says_how(
    engine: FakeEngine, tmp_path: Path, broken: dict[str, Any], checks: set[str], says: str
) -> None:
    vars(engine.behaviour).update(broken)
    faults = red(observe(engine, tmp_path))
    assert faults.keys() - {"server-logprobs"} == checks - {"server-logprobs"}
    assert any(says in fault for fault in faults.values()), faults


def test_a_server_that_dies_at_start_fails_at_once_with_its_last_words(
    engine: FakeEngine, tmp_path: Path
) -> None:
    engine.behaviour.health = 503
    engine.behaviour.alive = False
    run = observe(engine, tmp_path)
    assert "the container ended" in run.fault
    assert "Illegal instruction" in red(run)["server-starts"]
    assert run.start_seconds < QUICK.start


def test_a_server_that_never_gets_healthy_is_given_up(engine: FakeEngine, tmp_path: Path) -> None:
    engine.behaviour.health = 503
    patience = replace(QUICK, start=0.2)
    run = server.observe(engine, image_info(), folder=tmp_path, patience=patience)
    assert "not healthy after" in run.fault
    assert red(run).keys() == {"server-starts"}


@pytest.mark.parametrize("code", [1, 137, 143])
def test_an_end_other_than_0_fails(engine: FakeEngine, tmp_path: Path, code: int) -> None:
    engine.behaviour.exit_code = code
    assert red(observe(engine, tmp_path)).keys() == {"server-stops"}


@pytest.mark.parametrize("alive", [True, False])
def test_the_container_is_always_removed(engine: FakeEngine, tmp_path: Path, alive: bool) -> None:
    engine.behaviour.alive = alive
    engine.behaviour.health = 200 if alive else 503
    observe(engine, tmp_path)
    assert engine.container.removed


def test_a_connection_is_closed_once_and_the_next_question_opens_another() -> None:
    events: list[str] = []

    @contextmanager
    def dial() -> Iterator[socket.socket]:
        events.append("opened")
        ours, theirs = socket.socketpair()
        with ours, theirs:
            yield ours
        events.append("closed")

    asking = client.Client(dial, model="m", seconds=1)
    asking.close()
    for number in (1, 2):
        assert asking._connection() is asking._connection()
        asking.close()
        asking.close()
        assert events == ["opened", "closed"] * number
