"""Docker on another machine: how it is called, and what its failures are."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from imagefactory.errors import FactoryError
from imagefactory.system import shell
from imagefactory.system.engine import RemoteEngine, RemoteError

DIGEST = "sha256:" + "1" * 64


class Ssh:
    """Answers ssh commands, one after the other."""

    def __init__(self, *answers: tuple[int, str, str]) -> None:
        self.answers, self.calls = list(answers), list[Sequence[str]]()

    def run(self, argv: Sequence[str], **_: object) -> shell.Completed:
        self.calls.append(argv)
        code, out, err = self.answers.pop(0)
        return shell.Completed(argv=tuple(argv), code=code, out=out, err=err)


def engine(
    monkeypatch: pytest.MonkeyPatch, *answers: tuple[int, str, str]
) -> tuple[Ssh, RemoteEngine]:
    ssh = Ssh(*answers)
    monkeypatch.setattr(shell, "run", ssh.run)
    return ssh, RemoteEngine("me@spark1")


@pytest.mark.parametrize(
    ("code", "said", "expected", "transient"),
    [
        (255, "ssh: connect to host x port 22: Connection timed out", "remote-connection", True),
        (255, "me@x: Permission denied (publickey).", "remote-connection", False),
        (255, "Host key verification failed.", "remote-connection", False),
        (-15, "", "remote-connection", True),
        (1, "write /var/lib/docker/x: no space left on device", "remote-engine", False),
        (1, "failed to copy: httpReadSeeker: unexpected EOF", "remote-engine", True),
        (127, "bash: docker: command not found", "remote-engine", False),
    ],
)
def test_a_connection_that_breaks_is_told_from_what_stays_wrong(
    monkeypatch: pytest.MonkeyPatch, code: int, said: str, expected: str, *, transient: bool
) -> None:
    _, other = engine(monkeypatch, (code, "", said))
    with pytest.raises(RemoteError, match=expected) as caught:
        other.pull("r", DIGEST, "linux/arm64", 5000)
    assert caught.value.transient is transient
    assert caught.value.problems[0].what.startswith("me@spark1: ")


def test_a_port_in_use_there_is_exchanged_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = (255, "", "Error: remote port forwarding failed for listen port 20000")
    ssh, other = engine(monkeypatch, taken, (0, "", ""))
    name = other.pull("r", DIGEST, "linux/arm64", 5000)
    (*_, forward, _, host, command) = ssh.calls[-1]
    there = forward.removeprefix("127.0.0.1:").removesuffix(":127.0.0.1:5000")
    assert (name, host) == (f"127.0.0.1:{there}/r@{DIGEST}", "me@spark1")
    assert command == f"docker pull --quiet --platform linux/arm64 {name}"
    _, other = engine(monkeypatch, *[taken] * 4)
    with pytest.raises(RemoteError, match="remote-forward"):
        other.pull("r", DIGEST, "linux/arm64", 5000)


def test_an_image_is_found_by_one_of_its_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"Id": DIGEST, "RepoTags": ["a:1"], "RepoDigests": None}
    missing = "Error response from daemon: No such image: sha256:2"
    _, other = engine(
        monkeypatch, (1, json.dumps([row]), missing), (1, "[]", missing), (0, "Welcome!", "")
    )
    found = other.find([DIGEST, "sha256:2"])
    assert found is not None
    assert (found.digest, found.names) == (DIGEST, ("a:1",))
    assert other.find([DIGEST]) is None
    with pytest.raises(FactoryError, match="remote-answer"):
        other.find([DIGEST])
