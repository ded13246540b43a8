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
from imagefactory.system.engine import Engine

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
while :; do /busybox sleep 60 & wait $!; done
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
        done = self.machines[number].docker("ps", "--format", "{{.ID}}.{{.Names}}")
        return done.stdout.split()


@pytest.fixture
def two(machines: Machines, tmp_path: Path) -> Two:
    (tmp_path / "server").write_text(SERVER)
    for one in machines.all:
        put(one, archive(tmp_path), IMAGE)
    found = Two(machines, tmp_path)
    found.declare()
    return found


def archive(folder: Path) -> Path:
    """The files of the image."""
    path = folder / "tiny.tar"
    with tarfile.open(path, "w") as tar:
        tar.add(busybox(), "busybox")
        tar.add(folder / "server", "server")
    return path


def busybox() -> Path:
    engine = from_environment(os.environ).state / "engine"
    folder = Path(os.environ.get("IMAGEFACTORY_ENGINE_DIR") or engine) / "prefix/usr/bin"
    found = shutil.which("busybox", path=f"{folder}:{os.environ['PATH']}")
    assert found, "the test needs busybox"
    return Path(found)


def put(machine: Machine, files: Path, name: str) -> None:
    ask = '["/busybox", "wget", "-q", "-O", "/dev/null", "http://127.0.0.1:8000/health"]'
    changes = ('ENTRYPOINT ["/busybox", "sh", "/server"]', f"HEALTHCHECK --interval=1s CMD {ask}")
    words = [word for change in changes for word in ("--change", f"'{change}'")]
    machine.docker("import", *words, str(files), name)


def test_nodes_are_checked_together_and_one_that_is_off_has_a_row(two: Two) -> None:
    done = two.call("check", "--json")
    assert done.code == 0, done.out + done.err
    found = {(row["host"], row["name"]): row for row in done.json}
    first, second = two.machines.all
    assert found[second.name, "address"]["seen"] == f"{second.address} on eth0"
    assert found[first.name, "image"]["health"] == "good"

    second.docker("rmi", IMAGE)
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


def test_a_cluster_is_started_once_watched_and_removed_with_nothing_else(two: Two) -> None:
    first, second = two.machines.all
    others = "run -d --name other --label io.imagefactory.cluster=another tiny:1 serve x"
    second.docker(*others.split(), "--headless")

    done = two.call("up", "--json")
    assert done.code == 0, done.out + done.err
    rows = {row["host"]: row for row in done.json["nodes"]}
    assert (rows[first.name]["role"], rows[first.name]["health"]) == ("head", "healthy")
    assert (rows[second.name]["role"], rows[second.name]["state"]) == ("worker", "running")
    assert f"serves at http://{first.address}:8000/v1" in done.err
    said = first.run("busybox", "wget", "-q", "-O", "-", "http://127.0.0.1:8000/health")
    assert said.stdout == "ok\n"
    env = second.docker("inspect", "test-1", "--format", "'{{json .Config.Env}}'").stdout
    assert '"ANSWER=$HOME 42"' in env
    assert '"TOKEN=t0ken"' in env

    running = two.containers(0) + two.containers(1)
    again = two.call("up")
    assert again.code == 0, again.err
    assert two.containers(0) + two.containers(1) == running
    assert two.call("status").code == 0

    two.declare(model="other-works")
    changed = two.call("up")
    assert changed.code == 0, changed.err
    shown = two.call("logs").out
    assert f"{first.name} | loading models/other-works" in shown
    assert f"{second.name} | worker of models/other-works waits" in shown
    assert two.call("logs", "--since", "1h").out == shown

    # a worker that is killed later is seen, and `up` starts the server again
    second.docker("kill", "test-1")
    killed = two.call("status")
    assert killed.code == 1
    assert "exited 137" in killed.out
    assert two.call("up").code == 0

    second.unplug()
    off = two.call("down", "--json")
    assert off.code == 3
    assert off.json["removed"] == {first.name: 1}
    assert [error["code"] for error in off.json["errors"]] == ["node-unreachable"]
    second.plug()
    assert two.call("down").code == 0
    names = second.docker("ps", "--all", "--format", "{{.Names}}").stdout.split()
    assert names == ["other"]


def test_tuned_kernels_reach_a_volume_of_a_node(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in two.machines.environment.items():
        monkeypatch.setenv(name, value)
    second = two.machines[1]
    engine = Engine.of_machine(second.name, os.environ, two.folder)
    engine.fill_volume("test-tunings", IMAGE, {"E=8,N=256,block_shape=[128,128].json": "{}"})
    mounted = "run --rm -v test-tunings:/tunings:ro --entrypoint /busybox tiny:1 tail -n 1"
    found = second.docker(*mounted.split(), "'/tunings/E=8,N=256,block_shape=[128,128].json'")
    assert found.stdout == "{}"
    assert "tiny" not in second.docker("ps", "--all").stdout


def test_a_worker_that_ends_ends_up_with_its_last_lines_and_stops_the_head(two: Two) -> None:
    two.declare(model="fails")
    done = two.call("up")
    assert done.code == 1, done.out + done.err
    assert "test-1 (worker) ended with exit code 3 [cluster-node-ended]" in done.err
    assert "RuntimeError: planted" in done.err
    assert two.containers(0) == []
    assert "asked to end" in two.call("logs", "--node", "machine1").out


def test_nothing_is_started_if_a_node_is_off_or_has_another_image(two: Two) -> None:
    first, second = two.machines.all
    (two.folder / "server").write_text(SERVER + "# changed\n")
    second.docker("rmi", IMAGE)
    put(second, archive(two.folder), IMAGE)
    done = two.call("up")
    assert done.code == 1, done.out + done.err
    assert f"{second.name}: {IMAGE} has another content than on {first.name}" in done.err
    second.unplug()
    done = two.call("up")
    assert done.code == 3, done.out + done.err
    assert "node-unreachable" in done.err
    assert two.containers(0) == []
