"""Builds: bakes, single images, the builders that run them and the cache that they fill."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from subprocess import Popen
from typing import Literal

from imagefactory import redaction
from imagefactory.errors import SetupError, fail
from imagefactory.system.engine import builders, cache_records
from imagefactory.system.engine.builders import Builder
from imagefactory.system.engine.cache_records import CacheRecord
from imagefactory.system.engine.docker import Part, mind_the_client

#: How BuildKit reports what it does: JSON for programs, lines for people.
Progress = Literal["rawjson", "plain"]
#: Without it, the docker driver writes an image of every linked target too, that is, of the bases.
_ENVIRONMENT = {"BUILDX_NO_DEFAULT_LOAD": "1"}
#: Lines of a failed build that say why it failed.
_LAST_LINES = 15
#: Cache records whose names fit on one command line.
_AT_ONCE = 500


class Builds(Part):
    """What the adapter does with BuildKit."""

    def bake(
        self,
        file: Path,
        targets: Sequence[str],
        *,
        on_line: Callable[[str], object],
        builder: str | None = None,
        progress: Progress = "rawjson",
        cached: bool = True,
        overrides: Sequence[str] = (),
        secrets: Mapping[str, str] | None = None,
        metadata: Path | None = None,
    ) -> int:
        """Bake ``targets`` of a bake file and hand each line of output to ``on_line``.

        ``builder`` is a buildx builder, the engine's own if it is None. Without ``cached`` nothing
        comes from BuildKit's cache, and its cache mounts begin empty. ``overrides`` are values for
        ``--set``, such as ``target.output=type=cacheonly``. ``secrets`` are variables that secrets
        of the file refer to. Buildx writes the digests of the results to the file ``metadata``.
        Returns the exit code; on any way out the bake has ended. Raises SetupError
        ``engine-failed`` if a signal killed the client.
        """
        words = _bake(file, targets, builder, progress, metadata)
        words += [] if cached else ["--no-cache"]
        words += [word for override in overrides for word in ("--set", override)]
        with self._docker.stream(*words, env={**_ENVIRONMENT, **(secrets or {})}) as process:
            for line in process.stdout or ():
                on_line(redaction.hide(line))
            code = process.wait()
        mind_the_client(code, "docker buildx bake")
        return code

    def bake_command(
        self, file: Path, targets: Sequence[str], *, builder: str | None = None
    ) -> str:
        """The command line that bakes ``targets`` in a shell, with output for people."""
        variables = " ".join(f"{name}={value}" for name, value in _ENVIRONMENT.items())
        return f"{variables} {self._docker.show(*_bake(file, targets, builder, 'plain'))}"

    def build(self, context: Path, *, tag: str | None = None, cached: bool = True) -> None:
        """Build the Dockerfile in ``context`` as the image ``tag``.

        Without a tag its steps run and make no image. Raises SetupError ``build-failed`` with the
        last lines of output.
        """
        output = ("--load", "--tag", tag) if tag else ("--output", "type=cacheonly")
        done = self._docker.call(
            *("buildx", "build", "--progress", "plain", "--provenance=false", *output),
            *(() if cached else ("--no-cache",)),
            str(context),
            join=True,
        )
        if not done.ok:
            last = "\n".join(done.out.strip().splitlines()[-_LAST_LINES:])
            raise fail(SetupError, "build-failed", f"{context}:\n{last}", fix="see its Dockerfile")

    def builder(self, name: str) -> Builder:
        """The builder ``name``, started if it is not running.

        Raises SetupError ``no-builder`` if there is none, or it does not answer.
        """
        done = self._docker.call("buildx", "inspect", "--bootstrap", name, quiet=False)
        found = builders.parse(name, done.out) if done.ok else None
        if found is not None:
            return found
        names = self.builder_names()
        if name not in names:
            what = f"there is no builder {name}"
            fix = f"builders: {', '.join(names) or 'none'}; docker buildx create makes one, "
            raise fail(SetupError, "no-builder", what, fix=f"{fix}see docs/builders.md")
        what = f"the builder {name} does not answer: {builders.why_not(done.out, done.err)}"
        fix = "start its machine or cluster, or leave it out; "
        fix += f"docker buildx inspect --bootstrap {name} tries it again"
        raise fail(SetupError, "no-builder", what, fix=fix)

    def builder_names(self) -> list[str]:
        """The names of all builders; empty if buildx cannot list them."""
        listed = self._docker.call("buildx", "ls", "--format", "{{json .}}").out
        # a line for the builder and one for each of its nodes, all with the builder's name
        rows = [json.loads(line) for line in listed.splitlines() if line.startswith("{")]
        return list(dict.fromkeys(str(row["Name"]) for row in rows))

    def create_builder(self, name: str, *, driver: str, endpoint: str) -> None:
        """Add a builder that reaches its BuildKit at ``endpoint``. Raises SetupError."""
        self._docker.must("buildx", "create", "--name", name, "--driver", driver, endpoint)

    def remove_builder(self, name: str) -> None:
        """Remove a builder. Raises SetupError if there is none of that name."""
        self._docker.must("buildx", "rm", "--force", name)

    def dial_buildkit(self, connection: int) -> Popen[bytes]:
        """Let the other end of a socket, a file descriptor, talk to the engine's BuildKit.

        The process that relays is the caller's to end.
        """
        return self._docker.attach(connection, "buildx", "dial-stdio", "--builder", "default")

    def cache_records(self) -> list[CacheRecord]:
        """BuildKit's cache, record by record."""
        return cache_records.parse(self._docker.must("buildx", "du", "--verbose"))

    def forget_cache(self, records: Sequence[str]) -> None:
        """Remove these records; those in use, and those that others are based on, stay."""
        for start in range(0, len(records), _AT_ONCE):
            names = "|".join(records[start : start + _AT_ONCE])
            self.prune_cache(only=f'id="^({names})$"')  # the filter takes one value, a pattern

    def prune_cache(self, *, only: str | None = None) -> None:
        """Empty the build cache, or remove the records that the filter ``only`` selects.

        Such as ``type=regular``, which leaves downloads alone. Raises SetupError.
        """
        chosen = ("--filter", only) if only else ()
        self._docker.must("buildx", "prune", "--all", "--force", *chosen)


def _bake(
    file: Path,
    targets: Sequence[str],
    builder: str | None,
    progress: Progress,
    metadata: Path | None = None,
) -> list[str]:
    on = ["--builder", builder] if builder else []
    on += ["--metadata-file", str(metadata)] if metadata else []
    return ["buildx", "bake", *on, "--file", str(file), f"--progress={progress}", *targets]
