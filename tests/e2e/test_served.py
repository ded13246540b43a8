"""The cpu image as people run it: not as root, on a read-only root, measured, and stopped while busy.

One server for all, as its start takes all cores for half a minute; the last test ends it.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from support import ROOT
from support.e2e import factory

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

    @property
    def url(self) -> str:
        return "http://" + self.docker("port", self.name, str(server.PORT)).strip()

    def wait_until_healthy(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (health := self.state("Health.Status")) != "healthy":
            assert self.state("Running") == "true", self.running.logs(last=30)
            assert time.monotonic() < until, health
            time.sleep(1)


@pytest.fixture(scope="module")
def container(
    cpu_image: str, engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Container]:
    folder = tmp_path_factory.mktemp("served")
    model = server.MODEL.write(folder / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": CONTEXT}))
    for path in (folder, model):
        path.chmod(0o755)
    run = Container(engine)
    started = server.ENVIRONMENT | {"MODEL": "/model", "VLLM_EXTRA_ARGS": "--enforce-eager"}
    argv = (
        *("run", "--detach", "--name", run.name, "--publish", f"127.0.0.1::{server.PORT}"),
        *("--user", "1000:1000", "--read-only", "--tmpfs", "/tmp", "--memory", "4g"),
        *("--shm-size", "1g", "--volume", f"{model}:/model:ro"),
        *(word for item in started.items() for word in ("--env", "=".join(item))),
        *(cpu_image, "--served-model-name", server.MODEL_NAME, "--dtype", "float32"),
    )
    try:
        run.docker(*argv)
        run.wait_until_healthy(900)
        yield run
    finally:
        run.running.remove()


def _engine_dir() -> str:
    script = [str(ROOT / "scripts" / "engine"), "status"]
    out = subprocess.run(script, capture_output=True, text=True, check=False).stdout
    return out.rpartition("state ")[2].partition(" (")[0].strip() if "private" in out else ""


def hits(url: str) -> float:
    lines = requests.get(f"{url}/metrics", timeout=5).text.splitlines()
    (found,) = [line for line in lines if line.startswith("vllm:prefix_cache_hits_total{")]
    return float(found.split()[-1])


def test_a_real_server_is_measured_by_its_own_counts_and_never_from_its_prefix_cache(
    container: Container, cpu_image: str, engine: Engine, tmp_path: Path
) -> None:
    served = container.url
    state = {"XDG_STATE_HOME": str(tmp_path), "IMAGEFACTORY_ENGINE_DIR": _engine_dir()}
    # vLLM keeps prefixes in blocks of 128 tokens here
    load = ["--concurrency", "1,2", "--repeats", "3"]
    load += ["--prompt-tokens", "200", "--output-tokens", "8"]
    done = factory("bench", served, *load, "--json", environ=state)
    assert done.code == 0, done.err
    found = done.json
    assert (found["model_id"], found["image"]) == (server.MODEL_NAME, cpu_image)
    assert found["digest"] == engine.inspect_image(cpu_image).digest
    assert [(one["completed"], one["failed"]) for one in found["levels"]] == [(3, 0), (6, 0)]
    for level in found["levels"]:
        assert set(level["output_lens"]) == {8}
        assert all(180 <= length <= 220 for length in level["input_lens"])
        assert 0 < level["p10_ttft_ms"] <= level["median_ttft_ms"] <= level["median_e2el_ms"]
        assert level["median_output_throughput"] > 0
    assert found["prefix_cache_hits"] == 0
    body = {"model": server.MODEL_NAME, "prompt": "the capital " * 100, "max_tokens": 1}
    for _ in range(2):
        requests.post(f"{served}/v1/completions", json=body, timeout=60).raise_for_status()
    assert hits(served) > 0, "a prompt that repeats is seen in the figure that was 0"

    same = factory("bench", "diff", cpu_image, found["file"], "--json", environ=state)
    assert {row["verdict"] for row in same.json} <= {"same", "too few samples"}
    long = factory("bench", served, "--prompt-tokens", "5000", environ=state)
    assert (long.code, "maximum context length is 2048" in long.err) == (1, True)
    lost = ("--concurrency", "1", "--repeats", "1", "--needle", "0.5", "--context", "100")
    needle = factory("bench", served, *load, *lost, "--json", environ=state)
    assert needle.code == 1, "the tiny model finds no needle"
    assert json.loads(needle.out)["needles"][0]["found"] is False


def test_what_is_asked_before_sigterm_is_answered_and_then_the_server_ends(
    container: Container,
) -> None:
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
