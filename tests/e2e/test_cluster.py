"""`imagefactory cluster` with two machines of their own, and a server of a few lines."""

from __future__ import annotations

import os
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from machines import Machine, Machines
from support.e2e import Completed, factory

from imagefactory.settings import from_environment

pytestmark = pytest.mark.e2e

IMAGE = "tiny:1"
#: The head serves, and says so some time later; workers wait. MODEL=fails ends all workers.
SERVER = """\
#!/busybox sh
trap 'echo asked to end; exit 0' TERM
case " $* " in
  *" --headless "*)
    echo "worker of $2 waits"
    case $2 in *fails) echo "RuntimeError: planted"; exit 3;; esac ;;
  *)
    /busybox mkdir -p /www
    echo "loading $2"
    (/busybox sleep 2; echo ok >/www/health) &
    /busybox httpd -p 8000 -h /www ;;
esac
while :; do /busybox sleep 0.1; done
"""
CLUSTER = """\
name: test
image: {image}
model: models/{model}
gpus: false
environment: {{ANSWER: "$HOME 42"}}
pass_on: [TOKEN]
nodes:
"""


@dataclass(frozen=True)
class Two:
    """Two machines that have the image, and the file that declares them."""

    machines: Machines
    folder: Path

    def declare(self, model: str = "works", image: str = IMAGE) -> None:
        text = CLUSTER.format(model=model, image=image)
        for one in self.machines.all:
            text += f"  - host: {one.name}\n    address: {one.address}\n    interfaces: [eth0]\n"
        (self.folder / "cluster.yaml").write_text(text)

    def call(self, *words: str) -> Completed:
        environ = {**self.machines.environment, "TOKEN": "t0ken"}
        return factory("cluster", *words, cwd=self.folder, environ=environ)

    def containers(self, number: int) -> list[str]:
        done = self.machines[number].run("docker", "ps", "--format", "{{.ID}}.{{.Names}}")
        return done.stdout.split()


@pytest.fixture
def two(machines: Machines, tmp_path: Path) -> Two:
    archive = tmp_path / "tiny.tar"
    server = tmp_path / "server"
    server.write_text(SERVER)
    server.chmod(0o755)
    with tarfile.open(archive, "w") as tar:
        tar.add(busybox(), "busybox")
        tar.add(server, "server")
    for one in machines.all:
        put(one, archive, IMAGE)
    found = Two(machines, tmp_path)
    found.declare()
    return found


def busybox() -> Path:
    engine = from_environment(os.environ).state / "engine"
    folder = Path(os.environ.get("IMAGEFACTORY_ENGINE_DIR") or engine) / "prefix/usr/bin"
    found = shutil.which("busybox", path=f"{folder}:{os.environ['PATH']}")
    assert found, "the test needs busybox"
    return Path(found)


def put(machine: Machine, archive: Path, name: str) -> None:
    ask = '["/busybox", "wget", "-q", "-O", "/dev/null", "http://127.0.0.1:8000/health"]'
    changes = ('ENTRYPOINT ["/busybox", "sh", "/server"]', f"HEALTHCHECK --interval=1s CMD {ask}")
    words = [word for change in changes for word in ("--change", f"'{change}'")]
    machine.run("docker", "import", *words, str(archive), name)


def test_nodes_are_checked_together_and_one_that_is_off_has_a_row(two: Two) -> None:
    done = two.call("check", "--json")
    assert done.code == 0, done.out + done.err
    found = {(row["host"], row["name"]): row for row in done.json}
    first, second = two.machines.all
    assert found[second.name, "address"]["seen"] == f"{second.address} on eth0"
    assert found[first.name, "image"]["health"] == "good"

    second.run("docker", "rmi", IMAGE)
    done = two.call("check", "--json")
    assert done.code == 1, done.out + done.err
    (bad,) = (row for row in done.json if row["health"] == "bad")
    assert (bad["host"], bad["name"], bad["seen"]) == (second.name, "image", "missing")

    first.unplug()
    done = two.call("check")
    assert done.code == 3, done.out + done.err
    rows = [line.split() for line in done.out.splitlines()]
    assert [row[1:3] for row in rows if row[0] == first.name] == [["node", "bad"]]
    assert [row[2] for row in rows if row[:2] == [second.name, "memory"]] == ["good"]
