"""Manifests: what a snapshot holds, as one JSON document closed by a checksum."""

from __future__ import annotations

from typing import Any

from wlc.farm import json_fields as fields
from wlc.farm.clock import format_time
from wlc.farm.ddl_fields import as_ddl, ddl_json
from wlc.farm.documents import decode_document, encode_document
from wlc.farm.errors import CorruptError, InvalidError
from wlc.farm.model import FORMAT_VERSION, Manifest, SnapshotTable
from wlc.farm.paths import check_database_name, parse_snapshot_data_path


def encode_manifest(manifest: Manifest) -> bytes:
    """Write a manifest as the bytes of its file.

    Raises:
        InvalidError: The manifest contradicts itself, so that no reader would take it.
    """
    if problem := _problem(manifest):
        raise InvalidError(f"snapshot of {manifest.database} at {manifest.position} cannot be published: {problem}")
    try:
        return encode_document("manifest", _json(manifest))
    except UnicodeEncodeError as error:
        raise InvalidError(f"snapshot of {manifest.database} holds text that is not Unicode: {error}") from error


def decode_manifest(data: bytes, path: str) -> Manifest:
    """Read and check a manifest.

    Args:
        data: The file's bytes.
        path: Where it is, for messages.

    Raises:
        CorruptError: It is damaged, truncated or of an unknown version; do not load the snapshot.
    """

    def read(content: dict[str, Any]) -> Manifest:
        manifest = _manifest(content, path)
        if problem := _problem(manifest):
            raise CorruptError(problem)
        return manifest

    return decode_document("manifest", data, path, read, may_be_signed=True)


def _problem(manifest: Manifest) -> str | None:
    if manifest.format != FORMAT_VERSION:
        return f"format {manifest.format} is unknown, this version writes {FORMAT_VERSION}"
    tables = [table.table for table in manifest.tables]
    paths = [file.path for table in manifest.tables for file in table.files]
    if len(set(tables)) != len(tables) or len(set(paths)) != len(paths):
        return "a table or a data file occurs twice"
    # Replicas keep their own tables there.
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
        "schema": [ddl_json(ddl) for ddl in manifest.schema],
        "schema_after": [ddl_json(ddl) for ddl in manifest.schema_after],
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
    needed = "database position clock catalog schema schema_after tables sequences vector"
    fields.known_format(content, needed, "digests info")
    return Manifest(
        database=check_database_name(fields.as_text(content["database"])),
        position=fields.as_position(content["position"]),
        clock=fields.as_time(content["clock"]),
        catalog=fields.as_text(content["catalog"]),
        schema=tuple(as_ddl(ddl) for ddl in fields.as_list(content["schema"])),
        schema_after=tuple(as_ddl(ddl) for ddl in fields.as_list(content["schema_after"])),
        tables=tuple(_table(table, path) for table in fields.as_list(content["tables"])),
        sequences=tuple(fields.as_sequence(sequence) for sequence in fields.as_list(content["sequences"])),
        vector=fields.as_vector(content["vector"]),
        digests=fields.as_digests(content.get("digests")),
    )


def _table(value: object, path: str) -> SnapshotTable:
    content = fields.as_object(value)
    fields.known(content, "table layout files")
    for file in fields.as_list(content["files"]):
        fields.known(fields.as_object(file), "path rows bytes sha256")
    files = tuple(fields.as_data_file(file, path) for file in fields.as_list(content["files"]))
    return SnapshotTable(fields.as_name(content["table"]), fields.as_layout(content["layout"]), files)
