"""The checks that vLLM serves right answers.

``/health`` and ``/v1/models`` answer even on a server that cannot compute: only text counts. The
model is made from numbers, neither trained nor downloaded, and answers right only if attention,
MLP, norms and sampling all work.
"""

from __future__ import annotations

from dataclasses import replace

from imagefactory.verifying.answers import FIRST, Answer
from imagefactory.verifying.check_registry import Verdict, check, count, failed, passed, unknown
from imagefactory.verifying.receipt import Outcome
from imagefactory.verifying.server import LOG_FLOOD, MODEL_NAME, ServerRun
from imagefactory.verifying.subject import Subject, ending

NOT_UP = "the server did not start"
#: Seconds of an answer that are worth an explanation.
SLOW = 5.0
#: How a container ends that had to be killed.
KILLED = 137


@check("server-starts", needs="server")
def starts(subject: Subject) -> Verdict:
    """A vLLM server in the container, with a small model, becomes healthy.

    Fails for a server that ends, or is not healthy in time.
    """
    run = _run(subject)
    if run.fault:
        return failed(run.explain(run.fault), seconds=run.start_seconds)
    return passed(f"healthy after {run.start_seconds:.0f} s", seconds=run.start_seconds)


@check("server-limits", needs="server")
def limits(subject: Subject) -> Verdict:
    """The server needs less than 4 GiB of memory (8 GiB where it is emulated) and of log 4 MiB.

    Fails for a server one of whose processes is killed for taking more memory, and for one that
    floods its log.
    """
    run = _run(subject)
    faults = []
    if run.out_of_memory:
        faults.append(
            f"a process of it was killed for taking more than {run.memory >> 30} GiB of memory"
        )
    if run.log_bytes >= LOG_FLOOD:
        faults.append(f"it wrote {LOG_FLOOD >> 20} MiB of log or more")
    if faults:
        return failed(run.explain("; ".join(faults)))
    if run.fault:
        return unknown(NOT_UP)
    return passed(f"within {run.memory >> 30} GiB of memory; {run.log_bytes / 1000:.0f} kB of log")


@check("server-models", needs="server")
def models(subject: Subject) -> Verdict:
    """``/v1/models`` lists the model that the server was given, and no other.

    Fails for another list or none.
    """
    run = _run(subject)
    if run.fault:
        return unknown(NOT_UP)
    if run.models != (MODEL_NAME,):
        said = run.models_error or ", ".join(run.models) or "none"
        return failed(run.explain(f"/v1/models should list {MODEL_NAME}: {said}"))
    return passed(MODEL_NAME)


@check("server-completions", needs="server")
def completions(subject: Subject) -> Verdict:
    """Completions have the right text, word for word: the first, eight at once, and later ones.

    Most of the time goes to the first one: it asks for logprobs, for which vLLM compiles code. That
    shows that this image can compile.

    Fails for garbage, HTTP errors and answers that do not come in time.
    """
    run = _run(subject)
    verdict = _answers(run, "completion")
    first = next((one.seconds for one in run.answers if one.kind == "completion"), 0.0)
    if verdict.outcome is Outcome.PASS and first > max(SLOW, verdict.seconds / 2):
        noted = f"{verdict.detail}; the first one took {first:.0f} s, as vLLM compiles for logprobs"
        return replace(verdict, detail=noted)
    return verdict


@check("server-chat", needs="server")
def chat(subject: Subject) -> Verdict:
    """Chat completions, which use the chat template, have the right text, also when asked again.

    Fails for garbage, HTTP errors and answers that do not come in time.
    """
    return _answers(_run(subject), "chat")


@check("server-stream", needs="server")
def stream(subject: Subject) -> Verdict:
    """A streamed chat completion has the right text, word for word, also when asked again, and is
    character for character what the same question gets in one piece.

    Fails for garbage, HTTP errors, a stream that breaks off, and one that says something else.
    """
    run = _run(subject)
    verdict = _answers(run, "stream")
    whole = {_asked(answer): answer.text for answer in run.answers if answer.kind == "chat"}
    for answer in run.answers:
        text = whole.get(_asked(answer), answer.text)
        if verdict.outcome is Outcome.PASS and answer.kind == "stream" and answer.text != text:
            said = f"{answer.question.prompt!r}: {answer.text!r} streamed, {text!r} in one piece"
            return failed(run.explain(said))
    return verdict


