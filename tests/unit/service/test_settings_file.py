"""`dbfarm.toml`: what it can say, and how a wrong line is named."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest

from wlc.farm.config import encode_config, first_config
from wlc.farm.errors import InvalidError
from wlc.farm.seal.keys import add_key
from wlr.service.settings_file import OPTIONS, SECTIONS, line_of, lines_of, read_settings
from wlr.service.systemd_unit import unit_text
from wlr.service.wildcards import expanded, without_patterns

GOOD = """\
[farms.main]
url = "s3://bucket/farm"
encryption_key_file = "farm.key"

[farms.main.storage_options]
client_kwargs = { region_name = "eu-west-1" }

[farms.branch]
url = "/srv/branch"

[databases.sales]
farm = "main"
keep = "30d"
drill_every = "7d"

[replicas.copy]
farm = "main"
database = "sales"
into = "copy.duckdb"
tables = [
  "main.a", # "url = 1"
  "main.b",
]
class = "prod"

[feeds.orders]
farm = "main"
database = "sales"
to = "kafka://localhost:9092/orders"
from = "snapshot"
max_bytes = "1M"

[relays.branch]
farm = "main"
database = "sales"
to = "branch"
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "dbfarm.toml"
    file.write_text(text, encoding="utf-8")
    if not (folder / "farm.key").exists():
        add_key(folder / "farm.key", "encryption")
    return file


def refused(folder: Path, text: str) -> str:
    with pytest.raises(InvalidError) as caught:
        read_settings(written(folder, text))
    return caught.value.message.replace(f"{folder}/", "")


def test_a_file_is_read_with_paths_beside_it(tmp_path: Path) -> None:
    settings = read_settings(written(tmp_path, GOOD))
    assert list(settings.items) == ["databases.sales", "replicas.copy", "feeds.orders", "relays.branch"]
    assert settings.farms["main"].options == {
        "client_kwargs": {"region_name": "eu-west-1"},
        "encryption_key_file": f"{tmp_path}/farm.key",
    }
    copy = settings.items["replicas.copy"]
    assert (copy.into, copy.options) == (
        f"{tmp_path}/copy.duckdb",
        {"tables": ("main.a", "main.b"), "class_name": "prod"},
    )
    assert settings.items["databases.sales"].keep == timedelta(days=30)
    assert dict(settings.items["feeds.orders"].options)["max_bytes"] == 1_000_000
    assert settings == read_settings(written(tmp_path, GOOD))


@pytest.mark.parametrize(
    "old, new, said",
    [
        ("into =", "int =", "dbfarm.toml, line 19: replicas.copy.int: there is no such key; did you mean into?"),
        ("[databases.sales]", "[database.sales]", "line 11: database: there is no such section; did you mean databases?"),
        ('keep = "30d"', 'keep = "30 dogs"', "line 13: databases.sales.keep: '30 dogs' is not a length of time"),
        ('keep = "30d"', "keep = 30", "line 13: databases.sales.keep: must be a length of time"),
        ('drill_every = "7d"', 'drill_every = "0s"', "line 14: databases.sales.drill_every: must be a second or more"),
        ('drill_every = "7d"', "keep_daily = -1", "line 14: databases.sales.keep_daily: must be a whole number"),
        ('keep = "30d"', "keep_daily = 3", "line 13: databases.sales.keep_daily: needs keep"),
        ('into = "copy.duckdb"\n', "", "line 16: replicas.copy: lacks the key into"),
        ('farm = "main"\ndatabase', 'farm = "mane"\ndatabase', "line 17: replicas.copy.farm: there is no farm 'mane'"),
        ('farm = "main"\ndatabase', "database", "line 16: replicas.copy: must name its farm"),
        ('"main.b",', "7,", "line 20: replicas.copy.tables: must be a list of texts"),
        ("[relays.branch]", '[relays."a b"]', "line 33: relays.a b: is no name"),
        ('region_name = "eu-west-1"', 'aws_secret_access_key = "S3cr3t"', "client_kwargs holds a secret"),
        ('client_kwargs = {', 'clientkwargs = {', "line 5: farms.main.storage_options: there is no storage option"),
        ('"/srv/branch"', '"postgresql://u:S3cr3t@h/d"', "line 9: farms.branch.url: has a password in its URL"),
        ('"/srv/branch"', '"host=h password=S3cr3t"', "line 9: farms.branch.url: is a connection string or a login"),
        ('url = "/srv/branch"', "url = /srv", "is not TOML: Invalid value (at line 9"),
        ('to = "branch"', 'to = "kafka://localhost:9092/orders"', "line 36: relays.branch.to: cannot use a store with"),
    ],
)  # fmt: skip
def test_a_wrong_line_is_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in GOOD
    message = refused(tmp_path, GOOD.replace(old, new, 1))
    assert said in message
    assert "S3cr3t" not in message


