"""Runs a vLLM server in the image with a tiny model, asks it questions, and stops it."""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from imagefactory.planning.vllm_settings import option_name
from imagefactory.system import platforms, ui
from imagefactory.system.engine import Engine, ImageInfo, Limits, RunningContainer
from imagefactory.system.text import shorten
from imagefactory.verifying import asking
from imagefactory.verifying.answers import Answer, Refusal
from imagefactory.verifying.client import PYTHON, RELAY, Client
from imagefactory.verifying.models import dialog
from imagefactory.verifying.models.models import TinyModel

MODEL_FOLDER = "/opt/imagefactory-smoke-model"
MODEL_NAME = "capitals"
PORT = 8888
#: The model of the family that is served by default: it does all that the dense one does.
MODEL = dialog.MODEL
#: What any tiny model and this machine need. All else is as the image itself serves.
SERVE = ("serve", "--max-model-len", "256", "--served-model-name", MODEL_NAME)
ARGUMENTS = (*SERVE, *dialog.PARSERS)
#: The type that a model computes in; otherwise its config.json says it.
DTYPE = "--dtype"
#: Options that make the start faster; those that the image itself sets are left to it.
FAST: Mapping[str, tuple[str, ...]] = {
    "--enforce-eager": (),
    # JSON in quotes on purpose: it has to get through the entrypoint
    "--compilation-config": ("'{\"mode\": 0}'",),
}
#: Short forms of these options, which the image may set, too.
SHORT = {"-cc": "--compilation-config"}
#: On a GPU, what is free need not be measured.
ON_GPU: Mapping[str, tuple[str, ...]] = {
    "--gpu-memory-utilization": ("0.05",),
    "--kv-cache-memory-bytes": (str(256 << 20),),
}
ENVIRONMENT = {
    "MODEL": MODEL_FOLDER,
    "PORT": str(PORT),
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
#: Of what the image serves only the default model is asked with a sampler that is compiled first.
QUICK_SAMPLER = {"VLLM_USE_FLASHINFER_SAMPLER": "0"}
#: Where servers on a GPU keep what the driver compiles. Of vLLM's FlashAttention a GB10 has PTX
#: alone, and what takes minutes need not be done by each of them.
COMPILED = "/root/.cache/cuda"
#: On a GPU kernels are compiled for the first answers, which may take so many times longer.
COMPILING = 2
#: vLLM's processes talk through shared memory; the engine's default of 64 MB is too little.
SHM_SIZE = "1g"
#: Bytes of memory that the server gets: a good one takes 2.3 GiB, and more where it is emulated.
MEMORY, MEMORY_EMULATED = 4 << 30, 8 << 30
#: With a GPU, whose memory may be the machine's, torch and its libraries come on top.
MEMORY_GPU = 32 << 30
#: Bytes of log at which the server counts as flooding it; a good one writes some 30 kB.
LOG_FLOOD = 4 << 20
LOG_LINES = 25
#: Characters of a line of the log that are shown.
LINE = 500
#: Seconds that a connection waits for the server to listen.
LISTEN_SECONDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to wait, in seconds: for the start, one answer, the end, and between two polls.

    Nobody waits for a start once ``ended`` is set.
    """

    start: float = 600
    answer: float = 120
    stop: float = 60
    poll: float = 1
    ended: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRun:
    """One life of the server.

    Attributes:
        fault: why it did not become healthy; empty if it did. If it is set, nothing below was
            observed but the log and the limits.
        start_seconds: how long it took to become healthy, or until that was given up.
        models: what ``/v1/models`` lists.
        models_error: what it answered instead of a list.
        answers: its answers to the questions.
        refusals: what it said to requests that are wrong.
        exit_code: how it ended after SIGTERM.
        stop_seconds: how long that took.
        log_tail: the last lines of its log.
        log: all of it, up to ``LOG_FLOOD`` bytes.
        log_bytes: how much it wrote; counted up to ``LOG_FLOOD``.
        memory: bytes of memory that it was given.
        out_of_memory: whether one of its processes was killed for taking more.
        metrics: those of its counters that the model has limits for.
        tokens_per_second: its speed on a GPU, once its answers are right; 0 if it was not measured.
    """

    fault: str
    start_seconds: float
    models: tuple[str, ...] = ()
    models_error: str = ""
    answers: tuple[Answer, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    exit_code: int | None = None
    stop_seconds: float = 0.0
    log_tail: str = ""
    log: str = ""
    log_bytes: int = 0
    memory: int = MEMORY
    out_of_memory: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)
    tokens_per_second: float = 0.0

    def explain(self, text: str) -> str:
        """``text`` with the last lines of the log below it."""
        tail = f"\nlast lines of the server's log:\n{self.log_tail}"
        return text + tail if self.log_tail else text


def observe(
    engine: Engine,
    image: ImageInfo,
    *,
    folder: Path,
    patience: Patience,
    gpus: bool = False,
    compiled: str | None = None,
    model: TinyModel = MODEL,
) -> ServerRun:
    """Serve a tiny model from ``image`` and ask it questions.

    The model is written to ``folder``. With ``gpus`` it is served on those of this machine, and
    ``compiled`` is a volume for what their driver compiles.
    """
    words, own = _options(model, gpus=gpus)
    memory = MEMORY if platforms.is_native(image.platform) else MEMORY_EMULATED
    memory = MEMORY_GPU if gpus else memory
    container = engine.start(
        image.digest,
        (*SERVE, *words),
        platform=image.platform,
        env={
            **ENVIRONMENT,
            **(QUICK_SAMPLER if gpus and model is not MODEL else {}),
            **({"CUDA_CACHE_PATH": COMPILED} if compiled else {}),
            "VLLM_EXTRA_ARGS": _fast(image, own),
        },
        mounts=[(model.write(folder), MODEL_FOLDER)],
        volumes=[(compiled, COMPILED)] if compiled else [],
        shm_size=SHM_SIZE,
        limits=Limits(memory=memory),
        gpus=gpus,
    )
    if gpus:
        patience = replace(patience, answer=patience.answer * COMPILING)
    try:
        return _live(container, model, patience, memory, gpus=gpus)
    finally:
        container.remove()


def _options(
    model: TinyModel, *, gpus: bool
) -> tuple[tuple[str, ...], Mapping[str, tuple[str, ...]]]:
    """What a model is served with, and which options the image's own replace."""
    words = list(model.serve_args)
    own = {**FAST, **(ON_GPU if gpus else {})}
    if DTYPE in words:
        index = words.index(DTYPE)
        own = {DTYPE: (words[index + 1],), **own}
        del words[index : index + 2]
    return (*words, *(model.gpu_args if gpus else ())), own


def _fast(image: ImageInfo, options: Mapping[str, tuple[str, ...]]) -> str:
    """Those of ``options`` that the image does not set: its own stay in effect."""
    try:
        words = json.loads(image.env.get("IMAGEFACTORY_SERVE_ARGS") or "[]")
        names = [option_name(str(word)) for word in words]
        own = {SHORT.get(name, name).replace("--no-", "--", 1) for name in names}
    except (ValueError, TypeError, RecursionError):
        own = set()  # the image's entrypoint refuses it, and that is seen
    return " ".join(
        " ".join((name, *values)) for name, values in options.items() if name not in own
    )


def _live(
    container: RunningContainer, model: TinyModel, patience: Patience, memory: int, *, gpus: bool
) -> ServerRun:
    began = time.monotonic()
    with closing(_client(container, patience)) as client:
        fault = _wait(container, client, patience, model.name)
        start_seconds = time.monotonic() - began
        if fault:
            log = container.logs(most=LOG_FLOOD)
            return ServerRun(
                fault=fault,
                start_seconds=start_seconds,
                log_tail=_tail(container),
                log=log,
                log_bytes=len(log.encode()),
                memory=memory,
                out_of_memory=container.ran_out_of_memory(),
            )
        models, models_error = client.models()
        connect = functools.partial(_client, container, patience)
        asked = asking.everything(model, connect, client=client, seconds=patience.answer)
        right = all(answer.right for answer in asked.answers)
        metrics = client.counters(model.metrics) if model.metrics else {}
        speed = asking.speed(model, connect) if gpus and right else 0.0
    log_tail = _tail(container)
    stopping = time.monotonic()
    exit_code = container.stop(patience.stop)
    stop_seconds = time.monotonic() - stopping
    log = container.logs(most=LOG_FLOOD)
    return ServerRun(
        fault="",
        start_seconds=start_seconds,
        models=models,
        models_error=models_error,
        answers=asked.answers,
        refusals=asked.refusals,
        metrics=metrics,
        tokens_per_second=speed,
        exit_code=exit_code,
        stop_seconds=stop_seconds,
        # A clean end writes many lines that say nothing about the answers before it.
        log_tail=_tail(container) if exit_code else log_tail,
        log=log,
        log_bytes=len(log.encode()),
        memory=memory,
        out_of_memory=container.ran_out_of_memory(),
    )


def _client(container: RunningContainer, patience: Patience) -> Client:
    """A client whose connections are relayed by a program in the container."""
    listen = str(min(LISTEN_SECONDS, patience.start))
    relay = [PYTHON, "-I", "-S", "-c", RELAY, str(PORT), listen]
    return Client(lambda: container.attach(relay), model=MODEL_NAME, seconds=patience.answer)


def _wait(container: RunningContainer, client: Client, patience: Patience, name: str) -> str:
    """Wait until the server is healthy; the reason if it does not become so."""
    began = reported = time.monotonic()
    while not client.healthy():
        now = time.monotonic()
        if not container.alive():
            return f"the container ended after {now - began:.0f} s"
        if now - began > patience.start or patience.ended.is_set():
            return f"not healthy after {now - began:.0f} s"
        if now - reported > 15:
            reported = now
            ui.say(
                f"  {name}: {now - began:.0f} s, not healthy yet: "
                f"{(_tail(container, 1) or 'no log')[:160]}"
            )
        time.sleep(patience.poll)
    return ""


def _tail(container: RunningContainer, lines: int = LOG_LINES) -> str:
    """The last lines of the log, shortened: a line may be as long as the log."""
    text = container.logs(last=2 * lines, most=LOG_FLOOD)
    return "\n".join(shorten(line, LINE) for line in text.strip().splitlines()[-lines:])