@check("server-reasoning", needs="server")
def reasoning(subject: Subject) -> Verdict:
    """What the model thinks arrives in the field ``reasoning``, and its answer in ``content``, in
    one piece and streamed.

    Fails for thoughts among the content, or under the field's former name, ``reasoning_content``.
    """
    return _answers(_run(subject), "reasoning", "reasoning-stream")


@check("server-calls", needs="server")
def calls(subject: Subject) -> Verdict:
    """The model's call of a function arrives as ``tool_calls`` with a name, an id and arguments in
    JSON, and what the function returned gets the right answer, in one piece and streamed.

    Fails for a call that stays text, has other arguments or none, or ends for another reason.
    """
    return _answers(_run(subject), "call", "call-stream")


@check("server-logprobs", needs="server")
def logprobs(subject: Subject) -> Verdict:
    """Each word of a right answer comes with its logprob, a number, and the chance is above 1/2.

    Fails for NaN, null and missing logprobs, and for answers that are right by luck.
    """
    run = _run(subject)
    if run.fault:
        return unknown(NOT_UP)
    right = [answer for answer in run.answers if answer.right]
    if not right:
        return unknown("no answer was right")
    doubts = [f"{answer.kind} {answer}: {answer.doubt}" for answer in right if answer.doubt]
    if doubts:
        return failed(run.explain("; ".join(doubts)))
    least = min(min(answer.logprobs) for answer in right)
    return passed(f"{count(len(right), 'answer')}, each word with a logprob of {least:.2f} or more")


@check("server-refusals", needs="server")
def refusals(subject: Subject) -> Verdict:
    """Requests that are wrong get HTTP 4xx and a reason; ``server-completions`` and the others ask
    again after them.

    Fails for a request that is answered, for HTTP 5xx and for no response.
    """
    run = _run(subject)
    if run.fault:
        return unknown(NOT_UP)
    if not run.refusals:
        return unknown("its first answers were wrong")
    wrong = [str(refusal) for refusal in run.refusals if not refusal.right]
    if wrong:
        return failed(run.explain("; ".join(wrong)))
    return passed("; ".join(map(str, run.refusals)))


@check("server-stops", needs="server")
def stops(subject: Subject) -> Verdict:
    """The server ends by itself, with exit code 0, when it receives SIGTERM.

    Fails for a server that has to be killed or ends with an error.
    """
    run = _run(subject)
    if run.fault:
        return unknown(NOT_UP)
    if run.exit_code != 0:
        in_time = "killed, it did not end in time"
        why = in_time if run.exit_code == KILLED else ending(run.exit_code) or "not a clean end"
        return failed(
            run.explain(f"exit {run.exit_code} after SIGTERM: {why}"), seconds=run.stop_seconds
        )
    return passed(f"exit 0 after {run.stop_seconds:.1f} s", seconds=run.stop_seconds)


def _run(subject: Subject) -> ServerRun:
    if subject.server is None:
        raise ValueError('a check that reads the server run needs "server"')
    return subject.server


def _answers(run: ServerRun, *kinds: str) -> Verdict:
    if run.fault:
        return unknown(NOT_UP)
    answers = [answer for answer in run.answers if answer.kind in kinds]
    seconds = sum(answer.seconds for answer in answers)
    wrong = [str(answer) for answer in answers if not answer.right]
    asked = {answer.kind for answer in answers}
    wrong += [f"no {kind} was asked for" for kind in kinds if kind not in asked]
    if wrong:
        return failed(run.explain("; ".join(wrong)), seconds=seconds)
    different = dict.fromkeys(str(answer) for answer in answers if answer.when == FIRST)
    later = len(answers) - len(different)
    return passed(f"{'; '.join(different)}; right {count(later, 'more time')}", seconds=seconds)


def _asked(answer: Answer) -> tuple[str, str]:
    return answer.question.prompt, answer.when
