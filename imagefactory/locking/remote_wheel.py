"""Reads single members of a wheel on an index: by ranged requests, or else from all of it."""

from __future__ import annotations

import lzma
import zipfile
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from imagefactory.errors import SetupError, fail
from imagefactory.locking import wheelhouse
from imagefactory.settings import Settings
from imagefactory.system import index_errors, ui, web

if TYPE_CHECKING:
    from imagefactory.locking.lock import Wheel

#: What reading a zip file raises if it is damaged, encrypted, or compressed as no wheel is.
DAMAGED = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError)
Result = TypeVar("Result")


def use(
    wheel: Wheel, url: str, settings: Settings, work: Callable[[zipfile.ZipFile], Result]
) -> Result:
    """What ``work`` makes of a wheel, which is downloaded as a whole if it cannot be read in parts.

    Raises SetupError or requests.RequestException if it cannot be read, one of ``DAMAGED`` if it
    is no whole wheel, and what ``work`` raises.
    """
    import requests  # noqa: PLC0415 - takes 50 ms
    from remotezip import RangeNotSupported, RemoteIOError  # noqa: PLC0415 - as above

    def ranged() -> Result:
        try:
            return _ranged(url, settings, work)
        except RemoteIOError as error:  # a connection that broke: it is tried again
            raise requests.ConnectionError(str(error)) from None

    try:
        with web.waiting(url):
            return web.with_retries(ranged)
    except RangeNotSupported:
        path = wheelhouse.fetch(url, wheel.sha256, wheel.filename, settings)
    with zipfile.ZipFile(path) as archive:
        return work(archive)


def _ranged(url: str, settings: Settings, work: Callable[[zipfile.ZipFile], Result]) -> Result:
    """What ``work`` makes of the wheel at ``url``, of which only what it reads is requested."""
    import requests  # noqa: PLC0415 - takes 50 ms
    import urllib3  # noqa: PLC0415 - as above
    from remotezip import RemoteZip  # noqa: PLC0415 - as above

    answers: list[requests.Response] = []
    with requests.Session() as session:
        session.hooks["response"] = [lambda answer, *_, **__: answers.append(answer)]
        account = settings.account_for(url)
        try:
            with RemoteZip(url, auth=account, timeout=web.timeout(), session=session) as archive:
                return work(archive)
        except urllib3.exceptions.HTTPError as error:  # cut off in the middle of an answer
            raise requests.ConnectionError(str(error)) from None
        finally:
            for answer in answers:  # remotezip leaves that of a server without ranges open
                answer.close()


def member(
    wheel: Wheel,
    url: str,
    settings: Settings,
    choose: Callable[[zipfile.ZipFile], str],
    *,
    whole: bool = True,
) -> bytes:
    """The member of a wheel that ``choose`` names, without downloading the wheel if possible.

    From an index that answers no ranged requests the whole wheel is downloaded, and kept; without
    ``whole`` it is not. Raises SetupError if it cannot be read, KeyError if it has no such member.
    """
    import requests  # noqa: PLC0415 - takes 50 ms
    from remotezip import RangeNotSupported, RemoteZipError  # noqa: PLC0415 - as above

    def ranged() -> bytes:
        return _ranged(url, settings, lambda archive: archive.read(choose(archive)))

    try:
        with web.waiting(url):
            return web.with_retries(ranged)
    except RangeNotSupported:
        host = web.host_of(url)
        if not whole:
            what = f"{host} has no metadata of {wheel.filename}, and answers no ranged requests"
            fix = "use an index with core metadata (PEP 658)"
            raise fail(SetupError, "index-no-metadata", what, fix=fix) from None
        size = f" ({ui.size(wheel.size)})" if wheel.size else ""
        ui.say(f"{host} answers no ranged requests: downloading all of {wheel.filename}{size}")
    except (RemoteZipError, requests.RequestException) as error:
        raise SetupError(index_errors.of_request(url, error)) from None
    except DAMAGED as error:
        raise _corrupt(wheel, url, error) from None
    path = wheelhouse.fetch(url, wheel.sha256, wheel.filename, settings)
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.read(choose(archive))
    except DAMAGED as error:
        raise _corrupt(wheel, url, error) from None


def _corrupt(wheel: Wheel, url: str, error: Exception) -> Exception:
    what = f"{web.without_account(url)} is not a whole wheel: {error}"
    fix = f"ask the operator of {web.host_of(url)}, or take {wheel.name} from another index"
    return fail(SetupError, "index-corrupt", what, fix=fix)
