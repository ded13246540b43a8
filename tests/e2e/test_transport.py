"""Images move to files and back, and to other engines over ssh, which get only what they lack."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from machines import Machine, Machines
from support import ROOT
from support.e2e import factory
from support.promoting import labels
from support.receipts import all_passed

from imagefactory.settings import from_environment
from imagefactory.system.engine import Engine
from imagefactory.transport import content, saving
from imagefactory.transport.content import Folder
from imagefactory.verifying.receipt_store import ReceiptStore

pytestmark = pytest.mark.e2e

OCI = "application/vnd.oci.image"
REPOSITORY = "imagefactory/test-transport"
#: Bytes of the layers that images share, and of those that an upgrade changes.
SHARED, CHANGED = 24 << 20, 12 << 20


def make(engine: Engine, folder: Path, name: str, key: str, **layers: int) -> str:
    """A verified image whose layers have so many random bytes, by their names."""
    own = labels(key)
    rows, diffs = [], []
    for layer, size in layers.items():
        kept = folder / layer
        if not kept.exists():
            kept.write_bytes(os.urandom(size))
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            archive.addfile(header(layer, size), io.BytesIO(kept.read_bytes()))
        rows.append(put(folder, packed.getvalue(), "layer.v1.tar"))
        diffs.append(rows[-1]["digest"])
    platform = {"os": "linux", "architecture": engine.platform.partition("/")[2]}
    config = {
        **platform,
        "config": {"Labels": own, "Cmd": ["/none"]},
        "rootfs": {"type": "layers", "diff_ids": diffs},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{OCI}.manifest.v1+json",
        "config": put(folder, json.dumps(config).encode(), "config.v1+json"),
        "layers": rows,
    }
    made = put(folder, json.dumps(manifest).encode(), "manifest.v1+json")["digest"]
    tag = f"{REPOSITORY}:{name}"
    layout = folder / f"{name}.tar"
    saving.save([content.read(Folder(folder), made, tag)], {}, layout)
    engine.load(layout)
    receipts(os.environ).save(all_passed(engine.inspect_image(tag).digest, own))
    return tag


def header(name: str, size: int) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.size = size
    return made


def put(folder: Path, data: bytes, kind: str) -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    (folder / digest).write_bytes(data)
    return {"mediaType": f"{OCI}.{kind}", "digest": f"sha256:{digest}", "size": len(data)}


def receipts(environ: Mapping[str, str]) -> ReceiptStore:
    return ReceiptStore(folder=from_environment(environ).receipts)


@pytest.fixture
def images(engine: Engine, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """An image and its upgrade, which shares a layer with it."""
    folder = tmp_path / "image"
    folder.mkdir()
    old = make(engine, folder, "old", "1", stack=SHARED, vllm1=CHANGED)
    new = make(engine, folder, "new", "2", stack=SHARED, vllm2=CHANGED)
    digests = [engine.inspect_image(tag).digest for tag in (old, new)]
    yield old, new
    for tag in (old, new):
        engine.untag(tag)
    for digest in digests:
        receipts(os.environ).path(digest).unlink(missing_ok=True)


def blobs(engine: Engine, tag: str) -> dict[str, int]:
    """What an image consists of."""
    digest = engine.inspect_image(tag).digest
    folder = engine.blob_folder(digest)
    assert folder is not None
    return dict(content.read(Folder(folder), digest, tag).blobs)


def missing(engine: Engine, new: str, old: str) -> int:
    """Bytes of ``new`` that who has ``old`` lacks."""
    there = blobs(engine, old)
    return sum(size for digest, size in blobs(engine, new).items() if digest not in there)


@contextmanager
def reached_from(machine: Machine, registry: str) -> Iterator[None]:
    """This machine's registry has the same address on another one meanwhile."""
    there = f"{registry}:{registry}"
    words = ["ssh", "-F", str(machine.config), "-N", "-o", "ExitOnForwardFailure=yes", "-R", there]
    with subprocess.Popen([*words, machine.name]) as tunnel:
        try:
            probe = f"'exec 3<>/dev/tcp/{registry.replace(':', '/')}'"
            while machine.run("bash", "-c", probe, check=False).returncode:
                assert tunnel.poll() is None
                time.sleep(0.1)
            yield
        finally:
            tunnel.terminate()


