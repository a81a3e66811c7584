"""Allow lists of functions that statements from the farm may call on a DuckDB replica.

The name decides, not its present meaning: a macro can hide a function of the engine and be dropped again once a view
has passed the check. So a name of the engine is allowed only if it is on a list here, in any schema and even if a macro
has the name. Any other name must be a macro of the database.

Schema statements that may run on a DuckDB replica, checked with DuckDB's own tokenizer and parser.

Masters run the same checks before they record a statement, so that no replica stops at it.

An attacker with write access to the farm can write any text. A statement that runs while the replica is confined cannot
reach files. But a view, a macro or a default runs later, for a reader whose connection is not confined, and some
functions affect the machine without opening a file. So the bodies of views and macros and all calls are checked, and
every other query is refused.
"""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, Any

from wlc.dialect.duckdb import engine
from wlc.dialect.duckdb.lexer import path_at, tokens
from wlc.farm.errors import FarmError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import duckdb

    from wlc.dialect.duckdb.lexer import Token


# Table functions that neither open files nor change anything.
TABLE_FUNCTIONS = frozenset(
    "range generate_series unnest repeat repeat_row json_each json_tree test_all_types icu_calendar_names"
    " pg_timezone_names pragma_table_info pragma_version duckdb_columns duckdb_constraints duckdb_databases"
    " duckdb_functions duckdb_indexes duckdb_keywords duckdb_schemas duckdb_sequences duckdb_tables duckdb_triggers"
    " duckdb_types duckdb_views".split()
)
# Functions that compute. Functions that read settings, wait, write, run text as SQL, or are internal to DuckDB are
# missing.
FUNCTIONS = frozenset(
    """
    abs acos acosh add age aggregate ago alias any_value apply approx_count_distinct approx_quantile approx_top_k
    arbitrary arg_max arg_max_null arg_max_nulls_last arg_min arg_min_null arg_min_nulls_last argmax argmin array_agg
    array_aggr array_aggregate array_append array_apply array_cat array_concat array_contains array_cosine_distance
    array_cosine_similarity array_cross_product array_distance array_distinct array_dot_product array_extract
    array_filter array_grade_up array_has array_has_all array_has_any array_indexof array_inner_product
    array_intersect array_length array_negative_dot_product array_negative_inner_product array_pop_back
    array_pop_front array_position array_prepend array_push_back array_push_front array_reduce array_resize
    array_reverse array_reverse_sort array_select array_slice array_sort array_to_json array_to_string
    array_to_string_comma_default array_transform array_unique array_value array_where array_zip ascii asin asinh
    assert_true atan atan2 atanh avg bar base64 bin binom bit_and bit_count bit_length bit_or bit_position bit_xor
    bitstring bitstring_agg bitstring_byte_comparable bool_and bool_or can_cast_implicitly cardinality cast_to_type
    cbrt ceil ceiling century char_length character_length chr col_description concat concat_ws constant_or_null
    contains corr cos cosh cot count count_if count_star countif covar_pop covar_samp cume_dist current_catalog
    current_database current_date current_localtime current_localtimestamp current_role current_schema current_schemas
    current_user currval damerau_levenshtein date_add date_diff date_part date_sub date_trunc datediff datepart
    datesub datetrunc day dayname dayofmonth dayofweek dayofyear days_in_month decade decimal_average decimal_division
    decode degrees dense_rank divide editdist3 element_at encode ends_with entropy enum_code enum_first enum_last
    enum_range enum_range_boundary epoch epoch_ms epoch_ns epoch_us equi_width_bins era error even exp factorial favg
    fdiv fill filter first first_value flatten floor fmod format format_bytes format_pg_type format_type
    formatreadabledecimalsize formatreadablesize from_base64 from_binary from_hex from_json from_json_strict fsum
    gamma gcd gen_random_uuid generate_series generate_subscripts geomean geometric_mean get_bit get_current_time
    get_current_timestamp get_type grade_up greatest greatest_common_divisor group_concat hamming
    has_any_column_privilege has_column_privilege has_database_privilege has_foreign_data_wrapper_privilege
    has_function_privilege has_language_privilege has_schema_privilege has_sequence_privilege has_server_privilege
    has_table_privilege has_tablespace_privilege hash hex histogram histogram_exact hour if ilike_escape instr
    isfinite isinf isnan isodow isoyear jaccard jaro_similarity jaro_winkler_similarity json json_array
    json_array_length json_contains json_copy_strftime_if_date json_copy_strftime_if_timestamp json_deep_merge
    json_exists json_extract json_extract_path json_extract_path_text json_extract_string json_group_array
    json_group_object json_group_structure json_insert json_keys json_merge_patch json_merge_patch_diff json_normalize
    json_object json_pretty json_quote json_remove json_replace json_set json_strip_nulls json_structure
    json_transform json_transform_strict json_type json_valid json_value julian kahan_sum kurtosis kurtosis_pop lag
    last last_day last_value lcase lcm lead least least_common_multiple left left_grapheme len length length_grapheme
    levenshtein lgamma like_escape list list_aggr list_aggregate list_any_value list_append list_apply
    list_approx_count_distinct list_avg list_bit_and list_bit_or list_bit_xor list_bool_and list_bool_or list_cat
    list_concat list_contains list_cosine_distance list_cosine_similarity list_count list_distance list_distinct
    list_dot_product list_element list_entropy list_extract list_filter list_first list_grade_up list_has list_has_all
    list_has_any list_histogram list_indexof list_inner_product list_intersect list_kurtosis list_kurtosis_pop
    list_last list_mad list_max list_median list_min list_mode list_negative_dot_product list_negative_inner_product
    list_pack list_position list_prepend list_product list_reduce list_resize list_reverse list_reverse_sort
    list_select list_sem list_skewness list_slice list_sort list_stddev_pop list_stddev_samp list_string_agg list_sum
    list_transform list_unique list_value list_var_pop list_var_samp list_where list_zip listagg ln log log10 log2
    lower lpad ltrim lttb mad make_date make_time make_timestamp make_timestamp_ms make_timestamp_ns make_timestamptz
    make_type map map_concat map_contains map_contains_entry map_contains_value map_entries map_extract
    map_extract_value map_from_entries map_keys map_to_pg_oid map_values max max_by md5 md5_number mean median
    microsecond millennium millisecond min min_by minute mismatches mod mode month monthname multiply nanosecond
    nextafter nextval nfc_normalize normalized_interval not_ilike_escape not_like_escape now nth_value ntile nullif
    obj_description octet_length ord overlay parse_dirname parse_dirpath parse_filename parse_formatted_bytes
    parse_path path_join percent_rank pg_collation_is_visible pg_conversion_is_visible pg_function_is_visible
    pg_get_constraintdef pg_get_expr pg_get_viewdef pg_has_role pg_is_other_temp_schema pg_my_temp_schema
    pg_opclass_is_visible pg_operator_is_visible pg_opfamily_is_visible pg_size_pretty pg_table_is_visible
    pg_ts_config_is_visible pg_ts_dict_is_visible pg_ts_parser_is_visible pg_ts_template_is_visible pg_type_is_visible
    pg_typeof pi position pow power prefix printf product quantile quantile_cont quantile_disc quarter radians random
    range rank rank_dense reduce regexp_escape regexp_extract regexp_extract_all regexp_full_match regexp_matches
    regexp_replace regexp_split_to_array regexp_split_to_table regr_avgx regr_avgy regr_count regr_intercept regr_r2
    regr_slope regr_sxx regr_sxy regr_syy repeat replace replace_type reservoir_quantile reverse right right_grapheme
    round round_even roundbankers row row_number row_to_json rpad rtrim second sem session_user set_bit sha1 sha256
    shobj_description sign signbit sin sinh skewness split split_part sqrt st_asbinary st_asgeojson st_astext st_aswkb
    st_aswkt st_crs st_geomfromgeojson st_geomfromwkb st_intersects_extent st_setcrs starts_with stddev stddev_pop
    stddev_samp str_split str_split_regex strftime string_agg string_split string_split_regex string_to_array
    strip_accents strlen strpos strptime struct_concat struct_contains struct_extract struct_extract_at struct_has
    struct_indexof struct_insert struct_keys struct_pack struct_position struct_update struct_values substr substring
    substring_grapheme subtract suffix sum sum_no_overflow sumkahan switch tan tanh time_bucket timetz_byte_comparable
    timezone timezone_hour timezone_minute to_base to_base64 to_binary to_centuries to_days to_decades to_hex to_hours
    to_json to_microseconds to_millennia to_milliseconds to_minutes to_months to_quarters to_seconds to_timestamp
    to_weeks to_years today transaction_timestamp translate trim trunc try_strptime typeof ucase unbin unhex unicode
    unlist unnest union_extract union_tag union_value unpivot_list upper url_decode url_encode user uuid
    uuid_extract_timestamp uuid_extract_version uuidv4 uuidv7 var_pop var_samp variance variant_array_length
    variant_comparator variant_contains variant_exists variant_extract variant_extract_string variant_group_array
    variant_group_object variant_keys variant_normalize variant_type variant_typeof version vertex_extract wavg week
    weekday weekofyear weighted_avg xor year yearweek
    """.split()
)
# Functions that dbfarm's own SQL calls, also through syntax: brackets, LIKE, EXTRACT, count(*). This SQL runs on
# connections of masters and replicas, where a macro hides the engine's function of the same name.
CALLED = frozenset(
    """
    abs any_value arg_max arg_min array_agg array_extract array_slice array_to_string base64 bool_or chr concat
    concat_ws constant_or_null contains count count_star current_database current_schemas current_setting date_diff
    date_part duckdb_columns duckdb_constraints duckdb_databases duckdb_extensions duckdb_functions duckdb_indexes
    duckdb_schemas duckdb_sequences duckdb_settings duckdb_tables duckdb_triggers duckdb_types duckdb_views element_at
    encode enum_code epoch_ns epoch_us error filter first generate_series get_current_timestamp getvariable greatest
    hash hex if ilike_escape isfinite isnan json_extract_string json_object json_serialize_plan json_serialize_sql lag
    last lead least left len length like_escape list list_apply list_concat list_contains list_filter list_sort
    list_transform list_value lower map map_entries map_from_entries max md5_number min nextval not_ilike_escape
    not_like_escape now octet_length overlay parquet_file_metadata parquet_metadata parquet_schema parse_formatted_bytes
    position pragma_table_info range read_blob read_json read_parquet read_text regexp_full_match regexp_matches replace
    right row row_number setval sha256 sign signbit starts_with strftime strlen struct_extract struct_extract_at
    struct_pack substr substring sum timezone to_days to_hours to_json to_microseconds to_milliseconds to_minutes
    to_months to_seconds to_years trim txid_current typeof unhex union_extract union_tag unnest uuid
    variant_bytes_to_variant variant_to_parquet_variant xor
    """.split()
)
_COLLATION = re.compile(r"(icu_)?(collate|sort)_\w+")
# Views of the engine over functions that are not allowed.
SYSTEM_VIEWS = frozenset({"duckdb_logs", "pg_prepared_statements", "pg_settings"})
# An extension that the reader or DuckDB itself loads adds functions that are unknown here. A macro must not have the
# name of such a function: once the macro is dropped, a call of it would become a call of the extension's function.
_LIKE_TABLE_FUNCTIONS = re.compile(
    r"read|scan|query|glob|attach|http|load|exec|install|copy|write|sniff|open|file|secret|logging|substrait|sqlsmith"
    r"|fuzz|dbgen|dsdgen|(start|stop|notify)_ui"
    r"|^(st|pg|parquet|duckdb|ducklake|iceberg|delta|postgres|mysql|mssql|odbc|sqlite|avro|pragma|shell)_",
    re.IGNORECASE,
)
_LIKE_FUNCTIONS = re.compile(
    r"^(read|write|load|open|exec|query|scan)_|_(read|write|exec|query|scan)$|getenv|secret|http|curl|shell|substrait",
    re.IGNORECASE,
)


