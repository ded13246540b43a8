"""Archives are read as engines read them; what they would read in another way is refused."""

from __future__ import annotations

import io
import tarfile

import pytest
from support.odd_layers import END, GNU, OLD, long_name, member, pax

from imagefactory.verifying.outside import tars
from imagefactory.verifying.outside.streams import Forward
from imagefactory.verifying.outside.tars import Member


def read(data: bytes) -> list[Member]:
    return list(tars.members(Forward(io.BytesIO(data))))


def paths(data: bytes) -> list[str]:
    return [one.path for one in read(data)]


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_what_python_writes_is_read_in_each_format(form: int) -> None:
    out, long = io.BytesIO(), form != tarfile.USTAR_FORMAT
    names = ["a", "b" * 40 + "/" + "c" * 90, "ü" * 120 if long else "d"]
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name in names:
            made = tarfile.TarInfo(name)
            made.size, made.mode, made.uid, made.gid = 513, 0o4751, 9, 2**22 if long else 8
            archive.addfile(made, io.BytesIO(b"x" * 513))
            link = tarfile.TarInfo(f"l{name[:50]}")
            link.type, link.linkname = tarfile.SYMTYPE, "../" + "x" * (150 if long else 50)
            archive.addfile(link)
    found = read(out.getvalue())
    assert [one.path for one in found[::2]] == names
    assert {one.owner for one in found[::2]} == {f"9:{2**22 if long else 8}"}
    assert {(one.kind, one.mode, one.size) for one in found[::2]} == {("file", 0o4751, 513)}
    assert {len(one.link) for one in found[1::2]} == {153 if long else 53}


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (member("a") + END, ["a"]),
        (member("./a//b/./c") + END, ["a/b/c"]),
        (member("/a/", kind=b"5") + END, ["a"]),
        (member("b", prefix=b"a") + END, ["a/b"]),
        (member("a", magic=GNU) + member("b", magic=OLD) + END, ["a", "b"]),
        (member("a", size=b"\x80" + bytes(10) + b"\2") + b"x" * 512 + END, ["a"]),
        (member("a", size=b" 2 \0" + bytes(8)) + b"x" * 512 + END, ["a"]),
        (long_name("n" * 200) + member("a", magic=GNU) + END, ["n" * 200]),
        (pax({"path": "p", "mtime": "1.5"}) + member("a") + END, ["p"]),
        (pax({"comment": "of git archive"}, kind=b"g") + member("a") + END, ["a"]),
        # archives end with empty blocks, one, or none
        (member("a"), ["a"]),
        (member("a") + END[:512], ["a"]),
        (member("a") + END * 30, ["a"]),
        (b"", []),
    ],
)
def test_usual_archives_are_read(data: bytes, found: list[str]) -> None:
    assert paths(data) == found


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (member("a", b"x" * 513)[:-600], "was cut"),
        (member("a")[:300], "was cut"),
        (member("a") + END + member("b"), "goes on after its end"),
        (member("a") + END[:512] + b"x", "goes on after its end"),
        (member("a").replace(b"a", b"b", 1) + END, "is damaged"),
        (member("a", magic=b"ustar\x0001") + END, "unknown form"),
        (member("a", magic=b"ustar  1") + END, "unknown form"),
        (member("a", magic=GNU, prefix=b"x") + END, "unknown form"),
        (member("a", magic=OLD, prefix=b"x") + END, "unknown form"),
        (member("a", prefix=b"x" * 156) + END, "unknown form"),
        (member("a", kind=b"7") + END, "unknown kind b'7'"),
        (member("a", kind=b"S") + END, "unknown kind b'S'"),
        (member("a/") + END, "with the name of a folder"),
        (member("a/", kind=b"\0") + END, "with the name of a folder"),
        (member("./") + END, "with the name of a folder"),
        (member("a/../b") + END, "has .. in it"),
        (member("a", size=b"\0" + b"%010o\0" % 1) + END, "is not a number"),
        (member("a", size=b"\xff" * 12) + END, "is not a number"),
        (member("a", size=b"0_1".ljust(12, b"\0")) + END, "is not a number"),
        (pax({"path": "p"}) * 2 + member("a") + END, "more than one name"),
        (pax({"path": "p"}) + long_name("b") + member("a") + END, "more than one name"),
        (long_name("b") + pax({"path": "p"}) + member("a") + END, "more than one name"),
        (long_name("b") * 2 + member("a") + END, "more than one name"),
        (pax({"path": "p"}, kind=b"g") + member("a") + END, "a header for all files"),
        (pax({"path": "p"}) + END, "ends with the name of a file"),
        (pax({"path": ""}) + member("a") + END, "is empty, or has a NUL"),
        (pax({"linkpath": "a\0b"}) + member("a") + END, "is empty, or has a NUL"),
        (long_name("a\0b") + member("a") + END, "is empty, or has a NUL"),
        (long_name("") + member("a") + END, "is empty, or has a NUL"),
        (pax({"uid": "+7"}) + member("a") + END, "is not a number"),
        (pax({"size": ""}) + member("a") + END, "is not a number"),
        (pax({"path": "p"}, sign="+") + member("a") + END, "cannot be read"),
        (pax({"path": "p"}, sign="0") + member("a") + END, "cannot be read"),
        (member("p", b"9 path=p", kind=b"x") + member("a") + END, "cannot be read"),
        (member("p", b"9 path=pp\n", kind=b"x") + member("a") + END, "cannot be read"),
        (member("p", b"6 pa=\n9 p", kind=b"x") + member("a") + END, "cannot be read"),
        (member("p", b"8 uid=1\n8 uid=2\n", kind=b"x") + member("a") + END, "uid twice"),
        (pax({"GNU.sparse.name": "p"}) + member("a") + END, "the record GNU.sparse.name"),
        (pax({"hdrcharset": "BINARY"}) + member("a") + END, "the record hdrcharset"),
        (member("p", size=b"%011o\0" % (2 << 20), kind=b"x") + END, "is too large"),
        (member("p", size=b"%011o\0" % 5000, kind=b"x") + END, "was cut"),
    ],
)
def test_what_can_be_read_in_two_ways_is_refused(data: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read(data)


def test_a_device_is_told_from_another_one() -> None:
    one = tarfile.TarInfo("n")
    one.type, one.devmajor, one.devminor = tarfile.CHRTYPE, 1, 3
    assert [found.link for found in read(one.tobuf() + END)] == ["1:3"]


def test_the_content_of_a_file_is_read_or_skipped() -> None:
    stream = Forward(io.BytesIO(member("a", b"1" * 600) + member("b", b"22") + END))
    found = {one.path: one.path == "b" and stream.read(2) for one in tars.members(stream)}
    assert found == {"a": False, "b": b"22"}