def pulled_from(
    registry: str, engine: Engine, images: tuple[str, str], machines: Machines, layouts: Path
) -> None:
    """The second machine pulls both from a registry, the upgrade with what it lacks alone."""
    old, new = images
    one, other = machines.all
    for image in images:
        there = image.replace("imagefactory/", f"{registry}/")
        tag = image.rpartition(":")[2]
        source = f"oci-archive:{layouts / tag}.tar:{tag}"
        copied = ["skopeo", "copy", "--quiet", "--preserve-digests", "--dest-tls-verify=false"]
        subprocess.run([*copied, source, f"docker://{there}"], check=True)
    where = f"{registry}/test-transport"
    with reached_from(other, registry):
        words = ("--from-registry", where, "--json")
        first = factory(
            *("distribute", other.name, "--tag", old, *words), environ=machines.environment
        )
        assert first.code == 0, first.err
        before = other.received()
        done = factory(
            *("distribute", "nowhere.invalid", other.name, one.name, "--tag", new, *words),
            environ=machines.environment,
        )
        unknown, sent, there = done.json
    lacked = missing(engine, new, old)
    assert (done.code, unknown["errors"][0]["code"]) == (1, "remote-connection")
    assert (sent["state"], sent["reference"]) == ("sent", f"{where}:new"), done.err
    assert lacked <= sent["bytes_sent"] <= 1.02 * lacked
    assert other.received() - before <= 1.02 * lacked
    assert (there["state"], there["bytes_sent"]) == ("there", 0)
    assert names_on(other) == {f"{where}:old", f"{where}:new"}
    assert digest_on(other, f"{where}:new") == engine.inspect_image(new).digest


def test_an_upgraded_image_costs_its_missing_blobs_and_a_dead_machine_stops_no_other(
    engine: Engine, images: tuple[str, str], machines: Machines, registry: str, tmp_path: Path
) -> None:
    old, new = images
    one, other = machines.all
    first = factory("distribute", one.name, "--tag", old, "--json", environ=machines.environment)
    assert first.code == 0, first.err
    before = one.received()
    other.unplug()
    done = factory(
        *("distribute", one.name, other.name, "nowhere.invalid", "--tag", new, "--json"),
        environ=machines.environment,
    )
    sent, dead, unknown = done.json
    assert (done.code, sent["state"], sent["errors"]) == (1, "sent", []), done.err
    assert [row["errors"][0]["code"] for row in (dead, unknown)] == ["remote-connection"] * 2
    lacked = missing(engine, new, old)

    assert lacked <= sent["bytes_sent"] <= 1.02 * lacked
    assert one.received() - before <= 1.02 * lacked
    assert names_on(one) == {old, new}
    assert digest_on(one, new) == engine.inspect_image(new).digest
    again = factory("distribute", one.name, "--tag", new, "--json", environ=machines.environment)
    assert [(row["state"], row["bytes_sent"]) for row in again.json] == [("there", 0)]
    other.plug()
    pulled_from(registry, engine, images, machines, tmp_path / "image")


