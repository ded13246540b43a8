"""Scripts on other machines: how ssh is called, and what its failures mean."""

from __future__ import annotations

from typing import Any

import pytest

from imagefactory.errors import SetupError, fail
from imagefactory.system import shell, ssh
from imagefactory.system.shell import Completed


def answer(
    monkeypatch: pytest.MonkeyPatch, code: int = 0, out: str = "", err: str = ""
) -> list[tuple[list[str], dict[str, Any]]]:
    calls: list[tuple[list[str], dict[str, Any]]] = []

    def run(argv: list[str], **options: Any) -> Completed:
        calls.append((argv, options))
        return Completed(argv=tuple(argv), code=code, out=out, err=err)

    monkeypatch.setattr(shell, "run", run)
    return calls


@pytest.mark.parametrize(
    ("host", "end"),
    [
        ("spark1", ["--", "spark1", "sh -s"]),
        ("me@spark1:2222", ["-p", "2222", "--", "me@spark1", "sh -s"]),
        ("fe80::1", ["--", "fe80::1", "sh -s"]),
        ("ssh://spark1:2222", ["--", "ssh://spark1:2222", "sh -s"]),
    ],
)
def test_a_script_is_the_input_of_a_shell_and_nobody_is_asked_for_a_password(
    monkeypatch: pytest.MonkeyPatch, host: str, end: list[str]
) -> None:
    calls = answer(monkeypatch, code=1, out="yes\n")
    assert ssh.run(host, "echo yes; exit 1", timeout=5) == "yes\n"
    ((argv, options),) = calls
    assert argv[-len(end) :] == end
    assert "BatchMode=yes" in argv
    assert (options["stdin"], options["timeout"]) == ("echo yes; exit 1", 5)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("spark1", "ssh://spark1"),
        ("me@spark1:2222", "ssh://me@spark1:2222"),
        ("ssh://spark1:2222", "ssh://spark1:2222"),
        ("fd00::5", "ssh://[fd00::5]"),
        ("me@::1", "ssh://me@[::1]"),
    ],
)
def test_dockers_client_would_take_the_end_of_an_ipv6_address_for_a_port(
    host: str, url: str
) -> None:
    assert ssh.url(host) == url


def test_a_machine_that_ssh_cannot_reach_is_named_with_sshs_own_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer(monkeypatch, code=255, err="banner\nssh: connect to host x port 22: No route to host\n")
    with pytest.raises(SetupError) as caught:
        ssh.run("me@x:22", "true", timeout=5)
    (problem,) = caught.value.problems
    assert problem.what == "me@x:22: ssh: connect to host x port 22: No route to host"
    assert problem.fix == "try by hand: ssh -o BatchMode=yes -p 22 me@x docker version"


def test_a_silent_machine_is_given_up_sooner_than_dockers_client_would(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = answer(monkeypatch)
    ssh.reach("x")
    ((argv, options),) = calls
    assert "ConnectTimeout=10" in argv
    assert options["timeout"] == 20
    answer(monkeypatch, code=255, err="ssh: connect to host x port 22: Connection timed out\n")
    with pytest.raises(SetupError, match="x: ssh: connect to host x port 22: Connection timed out"):
        ssh.reach("x")


def test_a_machine_that_falls_silent_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object, **__: object) -> Completed:
        raise fail(SetupError, code, "late")

    monkeypatch.setattr(shell, "run", run)
    code = "command-timeout"
    with pytest.raises(SetupError, match="x: no answer within 5 s"):
        ssh.run("x", "true", timeout=5)
    code = "program-missing"
    with pytest.raises(SetupError, match="program-missing"):
        ssh.run("x", "true", timeout=5)
