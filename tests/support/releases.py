"""Releases of a project that changes one file in every way that a merge has to handle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from imagefactory.settings import Settings
from support.index import serve
from support.machine import settings
from support.sources import publish, sdist

DIFF = "--- a/pkg/x.py\n+++ b/pkg/x.py\n@@ -1,7 +1,7 @@\n head\n a\n b\n-c\n+patched\n d\n e\n f\n"


PROOF = """\
import pathlib, sys
text = "".join(path.read_text() for path in pathlib.Path(sys.argv[1]).rglob("*.py"))
print("looked")
raise SystemExit(0 if "patched" in text or "fixed upstream" in text else 1)
"""


#: A patch.yaml; its comment and its folded text are to stay as they are.
ENTRY = """\
# a comment that stays
summary: s
purpose: >
  a text
  that is folded
symptom: y
evidence: []
remove_when: r
stage: installed
variants:
  - versions: ">=0.20,<0.21"
    diff: 0.20.diff
findings: f
proof:
  run: proof.py
  kind: behaviour
"""


BASE = "head\na\nb\nc\nd\ne\nf\ng\n"


RELEASES = {
    "0.20.0": {"pkg/x.py": BASE},
    "0.21.0": {"pkg/x.py": BASE},
    "0.22.0": {
        "pkg/x.py": "b2\n" + BASE.replace("a\n", "a changed\n", 1).replace("head changed", "head")
    },
    "0.23.0": {"other/folder/x.py": BASE.replace("g\n", "g changed\n")},
    "0.24.0": {"pkg/x.py": BASE.replace("c\n", "see\n")},
    "0.25.0": {"pkg/x.py": BASE.replace("c\n", "fixed upstream\n")},
    "0.26.0": {"pkg/y.py": "unrelated\n"},
}


def write_patch(root: Path) -> Path:
    """Write the patch vllm/one below ``root``; its folder."""
    folder = root / "patches/vllm/one"
    folder.mkdir(parents=True)
    for name, text in {"patch.yaml": ENTRY, "0.20.diff": DIFF, "proof.py": PROOF}.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def using(tmp_path: Path) -> Iterator[Settings]:
    (tmp_path / "sdists").mkdir()
    for version, files in RELEASES.items():
        sdist(tmp_path / "sdists", version, files)
    with serve(tmp_path / "none", tmp_path / "www") as url:
        publish(tmp_path / "sdists", tmp_path / "www")
        yield settings(tmp_path, url)