def hides_called(name: str) -> bool:
    """Say whether a macro of this name would hide a function, or an operator, that dbfarm's own SQL needs."""
    return name.lower() in CALLED or not re.search(r"\w", name)


def refused_call(connection: duckdb.DuckDBPyConnection, catalog: str, name: str, *, in_from: bool) -> str | None:
    """Say why a call is refused; None if it is allowed.

    Args:
        connection: A connection with the macros that the call may mean.
        catalog: Name of the database.
        name: Name of the function, without its schema.
        in_from: The call stands in the place of a table.
    """
    name = name.lower()
    if is_allowed(name, in_from=in_from):
        return None
    if not is_the_engines(name, in_from=in_from) and name in _macros(connection, catalog, in_from):
        return None
    return f"function {name} is not the farm's to call"


def is_allowed(name: str, *, in_from: bool) -> bool:
    """Say whether a lower-case name is on the list."""
    if in_from:
        return name in TABLE_FUNCTIONS
    return name in FUNCTIONS or not re.search(r"\w", name) or _COLLATION.fullmatch(name) is not None


def is_the_engines(name: str, *, in_from: bool) -> bool:
    """Say whether a lower-case name is, or could be, a function of the engine or an extension."""
    like = _LIKE_TABLE_FUNCTIONS if in_from else _LIKE_FUNCTIONS
    return like.search(name) is not None or name in internal(in_from=in_from)