def test_what_was_cut_off_goes_on_and_a_large_layer_is_sent_once(
    engine: Engine, images: tuple[str, str], start_machines: Callable[[int], Machines]
) -> None:
    old, _ = images
    machines = start_machines(1)
    machine = machines[0]
    machine.slow_down("80mbit")
    begun = machine.received()

    def wait_for(size: int) -> None:
        while machine.received() - begun < size:
            assert first.poll() is None, first.communicate()
            time.sleep(0.02)

    argv = [sys.executable, "-m", "imagefactory", "distribute", machine.name, "--tag", old]
    environ = {**os.environ, **machines.environment}
    first = subprocess.Popen(
        argv, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for(SHARED // 3)
    machine.cut_connections()
    wait_for(SHARED // 3 + SHARED + CHANGED // 2)  # the first layer is complete
    os.kill(first.pid, signal.SIGKILL)
    _, said = first.communicate()
    assert "going on after" in said
    assert old not in names_on(machine)

    done = factory("distribute", machine.name, "--tag", old, "--json", environ=environ)
    (row,) = done.json
    assert (done.code, row["state"]) == (0, "sent"), done.err
    assert row["bytes_sent"] <= 1.02 * CHANGED
    assert names_on(machine) == {old}  # and no name of a part is left
    assert digest_on(machine, old) == engine.inspect_image(old).digest


def test_saved_images_are_read_by_skopeo_and_come_back_with_their_receipts(
    engine: Engine, images: tuple[str, str], tmp_path: Path
) -> None:
    folder, archive = tmp_path / "saved", tmp_path / "saved.tar"
    own = {image: engine.inspect_image(image).digest for image in images}
    for image in images:  # one after the other: a folder is added to
        assert factory("save", str(folder), image).code == 0
    assert factory("save", str(archive), *images).code == 0
    size = sum(path.stat().st_size for path in (folder / "blobs/sha256").iterdir())
    assert size < 1.01 * (SHARED + 2 * CHANGED)
    assert archive.stat().st_size < 1.02 * size
    for image in images:
        tag = image.rpartition(":")[2]
        for source in (f"oci:{folder}:{tag}", f"oci-archive:{archive}:{tag}"):
            shown = ["skopeo", "inspect", "--format", "{{.Digest}}", source]
            said = subprocess.run(shown, check=True, capture_output=True, text=True)
            assert said.stdout.strip() == own[image]

    state = os.environ.get("IMAGEFACTORY_ENGINE_DIR")
    of_engine = state or str(from_environment(os.environ).state / "engine")
    for saved in folder, archive:
        for image in images:
            engine.untag(image)
        home = str(tmp_path / f"state-{saved.name}")
        environ = {"XDG_STATE_HOME": home, "IMAGEFACTORY_ENGINE_DIR": of_engine}
        done = factory("load", str(saved), "--json", environ=environ)
        assert done.code == 0, done.err
        assert {row["reference"]: row["digest"] for row in done.json} == own
        assert {(row["state"], row["receipt"]) for row in done.json} == {("loaded", True)}
        for image, digest in own.items():
            assert engine.inspect_image(image).digest == digest
            assert receipts(environ).load(digest) is not None


def test_images_that_were_not_verified_or_are_damaged_do_not_move(
    engine: Engine, images: tuple[str, str], tmp_path: Path
) -> None:
    old, new = images
    receipts(os.environ).path(engine.inspect_image(new).digest).unlink()
    done = factory("save", str(tmp_path / "none"), old, new, f"{REPOSITORY}:gone", "--json")
    assert (done.code, [error["code"] for error in done.json["errors"]]) == (
        1,
        ["save-unverified", "image-missing"],
    )
    assert not (tmp_path / "none").exists()
    folder = tmp_path / "saved"
    assert factory("save", str(folder), old).code == 0
    largest = max((folder / "blobs/sha256").iterdir(), key=lambda path: path.stat().st_size)
    with largest.open("r+b") as file:
        file.write(b"flip")
    done = factory("load", str(folder), "--json")
    assert (done.code, done.json["errors"][0]["code"]) == (1, "content-damaged")


def digest_on(machine: Machine, tag: str) -> str:
    return machine.docker("image", "inspect", "--format", "{{.Id}}", tag).stdout.strip()


def names_on(machine: Machine) -> set[str]:
    listed = machine.docker("image", "ls", "--format", "'{{.Repository}}:{{.Tag}}'")
    return set(listed.stdout.split())
