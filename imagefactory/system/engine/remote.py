"""Docker on another machine, over ssh. Nothing has to be installed there but Docker."""

from __future__ import annotations

import json
import re
import secrets
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from imagefactory.errors import InputError, Problem, SetupError, fail
from imagefactory.system import shell, ssh
from imagefactory.system.engine.docker import Docker

#: An ssh destination: nothing that ssh takes for an option, and nothing for a shell.
_HOST = re.compile(r"(?:ssh://)?(?:[A-Za-z0-9_.-]+@)?(?:::)?[A-Za-z0-9_][A-Za-z0-9_.:-]*")
#: The code of the error for a machine that cannot be reached, or no longer.
LOST = "remote-connection"
#: Seconds that the engine has to answer a question.
ANSWER = 60
#: Seconds for a pull from a registry, of tens of gigabytes.
PULL = 24 * 3600.0
#: Ports there that are tried, and how often another one if it is in use.
PORTS, PORT_TRIES = range(20000, 32000), 4
#: A connection of our own: what others share would keep the forwarded port.
_OWN_CONNECTION = (
    *("-o", "ControlMaster=no", "-o", "ControlPath=none"),
    *("-o", "ExitOnForwardFailure=yes", "-o", "ForwardAgent=no", "-o", "Compression=no"),
)
_NO_FORWARD = "remote port forwarding failed"
_REFUSED = re.compile(
    r"permission denied|host key verification failed|identification has changed"
    r"|could not resolve|bad configuration option",
    re.IGNORECASE,
)
_CUT = re.compile(
    r"\bEOF\b|connection re(fused|set)|i/o timeout|broken pipe|unexpected end|deadline exceeded",
    re.IGNORECASE,
)


#: What an engine says of a registry that wants another account.
_NO_ACCESS = re.compile(
    r"pull access denied|unauthorized|no basic auth|authentication required|\b40[13]\b"
)


class RemoteError(SetupError):
    """A machine, or its engine, that did not do what it should; ``transient`` if it may yet."""

    def __init__(self, problem: Problem, *, transient: bool = False) -> None:
        super().__init__(problem)
        self.transient = transient


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteImage:
    """An image in the other engine: its digest there, and its names with a tag or a digest."""

    digest: str
    names: tuple[str, ...]


def check_host(text: str) -> str:
    """``text``, if ssh can connect to it. Raises InputError ``host-name`` otherwise."""
    if not _HOST.fullmatch(text):
        what = f"{text!r} is not a host that ssh connects to"
        raise fail(InputError, "host-name", what, fix="write [USER@]HOST[:PORT]")
    return text


class RemoteEngine:
    """The engine of ``host``, to which ``ssh HOST`` connects without asking anything."""

    def __init__(self, host: str, *, binary: str = "docker") -> None:
        self.host = check_host(host)
        self._binary = binary  # Docker's client on this machine

    def find(self, digests: Sequence[str]) -> RemoteImage | None:
        """The image that the engine knows by one of ``digests``; None if it has none."""
        done = self._docker("image", "inspect", *digests)
        if done.code and "no such image" not in done.err.lower():
            raise self._failure(done)
        try:
            rows = json.loads(done.out or "[]")
            for row in rows:
                names = (*(row.get("RepoTags") or ()), *(row.get("RepoDigests") or ()))
                return RemoteImage(digest=str(row["Id"]), names=names)
        except (ValueError, KeyError, AttributeError, TypeError):
            what = f"{self.host}: docker image inspect wrote no JSON: {done.out[:80]!r}"
            fix = "a login script there may print something: let it print nothing"
            raise fail(SetupError, "remote-answer", what, fix=fix) from None
        return None

    def layers(self) -> set[str]:
        """Digests of the unpacked layers of all images."""
        listed = self._docker("image", "ls", "--quiet", "--no-trunc")
        if not listed.ok:
            raise self._failure(listed)
        own = list(dict.fromkeys(listed.out.split()))
        if not own:
            return set()
        shown = self._docker("image", "inspect", "--format", "{{json .RootFS.Layers}}", *own)
        try:  # images that went meanwhile are left out
            rows = [json.loads(line) or () for line in shown.out.splitlines()]
        except ValueError:
            return set()
        return {layer for row in rows for layer in row}

    def references(self) -> list[str]:
        """Names with a digest of all images."""
        shown = "{{.Repository}}@{{.Digest}}"
        listed = self._docker("image", "ls", "--digests", "--format", shown)
        if not listed.ok:
            raise self._failure(listed)
        return listed.out.split()

    def pull(self, repository: str, digest: str, platform: str, port: int) -> str:
        """Let the engine pull an image from the registry on ``port`` of this machine.

        The registry is on the other machine's loopback address meanwhile. Returns the name that the
        image has there then.
        """
        for left in reversed(range(PORT_TRIES)):
            there = secrets.choice(PORTS)
            name = f"127.0.0.1:{there}/{repository}@{digest}"
            forward = ("-R", f"127.0.0.1:{there}:127.0.0.1:{port}")
            pull = ("pull", "--quiet", "--platform", platform, name)
            done = self._docker(*pull, options=forward, timeout=None, quiet=False)
            if done.ok:
                return name
            if not left or _NO_FORWARD not in done.err:
                break
        raise self._failure(done)

    def pull_from_registry(self, reference: str, platform: str) -> None:
        """Let the engine pull an image by digest, with the account that this machine has.

        Docker's client here talks to it over ssh.
        """
        client = Docker(binary=self._binary, host=ssh.url(self.host))
        words = ("pull", "--quiet", "--platform", platform, reference)
        done = client.call(*words, timeout=PULL, quiet=False)
        if not done.ok:
            raise self._failure(done, login=reference.partition("/")[0])

    def tag(self, source: str, target: str) -> None:
        """Give an image one more name."""
        self._must("tag", source, target)

    def untag(self, names: Sequence[str]) -> None:
        """Remove names of images; an image goes with its last one."""
        self._must("image", "rm", *names)

    def _must(self, *words: str) -> None:
        done = self._docker(*words)
        if not done.ok:
            raise self._failure(done)

    def _docker(
        self,
        *words: str,
        options: Sequence[str] = (),
        timeout: float | None = ANSWER,
        quiet: bool = True,
    ) -> shell.Completed:
        return ssh.call(
            self.host,
            shlex.join(("docker", *words)),
            options=(*_OWN_CONNECTION, *options),
            timeout=timeout,
            quiet=quiet,
        )

    def _failure(self, done: shell.Completed, *, login: str = "") -> RemoteError:
        said = [line for line in done.err.strip().splitlines() if line.strip()]
        last = said[-1] if said else f"exit {done.code}, without a reason"
        cut = False
        if _NO_FORWARD in done.err:
            code, fix = "remote-forward", "sshd there needs AllowTcpForwarding yes (or remote)"
        elif login and _NO_ACCESS.search(done.err):
            code, fix = "remote-access", f"docker login {login}, on this machine"
        elif ssh.broke(done) or "error during connect" in done.err.lower():
            code, fix = LOST, ssh.by_hand(self.host, "true")
            cut = not _REFUSED.search(done.err)
        else:
            code, fix = "remote-engine", ssh.by_hand(self.host, "docker info")
            cut = bool(_CUT.search(done.err))
        problem = Problem(code=code, what=f"{self.host}: {last}", fix=fix)
        return RemoteError(problem, transient=cut)
