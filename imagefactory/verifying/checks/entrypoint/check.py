"""The checks that the entrypoint behaves as documented in docs/images.md."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping

from imagefactory.verifying.check_registry import Verdict, check, failed, passed
from imagefactory.verifying.modes import JSON_OPTION
from imagefactory.verifying.subject import Ran, Subject


@check("entrypoint-serve")
def serve(subject: Subject) -> Verdict:
    """``serve`` is the default mode and passes arguments on intact, the user's before its own.

    Fails for JSON that loses its quotes, a default that beats the user's option, or a mistake that
    is not answered with exit 2 and its cause.
    """
    runs = subject.entrypoint
    argv, own = _argv(runs["serve"]), _argv(runs["serve-arguments"])
    faults = []
    if argv[:3] != ["vllm", "serve", "org/a-model"]:
        faults.append(f"without arguments it should serve MODEL; {runs['serve']}")
    if _values(argv, "--speculative-config") != [JSON_OPTION]:
        faults.append(f"JSON in VLLM_EXTRA_ARGS is not passed on intact: {argv}")
    if _values(argv, "--port") != ["9123"]:
        faults.append(f"PORT is not passed on: {argv}")
    if "--max-num-seqs" in argv or "--max_num_seqs=3" not in argv:
        faults.append(f"an option of VLLM_EXTRA_ARGS should replace the default: {argv}")
    if _values(own, "--max-model-len") != ["77"]:
        faults.append(
            f"an option of the arguments should replace the default; {runs['serve-arguments']}"
        )
    faults += _refusals(runs)
    seconds = sum(run.seconds for name, run in runs.items() if name.startswith("serve"))
    return (
        failed("; ".join(faults), seconds=seconds)
        if faults
        else passed("arguments are passed on intact", seconds=seconds)
    )


@check("entrypoint-modes", needs="facts")
def modes(subject: Subject) -> Verdict:
    """``bash`` runs a shell; the Ray modes start Ray, or say clearly that the image has none.

    Fails for a mode that is missing or does something else.
    """
    runs = subject.entrypoint
    has_ray = subject.facts["entrypoint"]["ray"]
    faults = []
    if runs["bash"].code != 0 or runs["bash"].out.strip() != "two words 'q'":
        faults.append(f"bash: {runs['bash']}")
    for mode in ("ray-head", "ray-worker"):
        run = runs[mode]
        if has_ray and _argv(run)[:2] != ["ray", "start"]:
            faults.append(f"{mode}: {run}")
        if not has_ray and (run.code != 3 or "Ray" not in run.err):
            faults.append(f"{mode} without Ray in the image should exit 3 and say so: {run}")
    seconds = sum(runs[mode].seconds for mode in ("bash", "ray-head", "ray-worker"))
    if faults:
        return failed("; ".join(faults), seconds=seconds)
    return passed(
        "bash, ray-head, ray-worker"
        if has_ray
        else "bash; the Ray modes report that there is no Ray",
        seconds=seconds,
    )


def _refusals(runs: Mapping[str, Ran]) -> list[str]:
    """Mistakes that are not answered with exit 2 and a last line that names the cause."""
    faults = []
    for name, cause in (("serve-unbalanced", "VLLM_EXTRA_ARGS"), ("serve-no-model", "MODEL")):
        run = runs[name]
        lines = run.err.strip().splitlines()
        if run.code != 2 or not lines or cause not in lines[-1]:
            faults.append(f"{name} should exit 2 and name {cause}: {run}")
    return faults


def _argv(run: Ran) -> list[str]:
    """The command that a dry run printed; empty if it did not."""
    try:
        argv = json.loads(run.out)
    except ValueError:
        return []
    return argv if run.code == 0 and isinstance(argv, list) else []


def _values(argv: list[str], option: str) -> list[str]:
    """The words right after each ``option``."""
    return [value for word, value in itertools.pairwise(argv) if word == option]
