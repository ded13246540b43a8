"""imagefactory: vLLM container images, declared, locked, patched, built, verified, pushed.

``pipeline`` is the whole road: it calls one station after the other, with frozen values in and out.
``audits`` and ``workflows`` have the shorter ones of other commands; ``commands`` parse options and
show results.

The stations, each with an entry module of its own name, in the order in which they may import:

``matrix`` (which images) -> ``locking`` (which wheels) -> ``patching`` (which source changes)
-> ``planning`` (everything that decides an image, hashed) -> ``building`` -> ``wheels`` (of vLLM,
from source) -> ``verifying`` -> ``publishing``; ``inspecting`` and ``upkeep`` look at the results.

``system`` has the adapters (engine, registry, programs, servers, terminal), ``inbuild`` the
programs that run inside build stages. tests/unit/test_shape.py keeps imports pointing forward.
"""

__version__ = "0.1.0"
