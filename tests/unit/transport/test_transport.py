"""Images as blobs: read, saved, served and pulled in steps, without an engine."""

from __future__ import annotations

import errno
import hashlib
import http.client
import json
import os
import socket
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import pytest

from imagefactory.errors import FactoryError, InputError, Problem
from imagefactory.system.engine import Engine, ImageInfo, RemoteEngine, RemoteError, check_host
from imagefactory.system.engine.remote import RemoteImage
from imagefactory.transport import content, distributing, saving, steps, transport
from imagefactory.transport.content import BLOBS, Content, Folder
from imagefactory.transport.saving import Papers
from imagefactory.transport.server import Serving, serving

OCI = "application/vnd.oci.image"
NAME = "imagefactory/vllm:gb10"


def put(folder: Path, data: bytes, kind: str = "layer.v1.tar") -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    (folder / digest).write_bytes(data)
    return {"mediaType": f"{OCI}.{kind}", "digest": f"sha256:{digest}", "size": len(data)}


def put_json(folder: Path, row: dict[str, Any], kind: str) -> dict[str, Any]:
    return put(folder, json.dumps(row).encode(), kind)


def image(folder: Path, *layers: bytes, name: str = NAME) -> Content:
    folder.mkdir(exist_ok=True)
    config = {
        "os": "linux",
        "architecture": "arm64",
        "rootfs": {"diff_ids": [f"diff-{layer.decode()[:9]}" for layer in layers]},
    }
    manifest = {
        "schemaVersion": 2,
        "config": put_json(folder, config, "config.v1+json"),
        "layers": [put(folder, layer) for layer in layers],
    }
    digest = put_json(folder, manifest, "manifest.v1+json")["digest"]
    return content.read(Folder(folder), digest, name)


def path_of(folder: Path, data: bytes) -> Path:
    return folder / hashlib.sha256(data).hexdigest()


def code_of(action: Callable[[], object]) -> str:
    with pytest.raises(FactoryError) as caught:
        action()
    return caught.value.problems[0].code


def test_of_an_index_what_is_complete_moves(tmp_path: Path) -> None:
    made = image(tmp_path, b"base")
    there = {"mediaType": f"{OCI}.manifest.v1+json", "digest": made.digest, "size": 1}
    gone = {**there, "digest": "sha256:" + "0" * 64}
    index = put_json(tmp_path, {"manifests": [gone, there]}, "index.v1+json")["digest"]
    found = content.read(Folder(tmp_path), index, NAME)
    assert found.digests == (index, *made.configs)
    assert (found.platform, found.image_manifest) == ("linux/arm64", made.digest)
    assert set(found.blobs) == {index, *made.blobs}
    empty = put_json(tmp_path, {"manifests": [gone]}, "index.v1+json")["digest"]
    assert code_of(lambda: content.read(Folder(tmp_path), empty, NAME)) == "content-missing"


@pytest.mark.parametrize("target", ["saved", "saved.tar"])
def test_what_was_saved_is_read_again_and_shared_blobs_are_there_once(
    tmp_path: Path, target: str
) -> None:
    one, other = (
        image(tmp_path / "engine", b"shared", own, name=f"me/{own.decode()}:1")
        for own in (b"a", b"b")
    )
    papers = {one.digest: Papers(receipt=b"a receipt", sbom=b"{}")}
    saving.save([one, other], papers, tmp_path / target)
    found = saving.read(tmp_path / target)
    assert [(it.name, it.digest) for it in found.images] == [
        ("me/a:1", one.digest),
        ("me/b:1", other.digest),
    ]
    assert found.receipts == {one.digest: b"a receipt"}
    assert found.size == sum({**one.blobs, **other.blobs}.values())


def test_a_folder_is_added_to_and_loses_what_nothing_needs(tmp_path: Path) -> None:
    folder, engine = tmp_path / "saved", tmp_path / "engine"
    for layer, name in ((b"old", "me/x:1"), (b"other", "me/x:2"), (b"new", "me/x:1")):
        saving.save([image(engine, layer, name=name)], {}, folder)
    assert {one.name for one in saving.read(folder).images} == {"me/x:1", "me/x:2"}
    there = {one.name for one in (folder / BLOBS).iterdir()}
    wanted = {path_of(engine, layer).name for layer in (b"other", b"new")}
    assert there & {path_of(engine, layer).name for layer in (b"old", b"other", b"new")} == wanted


@pytest.mark.parametrize(
    "index",
    [
        *("", "{", "{}", "[]", "5", "[" * 200_000),
        *('{"manifests": ["x"]}', '{"manifests": [5]}', '{"manifests": null}'),
        '{"manifests": [{"annotations": {"org.opencontainers.image.ref.name": "me/x:1"}}]}',
    ],
)
def test_a_folder_whose_index_cannot_be_read_keeps_what_it_has(tmp_path: Path, index: str) -> None:
    folder, engine = tmp_path / "saved", tmp_path / "engine"
    saving.save([image(engine, b"old", name="me/x:1")], {}, folder)
    (folder / "index.json").write_text(index)
    made = image(engine, b"new", name="me/x:2")
    assert code_of(lambda: saving.save([made], {}, folder)) == "layout-foreign"
    assert path_of(folder / BLOBS, b"old").exists()
    assert (folder / "index.json").read_text() == index


