"""The subprocess gateway, and what is written for Buildx."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from support.index import unpacker
from support.machine import DOWN, settings
from support.plans import STACK, base_image, planned

from imagefactory.building import bakefile, bases
from imagefactory.building.bakefile import BakeOptions, WheelBake
from imagefactory.building.contexts import Contexts
from imagefactory.building.loopback import Loopback
from imagefactory.errors import InputError, SetupError
from imagefactory.locking import wheelhouse
from imagefactory.locking.lock import Unpacker, Wheel
from imagefactory.system import shell
from imagefactory.system.platforms import Platform


def test_a_missing_program_is_a_clear_error() -> None:
    with pytest.raises(SetupError) as caught:
        shell.run(["no-such-program"])
    assert caught.value.problems[0].code == "program-missing"
    with pytest.raises(SetupError), shell.stream(["no-such-program"]):
        pass


@pytest.mark.programs
def test_a_program_that_does_not_end_is_a_clear_error() -> None:
    with pytest.raises(SetupError) as caught:
        shell.run([sys.executable, "-c", "import time; time.sleep(60)"], timeout=0.5)
    assert caught.value.problems[0].code == "command-timeout"


@pytest.mark.programs
def test_a_streamed_program_is_gone_when_its_reader_leaves() -> None:
    began = time.monotonic()
    with shell.stream(
        [sys.executable, "-c", "print('up', flush=True); import time; time.sleep(60)"]
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
    assert process.poll() is not None
    assert time.monotonic() - began < 20


def contexts_in(folder: Path) -> Contexts:
    """Where contexts are written, with an unpacker for amd64 and one for arm64."""
    file = unpacker(folder, "0.13.8")
    uv = Wheel(
        name="uv",
        version="0.13.8",
        filename=file.name,
        sha256=wheelhouse.sha_of(file),
        size=file.stat().st_size,
        index="find-links",
    )
    return Contexts(
        folder=folder / "${out}",
        templates=(ROOT / "templates",),
        unpackers=tuple(Unpacker(platform=platform, wheel=uv) for platform in Platform),
        settings=settings(folder, DOWN, links=(folder,)),
    )


def write(
    folder: Path,
    options: BakeOptions | None = None,
    *,
    suite: str | None = None,
    **changes: object,
) -> dict[str, dict[str, object]]:
    """The targets for a gb10 cell; with ``suite``, on a base of packages that are made already."""
    cell = planned().cell
    base = base_image(cell.flavor.base, cell.platform, suite=suite)
    made = replace(planned(base), **changes)  # type: ignore[arg-type]
    native = base_image(made.cell.flavor.base, Platform.AMD64, suite=suite)
    contexts = contexts_in(folder)
    path = bakefile.write_cells(
        contexts, [made], {"trixie": native}, {made.cell.name: STACK}, options or BakeOptions()
    )
    targets: dict[str, dict[str, object]] = json.loads(path.read_text())["target"]
    return targets


def test_patches_are_applied_on_the_build_platform_for_a_cell_of_another(tmp_path: Path) -> None:
    targets = write(tmp_path)
    cell = planned().cell.name
    assert targets[cell]["platforms"] == ["linux/arm64"]
    assert targets[cell]["contexts"] == {
        "builder": "target:builder-trixie-amd64",
        "packages": STACK.image,
        "sources": STACK.sources,
    }
    assert targets["builder-trixie-amd64"]["platforms"] == ["linux/amd64"]
    assert "contexts" not in targets["builder-trixie-amd64"]


def test_the_builder_of_a_base_of_packages_begins_with_a_system_that_was_assembled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        bases, "contexts", lambda image, stage, _: {"root": f"{stage} {image.platform.arch}"}
    )
    targets = write(tmp_path, suite="trixie")
    assert targets["builder-trixie-amd64"]["contexts"] == {"root": "builder amd64"}


@pytest.mark.parametrize(("compiles", "system"), [(True, "compiler"), (False, "builder")])
def test_a_wheel_is_compiled_where_the_locked_compilers_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiles: bool, system: str
) -> None:
    monkeypatch.setattr(bases, "contexts", lambda _, stage, __: {"root": stage})
    builder = base_image(planned().cell.flavor.base, Platform.ARM64, suite="trixie")
    (tmp_path / "wheel").mkdir()
    wheel = WheelBake(
        context=tmp_path / "wheel",
        archive=tmp_path / "made.tar",
        stage="wheel",
        builder=builder,
        compiles=compiles,
    )
    contexts = contexts_in(tmp_path)
    targets = json.loads(bakefile.write_wheel(contexts, wheel, BakeOptions()).read_text())["target"]
    name = f"{system}-trixie-arm64"
    assert targets["wheel"]["contexts"] == {"builder": f"target:{name}"}
    assert (targets[name]["contexts"], targets[name]["target"]) == ({"root": system}, "builder")


@pytest.mark.parametrize(
    ("options", "output"),
    [
        (BakeOptions(), "type=image"),
        (BakeOptions(load=True), "type=docker"),
        (BakeOptions(output=Path("/out")), "type=oci,tar=false,dest=/out/CELL"),
        (BakeOptions(output=Path("/out"), load=True), "type=oci,tar=false,dest=/out/CELL"),
    ],
)
def test_an_image_goes_into_the_engine_or_into_a_folder(
    tmp_path: Path, options: BakeOptions, output: str
) -> None:
    cell = planned().cell.name
    assert write(tmp_path, options)[cell]["output"] == [
        f"{output.replace('CELL', cell)},{bakefile.COMPRESSION}"
    ]


def test_an_image_for_a_folder_is_pushed_to_a_registry_that_has_its_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = planned().cell.name
    monkeypatch.setattr(Loopback, "packages", lambda *_: "docker-image://the-packages")
    registry = Loopback(Path("/out"), "127.0.0.1:1/s")
    made: Any = write(tmp_path, BakeOptions(output=Path("/out"), loopback=registry))
    assert made[cell]["contexts"]["packages"] == "docker-image://the-packages"
    assert made[cell]["tags"] == [f"127.0.0.1:1/s/{cell}:built"]
    to_registry = f"type=image,push=,store=false,unpack=false,{bakefile.COMPRESSION}"
    assert made[cell]["output"] == [to_registry]


def test_an_image_for_the_engine_has_its_names_and_layers_that_the_engine_fetches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = planned().cell
    monkeypatch.setattr(Loopback, "packages", lambda *_: "docker-image://the-packages")
    registry = Loopback(Path("/layouts"), "127.0.0.1:1/s")
    made: Any = write(tmp_path, BakeOptions(loopback=registry))
    assert made[cell.name]["contexts"]["packages"] == "docker-image://the-packages"
    assert made[cell.name]["tags"] == list(cell.tags)
    assert made[cell.name]["output"] == [f"type=image,{bakefile.COMPRESSION}"]


def test_a_base_that_is_not_locked_for_the_build_platform_is_reported(tmp_path: Path) -> None:
    contexts = Contexts(
        folder=tmp_path,
        templates=(ROOT / "templates",),
        unpackers=(),
        settings=settings(tmp_path, DOWN),
    )
    with pytest.raises(InputError) as caught:
        bakefile.write_cells(contexts, [planned()], {}, {}, BakeOptions())
    assert caught.value.problems[0].code == "lock-uncovered"
    assert "platform that builds" in caught.value.problems[0].what


def test_paths_are_not_read_as_templates_by_bake(tmp_path: Path) -> None:
    contexts = [str(target["context"]) for target in write(tmp_path).values()]
    assert all("$${out}" in context for context in contexts)


@pytest.mark.parametrize("compiles", [True, False])
def test_the_bake_file_of_a_wheel_has_exactly_this(tmp_path: Path, compiles: bool) -> None:
    index, other = "https://one.example/simple", "https://two.example/simple"
    using = replace(
        settings(tmp_path, index, other, links=(tmp_path,)),
        ca_bundle=Path("/etc/ca.pem"),
        accounts={other: ("me", "word")},
    )
    base = base_image(planned().cell.flavor.base, Platform.ARM64)
    (tmp_path / "wheel").mkdir()
    wheel = WheelBake(
        context=tmp_path / "wheel",
        archive=tmp_path / "made.tar",
        stage="tried",
        builder=base,
        compiles=compiles,
    )
    contexts = replace(contexts_in(tmp_path), settings=using)
    rows = {BakeOptions(): False, BakeOptions(uncached="cells"): True}
    for options, no_cache in {**rows, BakeOptions(uncached="all"): True}.items():
        path = bakefile.write_wheel(contexts, wheel, options)
        assert path == tmp_path / "wheel.bake.json"
        builder = f"{'compiler' if compiles else 'builder'}-{base.base.name}-arm64"
        assert json.loads(path.read_text()) == {
            "target": {
                builder: {
                    "context": f"{tmp_path}/$${{out}}/{builder}",
                    "target": "builder",
                    "platforms": ["linux/arm64"],
                    "args": {"SOURCE_DATE_EPOCH": "315532800"},
                    "secret": ["id=ca,src=/etc/ca.pem"],
                },
                "tried": {
                    "context": str(tmp_path / "wheel"),
                    "contexts": {"builder": f"target:{builder}"},
                    "target": "tried",
                    "output": [f"type=tar,dest={tmp_path}/made.tar"],
                    "args": {"UV_DEFAULT_INDEX": index, "UV_INDEX": other},
                    "attest": ["type=provenance,disabled=true"],
                    "secret": [
                        "id=ca,src=/etc/ca.pem",
                        "id=indexes,env=IMAGEFACTORY_INDEX_ACCOUNTS",
                    ],
                    "no-cache": no_cache,
                },
            }
        }
    accounts = {"IMAGEFACTORY_INDEX_ACCOUNTS": json.dumps({other: ["me", "word"]})}
    assert bakefile.secrets(using) == accounts
    assert bakefile.secrets(replace(using, accounts={})) == {}


@pytest.mark.parametrize(
    ("options", "uncached"),
    [
        (BakeOptions(), set()),
        (BakeOptions(uncached="cells"), {"cell"}),
        (BakeOptions(uncached="all"), {"cell", "builder-trixie-amd64"}),
    ],
)
def test_steps_run_again_for_the_targets_that_are_asked_for(
    tmp_path: Path, options: BakeOptions, uncached: set[str]
) -> None:
    cell = planned().cell.name
    targets = write(tmp_path, options)
    found = {name for name, target in targets.items() if target.get("no-cache")}
    assert {"cell" if name == cell else name for name in found} == uncached
    assert not any("cache-to" in target for target in targets.values())
    cached = write(tmp_path, replace(options, cache="host.example/cache"))
    assert all(target["cache-to"] and target["cache-from"] for target in cached.values())


def test_what_bake_would_expand_is_escaped_wherever_it_stands() -> None:
    value = {"${a}": ["%{b}", {"c": "$d"}], "e": 1, "f": True}
    assert bakefile._literal(value) == {"$${a}": ["%%{b}", {"c": "$d"}], "e": 1, "f": True}
