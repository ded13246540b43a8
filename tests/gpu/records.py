"""Records of runs on GPUs: how they are judged, and the table that docs/gpu.md shows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from imagefactory.verifying.answers import Answer, Refusal
from imagefactory.verifying.gpu import judging
from imagefactory.verifying.gpu.judging import FAIL, PASS, Judged
from imagefactory.verifying.models.words import Question

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "data" / "gpu"

Record = Mapping[str, Any]


class Row(NamedTuple):
    """One line of a record: what ran, how it was judged, and how long it took.

    ``planted`` is whether something was made wrong on purpose, so that a failure is right.
    """

    name: str
    judged: Judged
    seconds: float
    planted: bool = False

    @property
    def good(self) -> bool:
        """Whether it ended as it has to; a fault that was planted has to be found."""
        if self.judged.excused:
            return True
        return self.judged.outcome == (FAIL if self.planted else PASS)


def load_all() -> dict[str, Record]:
    """Every record in the repository, by its name."""
    return {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(FOLDER.glob("*.json"))
    }


def rows(record: Record) -> Iterator[Row]:
    """All that ran, in order."""
    probes = record["probes"]
    for name, ran in probes["probes"].items():
        yield Row(name, judging.judge(name, probes), ran["seconds"])
    for plant, ran in probes["planted"].items():
        name = plant.partition(":")[0]
        spoilt = {**probes, "probes": {**probes["probes"], name: ran}}
        judged = judging.judge(name, spoilt)
        if ran["error"]:  # an error shows nothing about the fault
            judged = Judged(PASS, f"not shown: {ran['error']}")
        yield Row(plant, judged, ran["seconds"], planted=True)
    for name, seen in (record["servers"] or {"servers": {}})["servers"].items():
        yield Row(name, judge_server(seen), seen["seconds"], planted=bool(seen["spoil"]))


def judge_server(seen: Record) -> Judged:
    """Whether all answers of a server are right, and its counters above their limits."""
    if seen["fault"]:
        last = next((line for line in reversed(seen["log"]) if line.strip()), "no log")
        planted = bool(seen["spoil"])  # a server that does not start shows nothing about weights
        return Judged(PASS if planted else FAIL, f"{seen['fault']}: {last[-200:]}")
    answers = answers_of(seen)
    wrong = [str(one) for one in answers if not one.right]
    doubts = [f"{one.question.prompt!r}: {one.doubt}" for one in answers if one.doubt]
    wrong += doubts + [str(one) for one in refusals_of(seen) if not one.right]
    if wrong or not answers:
        return Judged(FAIL, "; ".join(dict.fromkeys(wrong)) or "nothing was asked")
    low = [
        name for name, limit in seen["limits"].items() if not seen["metrics"].get(name, 0) > limit
    ]
    if low:
        return Judged(FAIL, f"not counted: {', '.join(low)}")
    said = f"{len(answers)} answers right, healthy after {seen['start_seconds']:.0f} s"
    counted = "".join(f", {name} {value:g}" for name, value in seen["metrics"].items())
    return Judged(PASS, f"{said}, {seen['tokens_per_second']:.0f} tokens/s{counted}")


def answers_of(seen: Record) -> tuple[Answer, ...]:
    """What a server answered."""
    return tuple(_answer(one) for one in seen["answers"])


def refusals_of(seen: Record) -> tuple[Refusal, ...]:
    """What it said to requests that are wrong."""
    return tuple(Refusal(**one) for one in seen.get("refusals", ()))


def _answer(one: Record) -> Answer:
    question = Question(**{**one["question"], "answer": tuple(one["question"]["answer"])})
    return Answer(**{**one, "question": question, "logprobs": tuple(one["logprobs"])})


def page() -> str:
    """docs/gpu.md: its text, with the table of every record."""
    text = (Path(__file__).parent / "page.md").read_text(encoding="utf-8")
    tables = "\n".join(f"### {name}\n\n{table(one)}" for name, one in load_all().items())
    return text.replace("{records}\n", tables)


def table(record: Record) -> str:
    """A record as Markdown."""
    versions = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
    lines = [
        f"{record['device']}, {record['capability']}, driver {record['driver']}, {record['made']}:",
        f"Python {record['python']}, {versions}.",
        "",
        "| what ran | result | took | details |",
        "| --- | --- | --- | --- |",
    ]
    for row in rows(record):
        found = "found" if row.good and row.judged.outcome == FAIL else row.judged.outcome
        result = found if row.planted else row.judged.outcome
        detail = row.judged.detail.split("\n")[0].replace("|", "\\|")
        detail = detail if len(detail) <= 160 else f"{detail[:159]}…"
        lines.append(f"| {row.name} | {result} | {row.seconds:.1f} s | {detail} |")
    return "\n".join(lines) + "\n"
