"""Asks for vLLM's version as vLLM does at start: from the metadata of the distribution `vllm`."""

import importlib.metadata
from pathlib import Path

import proofkit


def judge(tree: Path) -> proofkit.Verdict:
    """The symptom is that no distribution of that name is installed in the tree."""
    found = next(iter(importlib.metadata.distributions(name="vllm", path=[str(tree)])), None)
    if found is None or not found.version:
        missing = "PackageNotFoundError: no package metadata was found for vllm"
        return proofkit.verdict([missing], right="")
    wrong = []
    if found.metadata["Name"] != "vllm":
        wrong.append(f"the metadata of vllm is that of {found.metadata['Name']}")
    if not list(tree.glob(f"vllm-{found.version}.*-info")) and list(tree.glob("vllm-*.*-info")):
        wrong.append(f"the metadata says {found.version}, and its folder another version")
    return proofkit.verdict(wrong, right=f"importlib.metadata answers vllm {found.version}")


if __name__ == "__main__":
    proofkit.main(judge)