def internal(*, in_from: bool) -> frozenset[str]:
    """Return the lower-case names of the engine's own functions."""
    return engine.names(*(engine.IN_FROM if in_from else engine.IN_EXPRESSIONS))


def _macros(connection: duckdb.DuckDBPyConnection, catalog: str, in_from: bool) -> frozenset[str]:
    query = (
        "SELECT lower(function_name) FROM duckdb_functions()"
        " WHERE database_name = ? AND NOT internal AND function_type = ?"
    )
    rows = connection.execute(query, [catalog, "table_macro" if in_from else "macro"]).fetchall()
    return frozenset(name for (name,) in rows)


OWN = frozenset({"wlc", "wlr"})
# Prefix of the triggers that make a replica's tables read-only.
GUARD = "wlr_guard_"
_KIND = re.compile(
    r"CREATE( OR REPLACE)?( PERSISTENT)?"
    r" (SCHEMA|TABLE|(SECURE )?(RECURSIVE )?VIEW|MACRO|FUNCTION|SEQUENCE|TYPE|(UNIQUE )?INDEX)\b"
    r"|ALTER (TABLE|VIEW|SEQUENCE|SCHEMA|INDEX|TYPE)\b"
    r"|DROP (SCHEMA|TABLE|VIEW|SEQUENCE|TYPE|INDEX|(MACRO|FUNCTION)( TABLE)?)\b"
    r"|COMMENT ON (SCHEMA|TABLE|VIEW|COLUMN|SEQUENCE|TYPE|INDEX|(MACRO|FUNCTION)( TABLE)?)\b"
)
# Databases that may be attached beside the replica's.
_BESIDE = frozenset({"memory", "temp", "system", "wlr_scratch"})
# The parser of views uses the stack, and every statement memory. DuckDB itself takes a depth of 1,000 expressions.
LENGTH_MAX = 1 << 20
DEPTH_MAX = 200
# DuckDB expands a generated column wherever another one names it, for every statement that inserts rows. This is the
# limit of names and numbers in a table's generated columns after expansion.
GENERATED_MAX = 4096
# Names that DuckDB, or an extension that it autoloads, interprets as a file or an address if no such table exists.
_FILE = re.compile(
    r"[/\\*?\[]|:|\.(csv|tsv|txt|parquet|json|jsonl|ndjson|geojson|xlsx?|db|ddb|duckdb|sqlite3?|arrow|arrows|feather|ipc"
    r"|avro|orc|gpkg|shp|fgb|kml|gpx|dbf|osm|pbf|vortex|lance|log|ya?ml|html?|xml)(\.(gz|zst|zstd|bz2|xz))?$",
    re.IGNORECASE,
)


