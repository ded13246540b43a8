"""Runs the image's entrypoint in each of its modes, without a model and without a network."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from imagefactory.errors import SetupError
from imagefactory.system.engine import Engine, ImageInfo
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
