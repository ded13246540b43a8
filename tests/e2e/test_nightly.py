"""`imagefactory nightly` as a process, with a real engine and a real registry, killed by SIGKILL.

`make kills` kills it at more points.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from support.e2e import Completed, Verified, factory
from support.receipts import TOOLS

from imagefactory import __version__, pipeline, workspace
from imagefactory.examples import examples
from imagefactory.examples.examples import Example
from imagefactory.planning.cell_plan import CellPlan
from imagefactory.publishing import attachments, tags
from imagefactory.settings import from_environment
from imagefactory.system.engine import Engine
from imagefactory.verifying import check_registry
from imagefactory.verifying.receipt import CheckResult, Outcome, Receipt
from imagefactory.verifying.receipt_store import ReceiptStore
from imagefactory.workspace import Workspace

pytestmark = pytest.mark.e2e
KILLS, SEED = int(os.environ.get("KILLS", "2")), int(os.environ.get("SEED", "0"))
#: Bytes of the layer of a small image: it takes a second or two to send.
LAYER = 64_000_000
#: Upstream stands still, whatever comes out.
HOLD = """
hold:
  vllm: {to: "==0.32.0", reason: a test, until: 2099-01-01}
  torch: {to: "==2.13.0", reason: a test, until: 2099-01-01}
  uv: {to: "<0", reason: a test, until: 2099-01-01}
  bookworm: {to: "<0", reason: a test, until: 2099-01-01}
"""
#: What a night moves in the example, with the records of the moves.
MOVED = ("nightly", "nightly was", "latest-cpu", "latest-cpu was")


@dataclass
class Site:
    """A project of one cell with a state folder of its own, and where its images go.

    Attributes:
        folder: the project's; a git repository.
        state: XDG's folder of that name.
        store: where the registry keeps what it has.
        repository: in the registry.
    """

    folder: Path
    state: Path
    store: Path
    repository: str
    environ: dict[str, str] = field(default_factory=dict)

    def git(self, *argv: str) -> str:
        who = ("-c", "user.name=me", "-c", "user.email=me@example.org")
        done = subprocess.run(
            ["git", *who, *argv], cwd=self.folder, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def commit(self) -> None:
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "change")

    def night(self) -> Completed:
        return factory(
            "nightly", "--to", self.repository, "--json", cwd=self.folder, environ=self.environ
        )

    def start(self, *argv: str) -> subprocess.Popen[bytes]:
        """A command that can be killed with its children, as by the kernel."""
        return subprocess.Popen(
            [sys.executable, "-m", "imagefactory", *argv, "--to", self.repository],
            cwd=self.folder,
            env={**os.environ, **self.environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def journals(self) -> list[Path]:
        """The journal of a night that is not over."""
        return [*(self.state / "imagefactory" / "nightly").glob("*/journal.json")]

    @property
    def workspace(self) -> Workspace:
        return workspace.find(self.folder / "matrix.yaml", {**os.environ, **self.environ})

    @property
    def plan(self) -> CellPlan:
        (plan,) = pipeline.plan(self.workspace, [], allow_no_engine=True).plans
        return plan

    def digests(self, engine: Engine) -> dict[str, str]:
        """The digest of each tag in the registry; records of moves without their time.

        Lists of what is attached to an image, which are tags in this registry, are left out.
        """
        registries, found = engine.registries, {}
        for name in registries.tags(self.repository):
            if name.startswith("sha256-"):
                continue
            document = registries.document(f"{self.repository}:{name}")
            assert document is not None
            record = tags.parse_record(name)
            found[f"{record.tag} was" if record else name] = document.digest
        return found


def site(engine: Engine, registry: str, folder: Path, name: str = "one") -> Site:
    project, state = folder / name / "my-images", folder / name / "state"
    project.mkdir(parents=True)
    text = examples.files(Example.CPU)["matrix.yaml"] + HOLD
    (project / "matrix.yaml").write_text(text)
    shutil.copy(ROOT / "wheels.lock", project)
    home = os.environ.get("IMAGEFACTORY_ENGINE_DIR")
    own = from_environment(os.environ).state
    made = Site(
        folder=project,
        state=state,
        store=folder / "registry",
        repository=f"{registry}/{name}/vllm",
        environ={
            "XDG_STATE_HOME": str(state),
            "IMAGEFACTORY_ENGINE_DIR": home or str(own / "engine"),
        },
    )
    made.git("init", "-q", "-b", "main")
    made.commit()
    return made


def edit(site: Site, old: str, new: str) -> None:
    path = site.folder / "matrix.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    site.commit()


def small(engine: Engine, site: Site, tag: str) -> str:
    """Let an image that only has the labels be the one of the cell; its digest."""
    edit(site, "repository: imagefactory/vllm", "repository: imagefactory/test")
    edit(site, '"{flavor}-vllm{vllm}-torch{torch}-{channel}"', f'"{tag}"')
    plan, folder = site.plan, site.folder.parent / "image"
    folder.mkdir()
    (folder / "layer").write_bytes(random.Random(tag).randbytes(LAYER))  # noqa: S311 - no secret
    labels = " ".join(f"{name}={json.dumps(text)}" for name, text in plan.labels.items())
    (folder / "Dockerfile").write_text(f"FROM scratch\nCOPY layer /\nLABEL {labels}\n")
    engine.build(folder, tag=plan.cell.tag)
    return engine.inspect_image(plan.cell.tag).digest


def passed(site: Site, digest: str) -> None:
    """A receipt as if the cell's image had been verified on this machine."""
    checks = [
        CheckResult(
            name=one.name, outcome=Outcome.PASS, required=one.required, detail="", seconds=0
        )
        for one in check_registry.requirements("cpu")
    ]
    plan = site.plan
    made = Receipt(
        digest=digest,
        tag=plan.cell.tag,
        cell=plan.cell.name,
        build_key=plan.build_key,
        verified_at="2026-11-20T10:00:00+00:00",
        checks=tuple(checks),
        version=__version__,
        tools=TOOLS,
    )
    ReceiptStore(folder=site.state / "imagefactory" / "receipts").save(made)


