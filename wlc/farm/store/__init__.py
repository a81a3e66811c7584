"""Stores that hold a farm: local directories, memory and S3 behind one contract."""

from wlc.farm.store.adapters import join_url, local_path, open_store
from wlc.farm.store.contract import AlreadyExistsError, ConflictError, MissingError, OversizedError, Store, StoredObject

__all__ = [
    "AlreadyExistsError",
    "ConflictError",
    "MissingError",
    "OversizedError",
    "Store",
    "StoredObject",
    "join_url",
    "local_path",
    "open_store",
]
