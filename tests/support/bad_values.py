"""Lists of values that are invalid where they are written, for the fault "bad inputs"."""

from __future__ import annotations

from collections.abc import Sequence

Loc = tuple[str | int, ...]
DIGITS = "9" * 5000
DELETE = object()
_FLAVOR, _BASE, _TOOLS = ("flavors", "gb10"), ("bases", "trixie"), ("toolchains", "tools")

MATRIX_VALUES: Sequence[tuple[Loc, object]] = (
    *((("repository",), text) for text in ("-x/y", "a b", "http://x/y", "x:tag", "X/Y", "../x")),
    *(
        (("tags", 0), text)
        for text in ("-- --help", "{nope}", "../x", "a:b", "a/b", "fixed", DIGITS)
    ),
    *(
        ((*_BASE, "python"), text)
        for text in ("3.99999999", "3.\u0661\u0663", "3", "4.1", "3.13\n")
    ),
    *(((*_BASE, "glibc"), text) for text in ("2.\u0664\u0661", "2", "3.1", f"2.{DIGITS}")),
    *(((*_BASE, "suite"), text) for text in ("-x", "Trixie", "a b", "../x")),
    *(((*_BASE, "packages"), [text]) for text in ("--help", "a b", "x=1", "../x", "X")),
    *(
        ((*_FLAVOR, "requirements", 0), t)
        for t in ("-r /etc/passwd", "--index-url x", "a b", "a @ x")
    ),
    *(
        ((*_FLAVOR, "patches", 0), text)
        for text in ("-x/y", "../../etc", "vllm/../one", "none/such")
    ),
    *(((*_FLAVOR, "driver"), text) for text in ("--help", "new", DIGITS, "5")),
    *(((*_FLAVOR, "env", key), "x") for key in ("A B", "--x", "A=B", "1A", "")),
    ((*_FLAVOR, "env", "A"), "a\nb"),
    ((*_FLAVOR, "base"), "none"),
    ((*_FLAVOR, "toolchain"), "none"),
    ((*_FLAVOR, "extends"), "gb10"),
    ((*_FLAVOR, "summary"), "a\u202eb"),
    (("flavors", "--help"), {"extends": "gb10"}),
    (("flavors", "a b"), {"extends": "gb10"}),
    (("bases", "../x"), {"extends": "trixie"}),
    *(
        ((*_TOOLS, "requirements", 0), text)
        for text in ("-r /etc/passwd", "--help", "a b", "a @ x")
    ),
    ((*_TOOLS, "platforms", 0), "windows/amd64"),
    *(
        (("indexes", "own", "url"), t)
        for t in ("ftp://x/y", "-x", "https://u:p@h/x", "https://a b")
    ),
    *((("axes", "python", 0), text) for text in ("3", "three", "3.12", "-3.13")),
    *((("axes", "channel", 0), text) for text in ("cu\u0661\u0663\u0660", "rocm", "cu13", "cpu\n")),
    *((("axes", "cuda", 0), text) for text in ("13", "12.0", "99.9", "-13.0")),
    *((("zip", 0, "vllm", 0), text) for text in ("latest", "01.0", DIGITS, "-1", "1 ")),
    (("zip", 0, "vllm"), ["0.22.1"]),
    (("zip", 0, "vllm"), []),
    (("axes",), {"python": [str(n) for n in range(1500)], "cuda": [str(n) for n in range(1500)]}),
    (("axes",), {f"a{n}": ["1", "2"] for n in range(40)}),
    (("axes", "colour"), ["red"]),
    (("axes", "vllm"), ["0.33.0"]),
    (("include", 0, "vllm"), "0.22.1 "),
    (("include", 0, "platform"), "linux/arm64;id"),
    (("exclude",), [{"when": {"vllm": "0.1"}, "reason": "r"}]),
    (("exclude",), [{"when": {}, "reason": "r"}]),
    (("overrides", 0, "requirement"), "-r /etc/passwd"),
    (("overrides", 0, "drop"), "numpy"),
    (("overrides", 0, "when"), {"vllm": "0.1"}),
    (("overrides", 0, "reason"), ""),
    (("version",), 2),
    (("version",), "1"),
    (("version",), True),
    *(
        ((key,), DELETE)
        for key in ("version", "repository", "tags", "bases", "flavors", "defaults")
    ),
    *(((*_BASE, key), DELETE) for key in ("python", "glibc", "packages", "suite")),
    *(((*_FLAVOR, key), DELETE) for key in ("summary", "base", "requirements", "driver")),
)