def report(done: Completed, code: int) -> Any:
    assert done.code == code, done.out + done.err
    return done.json


def test_nights_publish_what_was_verified_and_keep_the_last_good_image_when_that_fails(
    engine: Engine,
    registry: str,
    verified_cpu_image: str,
    verification: Verified,
    tmp_path: Path,
) -> None:
    one = site(engine, registry, tmp_path)
    good = verification.done.json[0]["digest"]
    receipts = one.state / "imagefactory" / "receipts"
    shutil.copytree(from_environment(os.environ).receipts, receipts)

    first = report(one.night(), 0)
    assert (first["state"], first["cells"][0]["state"]) == ("green", "pushed")
    found = one.digests(engine)
    assert found == published(one, good, *MOVED)

    begun = time.monotonic()
    again = report(one.night(), 0)
    assert (again["state"], again["cells"], again["changed"]) == ("nothing new", [], [])
    assert time.monotonic() - begun < 60, "it looks at indexes, and at nothing else"

    # the next image is one that no verification passes
    edit(one, "    patches: [", "    env: {SPOILT: '1'}\n    patches: [")
    bad = small(engine, one, "spoilt")
    broken = report(one.night(), 1)
    (problem,) = broken["broken"]
    assert (problem["where"], problem["step"]) == (one.plan.cell.name, "verify")
    assert [row["code"] for row in problem["problems"]] == ["container-start"]
    assert broken["cells"][0]["state"] == "verify failed"
    stays = f"stays where it was: {one.plan.cell.name} is not green"
    assert broken["tags"] == [f"`nightly` {stays}", f"`latest-cpu` {stays}"]
    assert one.digests(engine) == found
    assert bad not in found.values()
    kept = next((one.state / "imagefactory" / "nightly").glob("*/report.md")).read_text()
    assert f"## Broken: {one.plan.cell.name} (verify)" in kept


