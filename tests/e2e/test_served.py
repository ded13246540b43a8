"""The cpu image as people run it: not as root, on a read-only root, and stopped while it answers."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagefactory.system.engine import Engine, RunningContainer
from imagefactory.verifying import server

pytestmark = pytest.mark.e2e

#: Long enough to be answered for seconds; the model has no end of its own.
TOKENS = 2000
CONTEXT = 2048
#: Asks for a stream from within the container, and writes each of its events on a line.
ASK = """\
import json, sys, urllib.request
body = {"model": "capitals", "prompt": "the capital of France is", "stream": True,
        "stream_options": {"include_usage": True}, "max_tokens": int(sys.argv[1]),
        "ignore_eos": True}
request = urllib.request.Request("http://127.0.0.1:8888/v1/completions",
    json.dumps(body).encode(), {"Content-Type": "application/json"})
for line in urllib.request.urlopen(request):
    if line.startswith(b"data: "):
        print(line[6:].decode().strip(), flush=True)
"""


class Container:
    """A container with options that no verification needs."""

    def __init__(self, engine: Engine) -> None:
        self.name = f"imagefactory-test-{secrets.token_hex(4)}"
        self.docker = engine._docker.must
        self.running = RunningContainer(engine._docker, id=self.name)

    def state(self, of: str) -> str:
        return self.docker("inspect", "--format", f"{{{{.State.{of}}}}}", self.name).strip()

    def wait_until_healthy(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (health := self.state("Health.Status")) != "healthy":
            assert self.state("Running") == "true", self.running.logs(last=30)
            assert time.monotonic() < until, health
            time.sleep(1)


@pytest.fixture
def container(cpu_image: str, engine: Engine, tmp_path: Path) -> Iterator[Container]:
    model = server.MODEL.write(tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": CONTEXT}))
    for path in (tmp_path, model):
        path.chmod(0o755)
    run = Container(engine)
    started = server.ENVIRONMENT | {"MODEL": "/model", "VLLM_EXTRA_ARGS": "--enforce-eager"}
    argv = (
        *("run", "--detach", "--name", run.name, "--network", "none", "--shm-size", "1g"),
        *("--user", "1000:1000", "--read-only", "--tmpfs", "/tmp", "--memory", "4g"),
        *("--volume", f"{model}:/model:ro"),
        *(word for item in started.items() for word in ("--env", "=".join(item))),
        *(cpu_image, "--served-model-name", "capitals", "--dtype", "float32"),
    )
    try:
        run.docker(*argv)
        yield run
    finally:
        run.running.remove()


def test_a_user_without_a_home_serves_and_what_is_asked_before_sigterm_is_answered(
    container: Container,
) -> None:
    container.wait_until_healthy(900)
    assert container.docker("exec", container.name, "id", "-u").strip() == "1000"
    ask = ("python", "-c", ASK, str(TOKENS))
    with container.running.attach(ask) as connection, connection.makefile() as events:
        first = next(events)
        container.docker("kill", "--signal", "TERM", container.name)
        rest = events.read().splitlines()
    assert "[DONE]" not in first
    assert rest[-1] == "[DONE]"
    assert json.loads(rest[-2])["usage"]["completion_tokens"] == TOKENS
    assert container.docker("wait", container.name).strip() == "0"
    log = container.running.logs()
    assert "Unknown vLLM environment variable" not in log
    assert "draining in-flight requests" in log