PATCH_VALUES: Sequence[tuple[Loc, object]] = (
    *(
        (("proof", "run"), t)
        for t in ("/etc/passwd", "../../../matrix.yaml", "--help", ".", "none.py", "a\0b", "..")
    ),
    *(
        (("variants", 0, "diff"), t)
        for t in ("/etc/passwd", "../../../x", "-x.diff", "", "none.diff", "sub/a.diff", "\ud800")
    ),
    *(
        (("variants", 0, "versions"), t)
        for t in (">=", "===new", ">=1.0.*", "latest", f">={DIGITS}", ">=0.20", "0.22", ">=0.22;x")
    ),
    (("proof", "kind"), "magic"),
    (("proof", "needs"), ["rm -rf /"]),
    (("stage",), "later"),
    (("after",), ["vllm/one"]),
    (("after",), ["none/such"]),
    (("after",), ["--help"]),
    (("not_applicable",), [{"versions": "x", "reason": "r"}]),
    (("not_applicable",), [{"versions": ">=1"}]),
    (("draft",), "yes please"),
    (("draft",), True),
    (("summary",), "a\u202eb"),
    (("summary",), "x" * 5000),
    *(((key,), DELETE) for key in ("summary", "purpose", "symptom", "stage", "findings", "proof")),
)


