"""imagefactory: vLLM container images, declared, locked, patched with proof, built, verified,
pushed.

The modules are the stations of one pipeline, in this order: ``matrix`` (what we want) -> ``lock``
(which wheels) -> ``patching`` (which source changes) -> ``render`` -> ``plan`` -> ``build`` ->
``verify`` -> ``push``. ``cell`` and ``errors`` hold what flows between them; ``engine`` (Docker)
and ``shell`` (processes) are adapters.
"""

__version__ = "0.1.0"
