"""Manifests: what a snapshot holds, as one JSON document closed by a checksum."""

from __future__ import annotations

import json
from typing import Any

from wlc import fields
from wlc.clock import format_time
from wlc.errors import CorruptError, InvalidError
from wlc.log import digest, seal_problem
from wlc.model import FORMAT_VERSION, Manifest, SnapshotTable
from wlc.paths import check_database_name, parse_snapshot_data_path

_START = b'{"manifest":\n'
_SEAL_START = b',"sha256":"'


def encode_manifest(manifest: Manifest) -> bytes:
    """Write a manifest as the bytes of its file.

    Raises:
        InvalidError: The manifest contradicts itself, so that no reader would take it.
    """
    if problem := _problem(manifest):
        raise InvalidError(f"snapshot of {manifest.database} at {manifest.position} cannot be published: {problem}")
    try:
        text = json.dumps(_json(manifest), ensure_ascii=False, indent=1)
        body = _START + text.encode() + b"\n"
    except UnicodeEncodeError as error:
        raise InvalidError(f"snapshot of {manifest.database} holds text that is not Unicode: {error}") from error
    return body + _SEAL_START + digest(body).encode() + b'"}\n'


def decode_manifest(data: bytes, path: str) -> Manifest:
    """Read and check a manifest.

    Args:
        data: The file's bytes.
        path: Where it lies, for messages.

    Raises:
        CorruptError: It is damaged, truncated or of an unknown version; do not load the snapshot.
    """
    problem = seal_problem(data, _SEAL_START)
    if problem or not data.startswith(_START):
        raise CorruptError(f"{path}: {problem or 'it is not a manifest'}", path=path)
    try:
        document = fields.as_object(fields.DECODER.decode(data.decode()))
        json.dumps(document, ensure_ascii=False).encode()  # Refuses lone halves of surrogate pairs.
        manifest = _manifest(fields.as_object(document["manifest"]), path)
        problem = _problem(manifest)
    except KeyError as error:
        raise CorruptError(f"{path}: no {error.args[0]!r}", path=path) from error
    except (ValueError, RecursionError, CorruptError) as error:
        raise CorruptError(f"{path}: {error}", path=path) from error
    if problem:
        raise CorruptError(f"{path}: {problem}", path=path)
    return manifest


def _problem(manifest: Manifest) -> str | None:
    if manifest.format != FORMAT_VERSION:
        return f"format {manifest.format} is unknown, this version writes {FORMAT_VERSION}"
    tables = [table.table for table in manifest.tables]
    paths = [file.path for table in manifest.tables for file in table.files]
    if len(set(tables)) != len(tables) or len(set(paths)) != len(paths):
        return "a table or a data file occurs twice"
    # A replica keeps its own affairs there.
    if own := [table for table in tables if table.schema.lower() in ("wlc", "wlr")]:
        return f"table {own[0]} cannot be part of a snapshot"
    if wrong := [path for path in paths if parse_snapshot_data_path(path) is None]:
        return f"{wrong[0]!r} is not a data file of a snapshot"
    return None


def _json(manifest: Manifest) -> dict[str, Any]:
    return {
        "format": manifest.format,
        "database": manifest.database,
        "position": fields.position_json(manifest.position),
        "clock": format_time(manifest.clock),
        "catalog": manifest.catalog,
        "schema": [fields.ddl_json(ddl) for ddl in manifest.schema],
        "schema_after": [fields.ddl_json(ddl) for ddl in manifest.schema_after],
        "tables": [_table_json(table) for table in manifest.tables],
        "sequences": [fields.sequence_json(sequence) for sequence in manifest.sequences],
        "vector": fields.vector_json(manifest.vector),
        "digests": fields.digests_json(manifest.digests),
    }


def _table_json(table: SnapshotTable) -> dict[str, Any]:
    return {
        "table": fields.name_json(table.table),
        "layout": fields.layout_json(table.layout),
        "files": [fields.data_file_json(file) for file in table.files],
    }


def _manifest(content: dict[str, Any], path: str) -> Manifest:
    fields.as_format(content["format"], FORMAT_VERSION)
    return Manifest(
        database=check_database_name(fields.as_text(content["database"])),
        position=fields.as_position(content["position"]),
        clock=fields.as_time(content["clock"]),
        catalog=fields.as_text(content["catalog"]),
        schema=tuple(fields.as_ddl(ddl) for ddl in fields.as_list(content["schema"])),
        schema_after=tuple(fields.as_ddl(ddl) for ddl in fields.as_list(content["schema_after"])),
        tables=tuple(_table(table, path) for table in fields.as_list(content["tables"])),
        sequences=tuple(fields.as_sequence(sequence) for sequence in fields.as_list(content["sequences"])),
        vector=fields.as_vector(content["vector"]),
        digests=fields.as_digests(content.get("digests")),
    )


def _table(value: object, path: str) -> SnapshotTable:
    content = fields.as_object(value)
    files = tuple(fields.as_data_file(file, path) for file in fields.as_list(content["files"]))
    return SnapshotTable(fields.as_name(content["table"]), fields.as_layout(content["layout"]), files)