_MAY_HIDE = re.compile(r"\b(MACRO|FUNCTION|TYPE)\b", re.IGNORECASE)


class StatementError(Exception):
    """Replicas refuse the statement; the text gives the reason."""


class OutsideStatementError(StatementError):
    """A view or macro reads something outside the database."""


def refuse_oversized(statement: str) -> None:
    """Refuse a statement whose parsing could exhaust memory or stack; must be called before any parser sees it.

    Raises:
        StatementError: It is too long, or nested too deeply.
    """
    if len(statement) > LENGTH_MAX:
        raise StatementError(f"the statement has {len(statement)} characters, at most {LENGTH_MAX} are run")
    depth = max((token.depth for token in tokens(statement)), default=0)
    if depth > DEPTH_MAX:
        raise StatementError(f"brackets are nested {depth} deep, at most {DEPTH_MAX}: {short(statement)}")


@contextmanager
def understanding(statement: str) -> Iterator[None]:
    """Turn an internal error about a statement from the farm into an error of the statement.

    An attacker with write access to the farm can write any text. A text that makes this code fail must not stop the
    replica for good: a recorded failure names the transaction, which the owner can accept.

    Raises:
        StatementError: The body failed.
    """
    try:
        yield
    except (
        RecursionError,
        NotImplementedError,
        MemoryError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
    ) as error:
        if isinstance(error, FarmError):
            raise
        cause = "nested too deeply" if isinstance(error, RecursionError) else f"{type(error).__name__}: {error}"
        raise StatementError(f"the statement cannot be understood ({cause}): {short(statement)}") from error


