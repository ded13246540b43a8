"""``bench RECIPE`` with real containers: what serves is gone afterwards, however that ends.

The image is the cpu one with a server of a few lines, which starts at once.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.e2e import derive, factory

from imagefactory.system import owner
from imagefactory.system.engine import Engine

pytestmark = pytest.mark.e2e
TAG = "imagefactory/test:bench-recipe"
SERVER = """\
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send({"data": [{"id": "mine"}]} if "metrics" not in self.path else {})
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        rows = [{"choices": [{"index": 0, "text": "a"}]}] * asked["max_tokens"]
        used = {"prompt_tokens": len(asked["prompt"].split()), "completion_tokens": len(rows)}
        rows = [*map(json.dumps, [*rows, {"choices": [], "usage": used}]), "[DONE]"]
        self.send("".join(f"data: {row}\\n\\n" for row in rows))
    def send(self, what):
        content = (what if isinstance(what, str) else json.dumps(what)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
ThreadingHTTPServer(("0.0.0.0", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""
RECIPE = 'summary: s\nmodel: org/mine\nweights: bf16\nhardware: [cpu]\nvllm: ">=0.16"\n'
SMALL = ("--concurrency", "1", "--repeats", "3", "--prompt-tokens", "20", "--output-tokens", "4")


@pytest.fixture(scope="module")
def image(
    engine: Engine, cpu_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("image")
    (folder / "server.py").write_text(SERVER)
    starts = 'COPY server.py /\nENTRYPOINT ["/opt/venv/bin/python", "/server.py"]\n'
    yield derive(engine, folder, cpu_image, TAG, starts)
    engine.untag(TAG)


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    (tmp_path / "mine.yaml").write_text(RECIPE)
    return str(tmp_path / "mine.yaml")


def test_a_recipe_is_measured_and_no_container_is_left_even_by_a_kill(
    engine: Engine, image: str, recipe: str
) -> None:
    digest = engine.inspect_image(image).digest

    def left() -> list[str]:
        return [one.id for one in engine.services(owner.LABEL) if one.image == digest]

    words = ("bench", recipe, "--image", image, *SMALL)
    for end in (signal.SIGTERM, signal.SIGKILL):
        # more rounds than anybody waits for
        started = subprocess.Popen(
            [sys.executable, "-m", "imagefactory", *words, "--repeats", "1000"],
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 60
        while not left():
            assert time.monotonic() < deadline
            time.sleep(0.2)
        started.send_signal(end)
        started.wait()
        assert bool(left()) == (end is signal.SIGKILL)
    done = factory(*words, "--json")
    assert done.code == 0, done.err
    assert (done.json["image"], done.json["digest"]) == (image, digest)
    assert [one["completed"] for one in done.json["levels"]] == [3]
    assert left() == [], "what was killed was swept"
