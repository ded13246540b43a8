"""Other machines: each has a network, processes, an engine and an sshd of its own.

A machine is a set of namespaces of this one. Its first process ends when the test run does, even
by SIGKILL, and with it everything on the machine: only a bridge is left, which the next run
removes. Its files are this one's, except for /run; root has another home.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from imagefactory.settings import from_environment
from imagefactory.system.engine import Engine

#: Where `make sshd` unpacks what the system lacks.
UNPACKED = Path(sys.prefix) / "sshd"
#: Seconds until a machine answers over ssh and its engine answers.
UP = 60
#: Bridges of test runs; each has the addresses 10.214.NUMBER.0/24.
BRIDGE, MOST = "ifmachines", 16

NEW_SPACES = (
    *("unshare", "--net", "--mount", "--uts", "--pid", "--fork"),
    *("--kill-child", "--mount-proc"),
)
#: The first process of a machine. It ends, and all others with it, when its input does.
BOOT = """
set -eu
mount -t tmpfs tmpfs /run
mkdir -p /run/sshd
for name in passwd shadow; do mount --bind "$HERE/$name" /etc/$name; done
if [ -e "$SSHD_ROOT/usr/lib/openssh/sshd-session" ]; then
  mount --bind "$SSHD_ROOT/usr/lib/openssh" /usr/lib/openssh
fi
ip link set lo up
dockerd --config-file "$HERE/daemon.json" --data-root "$HERE/docker" --iptables=false \\
  --ip6tables=false --shutdown-timeout 1 >"$HERE/dockerd.log" 2>&1 &
engine=$!
LD_LIBRARY_PATH=$LIBRARIES "$SSHD" -D -f "$HERE/sshd_config" -E "$HERE/sshd.log" &
echo booted
cat >/dev/null
kill $engine
wait $engine
"""


@dataclass(frozen=True)
class Machine:
    """Another machine.

    Attributes:
        name: as ssh knows it.
        address: its IPv4 address.
        folder: its home (``home``), and logs of its programs.
        link: this machine's end of its cable.
        pid: its first process, as this machine sees it.
        config: of the ssh client.
        process: what holds it.
    """

    name: str
    address: str
    folder: Path
    link: str
    pid: int
    config: Path
    process: subprocess.Popen[str]

    @property
    def host(self) -> str:
        """Its engine's address for Docker's client, with ``Machines.environment``."""
        return f"ssh://{self.name}"

    @property
    def socket(self) -> str:
        """The address of its engine without ssh."""
        return f"unix:///proc/{self.pid}/root/run/docker.sock"

    @property
    def home(self) -> Path:
        """The home of its root user."""
        return self.folder / "home"

    def run(self, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command there, over ssh."""
        words = ["ssh", "-F", str(self.config), self.name, *argv]
        return subprocess.run(words, check=check, capture_output=True, text=True)

    def docker(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run its Docker client there."""
        return self.run("docker", *words, check=check)

    def unplug(self) -> None:
        """Pull its cable: connections hang, as they do when a machine is off."""
        _ip("link", "set", self.link, "down")

    def plug(self) -> None:
        """Put its cable back."""
        _ip("link", "set", self.link, "up")

    def slow_down(self, rate: str) -> None:
        """Give it a slow network, of ``24mbit`` for example."""
        shape = ["tbf", "rate", rate, "burst", "64kb", "latency", "100ms"]
        subprocess.run(["tc", "qdisc", "add", "dev", self.link, "root", *shape], check=True)

    def received(self) -> int:
        """Bytes that were sent to it, with the headers of packets and ssh's own."""
        counter = Path("/sys/class/net", self.link, "statistics/tx_bytes")
        return int(counter.read_text())

    def cut_connections(self) -> None:
        """End all connections of its sshd, as a restart of a router does."""
        listener = "listener"
        for pid in self._children("sshd"):
            if listener not in Path("/proc", pid, "cmdline").read_text():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), 9)

    def _children(self, program: str) -> list[str]:
        space = Path("/proc", str(self.pid), "ns/pid").readlink()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                same = (folder / "ns/pid").readlink() == space
                if same and (folder / "comm").read_text().strip() == program:
                    found.append(folder.name)
        return found


@dataclass(frozen=True)
class Machines:
    """Machines on one network, and what a client needs to reach them.

    Attributes:
        all: the machines.
        config: ``ssh -F CONFIG machine1`` reaches the first.
        environment: variables with which every ``ssh`` reaches them, Docker's own too.
    """

    all: tuple[Machine, ...]
    config: Path
    environment: dict[str, str]

    def __getitem__(self, number: int) -> Machine:
        return self.all[number]


@pytest.fixture
def start_machines(engine: Engine, tmp_path: Path) -> Iterator[Callable[[int], Machines]]:
    """Starts so many machines, in seconds; they end with the test."""
    with _network() as (bridge, network):
        started: list[Machine] = []

        def start(count: int) -> Machines:
            folder = tmp_path / "machines"
            config, environment = _client(folder)
            names = [f"machine{number}" for number in range(1, count + 1)]
            for number, name in enumerate(names, start=1):
                one = _boot(name, f"{network}.{number + 1}", bridge, folder, config)
                started.append(one)
                with config.open("a", encoding="utf-8") as out:
                    out.write(f"Host {name}\n  HostName {one.address}\n")
            for one in started:
                _wait(one)
            return Machines(tuple(started), config, environment)

        try:
            yield start
        finally:
            for one in started:
                one.process.stdin.close()  # type: ignore[union-attr]
            for one in started:
                _end(one)


