"""Two containers on one network serve a model together, and end together."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from imagefactory.system.engine import Engine, Limits
from imagefactory.system.engine.containers import RunningContainer
from imagefactory.verifying import server
from imagefactory.verifying.client import Client
from imagefactory.verifying.models import dense

pytestmark = pytest.mark.e2e

#: Seconds for both to be ready, and for one answer; the first one takes most of a minute, and more
#: where others want the processor.
READY, ANSWER = 900, 600
#: Seconds within which a node ends after the other.
ENDED = 60
HEAD = "head"
#: A vLLM that never answers, for tests of what happens before it does.
WAITS = "#!/bin/sh\necho waiting\nexec sleep 600\n"
#: Left alone, each pins its threads to the first core, and both wait for each other there.
SHARED = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
ARGUMENTS = (
    *("serve", server.MODEL_FOLDER, "--served-model-name", server.MODEL_NAME),
    *("--max-model-len", "256", "--max-num-seqs", "8", "--dtype", "float32", "--enforce-eager"),
    *("--compilation-config", '{"mode": 0}', "--tensor-parallel-size", "2"),
)


@dataclass(frozen=True)
class Pair:
    """A server of two nodes, each of which has a half of every matrix."""

    head: RunningContainer
    follower: RunningContainer

    def logs(self) -> list[str]:
        """The ends of both logs, as far as they are there."""
        return [f"{one.id}\n{one.logs(last=80)}" for one in (self.head, self.follower)]

    def client(self) -> Client:
        return server._client(self.head, server.Patience(answer=ANSWER))


@pytest.fixture(scope="module")
def image(engine: Engine, cpu_image: str) -> str:
    """The image by digest: other test runs may give its name to theirs."""
    return engine.inspect_image(cpu_image).digest


Start = Callable[..., Pair]


@pytest.fixture
def start(engine: Engine, image: str, tmp_path: Path) -> Iterator[Start]:
    """Starts both nodes, perhaps with more mounts; they differ in their rank only."""
    model = dense.MODEL.write(tmp_path / "model")
    with engine.network() as network, ExitStack() as ending:

        def node(rank: int, more: tuple[tuple[Path, str], ...]) -> RunningContainer:
            container = engine.start(
                image,
                ARGUMENTS,
                platform=engine.platform,
                env={**server.ENVIRONMENT, **SHARED}
                | {"NNODES": "2", "NODE_RANK": str(rank), "MASTER_ADDR": HEAD},
                mounts=[(model, server.MODEL_FOLDER), *more],
                shm_size=server.SHM_SIZE,
                limits=Limits(memory=server.MEMORY),
                network=network,
                alias=HEAD if rank == 0 else None,
            )
            ending.callback(container.remove)
            return container

        yield lambda *more: Pair(head=node(0, more), follower=node(1, more))


def wait(condition: Callable[[], bool], seconds: float, pair: Pair) -> float:
    """The seconds until something is so; the logs of both nodes if it does not become so."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            raise AssertionError("\n".join((f"not within {seconds} s", *pair.logs())))
        time.sleep(0.5)
    return time.monotonic() - began


def test_two_containers_serve_a_model_together_and_one_that_is_killed_ends_the_other(
    start: Start,
) -> None:
    pair = start()
    with closing(pair.client()) as client:
        wait(lambda: client.healthy() or not pair.head.alive(), READY, pair)
        answers = [client.ask("completion", question) for question in dense.MODEL.completions]
    wrong = [str(answer) for answer in answers if not answer.right]
    assert not wrong, "\n".join((*wrong, *pair.logs()))
    log = pair.head.logs()
    assert re.search(r"world_size=2 rank=0 .*tcp://head:29501 backend=gloo", log)
    assert "falling back to torch.distributed" in log  # and not through memory that they share

    pair.follower.remove()
    seconds = wait(lambda: not pair.head.alive(), ENDED, pair)
    print(f"ended {seconds:.1f} s after the other node")  # noqa: T201
    said = pair.head.logs()
    assert re.search(r"entrypoint: node 1, [\d.]+, is gone; .* so node 0 ends", said)


def test_a_head_that_is_killed_ends_the_others(start: Start, tmp_path: Path) -> None:
    program = tmp_path / "vllm"
    program.write_text(WAITS)
    program.chmod(0o755)
    pair = start((program, "/opt/venv/bin/vllm"))
    wait(lambda: "node 1, " in pair.head.logs(), READY, pair)
    pair.head.remove()
    wait(lambda: not pair.follower.alive(), ENDED, pair)
    assert "entrypoint: the head, head, is gone; " in pair.follower.logs()