def mid_blob(site: Site, share: float) -> Callable[[], bool]:
    """Whether the registry has received that share of a layer, which is still being sent."""

    def reached() -> bool:
        parts = site.store.rglob("_uploads/*/data")
        try:
            return any(path.stat().st_size > share * LAYER for path in parts)
        except FileNotFoundError:  # it was complete, and moved
            return False

    return reached


def later(seconds: float) -> Callable[[], bool]:
    deadline = time.monotonic() + seconds
    return lambda: time.monotonic() > deadline


def kill(process: subprocess.Popen[bytes], when: Callable[[], bool], *, alone: bool) -> bool:
    """Kill a process with its children, or it alone, at that time; whether it still ran."""
    while process.poll() is None:
        if when():
            os.kill(process.pid, signal.SIGKILL) if alone else os.killpg(
                process.pid, signal.SIGKILL
            )
            break
        time.sleep(0.005)
    return process.wait() == -signal.SIGKILL


def published(site: Site, digest: str, *more: str) -> dict[str, str]:
    """What the registry has once the cell's image was pushed."""
    own = (one.rpartition(":")[2] for one in site.plan.cell.tags)
    return dict.fromkeys((str(tags.of_plan(site.plan)), *own, *more), digest)


def attached(engine: Engine, site: Site, digest: str) -> list[str]:
    return [one.artifact_type for one in engine.registries.referrers(site.repository, digest)]


def test_a_push_that_is_killed_in_the_middle_of_a_layer_is_finished_by_the_next(
    engine: Engine, registry: str, tmp_path: Path
) -> None:
    draw = random.Random(SEED)  # noqa: S311 - no secret
    for number in range(max(1, KILLS // 3)):
        one = site(engine, registry, tmp_path, f"push{number}")
        digest = small(engine, one, one.folder.parent.name)
        passed(one, digest)
        share, alone = draw.uniform(0.05, 0.8), draw.random() < 0.5
        assert kill(one.start("push"), mid_blob(one, share), alone=alone), "it was sending"
        assert {*one.digests(engine).values()} <= {digest}
        again = factory("push", "--to", one.repository, cwd=one.folder, environ=one.environ)
        assert again.code == 0, again.err
        assert one.digests(engine) == published(one, digest), (share, alone)
        assert attached(engine, one, digest) == [attachments.RECEIPTS[0], attachments.SBOM]
        assert engine.names(one.repository) == []


def test_a_night_that_is_killed_anywhere_ends_as_an_undisturbed_one_in_the_next_run(
    engine: Engine, registry: str, tmp_path: Path
) -> None:
    draw = random.Random(SEED)  # noqa: S311 - no secret
    took = 0.0
    for number in range(KILLS + 1):
        one = site(engine, registry, tmp_path, f"night{number}")
        digest = small(engine, one, one.folder.parent.name)
        passed(one, digest)
        if number == 0:  # undisturbed, but for a second one at the same time
            begun = time.monotonic()
            running = one.start("nightly")
            while not one.journals and running.poll() is None:
                time.sleep(0.005)
            os.killpg(running.pid, signal.SIGSTOP)
            paused = time.monotonic()
            refused = one.night()
            assert (refused.code, "[already-running]" in refused.err) == (3, True)
            os.killpg(running.pid, signal.SIGCONT)
            begun += time.monotonic() - paused
            assert running.wait() == 0
            took = time.monotonic() - begun
            assert one.night().json["state"] == "nothing new"
        else:
            after, alone = draw.uniform(0, took), draw.random() < 0.3
            kill(one.start("nightly"), later(after), alone=alone)
            assert {*one.digests(engine).values()} <= {digest}
            done = one.night()
            assert done.code == 0, (after, alone, done.out, done.err)
            assert done.json["broken"] == []
        assert one.digests(engine) == published(one, digest, *MOVED)
        assert attached(engine, one, digest) == [attachments.RECEIPTS[0], attachments.SBOM]
        assert engine.names(one.repository) == []
        assert one.journals == []
