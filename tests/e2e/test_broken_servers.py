"""Servers that lie, in real containers: each gets the right verdict in time and leaves nothing.

One image with a liar in the place of vLLM; the lie is in a variable of its container.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from support import liar as program
from support.e2e import derive
from support.verify_fake_server import CHATS, COMPLETED
from support.verify_fakes import CPU, Good

from imagefactory.errors import CheckFailedError
from imagefactory.settings import Settings, from_environment
from imagefactory.system import temporary
from imagefactory.system.engine import Engine, ImageInfo
from imagefactory.verifying import leftovers, server
from imagefactory.verifying.receipt import Outcome

pytestmark = pytest.mark.e2e

MIB = 1 << 20
MEMORY = 128 * MIB
PATIENCE = server.Patience(start=60, answer=20, stop=20, poll=0.1)
#: Seconds that a verdict may take beyond what it has to wait for, on a busy machine.
SLACK = 60
TEXT = {"server-completions", "server-chat", "server-stream", "server-reasoning", "server-calls"}
GARBAGE = {"text": "!!!!!"}


@pytest.fixture(scope="module")
def liar(cpu_image: str, engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> ImageInfo:
    folder = tmp_path_factory.mktemp("liar")
    shutil.copy(program.__file__, folder / "liar.py")
    asked = {"completed": COMPLETED, "chats": CHATS}
    questions = {kind: [asdict(one) for one in some] for kind, some in asked.items()}
    (folder / "questions.json").write_text(json.dumps(questions))
    tag = f"imagefactory/test:liar-{secrets.token_hex(4)}"
    argv = json.dumps(["/opt/venv/bin/python", "-I", "-S", "/liar/liar.py"])
    derive(engine, folder, cpu_image, tag, f"COPY . /liar/\nENTRYPOINT {argv}\n")
    return engine.inspect_image(tag)


def red(run: server.ServerRun) -> dict[str, str]:
    """The checks of the server that fail for this run, with what they say."""
    image = Good(torch=CPU)
    image.server = run
    return {
        name: result.detail
        for name, result in image.results().items()
        if result.outcome is Outcome.FAIL and name.startswith("server-")
    }


@pytest.mark.parametrize(
    ("lie", "patience", "checks", "says"),
    [
        ({}, {}, set(), ""),
        ({"silent": True}, {"start": 4}, {"server-starts"}, "not healthy after"),
        ({"dies": 3}, {}, {"server-starts"}, "the container ended"),
        ({"behaviour": {"health": 503}}, {"start": 4}, {"server-starts"}, "not healthy after"),
        ({"behaviour": {"status": 500}}, {}, TEXT, "HTTP 500"),
        ({"behaviour": {"hang": 60}}, {"answer": 2}, TEXT, "no end of the answer within 2 s"),
        (
            {"behaviour": {"lives_for": 1, "exits": 3}},
            {},
            {*TEXT, "server-stops"},
            "exit 3 after SIGTERM",
        ),
        (
            {"eats": 2 * MEMORY, "itself": True},
            {},
            {"server-starts", "server-limits"},
            "taking more than",
        ),
        ({"eats": 2 * MEMORY}, {}, {"server-limits"}, "taking more than"),
        ({"behaviour": GARBAGE}, {}, TEXT, "!!!!!"),
        ({"behaviour": {"good_for": 20}}, {}, TEXT, "!!!!!"),
        (
            {"behaviour": {"good_at_once": 1, "takes": 0.1}},
            {},
            {"server-completions"},
            "asked with 7 others",
        ),
        ({"floods": 5000}, {}, {"server-limits"}, "4 MiB of log or more"),
        ({"deaf": True}, {"stop": 2}, {"server-stops"}, "killed, it did not end in time"),
    ],
    ids=[
        *("honest", "never-up", "dies", "unhealthy", "500", "hangs", "exits-after-health"),
        *("eats-memory", "a-child-eats-memory", "garbage-at-first", "garbage-later"),
        *("garbage-at-once", "floods-its-log", "deaf-to-sigterm"),
    ],
)
def test_a_lie_is_found_in_time_with_the_log_and_no_container_is_left(
    lie: dict[str, Any],
    patience: dict[str, Any],
    checks: set[str],
    says: str,
    liar: ImageInfo,
    engine: Engine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "MEMORY", MEMORY)
    monkeypatch.setattr(server, "ENVIRONMENT", {**server.ENVIRONMENT, "LIE": json.dumps(lie)})
    waits = replace(PATIENCE, **patience)
    began = time.monotonic()
    run = server.observe(engine, liar, folder=tmp_path / "model", patience=waits)
    took = time.monotonic() - began
    found = red(run)
    assert found.keys() - {"server-logprobs", "server-refusals"} == checks, found
    said = " ".join(found.values())
    assert says in said
    assert not checks or "\nINFO " in said, "the last lines of the log"
    assert took < patience.get("start", 0) + len(run.answers) * 0.2 + SLACK
    assert liar.digest not in engine.used_images()


@pytest.mark.parametrize(
    ("dockerfile", "says"),
    [
        ("COPY program /program\n", "does not start"),
        ('COPY program /program\nENTRYPOINT ["/program"]\n', "exec format error"),
    ],
    ids=["wrong-image", "wrong-platform"],
)
def test_an_image_without_a_server_that_runs_here_is_red_and_not_an_error_of_ours(
    dockerfile: str, says: str, engine: Engine, tmp_path: Path
) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF\x02\x02\x01".ljust(16, b"\0") + b"\0\2\0\x16".ljust(48, b"\0"))
    program.chmod(0o755)  # the header of a program for s390x
    tag = f"imagefactory/test:wrong-{secrets.token_hex(4)}"
    derive(engine, tmp_path, "scratch", tag, dockerfile)
    image = engine.inspect_image(tag)
    try:
        run = server.observe(engine, image, folder=tmp_path / "model", patience=PATIENCE)
        said = red(run)["server-starts"]
    except CheckFailedError as error:
        said = str(error.problems[0].what)
    assert says in said
    assert image.digest not in engine.used_images()


KILLED = """
import sys
from pathlib import Path
from imagefactory.settings import from_environment
from imagefactory.system.engine import Engine
from imagefactory.verifying import server, verifying
import os
settings = from_environment(os.environ)
server.ENVIRONMENT = {**server.ENVIRONMENT, "LIE": '{"silent": true}'}
engine = Engine.connect(os.environ, settings.state)
verifying._serve(engine, engine.inspect_image(sys.argv[1]), settings, server.Patience(), gpus=False)
"""


def test_the_next_run_removes_the_container_and_the_model_of_one_that_was_killed(
    liar: ImageInfo, engine: Engine
) -> None:
    settings: Settings = from_environment(os.environ)
    argv = [sys.executable, "-c", KILLED, liar.digest]
    with subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.DEVNULL) as running:
        while liar.digest not in engine.used_images():
            assert running.poll() is None
            time.sleep(0.1)
        running.send_signal(signal.SIGKILL)
    assert liar.digest in engine.used_images()
    assert temporary.orphans(settings.cache)
    leftovers.sweep(engine, settings.cache)
    assert liar.digest not in engine.used_images()
    assert temporary.orphans(settings.cache) == []
