"""An image on a base of a registry is compared with that base, whose layers it has to have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.saved_images import Saving, layout
from support.whole_images import BASE, BASE_CONFIG, Node, WholeImage, archive, names, sha256

from imagefactory.building import bases
from imagefactory.locking import registry_bases
from imagefactory.planning.cell_plan import ROOT
from imagefactory.system import platforms
from imagefactory.verifying.outside import outside
from imagefactory.verifying.outside.judged import Judged

#: Debian's own, which every image with its Python has.
HOOK = "etc/python3.13/sitecustomize.py"


@pytest.fixture
def of_registry(own: WholeImage, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The configuration of the base of ``own`` in its registry."""
    config = {**BASE_CONFIG, "rootfs": {"diff_ids": [f"sha256:{sha256(archive(BASE))}"]}}
    monkeypatch.setattr(platforms, "is_native", lambda _: True)
    monkeypatch.setattr(registry_bases, "config_of", lambda *_: config)
    monkeypatch.setattr(bases, "contexts", lambda *_: {})
    return config


def observed(image: WholeImage) -> Judged:
    return outside.observe(Saving(image), image.saved()[1], image.plan, image.settings)


@pytest.mark.programs
@pytest.mark.usefixtures("of_registry")
def test_every_file_of_a_base_of_a_registry_is_judged(own: WholeImage) -> None:
    found = observed(own)
    assert (found.error, found.config, found.changed, found.extra) == ("", (), (), ())
    own.tree["usr/bin/python3.13"] = Node(data=b"evil", mode=0o755)
    own.tree["etc/ld.so.conf.d/evil.conf"] = Node(data=b"/evil")
    found = observed(own)
    assert "/usr/bin/python3.13 has other content: 4 bytes" in names(found.changed)
    assert "/etc/ld.so.conf.d is explained by nothing" in names(found.extra)


@pytest.mark.programs
def test_what_is_in_the_base_itself_is_explained(
    own: WholeImage, of_registry: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_hook = archive({**BASE, HOOK: Node(data=b"# Debian's")})
    monkeypatch.setattr("support.whole_images._base_archive", lambda: with_hook)
    of_registry["rootfs"]["diff_ids"] = [f"sha256:{sha256(with_hook)}"]
    assert observed(own).clean


@pytest.mark.parametrize("rootfs", [None, {}, {"diff_ids": []}, {"diff_ids": ["sha256:other"]}])
def test_an_image_on_other_layers_is_damaged(
    own: WholeImage, of_registry: dict[str, Any], rootfs: object
) -> None:
    of_registry["rootfs"] = rootfs
    found = observed(own)
    assert found.damaged
    assert "is not built on the layers of" in found.error


@pytest.mark.programs
@pytest.mark.usefixtures("of_registry")
def test_packages_on_a_base_of_a_registry_lie_above_its_layers(
    own: WholeImage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own.tree["usr/bin/gcc"] = Node(data=b"of a package")
    assert "usr/bin/gcc" in names(observed(own).extra)
    folder = layout(tmp_path / "overlay", archive({"usr/bin/gcc": own.tree["usr/bin/gcc"]}))
    monkeypatch.setattr(bases, "contexts", lambda *_: {ROOT: f"oci-layout://{folder}@sha256:1"})
    assert observed(own).clean


def test_the_configuration_of_a_base_is_asked_for_once(
    own: WholeImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    image = registry_bases.BaseImage(name="x", digest="sha256:1", layers=(), config={"os": "linux"})

    def image_of(locked: object, _: object) -> registry_bases.BaseImage:
        asked.append(locked)
        return image

    monkeypatch.setattr(registry_bases, "image_of", image_of)
    locked, registries = own.plan.base.locked, Saving(own).registries
    other = replace(locked, digest="sha256:2")
    for base in (locked, locked, other, other):
        found = registry_bases.config_of(base, registries, own.settings)
        assert found == {"os": "linux"}
    assert asked == [locked, other]
    for path in (own.settings.cache / "base-configs").iterdir():
        path.write_text("[")
    assert registry_bases.config_of(locked, registries, own.settings) == {"os": "linux"}
    assert asked == [locked, other, locked]
