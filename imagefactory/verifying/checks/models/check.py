"""The checks that vLLM serves right answers with each of the other tiny models.

A check for each model of ``verifying/models`` but the one that the checks of the server ask.
"""

from __future__ import annotations

from collections.abc import Iterator

from imagefactory.verifying import log_rules
from imagefactory.verifying.check_registry import (
    Registered,
    Verdict,
    check,
    count,
    excused,
    failed,
    passed,
)
from imagefactory.verifying.models.models import TinyModel, family
from imagefactory.verifying.server import LOG_FLOOD, MODEL, ServerRun
from imagefactory.verifying.subject import Subject


def _check_of(model: TinyModel) -> Registered:
    def served(subject: Subject) -> Verdict:
        seen = subject.models[model.name]
        if isinstance(seen, str):
            return excused(f"not applicable: {seen}")
        return _judged(model, seen, subject)

    served.__doc__ = (
        f"A server with the tiny model {model.name} gives right answers, which proves "
        f"{model.proves}.\n\nFails for garbage, for a log that breaks a rule, and for a server "
        "that does not start."
    )
    return check(f"model-{model.name}", model=model.name, excusable=True)(served)


def _judged(model: TinyModel, run: ServerRun, subject: Subject) -> Verdict:
    seconds = run.start_seconds + sum(one.seconds for one in run.answers)
    wrong = list(dict.fromkeys(_wrong(model, run, subject)))
    if wrong:
        return failed(run.explain("; ".join(wrong)), seconds=seconds)
    said = f"{count(len(run.answers), 'answer')} right, healthy after {run.start_seconds:.0f} s"
    if run.tokens_per_second:
        said += f", {run.tokens_per_second:.0f} tokens/s"
    said += "".join(f", {name} {run.metrics[name]:g}" for name in model.metrics)
    return passed(said, seconds=seconds)


def _wrong(model: TinyModel, run: ServerRun, subject: Subject) -> Iterator[str]:
    if run.out_of_memory:
        yield f"a process was killed for taking more than {run.memory >> 30} GiB of memory"
    if run.log_bytes >= LOG_FLOOD:
        yield f"it wrote {LOG_FLOOD >> 20} MiB of log or more"
    if run.fault:
        yield run.fault
        return
    if not run.answers:
        yield "nothing was asked"
    yield from (str(one) for one in run.answers if not one.right)
    yield from (f"{one.kind} {one}: {one.doubt}" for one in run.answers if one.right and one.doubt)
    yield from (str(one) for one in run.refusals if not one.right)
    for name, limit in model.metrics.items():
        if not run.metrics.get(name, 0.0) > limit:
            yield f"{name} is {run.metrics.get(name, 0.0):g}, and should be above {limit:g}"
    yield from log_rules.broken(run.log, model=model.name, **subject.runs_on)[1]


#: The checks of this theme.
CHECKS = tuple(_check_of(model) for model in family() if model is not MODEL)
