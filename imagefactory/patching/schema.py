"""The shape of ``patch.yaml``, and of ``mutants.yaml`` beside it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from imagefactory.inbuild import proofkit
from imagefactory.patching.patch import Stage
from imagefactory.system.yamlfile import Strict

Text = Annotated[str, Field(min_length=1)]
KindName = Literal["fix", "feature", "preference", "latent"]
#: A file of the patch's own folder, which is copied into build contexts.
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._+-]*$")]


class VariantEntry(Strict):
    """The patch's diff for a range of upstream versions."""

    versions: Annotated[Text, Field(description="PEP 440 specifier")]
    diff: Annotated[FileName, Field(description="file beside patch.yaml")]
    moved: Annotated[
        dict[Text, Text],
        Field(description="paths that the proof knows, and where upstream moved the files"),
    ] = {}


class KindEntry(Strict):
    """Versions on which the patch is of another kind."""

    versions: Text
    kind: KindName
    reason: Text


class ExemptionEntry(Strict):
    """Versions to which the patch does not apply."""

    versions: Text
    reason: Text


class NoDiffEntry(Strict):
    """Versions that have the fault, and why there is no diff for them."""

    versions: Text
    reason: Text


class ProofEntry(Strict):
    """The check that fails on the pristine tree and passes on the patched one."""

    run: FileName
    kind: Literal["static", "behaviour", "host", "nvcc", "installed"]
    needs: list[proofkit.Need] = []


class SourceEntry(Strict):
    """What a patch was imported from; the file ``imported.diff`` beside patch.yaml has its text."""

    address: Text
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class PatchFile(Strict):
    """patch.yaml: a change with a purpose."""

    draft: bool = False
    unproven: Annotated[bool, Field(description="has no proof: it only has to apply")] = False
    summary: Text
    kind: KindName = "fix"
    kinds: list[KindEntry] = []
    purpose: Text
    symptom: Text
    evidence: list[Text]
    remove_when: Text
    stage: Literal["source", "installed"]
    after: list[Text] = []
    variants: list[VariantEntry] = []
    not_applicable: list[ExemptionEntry] = []
    no_diff: list[NoDiffEntry] = []
    findings: Text
    imported: SourceEntry | None = None
    proof: ProofEntry | None = None

    @property
    def where(self) -> Stage:
        """``stage`` as an enum."""
        return Stage(self.stage)


class SurvivorEntry(Strict):
    """Spoilt forms of the patch that its proof lets pass, and why they do no harm."""

    change: Text
    because: Text


class MutantsFile(Strict):
    """How a proof is tested; only the survivors are of interest outside of the tests."""

    releases: list[Any] = []
    by_hand: list[dict[str, Any]] = []
    harmless: list[SurvivorEntry] = []
    refactors: list[dict[str, Any]] = []
