"""Runs the image's entrypoint in each of its modes, without a model.

Only the nodes of a Ray cluster have a network, which reaches nothing else.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from imagefactory.errors import SetupError
from imagefactory.system.engine import Engine, ImageInfo, RunningContainer
from imagefactory.verifying.subject import Ran

#: A value that does not survive careless quoting.
JSON_OPTION = '{"method": "mtp", "note": "it\'s $HOME * \\\\ ok"}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run: the container's arguments and environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


#: Bytes that are read of what the entrypoint writes; a good one writes a line.
MOST_BYTES = 1 << 20
#: Runs at a time.
AT_ONCE = 2
#: What `ray_cluster` ran, among the runs; and how many nodes there are.
RAY_CLUSTER, RAY_NODES = "ray-cluster", 2
#: Where the worker finds the head.
RAY_HEAD = "head"
#: Seconds between two looks at the cluster.
POLL = 2.0
#: Ray keeps objects there, 80 MB in this cluster.
RAY_SHM = "256m"
#: Seconds for one look at it.
MODE_SECONDS = 60.0
#: The exit code of a run that was ended, as of timeout(1).
TIMED_OUT = 124
_DRY = {"IMAGEFACTORY_DRY_RUN": "1"}
_QUOTED = "--speculative-config '" + JSON_OPTION.replace("'", "'\"'\"'") + "' --max_num_seqs=3"

RUNS: Mapping[str, Run] = {
    "serve": Run(
        argv=(), env={**_DRY, "MODEL": "org/a-model", "PORT": "9123", "VLLM_EXTRA_ARGS": _QUOTED}
    ),
    "serve-arguments": Run(
        argv=("serve", "--max-model-len", "77"), env={**_DRY, "MODEL": "org/a-model"}
    ),
    "serve-unbalanced": Run(
        argv=("serve",), env={**_DRY, "MODEL": "org/a-model", "VLLM_EXTRA_ARGS": "--x 'open"}
    ),
    "serve-no-model": Run(argv=("serve",), env=_DRY),
    "ray-head": Run(argv=("ray-head",), env=_DRY),
    "ray-worker": Run(argv=("ray-worker",), env={**_DRY, "RAY_HEAD_ADDRESS": "192.0.2.1"}),
    "bash": Run(argv=("bash", "-c", 'echo "$0 $1"', "two words", "'q'"), env={}),
}


def observe(engine: Engine, image: ImageInfo, *, timeout: float) -> dict[str, Ran]:
    """How each of ``RUNS`` ends; all of them together get ``timeout`` seconds.

    Raises SetupError if the engine fails.
    """
    until = time.monotonic() + timeout

    def one(run: Run) -> Ran:
        began = time.monotonic()
        return _ran(engine, image, run, max(1.0, until - began), began)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(RUNS, pool.map(one, RUNS.values()), strict=True))


def _ran(engine: Engine, image: ImageInfo, run: Run, timeout: float, began: float) -> Ran:
    try:
        done = engine.run(
            image.digest,
            run.argv,
            platform=image.platform,
            env=run.env,
            network="none",
            timeout=timeout,
            most=MOST_BYTES,
        )
    except SetupError as error:
        if error.problems[0].code != "command-timeout":
            raise
        late = f"still running after {timeout:.0f} s"
        return Ran(code=TIMED_OUT, out="", err=late, seconds=time.monotonic() - began)
    err = f"it wrote more than {MOST_BYTES} bytes" if done.cut else done.err
    return Ran(code=done.code, out=done.out, err=err, seconds=time.monotonic() - began)


def ray_cluster(engine: Engine, image: ImageInfo, *, timeout: float) -> Ran:
    """Let a head and a worker become a cluster; it prints how many nodes the head sees.

    Raises SetupError if the engine fails.
    """
    began = time.monotonic()
    with engine.network() as network, ExitStack() as ending:

        def node(mode: str, env: Mapping[str, str]) -> RunningContainer:
            alias = RAY_HEAD if mode == "ray-head" else None
            container = engine.start(
                image.digest,
                (mode, "--num-cpus=1", "--object-store-memory=80000000"),
                platform=image.platform,
                env=env,
                shm_size=RAY_SHM,
                network=network,
                alias=alias,
            )
            ending.callback(container.remove)
            return container

        nodes = [node("ray-head", {})]
        while True:
            seen = _ray_nodes(nodes[0])
            seconds = time.monotonic() - began
            if seen >= RAY_NODES:
                return Ran(code=0, out=f"{seen}\n", err="", seconds=seconds)
            ended = [one for one in nodes if not one.alive()]
            if ended or seconds > timeout:
                log = (ended or nodes)[-1].logs(last=5, most=MOST_BYTES)
                what = f"{log.strip()} ({seen} of {RAY_NODES} nodes after {seconds:.0f} s)"
                return Ran(code=1 if ended else TIMED_OUT, out="", err=what, seconds=seconds)
            if seen == len(nodes):
                nodes.append(node("ray-worker", {"RAY_HEAD_ADDRESS": RAY_HEAD}))
            time.sleep(POLL)


def _ray_nodes(head: RunningContainer) -> int:
    """How many nodes are active, as ``ray status`` says; none before the head is up.

    What it said by the end of its time counts.
    """
    said, until = b"", time.monotonic() + MODE_SECONDS
    with head.attach(["ray", "status"]) as connection, suppress(OSError):  # TimeoutError is one
        while len(said) < MOST_BYTES:
            connection.settimeout(max(0.01, until - time.monotonic()))
            more = connection.recv(65536)
            if not more or time.monotonic() > until:
                break
            said += more
    active = said.decode(errors="replace").partition("Active:")[2].partition("Pending:")[0]
    return len(re.findall(r"^ *1 node_\w+", active, re.MULTILINE))
