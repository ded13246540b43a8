"""Runs in the container: vLLM's benchmark_moe.py on one GPU, without Ray.

The script gives its work to Ray, which most images do not have, and which one GPU does not need:
here a stand-in calls the same code in this process. The last line of the output has the result.
Only the standard library is used, and what the image has.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

#: How the lines begin that the caller reads.
PROGRESS, RESULT = "imagefactory-tune: ", "imagefactory-tuned: "
NO_GPU = 3
_SECONDS = 60.0


class _Method:
    def __init__(self, call: Callable[..., Any]) -> None:
        self.remote = call


class _Actor:
    """An object whose methods are called as Ray's are."""

    def __init__(self, inner: object) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> _Method:
        return _Method(getattr(self._inner, name))


def _remote(**_: object) -> Callable[[type], Any]:
    def wrap(kind: type) -> Any:
        return _Method(lambda *words: _Actor(kind(*words)))

    return wrap


def _slowly(rows: Iterable[Any], *_: object, **__: object) -> Iterator[Any]:
    """``rows``, with a line about the progress each minute, as in a log."""
    known, since = list(rows), time.monotonic()
    for number, row in enumerate(known):
        if time.monotonic() - since > _SECONDS:
            since = time.monotonic()
            say(f"{number} of {len(known)} configurations tried")
        yield row


def without_ray() -> None:
    """Put a stand-in for Ray where the script imports it: one worker, called in this process."""
    ray, experimental, progress = map(
        ModuleType, ("ray", "ray.experimental", "ray.experimental.tqdm_ray")
    )
    ray.__dict__.update(
        init=lambda *_, **__: None,
        available_resources=lambda: {"GPU": 1},
        get_gpu_ids=lambda: [0],
        remote=_remote,
        get=lambda answers: answers,
        experimental=experimental,
    )
    progress.__dict__["tqdm"] = _slowly
    for module in (ray, experimental, progress):
        sys.modules[module.__name__] = module


def skip_what_does_not_compile() -> None:
    """Let the script skip a configuration that Triton fails to compile, and go on.

    It skips those that are too large, and dies of others after hours: Triton 3.6.0 fails for some
    BF16 kernels of vLLM 0.22.1 on an H200 with ``PassManager::run failed``.
    """
    kernel = import_module("triton.runtime.jit").JITFunction
    too_large = import_module("triton.runtime.autotuner").OutOfResources
    compiled = kernel._do_compile  # noqa: SLF001 - `run` fails in other ways, too

    def compiles(*words: Any, **options: Any) -> Any:
        try:
            return compiled(*words, **options)
        except RuntimeError as error:
            say(f"a configuration does not compile: {str(error).partition(chr(10))[0]}")
            raise too_large(0, 0, "compiler") from error

    kernel._do_compile = compiles  # noqa: SLF001 - as above


def say(text: str) -> None:
    """A line for the caller."""
    sys.stdout.write(f"{PROGRESS}{text}\n")
    sys.stdout.flush()


def tune(script: str, words: list[str], config: dict[str, Any] | None) -> dict[str, Any]:
    """Run the script; what it wrote, and what vLLM finds of it.

    ``config`` is that of a model which is only described; the script gets its folder.
    """
    folder = Path(tempfile.mkdtemp())
    results = folder / "results"
    results.mkdir()
    if config is not None:
        model = folder / "model"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(config), encoding="utf-8")
        words = ["--model", str(model), *words]
    without_ray()
    skip_what_does_not_compile()
    sys.argv = [script, *words, "--tune", "--save-dir", str(results)]
    runpy.run_path(script, run_name="__main__")
    files = sorted(results.iterdir())
    if len(files) != 1:
        sys.exit(f"{Path(script).name} wrote {len(files)} files")
    return {"name": files[0].name, "text": files[0].read_text(encoding="utf-8")} | found(files[0])


def found(file: Path) -> dict[str, Any]:
    """What vLLM itself returns for a file's shape, if it looks into the file's folder."""
    os.environ["VLLM_TUNED_CONFIG_FOLDER"] = str(file.parent)
    kernel = import_module("vllm.model_executor.layers.fused_moe.fused_moe")
    head, _, block = file.stem.partition(",block_shape=")
    says = dict(part.split("=", 1) for part in head.split(","))
    sides = json.loads(block) if block else [None, None]
    rows = kernel.get_moe_configs(int(says["E"]), int(says["N"]), says.get("dtype"), *sides)
    return {
        "device": kernel.current_platform.get_device_name(0),
        "loaded": {str(key): row for key, row in (rows or {}).items()},
    }


def main() -> None:
    """Do what the arguments say: the script, and a job as JSON."""
    job = json.loads(sys.argv[2])
    torch = import_module("torch")
    if not torch.cuda.is_available():
        sys.stdout.write(f"{PROGRESS}this container has no NVIDIA GPU that torch sees\n")
        sys.exit(NO_GPU)
    say(f"tuning on {torch.cuda.get_device_name(0)}")
    done = tune(sys.argv[1], job["words"], job["config"])
    sys.stdout.write(f"{RESULT}{json.dumps(done)}\n")


if __name__ == "__main__":
    main()
