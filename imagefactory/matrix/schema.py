"""The schema of ``matrix.yaml``; the JSON Schema for editors is generated from it."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from imagefactory.matrix.build_schema import PROJECT, BuildEntry, ExtraEntry, Text
from imagefactory.system.yamlfile import Strict

# [host[:port]/]path, as in image references; any other colon would start a tag
_REPOSITORY = r"^(?:[a-z0-9][a-z0-9.-]*(?::[0-9]+)?/)?[a-z0-9]+(?:(?:[._]|__|-+|/)[a-z0-9]+)*$"
#: A codename, for what `stable` is changes.
_SUITE = r"^[a-z]+$"
#: What is a name in the file becomes part of file names, options and stages of a Dockerfile.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
_IMAGE = r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$"
When = dict[str, Text | list[Text]]
#: Digits of the hash of a commit, and of one in a name.
DIGITS, SHORT = 40, 12


def _no_bool(value: object) -> object:
    """``value``, but as a text if it is a truth value, for Python takes ``true`` for 1."""
    return str(value) if isinstance(value, bool) else value


class BaseEntry(Strict):
    """A distribution that images are based on: Debian packages, or an image of a registry."""

    extends: Annotated[
        Text | None,
        Field(
            description=(
                "another base, whose values this one takes: `packages` adds to that base's, "
                "every other key replaces its value"
            )
        ),
    ] = None
    suite: Annotated[
        str | None,
        Field(pattern=_SUITE, description="codename of the Debian suite to make the base from"),
    ] = None
    image: Annotated[
        Text | None,
        Field(
            pattern=_IMAGE, description="instead of `suite`: image reference; its digest is locked"
        ),
    ] = None
    bootstrap: Annotated[
        str | None,
        Field(pattern=_SUITE, description="former name of `suite`; `image` next to it is a name"),
    ] = None
    python: Annotated[
        Text, Field(description="the distribution's own Python, X.Y", pattern=r"^3\.[0-9]{1,2}$")
    ]
    glibc: Annotated[
        Text, Field(description="the distribution's glibc, X.Y", pattern=r"^2\.[0-9]{1,2}$")
    ]
    packages: Annotated[
        list[Text], Field(description="Debian packages to install in every image on this base")
    ]
    cuda_home: Annotated[
        Text | None,
        Field(
            description="where the image has a CUDA toolkit, such as /usr/local/cuda",
            pattern=r"^/[^\s:]+$",
        ),
    ] = None
    path: Annotated[
        list[Annotated[str, Field(pattern=r"^/[^\s:]*$")]],
        Field(
            description=(
                "the folders of the image's own PATH; without them, those of Debian and the bin "
                "folder of `cuda_home`"
            )
        ),
    ] = []


class IndexEntry(Strict):
    """A simple index that flavors take single packages from."""

    url: Annotated[
        Text,
        Field(
            description=(
                "https://host/path/simple, without credentials: those are read from "
                "UV_INDEX_<NAME>_USERNAME and UV_INDEX_<NAME>_PASSWORD, or ~/.netrc"
            ),
            pattern=r"^https?://\S+$",
        ),
    ]


#: What git is given as a repository. No helper is run (``ext::``), and it is no option.
REPOSITORY_URL = r"^(?:https?|ssh|file)://[^\s#-][!-~]*$"


class RefEntry(Strict):
    """A value of the axis `vllm`: a git ref, whose Python is put on the binaries of a wheel."""

    ref: Annotated[
        Text,
        Field(
            description="branch, tag, or commit with all of its 40 digits",
            pattern=r"^[A-Za-z0-9](?:\.?[A-Za-z0-9_/-])*$",
        ),
    ]
    base: Annotated[
        Text,
        Field(description="release or nightly whose wheel has the binaries, such as 0.33.0"),
    ]
    prs: Annotated[
        list[Annotated[int, Field(ge=1)]],
        Field(description="pull requests of the repository to merge into it, in this order"),
    ] = []
    repository: Annotated[
        Text,
        Field(
            description="URL of the git repository, which may be a mirror",
            json_schema_extra={"pattern": REPOSITORY_URL},
        ),
    ] = "https://github.com/vllm-project/vllm"
    tools: Annotated[
        Text | None,
        Field(description="a key of `toolchains`: setuptools and the other build requirements"),
    ] = None
    name: Annotated[
        str | None,
        Field(
            description="what names, tags and conditions call it; by default the ref and its PRs",
            pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,60}$",
        ),
    ] = None

    @property
    def words(self) -> str:
        """What names, tags and conditions call it."""
        is_commit = len(self.ref) == DIGITS and self.ref.isalnum()
        ref = self.ref[:SHORT] if is_commit else self.ref.replace("/", "-")
        return self.name or "-".join([ref, *(f"pr{number}" for number in self.prs)])


class FlavorEntry(Strict):
    """A named choice of base, wheels, patches and runtime settings."""

    extends: Annotated[
        Text | None,
        Field(
            description=(
                "another flavor, whose values this one takes: `requirements` (one for the same "
                "package replaces it), `patches`, `env`, `indexes` and `extras` (key by key) add "
                "to that flavor's, every other key replaces its value"
            )
        ),
    ] = None
    summary: Text
    base: Annotated[Text, Field(description="a key of `bases`")]
    requirements: Annotated[
        list[Text], Field(min_length=1, description="PEP 508, with {axis} placeholders")
    ]
    indexes: Annotated[
        dict[Text, Text],
        Field(
            description=(
                "package -> the key of `indexes` that it is taken from, with {axis} placeholders; "
                "other packages never come from there"
            )
        ),
    ] = {}
    patches: Annotated[list[Text], Field(description="project/name below patches/, in order")] = []
    env: dict[
        Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")],
        Annotated[str, Field(pattern=r"^[^\n]+$")],
    ] = {}
    serve_args: Annotated[
        list[Text], Field(description="default arguments that `serve` passes to vLLM")
    ] = []
    toolchain: Annotated[
        Text | None, Field(description="a key of `toolchains`, for compilation at run time")
    ] = None
    build: Annotated[BuildEntry | None, Field(description="build vLLM's wheel from source")] = None
    extras: Annotated[
        dict[Annotated[str, Field(pattern=PROJECT)], ExtraEntry],
        Field(
            description=(
                "further wheels, by the name of their project: built from source against the "
                "cell's torch, and installed beside vLLM"
            )
        ),
    ] = {}
    driver: Annotated[
        Text | None,
        Field(description="NVIDIA driver version of the target machines, such as 580.95"),
    ] = None


class ToolchainEntry(Strict):
    """Compilers or build tools in a prefix of their own, from one consistent set of wheels."""

    requirements: Annotated[list[Text], Field(min_length=1, description="PEP 508, exact versions")]
    platforms: Annotated[list[Literal["linux/amd64", "linux/arm64"]], Field(min_length=1)]


class ExcludeEntry(Strict):
    """Points to remove from the matrix."""

    when: Annotated[When, Field(min_length=1)]
    reason: Text


class OverrideEntry(Strict):
    """A decision against upstream: replace a requirement, drop a package, or accept a driver."""

    requirement: Annotated[Text | None, Field(description="PEP 508, with {axis} placeholders")] = (
        None
    )
    drop: Annotated[Text | None, Field(description="name of a package to leave out")] = None
    driver: Annotated[
        Text | None,
        Field(
            description=(
                "oldest driver to accept for the cell's CUDA toolkit, instead of the one that "
                "NVIDIA documents for it"
            )
        ),
    ] = None
    when: When = {}
    reason: Text


FollowName = Literal["patch", "minor", "release", "rc", "nightly", "main"]


def _day(value: object) -> object:
    """A date that is written in quotes; numbers, which pydantic would count from 1970, are none."""
    return date.fromisoformat(value) if isinstance(value, str) else value


class HoldEntry(Strict):
    """A limit for the versions of something that has an axis or is a package of the lock."""

    to: Annotated[Text, Field(description='PEP 440 specifiers, such as "<0.24"')]
    reason: Text
    until: Annotated[
        date,
        BeforeValidator(_day),
        Field(description="the last day on which it counts, YYYY-MM-DD"),
    ]


class MovingTagEntry(Strict):
    """A tag that `promote` gives to one verified image after the other."""

    when: Annotated[When, Field(description="axes of the images that may have it")] = {}
    level: Annotated[
        Literal["verified", "gpu"],
        Field(
            description="what a receipt of the image must show: that it was verified, or on a GPU"
        ),
    ] = "verified"
    nightly: Annotated[
        bool | None,
        Field(
            description="whether `imagefactory nightly` moves it; by default, it moves nightly, "
            "latest and what begins with one of them and a dash, unless the level is gpu"
        ),
    ] = None


class MatrixFile(Strict):
    """matrix.yaml: the images to build."""

    version: Annotated[Literal[1], BeforeValidator(_no_bool)]
    repository: Annotated[Text, Field(pattern=_REPOSITORY)]
    tags: Annotated[
        list[Text],
        Field(min_length=1, description="templates; the first one gives the main image reference"),
    ]
    moving_tags: Annotated[
        dict[Text, MovingTagEntry],
        Field(description="tags that `promote` and `rollback` move, with {axis} placeholders"),
    ] = {}
    bases: Annotated[dict[Name, BaseEntry], Field(min_length=1)]
    flavors: Annotated[dict[Name, FlavorEntry], Field(min_length=1)]
    indexes: Annotated[
        dict[Annotated[str, Field(pattern=r"^[a-z0-9]+(?:[._-][a-z0-9]+)*$")], IndexEntry],
        Field(description="simple indexes beside those of the machine, for single packages"),
    ] = {}
    toolchains: Annotated[
        dict[Name, ToolchainEntry],
        Field(description="compilers and build tools, for proofs, wheels and JIT"),
    ] = {}
    defaults: Annotated[
        dict[str, Text], Field(description="values of axes that a cell does not set")
    ] = {}
    axes: Annotated[
        dict[str, list[Text | RefEntry]],
        Field(
            description=(
                "lists of values; every combination is a cell; a name of your own is an axis that "
                "requirements, tags and overrides can use as {name}"
            )
        ),
    ] = {}
    zip: Annotated[
        list[dict[str, list[Text | RefEntry]]],
        Field(description="axes that vary together, row by row"),
    ] = []
    include: Annotated[
        list[dict[str, Text | RefEntry]],
        Field(
            description=(
                "single cells; an axis that a row does not set has its value in `defaults`, or the "
                "only one that `axes` or `zip` has for it"
            )
        ),
    ] = []
    exclude: list[ExcludeEntry] = []
    overrides: list[OverrideEntry] = []
    builders: Annotated[
        list[Name],
        Field(description="buildx builders that cells are spread over, unless others are named"),
    ] = []
    follow: Annotated[
        FollowName | dict[Text, FollowName],
        Field(
            description=(
                "which newer versions `outdated` and `lock --upgrade` take over: one for all, or "
                "by axis or package, and `default` for the others (release)"
            )
        ),
    ] = {}
    hold: Annotated[
        dict[Text, HoldEntry],
        Field(description="by axis or package: versions to stay with for a reason and a time"),
    ] = {}


def json_schema() -> dict[str, Any]:
    """The JSON Schema of ``matrix.yaml`` (draft 2020-12), published in docs/matrix.schema.json."""
    schema = MatrixFile.model_json_schema()
    for name in ("BaseEntry", "FlavorEntry"):  # what is required may be inherited
        entry = schema["$defs"][name]
        entry["anyOf"] = [{"required": ["extends"]}, {"required": entry.pop("required")}]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
