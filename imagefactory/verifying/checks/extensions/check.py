"""The checks that the compiled extensions of vLLM and of the extras load.

``import vllm`` proves nothing: it only warns when they do not.
"""

from __future__ import annotations

from imagefactory.planning.layers import is_extra
from imagefactory.verifying.check_registry import Verdict, check, count, failed, passed
from imagefactory.verifying.subject import Subject


@check("extensions-load", needs="facts")
def load(subject: Subject) -> Verdict:
    """Every compiled extension of vLLM, and of extras, resolves all symbols beside the torch.

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


@check("extras-import", needs=("facts", "lock"))
def import_extras(subject: Subject) -> Verdict:
    """Every module of the extras, the wheels that were built beside vLLM, can be imported.

    Fails for a module whose import raises an error or ends the process, and for an extra that
    installs none. Images without extras have nothing to check.
    """
    wheels = subject.resolution.wheels if subject.resolution else ()
    wanted = [wheel.name for wheel in wheels if is_extra(wheel)]
    rows = subject.facts["extensions"]["imported"]
    if not wanted:
        return passed("no extras in this image")
    there = {row["extra"] for row in rows}
    faults = [f"{name} installs no module" for name in wanted if name not in there]
    faults += [f"import {row['module']}: {row['error']}" for row in rows if row["error"]]
    if faults:
        return failed("; ".join(faults))
    modules = ", ".join(row["module"] for row in rows)
    return passed(f"{count(len(wanted), 'extra')}: {modules}")
