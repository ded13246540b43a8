"""Archives have the headers that tarfile writes."""

from __future__ import annotations

import io
import tarfile

from hypothesis import given
from hypothesis import strategies as st

from imagefactory.building import tarball
from imagefactory.building.tree import Entry, Kind, Tree

EPOCH = 315532800
NAMES = st.text("ab.é\udc80", min_size=1, max_size=110)
ENTRIES = st.builds(
    Entry,
    kind=st.sampled_from(Kind),
    mode=st.sampled_from([0o644, 0o755, 0o4755]),
    uid=st.sampled_from([0, 1000, 8**8]),
    gid=st.sampled_from([0, 42]),
    content=st.binary(max_size=600),
    target=st.just(""),
)


@given(st.dictionaries(NAMES, ENTRIES, max_size=6))
def test_every_header_is_as_tarfile_encodes_it(entries: dict[str, Entry]) -> None:
    tree = Tree()
    for path, entry in entries.items():
        tree.put(path, entry)
    data = b"".join(tarball.blocks(tree, EPOCH))
    with tarfile.open(fileobj=io.BytesIO(data), errors="surrogateescape") as archive:
        members = archive.getmembers()
    assert [one.name for one in members] == sorted(entries)
    for member, (path, entry) in zip(members, tree, strict=True):
        wanted = tarfile.TarInfo(path)
        wanted.type, wanted.mode, wanted.mtime = member.type, entry.mode, EPOCH
        wanted.uid, wanted.gid = entry.uid, entry.gid
        wanted.size = len(entry.read()) if entry.kind is Kind.FILE else 0
        header = wanted.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
        assert data[member.offset : member.offset + len(header)] == header
        assert data[member.offset_data : member.offset_data + wanted.size] == (
            entry.read() if wanted.size else b""
        )


def test_a_file_of_8_gib_has_the_header_of_tarfile() -> None:
    class Large:
        size = 8**11

        def chunks(self) -> list[bytes]:
            return []

    tree = Tree()
    tree.put("large", Entry(kind=Kind.FILE, mode=0o644, content=Large()))  # type: ignore[arg-type]
    header = tarfile.TarInfo.frombuf(next(tarball.blocks(tree, EPOCH)), "utf-8", "strict")
    assert header.size == 8**11