def refuse_hostile(connection: duckdb.DuckDBPyConnection, catalog: str, statement: str) -> None:
    """Refuse statements that no schema change needs; the caller has checked that it is one statement, and its type.

    Args:
        connection: A connection with the functions and macros that the statement would call.
        catalog: Name of the database that it changes.
        statement: Its text.

    Raises:
        OutsideStatementError: It makes a view that reads something outside the database.
        StatementError: It is of another kind, or changes objects of dbfarm or of another database.
    """
    refuse_hiding(statement)
    listed = tokens(statement)
    found = _KIND.match(" ".join(token.text.upper() for token in listed))
    if not found:
        raise StatementError(f"not a change of the database's schema: {short(statement)}")
    kind, rest = found.group(0), listed[len(found.group(0).split()) :]
    path, rest = _path(rest)
    is_own = path[-1].lower() in OWN and (
        kind.endswith("SCHEMA") or [p.lower() for p in path[:-1]] == [catalog.lower()]
    )
    if _names_own(listed) or is_own:
        raise StatementError(f"schemas wlc and wlr are not the farm's to change: {short(statement)}")
    if _is_beside(path, catalog):
        raise StatementError(f"database {path[0]} is not the farm's to change: {short(statement)}")
    if kind.startswith("CREATE"):
        _refuse_query(kind, rest, statement)
    if kind.startswith("CREATE") and kind.endswith("TABLE"):
        _refuse_multiplied(rest, statement)
    if kind.startswith("CREATE") and kind.endswith("VIEW"):
        _check_body(connection, catalog, _body(rest, statement), statement)
    else:
        _refuse_calls(kind, rest, statement)


def refuse_hiding(statement: str) -> None:
    """Refuse a macro or type whose name hides a function that dbfarm's own SQL calls; must be called before it runs.

    Otherwise digests, checks of statements and the capture itself would call the macro.

    Raises:
        StatementError: It creates one, temporary or not, in any database.
    """
    if not _MAY_HIDE.search(statement):
        return
    listed = tokens(statement)
    for at, token in enumerate(listed):
        if token.depth or token.word not in ("MACRO", "FUNCTION", "TYPE") or not at:
            continue
        if listed[at - 1].word not in ("CREATE", "REPLACE", "TEMP", "TEMPORARY", "PERSISTENT"):
            continue
        name = _path(listed[at + 1 :])[0][-1]
        if name.lower() == "json" if token.word == "TYPE" else hides_called(name):
            raise StatementError(f"{token.word.lower()} {name} would hide DuckDB's own, which dbfarm itself uses")


def refuse_hostile_macro(connection: duckdb.DuckDBPyConnection, catalog: str, statement: str) -> None:
    """Refuse a macro that was just created and not yet called if it reads something outside the database.

    Raises:
        OutsideStatementError: It does.
    """
    for body in _macro_bodies(connection, catalog, statement):
        _check_body(connection, catalog, body, statement)