REPLICA = '[replicas.copy]\ndatabase = "sales"\ninto = "copy.duckdb"\n'
LAKE = REPLICA.replace("copy.duckdb", "lake/")
FEED = '[feeds.t]\ndatabase = "sales"\nto = "t.jsonl"\n'
RELAY = '[relays.r]\ndatabase = "sales"\nto = "branch"\n'
DERIVED = '[derived.eu]\ndatabase = "sales"\ntables = "t"\n'
DATABASE = "[databases.sales]\n"


@pytest.mark.parametrize(
    "item, line, said",
    [
        (REPLICA, 'engine = "spork"', "replicas.copy.engine: there is no engine 'spork'"),
        (REPLICA, 'keep = "3d"', "replicas.copy.keep: …copy.duckdb is a DuckDB file: keep is for Parquet"),
        (REPLICA, "prune_every = '1d'", "replicas.copy.prune_every: …copy.duckdb is a DuckDB file: prune_every is for"),
        (REPLICA, 'open = "delta"', "replicas.copy.open: …copy.duckdb is a DuckDB file: open is for Parquet"),
        (REPLICA, "access = true", "replicas.copy.access: …copy.duckdb is a DuckDB file: access is for Postg"),
        (REPLICA, "adopt = true\nswap = true", "replicas.copy.swap: does not go with adopt"),
        (REPLICA, 'where = "region"', "replicas.copy.where: --where 'region' names no table"),
        (REPLICA, 'columns = "t:,"', "replicas.copy.columns: --columns 't:,' is invalid"),
        (REPLICA, 'mask = "t: a = huff"', "replicas.copy.mask: --mask 't: a = huff' is invalid"),
        (REPLICA, 'mask = "t: a = hash"', "replicas.copy.mask: a hash needs a key"),
        (REPLICA, 'mask = "t: a = hash"\nmask_key = "m"', "replicas.copy.mask_key: the key …m cannot be read: No such"),
        (LAKE, 'keep = "soon"', "replicas.copy.keep: 'soon' is neither a number of ticks nor an age"),
        (LAKE, 'open = "iceberg"', "replicas.copy.open: tables cannot be open to 'iceberg'"),
        (LAKE, "swap = true", "replicas.copy.swap: …lake is a Parquet replica: swap is for DuckDB files"),
        (FEED, 'format = "xml"', "feeds.t.format: …t.jsonl does not accept xml"),
        (FEED, 'from = "soon"', "feeds.t.from: 'soon' is not a time"),
        (FEED, "transactional = true", "feeds.t.transactional: --transactional is for topics of Kafka"),
        (FEED, 'name = "a/b"', "feeds.t.name: "),
        (FEED, "drop = true\nmax_bytes = 0", "feeds.t.max_bytes: needs"),
        (FEED.replace("t.jsonl", "kafka://h/t"), 'rotate = "1M"', "feeds.t.rotate: --rotate is for files"),
        (FEED.replace("t.jsonl", "ftp://h/t"), "", "feeds.t.to: ftp://h/t is neither a file nor a topic of Kafka"),
        (RELAY, 'limit_rate = "fast"', "relays.r.limit_rate: 'fast' is not a number of bytes per second"),
        (DERIVED, 'where = "region"', "derived.eu.where: --where 'region' names no table"),
        (DATABASE + '[databases.other]\n', 'name = "sales"', "databases.other.name: is the same as that of databases.sales"),
        (DERIVED, 'name = "a/b"', "derived.eu.name: 'a/b' cannot name a database"),
        (DERIVED + DERIVED.replace(".eu", ".us"), 'name = "eu"', "derived.us.name: is the same as that of derived.eu"),
        (DATABASE, 'verify_window = "30d"', "databases.sales.verify_window: needs verify_every"),
        (DATABASE, 'drill_folder = "x"', "databases.sales.drill_folder: needs drill_every"),
        (DATABASE, 'snapshot_every = "0.5s"', "databases.sales.snapshot_every: "),
        (DATABASE, 'beat = "soon"', "databases.sales.beat: 'soon' is not a beat"),
        ("[masters.m]\n", 'source = "sales.duckdb"', "masters.m.source: …sales.duckdb is a DuckDB master"),
        ("[sites.s]\n", 'source = "postgresql://h/x"', "sites.s.source: a postgresql:// database cannot be one of several sites"),
        ('[sites.s]\nsource = "f"\n[sites.t]\n', 'source = "f"', "sites.t.source: is the same as that of sites.s"),
        (REPLICA + 'farm = "main"\n[farms.other]\n', 'url = "ftp://h/x"', "farms.other.url: cannot use a store with scheme 'ftp'"),
        (REPLICA, 'farm = "main"\n[farms.x]\nurl = "f"\nsigning_key_file = "farm.key"', "x.signing_key_file: key file …"),
        (REPLICA, 'farm = "main"\n[farms.x]\nurl = "f"\nverify_key_file = "none"', "none cannot be read: No such file"),
    ],
)  # fmt: skip
def test_a_value_that_nobody_can_use_is_named_before_anything_starts(
    tmp_path: Path, item: str, line: str, said: str
) -> None:
    text = f'[farms.main]\nurl = "farm"\n{item}{line}'.rstrip() + "\n"
    assert re.search(re.escape(said).replace("…", ".*"), refused(tmp_path, text))
    assert f"dbfarm.toml, line {text.count(chr(10))}: " in refused(tmp_path, text)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dbfarm.toml", "farm.key"]


