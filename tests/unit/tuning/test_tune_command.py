"""``imagefactory tune`` as a user sees it, with an engine that plays the container."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from support import served_recipe
from support import tuning as fakes
from support.program import Run, run
from support.tuning import NAME, ROW, content

from imagefactory import opening
from imagefactory.commands import recipe_target
from imagefactory.patching import sources
from imagefactory.planning import vllm_settings
from imagefactory.planning.vllm_settings import VllmSettings
from imagefactory.system.engine import ImageInfo
from imagefactory.tuning import inside, tuning
from imagefactory.verifying import leftovers

__all__ = ["run"]
RECIPE = """\
summary: mine
model: org/mine
weights: fp8
experts: true
vllm: ">=0.22"
options: {gpu-memory-utilization: "0.5"}
"""
IMAGE = "imagefactory/vllm:mine"
INFO = replace(served_recipe.INFO, ref=IMAGE)


@dataclass
class Container:
    """A container that has ended, and its log."""

    code: int
    log: str

    def alive(self) -> bool:
        return False

    def logs(self, *, last: int) -> str:
        return "\n".join(self.log.splitlines()[-last:])

    def exit_code(self) -> int:
        return self.code


@dataclass
class FakeEngine:
    """An engine with one image, whose container writes a log and ends."""

    log: str = ""
    code: int = 0
    started: list[Sequence[str]] = field(default_factory=list)

    def find_images(self, refs: Sequence[str]) -> dict[str, ImageInfo]:
        return dict.fromkeys(refs, INFO)

    @contextmanager
    def lent(self, words: Callable[[str, Mapping[str, str]], Sequence[str]]) -> Iterator[Container]:
        self.started.append(words("imagefactory-0123", {"owner": "me"}))
        yield Container(self.code, self.log)


def said(name: str = NAME, data: bytes = content(), **changed: object) -> str:
    """The last lines of a container that tuned."""
    loaded = tuning.rows_of(data)
    result = {"name": name, "text": data.decode(), "device": "NVIDIA GB10", "loaded": loaded}
    return (
        f"{inside.PROGRESS}tuning on NVIDIA GB10\n"
        "Mon Nov 23 01:02:03 2026] Completed tuning for batch_size=1\n"
        f"{inside.RESULT}{json.dumps({**result, **changed})}\n"
    )


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeEngine:
    found = FakeEngine(said())
    tree = fakes.tree(tmp_path / "sources")
    known = VllmSettings(variables=frozenset(), options=frozenset({"--gpu-memory-utilization"}))
    monkeypatch.setattr(sources, "fetch", lambda *_: tree)
    monkeypatch.setattr(sources, "of_cell", lambda *_: tree)
    monkeypatch.setattr(vllm_settings, "of_tree", lambda *_: known)
    monkeypatch.setattr(opening, "connect", lambda *_: found)
    monkeypatch.setattr(leftovers, "sweep", lambda *_: None)
    monkeypatch.setattr(recipe_target, "TUNINGS", str(tmp_path / "tunings"))
    monkeypatch.setattr("imagefactory.commands.tune.TUNINGS", str(tmp_path / "tunings"))
    (tmp_path / "mine.yaml").write_text(RECIPE)
    return found


def test_a_recipe_is_tuned_and_its_file_kept(run: Run, engine: FakeEngine, tmp_path: Path) -> None:
    done = run("tune", str(tmp_path / "mine.yaml"), "--image", IMAGE)
    assert (done.code, done.out.strip()) == (0, str(tmp_path / "tunings" / NAME))
    assert "Completed tuning for batch_size=1" in done.err
    (words,) = engine.started
    assert words[words.index("--gpus") + 1] == "all"
    assert "owner=me" in words
    assert words[-3:-1] == ["bash", "-c"]
    assert '"--model","org/mine","--tp-size","1","--dtype","fp8_w8a8"' in words[-1]
    assert run("tune", "--check", "--vllm", "0.33.0").code == 0
    name = NAME.replace("GB10", "H200")
    engine.log = said(name)
    assert "a GB10 does not use it" in run("tune", "--model", "a/b", "--dtype", "auto").err


def test_numbers_describe_a_model_to_the_script(run: Run, engine: FakeEngine) -> None:
    shape = ("--shape", "512,256,2048,10", "--block", "128,128", "--dtype", "fp8_w8a8")
    command = ("tune", *shape, "--tp", "2", "--batch-size", "1,2", "--image", IMAGE, "--print")
    printed = run(*command)
    assert " ".join(json.loads(run(*command, "--json").out)["command"]).startswith("docker run ")
    assert printed.code == 0, printed.err
    assert '"num_local_experts":512,"num_experts_per_tok":10,"intermediate_size":512' in printed.out
    assert '"weight_block_size":[128,128]' in printed.out
    assert '"--tp-size","2","--dtype","fp8_w8a8","--batch-size","1","2"' in printed.out
    assert engine.started == []


def test_batch_sizes_of_an_earlier_night_are_kept(
    run: Run, engine: FakeEngine, tmp_path: Path
) -> None:
    other = {**ROW, "num_warps": 8}
    for size in ("64", "1"):
        data = json.dumps({"triton_version": "3.6.0", size: other if size == "1" else ROW})
        engine.log = said(data=data.encode())
        done = run("tune", "--model", "a/b", "--dtype", "auto", "--batch-size", size)
        assert done.code == 0, done.err
    kept = json.loads((tmp_path / "tunings" / NAME).read_text())
    assert kept == {"triton_version": "3.6.0", "1": other, "64": ROW}
    missing = run("tune", "--check", "--vllm", "0.33.0")
    assert (missing.code, "batch sizes 2" in missing.err) == (1, True)
    assert run("tune", "--check", "--vllm", "0.33.0", "--batch-size", "1,64").code == 0


@pytest.mark.parametrize("old", ["", "<<<<<<< HEAD\n", "[]", '{"x": {}}', "\xff", "1" * 2_000_000])
def test_a_damaged_file_is_set_aside_and_costs_no_night(
    run: Run, engine: FakeEngine, tmp_path: Path, old: str
) -> None:
    file = tmp_path / "tunings" / NAME
    file.parent.mkdir()
    for number in (1, 2):
        file.write_bytes(old.encode("latin-1"))
        done = run("tune", "--model", "a/b", "--dtype", "auto")
        assert (done.code, f"{NAME}.damaged-{number}" in done.err) == (0, True), done.err
        assert file.read_bytes() == content()
        assert (file.parent / f"{NAME}.damaged-{number}").read_bytes() == old.encode("latin-1")


def test_a_folder_that_cannot_be_made_is_an_error_before_the_night(
    run: Run, engine: FakeEngine, tmp_path: Path
) -> None:
    (tmp_path / "tunings").write_text("")
    assert run("tune", "--model", "a/b", "--dtype", "auto").code != 0
    assert engine.started == []


@pytest.mark.parametrize(
    ("code", "log", "exit_code", "what"),
    [
        (3, "", 3, "sees no NVIDIA GPU"),
        (1, "boom\n", 1, "boom"),
        (0, "done\n", 1, "exit status 0"),
        (0, f"{inside.RESULT}{{}}\n", 1, "no result"),
        (0, said(loaded={}), 1, "does not find it by its shape"),
        (0, said(data=content(**{"1": {**ROW, "num_warps": 3}})), 1, "no power of two"),
        (0, said("E=1.json"), 1, "looks for no file of this name"),
    ],
)
def test_what_went_wrong_is_said_and_nothing_kept(
    run: Run, engine: FakeEngine, tmp_path: Path, code: int, log: str, exit_code: int, what: str
) -> None:
    engine.code, engine.log = code, log
    done = run("tune", "--model", "a/b", "--dtype", "auto")
    assert (done.code, what in done.err) == (exit_code, True), done.err
    assert not [*(tmp_path / "tunings").iterdir()]


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("weights: fp8", "weights: mxfp4", "kernels that are not Triton's"),
        ("experts: true", "experts: false", "no mixture of experts"),
        ('"0.5"}', '"0.5", moe-backend: marlin}', "moe-backend: marlin"),
        ("weights: fp8", "weights: awq", "does not tune for int4_w4a16"),
    ],
)
def test_a_recipe_that_would_use_no_file_is_refused(
    run: Run,
    engine: FakeEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    old: str,
    new: str,
    what: str,
) -> None:
    known = VllmSettings(
        variables=frozenset(), options=frozenset({"--gpu-memory-utilization", "--moe-backend"})
    )
    monkeypatch.setattr(vllm_settings, "of_tree", lambda *_: known)
    (tmp_path / "mine.yaml").write_text(RECIPE.replace(old, new))
    done = run("tune", str(tmp_path / "mine.yaml"), "--image", IMAGE)
    assert (done.code, what in done.err) == (2, True), done.err


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--model", "a/b", "--shape", "1,2,3,4"),
        ("--model", "a/b"),
        ("--model", "a/b", "--dtype", "fp4"),
        ("--model", "a/b", "--dtype", "auto", "--block", "1,1"),
        ("--shape", "1,2,3", "--dtype", "auto"),
        ("--shape", "1,2,0,4", "--dtype", "auto"),
        ("--shape", "8,256,1024,9", "--dtype", "auto"),
        ("--model", "a/b", "--dtype", "auto", "--batch-size", "1,x"),
        ("--check",),
    ],
)
def test_bad_arguments_are_refused(run: Run, engine: FakeEngine, words: Sequence[str]) -> None:
    done = run("tune", *words)
    assert done.code == 2
    assert engine.started == []


def test_files_are_checked_for_the_releases_of_the_matrix_without_a_gpu(
    run: Run, engine: FakeEngine, tmp_path: Path
) -> None:
    file = tmp_path / NAME.replace("GB10", "H200")
    file.write_bytes(content())
    done = run("tune", "--check", str(file), "--json")
    assert done.code == 1
    assert {one["vllm"] for one in json.loads(done.out)} == {"0.33.0"}
    assert f"{file}: it is for NVIDIA_H200" in done.err
    assert run("tune", "--check", str(file), "--device", "NVIDIA_H200").code == 0


def test_a_matrix_without_a_gb10_does_not_say_for_which_vllm_files_are(
    run: Run, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imagefactory.commands.tune.hardware_of", lambda _: "cpu")
    (tmp_path / NAME).write_text("no JSON")
    done = run("tune", "--check", str(tmp_path / NAME))
    assert (done.code, "add --vllm VERSION" in done.err) == (2, True), done.err
    assert run("tune", "--check", str(tmp_path / NAME), "--vllm", "0.33.0").code == 1


def test_a_shape_without_a_dtype_and_a_file_that_is_not_there_are_said_as_such(
    run: Run, engine: FakeEngine
) -> None:
    assert engine
    done = run("tune", "--shape", "8,256,1024,2")
    assert (done.code, "the dtype of the weights is not known" in done.err) == (2, True), done.err
    done = run("tune", "--check", "nowhere.json", "--vllm", "0.33.0")
    assert (done.code, "nowhere.json cannot be read: No such file" in done.err) == (2, True)
