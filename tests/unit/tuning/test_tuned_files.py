"""Files of tuned configurations: a good one passes, and each fault is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import ROOT, tuning
from support.tuning import NAME, ROW, content

from imagefactory.errors import SetupError
from imagefactory.tuning import files, release
from imagefactory.tuning.files import GB10
from imagefactory.tuning.release import Release


@pytest.fixture
def known(tmp_path: Path) -> Release:
    return release.read(tuning.tree(tmp_path))


def codes(name: str, data: bytes, known: Release) -> list[str]:
    return [one.code for one in files.check(name, data, known, device=GB10)]


def test_what_a_release_takes_is_read_from_its_sources(known: Release) -> None:
    assert known.tunes == ("auto", "fp8_w8a8")
    assert known.dtypes == {"fp8_w8a8", "float32"}
    assert (set(known.required), set(known.optional)) == (set(ROW), {"SPLIT_K"})
    assert known.batch_sizes == (1, 2, 64)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("vllm/model_executor/layers/fused_moe/fused_moe.py", "E={E},N={N}", "N={N},E={E}"),
        ("vllm/model_executor/layers/fused_moe/config.py", "_get_config_dtype_str", "other"),
        ("benchmarks/kernels/benchmark_moe.py", "batch_sizes = [1, 2, 64]", "pass"),
        ("benchmarks/kernels/benchmark_moe.py", "choices=", "values="),
        ("benchmarks/kernels/benchmark_moe.py", "def main(args):", "def main(args:"),
    ],
)
def test_sources_that_say_it_in_another_way_are_refused_and_not_guessed(
    tmp_path: Path, file: str, old: str, new: str
) -> None:
    found = tuning.tree(tmp_path)
    path = tmp_path / file
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(SetupError, match="do not say how it is tuned"):
        release.read(found)


def test_a_good_file_passes(known: Release) -> None:
    assert codes(NAME, content(), known) == []
    assert codes("E=8,N=7168,device_name=NVIDIA_GB10.json", content(), known) == []
    assert codes(NAME, content(**{"1": {**ROW, "SPLIT_K": 1}}), known) == []


def test_upstreams_own_files_for_a_gb10_pass(known: Release) -> None:
    diff = (ROOT / "patches/vllm/gb10-moe-configs/0.16.diff").read_text()
    parts = diff.split("diff --git ")[1:]
    for part in parts:
        name = part.partition(" b/")[2].partition("\n")[0].rpartition("/")[2]
        lines = part.partition("@@\n")[2].splitlines()
        text = "\n".join(line[1:] for line in lines if line.startswith("+"))
        assert codes(name, text.encode(), known) == []
    assert len(parts) == 2


@pytest.mark.parametrize(
    ("name", "code"),
    [
        (NAME.replace("NVIDIA_GB10", "NVIDIA_H200"), "tuning-device"),
        (NAME.replace("fp8_w8a8", "fp8"), "tuning-dtype"),
        (NAME.replace(",N=512", ""), "tuning-name"),
        (NAME.replace("[128,128]", "[128, 128]"), "tuning-name"),
        (NAME.replace("NVIDIA_GB10", "NVIDIA GB10"), "tuning-name"),
        (NAME.replace("E=512", "E=0"), "tuning-name"),
        (f"{NAME}.bak", "tuning-name"),
    ],
)
def test_a_name_that_vllm_does_not_look_for_on_a_gb10_fails(
    known: Release, name: str, code: str
) -> None:
    assert codes(name, content(), known) == [code]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "tuning-format"),
        (b"{", "tuning-format"),
        (b"[]", "tuning-format"),
        (b'{"1": {}, "1": {}}', "tuning-format"),
        (content(**{"1": 3}), "tuning-format"),
        (content(one=ROW), "tuning-batch"),
        (content(**{"0": ROW}), "tuning-batch"),
        (content(**{"9" * 5000: ROW}), "tuning-batch"),
        (content(**{"1": {**ROW, "BLOCK_SIZE_X": 16}}), "tuning-key"),
        (content(**{"1": {**ROW, "waves_per_eu": 2}}), "tuning-key"),
        (content(**{"1": {k: v for k, v in ROW.items() if k != "num_warps"}}), "tuning-key"),
        (content(**{"1": {**ROW, "num_warps": "4"}}), "tuning-value"),
        (content(**{"1": {**ROW, "num_warps": 4.0}}), "tuning-value"),
        (content(**{"1": {**ROW, "num_stages": True}}), "tuning-value"),
        (content(**{"1": {**ROW, "GROUP_SIZE_M": 0}}), "tuning-value"),
        (content(**{"1": {**ROW, "BLOCK_SIZE_M": 48}}), "tuning-value"),
    ],
)
def test_a_file_that_vllm_or_its_kernel_does_not_take_fails(
    known: Release, data: bytes, code: str
) -> None:
    assert codes(NAME, data, known) == [code]


def test_tiles_have_to_fit_the_blocks_that_share_a_scale(known: Release) -> None:
    odd = NAME.replace("[128,128]", "[96,128]")
    assert set(codes(odd, content(), known)) == {"tuning-value"}


def test_every_batch_size_has_to_be_there_that_the_release_or_the_user_names(
    known: Release,
) -> None:
    data = json.loads(content())
    del data["64"]
    (found,) = files.check(NAME, json.dumps(data).encode(), known, device=GB10)
    assert (found.code, "batch sizes 64" in found.what) == ("tuning-batch", True)
    text = json.dumps(data).encode()
    assert files.check(NAME, text, known, device=GB10, batch_sizes=(1, 2)) == []
