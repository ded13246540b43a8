"""Pruning removes only what imagefactory made, and only what is not needed."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import ROOT
from support.docker import FakeDocker
from support.machine import settings
from support.plans import all_planned, base_image, deb
from support.processes import dead_owner

from imagefactory.locking.lock import Lock
from imagefactory.planning.cell_plan import LABEL, CellPlan
from imagefactory.system.engine import CacheRecord, Engine, ImageInfo
from imagefactory.system.engine.cache_records import parse
from imagefactory.system.platforms import Platform
from imagefactory.upkeep import doctor, prune, upkeep
from imagefactory.upkeep.prune import Kind, Pruning

REPOSITORY = "imagefactory/vllm"
WANTED = {f"{REPOSITORY}:gb10": "new", f"{REPOSITORY}:cpu": "new"}


def image(ref: str, *, key: str | None = "new", digest: str = "") -> ImageInfo:
    labels = {f"{LABEL}.build-key": key} if key else {}
    return ImageInfo(
        ref=ref,
        digest=digest or f"sha256:{ref}",
        layers=(),
        platform="linux/arm64",
        labels=labels,
        env={},
        size=7,
    )


def planned(
    *found: ImageInfo,
    used: tuple[str, ...] = (),
    verified: tuple[str, ...] = (),
    everything: bool = False,
) -> Pruning:
    return prune.images(
        {one.ref: one for one in found},
        WANTED,
        repository=REPOSITORY,
        used=used,
        verified=verified,
        everything=everything,
    )


def test_images_that_are_outdated_or_have_no_cell_are_removed_and_current_ones_kept() -> None:
    plan = planned(
        image(f"{REPOSITORY}:gb10", key="old"),
        image(f"{REPOSITORY}:gone"),
        image(f"{REPOSITORY}:cpu"),
    )
    assert {item.name: item.why for item in plan.items} == {
        f"{REPOSITORY}:gb10": "outdated: its inputs have changed",
        f"{REPOSITORY}:gone": "no cell of the matrix has this name",
    }
    assert [(item.name, item.why) for item in plan.kept] == [(f"{REPOSITORY}:cpu", "up to date")]


def test_with_all_current_images_are_removed_too() -> None:
    assert [item.name for item in planned(image(f"{REPOSITORY}:cpu"), everything=True).items] == [
        f"{REPOSITORY}:cpu"
    ]


def test_an_image_that_a_container_uses_is_kept_for_that_reason() -> None:
    old = image(f"{REPOSITORY}:gb10", key="old", digest="sha256:1")
    plan = planned(old, used=("sha256:1",), everything=True)
    assert plan.items == ()
    assert plan.kept[0].why == "a container uses it"


def test_an_image_derived_from_ours_has_our_label_and_is_ignored() -> None:
    assert planned(image("mine/prod:1", key="old"), everything=True) == Pruning(items=(), kept=())


def test_an_image_in_our_repository_without_our_label_is_ignored() -> None:
    assert planned(image(f"{REPOSITORY}:byhand", key=None), everything=True) == Pruning(
        items=(), kept=()
    )


def test_a_verified_image_is_marked_and_its_second_name_has_no_size() -> None:
    names = (f"{REPOSITORY}:a", f"{REPOSITORY}:b")
    plan = planned(*(image(name, digest="sha256:1") for name in names), verified=("sha256:1",))
    assert [item.size for item in plan.items] == [7, 0]
    assert all("verified" in item.why for item in plan.items)


REFS = st.from_regex(r"\A[a-z]{1,6}/[a-z]{1,4}:[a-z0-9]{1,5}\Z") | st.sampled_from(
    [*WANTED, f"{REPOSITORY}x:gb10"]
)


@given(
    st.lists(st.tuples(REFS, st.none() | st.sampled_from(["new", "old"])), max_size=8),
    st.booleans(),
)
def test_only_labelled_images_in_our_repository_are_removed(
    found: list[tuple[str, str | None]], everything: bool
) -> None:
    plan = planned(*(image(ref, key=key) for ref, key in found), everything=everything)
    last = dict(found)
    for item in plan.items:
        assert item.name.startswith(f"{REPOSITORY}:")
        assert last[item.name] is not None


DU = """\
ID:\t\tabc*
Mutable:\ttrue
Reclaimable:\t{reclaimable}
Shared:\t\tfalse
Size:\t\t2.223GB
Description:\t{description}
Last used:\t3 minutes ago
Type:\t\texec.cachemount
"""
OURS = 'cached mount /archives from exec python3 with id "/imagefactory-archives"'


def record(description: str, *, reclaimable: str = "true") -> CacheRecord:
    (found,) = parse(DU.format(description=description, reclaimable=reclaimable))
    return found


def test_a_cache_record_is_parsed_from_the_output_of_buildx() -> None:
    assert record(OURS) == CacheRecord(
        id="abc", size=2_223_000_000, description=OURS, reclaimable=True
    )


@pytest.mark.parametrize("plan", all_planned(), ids=lambda plan: plan.cell.name)
def test_every_step_that_runs_while_a_cell_is_built_is_known_to_be_our_own(plan: CellPlan) -> None:
    steps = plan.dockerfile.replace(" \\\n", " ").splitlines()
    commands = [
        re.sub(r"^RUN|--mount=\S+", "", step).strip() for step in steps if step[:3] == "RUN"
    ]
    assert len(commands) == 2
    found = [record(f"mount / from exec /bin/sh -c {command}") for command in commands]
    assert prune.cache(found, private=False).kept == ()


def test_on_a_shared_engine_only_cache_records_of_our_own_steps_are_removed() -> None:
    theirs = "mount / from exec make all"
    plan = prune.cache([record(OURS), record(theirs)], private=False)
    assert [item.size for item in plan.items] == [2_223_000_000]
    assert [item.why for item in plan.kept] == ["not known to be imagefactory's"]
    assert len(prune.cache([record(theirs)], private=True).items) == 1
    assert prune.cache([record(OURS, reclaimable="false")], private=True).items == ()


@pytest.mark.parametrize("word", prune.OURS)
def test_every_mark_of_our_own_steps_is_in_a_template_and_decides(word: str) -> None:
    texts = [path.read_text() for path in (ROOT / "templates").iterdir()]
    assert any(word.removeprefix("/imagefactory") in text for text in texts)
    (ours,) = prune.cache([record(f"mount / from exec x {word} y")], private=False).items
    assert ours.as_dict() == {
        "kind": "build cache",
        "name": "abc",
        "size": 2_223_000_000,
        "why": "recreated by the next build",
    }


def test_entries_of_a_folder_that_are_not_kept_are_removed_and_no_others() -> None:
    root = Path("/root")
    sizes = {root / "b": 2, root / "a": 1, root / "kept": 3, root / "a/x": 4, Path("/b"): 5}
    assert [one.as_dict() for one in prune.folders(root, {"kept"}, "stale", sizes)] == [
        {"kind": "folder", "name": "/root/a", "size": 1, "why": "stale"},
        {"kind": "folder", "name": "/root/b", "size": 2, "why": "stale"},
    ]


def test_an_image_in_use_or_of_another_repository_keeps_nothing_else_from_being_removed() -> None:
    old = [image(f"{REPOSITORY}:{name}", key="old", digest=f"sha256:{name}") for name in "abc"]
    plan = planned(image("x/y:1", key="old"), *old, used=("sha256:a",), verified=("sha256:b",))
    assert [(one.name[-1], one.why, one.size) for one in plan.items] == [
        ("b", "no cell of the matrix has this name; its digest was verified", 7),
        ("c", "no cell of the matrix has this name", 7),
    ]
    assert [(one.name[-1], one.size) for one in plan.kept] == [("a", 7)]
    current = image(f"{REPOSITORY}:cpu", digest="sha256:a")
    kept = planned(current, used=("sha256:a",), verified=("sha256:a",)).kept
    assert [one.why for one in kept] == ["up to date"]
    (forced,) = planned(current, everything=True).items
    assert forced.why == "--all was given"


@pytest.mark.programs
def test_what_killed_verifications_left_is_listed_and_removed(tmp_path: Path) -> None:
    docker = FakeDocker(tmp_path)
    dead = dead_owner()
    docker.answer("ps --all", out=f"c0ffee\timagefactory-0123456789ab\t{dead}\n")
    docker.answer("info")
    docker.answer("container rm --force --volumes c0ffee")
    engine = Engine(binary=str(docker.program))
    folder = settings(tmp_path).cache / f"imagefactory-model-{dead}-x"
    folder.mkdir(parents=True)
    items = upkeep._orphans(engine, settings(tmp_path))
    assert [(item.kind, item.name) for item in items] == [
        (Kind.CONTAINER, "c0ffee"),
        (Kind.FOLDER, str(folder)),
    ]
    (finding,) = doctor._leftovers(engine, settings(tmp_path))
    assert finding.seen.startswith("1 containers and 1 folders")
    assert upkeep.remove(items, engine)[0] == []
    assert not folder.exists()
    assert "container rm --force --volumes c0ffee" in docker.calls


@pytest.mark.programs
def test_the_doctor_says_nothing_about_leftovers_if_there_are_none(tmp_path: Path) -> None:
    docker = FakeDocker(tmp_path)
    docker.answer("ps --all")
    assert doctor._leftovers(Engine(binary=str(docker.program)), settings(tmp_path)) == []
    docker = FakeDocker(tmp_path)  # an engine that fails
    (finding,) = doctor._leftovers(Engine(binary=str(docker.program)), settings(tmp_path))
    assert finding.seen.startswith("unknown: ")


def test_packages_of_all_stages_of_a_locked_base_are_kept() -> None:
    base = base_image(all_planned()[0].cell.flavor.base, Platform.ARM64, deb("apt")).locked
    base = replace(base, builder=(deb("git"),), compiler=(deb("ccache"),))
    lock = Lock(created="", tools=(), resolutions=(), bases=(base,))
    assert upkeep._debs(lock) == {deb(name).sha256 for name in ("apt", "git", "ccache")}
