"""Settings of DuckDB that change what a schema statement means are known, and are given back after a statement."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import duckdb
import pytest

import wlc
from tests.sampling import sampled
from wlc.dialect.duckdb import engine
from wlc.dialect.duckdb.settings import MEANING, REFUSED, applied, held, is_allowed, of_session, search_path_sql
from wlc.dialect.types import parse
from wlc.dialect.types.column_types import TABLE
from wlc.farm.errors import UnsupportedError

# Settings that leave the meaning of a schema statement alone: they are about resources, files, extensions, results that
# leave the engine, messages, storage, plans, or limits. Rows that a statement reads are captured as rows.
WITHOUT_MEANING = frozenset(
    """
    access_mode allocator_background_threads allocator_bulk_deallocation_flush_threshold allocator_flush_threshold
    allow_community_extensions allow_extension_repositories allow_extensions_metadata_mismatch
    allow_persistent_secrets allow_unredacted_secrets allow_unsigned_extensions allowed_configs allowed_directories
    allowed_paths approximate_join_order_threshold arrow_large_buffer_size arrow_lossless_conversion
    arrow_output_list_view arrow_output_version asof_loop_join_threshold async_threads
    auto_checkpoint_skip_wal_threshold autoinstall_extension_repository autoinstall_known_extensions
    autoload_known_extensions binary_as_string block_allocator_memory cache_local_files catalog_error_max_schemas
    checkpoint_on_detach checkpoint_threshold current_transaction_invalidation_policy custom_extension_repository
    custom_user_agent debug_checkpoint_scan_sleep_ms default_block_size default_secret_storage
    default_transaction_invalidation_policy delim_join_as_cte disable_database_invalidation
    disable_parquet_prefetching disabled_compression_methods disabled_filesystems disabled_log_types
    disabled_optimizers duckdb_api dynamic_or_filter_threshold enable_external_access enable_external_file_cache
    enable_fsst_vectors enable_geoparquet_conversion enable_http_metadata_cache enable_logging
    enable_optimistic_write enable_optimizer enable_profiling enable_progress_bar enable_progress_bar_print
    enabled_log_types errors_as_json experimental_metadata_reuse explain_output extension_directories
    extension_repository_directory external_file_cache_local_max_block_size
    external_file_cache_remote_max_block_size external_file_cache_remote_min_block_size
    external_file_cache_request_sizing external_file_cache_spill external_threads file_search_path
    force_column_metadata_reuse force_compression fsync_mode geometry_minimum_shredding_size home_directory
    http_client_pool_capacity http_proxy http_proxy_password http_proxy_username http_retry_quota_throttled
    http_retry_throttled_wait_ms immediate_transaction_mode
    index_scan_max_count index_scan_percentage initial_column_segment_size late_materialization_max_rows
    lock_configuration log_query_path logging_level logging_mode logging_sink logging_storage max_execution_time
    max_expression_depth max_memory max_streaming_buffer_size max_temp_directory_size max_vacuum_tasks memory_limit
    merge_join_threshold nested_loop_join_threshold operator_memory_limit ordered_aggregate_threshold
    pandas_analyze_sample parquet_can_have_nan parquet_metadata_cache parquet_prefetch_column_gap parquet_use_page_index
    partitioned_write_flush_threshold
    partitioned_write_max_open_files password perfect_ht_threshold pin_threads pivot_filter_threshold pivot_limit
    prefer_range_joins prefetch_all_parquet_files preserve_insertion_order profile_output profiling_coverage
    profiling_output profiling_renderer_settings progress_bar_time python_enable_replacements
    python_scan_all_frames read_ahead_depth redact_http_logs scheduler_process_partial secret_directory
    show_behavior standard_vector_size storage_block_prefetch storage_compatibility_version streaming_buffer_size
    temp_directory temp_file_encryption threads tracked_metrics user username validate_external_file_cache
    variant_minimum_shredding_size wal_autocheckpoint wal_autocheckpoint_entries warnings_as_errors worker_threads
    write_buffer_row_group_count write_buffer_row_group_memory_limit zstd_min_string_length
    """.split()
)
# Those that DuckDB lists on demand only: deprecated ones that do nothing to a statement, and those that test DuckDB.
WITHOUT_MEANING |= frozenset(
    """
    __delta_only_variant_encoding_enabled debug_abort_on_wal_failure debug_asof_iejoin debug_checkpoint_abort
    debug_checkpoint_sleep_ms debug_delta_only_variant_encoding_enabled debug_disable_optimizer
    debug_enable_caching_operators debug_eviction_queue_sleep_micro_seconds debug_file_descriptor_limit
    debug_force_bitpacking_mode debug_force_commit_failure debug_force_commit_revert_failure debug_force_external
    debug_force_fetch_row debug_force_flush_append_failure debug_force_mbedtls_unsafe debug_force_no_cross_product
    debug_force_update_to_del_and_insert debug_force_variant_shredding debug_local_file_system_delay_ms
    debug_order_verification debug_physical_table_scan_execution_strategy debug_skip_checkpoint_on_commit
    debug_verification_mode debug_verification_projection debug_verify_aggregate_state_export debug_verify_blocks
    debug_verify_column_bindings debug_verify_progress debug_verify_progress_ignore debug_verify_serializer
    debug_verify_statement debug_verify_stats debug_verify_vector debug_window_mode enable_caching_operators
    enable_object_cache extension_directory force_bitpacking_mode force_mbedtls_unsafe force_update_to_del_and_insert
    force_variant_shredding legacy_metrics_format produce_arrow_string_view profiling_mode vacuum_rebuild_indexes
    """.split()
)
# The record states the search path, and every object that was dropped.
RECORDED_OTHERWISE = frozenset({"schema", "search_path", "enable_macro_dependencies", "enable_view_dependencies"})
# Another name of default_null_order.
SAME_AS_ANOTHER = frozenset({"null_order"})
# They end the session's work, or need what is not there.
NOT_TRIED = frozenset(
    "enable_external_access lock_configuration warnings_as_errors debug_force_commit_failure"
    " debug_force_commit_revert_failure debug_force_flush_append_failure".split()
)
# Another value than the one in `MEANING`.
OTHER = {
    "Calendar": "japanese",
    "TimeZone": "Asia/Tokyo",
    "default_collation": "nocase",
    "default_null_order": "NULLS_FIRST",
    "default_order": "DESC",
    "dialect_compatibility_mode": "SPARK",
    "json_geometry_format": "geojson",
    "preserve_identifier_case": "lowercase",
    "regex_match_operator_semantics": "full",
    "table_function_identifier_conversion": "ENABLE_IMPLICIT_STRING",
} | {name: {"true": "false", "false": "true"}[value] for name, value in MEANING.items() if value in ("true", "false")}
TABLES = "CREATE TABLE t (i INTEGER, d DOUBLE, s VARCHAR, z TIMESTAMPTZ, l INTEGER[]); INSERT INTO t (i) VALUES (1)"
STATEMENTS = (
    "CREATE VIEW v AS SELECT i / 2 AS Half, d / 0 AS n, s ~ 'a' AS m, s = 'B' AS e, NULL AS u, '1' || s AS \"c\" FROM t",
    "CREATE VIEW w AS SELECT * FROM t ORDER BY s, i DESC",
    "CREATE MACRO m(a) AS a / 2",
    "CREATE MACRO r(a) AS TABLE SELECT a / 2 AS Half ORDER BY 1",
    "ALTER TABLE t ALTER i SET DEFAULT (7 / 2)",
    "ALTER TABLE t ADD COLUMN c DATE DEFAULT (TIMESTAMPTZ '2020-01-01 20:00:00+00')::TIMESTAMP::DATE",
    "CREATE TYPE e AS ENUM ('a', 'b')",
    "CREATE INDEX x ON t ((i / 2))",
)
CATALOG = """
    SELECT view_name, sql FROM duckdb_views() WHERE NOT internal UNION ALL SELECT table_name, sql FROM duckdb_tables()
    UNION ALL SELECT function_name, macro_definition FROM duckdb_functions() WHERE NOT internal
    UNION ALL SELECT index_name, sql FROM duckdb_indexes() UNION ALL SELECT 'row', t::VARCHAR FROM t
    UNION ALL SELECT column_name, data_type FROM duckdb_columns() WHERE NOT internal ORDER BY ALL
