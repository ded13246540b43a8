"""Serves tiny models with the vLLM of some Python, and asks them; no container is needed.

``python servers.py`` prints what it saw as JSON. It runs in the Python that has vLLM, with numpy,
safetensors and packaging; the folder of imagefactory has to be on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from gpu.spoilt_models import FAULTS, spoil
from imagefactory.verifying import asking
from imagefactory.verifying.answers import Answer
from imagefactory.verifying.client import Client
from imagefactory.verifying.models import models
from imagefactory.verifying.models.models import TinyModel

#: Recipes' options, but for what keeps the start of a tiny model short: neither CUDA graphs nor a
#: profile of the memory.
ARGUMENTS = (
    *("--max-model-len", "256", "--max-num-seqs", "16", "--gpu-memory-utilization", "0.05"),
    *("--kv-cache-memory-bytes", str(256 << 20), "--enforce-eager"),
)
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "PYTHONUNBUFFERED": "1",
    # else it is compiled at the start
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}
#: Seconds: for the start, the first answer, for which kernels are compiled, later ones, the end.
START, FIRST_ANSWER, ANSWER, STOP = 240.0, 120.0, 60.0, 30.0
#: Lines of a log that say nothing about the server: one for each request, and for each route.
ACCESS = re.compile(r'"(GET|POST) /|Route: /|pid=\d+\)   |pid=\d+\) *$')
#: Characters of a line that are kept.
LINE = 300


@dataclass(frozen=True, kw_only=True)
class Job:
    """A model to serve; ``spoil`` names what is wrong with its weights."""

    model: TinyModel
    spoil: str = ""

    @property
    def name(self) -> str:
        """Its name in the record."""
        return f"{self.model.name}:{self.spoil}" if self.spoil else self.model.name


class Server:
    """One vLLM server, and its log."""

    def __init__(self, job: Job, folder: Path, logs: Path) -> None:
        """Start it; the model is written below ``folder``."""
        self.job = job
        self.port = _free_port()
        self.log = logs / f"{job.name.replace(':', '-')}.log"
        written = job.model.write(folder / job.name.replace(":", "-"))
        if job.spoil:
            spoil(written, job.spoil)
        program = "import sys; from vllm.entrypoints.cli.main import main; sys.exit(main())"
        words = ("serve", str(written), "--host", "127.0.0.1", "--port", str(self.port))
        named = ("--served-model-name", job.model.name)
        options = (*ARGUMENTS, *job.model.serve_args, *job.model.gpu_args)
        self.words = [*words, *named, *options]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program, *self.words],
                env={**os.environ, **ENVIRONMENT},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def client(self, seconds: float) -> Client:
        """A client of it."""
        return Client(self._dial, model=self.job.model.name, seconds=seconds)

    @contextmanager
    def _dial(self) -> Iterator[socket.socket]:
        with socket.create_connection(("127.0.0.1", self.port), 10) as connection:
            connection.settimeout(None)  # the client has limits of its own
            yield connection

    def wait(self) -> str:
        """Wait until it is healthy; the reason if it does not become so."""
        began = time.monotonic()
        with closing(self.client(10)) as client:
            while not client.healthy():
                if self.process.poll() is not None:
                    return f"it ended with {self.process.returncode}"
                if time.monotonic() - began > START:
                    return f"not healthy after {START:.0f} s"
                time.sleep(0.5)
        return ""

    def stop(self) -> int:
        """End it with SIGTERM, then with SIGKILL; returns its exit code."""
        with suppress(ProcessLookupError):
            self.process.terminate()
        try:
            code = self.process.wait(STOP)
        except subprocess.TimeoutExpired:
            code = 137
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        return code


def observe(job: Job, folder: Path, logs: Path) -> dict[str, Any]:
    """One life of a server: what it answered, how long it took, and the lines of its log."""
    began = time.monotonic()
    server = Server(job, folder, logs)
    seen: dict[str, Any] = {"model": job.model.name, "spoil": job.spoil, "answers": []}
    seen["arguments"] = server.words[2:]
    try:
        seen["fault"] = server.wait()
        seen["start_seconds"] = round(time.monotonic() - began, 1)
        if not seen["fault"]:
            with closing(server.client(FIRST_ANSWER)) as client:
                connect = functools.partial(server.client, ANSWER)
                asked = asking.everything(job.model, connect, client=client, seconds=ANSWER)
                seen["metrics"] = client.counters(job.model.metrics)
            seen["answers"] = [_plain(one) for one in asked.answers]
            seen["refusals"] = [asdict(one) for one in asked.refusals]
            right = all(one.right for one in asked.answers)
            seen["tokens_per_second"] = asking.speed(job.model, connect) if right else 0.0
            seen["limits"] = dict(job.model.metrics)
    finally:
        stopping = time.monotonic()
        seen["exit_code"] = server.stop()
        seen["stop_seconds"] = round(time.monotonic() - stopping, 1)
    seen["seconds"] = round(time.monotonic() - began, 1)
    useful = not job.spoil or seen["fault"]
    seen["log"] = [line[:LINE] for line in _lines(server.log) if not ACCESS.search(line)]
    seen["log"] = seen["log"] if useful else []
    return seen


def _lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines()


def _plain(answer: Answer) -> dict[str, Any]:
    """What of an answer is recorded: all that it is judged by."""
    question = {name: getattr(answer.question, name) for name in ("prompt", "answer", "finish")}
    fields = ("kind", "status", "text", "seconds", "when", "finish", "logprobs")
    return {**{name: getattr(answer, name) for name in fields}, "question": question}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def jobs(names: Sequence[str], version: str) -> list[Job]:
    """The models of the family that this vLLM serves on a GPU, and those that are spoilt."""
    wanted = [model for model in models.family() if model.runs_on("cuda", version)]
    every = [Job(model=model) for model in wanted]
    every += [Job(model=model, spoil=s) for model in wanted for s in spoils_of(model)]
    return [job for job in every if not names or job.name in names]


def spoils_of(model: TinyModel) -> Iterator[str]:
    """The faults that can be made in a model's weights."""
    for fault in FAULTS:
        with tempfile.TemporaryDirectory() as folder:
            if spoil(model.write(Path(folder) / "model"), fault):
                yield fault


def run(todo: Sequence[Job], logs: Path, *, parallel: int) -> dict[str, Any]:
    """Observe all jobs, several at a time: most of a start is spent on the CPU."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(parallel) as pool:

        def one(job: Job) -> dict[str, Any]:
            seen = observe(job, Path(folder), logs)
            said = seen["fault"] or f"{len(seen['answers'])} answers"
            print(f"{job.name}: {said}, {seen['seconds']} s", file=sys.stderr, flush=True)  # noqa: T201
            return seen

        return dict(zip((job.name for job in todo), pool.map(one, todo), strict=True))


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="MODEL[:FAULT]")
    parser.add_argument("--logs", type=Path, help="keep the logs in this folder")
    parser.add_argument("--parallel", type=int, default=3, help="servers at the same time")
    parser.add_argument("--list", action="store_true", help="list the models, and serve none")
    options = parser.parse_args()
    version = metadata.version("vllm")
    todo = jobs(options.only, version)
    if options.list:
        print("\n".join(job.name for job in todo))  # noqa: T201
        return 0
    logs = options.logs or Path(tempfile.mkdtemp())
    logs.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    seen = run(todo, logs, parallel=options.parallel)
    seconds = round(time.monotonic() - began, 1)
    made = {"vllm": version, "parallel": options.parallel, "seconds": seconds, "servers": seen}
    print(json.dumps(made))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
