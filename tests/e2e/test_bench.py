"""A real server, measured; it takes a minute to start."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from support import ROOT
from support.e2e import factory

from imagefactory.launching import docker
from imagefactory.launching.launching import Launch, Mount, Port
from imagefactory.system.engine import Engine
from imagefactory.verifying import server

pytestmark = pytest.mark.e2e

ENVIRONMENT = {
    **server.ENVIRONMENT,
    "VLLM_EXTRA_ARGS": " ".join(
        word for part in server.FAST.items() for word in (part[0], *part[1])
    ),
}


@pytest.fixture(scope="module")
def served(
    engine: Engine, cpu_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The address of a server of the cpu image with the tiny model."""
    folder = server.MODEL.write(tmp_path_factory.mktemp("model"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    launch = Launch(
        name=f"imagefactory-test-bench-{port}",
        image=cpu_image,
        command=tuple(server.ARGUMENTS),
        environment=ENVIRONMENT,
        mounts=(Mount(source=str(folder), target=server.MODEL_FOLDER, read_only=True),),
        ports=(Port(host=port, container=server.PORT),),
        gpus=False,
        shm_bytes=1 << 30,
    )
    container = engine.start_service(docker.arguments(launch))
    try:
        end = time.monotonic() + 300
        while not _healthy(url):
            assert time.monotonic() < end, f"docker logs {container}"
            time.sleep(1)
        yield url
    finally:
        engine.remove_container(container)


def _healthy(url: str) -> bool:
    try:
        return requests.get(f"{url}/health", timeout=5).ok
    except requests.RequestException:
        return False


def _engine_dir() -> str:
    script = [str(ROOT / "scripts" / "engine"), "status"]
    out = subprocess.run(script, capture_output=True, text=True, check=False).stdout
    return out.rpartition("state ")[2].partition(" (")[0].strip() if "private" in out else ""


def hits(url: str) -> float:
    lines = requests.get(f"{url}/metrics", timeout=5).text.splitlines()
    (found,) = [line for line in lines if line.startswith("vllm:prefix_cache_hits_total{")]
    return float(found.split()[-1])


def test_a_real_server_is_measured_by_its_own_counts_and_never_from_its_prefix_cache(
    served: str, cpu_image: str, engine: Engine, tmp_path: Path
) -> None:
    state = {"XDG_STATE_HOME": str(tmp_path), "IMAGEFACTORY_ENGINE_DIR": _engine_dir()}
    # vLLM keeps prefixes in blocks of 128 tokens here
    load = (
        "--concurrency",
        "1,2",
        "--repeats",
        "3",
        "--prompt-tokens",
        "200",
        "--output-tokens",
        "8",
    )
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
    long = factory("bench", served, "--prompt-tokens", "1000", environ=state)
    assert (long.code, "maximum context length is 256" in long.err) == (1, True)
    lost = ("--concurrency", "1", "--repeats", "1", "--needle", "0.5", "--context", "100")
    needle = factory("bench", served, *load, *lost, "--json", environ=state)
    assert needle.code == 1, "the tiny model finds no needle"
    assert json.loads(needle.out)["needles"][0]["found"] is False
