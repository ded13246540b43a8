"""Spoilt images, each of which passed every probe once, and what is found in them from outside."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import IO, cast

import pytest
import zstandard
from support.odd_layers import END, SEEN, member
from support.saved_images import Saving, layout
from support.verify_fakes import Good
from support.whole_images import (
    BASE,
    LIBRARY,
    PATH,
    SITE,
    Node,
    WholeImage,
    archive,
    base_in,
    names,
    sha256,
)

from imagefactory.system import platforms
from imagefactory.system.background import in_background
from imagefactory.verifying.files import by_files
from imagefactory.verifying.outside import configured, layers, outside, patched, system
from imagefactory.verifying.outside.inventory import Wheels
from imagefactory.verifying.outside.tree import DamagedError, Layer
from imagefactory.verifying.receipt import Outcome

pytestmark = pytest.mark.programs

MANIFEST = "opt/imagefactory/manifest.json"


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("Entrypoint", ["/shim"], "Entrypoint is ['/shim'], not ['/opt/imagefactory/entrypoint']"),
        ("Cmd", ["bash"], "Cmd is ['bash'], not ['serve']"),
        ("WorkingDir", "/tmp", "WorkingDir is '/tmp', not '/root'"),
        ("User", "1000", "User is '1000', which no image of the factory sets"),
        ("Volumes", {"/opt": {}}, "Volumes is"),
        ("Healthcheck", {"Test": ["CMD", "x"]}, "Healthcheck is"),
        ("OnBuild", ["RUN x"], "OnBuild is"),
        ("ExposedPorts", {}, "ExposedPorts is {}"),
    ],
)
def test_a_setting_that_no_build_makes_is_named(
    image: WholeImage, name: str, value: object, says: str
) -> None:
    image.config["config"][name] = value
    assert says in names(image.judged().config)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("LD_PRELOAD=/evil.so", "LD_PRELOAD is '/evil.so', and should not be set"),
        ("PYTHONPATH=/evil", "PYTHONPATH is '/evil', and should not be set"),
        ("EVIL=", "EVIL is '', and should not be set"),
        ("VIRTUAL_ENV=/opt/venv", "VIRTUAL_ENV is set twice"),
    ],
)
def test_a_variable_that_the_cell_does_not_have_is_named(
    image: WholeImage, row: str, says: str
) -> None:
    image.config["config"]["Env"].append(row)
    assert says in names(image.judged().config)


def test_other_serve_arguments_than_the_flavor_s_are_named(image: WholeImage) -> None:
    env = image.config["config"]["Env"]
    (row,) = [row for row in env if row.startswith("IMAGEFACTORY_SERVE_ARGS=")]
    env[env.index(row)] = 'IMAGEFACTORY_SERVE_ARGS=["--dtype","nonsense"]'
    assert "IMAGEFACTORY_SERVE_ARGS is" in names(image.judged().config)


def test_labels_that_are_added_or_changed_are_named(image: WholeImage) -> None:
    image.config["config"]["Labels"]["evil"] = "1"
    image.config["config"]["Labels"]["io.imagefactory.cell"] = "another"
    found = names(image.judged().config)
    assert "the label evil is '1', and should not be set" in found
    assert "the label io.imagefactory.cell is 'another'" in found


def test_an_image_for_another_platform_is_named(image: WholeImage) -> None:
    image.config["architecture"] = "amd64"
    assert "the platform is linux/amd64, not linux/arm64" in names(image.judged().config)


def test_nothing_is_found_in_a_good_image(image: WholeImage) -> None:
    found = image.judged()
    assert (found.config, found.changed, found.extra) == ((), (), ())
    assert found.wheels == 3


def test_folders_of_tests_may_be_left_out_as_a_whole_only(image: WholeImage) -> None:
    path = f"{SITE}/numpy/tests/test_core.py"
    record = f"{SITE}/numpy-2.0.dist-info/RECORD"
    del image.tree[path]
    rows = image.data(record).splitlines(keepends=True)
    image.edit(record, b"".join(row for row in rows if b"numpy/tests/" not in row))
    assert "numpy/tests" not in names(image.judged().changed)


def test_a_patch_that_the_wheel_has_already_is_left_out_and_named(image: WholeImage) -> None:
    image.tree[f"{SITE}/vllm/modelopt.py"] = Node(data=b"one\ntwo\n")
    del image.tree[f"{SITE}/vllm-0.22.1+cpu.dist-info/METADATA"]
    manifest = json.loads(image.data(MANIFEST))
    manifest["patches"][0] |= {"state": "obsolete", "files": {}, "created": []}
    image.edit(MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())
    found = image.judged()
    assert (found.changed, found.extra) == ((), ())
    assert found.obsolete == ("vllm/one",)


@pytest.mark.parametrize(("state", "right"), [("unproven", True), ("needed", False)])
def test_the_manifest_calls_a_patch_unproven_if_it_has_no_proof(
    own: WholeImage, state: str, *, right: bool
) -> None:
    series = json.loads(own.plan.files["patches/series.json"])
    (row,) = series
    del row["proof"]
    row["unproven"] = True
    files = {**own.plan.files, "patches/series.json": json.dumps(series).encode()}
    own.plan = replace(own.plan, files=files)
    for name in [name for name in own.tree if name.startswith("opt/imagefactory/proofs")]:
        del own.tree[name]
    own.edit(MANIFEST, own.data(MANIFEST).replace(b'"needed"', f'"{state}"'.encode()))
    found = own.judged()
    assert (found.changed == ()) is right
    if not right:
        assert "says needed of vllm/one" in names(found.changed)


def test_a_patch_that_does_not_apply_to_the_locked_wheel_is_named(own: WholeImage) -> None:
    variant = own.plan.series[0].variant
    assert variant is not None
    text = variant.diff.read_text()
    variant.diff.write_text(text.replace("-two", "-three"))
    assert "patch vllm/one does not apply" in names(own.judged().changed)


def test_an_image_is_read_through_the_engine_and_its_layers_only_once(
    own: WholeImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside, "base_of", lambda _, contents, __: base_in(contents))
    engine, digest = Saving(own), own.saved()[1]
    first = outside.observe(engine, digest, own.plan, own.settings)
    assert (first.error, first.changed, first.extra) == ("", (), ())

    def unexpected(*_: object) -> None:
        raise AssertionError("a layer was read again")

    monkeypatch.setattr(layers, "_read_layer", unexpected)
    again = outside.observe(engine, digest, own.plan, own.settings)
    again = replace(again, seconds=0, proof_seconds=0)
    assert again == replace(first, seconds=0, proof_seconds=0)


@pytest.mark.parametrize(
    ("diff", "state", "right"),
    [
        ("x.diff", "obsolete", True),
        ("x.diff", "unknown", False),  # a patch that has a diff was left out
        (None, "obsolete", True),
        (None, "unknown", True),  # its proof needs what the builder does not have
        (None, "needed", False),
    ],
)
def test_a_patch_that_changed_nothing_has_a_state_that_explains_it(
    diff: str | None, state: str, right: bool
) -> None:
    row = {"name": "a/b", "state": state, "detail": "", "offsets": [], "files": {}, "created": []}
    nothing = patched.Patched(files={}, patches={}, faults=())
    tree = Layer(entries={})
    fault = system._patch_fault(row, {"name": "a/b", "diff": diff}, nothing, "site", tree)
    assert (fault == "") is right


def test_layers_that_were_read_while_a_layout_was_loaded_are_not_read_again(
    own: WholeImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside, "base_of", lambda _, contents, __: base_in(contents))
    monkeypatch.setattr(platforms, "is_native", lambda _: True)
    stream, digest = own.saved()
    layout = own.folder / "layout"
    with tarfile.open(fileobj=io.BytesIO(stream)) as written:
        for member in filter(tarfile.TarInfo.isfile, written):
            path = layout / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(cast("IO[bytes]", written.extractfile(member)).read())
    reading = in_background(outside.read_ahead, [own.folder / "nothing", layout], own.settings)
    judge = outside.judge_with(Saving(own), own.plan, own.settings, reading)
    reading.result()
    monkeypatch.setattr(layers, "_read_layer", None)
    assert judge(digest).clean


def test_a_blob_with_another_digest_is_damage(own: WholeImage) -> None:
    stream, digest = own.saved()
    damaged = stream.replace(LIBRARY[:600], LIBRARY[1:601], 1)
    with pytest.raises(DamagedError, match="is listed as"):
        layers.read_stream(io.BytesIO(damaged), digest, own.folder / "layers")


@pytest.mark.parametrize("data", [b"", b"x" * 2000, b"\x28\xb5\x2f\xfd rubbish"])
def test_what_the_engine_cannot_save_is_damage_and_no_traceback(
    image: WholeImage, data: bytes
) -> None:
    with pytest.raises(DamagedError):
        layers.read_stream(io.BytesIO(data), "sha256:1", image.folder / "layers")


@pytest.mark.parametrize(
    "pack", [gzip.compress, zstandard.compress, bytes], ids=["gzip", "zstd", "plain"]
)
def test_layers_are_read_as_they_are_packed_in_whatever_number_of_parts(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    data = archive({"a": Node(data=b"1" * 3000), "b": Node(link="a")})
    packed = pack(data[:700]) + pack(data[700:])
    found = layers.read_layout(layout(tmp_path, packed, data), tmp_path / "c")
    entries = found.layers[0].entries
    assert (entries["a"].size, entries["b"].link) == (3000, "a")


def test_the_engine_s_own_files_are_read_where_they_can_be(image: WholeImage) -> None:
    stream, digest = image.saved()
    with tarfile.open(fileobj=io.BytesIO(stream)) as saved:
        for member in saved:
            content = saved.extractfile(member)
            assert content is not None
            (image.folder / member.name.rpartition("/")[2]).write_bytes(content.read())
    cache = image.folder / "direct"
    found = layers.read_folder(image.folder, digest, cache)
    assert found == layers.read_stream(io.BytesIO(stream), digest, image.folder / "saved")
    assert layers.read_folder(image.folder, "sha256:none", cache) is None


def test_an_image_whose_configuration_lists_layers_of_another_one_is_damage(
    image: WholeImage,
) -> None:
    """An engine that unpacked those layers before runs them, and never looks at the manifest's."""
    (own,) = (f"sha256:{sha256(archive(tree))}" for tree in (image.tree,))
    for listed in ([], [own], [own, own], [f"sha256:{sha256(archive(BASE))}", own, own]):
        image.config["rootfs"] = {"diff_ids": listed}
        with pytest.raises(DamagedError, match="lists other layers than its manifest"):
            image.judged()


