"""Do vLLM's compiled extensions load? ``import vllm`` proves nothing.

It only warns when they do not.
"""

from __future__ import annotations

from imagefactory.verifying.registry import Verdict, check, failed, passed
from imagefactory.verifying.subject import Subject


@check("extensions-load", needs="facts")
def load(subject: Subject) -> Verdict:
    """Every extension of the vLLM wheel resolves all its symbols beside the image's torch."""
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
