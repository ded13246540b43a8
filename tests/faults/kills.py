"""Processes that write are killed (SIGKILL) at their n-th step; the next ends as if undisturbed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from support import patches, projects
from support.machine import settings
from support.plans import STACK, planned

from faults import Outcome
from imagefactory.building import context_folders, records
from imagefactory.building.contexts import Contexts
from imagefactory.building.timings import Timings, Took
from imagefactory.examples import examples
from imagefactory.examples.examples import Example
from imagefactory.locking import store, wheelhouse
from imagefactory.matrix import matrix
from imagefactory.patching import authoring, catalog
from imagefactory.verifying import receipt
from imagefactory.verifying.receipt import CheckResult, Receipt
from imagefactory.verifying.receipt_store import ReceiptStore

#: What a process asks the system for when it changes files: a step at which it may be killed.
STEPS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "os.chmod", "shutil.")
_PASS = CheckResult(
    name="a", outcome=receipt.Outcome.PASS, required=True, detail="x" * 9000, seconds=1
)
_RECEIPT = Receipt(
    digest="sha256:1", tag="t", cell="c", build_key="k", verified_at="now", checks=(_PASS,)
)


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a process does in a folder, and what must be true of that folder at any moment.

    Attributes:
        name: of the work.
        prepare: makes the folder's content of before.
        do: the work.
        is_whole: whether what readers of the files see is that of before or that of after.
    """

    name: str
    prepare: Callable[[Path], object]
    do: Callable[[Path], object]
    is_whole: Callable[[Path], bool]


def attack(seed: int, count: int, folder: Path) -> Iterator[Outcome]:
    """Kill one writer after the other at a step drawn from all that it makes, and run it again."""
    chance = random.Random(seed)  # noqa: S311 - repeatable
    steps, after = {}, {}
    for work in WORKS:
        whole = folder / f"{work.name} undisturbed"
        whole.mkdir()
        work.prepare(whole)
        steps[work.name] = _killed_after(work, whole, None)
        after[work.name] = _content(whole)
    for number in range(count):
        work = WORKS[number % len(WORKS)]
        tried = folder / f"{number}"
        tried.mkdir()
        work.prepare(tried)
        step = chance.randrange(steps[work.name])
        detail = ""
        if _killed_after(work, tried, step) != step:
            detail = "it was not killed"
        elif not work.is_whole(tried):
            detail = "what was left is neither the old nor the new"
        elif (made := _killed_after(work, tried, None)) < 0:
            detail = f"the next run failed: {made}"
        elif (found := _content(tried)) != after[work.name]:
            other = {*found.items()} ^ {*after[work.name].items()}
            detail = f"the next run left other files: {sorted({name for name, _ in other})}"
        yield Outcome(fault=f"{work.name}, step {step}", held=not detail, detail=detail)
        shutil.rmtree(tried)


def _killed_after(work: Work, folder: Path, steps: int | None) -> int:
    """Do ``work`` in a process that SIGKILL ends after ``steps``; how many it made.

    None lets it end; -1 says that it failed.
    """
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        made = 0

        def step(event: str, _: object) -> None:
            nonlocal made
            if event.startswith(STEPS):
                if made == steps:
                    os.write(writing, str(made).encode())
                    os.kill(os.getpid(), signal.SIGKILL)
                made += 1

        try:
            sys.addaudithook(step)
            work.do(folder)
            os.write(writing, str(made).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(process, 0)
    return int(said or -1)


def _content(folder: Path) -> dict[str, bytes]:
    """The files below ``folder``, whose own name is left out of them.

    No lock files, and no part of an estimate, which is temporary.
    """
    return {
        str(path.relative_to(folder)): path.read_bytes().replace(bytes(folder), b"")
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".lock" and not path.name.startswith(".timings.json.")
    }


def _write_lock(folder: Path) -> None:
    old = store.read(folder / "wheels.lock")
    new = replace(old, created="2026-11-22")
    store.write(folder / "wheels.lock", new, guards=folder / "guards")


def _lock_is_whole(folder: Path) -> bool:
    return store.read(folder / "wheels.lock").created in ("2026-11-22", projects.DAY)


def _save_receipt(folder: Path) -> None:
    ReceiptStore(folder=folder).save(replace(_RECEIPT, verified_at="later"))


def _receipt_is_whole(folder: Path) -> bool:
    found = ReceiptStore(folder=folder).load(_RECEIPT.digest)
    return found in (_RECEIPT, replace(_RECEIPT, verified_at="later"))


def _timings(folder: Path) -> None:
    timings = Timings(folder)
    if timings.estimate("b", warm=True) is None:
        timings.add([Took(what="b", warm=True, seconds=2)])


def _claim(folder: Path) -> None:
    using = settings(folder)
    made = context_folders.claim(Path("/project"), using)
    contexts = Contexts(folder=made, templates=(), unpackers=(), settings=using)
    contexts.write_cell(planned(), STACK)


def _init(folder: Path) -> None:
    project = folder / "project"
    if not (project / "matrix.yaml").exists():
        examples.start(project, Example.CPU)


def _init_is_whole(folder: Path) -> bool:
    path = folder / "project" / "matrix.yaml"
    return not path.exists() or bool(matrix.load(path).cells)


DIFF = "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+b\n"


def _port(folder: Path) -> None:
    (patch,) = (one for one in catalog.load(folder / "patches").values())
    authoring.add_variant(patch, "0.34.0", DIFF)


def _patches_are_whole(folder: Path) -> bool:
    return len(catalog.load(folder / "patches")) == 1


def _draft(folder: Path) -> None:
    if not (folder / "patches" / "vllm" / "new" / "patch.yaml").exists():
        folder = folder / "patches" / "vllm" / "new"
        authoring.write_draft(folder, "0.34.0", DIFF, authoring.Words(summary="s", notes="n"))


def _wheel(folder: Path) -> None:
    for name in ("a.whl", "a.log"):
        (folder / f"made-{name}").write_text(name)
    files = [folder / "made-a.whl", folder / "made-a.log"]
    wheelhouse.store(folder / "cache" / "made-a.whl", *files)


def _wheel_is_whole(folder: Path) -> bool:
    made = folder / "cache" / "made-a.whl"
    return not made.exists() or made.with_name("made-a.log").read_text() == "a.log"


WORKS = (
    Work(name="lock", prepare=projects.write, do=_write_lock, is_whole=_lock_is_whole),
    Work(
        name="receipt",
        prepare=lambda folder: ReceiptStore(folder=folder).save(_RECEIPT),
        do=_save_receipt,
        is_whole=_receipt_is_whole,
    ),
    Work(
        name="durations",
        prepare=lambda folder: Timings(folder).add([Took(what="a", warm=False, seconds=1)]),
        do=_timings,
        is_whole=lambda folder: Timings(folder).estimate("a", warm=False) == 1,
    ),
    Work(
        name="record of a build",
        prepare=lambda folder: records.add(folder, "k", ["sha256:1"]),
        do=lambda folder: records.add(folder, "k", ["sha256:2"]),
        is_whole=lambda folder: records.read(folder, "k")[:1] == ("sha256:1",),
    ),
    Work(name="build context", prepare=_claim, do=_claim, is_whole=lambda _: True),
    Work(name="init", prepare=str, do=_init, is_whole=_init_is_whole),
    Work(name="port", prepare=patches.make, do=_port, is_whole=_patches_are_whole),
    Work(name="draft", prepare=patches.make, do=_draft, is_whole=lambda _: True),
    Work(name="wheel", prepare=str, do=_wheel, is_whole=_wheel_is_whole),
)