@pytest.mark.parametrize("layers_above", SEEN.values(), ids=SEEN)
def test_what_an_engine_unpacks_in_another_way_is_damage(
    image: WholeImage, layers_above: tuple[bytes, ...]
) -> None:
    with pytest.raises(DamagedError):
        image.judged(None, *layers_above)


def test_a_damaged_image_is_reported_and_not_raised(
    image: WholeImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside, "base_of", lambda _, contents, __: base_in(contents))
    found = outside.observe(Saving(image), "sha256:other", image.plan, image.settings)
    assert found.damaged
    assert "lacks a part" in found.error


def test_a_hard_link_to_the_outside_fails_the_check_of_files(
    image: WholeImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = member("tmp/x", kind=b"1", link="../x") + END
    stream, digest = image.saved(link)
    monkeypatch.setattr(image, "saved", lambda: (stream, digest))
    monkeypatch.setattr(outside, "base_of", lambda _, contents, __: base_in(contents))
    found = outside.observe(Saving(image), digest, image.plan, image.settings)
    assert found.error == "/tmp/x is a hard link to ../x, which is outside of the image"
    subject = replace(Good().subject(), content=found)
    assert by_files(subject, bool, "fine").outcome is Outcome.FAIL


def test_a_wheel_that_is_nowhere_leaves_the_image_unjudged(
    own: WholeImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside, "base_of", lambda _, contents, __: base_in(contents))
    for path in (own.folder / "wheels").iterdir():
        path.unlink()
    settings = replace(own.settings, indexes=())
    found = outside.observe(Saving(own), own.saved()[1], own.plan, settings)
    assert "not found on any index" in found.error
    assert not found.damaged


def test_a_wheel_whose_record_is_wrong_is_asked_for_the_file_itself(
    image: WholeImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Wheels(image.settings)
    found = source.inventories(image.plan.resolution.wheels)
    vllm = next(one for one in found.values() if one.name == "vllm")
    name = "vllm/_C.abi3.so"
    wrong = replace(vllm, files={**vllm.files, name: replace(vllm.files[name], sha256="0" * 64)})
    monkeypatch.setattr(
        Wheels,
        "inventories",
        lambda *_: {sha: wrong if one.name == "vllm" else one for sha, one in found.items()},
    )
    assert "_C.abi3.so has other" not in names(image.judged().changed)


def test_the_base_s_own_variables_are_expected(image: WholeImage) -> None:
    base = {"config": {"Env": [PATH, "OF_THE_BASE=1"]}}
    assert "OF_THE_BASE is not set, not '1'" in names(
        configured.faults(image.config, image.plan, base)
    )


@pytest.fixture
def direct(own: WholeImage, monkeypatch: pytest.MonkeyPatch) -> str:
    """The image's digest; its blobs are files that can be read."""
    monkeypatch.setattr(outside, "base_of", lambda _, contents, __: base_in(contents))
    monkeypatch.setattr(platforms, "is_native", lambda _: True)
    monkeypatch.setattr(Saving, "blob_folder", lambda *_: own.folder)
    stream, digest = own.saved()
    with tarfile.open(fileobj=io.BytesIO(stream)) as saved:
        for member in saved:
            data = cast("IO[bytes]", saved.extractfile(member)).read()
            (own.folder / member.name.rpartition("/")[2]).write_bytes(data)
    return digest


def test_a_full_cache_is_no_fault_of_the_image(
    own: WholeImage, direct: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        if path.parent != own.settings.cache / "layers":
            return write(path, data)
        write(path, data[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    assert outside.observe(Saving(own), direct, own.plan, own.settings).clean
    assert list((own.settings.cache / "layers").iterdir()) == []


def test_a_disk_that_cannot_be_read_is_no_fault_of_the_image(
    own: WholeImage, direct: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(layers, "_read_layer", broken)
    with pytest.raises(OSError, match="Input/output error"):
        outside.observe(Saving(own), direct, own.plan, own.settings)
