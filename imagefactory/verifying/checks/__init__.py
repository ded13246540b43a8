"""The checks, one folder per theme, found without being listed anywhere.

A theme's folder holds ``check.py`` with the functions that judge (``@check(...)``), ``probe.py``
if they need facts from inside the image, and ``test_<theme>.py``:

* ``probe.py`` uses only the standard library, since it runs in the image. Its function
  ``facts(context) -> dict`` returns JSON values; ``LEAVES_TRACES = True`` makes it run after the
  probes that only look.
* ``test_<theme>.py`` has ``good(locked)`` with the facts of a good image and ``FAULTS`` with at
  least one fault for each check that turns it red.
* The docstring of a check is its documentation: ``imagefactory verify --checks`` shows it.
"""

#: Themes in the order in which results are shown; others follow by name.
ORDER = (
    "python",
    "torch",
    "extensions",
    "wheels",
    "contents",
    "compilers",
    "patches",
    "entrypoint",
    "cluster",
    "labels",
    "image",
    "server",
    "logs",
    "gpu",
    "models",
)
#: Themes that judge what was read of the image, and run nothing of it.
STATIC = ("image",)