_WHEEL = ("resolution", 0, "wheel", 0)
_DEB = ("base", 0, "deb", 0)
_DAYS = ("yesterday", "2026-13-01", "2026-01-45", "2026", "2026-1-1", "\u0662026-01-01", "")
_NAMES = ("../../etc/passwd", "/etc/passwd", "-x.whl", "numpy.whl", "torch-1-py3-none-any.whl", "")
_HASHES = ("", "0" * 63, "0" * 65, "g" * 64, "A" * 64, "sha256:" + "0" * 64)
_ADDRESSES = ("--help", "ftp://x", "file:///etc/passwd", "pypi", "https://a b", "")
LOCK_VALUES: Sequence[tuple[Loc, object]] = (
    *(((*_WHEEL, "sha256"), text) for text in _HASHES),
    *(((*_WHEEL, "filename"), text) for text in _NAMES),
    *(((*_WHEEL, "index"), text) for text in _ADDRESSES),
    *(((*_WHEEL, "size"), n) for n in (-1, 1.5, "1", True)),
    *(((*_WHEEL, "version"), text) for text in ("-1", "9.9", "../x", "")),
    *(((*_WHEEL, "name"), text) for text in ("--help", "Numpy", "a/b", "")),
    ((*_WHEEL, "tags"), "py2-none-any"),
    ((*_WHEEL, "requires"), ["absent>=1"]),
    ((*_WHEEL, "requires"), ["torch<1"]),
    ((*_WHEEL, "requires"), ["-r /etc/passwd"]),
    *((("resolution", 0, "wheel", n), DELETE) for n in range(3)),
    *((("resolution", 2, "wheel", n), DELETE) for n in range(3)),
    *(((key, 0, "created"), text) for key in ("resolution", "base") for text in _DAYS),
    *((("created",), text) for text in _DAYS),
    *((("resolution", 0, "python"), text) for text in ("3.99999999", "--help", "")),
    *((("resolution", 0, "glibc"), text) for text in ("2.99999999", "x")),
    *((("resolution", 0, "platform"), text) for text in ("windows/amd64", "--help", "")),
    *((("resolution", 0, "channel"), text) for text in ("rocm", "--help")),
    (("resolution", 0, "requirements"), ["-r /etc/passwd"]),
    (("resolution", 0, "torch", "cuda"), "--help"),
    (("resolution", 0, "torch", "version"), "--help"),
    *((("resolution", 0, "torch", key), DELETE) for key in ("version",)),
    *(
        ((*_DEB, "path"), t)
        for t in ("../x.deb", "/etc/passwd", "pool/../../x.deb", "x", "a/-b.deb")
    ),
    *(((*_DEB, "sha256"), text) for text in _HASHES),
    *(((*_DEB, "arch"), text) for text in ("../x", "--help", "")),
    *(((*_DEB, "archive"), text) for text in ("../x", "ubuntu")),
    *(((*_DEB, "name"), text) for text in ("--help", "A", "../x")),
    (("base", 0, "suite"), "--help"),
    (("base", 0, "image"), "--help"),
    (("base", 0, "digest"), "sha256:1"),
    *(
        (("source", 0, "url"), text)
        for text in ("--help", "ext::sh -c id", "git+ssh://-oProxy=x/y")
    ),
    *((("source", 0, "filename"), text) for text in ("../x", "", "/x", "-x")),
    *((("source", 0, "sha256"), text) for text in _HASHES),
    *((("built", 0, "replaces"), text) for text in _HASHES),
    (("built", 0, "key"), "../x"),
    (("built", 0, "wheel", "filename"), "../x.whl"),
    (("unpacker", 0, "wheel", "filename"), "../x.whl"),
    (("unpacker", 0, "wheel", "name"), "pip"),
    (("unpacker", 0, "platform"), "x"),
    (("unpacker", 0), DELETE),
    (("format",), 2),
    (("format",), "1"),
    (("format",), DELETE),
    (("created",), DELETE),
    (("tools",), DELETE),
    (("tool",), {"x": 1}),
    (("resolution", 0, "extra"), 1),
    (("resolution", 0, "torch", "extra"), 1),
    ((*_WHEEL, "extra"), "x"),
    ((*_DEB, "extra"), "x"),
    (("resolution", 0, "wheel"), DELETE),
    (("resolution", 0, "torch"), DELETE),
    (("toolchain", 0, "wheel"), []),
)


COMMANDS: Sequence[tuple[str, ...]] = tuple(
    tuple(text.split())
    for text in (
        *("build", "plan", "lock", "verify", "push", "render", "export", "wheel", "prune", "init"),
        *("doctor", "diff", "inspect", "rebuild", "patch list", "patch status", "patch check"),
        *("patch port", "patch continue", "patch new", "patch import", "engine up"),
    )
)
JUNK = (
    *(
        "--junk",
        "--junk=1",
        "--select=",
        "--json=maybe",
        "-Z",
        "---",
        "-",
        "--",
        "\udcff",
        "-\u202e",
    ),
    *("--no-such --junk", "x" * 9999, "--junk=" + "y" * 9999, "$(id) --junk"),
)

