"""Server: the faults that turn its checks red, from what was observed of a run.

How a server is run and asked is tested with broken servers in ``tests/unit/verifying``.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from support.verify_fakes import CPU, Good, answer, server_run
from support.verify_faults import Fault, red

from imagefactory.verifying.answers import Refusal
from imagefactory.verifying.checks.server import check
from imagefactory.verifying.receipt import Outcome
from imagefactory.verifying.server import LOG_FLOOD


def answers_with(image: Good, kind: str, *, text: str, status: int | None = 200) -> None:
    """Break those of a kind."""
    answers = tuple(
        answer(kind, one.question, text=text, status=status) if one.kind == kind else one
        for one in server_run().answers
    )
    image.server = server_run(answers=answers, log_tail="Illegal instruction")


def doubtful(image: Good, *logprobs: float) -> None:
    first, *others = server_run().answers
    image.server = server_run(answers=(replace(first, logprobs=logprobs), *others))


def refused(image: Good, status: int, text: str) -> None:
    one = Refusal(request="nonsense", status=status, text=text)
    image.server = server_run(refusals=(one,))


def runs(image: Good, **changes: object) -> None:
    image.server = server_run(**changes)


FAULTS = (
    Fault(
        check="server-starts",
        name="it ends at start",
        breaks=lambda image: runs(
            image, fault="the container ended after 3 s", log_tail="PackageNotFoundError"
        ),
        says="PackageNotFoundError",
        torch=CPU,
    ),
    Fault(
        check="server-limits",
        name="too much memory",
        breaks=lambda image: runs(image, out_of_memory=True, memory=4 << 30),
        says="more than 4 GiB of memory",
        torch=CPU,
    ),
    Fault(
        check="server-limits",
        name="a flooded log",
        breaks=lambda image: runs(image, log_bytes=LOG_FLOOD),
        says="4 MiB of log",
        torch=CPU,
    ),
    Fault(
        check="server-models",
        name="another model",
        breaks=lambda image: runs(image, models=("gpt",)),
        says="gpt",
        torch=CPU,
    ),
    Fault(
        check="server-models",
        name="no list",
        breaks=lambda image: runs(image, models=(), models_error="HTTP 500"),
        says="HTTP 500",
        torch=CPU,
    ),
    Fault(
        check="server-completions",
        name="garbage",
        breaks=lambda image: answers_with(image, "completion", text="!!!!!"),
        says="'!!!!!' and not 'Paris .'",
        torch=CPU,
    ),
    Fault(
        check="server-completions",
        name="HTTP 500",
        breaks=lambda image: answers_with(image, "completion", text="dead", status=500),
        says="HTTP 500, 'dead'",
        torch=CPU,
    ),
    Fault(
        check="server-completions",
        name="nothing was asked",
        breaks=lambda image: runs(image, answers=()),
        says="no completion",
        torch=CPU,
    ),
    Fault(
        check="server-chat",
        name="garbage",
        breaks=lambda image: answers_with(image, "chat", text="Paris ."),
        says="'Paris .' and not 'Tokyo .'",
        torch=CPU,
    ),
    Fault(
        check="server-stream",
        name="silence",
        breaks=lambda image: answers_with(image, "stream", text="timed out", status=None),
        says="no response",
        torch=CPU,
    ),
    Fault(
        check="server-stream",
        name="other spaces than in one piece",
        breaks=lambda image: answers_with(image, "stream", text="Tokyo  ."),
        says="'Tokyo  .' streamed, 'Tokyo .' in one piece",
        torch=CPU,
    ),
    Fault(
        check="server-reasoning",
        name="thoughts among the content",
        breaks=lambda image: answers_with(image, "reasoning", text="let me see Tokyo ."),
        says="'let me see Tokyo .' and not '<think> let me see </think> Tokyo .'",
        torch=CPU,
    ),
    Fault(
        check="server-calls",
        name="a call that stays text",
        breaks=lambda image: answers_with(image, "call-stream", text="<tool_call> neighbour"),
        says='and not \'neighbour {"country": "Japan"}\'',
        torch=CPU,
    ),
    Fault(
        check="server-logprobs",
        name="NaN",
        breaks=lambda image: doubtful(image, -0.1, math.nan),
        says="a logprob of nan",
        torch=CPU,
    ),
    Fault(
        check="server-logprobs",
        name="above 0",
        breaks=lambda image: doubtful(image, 0.1),
        says="a logprob of 0.1",
        torch=CPU,
    ),
    Fault(
        check="server-logprobs",
        name="none",
        breaks=doubtful,
        says="no logprobs",
        torch=CPU,
    ),
    Fault(
        check="server-logprobs",
        name="right by luck",
        breaks=lambda image: doubtful(image, -0.1, -3.0),
        says="a word had a chance of 0.05 only",
        torch=CPU,
    ),
    Fault(
        check="server-refusals",
        name="nonsense is answered",
        breaks=lambda image: refused(image, 200, "{}"),
        says="nonsense: HTTP 200",
        torch=CPU,
    ),
    Fault(
        check="server-refusals",
        name="no reason is given",
        breaks=lambda image: refused(image, 400, "no"),
        says="nonsense: HTTP 400, 'no'",
        torch=CPU,
    ),
    Fault(
        check="server-stops",
        name="it was killed",
        breaks=lambda image: runs(image, exit_code=137),
        says="killed",
        torch=CPU,
    ),
    Fault(
        check="server-stops",
        name="an error at the end",
        breaks=lambda image: runs(image, exit_code=1),
        says="exit 1 after SIGTERM",
        torch=CPU,
    ),
)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_check_goes_red_for_its_fault_and_says_why(fault: Fault) -> None:
    assert fault.says in red(fault)


def test_a_wrong_answer_comes_with_the_last_lines_of_the_log() -> None:
    image = Good(torch=CPU)
    answers_with(image, "completion", text="", status=500)
    assert "Illegal instruction" in image.results()["server-completions"].detail


def test_a_first_answer_for_which_code_was_compiled_is_explained() -> None:
    image = Good(torch=CPU)
    first, *others = server_run().answers
    image.server = server_run(answers=(replace(first, seconds=27.6), *others))
    compiled = image.results()["server-completions"]
    image.server = server_run(answers=(replace(first, seconds=4.0), *others))
    assert compiled.detail.endswith("the first one took 28 s, as vLLM compiles for logprobs")
    assert "compiles" not in image.results()["server-completions"].detail


def test_right_answers_are_shown_once_and_counted_with_all_that_were_asked_again() -> None:
    image = Good(torch=CPU)
    first = server_run().answers
    again = tuple(replace(one, when="asked again") for one in first)
    runs(image, answers=(*first, *again, *again))
    asked = [one for one in first if one.kind == "completion"]
    said = "; ".join(dict.fromkeys(map(str, asked)))
    more = f"{2 * len(asked)} more times"
    result = image.results()["server-completions"]
    assert result.detail == f"{said}; right {more}"
    assert result.seconds == pytest.approx(0.1 * 3 * len(asked))
    runs(image, answers=first)
    assert image.results()["server-completions"].detail == f"{said}; right 0 more times"


def test_checks_of_a_server_that_did_not_start_are_skips_that_hold_the_image_back() -> None:
    image = Good(torch=CPU)
    runs(image, fault="not healthy after 600 s", answers=())
    results = image.results()
    assert results.pop("server-starts").outcome is Outcome.FAIL
    others = [result for name, result in results.items() if name.startswith("server-")]
    assert len(others) == 11
    assert all(result.outcome is Outcome.SKIP and result.required for result in others)


def test_a_check_that_does_not_say_that_it_needs_the_server_is_a_mistake() -> None:
    with pytest.raises(ValueError, match='needs "server"'):
        check._run(replace(Good().subject(), server=None))  # noqa: SLF001 - checks go through it
