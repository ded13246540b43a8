"""Comparing the files of two images, from the archives that an engine exports."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefactory.inspecting import filetree


def archive(*members: tuple[str, bytes | None, dict[str, object]]) -> io.BytesIO:
    """A tar stream; a member without content is what its attributes say."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content, attributes in members:
            info = tarfile.TarInfo(name)
            info.size = len(content or b"")
            for key, value in attributes.items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(content) if content is not None else None)
    out.seek(0)
    return out


def tree(**content: str) -> dict[str, filetree.Entry]:
    date: dict[str, object] = {"mtime": 315532800}
    return filetree.read(archive(*((name, text.encode(), date) for name, text in content.items())))


def test_files_that_the_engine_adds_to_every_container_are_ignored() -> None:
    found = filetree.read(
        archive(
            (".dockerenv", b"", {}),
            ("etc/hostname", b"x", {}),
            ("etc", None, {"type": tarfile.DIRTYPE}),
        )
    )
    assert found == {}


def test_differences_in_content_mode_owner_date_and_link_are_reported() -> None:
    before = filetree.read(
        archive(
            ("same", b"x", {}),
            ("content", b"x", {}),
            ("mode", b"x", {"mode": 0o644}),
            ("owner", b"x", {}),
            ("date", b"x", {"mtime": 1}),
            ("link", None, {"type": tarfile.SYMTYPE, "linkname": "a"}),
            ("kind", b"", {}),
            ("gone", b"1234", {}),
        )
    )
    after = filetree.read(
        archive(
            ("same", b"x", {}),
            ("content", b"y", {}),
            ("mode", b"x", {"mode": 0o755}),
            ("owner", b"x", {"uid": 1000}),
            ("date", b"x", {"mtime": 2}),
            ("link", None, {"type": tarfile.SYMTYPE, "linkname": "b"}),
            ("kind", None, {"type": tarfile.SYMTYPE, "linkname": "x"}),
            ("new", b"12", {}),
        )
    )
    reported = {change.path: change.what for change in filetree.compare(before, after)}
    assert reported == {
        "content": "content",
        "mode": "mode",
        "owner": "owner",
        "date": "date",
        "link": "link",
        "kind": "content, kind, link",
        "gone": "only in the first",
        "new": "only in the second",
    }
    (gone,) = [change for change in filetree.compare(before, after) if change.path == "gone"]
    assert (gone.old_size, gone.new_size) == (4, 0)


def test_the_fingerprint_ignores_dates_and_nothing_else() -> None:
    one = tree(a="x", b="y")
    later = {path: replace(entry, date=entry.date + 1) for path, entry in one.items()}
    assert filetree.fingerprint(one) == filetree.fingerprint(later)
    assert filetree.fingerprint(one) != filetree.fingerprint(tree(a="x", b="z"))
    executable = {**one, "a": replace(one["a"], mode=0o755)}
    assert filetree.fingerprint(one) != filetree.fingerprint(executable)


NAMES = st.text(
    st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1, max_size=8
)
FILES = st.dictionaries(
    NAMES.filter(lambda name: name not in (".", "..") and name not in filetree.RUNTIME), st.binary()
)


@given(FILES, FILES)
def test_exactly_the_paths_that_differ_are_reported(
    one: dict[str, bytes], other: dict[str, bytes]
) -> None:
    before, after = (
        filetree.read(archive(*((n, data, {}) for n, data in d.items()))) for d in (one, other)
    )
    reported = {change.path for change in filetree.compare(before, after)}
    assert reported == {name for name in {*one, *other} if one.get(name) != other.get(name)}
    assert (filetree.fingerprint(before) == filetree.fingerprint(after)) == (one == other)


def test_a_truncated_stream_is_an_error_and_not_a_smaller_tree() -> None:
    whole = archive(("a", b"x" * 5000, {})).getvalue()
    with pytest.raises(tarfile.TarError):
        filetree.read(io.BytesIO(whole[:3000]))
