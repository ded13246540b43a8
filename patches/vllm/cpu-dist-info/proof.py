"""Asks for vLLM's version as vLLM does at start: from the metadata of the distribution `vllm`."""

import importlib.metadata
from pathlib import Path

import proofkit


def judge(tree: Path) -> proofkit.Verdict:
    """The symptom is that no distribution of that name is installed in the tree."""
    found = importlib.metadata.distributions(name="vllm", path=[str(tree)])
    version = next((distribution.version for distribution in found), None)
    wrong = [] if version else ["PackageNotFoundError: no package metadata was found for vllm"]
    return proofkit.verdict(wrong, right=f"importlib.metadata answers vllm {version}")


if __name__ == "__main__":
    proofkit.main(judge)
