"""The machines of the tests are machines of their own."""

from __future__ import annotations

import os
import subprocess

import pytest
from machines import Machines

pytestmark = pytest.mark.e2e


def test_machines_have_engines_and_networks_of_their_own(machines: Machines) -> None:
    one, other = machines.all
    environment = {**os.environ, **machines.environment}
    ids = {
        subprocess.run(
            ["docker", "--host", host, "info", "--format", "{{.ID}} {{.Driver}}"],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for host in (one.host, other.host, other.socket)
    }
    assert len(ids) == 2
    assert all(said.endswith(" overlayfs\n") for said in ids)
    assert other.address in other.run("ip", "-4", "addr").stdout
    assert one.run("bash", "-c", f"'</dev/tcp/{other.address}/22'").returncode == 0
    assert one.run("pwd").stdout.strip() == str(one.home)
    assert one.run("ls", "-A").stdout == ""
    # containers run there
    made = "tar -C $(dirname $(command -v busybox)) -c busybox | docker import - tiny"
    one.run("sh", "-c", f"'{made}'")
    said = one.run("docker", "run", "--rm", "--network", "host", "tiny", "/busybox", "ip", "addr")
    assert one.address in said.stdout
