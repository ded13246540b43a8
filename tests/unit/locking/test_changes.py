"""The short summary of what a new lock changes."""

from __future__ import annotations

from dataclasses import replace

from support.project import project_lock

from imagefactory.locking import changes
from imagefactory.locking.lock import Lock, Wheel
from imagefactory.locking.locked_sources import LockedRef, LockedSource
from imagefactory.planning.layers import PATCHED

LOCK = project_lock()
FIRST = LOCK.resolutions[0]


def lines(old: Lock | None, new: Lock, *asked_for: str) -> list[str]:
    return [str(one) for one in changes.summarize(changes.between(old, new), new, asked_for)]


def bumped(*names: str) -> Lock:
    """The lock with another version of some wheels of its first resolution."""
    wheels = [replace(w, version="9") if w.name in names else w for w in FIRST.wheels]
    return with_wheels(*wheels)


def with_wheels(*wheels: Wheel) -> Lock:
    return replace(LOCK, resolutions=(replace(FIRST, wheels=wheels), *LOCK.resolutions[1:]))


def test_a_first_lock_is_a_line_for_each_resolution_and_toolchain() -> None:
    found = lines(None, LOCK)
    assert len(found) == len(LOCK.resolutions) + len(LOCK.toolchains) + 1
    torch = FIRST.wheel("torch")
    assert torch is not None
    line = next(line for line in found if line.startswith(FIRST.name))
    assert line.startswith(f"{FIRST.name}: added {len(FIRST.wheels)} (")
    assert f"torch {torch.version}" in line
    assert "aiohttp" not in line
    assert len(line) < 160


def test_changes_are_counted_and_pinned_packages_are_named() -> None:
    names = [w.name for w in FIRST.wheels if w.name not in PATCHED][:5]
    found = lines(LOCK, bumped("torch", *names))
    torch = FIRST.wheel("torch")
    assert torch is not None
    assert found == [f"{FIRST.name}: changed 6 (torch {torch.version} -> 9)"]


def test_a_few_changes_are_all_named_and_so_is_what_was_asked_for() -> None:
    old = FIRST.wheels[0]
    assert lines(LOCK, bumped(old.name)) == [
        f"{FIRST.name}: changed 1 ({old.name} {old.version} -> 9)"
    ]
    many = [w.name for w in FIRST.wheels if w.name != "torch"][:6]
    assert f"{many[5]} " in lines(LOCK, bumped(*many), many[5])[0]


def test_added_and_removed_wheels_are_counted_apart() -> None:
    first, second, *rest = FIRST.wheels
    other = replace(first, name="other", version="1")
    found = lines(LOCK, with_wheels(other, second, *rest))
    assert found == [f"{FIRST.name}: added 1, removed 1 ({first.name} {first.version}, other 1)"]


def test_a_summary_as_json_counts_without_names() -> None:
    first, *rest = FIRST.wheels
    new = with_wheels(replace(first, version="9"), *rest)
    (found,) = changes.summarize(changes.between(LOCK, new), new, ())
    counts = {"added": 0, "changed": 1, "removed": 0}
    assert found.as_dict() == {"resolution": FIRST.name, **counts}


def test_a_ref_that_moved_is_named_with_the_release_below_it() -> None:
    one = LockedRef(
        repository="https://host.example/vllm",
        ref="main",
        base="0.33.0",
        commit="a" * 40,
        version="0.33.1.dev1",
        base_commit="b" * 40,
        source=LockedSource(
            name="git+https://host.example/vllm@main",
            version="a" * 40,
            filename="vllm.tar.gz",
            sha256="c" * 64,
            size=1,
            url="https://host.example/vllm",
        ),
    )
    other = replace(one, base="0.32.0", version="0.32.1.dev1")
    old = replace(LOCK, refs=(one, other))
    new = replace(LOCK, refs=(one, replace(other, version="9")))
    what = "https://host.example/vllm@main on 0.32.0"
    assert lines(old, new) == [f"refs: changed 1 ({what} 0.32.1.dev1 -> 9)"]
    assert lines(LOCK, old)[0].startswith("refs: added 2 ")


def test_equal_locks_have_no_summary() -> None:
    assert lines(LOCK, LOCK) == []