def test_who_shows_a_unit_need_not_be_allowed_to_read_keys(tmp_path: Path) -> None:
    file = written(tmp_path, GOOD)
    (tmp_path / "farm.key").unlink()
    assert read_settings(file, is_run_here=False).farms["main"].encryption_key_file == f"{tmp_path}/farm.key"
    with pytest.raises(InvalidError, match=r"line 3: farms\.main\.encryption_key_file: key file .* cannot be read"):
        read_settings(file)


def test_the_same_place_twice_and_nothing_at_all_are_refused(tmp_path: Path) -> None:
    again = GOOD + '\n[replicas.other]\nfarm = "main"\ndatabase = "sales"\ninto = "copy.duckdb"\n'
    assert "replicas.other.into: is the same as that of replicas.copy" in refused(tmp_path, again)
    assert "names no item" in refused(tmp_path, '[farms.main]\nurl = "farm"\n')
    assert "listen: must be an address" in refused(tmp_path, '[service]\nlisten = "nine"\n')
    with pytest.raises(InvalidError, match="cannot read"):
        read_settings(tmp_path / "none.toml")


def test_lines_of_every_form_of_toml() -> None:
    text = 'a.b = 1\n"c d" = """\n[x]\ne = 2\n"""\n[t."u v"] # t\nf = [\n 1,\n]\ng = { h = 1 }\n'
    lines = lines_of(text)
    assert [lines[path] for path in (("a", "b"), ("c d",), ("t", "u v"), ("t", "u v", "f"))] == [1, 2, 6, 7]
    assert ("x",) not in lines
    assert line_of(lines, ("t", "u v", "g", "h")) == 10
    assert line_of(lines, ("t", "u v", "missing")) == 6


DOCS = (Path(__file__).parents[3] / "docs" / "service.md").read_text(encoding="utf-8")


def test_the_example_of_the_docs_can_be_used(tmp_path: Path) -> None:
    found = re.search(r"```toml\n(.*?)```", DOCS, re.DOTALL)
    assert found
    items = read_settings(written(tmp_path, found[1])).items
    assert list(items) == ["databases.sales", "masters.shop", "replicas.copy"]


def test_every_key_is_documented_and_every_documented_key_exists() -> None:
    for section, (_, readers) in SECTIONS.items():
        keys = {*readers, *OPTIONS.get(section, {})}
        name = "service" if section == "service" else f"{section}.NAME"
        part = re.search(rf"^### \[{re.escape(name)}\]\n(.*?)(?=^##|\Z)", DOCS, re.MULTILINE | re.DOTALL)
        assert part, section
        rows = re.findall(r"^\| (`.*?) \|", part[1], re.MULTILINE)
        assert {key for row in rows for key in re.findall(r"`(\w+)`", row)} == keys, section


