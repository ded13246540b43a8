"""Asks for vLLM's version the way vLLM does at start: through the metadata of the distribution named `vllm`."""

import importlib.metadata
import sys

found = [d.version for d in importlib.metadata.distributions(name="vllm", path=[sys.argv[1]])]
if found:
    print(f"importlib.metadata answers vllm {found[0]}")
    sys.exit(0)
print("PackageNotFoundError: no package metadata was found for vllm")
sys.exit(1)