def relations_read(connection: duckdb.DuckDBPyConnection, catalog: str, statement: str) -> list[tuple[str, ...]]:
    """Names of all relations that a just created view or macro reads, as it spells them."""
    listed = tokens(statement)
    kind = _KIND.match(" ".join(token.text.upper() for token in listed))
    bodies = _macro_bodies(connection, catalog, statement)
    if kind and re.match(r"CREATE.* VIEW$", kind.group(0)):
        _, rest = _path(listed[len(kind.group(0).split()) :])
        bodies.append(_body(rest, statement))
    trees = (_parsed(connection, body, statement) for body in bodies)
    nodes = (node for tree in trees for node, _ in _nodes(tree) if node.get("type") == "BASE_TABLE")
    return [tuple(_named(node)) for node in nodes]


def _macro_bodies(connection: duckdb.DuckDBPyConnection, catalog: str, statement: str) -> list[str]:
    """The queries of a macro that a statement has created; none for other statements."""
    words = tokens(statement)
    kind = _KIND.match(" ".join(token.text.upper() for token in words))
    if not kind or not re.match(r"CREATE.* (MACRO|FUNCTION)$", kind.group(0)):
        return []
    path, _ = _path(words[len(kind.group(0).split()) :])
    rows = connection.execute(
        "SELECT function_type, macro_definition FROM duckdb_functions() WHERE database_name = ? AND NOT internal"
        " AND lower(function_name) = lower(?)",
        [catalog, path[-1]],
    ).fetchall()
    return [definition if made == "table_macro" else f"SELECT ({definition})" for made, definition in rows]


def short(statement: str) -> str:
    """A statement in one line that fits into a message."""
    text = " ".join(statement.split())
    return text if len(text) <= 100 else text[:97] + "..."


# Names ---------------------------------------------------------------------------------------------------------------


def _names_own(listed: list[Token]) -> bool:
    pairs = pairwise(token for token in listed if token.word not in ("IF", "EXISTS", "NOT"))
    return any(
        (one.name.lower() in OWN and other.text == ".") or (one.word == "SCHEMA" and other.name.lower() in OWN)
        for one, other in pairs
    )


def _path(listed: list[Token]) -> tuple[list[str], list[Token]]:
    """Return the name of the object that a statement changes, and the tokens behind it."""
    at = 0
    while at < len(listed) and listed[at].text.upper() in ("IF", "NOT", "EXISTS", "CONCURRENTLY"):
        at += 1
    parts, at = path_at(listed, at)
    return parts or [""], listed[at:]


def _is_beside(path: list[str], catalog: str) -> bool:
    first = path[0].lower()
    return len(path) > 1 and first in _BESIDE and first != catalog.lower()


# Queries -------------------------------------------------------------------------------------------------------------


def _refuse_query(kind: str, rest: list[Token], statement: str) -> None:
    """Refuse a table or a type filled by a query: a master records the rows instead."""
    words = [token.text.upper() for token in rest[:3]]
    is_query = any(token.word == "AS" and token.depth == 0 for token in rest)
    is_filled = kind.endswith("TABLE") and (words[:1] != ["("] or is_query)
    if kind.endswith("TYPE") and words == ["AS", "ENUM", "("]:
        labels = takewhile(lambda token: token.text != ")", rest[3:])
        is_filled = any(not token.is_string and token.text != "," for token in labels)
    if is_filled:
        raise StatementError(f"a schema change reads no rows: {short(statement)}")


def _refuse_multiplied(rest: list[Token], statement: str) -> None:
    """Refuse generated columns whose expansion would make inserts too slow."""
    expressions: dict[str, list[str]] = {}
    for column in _columns(rest):
        places = [place for place, token in enumerate(column) if token.depth == 1 and token.word == "AS"]
        if places:
            parts = (token.name.lower() for token in column[places[0] + 1 :])
            expressions[column[0].name.lower()] = [part for part in parts if re.match(r"\w", part)]
    sizes: dict[str, int] = {}

    def size(name: str) -> int:
        # DuckDB refuses a cycle; it counts as one name here.
        sizes.setdefault(name, 1)
        if name in expressions:
            sizes[name] = min(sum(sizes.get(part) or size(part) for part in expressions[name]), GENERATED_MAX + 1)
        return sizes[name]

    if sum(map(size, expressions)) > GENERATED_MAX:
        raise StatementError(f"its generated columns name each other too often: {short(statement)}")


