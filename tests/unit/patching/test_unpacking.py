"""Unpacking sources: files that neighbouring releases share are written once."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

from imagefactory.patching import sources


def unpack(root: Path, **texts: str) -> Path:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, text in texts.items():
            archive.writestr(f"p/{name}.py", text)
    sources._write_texts(data, "p.whl", root, sources.TEXT)
    (root / ".source.json").write_text("{}")
    return root / "p"


def test_a_file_is_a_link_only_to_one_of_a_neighbour_that_is_the_same(tmp_path: Path) -> None:
    old = unpack(tmp_path / "0.9", same="1", other="1", far="9")
    unpack(tmp_path / "0.10", same="1", other="1", far="1")
    new = unpack(tmp_path / "0.11", same="1", other="2", far="9", more="3")
    texts = {file.stem: file.read_text() for file in new.iterdir()}
    assert texts == {"same": "1", "other": "2", "far": "9", "more": "3"}
    shared = {file.stem for file in new.iterdir() if file.stat().st_nlink > 1}
    assert shared == {"same"}
    assert (new / "same.py").samefile(old / "same.py")
    commit = unpack(tmp_path / "c0ffee", same="1")
    assert (commit / "same.py").stat().st_nlink == 1
