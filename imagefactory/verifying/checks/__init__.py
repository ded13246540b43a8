"""The checks, one file a theme. A function with ``@check(...)`` in any module of this package is
found by itself.
"""

#: Themes in the order in which results are shown; others follow.
ORDER = (
    "torch",
    "extensions",
    "wheels",
    "contents",
    "toolchain",
    "patches",
    "entrypoint",
    "labels",
    "server",
)
