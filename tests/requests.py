"""Counts what is asked of stores: requests to a bucket, and listings of directories."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from wlc.farm.store import local
from wlc.farm.store.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def counted_requests() -> Iterator[Counter[str]]:
    """Count the requests of S3 by operation and object, such as "GetObject sales/wlc.config"."""
    from aiobotocore.client import AioBaseClient

    made: Counter[str] = Counter()
    ask = AioBaseClient._make_api_call

    async def count(client: Any, operation: str, wanted: dict[str, Any]) -> Any:
        made[f"{operation} {wanted.get('Key') or wanted.get('Prefix') or ''}"] += 1
        return await ask(client, operation, wanted)

    with patch.object(AioBaseClient, "_make_api_call", count):
        yield made


@contextmanager
def counted_listings() -> Iterator[Counter[str]]:
    """Count the directories that local stores list."""
    made: Counter[str] = Counter()
    ask = local._files

    def count(root: Any, folder: Any, *args: Any, **options: Any) -> Any:
        made[str(folder)] += 1
        return ask(root, folder, *args, **options)

    with patch.object(local, "_files", count):
        yield made


@contextmanager
def counted_accesses() -> Iterator[Counter[str]]:
    """Count what is asked of stores in memory, each of which a bucket would be asked with one request."""
    made: Counter[str] = Counter()
    within = [False]

    def counting(name: str) -> Any:
        ask = getattr(MemoryStore, name)

        def count(self: MemoryStore, path: str = "", *args: Any, **options: Any) -> Any:
            # A store in memory does one by means of another.
            made[f"{name} {self.url}/{path}"] += not within[0]
            was, within[0] = within[0], True
            try:
                return ask(self, path, *args, **options)
            finally:
                within[0] = was

        return count

    names = ("read", "read_versioned", "fetch", "list", "exists", "create", "replace", "delete")
    with patch.multiple(MemoryStore, **{name: counting(name) for name in names}):
        yield made