"""


def made(settings: tuple[tuple[str, str], ...]) -> object:
    """What the statements make in a session with these settings."""
    with duckdb.connect(config={"threads": "1"}) as connection:
        connection.execute(TABLES)
        connection.execute("SET GLOBAL TimeZone = 'UTC'")
        for name, value in settings:
            connection.execute(f"SET GLOBAL {name} = '{value}'")
        for statement in STATEMENTS:
            connection.execute(statement)
        for name, _ in settings:
            with suppress(duckdb.Error):
                connection.execute(f"RESET GLOBAL {name}")
        connection.execute("SET GLOBAL TimeZone = 'UTC'")
        return connection.execute(CATALOG).fetchall()


def test_every_setting_is_known() -> None:
    with duckdb.connect() as connection:
        present = {
            name for (name,) in connection.execute("SELECT name FROM duckdb_settings(include_all := true)").fetchall()
        }
    listed = [frozenset(MEANING), frozenset(REFUSED), WITHOUT_MEANING, RECORDED_OTHERWISE, SAME_AS_ANOTHER]
    known = frozenset().union(*listed)
    assert not present - known, "settings that nobody has judged"
    assert not known - present, "settings that DuckDB does not have any more"
    assert sum(map(len, listed)) == len(present)


@pytest.mark.slow
def test_switches_without_meaning_change_nothing() -> None:
    expected = made(())
    with duckdb.connect() as connection:
        found = dict(connection.execute("SELECT name, value FROM duckdb_settings(include_all := true)").fetchall())
        switches = {name: {"true": "false", "false": "true"}.get(str(value), "") for name, value in found.items()}
        tried = 0
        names = sorted(name for name in WITHOUT_MEANING - NOT_TRIED if switches[name])
        for name in sampled(names, len(names) // 3):
            try:
                connection.execute(f"SET GLOBAL {name} = '{switches[name]}'")
            except duckdb.Error:
                continue
            assert made(((name, switches[name]),)) == expected, name
            tried += 1
    assert tried > 8


@pytest.mark.parametrize(
    "name, value",
    [
        ("integer_division", "true"),
        ("regex_match_operator_semantics", "full"),
        ("preserve_identifier_case", "lowercase"),
        ("TimeZone", "Asia/Tokyo"),
    ],
)
def test_a_session_s_settings_are_read_and_given_back(name: str, value: str) -> None:
    with duckdb.connect() as connection:
        connection.execute(f"SET TimeZone = 'UTC'; SET {name} = '{value}'")
        settings = of_session(connection)
    assert settings == ((name, value),)
    assert is_allowed(settings)
    assert made(settings) != made(())


def test_every_setting_with_meaning_has_another_value() -> None:
    assert OTHER.keys() == MEANING.keys()


# DuckDB lists some of them on demand only: a session's own value was taken for one that it inherits, and lost.
@pytest.mark.parametrize("scope", ["SESSION", "GLOBAL", None])
@pytest.mark.parametrize("name", sorted(MEANING))
def test_a_session_has_its_settings_as_before_and_inherits_what_it_inherited(name: str, scope: str | None) -> None:
    def value(of: duckdb.DuckDBPyConnection) -> str:
        shown = str(of.execute(f"SELECT CAST(current_setting('{name}') AS VARCHAR)").fetchall()[0][0])
        return {"ASC": "ASCENDING"}.get(shown, shown)

    with duckdb.connect() as connection, connection.cursor() as other:
        connection.execute(f"SET GLOBAL {name} = '{MEANING[name]}'")
        if scope:
            connection.execute(f"SET {scope} {name} = '{OTHER[name]}'")
        before = value(connection), value(other)
        assert before[0] == (OTHER[name] if scope else MEANING[name])
        within = MEANING[name] if scope else OTHER[name]
        with held(connection, {name: within}):
            assert (value(connection), value(other)) == (within, before[1])
        assert (value(connection), value(other)) == before
        assert engine.of_session(connection, [name]) == ({name} if scope == "SESSION" else set())
        connection.execute(f"SET GLOBAL {name} = '{MEANING[name]}'")
        assert value(connection) == (OTHER[name] if scope == "SESSION" else MEANING[name])


def test_a_captured_insert_leaves_the_settings_of_the_session(tmp_path: Path) -> None:
    wlc.master(tmp_path / "s.duckdb", farm="memory://settings", name=tmp_path.name, beat_s=3600, create=True)
    listed = "SELECT value, scope FROM duckdb_settings(include_all := true) WHERE name = ?"
    with wlc.connect(tmp_path / "s.duckdb") as connection:
        connection.execute("CREATE TABLE t (s VARCHAR, n INTEGER, CHECK (n > 0))")
        for name in ("default_collation", "error_on_division_by_zero", "ieee_floating_point_ops"):
            for scope, shown in (("SESSION", "LOCAL"), ("GLOBAL", "GLOBAL")):
                connection.execute(f"SET {scope} {name} = '{OTHER[name]}'")
                connection.execute("INSERT INTO t VALUES ('a', 1)")
                assert connection.execute(listed, [name]).fetchall() == [(OTHER[name], shown)]
                connection.execute(f"RESET {scope} {name}")


def test_settings_are_taken_back_after_a_statement_that_failed() -> None:
    with duckdb.connect() as connection:
        connection.execute("BEGIN")
        with pytest.raises(duckdb.Error), applied(connection, (("integer_division", "true"),)):
            connection.execute("SELECT error('no')").fetchall()
        connection.execute("ROLLBACK")
        assert connection.execute("SELECT 3 / 2").fetchall() == [(1.5,)]


@pytest.mark.parametrize(
    "name, value",
    [
        ("allow_parser_override_extension", "FALLBACK"),
        ("lambda_syntax", "ENABLE_SINGLE_ARROW"),
        ("old_implicit_casting", "true"),
    ],
)
def test_what_lets_text_pass_that_replicas_refuse_is_refused(name: str, value: str) -> None:
    with duckdb.connect() as connection:
        connection.execute(f"SET {name} = '{value}'")
        with pytest.raises(UnsupportedError, match=name) as caught:
            of_session(connection)
        connection.execute(str(caught.value.hint))
        of_session(connection)


@pytest.mark.parametrize("settings", [(("threads", "1"),), (("TimeZone", "x'; DROP TABLE t"),)])
def test_other_settings_of_a_farm_are_refused(settings: tuple[tuple[str, str], ...]) -> None:
    assert not is_allowed(settings)


def test_a_search_path_is_set_as_a_whole() -> None:
    with duckdb.connect() as connection:
        connection.execute('CREATE SCHEMA "a, b"; CREATE SCHEMA c; CREATE SCHEMA "d""e"')
        for path in (["a, b", "c"], ['d"e'], ["main"]):
            connection.execute(search_path_sql("memory", path))
            assert connection.execute("SELECT current_schemas(false)").fetchall() == [(path,)]


def test_the_documented_list_is_this_one() -> None:
    (line,) = [text for text in Path("docs/format.md").read_text().splitlines() if 'id="settings"' in text]
    assert set(re.findall(r"`(\w+)`", line)) - {"settings"} == set(MEANING)


def test_casts_of_constants_that_depend_on_the_session() -> None:
    constants = (
        "2020-06-01 00:00:00",
        "2020-06-01",
        "10:00:00",
        "1.5",
        "true",
        "[2020-06-01]",
        "{a: 2020-06-01}",
        "1e3",
    )
    types = [row.name for row in TABLE if not row.parameters or row.parameters_default or row.name == "VARCHAR"]
    types += ["TIMESTAMPTZ[]", "STRUCT(a TIMESTAMPTZ)", "MAP(VARCHAR, TIMETZ)", "UNION(a TIMESTAMPTZ)"]
    found: dict[str, set[str]] = {}
    for zone in ("UTC", "Asia/Tokyo"):
        with duckdb.connect() as connection:
            connection.execute(f"SET TimeZone = '{zone}'")
            for name in types:
                with suppress(duckdb.Error, UnsupportedError):
                    casts = ", ".join(f"TRY_CAST('{constant}' AS {name})" for constant in constants)
                    connection.execute(f"CREATE OR REPLACE TABLE t AS SELECT unnest([{casts}]) AS v")
                    connection.execute("SET TimeZone = 'UTC'")
                    rows = connection.execute("SELECT v::VARCHAR FROM t").fetchall()
                    connection.execute(f"SET TimeZone = '{zone}'")
                    found.setdefault(name, set()).add(str(rows))
    dependent = {name for name, results in found.items() if len(results) > 1}
    assert {"TIMESTAMP WITH TIME ZONE", "TIME WITH TIME ZONE", "TIMESTAMPTZ[]", "STRUCT(a TIMESTAMPTZ)"} <= dependent
    assert not [name for name in dependent if parse(name).row.casts_alike]