@pytest.fixture
def machines(start_machines: Callable[[int], Machines]) -> Machines:
    """Two other machines."""
    return start_machines(2)


@contextmanager
def _network() -> Iterator[tuple[str, str]]:
    """A bridge of this test run, and the first three numbers of its addresses."""
    space = Path("/proc/self/ns/pid").readlink()
    mine = f"imagefactory {os.getpid()} {space}"
    for number in range(MOST):
        bridge = f"{BRIDGE}{number}"
        alias = Path("/sys/class/net", bridge, "ifalias")
        with suppress(FileNotFoundError):
            _, pid, its_space = alias.read_text().split() or ("", "", "")
            if its_space == str(space) and not Path("/proc", pid).exists():
                _ip("link", "del", bridge)
        made = subprocess.run(
            ["ip", "link", "add", bridge, "type", "bridge"],
            check=False,
            capture_output=True,
        )
        if made.returncode == 0:
            alias.write_text(mine)
            break
    else:
        raise AssertionError(f"{MOST} bridges {BRIDGE}* exist: ip link del removes one")
    try:
        network = f"10.214.{number}"
        _ip("addr", "add", f"{network}.1/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        yield bridge, network
    finally:
        _ip("link", "del", bridge)


def _client(folder: Path) -> tuple[Path, dict[str, str]]:
    """The configuration of ssh, and variables with which it is used by all programs."""
    folder.mkdir()
    key = folder / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    config = folder / "ssh_config"
    config.write_text(
        f"User root\nIdentityFile {key}\nIdentitiesOnly yes\nBatchMode yes\nConnectTimeout 5\n"
        f"UserKnownHostsFile {folder}/known_hosts\nStrictHostKeyChecking accept-new\n"
        "LogLevel ERROR\n"
    )
    program = folder / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {config} "$@"\n')
    program.chmod(0o755)
    return config, {"PATH": f"{program.parent}:{os.environ['PATH']}"}


def _boot(name: str, address: str, bridge: str, parent: Path, config: Path) -> Machine:
    folder = parent / name
    (folder / "home").mkdir(parents=True)
    _write_files(folder, parent / "key.pub")
    root, sshd = _sshd()
    libraries = ":".join(map(str, root.glob("usr/lib/*-linux-gnu")))
    variables = {"HERE": str(folder), "SSHD": str(sshd), "SSHD_ROOT": str(root)}
    process = subprocess.Popen(
        [*NEW_SPACES, "sh", "-c", BOOT],
        env={
            "PATH": program_path(),
            "HOME": str(folder / "home"),
            "LIBRARIES": libraries,
            **variables,
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    output: IO[str] = process.stdout  # type: ignore[assignment]
    if output.readline() != "booted\n":
        process.kill()
        raise AssertionError(f"{name} did not boot")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    pid = int(children.split()[0])
    link = f"ifm{process.pid}"
    _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
    _ip("link", "set", link, "master", bridge, "up")
    inside = ["nsenter", "--target", str(pid), "--net", "ip"]
    subprocess.run([*inside, "addr", "add", f"{address}/24", "dev", "eth0"], check=True)
    subprocess.run([*inside, "link", "set", "eth0", "up"], check=True)
    return Machine(name, address, folder, link, pid, config, process)


def _write_files(folder: Path, key: Path) -> None:
    """What a machine has in place of this one's own files."""
    host_key = folder / "host_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(host_key)], check=True)
    (folder / "passwd").write_text(
        f"root:x:0:0:root:{folder}/home:/bin/bash\nsshd:x:101:65534::/run/sshd:/usr/sbin/nologin\n"
    )
    (folder / "shadow").write_text("root:*:1::::::\nsshd:!:1::::::\n")
    shutil.copy(key, folder / "authorized_keys")
    (folder / "sshd_config").write_text(
        f"HostKey {host_key}\nAuthorizedKeysFile {folder}/authorized_keys\nStrictModes no\n"
        "PasswordAuthentication no\nKbdInteractiveAuthentication no\nUsePAM no\n"
        f"PermitRootLogin prohibit-password\nPidFile none\nSetEnv PATH={program_path()}\n"
        # Docker's client opens many connections at once
        "MaxStartups 100\nMaxSessions 100\n"
    )
    (folder / "daemon.json").write_text('{"features": {"containerd-snapshotter": true}}\n')


def _sshd() -> tuple[Path, Path]:
    """The folder that sshd is unpacked in, and its program."""
    for root in (UNPACKED, Path("/")):
        if (program := root / "usr/sbin/sshd").exists():
            return root, program
    raise AssertionError("the tests need sshd: make sshd")


def program_path() -> str:
    """Where a machine finds its programs: those of the private engine, if there is one."""
    state = from_environment(os.environ).state
    folder = Path(os.environ.get("IMAGEFACTORY_ENGINE_DIR") or state / "engine")
    parts = [folder / "bin", *(folder / "prefix" / part for part in ("usr/sbin", "usr/bin"))]
    rest = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return ":".join([*map(str, parts), rest, str(folder / "prefix/fallback")])


def _wait(one: Machine) -> None:
    """Wait until a machine answers; say why it does not."""
    end = time.monotonic() + UP
    while one.docker("version", check=False).returncode:
        if time.monotonic() > end or one.process.poll() is not None:
            said = (one.folder / "dockerd.log").read_text()[-2000:]
            raise AssertionError(f"{one.name} does not answer:\n{said}")
        time.sleep(0.1)


def _end(one: Machine) -> None:
    try:
        one.process.wait(timeout=15)
    except subprocess.TimeoutExpired:
        one.process.kill()
        one.process.wait()
    one.process.stdout.close()  # type: ignore[union-attr]


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
