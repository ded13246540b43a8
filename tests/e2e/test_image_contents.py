"""What is in an image and what is not, and what a start keeps for the next one."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator

import pytest

from imagefactory.system.engine import Engine

pytestmark = pytest.mark.e2e

PREFIX = "import sys, idna; print(sys.pycache_prefix)"


def run(
    engine: Engine,
    image: str,
    *argv: str,
    entrypoint: str | None = None,
    stdin: str | None = None,
    volumes: tuple[tuple[str, str], ...] = (),
) -> str:
    done = engine.run(
        image,
        argv,
        platform=engine.inspect_image(image).platform,
        timeout=300,
        entrypoint=entrypoint,
        stdin=stdin,
        volumes=volumes,
    )
    assert done.ok, done.err
    return done.out.strip()


@pytest.fixture
def volume(engine: Engine) -> Iterator[str]:
    name = f"imagefactory-test-{secrets.token_hex(4)}"
    yield name
    engine.remove_volume(name)


def test_what_was_left_out_is_listed_file_by_file_and_is_not_there(
    cpu_image: str, engine: Engine
) -> None:
    rows = json.loads(engine.read_file(cpu_image, "/opt/imagefactory/dropped.json") or "[]")
    manifest = json.loads(engine.read_file(cpu_image, "/opt/imagefactory/manifest.json") or "{}")
    files = [name for row in rows for name, _ in row["files"]]
    assert len(files) == sum(row["files"] for row in manifest["dropped"]) > 1000
    site = "/opt/venv/lib/python3.11/site-packages"
    script = f"cd {site}; n=0; while read f; do [ -e $f ] && n=$((n+1)); done; echo $n"
    names = "\n".join(files) + "\n"
    assert run(engine, cpu_image, "-c", script, entrypoint="bash", stdin=names) == "0"


def test_the_licences_of_the_distribution_stay_and_its_manuals_are_not_unpacked(
    cpu_image: str, engine: Engine
) -> None:
    script = (
        "ls /usr/share/doc/g++-12/copyright /usr/share/doc/python3/copyright; "
        "ls /usr/share/doc/python3 | wc -l"
    )
    assert run(engine, cpu_image, "-c", script, entrypoint="bash").endswith("\n1")


def test_a_volume_for_caches_keeps_compiled_python_in_a_folder_of_the_image_s_own(
    cpu_image: str, engine: Engine, volume: str
) -> None:
    volumes = ((volume, "/root/.cache"),)
    first = run(engine, cpu_image, "python", "-c", PREFIX, volumes=volumes)
    assert first.startswith("/root/.cache/pycache/")
    find = f"find {first} -name 'core.cpython-*.pyc' | grep -c /idna/"
    kept = run(engine, cpu_image, "bash", "-c", find, volumes=volumes)
    assert kept == "1"


def test_without_a_volume_python_compiles_as_ever(cpu_image: str, engine: Engine) -> None:
    assert run(engine, cpu_image, "python", "-c", PREFIX) == "None"