def test_what_is_damaged_on_the_way_is_never_complete(tmp_path: Path) -> None:
    made = image(tmp_path / "engine", b"layer")
    path_of(tmp_path / "engine", b"layer").write_bytes(b"other")
    for target in (tmp_path / "saved", tmp_path / "saved.tar"):
        assert code_of(lambda at=target: saving.save([made], {}, at)) == "content-damaged"  # type: ignore[misc]
        assert code_of(lambda at=target: saving.read(at)) == "layout-missing"  # type: ignore[misc]
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter").touch()
    assert code_of(lambda: saving.save([made], {}, tmp_path / "full")) == "layout-foreign"
    (tmp_path / "cut.tar").write_bytes(b"x" * 700)
    assert code_of(lambda: saving.read(tmp_path / "cut.tar")) == "layout-missing"


def test_a_file_of_something_else_is_not_overwritten(tmp_path: Path) -> None:
    made, letter = image(tmp_path / "engine", b"layer"), tmp_path / "letter"
    other = tmp_path / "other.tar"
    with tarfile.open(other, "w") as archive:
        archive.add(path_of(tmp_path / "engine", b"layer"), "blobs/x")
    for file in (letter, other):
        before = file.read_bytes() if file.exists() else b"Dear"
        file.write_bytes(before)
        assert code_of(lambda at=file: saving.save([made], {}, at)) == "layout-foreign"  # type: ignore[misc]
        assert file.read_bytes() == before
    own = tmp_path / "own.tar"
    saving.save([made], {}, own)
    whole = own.read_bytes()
    for left in (whole, whole[:1500]):
        own.write_bytes(left)
        saving.save([made], {}, own)
        assert own.read_bytes() == whole