def _columns(rest: list[Token]) -> Iterator[list[Token]]:
    """Yield the tokens of each column, or constraint, in the brackets of CREATE TABLE."""
    column: list[Token] = []
    for token in rest:
        if token.depth == 1 and token.text == ",":
            yield column
            column = []
        elif token.depth:
            column.append(token)
    if column:
        yield column


def _refuse_calls(kind: str, rest: list[Token], statement: str) -> None:
    """Refuse calls in defaults, checks, generated columns, keys of indexes, USING, and defaults of parameters.

    A name before a bracket is a call, a type, a table or a list of columns. Only names of the engine's own functions
    matter; the engine itself refuses unknown names.
    """
    is_macro = kind.endswith(("MACRO", "FUNCTION"))
    before = ""
    for one, after in pairwise(rest):
        name = one.name.lower()
        is_table = before in ("REFERENCES", "ON")
        if one.text != "." and after.text != ".":
            before = one.word
        if after.text != "(" or one.is_string or is_table or is_allowed(name, in_from=False):
            continue
        is_call = name in internal(in_from=False) if is_macro else is_the_engines(name, in_from=False)
        if is_call or (is_macro and name in internal(in_from=True) and not is_allowed(name, in_from=True)):
            raise StatementError(f"function {name} is not the farm's to call: {short(statement)}")


def _body(rest: list[Token], statement: str) -> str:
    """The query of a view: the text after the first AS outside brackets."""
    for token in rest:
        if token.depth == 0 and token.word == "AS":
            return statement[token.end :]
    raise StatementError(f"a view without a query: {short(statement)}")


def _check_body(connection: duckdb.DuckDBPyConnection, catalog: str, body: str, statement: str) -> None:
    for problem in _problems(connection, catalog, _parsed(connection, body, statement)):
        raise OutsideStatementError(f"{problem}: {short(statement)}")


def _parsed(connection: duckdb.DuckDBPyConnection, body: str, statement: str) -> Any:
    for query in (body, f"SELECT * FROM ({body.rstrip().rstrip(';')}\n)"):
        found = json.loads(connection.execute("SELECT json_serialize_sql($1)", [query]).fetchall()[0][0])
        if not found["error"] and len(found["statements"]) == 1:
            return found["statements"][0]
    raise OutsideStatementError(f"not one query: {short(statement)}")


def _problems(connection: duckdb.DuckDBPyConnection, catalog: str, tree: Any) -> Iterator[str]:
    for node, in_from in _nodes(tree):
        kind = str(node.get("type", ""))
        if kind.endswith("_QUERY_NODE"):
            yield "it writes"
        elif kind == "BASE_TABLE" or (kind == "SHOW_REF" and node["query"] is None):
            # For SHOW of a table this is its name, for SHOW VARIABLES and the like a word in quotes.
            path = [part.strip('"') for part in _named(node)]
            is_outside = _FILE.search(".".join(path)) or path[-1].lower() in SYSTEM_VIEWS or _is_beside(path, catalog)
            is_outside = is_outside or (kind == "SHOW_REF" and path == ["variables"])
            # A view with deferred binding was not bound: a reader may attach the database later.
            is_outside = is_outside or (len(path) > 2 and path[0].lower() != catalog.lower())
            if is_outside or OWN.intersection(part.lower() for part in path[:-1]):
                yield f"{'.'.join(path)} lies outside the database"
        elif "function_name" in node:
            problem = refused_call(connection, catalog, str(node["function_name"]), in_from=in_from)
            if problem:
                yield problem


def _named(node: dict[str, Any]) -> list[str]:
    """The name of a table in a parse tree; an older `storage_compatibility_version` writes its parts separately."""
    if "qualified_name" in node:
        return [str(part) for part in node["qualified_name"]["path"]]
    parts = (str(node.get(part, "")) for part in ("catalog_name", "schema_name", "table_name"))
    return [part for part in parts if part]


def _nodes(tree: Any) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yield every node, and whether it is a call of a table function."""
    pending = [(tree, False)]
    while pending:
        found, in_from = pending.pop()
        if isinstance(found, dict):
            yield found, in_from
            is_from = found.get("type") == "TABLE_FUNCTION"
            pending.extend((value, is_from and key == "function") for key, value in found.items())
        elif isinstance(found, list):
            pending.extend((value, False) for value in found)
