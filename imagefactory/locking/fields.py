"""The kinds of values in ``wheels.lock``. Pure."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, with_config

#: What a person may have edited is validated when a lock is read: none of it may be an option of a
#: program, leave a folder or be of no effect.
STRICT = with_config(ConfigDict(extra="forbid"))
Text = Annotated[str, Field(pattern=r"^[^\p{Cc}\p{Cf}\p{Zl}\p{Zp}]+$")]
#: What a person wrote, with line ends and the joiners of emoji.
Prose = Annotated[str, Field(pattern=r"^[[^\p{Cc}\p{Cf}\p{Zl}\p{Zp}]\n\t\x{200c}\x{200d}]+$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Size = Annotated[int, Field(strict=True, ge=0)]
Day = Annotated[str, Field(pattern=r"^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$")]
Project = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
Version = Annotated[str, Field(pattern=r"^[0-9][A-Za-z0-9.+!]{0,127}$")]
#: The name of a file, without a folder.
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+!~-]{0,254}$")]
WheelFile = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+!-]{0,250}\.whl$")]
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+!~-]*$")]
Address = Annotated[str, Field(pattern=r"^(find-links|wheelhouse|https?://[!-~]+)$")]
Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