def test_a_unit_names_folders_and_escapes_what_systemd_would_read(tmp_path: Path) -> None:
    folder = tmp_path / "50% of $it"
    folder.mkdir()
    file = written(folder, '[farms.main]\nurl = "farm"\n[replicas.copy]\ndatabase = "sales"\ninto = "copy.duckdb"\n')
    text = unit_text("/opt/wlr", file, read_settings(file))
    shown = str(folder).replace("%", "%%")
    assert f'ExecStart=/opt/wlr serve "{shown.replace("$", "$$")}/dbfarm.toml"' in text
    assert f'ReadWritePaths="-{shown}"\nReadWritePaths="-{shown}/farm"' in text
    assert f"User={folder.owner()}\n" in text
    assert "User=other\n" in unit_text("/opt/wlr", file, read_settings(file), "other")
    bucket = written(
        tmp_path, GOOD.replace("/srv/branch", "s3://b/c").replace("copy.duckdb", "/var/lib/dbfarm/c.duckdb")
    )
    assert "DynamicUser=yes\n" in unit_text("/opt/wlr", bucket, read_settings(bucket))
    with pytest.raises(InvalidError, match="cannot be written into a unit"):
        unit_text('/opt/"wlr', file, read_settings(file))


MANY = """\
[farms.main]
url = "farm"
[defaults.databases]
verify_every = "7d"
[databases."*"]
expect_every = "1h"
[databases."sales_*"]
verify_every = "1d"
[databases.web]
[replicas."copy_*"]
database = "s*"
into = "copies/{database}.duckdb"
"""


def farm_of(folder: Path, *names: str) -> None:
    for name in names:
        (folder / "farm" / name).mkdir(parents=True)
        (folder / "farm" / name / "wlc.config").write_bytes(encode_config(first_config(name)))


def test_a_section_stands_for_all_databases_that_no_other_one_names(tmp_path: Path) -> None:
    farm_of(tmp_path, "shop", "web")
    settings = read_settings(written(tmp_path, MANY.replace('[databases."sales_*"]\nverify_every = "1d"\n', "")))
    found = expanded(settings)
    assert {
        key: getattr(item, "into", item.farm).removeprefix(f"{tmp_path}/") for key, item in found.items.items()
    } == {
        "databases.shop": "main",
        "databases.web": "main",
        "replicas.copy_shop": "copies/shop.duckdb",
    }
    shop, web = found.items["databases.shop"], found.items["databases.web"]
    assert (shop.name, shop.expect_every, shop.verify_every) == ("shop", timedelta(hours=1), timedelta(days=7))
    assert (web.expect_every, web.verify_every) == (None, timedelta(days=7))
    farm_of(tmp_path, "stock")
    assert {"databases.stock", "replicas.copy_stock"} <= expanded(settings).items.keys()
    assert list(without_patterns(settings).items) == ["databases.web"]
    assert f'ReadWritePaths="-{tmp_path}/copies"'.replace('"', "") in unit_text("wlr", Path("/x"), settings, "ann")


@pytest.mark.parametrize(
    ("wrong", "right", "message"),
    [
        ('database = "s*"', 'database = "sales"', "line 11: replicas.copy_*.database: needs a star in both"),
        ("copies/{database}.duckdb", "copies/all.duckdb", "line 12: replicas.copy_*.into: must hold {database}"),
        (
            "[defaults.databases]",
            "[defaults.database]",
            "line 3: defaults.database: there is no such key; did you mean",
        ),
        ("verify_every = ", "verify_evry = ", "line 4: defaults.databases.verify_evry: there is no such key"),
        ('verify_every = "7d"', 'verify_every = "7"', "line 4: defaults.databases.verify_every: '7' is not a length"),
        ('expect_every = "1h"', "expect_every = 1", "line 6: databases.*.expect_every: must be a length of time"),
        ("[databases.web]", '[masters."*"]\nsource = "postgresql://h/d"', "masters.*.database: needs a star in both"),
    ],
)
def test_a_wrong_section_of_many_is_named(tmp_path: Path, wrong: str, right: str, message: str) -> None:
    assert f"dbfarm.toml, {message}" in refused(tmp_path, MANY.replace(wrong, right, 1)).replace("line 9: ", "")


def test_a_mistyped_database_is_found_where_farms_are_asked(tmp_path: Path) -> None:
    farm_of(tmp_path, "shop", "web")
    file = written(tmp_path, MANY.replace("databases.web", "databases.webb"))
    read_settings(file)
    with pytest.raises(InvalidError, match=r"line 9: databases\.webb: there is no database 'webb'") as caught:
        read_settings(file, asks_farms=True)
    assert "holds web, shop" in caught.value.message
    read_settings(written(tmp_path, MANY), asks_farms=True)
