"""An image made once more: the same, or different with every file named."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.e2e import derive, factory

from imagefactory.inspecting.rebuild import REPOSITORY
from imagefactory.system.engine import Engine

pytestmark = pytest.mark.e2e


def test_an_image_built_again_is_the_same_and_leaves_nothing_behind(
    cpu_image: str, engine: Engine
) -> None:
    # no step is cached, those of the base included, and the contexts are in another folder
    done = factory("rebuild", "--diff", "--with-base", cpu_image, "--json")
    assert done.code == 0, done.err
    assert done.json["same"] is True
    assert done.json["new"] == engine.inspect_image(cpu_image).digest
    key = engine.inspect_image(cpu_image).labels["io.imagefactory.build-key"]
    assert engine.find_images([f"{REPOSITORY}:{key[:12]}"]) == {}


def test_a_changed_file_in_an_image_with_the_same_key_is_named(
    cpu_image: str, engine: Engine, tmp_path: Path
) -> None:
    dockerfile = "RUN echo '# changed' >> /opt/venv/lib/python3.11/site-packages/idna/core.py\n"
    other = derive(engine, tmp_path, cpu_image, "imagefactory/test:changed", dockerfile)
    done = factory("rebuild", "--diff", other, "--json")
    assert done.code == 1, done.err
    (core,) = [row for row in done.json["files"] if row["path"].endswith("idna/core.py")]
    assert core["what"] == "content, date"
    assert done.json["fingerprints"][0] != done.json["fingerprints"][1]
    folders = {row["path"] for row in done.json["files"]} - {core["path"]}
    assert all(row["what"] == "date" for row in done.json["files"] if row["path"] in folders)


def test_an_image_from_other_inputs_or_of_somebody_else_is_not_built_again(
    cpu_image: str, engine: Engine, tmp_path: Path
) -> None:
    other = derive(
        engine,
        tmp_path,
        cpu_image,
        "imagefactory/test:other-key",
        "LABEL io.imagefactory.build-key=00\n",
    )
    done = factory("rebuild", other)
    assert (done.code, "rebuild-other-inputs" in done.err) == (1, True)
    (tmp_path / "foreign").mkdir()
    other = derive(
        engine, tmp_path / "foreign", "scratch", "imagefactory/test:foreign", "COPY Dockerfile /\n"
    )
    foreign = factory("rebuild", other)
    assert (foreign.code, "rebuild-no-cell" in foreign.err) == (1, True)
