"""Encrypted and signed farms between PostgreSQL databases."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import wlc
import wlr
from tests.postgres.cluster import execute
from wlc.farm.errors import CorruptError, InvalidError
from wlc.farm.seal.keys import add_key
from wlc.farm.store.encrypted import MAGIC

if TYPE_CHECKING:
    from pathlib import Path

    from tests.postgres.cluster import Cluster


def test_from_master_to_replica(
    cluster: Cluster, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    farm, into = str(tmp_path / "farm"), cluster.create_database()
    for kind in ("encryption", "signing"):
        add_key(tmp_path / kind, kind)
        monkeypatch.setenv(f"WLC_{kind.upper()}_KEY_FILE", str(tmp_path / kind))
    execute(database_url, "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'nobody reads it')")
    wlc.master(database_url, farm=farm, name="shop")
    execute(database_url, "INSERT INTO t VALUES (2, 'nobody reads it')")
    wlc.flush(database_url)
    for path in (tmp_path / "farm").rglob("*"):
        if path.is_file() and path.name not in ("wlc.config", ".wlc.lock"):
            assert path.read_bytes().startswith(MAGIC)
    verifying = {"verify_key_file": str(tmp_path / "signing.pub")}
    assert wlr.replicate(f"{farm}/shop", into=into, storage_options=verifying).tick == 1
    assert execute(into, "SELECT count(*) FROM t") == [(2,)]
    # The master remembers that it signs and encrypts.
    monkeypatch.delenv("WLC_SIGNING_KEY_FILE")
    execute(database_url, "INSERT INTO t VALUES (3, 'c')")
    with pytest.raises(InvalidError, match="must be signed, and no signing key is given"):
        wlc.flush(database_url)
    # Another key signs; the replica remembers which one has to.
    add_key(tmp_path / "other", "signing")
    wlc.flush(database_url, storage_options={"signing_key_file": str(tmp_path / "other")})
    with pytest.raises(CorruptError, match="is signed with key"):
        wlr.replicate(into=into)
    monkeypatch.delenv("WLC_ENCRYPTION_KEY_FILE")
    with pytest.raises(InvalidError, match="no encryption key is given"):
        wlr.replicate(into=into)
    assert wlr.tick(into) == 1
    wlc.stop(database_url, storage_options={"encryption_key_file": str(tmp_path / "encryption")})
