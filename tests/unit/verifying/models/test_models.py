"""The family of tiny models, read and computed by a reference that knows formats and papers only.

A model answers right, and each fault of it is another text or no draft that is accepted.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from gpu import spoilt_models
from jinja2 import Environment
from support.hybrid_reference import reference as read
from support.model_mutants import MUTANTS, Mutant
from support.model_reference import Reference, Unreadable

from imagefactory.verifying import answers
from imagefactory.verifying.models import dialog, exact, formats, models, words
from imagefactory.verifying.models.models import TinyModel
from imagefactory.verifying.models.words import Question

FAMILY: Mapping[str, TinyModel] = {model.name: model for model in models.family()}
#: Whether a server loads a model and answers right is shown by serving it: do so again before
#: another hash is written here (docs/verify.md has what was served, and where).
FILES = {
    "dense": "7efe9da627532623",
    "dense-bf16": "db5951a3471c4197",
    "dialog": "fe2a4d873b7c0d12",
    "fp8": "a2f9fa0753a55ceb",
    "hybrid": "b4660a3bc32793d6",
    "moe": "44665960eb21310c",
    "moe-nvfp4": "65be2c421598c2a2",
    "mtp": "7ad7556ba848febc",
    "mtp-nvfp4": "d3d0aff96a70140f",
    "nvfp4": "f11f2d706b63175b",
    "nvfp4-modelopt": "479762d246eddf6d",
}
#: What each is asked, and where it runs; as above.
ASKED = {
    "dense": "09631f048c15b6ae",
    "dense-bf16": "4497e8714ff1c118",
    "dialog": "c68dc6a1f4fac865",
    "fp8": "58790c9d2d051f3d",
    "hybrid": "ead41623564e3600",
    "moe": "5510818a0c46e716",
    "moe-nvfp4": "7f53919c369f5a48",
    "mtp": "f30de6dde8b89f56",
    "mtp-nvfp4": "927964d6503262c2",
    "nvfp4": "78742c7a8d2ed580",
    "nvfp4-modelopt": "5afaf28fa089e6ac",
}
SAID = "the capital of France is Paris"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every model in a folder of its own."""
    folder = tmp_path_factory.mktemp("models")
    for name, model in FAMILY.items():
        model.write(folder / name)
    return folder


def rendered(model: Reference, question: Question) -> list[str]:
    """The words of a chat's prompt, as the tokenizer of the folder splits them."""
    extra = dict(question.extra)
    messages = extra.pop("messages", [{"role": "user", "content": question.prompt}])
    options = extra.pop("chat_template_kwargs", {})
    template = Environment().from_string(model.template)  # noqa: S701 - this is not HTML
    text = template.render(messages=messages, add_generation_prompt=True, **extra, **options)
    whole = "|".join(map(re.escape, model.whole))
    pieces = re.findall(rf"{whole}|\w+|[^\w\s]+", text)
    return [piece if piece in model.vocabulary else "<unk>" for piece in pieces]


def spoken(question: Question) -> tuple[str, ...]:
    """The right answer as the model says it, before a parser finds the call in it."""
    called = (*dialog.CHAIN[1:], dialog.QUOTED["Japan"], dialog.CALLED)
    return called if question.finish == "tool_calls" else question.answer


@pytest.mark.parametrize("name", FAMILY)
def test_a_model_answers_every_question_right_and_is_sure_of_it(name: str, written: Path) -> None:
    model = FAMILY[name]
    reference = read(written / name)
    for question in model.completions:
        said, least = reference.answer(question.prompt.split())
        assert said == question.answer
        assert least > 0.8
    for question in model.at_once:
        assert reference.answer(question.prompt.split(), most=1)[0] == question.answer[:1]
    for question in (*model.chats, *model.reasoning, *model.calls):
        assert reference.answer(rendered(reference, question))[0] == spoken(question)


@pytest.mark.parametrize(
    ("name", "mutant"), [(name, mutant) for mutant in MUTANTS for name in mutant.models], ids=str
)
def test_a_spoilt_model_says_something_else_or_is_not_sure(
    name: str, mutant: Mutant, written: Path, tmp_path: Path
) -> None:
    spoilt = shutil.copytree(written / name, tmp_path / name)
    mutant.spoil(spoilt)
    assert not seems_right(name, spoilt)


def seems_right(name: str, folder: Path) -> bool:
    """Whether the checks of answers, logprobs and drafts are content with a model."""
    try:
        reference = read(folder)
    except Unreadable:
        return False
    right = all(
        said == one.answer[:2] and least > answers.SURE
        for one in FAMILY[name].completions
        for said, least in [reference.answer(one.prompt.split(), most=2)]
    )
    return right and ("mtp" not in name or reference.draft(SAID.split()) == ".")


@pytest.mark.parametrize("fault", spoilt_models.FAULTS)
def test_a_fault_that_is_planted_on_a_gpu_is_one_that_is_seen(
    fault: str, written: Path, tmp_path: Path
) -> None:
    spoilt = {name: shutil.copytree(written / name, tmp_path / name) for name in FAMILY}
    found = {name: folder for name, folder in spoilt.items() if spoilt_models.spoil(folder, fault)}
    assert found
    assert [name for name, folder in found.items() if seems_right(name, folder)] == []


def test_every_model_has_a_fault_that_is_seen() -> None:
    assert FAMILY.keys() - {name for mutant in MUTANTS for name in mutant.models} == set()


@pytest.mark.parametrize("name", ["mtp", "mtp-nvfp4"])
def test_a_head_s_drafts_are_what_the_model_says_next(name: str, written: Path) -> None:
    reference = read(written / name)
    assert reference.draft(SAID.split()) == "."
    assert reference.draft([*SAID.split(), "."]) == words.END


def test_the_questions_are_answered_by_every_expert() -> None:
    asked = {exact.expert_of(word) for question in words.AT_ONCE for word in question.answer}
    assert asked == set(range(exact.EXPERTS))


def test_the_files_are_the_same_bytes_every_time(written: Path) -> None:
    found = {}
    for name in FAMILY:
        digest = hashlib.sha256()
        for path in sorted((written / name).iterdir()):
            digest.update(path.name.encode() + path.read_bytes())
        found[name] = digest.hexdigest()[:16]
    assert found == FILES


@pytest.mark.parametrize(
    "write",
    [
        lambda: formats.bfloat16(np.array([1 / 3], np.float32)),
        lambda: formats.e4m3(np.array([1.01], np.float32)),
        lambda: formats.nvfp4(np.full((1, 16), 1 / 3, np.float32), 1),
    ],
)
def test_a_value_that_a_format_does_not_hold_exactly_is_refused(write: object) -> None:
    assert callable(write)
    with pytest.raises(ValueError, match=r"does not hold|E2M1 does not"):
        write()


def test_the_questions_devices_and_releases_are_those_that_real_servers_had() -> None:
    found = {}
    for name, model in FAMILY.items():
        text = repr(replace(model, write=cast("Any", print), proves=""))
        found[name] = hashlib.sha256(text.encode()).hexdigest()[:16]
    assert found == ASKED


def test_a_model_runs_where_its_device_and_release_are() -> None:
    model = FAMILY["nvfp4"]
    assert model.runs_on("cuda", "0.22.1")
    assert not model.runs_on("cpu", "0.22.1")
    assert not model.runs_on("cuda", "0.15.0")
    assert models.named("moe").runs_on("cpu", "0.32.0+cpu")
    with pytest.raises(LookupError, match="no model is named nothing"):
        models.named("nothing")
