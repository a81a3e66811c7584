"""Whatever may hold a secret (options, variables, URLs, files) is given to every kind of command, and is found nowhere."""

from __future__ import annotations

import base64
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import cli.wlc
import cli.wlr
from cli.command import PLACES, run_app
from tests.commands import commands
from tests.scenario.test_s3_secrets import texts_in
from wlc.farm.seal.keys import new_key
from wlc.farm.store.options import FILES, KNOWN

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

CANARY = "C4n4ry"
# Every other option of a store counts as a secret: who adds one has to decide.
HARMLESS = frozenset(
    """
    account_name anon asynchronous cache_regions client_kwargs config_kwargs default_block_size default_cache_type
    default_fill_cache endpoint_url event_hooks fixed_upload_size include_builtin_handlers listings_expiry_time loader
    local_expiry_check loop max_concurrency max_paths profile requester_pays s3_additional_kwargs session session_vars
    use_listings_cache use_ssl version_aware
    """.split()
)
VARIABLES = """
    AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN AZURE_STORAGE_ACCOUNT_KEY AZURE_STORAGE_CONNECTION_STRING
    AZURE_STORAGE_SAS_TOKEN PGPASSWORD KAFKA_PASSWORD
""".split()
# What works, with all secrets given; `KEYS` are those of the farm and of its file system, `MASK` hashes with a key.
GOOD = """
    wlc master sales.duckdb --create KEYS
    wlc sql sales.duckdb "CREATE TABLE users (id INTEGER PRIMARY KEY, email VARCHAR); INSERT INTO users VALUES (1, 'a')" KEYS
    wlr replicate sales --into copy.duckdb KEYS
    wlr replicate sales --into masked.duckdb MASK KEYS --json
    wlr replicate sales --into lake/ --open delta KEYS
    wlr feed sales --to users.jsonl KEYS
    wlc tier ship sales --to branch KEYS TARGET
    wlc farm derive sales --as eu MASK KEYS DERIVED
    wlc farm tag sales before KEYS
    wlc retention sales --keep 30d KEYS
    wlc snapshot sales --from-log KEYS
    wlc farm verify sales --full KEYS
    wlr verify copy.duckdb KEYS
    wlr replica drill sales KEYS
    wlr rows diff sales --tick 1:2 KEYS
    wlr rows changes sales --table users KEYS
    wlc log sales KEYS
    wlc prune sales KEYS
    wlc farm report sales --out report.html KEYS
    wlc list farm KEYS --json
    wlc doctor sales KEYS --json
    wlc tier show sales KEYS --json
    wlc farm replicas sales KEYS --json
    wlc status sales.duckdb KEYS --json
    wlr status copy.duckdb KEYS --json
    wlr status users.jsonl KEYS --json
    wlc undo sales.duckdb --tick 2 --dry-run KEYS
"""
# What fails before a network is needed, and with which exit code.
BAD = f"""
    2 wlc tick s3://key:{CANARY}@bucket/farm/sales
    2 wlc tick az://account:{CANARY}@box/farm/sales
    2 wlc tick az://box/farm/sales?sig={CANARY}
    2 wlc tick gs://bucket/farm/sales?token={CANARY}
    2 wlc tick sftp://ann:{CANARY}@host/farm/sales
    2 wlc tick sftp://ann:{CANARY}/x@host/farm/sales
    2 wlc list az://account:{CANARY}@box/farm
    2 wlc tier ship sales --to gs://account:{CANARY}@bucket/farm KEYS
    2 wlr replicate sales --into az://account:{CANARY}@box/lake/ KEYS
    2 wlr replicate sales --into other.duckdb --upstream sftp://ann:{CANARY}@host/farm/sales KEYS
    2 wlr feed sales --to kafka://ann:{CANARY}@host/topic KEYS
    2 wlr feed sales --to kafka://127.0.0.1:1/topic --output-option sasl.pasword={CANARY} KEYS
    2 wlc tick az://box/farm/sales --storage-option connection_string={CANARY}
    2 wlc tick gs://bucket/farm/sales --storage-option credentials_file=secret.txt
    2 wlc tick sftp://ann@127.0.0.1:1/farm/sales --storage-option client_keys=secret.txt
    2 wlc tick sales --storage-option pasword={CANARY}
    2 wlc tick sales --storage-option {CANARY}
    2 wlc farm verify sales --storage-option encryption_key=encryption:0123456789abcdef:{CANARY}
    2 wlc farm verify sales --storage-option encryption_key_file=secret.txt
    75 wlc master postgresql://ann:{CANARY}@127.0.0.1:1/shop
    75 wlr replicate sales --into postgresql://ann:{CANARY}@127.0.0.1:1/copy KEYS
    2 wlr serve secret.toml
"""
SETTINGS = """
[farms.main]
url = "farm"
storage_options = { {option} = "C4n4ry" }
[databases.sales]
"""


