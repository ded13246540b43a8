"""The part of the schema of ``matrix.yaml`` that says which wheels are built from source."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from imagefactory.system.yamlfile import Strict

Text = Annotated[str, Field(min_length=1)]
#: A project's name as PEP 503 normalizes it.
PROJECT = r"^[a-z0-9]+(?:-[a-z0-9]+)*$"
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
#: A path that does not leave the folder that it starts from.
INSIDE = r"^(?!/)(?!(?:.*/)?\.\.(?:/|$))[^\s\\]+$"


class BuildEntry(Strict):
    """A vLLM wheel built from source, with the flavor's patches applied."""

    binaries: Annotated[
        Literal["official", "compiled"],
        Field(
            description=(
                "take compiled parts from the release's own wheel, or compile `extensions`"
            )
        ),
    ]
    tools: Annotated[
        Text,
        Field(description="a key of `toolchains`: setuptools and the other build requirements"),
    ]
    extensions: Annotated[
        list[Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*$")]],
        Field(description="CMake targets to compile; the others come from the release's wheel"),
    ] = []  # noqa: RUF012 - pydantic copies it
    sources: Annotated[
        dict[Variable, Text],
        Field(
            description=(
                "variable of vLLM's CMake files (NAME_SRC_DIR) -> git+URL@ref, URL#sha256=, "
                "wheel:NAME/path, or a folder"
            )
        ),
    ] = {}  # noqa: RUF012 - pydantic copies it


class ExtraEntry(Strict):
    """A wheel that is built from source against a cell's torch, such as one with own kernels."""

    source: Annotated[Text, Field(description="git+URL@ref, URL#sha256=, or a folder")]
    tools: Annotated[
        Text,
        Field(description="a key of `toolchains`: setuptools and the other build requirements"),
    ]
    folder: Annotated[
        Text | None,
        Field(
            description="the folder of the source that has pyproject.toml or setup.py",
            json_schema_extra={"pattern": INSIDE},
        ),
    ] = None
    setup: Annotated[
        Text | None,
        Field(
            description="a file beside the matrix that takes the place of the source's setup.py",
            json_schema_extra={"pattern": INSIDE},
        ),
    ] = None
    env: Annotated[
        dict[Variable, Annotated[str, Field(pattern=r"^[^\n]+$")]],
        Field(description="environment variables of the build"),
    ] = {}  # noqa: RUF012 - pydantic copies it
    sources: Annotated[
        dict[Variable, Text],
        Field(
            description=(
                "further sources: variable with the folder -> git+URL@ref, URL#sha256=, "
                "wheel:NAME/path, or a folder"
            )
        ),
    ] = {}  # noqa: RUF012 - pydantic copies it
