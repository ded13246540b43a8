"""Runs vLLM's own tuning script in a container of the image, on this machine's GPU."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagefactory.errors import CheckFailedError, Problem, SetupError, fail
from imagefactory.launching import docker
from imagefactory.launching.launching import CACHE, Launch, Mount
from imagefactory.system import strict_json
from imagefactory.system.engine import Engine, RunningContainer
from imagefactory.tuning import files, inside
from imagefactory.tuning.files import TRITON
from imagefactory.tuning.release import Release
from imagefactory.verifying.client import PYTHON

FOLDER = "/opt/imagefactory-tuning"
#: Where a model of the host is in the container.
MODEL = "/model"
_SCRIPT, _INSIDE = f"{FOLDER}/benchmark_moe.py", f"{FOLDER}/inside.py"
#: Seconds between two looks at the log, and the lines of it that are read.
POLL, LINES = 2.0, 400
#: What the script says after each batch size.
_DONE = "] Completed tuning for "


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is tuned.

    Attributes:
        words: options of the script.
        config: of a model that is only described, as its config.json; None for one by name.
        model: a folder of the host with the model's config.json; empty for none.
        batch_sizes: those to try; empty for the script's own.
    """

    words: tuple[str, ...]
    config: Mapping[str, Any] | None = None
    model: str = ""
    batch_sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What came of it: the file's name and content, and the GPU that it is for."""

    name: str
    content: bytes
    device: str


def config_of(
    experts: int, size: int, hidden: int, top_k: int, block: tuple[int, int] | None
) -> dict[str, Any]:
    """A config.json from which every release of the script reads these numbers: Mixtral's."""
    quantized = {
        "quant_method": "fp8",
        "weight_block_size": block,
        "group_size": (block or (0, 0))[1],
    }
    return {
        "model_type": "mixtral",
        "architectures": ["MixtralForCausalLM"],
        "torch_dtype": "bfloat16",
        "num_local_experts": experts,
        "num_experts_per_tok": top_k,
        "intermediate_size": size,
        "hidden_size": hidden,
        **({"quantization_config": quantized} if block else {}),
    }


def launch(
    job: Job, release: Release, image: str, *, cache: str, name: str, labels: Mapping[str, str] = {}
) -> Launch:
    """The container that tunes. Only a model's config is downloaded, not its weights."""
    sizes = [str(one) for one in job.batch_sizes]
    words = [*job.words, *(("--batch-size", *sizes) if sizes else ())]
    task = json.dumps({"words": words, "config": job.config}, separators=(",", ":"))
    mounts = [
        Mount(source=cache, target=CACHE),
        Mount(source=str(release.script), target=_SCRIPT, read_only=True),
        Mount(source=str(Path(inside.__file__).resolve()), target=_INSIDE, read_only=True),
    ]
    if job.model:
        mounts.append(Mount(source=job.model, target=MODEL, read_only=True))
    return Launch(
        name=name,
        image=image,
        command=("bash", "-c", shlex.join([PYTHON, "-u", _INSIDE, _SCRIPT, task])),
        passed_on=("HF_TOKEN",),
        mounts=tuple(mounts),
        labels=labels,
    )


def tune(
    engine: Engine, job: Job, release: Release, image: str, *, cache: str, poll: float = POLL
) -> Iterator[str | Tuned]:
    """Tune: lines about the progress, and the result as the last one.

    Raises SetupError ``gpu-missing`` on a machine without a GPU, CheckFailedError if vLLM's script
    fails, or what it wrote is not what this vLLM takes.
    """

    def words(name: str, labels: Mapping[str, str]) -> Sequence[str]:
        return docker.arguments(launch(job, release, image, cache=cache, name=name, labels=labels))

    with engine.lent(words) as container:
        yield from _progress(container, poll)
        code, log = container.exit_code(), container.logs(last=LINES).splitlines()
    if code == inside.NO_GPU:
        what = "torch in the container sees no NVIDIA GPU"
        fix = "tune on the machine whose GPU it is for; imagefactory doctor looks at the driver"
        raise fail(SetupError, "gpu-missing", what, fix=fix)
    results = [line for line in log if line.startswith(inside.RESULT)]
    if code or not results:
        what = f"vLLM's benchmark_moe.py ended with exit status {code}"
        detail = "\n".join(log[-25:])
        raise CheckFailedError(
            Problem(code="tune-failed", what=what, fix="its last lines are below", detail=detail)
        )
    yield _judged(results[-1].removeprefix(inside.RESULT), job, release)


def _progress(container: RunningContainer, poll: float) -> Iterator[str]:
    seen: set[str] = set()
    alive = True
    while alive:
        alive = container.alive()
        for line in container.logs(last=LINES).splitlines():
            is_new = line not in seen and (line.startswith(inside.PROGRESS) or _DONE in line)
            seen |= {line} if is_new else set()
            if is_new:
                yield line.removeprefix(inside.PROGRESS).rpartition("] ")[2]
        if alive:
            time.sleep(poll)


def _judged(line: str, job: Job, release: Release) -> Tuned:
    """The file, checked. Raises CheckFailedError."""
    try:
        data = json.loads(line)
        name, text = str(data["name"]), str(data["text"])
        device, loaded = str(data["device"]), data["loaded"]
    except (ValueError, KeyError, TypeError):
        raise fail(CheckFailedError, "tune-failed", f"no result: {line:.80}") from None
    content = text.encode()
    shape = files.shape_of(name)
    problems = files.check(
        name,
        content,
        release,
        device=shape.device if shape else files.GB10,
        batch_sizes=job.batch_sizes,
    )
    if not problems and rows_of(content) != loaded:
        what = f"vLLM {release.version} does not find it by its shape on {device}"
        problems = [Problem(code="tuning-not-found", where=name, what=what)]
    if problems:
        raise CheckFailedError(problems)
    return Tuned(name=name, content=content, device=shape.device if shape else device)


def rows_of(content: bytes) -> dict[str, Any]:
    """The configurations in a file by batch size. Raises ValueError if it is no such file."""
    data = strict_json.loads(content, files.LARGEST)
    if not isinstance(data, dict) or not all(key.isdecimal() for key in data if key != TRITON):
        raise ValueError("it is no object with a key for each batch size")
    return {key: row for key, row in data.items() if key != TRITON}


def merged(old: bytes, new: bytes) -> bytes:
    """``new``, with the batch sizes that only ``old`` has, in vLLM's own form.

    Raises ValueError if ``old`` is no such file.
    """
    known = json.loads(new)
    rows = rows_of(old) | rows_of(new)
    head = {TRITON: known[TRITON]} if TRITON in known else {}
    ordered = {key: rows[key] for key in sorted(rows, key=int)}
    return (json.dumps({**head, **ordered}, indent=4) + "\n").encode()
