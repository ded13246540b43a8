"""Scripts on other machines, over the user's own ssh: its configuration, keys and known hosts."""

from __future__ import annotations

from imagefactory.errors import FactoryError, SetupError, fail
from imagefactory.system import shell

#: Seconds for a connection; one that is silent for three times ``ALIVE`` is given up.
CONNECT, ALIVE = 10, 5
#: What ssh exits with if it failed, and not the script.
_FAILED = 255
OPTIONS = (
    *("-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT}"),
    *("-o", f"ServerAliveInterval={ALIVE}", "-o", "ServerAliveCountMax=3"),
)


def run(host: str, script: str, *, timeout: float) -> str:
    """What a script for ``sh`` writes on ``host``, which is ``[user@]host[:port]``.

    Nobody is asked for a password. Raises SetupError ``node-unreachable`` if the machine cannot be
    reached, or the script does not end within ``timeout`` seconds.
    """
    name, _, port = host.partition(":")
    argv = ["ssh", *OPTIONS, *(("-p", port) if port else ()), "--", name, "sh", "-s"]
    try:
        done = shell.run(argv, stdin=script, timeout=timeout, quiet=True)
    except SetupError as error:
        if error.problems[0].code != "command-timeout":
            raise
        raise unreachable(host, f"no answer within {timeout:.0f} s") from None
    if done.code == _FAILED or done.code < 0:
        said = [line.strip() for line in done.err.splitlines() if line.strip()]
        raise unreachable(host, said[-1] if said else "ssh gave no reason")
    return done.out


def unreachable(host: str, why: str) -> FactoryError:
    """The error for a machine that cannot be used."""
    name, _, port = host.partition(":")
    by_hand = f"ssh -o BatchMode=yes {f'-p {port} ' if port else ''}{name} docker version"
    return fail(SetupError, "node-unreachable", f"{host}: {why}", fix=f"try by hand: {by_hand}")