def test_a_damaged_or_missing_blob_is_named_with_all_others(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    parts = [image(tmp_path / "engine", own, name=f"me/x:{own.decode()}") for own in (b"a", b"b")]
    saving.save(parts, {}, folder)
    path_of(folder / BLOBS, b"a").write_bytes(b"z")
    path_of(folder / BLOBS, b"b").unlink()
    with pytest.raises(FactoryError) as caught:
        saving.read(folder)
    assert {one.code for one in caught.value.problems} == {"content-damaged", "content-missing"}


def test_a_damaged_blob_is_written_again_after_what_the_error_says(tmp_path: Path) -> None:
    folder, made = tmp_path / "saved", image(tmp_path / "engine", b"layer")
    saving.save([made], {}, folder)
    path = path_of(folder / BLOBS, b"layer")
    path.write_bytes(b"retal")
    with pytest.raises(FactoryError) as caught:
        saving.read(folder)
    assert caught.value.problems[0].fix == f"remove {path}, and save the image again"
    path.unlink()
    saving.save([made], {}, folder)
    assert saving.read(folder).images


@pytest.mark.parametrize("target", ["saved", "saved.tar"])
def test_nothing_large_is_left_on_a_disk_that_is_full(
    tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = image(tmp_path / "engine", b"layer")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        assert code_of(lambda: saving.save([made], {}, tmp_path / target)) == "layout-unwritable"
    assert [path for path in tmp_path.rglob(".*") if path.name != ".lock"] == []
    saving.save([made], {}, tmp_path / target)
    assert saving.read(tmp_path / target).images


def test_two_that_save_to_one_archive_at_once_leave_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "saved.tar"
    small, large = image(tmp_path / "engine", b"a"), image(tmp_path / "other", b"b" * 100_000)
    begun, opened = list[str](), Folder.open

    def meanwhile(store: Folder, digest: str) -> IO[bytes]:
        if digest == f"sha256:{hashlib.sha256(b'a').hexdigest()}" and not begun:
            begun.append(digest)
            saving.save([large], {}, target)
        return opened(store, digest)

    monkeypatch.setattr(Folder, "open", meanwhile)
    saving.save([small], {}, target)
    assert begun
    assert [one.digest for one in saving.read(target).images] == [small.digest]
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["saved.tar"]


def ask(server: Serving, path: str, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def test_the_registry_has_one_image_under_its_name_and_goes_on_in_a_blob(tmp_path: Path) -> None:
    made = image(tmp_path, b"0123456789")
    (layer,) = (one for one, size in made.blobs.items() if size == 10)
    other = put(tmp_path, b"of another image")["digest"]
    with serving() as server:
        server.add(made)
        at = f"/v2/{server.repository}"
        assert ask(server, "/v2/") == (200, b"")
        assert ask(server, f"{at}/manifests/{made.digest}")[0] == 200
        assert ask(server, f"{at}/blobs/{layer}", Range="bytes=7-") == (206, b"789")
        assert ask(server, f"{at}/blobs/{layer}", Range="bytes=10-")[0] == 416
        assert server.sent[layer] == 3
        for path in (f"{at}/blobs/{other}", f"/v2/guessed/blobs/{layer}", f"{at}/blobs/../x"):
            assert ask(server, path)[0] == 404
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(b"\x16\x03\x01hello")  # TLS
            assert connection.recv(5) == b"HTTP/"


def test_each_large_layer_that_is_missing_is_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "LARGE", 5)
    made = image(tmp_path, b"there-now", b"large-one", b"tiny", b"large-two", b"large-end")
    found = steps.of(made, {"diff-there-now"})
    assert [len(one.blobs) - 2 for one in found] == [2, 4]  # beside manifest and configuration
    assert found == steps.of(made, {"diff-there-now"})
    again = content.read(found[0].store, found[0].digest, NAME)
    assert again.blobs.items() == found[0].blobs.items()


class Other(RemoteEngine):
    """An engine that fails so often before it has what it pulls."""

    def __init__(self, host: str, failures: int = 0, *, transient: bool = True) -> None:
        super().__init__(host)
        self.failures, self.transient, self.names = failures, transient, list[str]()

    def find(self, digests: Sequence[str]) -> RemoteImage | None:
        return RemoteImage(digest=digests[0], names=tuple(self.names)) if self.names else None

    def layers(self) -> set[str]:
        return set()

    def references(self) -> list[str]:
        return []

    def pull(self, repository: str, digest: str, platform: str, port: int) -> str:  # noqa: ARG002
        if self.failures:
            self.failures -= 1
            raise RemoteError(
                Problem(code="remote-connection", what="cut"), transient=self.transient
            )
        self.names.append(f"127.0.0.1:20000/{repository}@{digest}")
        return self.names[-1]

    def tag(self, source: str, target: str) -> None:  # noqa: ARG002
        self.names.append(target)

    def untag(self, names: Sequence[str]) -> None:
        self.names = [name for name in self.names if name not in names]


def test_a_machine_that_fails_stops_no_other_and_a_cut_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributing, "PAUSE", 0.0)
    engines = {
        "cut": Other("cut", distributing.TRIES - 1),
        "gone": Other("gone", distributing.TRIES),
        "full": Other("full", 1, transient=False),
        "good": Other("good"),
    }
    images = [image(tmp_path, b"a"), image(tmp_path, b"b", name="me/x:2")]
    rows = distributing.distribute(images, list(engines), engines.__getitem__)
    states = [(row.host, str(row.state), [one.code for one in row.problems]) for row in rows]
    lost = ["remote-connection"], ["distribute-not-tried"]
    assert states == [
        ("cut", "sent", []),
        ("cut", "there", []),
        *(("gone", "failed", code) for code in lost),
        *(("full", "failed", code) for code in lost),
        ("good", "sent", []),
        ("good", "there", []),
    ]
    assert engines["good"].names == [NAME, "me/x:2"]


def test_an_engine_that_has_something_else_then_is_an_error(tmp_path: Path) -> None:
    class Forgetful(Other):
        def find(self, digests: Sequence[str]) -> RemoteImage | None:  # noqa: ARG002
            return None

    (row,) = distributing.distribute([image(tmp_path, b"a")], ["x"], Forgetful)
    assert row.problems[0].code == "distribute-other-digest"


@pytest.mark.parametrize("text", ["-oProxyCommand=x", "a b", "", "a;b", "$(a)", "@host"])
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="host-name"):
        check_host(text)
    for host in ("spark1", "me@10.0.0.1", "ssh://me@spark-1.lan:2222", "fd00::5", "me@::1"):
        assert check_host(host) == host


class Closed:
    """Has one image, which only ``docker save`` gives."""

    def __init__(self, archive: Path) -> None:
        self.archive, self.saves = archive, 0

    def blob_folder(self, _: str) -> None:
        return None

    @contextmanager
    def saved(self, _: str) -> Iterator[IO[bytes]]:
        self.saves += 1
        with self.archive.open("rb") as stream:
            yield stream


def test_an_image_whose_blobs_cannot_be_read_is_copied_and_the_copy_goes_in_the_end(
    tmp_path: Path,
) -> None:
    made = image(tmp_path / "blobs", b"layer")
    saving.save([made], {}, tmp_path / "saved.tar")
    engine = Closed(tmp_path / "saved.tar")
    info = ImageInfo(
        ref=made.name,
        digest=made.configs[0],  # as an engine without containerd's store knows it
        layers=(),
        platform=made.platform,
        labels={},
        env={},
        size=1,
    )

    def read() -> set[str]:
        with transport.reading(cast("Engine", engine), [info], tmp_path / "cache") as found:
            assert found[0].digests == made.digests
            return set(found[0].blobs)

    assert read() == set(made.blobs)
    copies = [path for path in (tmp_path / "cache").rglob("*") if path.is_dir()]
    assert engine.saves == 1
    assert copies == [tmp_path / "cache" / transport.COPIES]
