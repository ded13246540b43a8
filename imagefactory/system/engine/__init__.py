"""The one adapter to the container engine: Docker with Buildx.

Nothing outside this package calls ``docker``, or knows how.
"""

from imagefactory.system.engine.builders import Builder
from imagefactory.system.engine.cache_records import CacheRecord
from imagefactory.system.engine.containers import (
    ContainerMemory,
    Limits,
    RunningContainer,
)
from imagefactory.system.engine.engine import Engine, client
from imagefactory.system.engine.images import ImageInfo
from imagefactory.system.engine.remote import LOST, RemoteEngine, RemoteError, check_host
from imagefactory.system.engine.services import Service

__all__ = [
    "LOST",
    "Builder",
    "CacheRecord",
    "ContainerMemory",
    "Engine",
    "ImageInfo",
    "Limits",
    "RemoteEngine",
    "RemoteError",
    "RunningContainer",
    "Service",
    "check_host",
    "client",
]