def test_no_secret_is_found_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WLC_FARM", str(tmp_path / "farm"))
    monkeypatch.setenv("DBFARM_CACHE", str(tmp_path / "cache"))
    for name in VARIABLES:
        monkeypatch.setenv(name, CANARY)
    kept = tmp_path.with_name(f"{tmp_path.name}-kept")
    kept.mkdir()
    (kept / "mask.key").write_text(CANARY * 9)
    (kept / "secret.txt").write_text(CANARY)
    encrypting, other, signing = new_key("encryption"), new_key("encryption"), new_key("signing")
    secret_options = sorted(KNOWN - FILES - HARMLESS)
    given = [f"{name}={CANARY}" for name in secret_options]
    given += [f"client_kwargs.{name}={CANARY}" for name in secret_options]
    keys = [*given, f"encryption_key={encrypting.word}", f"signing_key={signing.word}"]
    stands_for = {
        "KEYS": [word for each in keys for word in ("--storage-option", each)],
        "TARGET": [word for each in given for word in ("--target-option", each)],
        "DERIVED": ["--target-option", f"encryption_key={other.word}"],
        "MASK": ["--mask", "users: email = hash", "--mask-key", str(kept / "mask.key")],
    }

    def type_in(line: str, code: int) -> str:
        program, *words = (word for each in shlex.split(line) for word in stands_for.get(each, [each]))
        words = [word.replace("=secret.txt", f"={kept}/secret.txt") for word in words]
        app = {"wlc": cli.wlc.app, "wlr": cli.wlr.app}[program]
        found = run_app(app, program, [*words, *(["--verbose"] if words[0] != "serve" else [])])
        out, err = capsys.readouterr()
        assert found == code, f"{line}\n{err}"
        return out + err

    places = {line: type_in(line, 0) for line in GOOD.strip().splitlines()}
    for option in secret_options:
        (tmp_path / "secret.toml").write_text(SETTINGS.replace("{option}", option))
        places[option] = type_in("wlr serve secret.toml", 2)
    for line in BAD.strip().splitlines():
        code, _, command = line.strip().partition(" ")
        places[line] = type_in(command, int(code))
    (tmp_path / "secret.toml").unlink()
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        places[str(path)] = texts_in(path) if path.suffix == ".duckdb" else path.read_bytes().decode("latin-1")
    assert {"sales.duckdb", "masked.duckdb", "report.html", "wlc.config"} <= {Path(place).name for place in places}
    for secret in (CANARY, *(base64.b64encode(key.content).decode() for key in (encrypting, other, signing))):
        assert [place for place, text in places.items() if secret in text] == []


TYPED = [
    f"host=127.0.0.1 port=1 password={CANARY} dbname=shop",
    f"dbname=shop user=ann  password = '{CANARY} /x'",
    f"kafka://ann:{CANARY}@host/topic",
    f"jdbc:postgresql://host/shop?user=ann&password={CANARY}",
    f"ann:{CANARY}@host/folder",
]


def commands_with_places() -> list[tuple[str, list[str]]]:
    """Return the command lines in which @ stands for a place, each with the program: every place of every command."""
    lines = []
    for name, found in sorted(commands().items()):
        needed = [each for each in found.params if each.required or each.param_type_name == "argument"]
        for place in (each for each in found.params if each.metavar in PLACES):
            program, *words = name.split()
            for each in needed if place in needed else [*needed, place]:
                option = [] if each.param_type_name == "argument" else [each.opts[0]]
                words += [*option, "@" if each is place else OTHERS.get(str(each.metavar), "1")]
            lines.append((program, words))
    return lines


OTHERS = {"SOURCE": "sales.duckdb", "DB": "sales", "MASTER": "sales", "TARGET": "copy.duckdb", "OUTPUT": "users.jsonl"}


def test_no_command_repeats_what_is_typed_for_a_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class AtOnce:
        def __init__(self, _: float, start: Callable[[], None]) -> None:
            self.start = start

        def cancel(self) -> None:
            pass

    monkeypatch.setattr("cli.progress.threading.Timer", AtOnce)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WLC_FARM", str(tmp_path / "farm"))
    monkeypatch.setenv("DBFARM_CACHE", str(tmp_path / "cache"))
    assert run_app(cli.wlc.app, "wlc", ["master", "sales.duckdb", "--create"]) == 0
    assert run_app(cli.wlr.app, "wlr", ["replicate", "sales", "--into", "copy.duckdb"]) == 0
    lines = commands_with_places()
    assert len(lines) > 80
    repeated, defects, accepted = [], [], []
    for typed in TYPED:
        for program, words in lines:
            app = {"wlc": cli.wlc.app, "wlr": cli.wlr.app}[program]
            code = run_app(app, program, [typed if word == "@" else word for word in words])
            said = "".join(capsys.readouterr())
            case = (program, *words, typed, said)
            repeated += [case] if CANARY in said else []
            defects += [case] if code == 70 else []
            accepted += [case] if code == 0 and "://" not in typed else []
    assert (repeated, defects, accepted) == ([], [], [])
    for path in tmp_path.rglob("*"):
        assert CANARY not in str(path)
        assert not path.is_file() or CANARY.encode() not in path.read_bytes(), path
