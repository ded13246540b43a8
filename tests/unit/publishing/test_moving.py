"""Moving tags: what they may name, what is recorded, and what survives a kill."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.promoting import (
    NOW,
    PATH,
    at,
    attached,
    image,
    labels,
    moving,
    receipt_of,
    repository,
    row_of,
    verified,
)
from support.registry import FakeRegistry

from imagefactory.errors import CheckFailedError, FactoryError, InputError, SetupError
from imagefactory.publishing import attachments, ledger, tags
from imagefactory.publishing import moving as moves
from imagefactory.publishing.ledger import Entry
from imagefactory.publishing.moving import Repository, State
from imagefactory.system import registry_writes
from imagefactory.verifying.receipt import Level, Outcome

OLD, NEW = labels("aaaaaaaa", vllm="0.32.0", day="2026-11-19"), labels("bbbbbbbb")


def code_of(kind: type[FactoryError], work: Callable[..., object], *args: object) -> str:
    with pytest.raises(kind) as caught:
        work(*args)
    (problem,) = caught.value.problems
    assert problem.fix
    return problem.code


def nightly(registry: FakeRegistry) -> str | None:
    return registry.tags(PATH).get("nightly")


def test_a_tag_goes_to_a_verified_image_and_back_and_no_blob_moves(
    registry: FakeRegistry, tmp_path: Path
) -> None:
    old, new = (verified(registry, tmp_path, own) for own in (OLD, NEW))
    own = repository(registry, tmp_path)
    first = moves.promote(own, str(tags.of_labels(OLD)), "nightly", at(0))
    assert (first.moved, first.before, nightly(registry)) == (True, "", old)
    second = moves.promote(own, new, "nightly", at(24))
    assert (second.before, second.digest, nightly(registry)) == (old, new, new)
    again = moves.promote(own, new, "nightly", at(25))
    assert (again.moved, again.record) == (False, second.record)
    back = moves.rollback(own, "nightly", None, at(26))
    assert (back.digest, nightly(registry)) == (old, old)
    sent = [line for line in registry.asked if "PUT" in line and "/blobs/uploads" in line]
    assert len(sent) == 3, "two receipts, and what both have as their configuration"

    rows = moves.history(own, "nightly")
    assert [(row.number, row.state, row.digest, row.action) for row in rows] == [
        (0, State.CURRENT, old, "rollback"),
        (1, State.PAST, new, "promote"),
        (2, State.PAST, old, "promote"),
    ]
    assert rows[1].image == str(tags.of_labels(NEW))
    elsewhere = replace(own, state=tmp_path / "another machine")
    assert [row.digest for row in moves.history(elsewhere, "nightly")] == [old, new, old]
    assert moves.rollback(own, "nightly", "1", at(27)).digest == new
    assert moves.rollback(own, "nightly", old[:17], at(28)).digest == old


def test_nobody_but_a_person_gives_a_tag_to_the_image_that_it_was_taken_back_from(
    registry: FakeRegistry, tmp_path: Path
) -> None:
    newer = labels("cccccccc", day="2026-11-21")
    old, bad, new = (verified(registry, tmp_path, own) for own in (OLD, NEW, newer))
    own = repository(registry, tmp_path)

    elsewhere = replace(own, state=tmp_path / "another machine")

    def night(wanted: str, hours: int, on: Repository = own) -> str | None:
        moves.promote(on, wanted, "nightly", at(hours), unattended=True)
        return nightly(registry)

    # nights go to and fro as they find it right: a wheel was yanked, and came back
    assert [night(old, 0), night(bad, 1), night(old, 2), night(bad, 3)] == [old, bad, old, bad]
    moves.rollback(own, "nightly", None, at(4))
    for machine in (own, elsewhere):
        assert code_of(CheckFailedError, night, bad, 5, machine) == "promote-taken-back"
        assert nightly(registry) == old
    assert night(new, 6) == new
    moves.rollback(own, "nightly", None, at(7))
    moves.promote(own, new, "nightly", at(8))
    assert night(new, 9) == new


def test_a_repository_that_is_not_there_has_no_history(
    registry: FakeRegistry, tmp_path: Path
) -> None:
    own = repository(registry, tmp_path)
    assert code_of(InputError, moves.history, own, "nightly") == "repository-missing"
    assert code_of(InputError, moves.rollback, own, "nightly", None, NOW) == "repository-missing"
    registry.put(PATH, "other", {"sha256:x": 1}, labels={})
    assert moves.history(own, "nightly") == []


def test_only_what_the_history_has_is_a_target(registry: FakeRegistry, tmp_path: Path) -> None:
    own = repository(registry, tmp_path)
    registry.put(PATH, "other", {"sha256:x": 1}, labels={})
    assert code_of(InputError, moves.rollback, own, "nightly", None, NOW) == "rollback-where"
    verified(registry, tmp_path, NEW)
    moves.promote(own, str(tags.of_labels(NEW)), "nightly", NOW)
    for to in (None, "1", "sha256:77", "zz"):
        assert code_of(InputError, moves.rollback, own, "nightly", to, NOW) == ("rollback-where")
    missing = code_of(CheckFailedError, moves.promote, own, "none", "nightly", NOW)
    assert missing == "promote-missing"


def test_an_image_that_was_removed_is_no_target(registry: FakeRegistry, tmp_path: Path) -> None:
    old, new = (verified(registry, tmp_path, own) for own in (OLD, NEW))
    own = repository(registry, tmp_path)
    moves.promote(own, old, "nightly", at(0))
    moves.promote(own, new, "nightly", at(1))
    registry_writes.delete(own.registries, own.name, old)
    assert [row.digest for row in moves.history(own, "nightly")] == [new]
    assert nightly(registry) == new


def test_a_moving_tag_never_names_what_no_receipt_vouches_for(
    registry: FakeRegistry, tmp_path: Path
) -> None:
    digest = image(registry, NEW)
    own = repository(registry, tmp_path)

    def refused() -> str:
        code = code_of(CheckFailedError, moves.promote, own, digest, "nightly", NOW)
        assert registry.tags(PATH) == {str(tags.of_labels(NEW)): digest}
        return code

    good = receipt_of(digest, NEW)
    assert refused() == "promote-unverified"
    cases = {
        "promote-failed-verify": receipt_of(digest, NEW, Outcome.FAIL),
        "promote-receipt": replace(good, build_key="other"),
    }
    for code, record in cases.items():
        own.receipts.save(record)
        assert refused() == code
    own.receipts.save(replace(good, checks=(replace(good.checks[0], name="invented"),)))
    assert refused() == "promote-receipt"
    own.receipts.save(replace(good, version="0.0.1", tools={}, checks=(
        replace(good.checks[0], name="of-its-time"),)))  # fmt: skip
    assert moves.promote(own, digest, "nightly", NOW).receipt.endswith(
        "level import, imagefactory 0.0.1, unsigned"
    )


def test_an_image_of_somebody_else_cannot_be_promoted(
    registry: FakeRegistry, tmp_path: Path
) -> None:
    registry.put(PATH, "theirs", {"sha256:x": 1}, labels={})
    own = repository(registry, tmp_path)
    code = code_of(CheckFailedError, moves.promote, own, "theirs", "nightly", NOW)
    assert code == "promote-foreign"


def test_a_tag_that_needs_a_gpu_is_refused_with_the_reason(
    registry: FakeRegistry, tmp_path: Path
) -> None:
    digest = verified(registry, tmp_path, NEW)
    own = repository(registry, tmp_path)
    with pytest.raises(CheckFailedError, match="shows level 'import'") as caught:
        moves.promote(own, digest, "stable-gb10", NOW)
    assert caught.value.problems[0].code == "promote-level"
    assert "matrix.yaml:5" in caught.value.problems[0].fix
    own.receipts.save(receipt_of(digest, NEW, level=Level.GPU))
    assert moves.promote(own, digest, "stable-gb10", NOW).moved


def test_a_tag_that_the_matrix_does_not_declare_for_an_image_is_refused(
    registry: FakeRegistry, tmp_path: Path
) -> None:
    digest = verified(registry, tmp_path, NEW)
    own = repository(registry, tmp_path, moving("nightly", flavor="cpu"), moving("latest-{flavor}"))
    for tag in ("nightly", "latest-cpu", "anything"):
        assert code_of(InputError, moves.promote, own, digest, tag, NOW) == "tag-undeclared"
    with pytest.raises(InputError, match="the matrix declares latest-gb10 for it"):
        moves.promote(own, digest, "anything", NOW)
    with pytest.raises(InputError, match="the matrix declares none for it"):
        moves.promote(replace(own, moving=own.moving[:1]), digest, "nightly", NOW)
    assert code_of(InputError, moves.promote, own, digest, str(tags.of_labels(NEW)), NOW) == (
        "tag-reserved"
    )
    assert moves.promote(own, digest, "latest-gb10", NOW).moved


def test_another_machine_promotes_by_the_receipt_that_is_attached(
    registry: FakeRegistry, tmp_path: Path
) -> None:
    digest = image(registry, NEW)
    own = repository(registry, tmp_path)
    registry.has_referrers = False
    assert attached(own, receipt_of(digest, NEW))
    assert moves.promote(own, digest, "nightly", NOW).digest == digest
    later = "2026-11-21T10:00:00+00:00"
    failed = receipt_of(digest, NEW, Outcome.FAIL, verified_at=later)
    assert attached(own, failed)
    code = code_of(CheckFailedError, moves.promote, own, digest, "nightly", NOW)
    assert code == "promote-failed-verify"


def test_a_registry_that_takes_no_receipts_gets_its_images_and_says_so(
    registry: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    digest = image(registry, NEW)
    own = repository(registry, tmp_path)
    there = own.registries.document(f"{own.name}@{digest}")
    assert there is not None
    registry.user, registry.scheme = "me:secret", "Basic"
    rows = [row_of(receipt_of(digest, NEW))]
    assert not attachments.attach(own.registries, own.name, there, rows)
    assert "only this machine can promote it" in capsys.readouterr().err


def test_a_tag_that_somebody_else_moved_is_shown_and_can_be_given_back(
    registry: FakeRegistry, tmp_path: Path
) -> None:
    old, new = (verified(registry, tmp_path, own) for own in (OLD, NEW))
    own = repository(registry, tmp_path)
    moves.promote(own, old, "nightly", NOW)
    registry.manifests[PATH, "nightly"] = registry.manifests[PATH, new]
    rows = moves.history(own, "nightly")
    assert [(row.number, row.record == "", row.digest) for row in rows] == [
        (0, True, new),
        (1, False, old),
    ]
    assert moves.rollback(own, "nightly", None, at(1)).digest == old
    registry.manifests[PATH, rows[1].record] = registry.manifests[PATH, new]
    assert State.ALTERED in {row.state for row in moves.history(own, "nightly")}


class Killed(BaseException):
    """Ends a run as a kill does: nothing catches it."""


def steps(monkeypatch: pytest.MonkeyPatch, until: int) -> list[str]:
    """Kill the run before a write, which is also after the one before."""
    done: list[str] = []

    def wrap(name: str, work: Callable[..., object]) -> Callable[..., object]:
        def step(*args: object) -> object:
            if len(done) == until:
                raise Killed
            done.append(name)
            return work(*args)

        return step

    monkeypatch.setattr(
        registry_writes, "put_manifest", wrap("registry", registry_writes.put_manifest)
    )
    monkeypatch.setattr(ledger, "append", wrap("ledger", ledger.append))
    return done


# a rollback finds the receipt attached, and has two steps less
@pytest.mark.parametrize(
    ("action", "until"),
    [*(("promote", until) for until in range(5)), *(("rollback", until) for until in range(3))],
)
def test_a_run_that_is_killed_at_any_step_is_finished_by_the_next(
    registry: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: int, action: str
) -> None:
    old, new = (verified(registry, tmp_path, own) for own in (OLD, NEW))
    own = repository(registry, tmp_path)
    moves.promote(own, old, "nightly", at(0))
    if action == "rollback":
        moves.promote(own, new, "nightly", at(1))

    def work(hours: int) -> object:
        if action == "promote":
            return moves.promote(own, new, "nightly", at(hours))
        return moves.rollback(own, "nightly", old, at(hours))

    wanted, before = (new, old) if action == "promote" else (old, new)
    with monkeypatch.context() as patched:
        steps(patched, until)
        with pytest.raises(Killed):
            work(2)
    assert nightly(registry) == before
    work(3)
    assert nightly(registry) == wanted
    rows = moves.history(own, "nightly")
    assert [row.state for row in rows] == [State.CURRENT] + [State.PAST] * (len(rows) - 1)
    assert [row.action for row in rows[-1:0:-1]] == ["promote"] * (len(rows) - 1)
    assert rows[0].action == action
    assert len(rows) == (2 if action == "promote" else 3)


def entry(number: int) -> Entry:
    return Entry(record=f"r{number}", digest="d", before="", action="promote", by="me@here", at="t")


def test_the_ledger_skips_lines_that_were_cut_off_and_goes_on_after_them(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    assert ledger.read(path) == {}
    ledger.append(path, entry(1))
    ledger.append(path, entry(1))
    path.write_bytes(path.read_bytes() + b'{"record": "r2", "dig')
    assert [*ledger.read(path)] == ["r1"]
    ledger.append(path, entry(3))
    path.write_bytes(path.read_bytes() + b'[1]\n{"record": 5}\n\xff\n')
    assert [*ledger.read(path)] == ["r1", "r3"]
    ledger.append(path, entry(4))
    assert path.read_bytes().startswith(json.dumps({"record": "r1"}).encode()[:-1])
    assert b"\n\n" not in path.read_bytes(), "only a line that was cut off needs a new one"


def test_the_ledger_takes_entries_of_many_writers_at_once(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    writers = [
        threading.Thread(target=ledger.append, args=(path, entry(number))) for number in range(8)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert {*ledger.read(path)} == {f"r{number}" for number in range(8)}
    assert len(path.read_text().splitlines()) == 8


def test_moves_of_one_second_keep_their_order(registry: FakeRegistry, tmp_path: Path) -> None:
    old, new = (verified(registry, tmp_path, own) for own in (OLD, NEW))
    own: Repository = repository(registry, tmp_path)
    for digest in (old, new, old, new):
        moves.promote(own, digest, "nightly", NOW)
    assert [row.digest for row in moves.history(own, "nightly")] == [new, old, new, old]


def test_a_registry_that_says_yes_and_does_nothing_is_noticed(
    registry: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = verified(registry, tmp_path, NEW)
    own = repository(registry, tmp_path)
    monkeypatch.setattr(registry_writes, "put_manifest", lambda *_: None)
    assert code_of(SetupError, moves.promote, own, digest, "nightly", NOW) == "tag-not-moved"
