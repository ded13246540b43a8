"""Nodes that are switched off: commands ask ssh, which gives up soon, before Docker's client."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.program import Run, run

from imagefactory.errors import SetupError, fail
from imagefactory.examples import examples
from imagefactory.system import shell, ssh

__all__ = ["run"]


@pytest.mark.parametrize("command", ["up", "status", "logs", "logs --follow", "down"])
def test_dockers_client_is_not_started_for_a_node_that_is_off(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def reach(host: str) -> None:
        raise fail(SetupError, "node-unreachable", f"{host}: Connection timed out")

    def start(argv: object, **_: object) -> None:
        raise AssertionError(f"started {argv}")

    monkeypatch.setattr(ssh, "reach", reach)
    monkeypatch.setattr(shell, "run", start)
    (tmp_path / "cluster.yaml").write_text(examples.cluster())
    done = run("cluster", *command.split(), cwd=tmp_path)
    assert done.code == 3, done.out + done.err
    for host in ("spark1", "spark2"):
        assert f"error: {host}: Connection timed out [node-unreachable]" in done.err
