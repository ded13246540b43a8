"""What the entrypoint gives the command that it runs, and its health check."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from support.entrypoint import MODEL, PROGRAM, argv, program, run


@contextmanager
def answering(status: int) -> Iterator[int]:
    """A server that answers everything with ``status``; its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request, daemon=True)
        thread.start()
        yield server.server_address[1]
        thread.join(10)


@pytest.mark.programs
def test_vllm_gets_no_variable_that_it_would_warn_of(tmp_path: Path) -> None:
    program(tmp_path, "vllm", "import os\nprint([x for x in os.environ if x.startswith('VLLM_')])")
    path = f"{tmp_path}:{os.environ['PATH']}"
    known = {"VLLM_LOGGING_LEVEL": "INFO"}
    done = run(env={"PATH": path, "VLLM_EXTRA_ARGS": "--x", **known, **MODEL})
    assert done.stdout == "['VLLM_LOGGING_LEVEL']\n"


def test_a_user_without_a_home_gets_one_for_what_is_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PROGRAM.os, "access", lambda path, _: path == str(tmp_path))
    monkeypatch.setattr(PROGRAM.os, "makedirs", lambda *_, **__: None)
    found = PROGRAM.environment(
        ["bash"], {"HOME": "/", "TRITON_CACHE_DIR": "/root/.cache/triton", "OTHER": "/root"}
    )
    folder = f"/tmp/home-{os.getuid()}"
    assert found["HOME"] == folder
    assert found["USER"]
    assert found["TRITON_CACHE_DIR"] == f"{folder}/.cache/triton"
    assert found["OTHER"] == "/root"
    assert PROGRAM.home({"HOME": str(tmp_path)}) == {}


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ([], "http://127.0.0.1:8888/health"),
        (["--port=9"], "http://127.0.0.1:9/health"),
        (["--port", "9", "--host", "10.0.0.1"], "http://10.0.0.1:9/health"),
        (["--host", "::1"], "http://[::1]:8888/health"),
        (["--host", "::"], "http://127.0.0.1:8888/health"),
        (["--ssl-keyfile", "k"], "https://127.0.0.1:8888/health"),
        (["--uds", "/run/vllm.sock"], "/run/vllm.sock"),
    ],
)
def test_the_health_of_a_server_is_asked_where_it_listens(given: list[str], address: str) -> None:
    found = PROGRAM.environment(argv(["serve", "m", *given]), {"HOME": "/tmp"})
    assert found[PROGRAM.HEALTH] == address


@pytest.mark.parametrize("words", [["bench", "serve"], ["chat"], ["--version"], []])
def test_a_command_that_is_no_server_has_no_health(words: list[str]) -> None:
    assert PROGRAM.HEALTH not in PROGRAM.environment(["vllm", *words], {"HOME": "/tmp"})


def health(folder: Path, monkeypatch: pytest.MonkeyPatch, environ: bytes) -> int:
    (folder / "7").mkdir(parents=True)
    (folder / "7" / "environ").write_bytes(environ)
    monkeypatch.setattr(PROGRAM, "PROCESSES", str(folder))
    with pytest.raises(SystemExit) as ended:
        PROGRAM.healthcheck()
    return 0 if ended.value.code == 0 else 1


def test_a_server_is_healthy_once_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(status: int) -> int:
        with answering(status) as port:
            variable = f"A=1\0{PROGRAM.HEALTH}=http://127.0.0.1:{port}/health\0B=2".encode()
            return health(tmp_path / str(status), monkeypatch, variable)

    assert asked(200) == 0
    assert asked(500) == 1
    nobody = f"{PROGRAM.HEALTH}=http://127.0.0.1:9/health".encode()
    assert health(tmp_path / "nobody", monkeypatch, nobody) == 1
    assert health(tmp_path / "no-server", monkeypatch, b"A=1") == 0
