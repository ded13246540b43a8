"""Names that are lent for a push, and given back even if it was killed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.images import DIGEST

from imagefactory.errors import CheckFailedError, SetupError, fail
from imagefactory.publishing import lending

OTHER = "sha256:" + "b" * 64


class Names:
    """An engine of which only names matter."""

    def __init__(self, **names: str) -> None:
        self.names = names
        self.calls: list[tuple[str, ...]] = []

    def inspect_image(self, name: str) -> object:
        if name not in self.names:
            raise fail(CheckFailedError, "image-missing", "no")
        return SimpleNamespace(digest=self.names[name])

    def tag(self, digest: str, name: str) -> None:
        if digest == GONE:
            raise fail(CheckFailedError, "image-missing", "no")
        self.calls.append(("tag", digest, name))
        self.names[name] = digest

    def untag(self, name: str) -> None:
        self.calls.append(("untag", name))
        self.names.pop(name, None)


NAME, GONE = "h:5000/me/vllm:1", "sha256:" + "c" * 64
KEPT = "h:5000/me/vllm:imagefactory-keeps-" + "b" * 12


def test_a_name_of_somebody_elses_image_is_kept_beside_it_while_it_is_lent(tmp_path: Path) -> None:
    engine: Any = Names(**{NAME: OTHER})
    with lending.named(engine, DIGEST, NAME, tmp_path / "new/loans"):
        assert engine.names == {NAME: DIGEST, KEPT: OTHER}
        (path,) = (tmp_path / "new/loans").glob("*.json")
        rows = {"name": NAME, "digest": DIGEST, "before": OTHER, "kept": KEPT}
        assert json.loads(path.read_text()) == rows
        assert len(path.stem) == 16
    assert engine.names == {NAME: OTHER}
    assert engine.calls == [
        ("tag", OTHER, KEPT),
        ("tag", DIGEST, NAME),
        ("tag", OTHER, NAME),
        ("untag", KEPT),
    ]
    assert not path.exists()


def test_a_free_name_is_lent_and_is_free_again(tmp_path: Path) -> None:
    engine: Any = Names()
    with lending.named(engine, DIGEST, NAME, tmp_path):
        assert engine.names == {NAME: DIGEST}
    assert (engine.names, len(engine.calls)) == ({}, 2)


LOAN = {"name": NAME, "digest": DIGEST, "before": "", "kept": ""}


@pytest.mark.parametrize(
    ("loan", "names", "after"),
    [
        (LOAN, {NAME: DIGEST}, {}),
        (LOAN, {NAME: OTHER}, {NAME: OTHER}),
        (LOAN, {}, {}),
        ({**LOAN, "before": OTHER, "kept": KEPT}, {NAME: DIGEST, KEPT: OTHER}, {NAME: OTHER}),
        ({**LOAN, "before": GONE}, {NAME: DIGEST}, {}),
        ({**LOAN, "before": OTHER, "kept": KEPT}, {KEPT: OTHER}, {}),
        ({**LOAN, "more": "x"}, {NAME: DIGEST}, {}),
    ],
)
def test_a_loan_of_a_killed_push_is_ended_if_nobody_has_used_its_name(
    tmp_path: Path, loan: Mapping[str, str], names: dict[str, str], after: dict[str, str]
) -> None:
    (tmp_path / "x.json").write_text(json.dumps(loan))
    engine: Any = Names(**names)
    lending.sweep(engine, tmp_path)
    assert engine.names == after
    assert not list(tmp_path.glob("*.json"))


@pytest.mark.parametrize(("size", "is_ended"), [(lending.LARGEST, True), (10_001, False)])
def test_a_loan_that_is_too_large_to_be_one_is_dropped(
    tmp_path: Path, size: int, is_ended: bool
) -> None:
    (tmp_path / "x.json").write_text(json.dumps(LOAN).ljust(size))
    engine: Any = Names(**{NAME: DIGEST})
    lending.sweep(engine, tmp_path)
    assert (engine.names == {}) is is_ended
    assert not (tmp_path / "x.json").exists()


def test_an_engine_that_fails_leaves_its_loan_and_the_next_one_is_ended(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(json.dumps({**LOAN, "name": name}))
    engine: Any = Names(a=DIGEST, b=DIGEST)
    inspect = engine.inspect_image

    def failing(name: str) -> object:
        if name == "a":
            raise fail(SetupError, "engine-down", "no")
        return inspect(name)

    engine.inspect_image = failing
    lending.sweep(engine, tmp_path)
    assert engine.names == {"a": DIGEST}
    assert [path.name for path in tmp_path.glob("*.json")] == ["a.json"]
