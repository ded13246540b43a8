"""Asks vLLM for the speculative decoding of Nemotron-H with the model's own prediction head.

Three things must be there. ``SpeculativeConfig.hf_config_override`` makes the configuration of a
drafter from that of a Nemotron-H with such a head, and leaves one without a head alone. The model
registry has the drafter's architecture, with a module that defines it. Mamba-2's state has room for
tokens that are not accepted, and its mixer is told how many were.
"""

import ast
import inspect
import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import proofkit

LAYERS = "vllm/model_executor/layers/mamba"
DRAFTER = "NemotronHMTPModel"
#: Sizes of a Mamba-2 layer, by the names that upstream has for them.
SIZES = {
    "tp_world_size": 1,
    "intermediate_size": 64,
    "n_groups": 1,
    "num_heads": 8,
    "head_dim": 8,
    "state_size": 16,
    "conv_kernel": 4,
}


class Config:
    """A Hugging Face configuration."""

    def __init__(self, **values: object) -> None:
        vars(self).update(values)

    def update(self, values: dict[str, object]) -> None:
        vars(self).update(values)


def override(tree: Path, **values: object) -> Config:
    """The configuration of the drafter for a Nemotron-H."""
    source = proofkit.Source(tree / "vllm/config/speculative.py")
    node = proofkit.bare(source.function("hf_config_override", of="SpeculativeConfig"))
    given = Config(model_type="nemotron_h", architectures=["NemotronHForCausalLM"], **values)
    space = source.run([node], source.in_tree(tree, {}))
    made: Config = space["hf_config_override"](given)
    return made


def config_faults(tree: Path) -> Iterator[str]:
    """A drafter that is not recognized, or is where there is none."""
    # the same function is asked for every model; others are none of this proof's business
    found = override(tree, num_nextn_predict_layers=1)
    seen = vars(found).get("architectures")
    if seen != [DRAFTER]:
        yield f"a Nemotron-H with a prediction head becomes a drafter {seen}"
    elif vars(found).get("n_predict") != 1:
        yield f"the drafter predicts {vars(found).get('n_predict')} tokens, not 1"
    if vars(override(tree)).get("architectures") == [DRAFTER]:
        yield "a Nemotron-H without a prediction head becomes a drafter"


def registry_faults(tree: Path) -> Iterator[str]:
    """An architecture without a model."""
    models = tree / "vllm/model_executor/models"
    registry = proofkit.Source(models / "registry.py")
    pairs = [
        (key, value)
        for node in ast.walk(registry.module)
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and key.value == DRAFTER
    ]
    if not pairs:
        yield f"the model registry has no {DRAFTER}"
        return
    module, name = ast.literal_eval(pairs[0][1])
    proofkit.Source(models / f"{module}.py").cls(name)


def state_faults(tree: Path) -> Iterator[str]:
    """State of Mamba-2 without room, or a mixer that does not know what was accepted."""
    utils = proofkit.Source(tree / LAYERS / "mamba_utils.py")
    shape: Any = utils.in_tree(tree, {"divide": operator.floordiv})[
        "MambaStateShapeCalculator"
    ].mamba2_state_shape
    if "num_spec" not in inspect.signature(shape).parameters:
        yield "Mamba-2's state has no room for tokens that are not accepted"
    else:
        known = {n: v for n, v in SIZES.items() if n in inspect.signature(shape).parameters}
        plain, more = shape(**known), shape(**known, num_spec=2)
        if sum(more[0]) - sum(plain[0]) != 2 or plain[1] != more[1]:
            yield f"for two more tokens Mamba-2's state grows from {plain} to {more}"
    mixer = proofkit.Source(tree / LAYERS / "mamba_mixer2.py")
    calls = [node for node in ast.walk(mixer.module) if isinstance(node, ast.Call)]
    given = {keyword.arg for call in calls for keyword in call.keywords}
    if "num_accepted_tokens" not in given:
        yield "Mamba-2's mixer does not pass on how many tokens were accepted"


def judge(tree: Path) -> proofkit.Verdict:
    """The symptom is a part of speculative decoding that is missing."""
    found = [*config_faults(tree), *registry_faults(tree), *state_faults(tree)]
    return proofkit.verdict(found, f"{DRAFTER} drafts for Nemotron-H, and Mamba-2 can go back")


if __name__ == "__main__":
    proofkit.main(judge)
