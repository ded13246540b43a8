"""The gateway to other programs: what they write is bounded, and none outlives its caller."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from imagefactory.errors import SetupError
from imagefactory.system import processes, shell

pytestmark = pytest.mark.programs


def until_gone(pid: int, seconds: float = 5.0) -> bool:
    """Whether the process ends in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def test_both_streams_and_the_input_are_passed_on() -> None:
    done = shell.run(["sh", "-c", "cat; echo err >&2; exit 3"], stdin="a\r\nb\n" * 50_000)
    assert (done.code, done.out, done.err) == (3, "a\nb\n" * 50_000, "err\n")
    joined = shell.run(["sh", "-c", "echo 1; echo 2 >&2; echo 3"], join=True)
    assert (joined.out, joined.err) == ("1\n2\n3\n", "")


def test_a_program_that_does_not_read_its_input_is_no_error() -> None:
    assert shell.run(["true"], stdin="x" * 1_000_000).ok


def test_a_program_without_input_does_not_read_the_terminal_s() -> None:
    assert shell.run(["cat"]).out == ""


@pytest.mark.parametrize("program", ["no-such-program", "/no/such/program"])
def test_a_program_that_is_missing_is_a_clear_error(program: str) -> None:
    with pytest.raises(SetupError) as caught:
        shell.run([program, "x"])
    assert caught.value.problems[0].code == "program-missing"


def test_a_program_that_floods_a_stream_is_ended() -> None:
    for stream in ("1", "2"):
        done = shell.run(["sh", "-c", f"yes >&{stream}"], most=100_000)
        assert done.cut
        assert (len(done.out), len(done.err)) == ((100_000, 0) if stream == "1" else (0, 100_000))


def test_a_program_that_is_too_slow_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    # the child of the shell keeps the pipe open
    argv = ["sh", "-c", f"sleep 60 & echo $! > {pid}; wait"]
    began = time.monotonic()
    with pytest.raises(SetupError) as caught:
        shell.run(argv, timeout=0.3)
    assert caught.value.problems[0].code == "command-timeout"
    assert time.monotonic() - began < 5
    assert until_gone(int(pid.read_text()))


def test_bytes_that_trickle_do_not_extend_the_time() -> None:
    with pytest.raises(SetupError):
        shell.run(["sh", "-c", "while true; do echo; sleep 0.05; done"], timeout=0.3)


def test_a_signal_that_ends_a_program_is_its_exit_code() -> None:
    assert shell.run(["sh", "-c", "kill -9 $$"]).code == -9
    assert processes.signal_name(9) == "SIGKILL"
    assert processes.signal_name(99) == "signal 99"


def test_programs_have_a_process_group_of_their_own() -> None:
    group = int(shell.run(["sh", "-c", "ps -o pgid= -p $$ || cut -d' ' -f5 /proc/$$/stat"]).out)
    assert group != os.getpgid(0)


def test_a_stream_gives_lines_and_ends_with_its_block() -> None:
    with shell.stream(["sh", "-c", "echo one; echo two >&2; exec sleep 60"]) as process:
        assert process.stdout is not None
        assert [next(process.stdout), next(process.stdout)] == ["one\n", "two\n"]
    assert process.returncode is not None


FACTORY = """
import sys, threading
from imagefactory.system import shell
def work(): shell.run(["sh", "-c", "echo $$ > $0; exec sleep 60", sys.argv[1]], quiet=True)
threading.Thread(target=work).start()
"""


@pytest.mark.skipif(not processes._leash(), reason="no setpriv on this machine")
def test_a_program_ends_with_a_factory_that_is_killed(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    argv = [sys.executable, "-c", FACTORY, str(pid)]
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as factory:
        end = time.monotonic() + 20
        while not (pid.exists() and pid.read_text()) and time.monotonic() < end:
            time.sleep(0.01)
        child = int(pid.read_text())
        factory.send_signal(signal.SIGKILL)
        factory.wait()
    assert until_gone(child)


def test_a_program_outlives_other_threads(tmp_path: Path) -> None:
    def short() -> None:
        shell.run(["true"], quiet=True)

    thread = threading.Thread(target=short)
    with shell.stream(["sleep", "60"]) as process:
        thread.start()
        thread.join()
        assert process.poll() is None
