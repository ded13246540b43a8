"""The schema of a recipe; the JSON Schema for editors is generated from it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from imagefactory.launching.launching import USER
from imagefactory.system.yamlfile import Strict

Text = Annotated[str, Field(min_length=1)]
Hardware = Literal["gb10", "cpu"]
Weights = Literal[
    "bf16", "fp8", "nvfp4-modelopt", "nvfp4-compressed-tensors", "awq", "gptq", "mxfp4", "other"
]
#: Repository ids of Hugging Face, and absolute paths of the container.
_MODEL = r"^(?:[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*|(?:/[\w.-]+)+)$"
Options = Annotated[
    dict[
        Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*(?:\.\w+)*$")],
        Text | int | bool | dict[str, Any] | list[Any],
    ],
    Field(
        description=(
            "options of `vllm serve` without their dashes: true and false switch one on and off "
            "(--no-...), what has keys of its own is passed as JSON"
        )
    ),
]
Env = dict[
    Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")],
    Annotated[str, Field(pattern=r"^[^\n]*$")],
]
Number = Annotated[str, Field(pattern=r"^[0-9]+(?:\.[0-9]+)?$")]


class WhenEntry(Strict):
    """What is different for some releases of vLLM, or for a number of nodes."""

    vllm: Annotated[Text | None, Field(description="PEP 440 specifier")] = None
    nodes: Annotated[int | None, Field(ge=1)] = None
    options: Options = {}
    env: Env = {}


class AcceptEntry(Strict):
    """A rule that this recipe breaks on purpose."""

    rule: Text
    reason: Text


class NoteEntry(Strict):
    """Something to know, and who reported it."""

    text: Text
    source: Annotated[Text, Field(description="document, card or issue that says so")]


class RecipeFile(Strict):
    """A recipe: how one model is served."""

    summary: Text
    model: Annotated[
        str, Field(pattern=_MODEL, description="ORGANIZATION/NAME, or a path in the container")
    ]
    revision: Annotated[Text | None, Field(description="branch, tag or commit of the model")] = None
    architecture: Annotated[
        str | None,
        Field(
            pattern=r"^[A-Za-z_]\w*$",
            description="the model's, as `architectures` in its config.json names it",
        ),
    ] = None
    weights: Annotated[Weights, Field(description="how the weights are stored")]
    weights_gib: Annotated[Number | None, Field(description="GiB of all weights")] = None
    experts: Annotated[bool, Field(description="whether it is a mixture of experts")] = False
    context: Annotated[
        int | None,
        Field(ge=1, description="the most positions that the model's config.json allows"),
    ] = None
    hardware: Annotated[list[Hardware], Field(min_length=1)] = ["gb10"]
    vllm: Annotated[Text, Field(description="PEP 440 specifier of the releases that serve it")]
    nodes: Annotated[
        list[Annotated[int, Field(ge=1)]],
        Field(min_length=1, description="numbers of nodes that it is for, with a GPU each"),
    ] = [1]
    user: Annotated[
        str | None,
        Field(
            pattern=rf"^{USER}$",
            description="whom the container runs as, by number: UID or UID:GID; by default root",
        ),
    ] = None
    patches: Annotated[list[Text], Field(description="patches that the image must have")] = []
    options: Options = {}
    env: Env = {}
    when: Annotated[
        list[WhenEntry], Field(description="applied in this order, where they fit")
    ] = []
    accepts: list[AcceptEntry] = []
    sampling: Annotated[
        dict[Text, dict[Text, Number | int]],
        Field(description="by use, such as reasoning: parameters for clients to send"),
    ] = {}
    notes: list[NoteEntry] = []


def json_schema() -> dict[str, Any]:
    """The JSON Schema of recipes (draft 2020-12), published in docs/recipe.schema.json."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **RecipeFile.model_json_schema(),
    }
