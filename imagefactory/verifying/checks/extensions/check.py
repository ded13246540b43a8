"""The check that vLLM's compiled extensions load.

``import vllm`` proves nothing: it only warns when they do not.
"""

from __future__ import annotations

from imagefactory.verifying.check_registry import Verdict, check, failed, passed
from imagefactory.verifying.subject import Subject


@check("extensions-load", needs="facts")
def load(subject: Subject) -> Verdict:
    """Every compiled extension of the vLLM wheel resolves all its symbols beside the image's torch.

    Fails for an undefined symbol or a missing library, such as ``libtorch_cuda.so``. Where there is
    no GPU driver, a stand-in for ``libcuda.so.1`` is compiled in the container and removed again.
    """
    facts = subject.facts["extensions"]
    loaded, seconds = facts["loaded"], facts["seconds"]
    broken = [entry for entry in loaded if entry["error"]]
    if not loaded:
        return failed("vLLM has no compiled extension in this image", seconds=seconds)
    if broken:
        reasons = "; ".join(f"{entry['path']}: {entry['error']}" for entry in broken)
        hint = f" ({facts['stub_error']})" if facts["stub_error"] else ""
        return failed(
            f"{len(broken)} of {len(loaded)} do not load{hint}: {reasons}", seconds=seconds
        )
    how = ", with a stand-in for the GPU driver" if facts["stubbed"] else ""
    return passed(f"{len(loaded)} loaded{how}", seconds=seconds)
