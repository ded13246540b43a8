"""A small patch for tests."""

from __future__ import annotations

from pathlib import Path

PATCH = """\
summary: s
purpose: p
symptom: y
evidence: []
remove_when: r
stage: installed
variants:
  - versions: ">=0.22,<0.23"
    diff: a.diff
  - versions: ">=0.33,<0.34"
    diff: b.diff
findings: f
proof:
  run: proof.py
  kind: static
"""


UNPROVEN = PATCH.partition("proof:\n")[0] + "unproven: true\n"


DIFF = "--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,2 @@\n one\n-two\n+zwei\n"


def make(root: Path, name: str = "vllm/one", text: str = PATCH) -> Path:
    folder = root / "patches" / name
    folder.mkdir(parents=True)
    (folder / "patch.yaml").write_text(text)
    for diff in ("a.diff", "b.diff"):
        (folder / diff).write_text(DIFF)
    (folder / "proof.py").write_text("")
    return folder
