"""A good image for the checks, which tests break in one respect."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from imagefactory.locking.lock import Resolution, TorchBuild, Wheel
from imagefactory.matrix.cell import Base, Cell, Flavor
from imagefactory.system.engine import ImageInfo
from imagefactory.system.platforms import Platform
from imagefactory.system.yamlfile import Location
from imagefactory.verifying import checks, probe
from imagefactory.verifying.answers import Answer, Refusal
from imagefactory.verifying.asking import MISUSES
from imagefactory.verifying.check_registry import judge
from imagefactory.verifying.gpu.running import GpuRun
from imagefactory.verifying.models import words
from imagefactory.verifying.modes import JSON_OPTION
from imagefactory.verifying.outside.judged import Judged
from imagefactory.verifying.receipt import CheckResult
from imagefactory.verifying.server import MODEL, MODEL_NAME, ServerRun
from imagefactory.verifying.subject import Expectation, Probed, Ran, Subject

CUDA = TorchBuild(version="2.11.0+cu130", cuda="13.0")
CPU = TorchBuild(version="2.13.0+cpu", cuda=None)
PATCH = "vllm/mtp-exclusion"
FILE = "vllm/modelopt.py"
#: What is found in a good image.
CONTENT = Judged(files=40_000, wheels=3, seconds=9.0)
METADATA = "vllm-0.32.0+cpu.dist-info/METADATA"


def image_info(
    *,
    ref: str = "imagefactory/vllm:test",
    digest: str = "sha256:" + "ab" * 32,
    platform: str = "linux/arm64",
    labels: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
) -> ImageInfo:
    return ImageInfo(
        ref=ref,
        digest=digest,
        layers=(),
        platform=platform,
        labels=labels or {},
        env=env or {},
        size=1,
    )


def wheel(name: str, version: str) -> Wheel:
    return Wheel(
        name=name,
        version=version,
        filename=f"{name}-{version}-py3-none-any.whl",
        sha256=(name + version).encode().hex().ljust(64, "0")[:64],
        size=1,
        index="https://pypi.org/simple",
    )


def resolution(torch: TorchBuild = CUDA) -> Resolution:
    return Resolution(
        created="2026-11-20",
        name="test",
        platform=Platform.ARM64,
        python="3.13",
        glibc="2.41",
        channel="cu130" if torch.cuda else "cpu",
        requirements=(),
        overrides=(),
        torch=torch,
        wheels=(
            wheel("numpy", "2.0"),
            wheel("torch", torch.version.partition("+")[0]),
            wheel("vllm", "0.22.1"),
        ),
    )


def axes(channel: str) -> dict[str, str]:
    cuda = {} if channel == "cpu" else {"cuda": "13.0"}
    return {
        "flavor": "gb10",
        "platform": "linux/arm64",
        "python": "3.13",
        "channel": channel,
        "torch": "2.11.0",
        "vllm": "0.22.1",
        **cuda,
    }


def labels(channel: str) -> dict[str, str]:
    oci, own = "org.opencontainers.image", "io.imagefactory"
    return {
        f"{oci}.title": "vLLM",
        f"{oci}.version": "0.22.1",
        f"{oci}.created": "2026-11-20T00:00:00Z",
        f"{own}.cell": "a-cell",
        f"{own}.build-key": "key",
        f"{own}.lock-digest": "lock",
        f"{own}.flavor": "gb10",
        f"{own}.channel": channel,
        **{
            f"{own}.pin.{name}": axes(channel)[name]
            for name in ("vllm", "torch", "cuda", "python")
            if name in axes(channel)
        },
        f"{own}.patch.vllm.mtp-exclusion": "0.22.diff",
    }


def manifest(locked: Resolution) -> dict[str, Any]:
    """What the build recorded in the image."""
    torch = {"version": locked.torch.version, "cuda": locked.torch.cuda}
    return {
        "cell": "a-cell",
        "build_key": "key",
        "axes": axes(locked.channel),
        "torch": torch,
        "wheels": [
            {
                "name": wheel.name,
                "version": wheel.version,
                "sha256": wheel.sha256,
                "group": "deps",
            }
            for wheel in locked.wheels
        ],
        "layers": [
            {"group": "first", "torch": None},
            {"group": "cuda-torch", "torch": torch},
            {"group": "vllm", "torch": torch},
        ],
        "toolchain": {"nvidia-cuda-nvcc": "13.0.88"} if torch["cuda"] else None,
        "dropped": [
            {"layer": "cuda-torch", "rule": "tests", "why": "", "files": 2, "bytes": 3_000_000}
        ],
        "patches": [{"name": PATCH, "files": {FILE: "11" * 32}, "created": []}],
    }


def report(locked: Resolution) -> dict[str, Any]:
    """What the probe reports: the facts of each theme are those of ``good`` in its test."""
    tests = {
        theme: f"{checks.__name__}.{theme}.test_{theme}"
        for theme in probe.sources()
        if find_spec(f"{checks.__name__}.{theme}.test_{theme}")
    }
    return {
        "python": "3.13.5",
        "machine": "aarch64",
        "manifest": manifest(locked),
        "facts": {theme: import_module(name).good(locked) for theme, name in tests.items()},
        "errors": {},
    }


def runs() -> dict[str, Ran]:
    argv = [
        "vllm",
        "serve",
        "org/a-model",
        "--port",
        "9123",
        "--speculative-config",
        JSON_OPTION,
        "--max_num_seqs=3",
    ]
    own = ["vllm", "serve", "org/a-model", "--max-model-len", "77"]
    return {
        "serve": Ran(code=0, out=json.dumps(argv), err=""),
        "serve-arguments": Ran(code=0, out=json.dumps(own), err=""),
        "serve-unbalanced": Ran(
            code=2, out="", err="entrypoint: VLLM_EXTRA_ARGS: No closing quotation"
        ),
        "serve-no-model": Ran(code=2, out="", err="entrypoint: no model: set MODEL"),
        "ray-head": Ran(code=3, out="", err="entrypoint: ray-head needs Ray"),
        "ray-worker": Ran(code=3, out="", err="entrypoint: ray-worker needs Ray"),
        "bash": Ran(code=0, out="two words 'q'\n", err=""),
    }


def answer(
    kind: str, question: words.Question, *, text: str | None = None, status: int | None = 200
) -> Answer:
    said = " ".join(question.answer) if text is None else text
    return Answer(
        kind=kind,
        question=question,
        status=status,
        text=said,
        seconds=0.1,
        finish=question.finish,
        logprobs=(-0.02,),
    )


def server_run(**changes: Any) -> ServerRun:
    kinds = {
        "completion": MODEL.completions,
        **dict.fromkeys(("chat", "stream"), MODEL.chats),
        **dict.fromkeys(("reasoning", "reasoning-stream"), MODEL.reasoning),
        **dict.fromkeys(("call", "call-stream"), MODEL.calls),
    }
    answers = tuple(answer(kind, question) for kind, asked in kinds.items() for question in asked)
    error = '{"error": {"message": "no"}}'
    refusals = tuple(Refusal(request=fault, status=400, text=error) for fault in MISUSES)
    good = {
        "fault": "",
        "start_seconds": 40.0,
        "models": (MODEL_NAME,),
        "answers": answers,
        "refusals": refusals,
        "exit_code": 0,
    }
    return ServerRun(**{**good, **changes})


def cell(channel: str = "cu130") -> Cell:
    location = Location(file="matrix.yaml", line=1)
    base = Base(name="trixie", image="debian", suite=None, python="3.13", glibc="2.41", packages=())
    flavor = Flavor(
        name="gb10",
        summary="",
        base=base,
        requirements=(),
        patches=(PATCH,),
        env={},
        serve_args=(),
        driver=None,
        toolchain=None,
        location=location,
    )
    return Cell(
        name="a-cell",
        axes=axes(channel),
        locations={},
        flavor=flavor,
        requirements=(),
        overrides=(),
        tags=(),
    )


def expectation(locked: Resolution) -> Expectation:
    return Expectation(
        cell=cell(locked.channel), build_key="key", lock_digest="lock", resolution=locked
    )


@dataclass
class Good:
    """Everything about a good image; change an attribute and get the results of the checks."""

    torch: TorchBuild = CUDA

    def __post_init__(self) -> None:
        self.resolution: Resolution | None = resolution(self.torch)
        self.report: dict[str, Any] | None = report(resolution(self.torch))
        self.labels = labels(resolution(self.torch).channel)
        self.platform = "linux/arm64"
        self.runs = runs()
        self.server: ServerRun | None = None if self.torch.cuda else server_run()
        self.expected: Expectation | None = expectation(resolution(self.torch))
        self.content: Judged | None = CONTENT
        self.builds: tuple[str, ...] = (image_info().digest,)
        self.gpu: GpuRun | None = None
        self.models: dict[str, ServerRun | str] = {}

    @property
    def reported(self) -> dict[str, Any]:
        assert self.report is not None
        return self.report

    @property
    def facts(self) -> dict[str, Any]:
        """What the probes reported, by theme."""
        value: dict[str, Any] = self.reported["facts"]
        return value

    @property
    def manifest(self) -> dict[str, Any]:
        value: dict[str, Any] = self.reported["manifest"]
        return value

    def subject(self) -> Subject:
        return Subject(
            image=image_info(platform=self.platform, labels=self.labels),
            probed=Probed(
                report=self.report, error="no Python at all" if self.report is None else ""
            ),
            entrypoint=self.runs,
            server=self.server,
            resolution=self.resolution,
            expected=self.expected,
            content=self.content,
            builds=self.builds,
            gpu=self.gpu,
            models=self.models,
        )

    def results(self) -> dict[str, CheckResult]:
        return {result.name: result for result in judge(self.subject())}
