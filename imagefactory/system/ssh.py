"""Commands on other machines, over the user's own ssh: its configuration, keys and known hosts."""

from __future__ import annotations

import re
from collections.abc import Sequence

from imagefactory.errors import FactoryError, SetupError, fail
from imagefactory.system import shell

#: Seconds for a connection; one that is silent for three times ``ALIVE`` is given up.
CONNECT, ALIVE = 10, 5
#: Seconds for a connection and a command that does nothing.
REACH = 20.0
#: What ssh exits with if it failed, and not the command.
_FAILED = 255
_OPTIONS = (
    *("-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT}"),
    *("-o", f"ServerAliveInterval={ALIVE}", "-o", "ServerAliveCountMax=3"),
)
#: A host with a port; an IPv6 address has more than one colon, and a URL is understood by ssh.
_WITH_PORT = re.compile(r"([^:]+):([0-9]+)")


def call(
    host: str,
    command: str,
    *,
    options: Sequence[str] = (),
    stdin: str | None = None,
    timeout: float | None = None,
    quiet: bool = True,
) -> shell.Completed:
    """Run a command line in the login shell of ``host``, which is ``[user@]host[:port]``.

    Nobody is asked for a password. ``options`` are for ssh; the others are those of ``shell.run``.
    """
    argv = ["ssh", *_OPTIONS, *options, *_port(host), "--", _name(host), command]
    return shell.run(argv, stdin=stdin, timeout=timeout, quiet=quiet)


def broke(done: shell.Completed) -> bool:
    """Whether it was ssh that failed, or was killed, and not the command."""
    return done.code == _FAILED or done.code < 0


def by_hand(host: str, command: str) -> str:
    """What a user can type to see the same."""
    return " ".join(("try by hand: ssh -o BatchMode=yes", *_port(host), _name(host), command))


def run(host: str, script: str, *, timeout: float) -> str:
    """What a script for ``sh`` writes on ``host``.

    Raises SetupError ``node-unreachable`` if the machine cannot be reached, or the script does not
    end within ``timeout`` seconds.
    """
    try:
        done = call(host, "sh -s", stdin=script, timeout=timeout)
    except SetupError as error:
        if error.problems[0].code != "command-timeout":
            raise
        raise unreachable(host, f"no answer within {timeout:.0f} s") from None
    if broke(done):
        said = [line.strip() for line in done.err.splitlines() if line.strip()]
        raise unreachable(host, said[-1] if said else "ssh gave no reason")
    return done.out


def reach(host: str) -> None:
    """Raise SetupError ``node-unreachable`` unless commands can be run on ``host``.

    For what comes before Docker's client, whose own ssh waits a minute for a silent machine.
    """
    run(host, "true", timeout=REACH)


def unreachable(host: str, why: str) -> FactoryError:
    """The error for a machine that cannot be used."""
    fix = by_hand(host, "docker version")
    return fail(SetupError, "node-unreachable", f"{host}: {why}", fix=fix)


def url(host: str) -> str:
    """``host`` for Docker's client, which takes all after the last colon for a port."""
    user, at, name = host.rpartition("@")
    bare = not host.startswith("ssh://") and name.count(":") > 1
    return f"ssh://{user}{at}[{name}]" if bare else f"ssh://{host.removeprefix('ssh://')}"


def _name(host: str) -> str:
    found = _WITH_PORT.fullmatch(host)
    return found[1] if found else host


def _port(host: str) -> tuple[str, ...]:
    found = _WITH_PORT.fullmatch(host)
    return ("-p", found[2]) if found else ()
