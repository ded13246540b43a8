"""Which tiny models are served, and that leaving some out shows less and is never taken for all."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gpu.records import load_all
from support.machine import settings as settings_in
from support.verify_fakes import image_info, labels
from support.verify_station import StationEngine, outcomes, verify

from imagefactory import pipeline
from imagefactory.errors import CheckFailedError, FactoryError, InputError, fail
from imagefactory.results import Watcher
from imagefactory.settings import Settings
from imagefactory.system.engine import ImageInfo
from imagefactory.system.shell import Completed
from imagefactory.verifying import check_registry, choice, leftovers, verifying
from imagefactory.verifying.models import models
from imagefactory.verifying.receipt import Level, Outcome, differences, supersedes
from imagefactory.workspace import Workspace

ALL = {one.name for one in models.family()}
ON_CPU = {"dense", "dense-bf16", "dialog", "hybrid", "moe", "mtp"}
PROBES = load_all()["nvidia-h200-2026-11-23"]["probes"]


def image(channel: str, vllm: str = "0.33.0") -> ImageInfo:
    return image_info(labels={**labels(channel), "io.imagefactory.pin.vllm": vllm})


def served(channel: str, level: Level, text: str | None = None, vllm: str = "0.33.0") -> set[str]:
    names = None if text is None else choice.parse(text, level)
    return {one.name for one in choice.choose(image(channel, vllm), level, names).served}


def test_what_is_served_by_default_depends_on_level_and_image() -> None:
    assert served("cpu", Level.STATIC) == served("cpu", Level.IMPORT) == set()
    assert served("cpu", Level.SERVE) == {"dialog"}
    assert served("cu130", Level.SERVE) == set()
    assert served("cu130", Level.GPU) == ALL
    assert served("cu130", Level.GPU, vllm="0.19.1") == ALL - {"hybrid"}
    assert served("cu130", Level.GPU, vllm="0.16.0") == ALL - {"hybrid", "moe"}


@pytest.mark.parametrize("vllm", ["0.15.1", "a-branch"])
def test_the_default_model_is_served_whatever_release_an_image_says_it_has(vllm: str) -> None:
    assert served("cpu", Level.SERVE, vllm=vllm) == {"dialog"}
    assert served("cu130", Level.GPU, vllm=vllm) == {"dialog"}


def test_all_is_what_the_image_takes_and_the_others_have_a_reason() -> None:
    assert served("cpu", Level.SERVE, "all") == ON_CPU
    assert served("cu130", Level.GPU, "all") == ALL
    found = choice.choose(image("cpu", "0.19.1"), Level.SERVE, ())
    assert found.impossible.keys() == ALL - ON_CPU | {"hybrid"}
    assert found.impossible["fp8"] == "vLLM's cpu backend has no kernels for it"
    assert found.impossible["hybrid"] == "needs vLLM >=0.22, this is 0.19.1"
    assert found.lacking == ()


def test_names_choose_among_them_and_what_the_level_needs_is_known_to_lack() -> None:
    found = choice.choose(image("cpu"), Level.SERVE, choice.parse("moe, mtp,moe", Level.SERVE))
    assert [one.name for one in found.served] == ["moe", "mtp"]
    assert found.lacking == ("dialog",)
    on_gpu = choice.choose(image("cu130"), Level.GPU, ("dialog",))
    assert {*on_gpu.lacking} == ALL - {"dialog"}


@pytest.mark.parametrize(
    ("text", "level", "says"),
    [
        ("mo", Level.SERVE, "no tiny model is named 'mo'"),
        ("", Level.SERVE, "no tiny model is named ''"),
        ("all,moe", Level.SERVE, "no tiny model is named 'all'"),
        ("moe", Level.IMPORT, "nothing is served at level import"),
    ],
)
def test_a_name_that_none_has_is_an_error_with_those_that_there_are(
    text: str, level: Level, says: str
) -> None:
    with pytest.raises(InputError) as raised:
        choice.parse(text, level)
    (problem,) = raised.value.problems
    assert (problem.what, problem.where) == (says, "--models")
    if level is Level.SERVE:
        assert problem.fix.startswith("all, or dense, dense-bf16, dialog, fp8")


@pytest.mark.parametrize(
    ("channel", "level", "names", "says"),
    [
        ("cpu", Level.SERVE, ("moe", "fp8"), "does not serve fp8 (vLLM's cpu backend has no"),
        ("cu130", Level.SERVE, (), "serves on a GPU only"),
        ("cpu", Level.GPU, None, "is for the CPU, and computes on no GPU"),
    ],
)
def test_what_an_image_cannot_do_is_refused_before_anything_runs(
    channel: str, level: Level, names: tuple[str, ...] | None, says: str
) -> None:
    with pytest.raises(InputError, match=r".") as raised:
        choice.choose(image(channel), level, names)
    assert says in raised.value.problems[0].what


def test_what_one_of_several_images_cannot_do_is_refused_before_the_first_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = {"a": image("cpu"), "b": image("cu130")}

    def inspect_image(ref: str) -> ImageInfo:
        if ref in images:
            return images[ref]
        raise fail(CheckFailedError, "image-missing", ref)

    def runs(*_: object, **__: object) -> None:
        raise AssertionError

    engine: Any = SimpleNamespace(inspect_image=inspect_image)
    monkeypatch.setattr(leftovers, "sweep", lambda *_: None)
    monkeypatch.setattr(verifying, "verify", runs)
    own = Workspace(matrix=tmp_path / "m.yaml", project=tmp_path, settings=settings_in(tmp_path))
    for tags, code in ((["a", "b"], "verify-models"), (["a", "gone"], "image-missing")):
        with pytest.raises(FactoryError) as raised:
            pipeline._verify_all(own, engine, tags, {}, Watcher(), models=("moe",))
        assert raised.value.problems[0].code == code


@pytest.mark.programs
def test_a_choice_without_what_the_level_needs_reaches_no_level_that_needs_it(
    cpu: StationEngine, settings: Settings
) -> None:
    made = verify(cpu, settings, models=("moe",))
    names = {one.name for one in made.checks}
    assert "model-moe" in outcomes(made, Outcome.PASS)
    assert not [name for name in names if name.startswith("server-")]
    assert (made.passed, made.level) == (True, Level.IMPORT)
    assert check_registry.left_out(made.checks, Level.SERVE) == ("dialog",)
    required = check_registry.requirements("cpu")
    (lacks,) = differences(
        made, digest=made.digest, cell=made.cell, build_key=made.build_key, required=required
    )
    assert lacks.startswith("it lacks: server-starts, server-limits")


@pytest.mark.programs
def test_all_models_on_a_cpu_image_show_more_than_the_default_and_no_gpu(
    cpu: StationEngine, settings: Settings
) -> None:
    cpu.behaviour.log += "Detected MTP model.\n"
    cpu.behaviour.metrics = 'vllm:spec_decode_num_accepted_tokens_total{engine="0"} 3.0\n'
    made = verify(cpu, settings, models=())
    assert len(cpu.starts) == len(ON_CPU)
    assert {f"model-{name}" for name in ON_CPU - {"dialog"}} <= outcomes(made, Outcome.PASS)
    assert outcomes(made, Outcome.FAIL) == set()
    assert outcomes(made, Outcome.SKIP) == {f"model-{name}" for name in ALL - ON_CPU}
    assert (made.passed, made.level) == (True, Level.SERVE)
    assert check_registry.left_out(made.checks, Level.SERVE) == ()
    required = check_registry.requirements("cpu")
    own = {"digest": made.digest, "cell": made.cell, "build_key": made.build_key}
    assert differences(made, **own, required=required) == []
    default = verify(cpu, settings)
    assert differences(default, **own, required=required) == []
    assert (supersedes(default, made), supersedes(made, default)) == (False, True)


@pytest.mark.programs
def test_a_model_that_answers_wrong_fails_an_image_whose_default_one_is_right(
    cpu: StationEngine, settings: Settings
) -> None:
    made = verify(cpu, settings, models=("dialog", "mtp"))  # no drafts are counted
    assert outcomes(made, Outcome.FAIL) == {"model-mtp"}
    assert not made.passed


@pytest.mark.programs
def test_a_choice_on_a_gpu_never_reaches_that_level(
    cuda: StationEngine, settings: Settings
) -> None:
    cuda.gpu_says = Completed(argv=(), code=0, out=json.dumps(PROBES), err="")
    made = verify(cuda, settings, level=Level.GPU, models=("dialog",))
    assert (made.passed, made.level) == (True, Level.SERVE)
    assert {*check_registry.left_out(made.checks, Level.GPU)} == ALL - {"dialog"}
