"""A wheel that is at no index, in a real image: named by its address and hash in the matrix."""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

import pytest
from support.e2e import factory

from imagefactory.system.engine import Engine

pytestmark = pytest.mark.e2e

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.index import serve, wheel  # noqa: E402


def test_it_is_locked_fetched_installed_and_verified_as_any_other(
    project: Path, engine: Engine, tmp_path: Path
) -> None:
    made = wheel(
        tmp_path / "files",
        "custom-loader",
        "1.0+stream",
        files={"custom_loader.py": "WORD = 'streaming'\n"},
    )
    sha = hashlib.sha256(made.read_bytes()).hexdigest()
    file = project / "matrix.yaml"
    with serve(tmp_path / "files", tmp_path / "www") as url:
        address = url.replace("/simple", "/files/") + made.name.replace("+", "%2B")
        asked = f'"torch=={{torch}}+{{channel}}", "custom-loader @ {address}#sha256={sha}"]'
        text = file.read_text().replace('"torch=={torch}+{channel}"]', asked)
        file.write_text(text.replace("imagefactory/vllm", "imagefactory/test-address"))
        locked = factory("lock", cwd=project)
        assert locked.code == 0, locked.err
    built = factory("build", "--matrix", "--select", "flavor=cpu", "--no-verify", cwd=project)
    assert built.code == 0, built.err
    tag = "imagefactory/test-address:cpu-vllm0.32.0"
    said = engine.run(
        tag,
        ["python", "-c", "import custom_loader as c; print(c.WORD)"],
        platform=engine.platform,
        timeout=300,
    )
    assert said.out.strip() == "streaming", said.err
    verified = factory("verify", tag, "--level", "import", cwd=project)
    assert re.search(r"wheels-installed +pass", verified.out), verified.out
    assert verified.code == 0, verified.err
