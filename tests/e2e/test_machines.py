"""The machines of the tests are machines of their own."""

from __future__ import annotations

import pytest
from machines import Machines

pytestmark = pytest.mark.e2e


def test_machines_have_engines_and_networks_of_their_own(machines: Machines) -> None:
    one, other = machines.all
    info = ("info", "--format", "'{{.ID}} {{.Driver}}'")
    ids = {machine.docker(*info).stdout for machine in machines.all}
    assert len(ids) == 2
    assert all(said.endswith(" overlayfs\n") for said in ids)
    assert other.address in other.run("ip", "-4", "addr").stdout
    assert one.run("bash", "-c", f"'</dev/tcp/{other.address}/22'").returncode == 0
    assert one.run("pwd").stdout.strip() == str(one.home)
    assert one.run("ls", "-A").stdout == ""
    # containers run there
    made = "tar -C $(dirname $(command -v busybox)) -c busybox | docker import - tiny"
    one.run("sh", "-c", f"'{made}'")
    said = one.docker("run", "--rm", "--network", "host", "tiny", "/busybox", "ip", "addr")
    assert one.address in said.stdout