ARGUMENTS: Sequence[tuple[str, ...]] = (
    *(("verify", "--", name) for name in ("--help", "-v", "a b", "", "\u202ex", "$(id)")),
    *(("patch", "list", "-f", name) for name in ("none/matrix.yaml", "/dev/zero", " ", "\u202e")),
    *(("recipe", "list", "-f", name) for name in ("none/matrix.yaml", "/dev/full", ".")),
    *(("verify", name) for name in ("https://u:p@h.example/x", "u:p@h.example/x", "X/y", "x@y")),
    *(("inspect", "--", name) for name in ("--help", "a\nb", "../x")),
    *(("diff", "--", name, "x") for name in ("--help", "a b")),
    ("rebuild", "--", "--help"),
    *(("lock", "-P", name) for name in ("--help", "a b", "", "../x", "a==1")),
    *(("build", "--matrix", "--builder", name) for name in ("--help", "a b", "../x")),
    *(
        ("build", "--matrix", "--cache", name)
        for name in ("--help", "a b", "x:tag", "x@y", "\u202e")
    ),
    ("build",),
    *(
        ("plan", "--check", "--select", text)
        for text in (
            "((((",
            "nope",
            "vllm=",
            "a=b=c",
            "and",
            "not",
            "x" * 9999,
            "vllm=1,,2",
            "!",
            "",
        )
    ),
    ("plan", "--check", "--select", "( " * 5000),
    ("plan", "--check", "--select", "not " * 5000),
    ("plan", "--check", "--select", "[" * 5000),
    ("plan", "--check", "--select", "*" * 60 + "x"),
    *(("plan", "--explain", text) for text in ("nope", "--help ", "\u202e")),
    *(
        ("plan", "--check", "--file", name)
        for name in (
            "",
            ".",
            "/",
            "/dev/zero",
            "/dev/null",
            "/proc/self/mem",
            "x" * 5000,
            "a/" * 3000,
        )
    ),
    ("plan", "--none"),
    ("nonsense",),
    ("plan", "extra"),
    *(("patch", "new", name) for name in ("x", "vllm/-x", "vllm/../x", "--", "vllm/a b", "a/b")),
    *(("patch", "port", name) for name in ("x", "vllm/none", "-- -x", "\u202e")),
    *(("patch", "import", path) for path in ("none", "/dev/zero", "/proc/self/mem")),
    ("patch", "import", "matrix.yaml", "--name", "../x"),
    ("patch", "check", "--select", "nope"),
    ("patch", "continue", "--", "--help"),
    *(("export", "gb10*", "-o", name) for name in ("x.toml", "pylock.a b.toml", "/dev/full")),
    ("export", "nope"),
    *(("render", "--out", name) for name in ("matrix.yaml", "/dev/null", "/proc/x")),
    ("verify", "--from", "none"),
    ("verify", "x", "--from", "y"),
    *(("init", name) for name in ("matrix.yaml", "/proc/x", "a\0b")),
    ("init", "--from", "none"),
    ("wheel", "--try", "--help"),
    ("wheel", "--target", "x"),
    ("push", "--select", "nope"),
)

_LOCK = ("lock", "-P", "numpy")
VARIABLES: Sequence[tuple[str, str, tuple[str, ...]]] = (
    *(
        ("UV_DEFAULT_INDEX", text, _LOCK)
        for text in ("--help", "x", "ftp://x", "https://", "https://-x/y", "http://127.0.0.1:9/x")
    ),
    *(("UV_INDEX", text, _LOCK) for text in ("--help", "https://ok.example/x --help", "\u202e")),
    *(("PIP_INDEX_URL", text, _LOCK) for text in ("--help", "file:///etc")),
    *(("UV_HTTP_TIMEOUT", text, _LOCK) for text in ("never", "-1", "nan", "inf", DIGITS, "0")),
    *(("UV_HTTP_RETRIES", text, _LOCK) for text in ("many", "-1", "1e99")),
    *(("XDG_CACHE_HOME", text, _LOCK) for text in ("/dev/null", "/proc/x", "/dev/null/x")),
    *(("XDG_STATE_HOME", text, ("lock",)) for text in ("/dev/null", "/proc/x")),
    *(("DOCKER_HOST", text, ("build", "--matrix")) for text in ("--help", "x", "tcp://", "\u202e")),
    *(("BUILDX_BUILDER", text, ("build", "--matrix")) for text in ("--help", "a b", "\u202e")),
    ("IMAGEFACTORY_DEBIAN_MIRROR", "--help", ("build", "--matrix")),
    ("HOME", "/dev/null", ("build", "--matrix")),
)
