"""What only Azure Blob Storage can do to us: folders that are blobs, in accounts with a hierarchical namespace."""

from __future__ import annotations

import os

import pytest
from azure.storage.blob import ContainerClient

from wlc.farm.store import StoredObject, open_store

pytestmark = pytest.mark.slow


def test_blobs_that_stand_for_folders_are_not_listed(azure_url: str) -> None:
    store = open_store(azure_url)
    store.create("sales/wlc_logs/1", b"one")
    store.create("sales/empty", b"")
    container, folder = azure_url.removeprefix("az://").split("/")
    with ContainerClient.from_connection_string(os.environ["AZURE_STORAGE_CONNECTION_STRING"], container) as client:
        for name in (folder, f"{folder}/sales", f"{folder}/sales/wlc_logs", f"{folder}/sales/wlc_logs/1.d"):
            client.upload_blob(name, b"", metadata={"hdi_isfolder": "true"})
    assert store.list() == [StoredObject("sales/empty", 0), StoredObject("sales/wlc_logs/1", 3)]
    assert store.list("sales/", recursive=False) == [StoredObject("sales/empty", 0)]
    assert store.list("sales/wlc_logs/", after="sales/wlc_logs/0") == [StoredObject("sales/wlc_logs/1", 3)]
    assert store.folders("sales/") == ["wlc_logs"]
