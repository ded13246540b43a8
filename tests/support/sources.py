"""Source distributions on a test's own index."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from support.index import serve


def sdist(folder: Path, version: str, files: Mapping[str, str]) -> None:
    with tarfile.open(folder / f"vllm-{version}.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"vllm-{version}/{name}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))


def publish(folder: Path, www: Path, *, wrong: bool = False) -> None:
    (www / "files").mkdir(parents=True, exist_ok=True)
    links = ""
    for path in sorted(folder.glob("*.tar.gz")):
        data = path.read_bytes()
        (www / "files" / path.name).write_bytes(data)
        sha = hashlib.sha256(b"other" if wrong else data).hexdigest()
        links += f'<a href="/files/{path.name}#sha256={sha}">{path.name}</a>'
    page = www / "simple" / "vllm" / "index.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "sdists").mkdir()
    for version, text in TREES.items():
        sdist(
            tmp_path / "sdists",
            version,
            {"x.py": text, "logo.png": "", "vllm.egg-info/a.txt": "", "../out.py": ""},
        )
    with serve(tmp_path / "none", tmp_path / "www") as url:
        publish(tmp_path / "sdists", tmp_path / "www")
        yield url


TREES = {
    "0.22.1": "one\ntwo\n",
    "0.22.2": "one\nzwei\n",
    "0.22.3": "eins\ntwo\n",
    "0.23.0": "one\ntwo\n",
}
