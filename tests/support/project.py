"""The project's own files, each read once per process: reading all patches takes 50 ms."""

from __future__ import annotations

from functools import cache

from imagefactory.locking import store
from imagefactory.locking.lock import Lock
from imagefactory.matrix import matrix
from imagefactory.matrix.matrix import Matrix
from imagefactory.patching import catalog
from imagefactory.patching.catalog import Catalog
from support import ROOT


@cache
def project_lock() -> Lock:
    return store.read(ROOT / "wheels.lock")


@cache
def project_matrix() -> Matrix:
    return matrix.load(ROOT / "matrix.yaml")


@cache
def stock_patches() -> Catalog:
    return catalog.load(ROOT / "patches")
