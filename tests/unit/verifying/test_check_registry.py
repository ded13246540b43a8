"""The registry: every theme is found, every check is documented and has a fault, and judging
never ends in a traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.image_tree import ImageTree
from support.verify_fakes import CPU, Good
from support.verify_faults import receipt

from imagefactory.verifying import check_registry, checks, probe
from imagefactory.verifying.checks.wheels import check as wheels_check
from imagefactory.verifying.receipt import Level, Outcome
from imagefactory.verifying.subject import Probed, Subject

NEW_CHECK = '''
"""A theme that a test plants."""
from imagefactory.verifying.check_registry import check, failed, passed

@check({name!r}, needs="facts")
def answer(subject):
    """The answer is 42.

    Fails for any other.
    """
    found = subject.facts["planted"]["answer"]
    return passed("42") if found == 42 else failed(f"the answer is {{found}}")
'''
NEW_PROBE = '''
"""Reads the answer."""
def facts(context):
    return {"answer": int((context.site / "answer.txt").read_text())}
'''
Plant = Callable[..., None]


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plant]:
    """Adds a theme folder, outside the package, to those in which checks are looked for."""
    folder = tmp_path / "planted-checks"

    def planted(check: str, probe_text: str | None = None) -> None:
        theme = folder / "planted"
        theme.mkdir(parents=True)
        (theme / "__init__.py").write_text("")
        (theme / "check.py").write_text(check)
        if probe_text:
            (theme / "probe.py").write_text(probe_text)
        monkeypatch.setattr(checks, "__path__", [*checks.__path__, str(folder)])

    yield planted
    for name in [name for name in sys.modules if f"{name}.".startswith(f"{PLANTED}.")]:
        del sys.modules[name]
    if hasattr(checks, "planted"):
        del checks.planted


PLANTED = f"{checks.__name__}.planted"


def observed(image: ImageTree) -> Subject:
    """A good image, but for what the probe really reports about a tree."""
    good = Good().subject()
    return Subject(
        image=good.image,
        probed=Probed(report=image.report()),
        entrypoint=good.entrypoint,
        server=good.server,
        resolution=good.resolution,
        expected=good.expected,
        content=good.content,
        builds=good.builds,
    )


def test_a_good_cpu_image_passes_every_check() -> None:
    results = Good(torch=CPU).results()
    left = {name for name, result in results.items() if result.outcome is not Outcome.PASS}
    assert left == {name for name in results if name.startswith(("gpu-", "model-"))}
    assert check_registry.reached(tuple(results.values())) is Level.SERVE
    assert receipt(Good(torch=CPU)).passed


def test_a_good_cuda_image_passes_every_check_but_those_that_need_a_gpu() -> None:
    results = Good().results()
    assert {name for name, result in results.items() if result.outcome is not Outcome.PASS} == {
        name for name in results if name.startswith(("server-", "gpu-", "model-"))
    }
    left = [one for one in results.values() if one.outcome is not Outcome.PASS]
    assert all(one.outcome is Outcome.SKIP and not one.required for one in left)
    assert all("needs a GPU" in one.detail for one in left)
    assert check_registry.reached(tuple(results.values())) is Level.IMPORT
    assert receipt(Good()).passed


@pytest.mark.parametrize("theme", check_registry.themes())
def test_every_check_has_a_fault_that_turns_it_red_in_the_tests_of_its_theme(theme: str) -> None:
    tests = import_module(f"{checks.__name__}.{theme}.test_{theme}")
    names = {entry.name for entry in check_registry.all_checks() if entry.theme == theme}
    assert names
    assert {fault.check for fault in tests.FAULTS} == names


@pytest.mark.parametrize("theme", check_registry.themes())
def test_a_theme_with_a_probe_has_a_check_that_fails_with_it(theme: str) -> None:
    image = Good()
    if theme not in image.facts:
        assert find_spec(f"{checks.__name__}.{theme}.probe") is None
        return
    del image.facts[theme]
    image.reported["errors"][theme] = f"OSError: disk (checks/{theme}/probe.py:7)"
    failed = {name: r for name, r in image.results().items() if r.outcome is Outcome.FAIL}
    assert failed
    assert {entry.theme for entry in check_registry.all_checks() if entry.name in failed} == {theme}
    assert all("its probe failed: OSError: disk" in result.detail for result in failed.values())
    assert not receipt(image).passed


@pytest.mark.parametrize("entry", check_registry.describe(), ids=lambda entry: entry.name)
def test_every_check_says_in_plain_sentences_what_it_asserts_and_fails_for(
    entry: check_registry.Description,
) -> None:
    assert entry.text.endswith(".")
    assert "Fails for " in entry.text
    assert "\n" not in entry.text


def test_checks_are_described_in_the_order_of_results() -> None:
    rows = check_registry.describe()
    assert [row.name for row in rows] == list(Good().results())
    by_name = {row.name: row for row in rows}
    assert by_name["toolchain"].theme == "compilers"
    assert by_name["torch-identity"].needs == ("facts", "lock")
    assert by_name["torch-identity"].required


def test_results_come_in_the_order_of_the_themes() -> None:
    names = [entry.name for entry in check_registry.all_checks()]
    assert names[0] == "probe"
    assert names[-1] == "model-nvfp4-modelopt"
    assert check_registry.themes() == checks.ORDER


@pytest.mark.programs
def test_a_new_theme_folder_is_found_run_and_judged_without_touching_anything_else(
    plant: Plant, tmp_path: Path
) -> None:
    plant(NEW_CHECK.format(name="answer"), NEW_PROBE)
    assert check_registry.themes()[-1] == "planted"
    assert check_registry.describe()[-1].text == "The answer is 42. Fails for any other."
    image = ImageTree(tmp_path)
    image.write("answer.txt", "42")
    result = check_registry.judge(observed(image))[-1]
    assert (result.name, result.outcome, result.detail) == ("answer", Outcome.PASS, "42")
    image.write("answer.txt", "41")
    result = check_registry.judge(observed(image))[-1]
    assert (result.outcome, result.detail) == (Outcome.FAIL, "the answer is 41")


@pytest.mark.programs
def test_a_new_theme_whose_probe_raises_fails_and_leaves_the_facts_of_others(
    plant: Plant, tmp_path: Path
) -> None:
    plant(NEW_CHECK.format(name="answer"), NEW_PROBE)
    image = ImageTree(tmp_path)
    image.distribution("numpy", "2.0", {})
    subject = observed(image)
    assert subject.facts["wheels"]["distributions"] == [{"name": "numpy", "version": "2.0"}]
    result = check_registry.judge(subject)[-1]
    assert (result.outcome, result.required) == (Outcome.FAIL, True)
    assert result.detail.startswith("its probe failed: FileNotFoundError: ")
    assert result.detail.endswith("(checks/planted/probe.py:4)")


@pytest.mark.programs
def test_a_theme_that_needs_facts_and_has_no_probe_fails(plant: Plant, tmp_path: Path) -> None:
    plant(NEW_CHECK.format(name="answer"))
    assert "planted" not in probe.sources()
    result = check_registry.judge(observed(ImageTree(tmp_path)))[-1]
    assert (result.outcome, result.detail) == (
        Outcome.FAIL,
        "the probe reported no facts about planted",
    )


def test_two_checks_of_one_name_are_refused(plant: Plant) -> None:
    plant(NEW_CHECK.format(name="probe"))
    with pytest.raises(ValueError, match="two checks are named probe"):
        check_registry.all_checks()


def test_what_was_not_observed_holds_the_image_back() -> None:
    image = Good()
    image.report = None
    results = image.results()
    assert results["extensions-load"].outcome is Outcome.SKIP
    assert results["extensions-load"].required
    assert not receipt(image).passed


@pytest.mark.parametrize(
    "facts", [{}, [], None, 7, "facts", {"loaded": None}, {"loaded": [{}], "seconds": 1}]
)
def test_facts_of_an_unexpected_shape_fail_and_never_end_in_a_traceback(facts: object) -> None:
    image = Good()
    image.facts["extensions"] = facts
    result = image.results()["extensions-load"]
    assert result.outcome is Outcome.FAIL
    assert "cannot be judged" in result.detail


@pytest.mark.parametrize("changes", [{"facts": None}, {"facts": 3, "errors": 4}, {"manifest": [1]}])
def test_a_report_of_an_unexpected_shape_does_not_pass(changes: dict[str, object]) -> None:
    image = Good()
    image.reported.update(changes)
    assert not receipt(image).passed


@pytest.mark.parametrize("seconds", ["x", None, [], float("inf")])
def test_a_time_that_is_none_is_no_verdict_of_a_check(seconds: object) -> None:
    image = Good()
    for facts in image.facts.values():
        facts["seconds"] = seconds
    results = image.results()
    assert results["files-complete"].outcome is Outcome.FAIL
    assert "cannot be judged" in results["files-complete"].detail
    assert all(isinstance(result.seconds, float | int) for result in results.values())


def test_of_many_differences_some_are_named_and_the_others_counted() -> None:
    assert wheels_check._shown(list("abcde")) == "a, b, c, d, e"
    assert wheels_check._shown(list("abcdefg")) == "a, b, c, d, e and 2 more"
