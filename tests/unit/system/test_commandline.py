"""How commands are shown: short for people, in full in the log, secrets nowhere."""

from __future__ import annotations

import errno
import re
import stat
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from imagefactory.errors import SetupError
from imagefactory.system import commandline, shell
from imagefactory.system.commandline import CommandLog, masked, short, show

CELL = "gb10-vllm0-22-1-torch2-11-0-cu130-fi0-6-12-py313-arm64"
BAKE = [
    "/opt/engine/bin/podman",
    "--config",
    "/root/.local/state/imagefactory/engine/config",
    "--host",
    "unix:///run/imagefactory/78cfe733/engine.sock",
    "build",
    "bake",
    "--file",
    "/root/.cache/imagefactory/build/bake.json",
    "--progress=rawjson",
    CELL,
]


def test_a_long_command_is_shown_as_its_program_its_subcommand_and_its_last_argument() -> None:
    assert short(BAKE) == "podman build bake … gb10-vllm0-22-1-torch…fi0-6-12-py313-arm64"
    assert short(["podman", "push", "localhost:5000/x"]) == "podman push localhost:5000/x"
    code = "import os\n" + "print(os.environ)\n" * 9
    assert "\n" not in short(["podman", "run", "--rm", "image", "python3", "-c", code])
    assert short(["/usr/bin/git"]) == "git"
    long = ["/usr/bin/uv", "pip", "compile", *["--no-header"] * 9, "/tmp/x/y/pins.in"]
    assert short(long) == "uv pip compile … pins.in"


@pytest.mark.parametrize("argv", [BAKE, ["podman", "run", "x" * 500], ["a" * 300], ["é" * 90, "-"]])
def test_a_shown_command_fits_a_line(argv: list[str]) -> None:
    assert len(short(argv)) <= 76


def test_a_command_in_full_can_be_pasted() -> None:
    assert show(["podman", "run", "a b", "$x"]) == "podman run 'a b' '$x'"


@pytest.mark.parametrize(
    ("argv", "hidden"),
    [
        (["curl", "https://me:s3cret@host/x"], "curl 'https://me:***@host/x'"),
        (["git", "fetch", "https://s3cret@host/x"], "git fetch 'https://***@host/x'"),
        (["uv", "--index", "git+https://u:s3cret@h"], "uv --index 'git+https://u:***@h'"),
        (["podman", "login", "--password", "s3cret"], "podman login --password '***'"),
        (["podman", "login", "--password=s3cret"], "podman login '--password=***'"),
        (["podman", "run", "-e", "HF_TOKEN=s3cret"], "podman run -e 'HF_TOKEN=***'"),
        (["x", "--api-key", "s3cret"], "x --api-key '***'"),
        (["x", "AWS_SECRET_ACCESS_KEY=s3cret"], "x 'AWS_SECRET_ACCESS_KEY=***'"),
    ],
)
def test_secrets_are_masked_wherever_a_command_is_written(
    tmp_path: Path, argv: list[str], hidden: str
) -> None:
    assert show(argv) == hidden
    log = CommandLog()
    log.open(tmp_path / "commands.log")
    log.write(argv)
    assert "s3cret" not in short(argv) + (tmp_path / "commands.log").read_text()


@pytest.mark.parametrize(
    "word",
    [
        "ssh://git@host/x",
        "--max-tokens=5",
        "type=secret,id=ca,src=/etc/ca.pem",
        "docker.io/library/debian:trixie@sha256:00",
        "git@github.com:a/b",
    ],
)
def test_what_is_no_secret_is_not_masked(word: str) -> None:
    assert masked(["x", "--secret", "id=ca,src=/etc/ca.pem", word])[2:] == [
        "id=ca,src=/etc/ca.pem",
        word,
    ]


@pytest.mark.programs
def test_every_command_is_logged_in_full_with_its_time_and_how_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = CommandLog()
    file = tmp_path / "logs" / "commands.log"
    log.open(file)
    monkeypatch.setattr(shell, "LOG", log)
    argv = [sys.executable, "-c", "import sys; sys.exit(7)", *(["x" * 30] * 9)]
    shell.run(argv, quiet=True)
    shell.run(argv)
    first, last = file.read_text().splitlines()[:2]
    assert re.match(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00 \[\d+\] \$ ", first)
    assert first.endswith(show(argv))
    assert re.search(r"\[\d+\] exit 7 after \d\.\d s: python", last)
    assert len(file.read_text().splitlines()) == 4
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    shown = capsys.readouterr().err
    assert shown.startswith("$ python")
    assert len(shown.splitlines()) == 1
    assert len(shown) < 80


@pytest.mark.programs
def test_a_failing_command_is_shown_in_full_in_its_error(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "raise SystemExit(1)", str(tmp_path / ("x" * 90))]
    with pytest.raises(SetupError) as caught, shell.pipe(argv):
        pass
    assert show(argv) in caught.value.problems[0].what


def test_the_log_has_a_bounded_size_and_whole_lines_of_parallel_writers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commandline, "LOG_BYTES", 20_000)
    file = tmp_path / "commands.log"
    logs = [CommandLog(), CommandLog()]
    for log in logs:
        log.open(file)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: logs[n % 2].write(["podman", str(n), "\n" * 90]), range(200)))
    assert {one.name for one in tmp_path.iterdir()} == {"commands.log", "commands.log.1"}
    assert sum(one.stat().st_size for one in tmp_path.iterdir()) < 3 * 20_000
    kept = [line for one in tmp_path.iterdir() for line in one.read_text().splitlines()]
    assert all(re.fullmatch(r"\S+ \[\d+\] \$ podman \d+ '(\\n){90}'", line) for line in kept)
    assert kept


def test_a_log_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    log = CommandLog()
    log.write(["podman"])
    log.open(tmp_path / "file" / "commands.log")
    log.write(["podman"])
    log.write(["podman"], "exit 0")


def test_a_log_that_cannot_be_written_stops_no_thread_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = CommandLog()
    log.open(tmp_path / "commands.log")

    def fails(file: Path | None, _line: bytes) -> None:
        assert file is not None
        time.sleep(0.02)  # until the other one waits for its turn
        raise OSError(errno.EROFS, "read-only")

    monkeypatch.setattr(CommandLog, "_append", staticmethod(fails))
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(log.write, [["podman"], ["docker"]]))
