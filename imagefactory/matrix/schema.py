"""The shape of ``matrix.yaml``; its JSON Schema, for editors, is made from here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from imagefactory.system.yamlfile import Strict

Text = Annotated[str, Field(min_length=1)]
# [host[:port]/]path, as in image references: a colon elsewhere would begin a tag
_REPOSITORY = r"^(?:[a-z0-9.-]+(?::[0-9]+)?/)?[a-z0-9]+(?:(?:[._]|__|-+|/)[a-z0-9]+)*$"
When = dict[str, Text | list[Text]]


class BaseEntry(Strict):
    """A distribution that images stand on."""

    image: Annotated[
        Text, Field(description="reference in a registry; by digest if it must never move")
    ]
    bootstrap: Annotated[
        Text | None, Field(description="Debian suite to make it from where no registry answers")
    ] = None
    python: Annotated[
        Text, Field(description="the distribution's own Python, X.Y", pattern=r"^3\.\d+$")
    ]
    glibc: Annotated[Text, Field(description="the distribution's glibc, X.Y", pattern=r"^2\.\d+$")]
    packages: Annotated[list[Text], Field(description="Debian packages that every image on it has")]


class BuildEntry(Strict):
    """A wheel of vLLM from the release's sources, with the flavor's patches in it."""

    binaries: Annotated[
        Literal["official", "compiled"],
        Field(
            description=(
                "compiled parts: those of the release's own wheel, or `extensions` compiled anew"
            )
        ),
    ]
    tools: Annotated[
        Text,
        Field(description="a key of `toolchains`: setuptools and what else its build asks for"),
    ]
    ref: Annotated[
        Text | None,
        Field(description="git+https://host/repository@ref to take instead of the release's sdist"),
    ] = None
    extensions: Annotated[
        list[Text], Field(description="CMake targets to compile; the others are official")
    ] = []
    sources: Annotated[
        dict[Text, Text],
        Field(
            description=(
                "NAME_SRC_DIR of vLLM's CMake: git+URL@ref, URL#sha256=, "
                "wheel:NAME/path, or a folder"
            )
        ),
    ] = {}


class FlavorEntry(Strict):
    """A named choice of base, wheels, patches and runtime settings."""

    summary: Text
    base: Annotated[Text, Field(description="a key of `bases`")]
    requirements: Annotated[
        list[Text], Field(min_length=1, description="PEP 508, with {axis} placeholders")
    ]
    patches: Annotated[list[Text], Field(description="project/name below patches/, in order")] = []
    env: dict[str, Text] = {}
    serve_args: Annotated[
        list[Text], Field(description="what `serve` passes to vLLM by default")
    ] = []
    toolchain: Annotated[
        Text | None, Field(description="a key of `toolchains`, for what compiles at run time")
    ] = None
    build: Annotated[BuildEntry | None, Field(description="make vLLM's wheel from its sources")] = (
        None
    )
    driver: Annotated[
        Text | None, Field(description="NVIDIA driver of the machines, such as 580.95")
    ] = None


class ToolchainEntry(Strict):
    """A compiler set in a prefix of its own, from one consistent set of wheels."""

    requirements: Annotated[list[Text], Field(min_length=1, description="PEP 508, exact versions")]
    platforms: Annotated[list[Literal["linux/amd64", "linux/arm64"]], Field(min_length=1)]


class ExcludeEntry(Strict):
    """Points to take out of the matrix."""

    when: Annotated[When, Field(min_length=1)]
    reason: Text


class OverrideEntry(Strict):
    """A decision against upstream's metadata: replace a requirement, or drop a package."""

    requirement: Annotated[Text | None, Field(description="PEP 508, with {axis} placeholders")] = (
        None
    )
    drop: Annotated[Text | None, Field(description="package that is left out altogether")] = None
    when: When = {}
    reason: Text


class MatrixFile(Strict):
    """matrix.yaml: what images exist."""

    version: Literal[1]
    repository: Annotated[Text, Field(pattern=_REPOSITORY)]
    tags: Annotated[
        list[Text], Field(min_length=1, description="templates; the first one is the cell's own")
    ]
    bases: Annotated[dict[str, BaseEntry], Field(min_length=1)]
    flavors: Annotated[dict[str, FlavorEntry], Field(min_length=1)]
    toolchains: Annotated[
        dict[str, ToolchainEntry], Field(description="compilers for proofs and for JIT")
    ] = {}
    defaults: dict[str, Text] = {}
    axes: dict[str, list[Text]] = {}
    zip: Annotated[
        list[dict[str, list[Text]]], Field(description="axes that move together, row by row")
    ] = []
    include: list[dict[str, Text]] = []
    exclude: list[ExcludeEntry] = []
    overrides: list[OverrideEntry] = []


def json_schema() -> dict[str, Any]:
    """The JSON Schema of ``matrix.yaml`` (draft 2020-12).

    As published in ``docs/matrix.schema.json``.
    """
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **MatrixFile.model_json_schema(),
    }
