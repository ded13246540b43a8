"""What an image in a registry is: its labels and platform, through an index of one image, too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.plans import planned
from support.promoting import PATH, labels
from support.registry import OCI, FakeRegistry

from imagefactory.planning.cell_plan import LABEL
from imagefactory.publishing import tags, vouching
from imagefactory.system.registry import Registries

OWN = labels("aaaaaaaa")


@pytest.mark.parametrize("rows", [["unknown/unknown", "linux/arm64"], ["linux/arm64"]])
def test_an_index_of_one_image_is_that_image(
    registry: FakeRegistry, tmp_path: Path, rows: list[str]
) -> None:
    inner = registry.put(PATH, "inner", {"sha256:x": 1}, labels=OWN)
    attested = registry.put(PATH, "attested", {"sha256:y": 1}, labels={})
    manifests = [
        {
            "digest": attested if platform.startswith("unknown") else inner,
            "size": 1,
            "mediaType": f"{OCI}.manifest.v1+json",
            "platform": dict(zip(("os", "architecture"), platform.split("/"), strict=True)),
        }
        for platform in rows
    ]
    index = {"mediaType": f"{OCI}.index.v1+json", "manifests": manifests}
    digest = registry.put_manifest(PATH, "index", index)
    name = f"{registry.address}/{PATH}"
    found, plain = (
        vouching.read_image(Registries(tmp_path), name, one) for one in ("index", inner)
    )
    assert found
    assert plain
    assert (found.digest, plain.digest) == (digest, inner)
    assert (found.labels, found.platform) == (plain.labels, plain.platform) == (OWN, "linux/arm64")
    assert found.config == plain.config
    assert found.name == str(tags.of_labels(OWN))
    assert vouching.read_image(Registries(tmp_path), name, "gone") is None


def test_an_index_without_an_image_has_no_labels(registry: FakeRegistry, tmp_path: Path) -> None:
    registry.put_manifest(PATH, "index", {"mediaType": f"{OCI}.index.v1+json", "manifests": []})
    found = vouching.read_image(Registries(tmp_path), f"{registry.address}/{PATH}", "index")
    assert found
    assert (found.name, found.labels, found.config) == ("", {}, "")


@pytest.mark.parametrize("name", ["pin.vllm", "flavor", "build-key", "channel"])
def test_a_plan_without_a_label_of_the_tag_has_no_tag(name: str) -> None:
    made = planned()
    left = {key: text for key, text in made.labels.items() if key != f"{LABEL}.{name}"}
    if name == "channel":  # the tag has CUDA's version instead
        left.pop(f"{LABEL}.pin.cuda", None)
    with pytest.raises(ValueError, match="are incomplete"):
        tags.of_plan(replace(made, labels=left))
