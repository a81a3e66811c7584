"""How a store is found, who may do what in it, and what is said when it cannot be used, through the commands."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import duckdb
import pytest

import wlc
import wlr
from tests.fault.processes import call_command
from tests.oracle import file_contents
from tests.proxy import proxy_to
from tests.users import User, Users
from wlc.farm.errors import FarmError

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Mapping

    from tests.proxy import Proxy

ROOT = Path(__file__).parents[2]
CLOSED = "http://127.0.0.1:9"
KEYS = {"AWS_ACCESS_KEY_ID": "from-environment", "AWS_SECRET_ACCESS_KEY": "hush"}


class Run(Protocol):
    def __call__(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a command that knows no variables but the given ones."""

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        with pytest.MonkeyPatch.context() as patched:
            for name in [name for name in os.environ if name.startswith(("AWS_", "WLC_", "DBFARM_"))]:
                patched.delenv(name)
            for name, value in {"HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true", **variables}.items():
                patched.setenv(name, value)
            patched.chdir(tmp_path)
            return call_command(*arguments)

    return run


@pytest.fixture
def proxy(s3_environment: str) -> Iterator[Proxy]:
    with proxy_to(s3_environment) as running:
        yield running


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "sales.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE t AS SELECT range AS i FROM range(10)")
    return path


def signed_by(proxy: Proxy) -> set[tuple[str, str]]:
    """Access key and region of every request that the server got."""
    found = [re.search(r"Credential=([^/]+)/\d+/([^/]+)/s3/", signature) for signature in proxy.signatures]
    return {(match[1], match[2]) for match in found if match}


@pytest.mark.parametrize(
    ("variables", "said", "hint"),
    [
        ({"AWS_ENDPOINT_URL": "127.0.0.1:9000"}, "the URL of the store's endpoint is invalid", "Give AWS_ENDPOINT_URL"),
        ({"AWS_PROFILE": "nobody"}, "there is no such profile", "Check AWS_PROFILE"),
    ],
)
def test_a_mistyped_variable_is_named(variables: dict[str, str], said: str, hint: str, run: Run) -> None:
    told = run("wlc", "list", "s3://bucket/farm", **KEYS | variables)
    assert told.returncode == 2
    assert re.search(f"error: .*{said}\nhint: {hint}", told.stderr), told.stderr


@pytest.mark.slow
def test_the_usual_variables(source: Path, tmp_path: Path, proxy: Proxy, s3_url: str, run: Run) -> None:
    wlc.master(source, farm=s3_url)
    (tmp_path / "credentials").write_text("[reports]\naws_access_key_id = of-profile\naws_secret_access_key = hush\n")
    (tmp_path / "config").write_text(f"[profile reports]\nregion = eu-south-1\nendpoint_url = {proxy.url}\n")
    files = {"AWS_SHARED_CREDENTIALS_FILE": "credentials", "AWS_CONFIG_FILE": "config"}
    here = {"AWS_ENDPOINT_URL": proxy.url}
    region = "--storage-option=client_kwargs.region_name=ap-east-1"
    cases: list[tuple[dict[str, str], list[str], tuple[str, str]]] = [
        (KEYS | here, [], ("from-environment", "us-east-1")),
        (KEYS | {"AWS_ENDPOINT_URL": CLOSED, "AWS_ENDPOINT_URL_S3": proxy.url}, [], ("from-environment", "us-east-1")),
        (files | {"AWS_PROFILE": "reports"}, [], ("of-profile", "eu-south-1")),
        (files, ["--storage-option", "profile=reports"], ("of-profile", "eu-south-1")),
        (KEYS | here | {"AWS_DEFAULT_REGION": "eu-west-3"}, [], ("from-environment", "eu-west-3")),
        (
            KEYS | here | {"AWS_DEFAULT_REGION": "eu-west-3", "AWS_REGION": "eu-west-2"},
            [],
            ("from-environment", "eu-west-2"),
        ),
        (
            KEYS | {"AWS_ENDPOINT_URL": CLOSED, "AWS_REGION": "eu-west-2"},
            [region, f"--storage-option=endpoint_url={proxy.url}", "--storage-option=key=given"]
            + ["--storage-option=secret=hush"],
            ("given", "ap-east-1"),
        ),
    ]
    for variables, options, expected in cases:
        proxy.signatures.clear()
        done = run("wlc", "tick", f"{s3_url}/sales", *options, **variables)
        assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", ""), (variables, options)
        assert signed_by(proxy) == {expected}, (variables, options)


@pytest.mark.slow
def test_a_server_that_ignores_preconditions_leaves_nothing(
    source: Path, proxy: Proxy, s3_url: str, run: Run, s3_server: str
) -> None:
    before, users = source.read_bytes(), Users(s3_server)
    proxy.stripped = frozenset({"if-none-match", "if-match"})
    variables = KEYS | {"AWS_ENDPOINT_URL": proxy.url}
    done = run("wlc", "master", str(source), "--farm", s3_url, **variables)
    assert (done.returncode, done.stdout) == (8, "")
    assert f"error: {s3_url}/sales cannot hold a farm or a replica: it overwrites an object" in done.stderr
    assert "hint: Use a store that honours If-None-Match and If-Match" in done.stderr
    assert users.objects(s3_url.split("/")[2]) == {}
    assert source.read_bytes() == before
    proxy.stripped = frozenset()
    assert run("wlc", "master", str(source), "--farm", s3_url, **variables).returncode == 0


REDIRECT = b"<Error><Code>PermanentRedirect</Code><Message>elsewhere</Message></Error>"
MALFORMED = b"<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-1</Region></Error>"


@pytest.mark.slow
@pytest.mark.parametrize(
    "answer",
    [(301, {"x-amz-bucket-region": "eu-west-1"}, REDIRECT), (400, {}, MALFORMED)],
    ids=["redirect", "malformed"],
)
def test_a_bucket_in_another_region(
    source: Path, proxy: Proxy, s3_url: str, run: Run, answer: tuple[int, dict[str, str], bytes]
) -> None:
    before = source.read_bytes()
    proxy.answers = lambda _method, _path: answer
    done = run(
        "wlc", "master", str(source), "--farm", s3_url, **KEYS, AWS_ENDPOINT_URL=proxy.url, AWS_REGION="eu-north-1"
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert f"error: bucket {s3_url.split('/')[2]!r} is in another region, eu-west-1\n" in done.stderr
    assert "hint: export AWS_REGION=eu-west-1 " in done.stderr
    assert source.read_bytes() == before


def is_more_than_adding(method: str, path: str, headers: Mapping[str, str]) -> bool:
    """Say of a request whether the documented policy for a master denies it."""
    name, _, query = path.partition("?")
    if method == "DELETE":
        return True
    completes = method == "POST" and "uploadId=" in query
    creates = (method == "PUT" and "partNumber=" not in query) or completes
    return creates and "if-none-match" not in headers and not name.endswith("/wlc.config")


@pytest.mark.slow
def test_a_master_that_may_only_add(
    source: Path, tmp_path: Path, proxy: Proxy, s3_url: str, s3_server: str, small_parts: None
) -> None:
    proxy.denied = is_more_than_adding
    options = {"endpoint_url": proxy.url, "key": "k", "secret": "s"}
    wlc.master(source, farm=s3_url, storage_options=options)
    with wlc.connect(source, storage_options=options) as connection:
        connection.execute("INSERT INTO t VALUES (10)")
    wlc.beat(source, 5, storage_options=options)
    # Larger than one part of an upload.
    with wlc.connect(source, storage_options=options) as connection:
        connection.execute("CREATE TABLE large AS SELECT hash(i) AS a, hash(-i) AS b FROM range(800_000) r(i)")
    assert "POST 200" in proxy.seen
    wlc.snapshot(source, storage_options=options)
    wlc.repair(source, published=replicated(source, s3_url, tmp_path), storage_options=options)
    wlc.stop(source, storage_options=options)
    wlc.master(source, storage_options=options)
    denied = [line.partition("?")[0] for line in proxy.seen if line.endswith("denied")]
    # What `wlc master` tried is all that was denied, and stays.
    assert denied
    assert all("/wlc_probe_" in line for line in denied)
    left = [key for key in Users(s3_server).objects(s3_url.split("/")[2]) if "wlc_probe_" in key]
    assert len(left) == 2
    with pytest.raises(FarmError, match="no permission"):
        wlc.prune(f"{s3_url}/sales", keep_for="0s", storage_options=options)
    assert wlc.status(source, storage_options=options).batches == 3


def replicated(source: Path, s3_url: str, folder: Path) -> Path:
    into = folder / "published.duckdb"
    wlr.replicate(f"{s3_url}/sales", into=into, register=False)
    return into


def test_the_documented_policy_is_json() -> None:
    text = (ROOT / "docs" / "object_stores.md").read_text(encoding="utf-8")
    (policy,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    statements = {statement["Sid"]: statement for statement in json.loads(policy)["Statement"]}
    assert set(statements) == {"List", "Read", "Add", "AddLarge", "FollowConfig"}
    assert statements["Add"]["Condition"]["Null"] == {"s3:if-none-match": "false"}
    actions = {statement["Action"] for statement in statements.values()}
    assert actions == {"s3:ListBucket", "s3:GetObject", "s3:PutObject"}


def documented_rights() -> dict[str, list[str]]:
    text = (ROOT / "docs" / "object_stores.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| ([^|]*s3:[^|]*) \| ([^|]*s3:[^|]*) \|$", text, re.MULTILINE)
    return {who.replace("`", ""): re.findall(r"`(s3:\w+)`", objects + bucket) for who, objects, bucket in rows}


@pytest.fixture
def users(s3_server: str) -> Users:
    return Users(s3_server)


@pytest.fixture
def people(users: Users, s3_url: str) -> Iterator[dict[str, User]]:
    """A user with each of the documented sets of rights, on a server that looks at them."""
    made = {who: users.user("documented", actions) for who, actions in documented_rights().items()}
    with users.enforced():
        yield made


@pytest.mark.slow
def test_the_documented_rights_are_enough(source: Path, tmp_path: Path, s3_url: str, people: dict[str, User]) -> None:
    def may(who: str) -> dict[str, str]:
        return people[who].options

    assert set(people) == {"master", "replica", "replica with --no-register", "wlc prune"}
    reader, replica = tmp_path / "reader.duckdb", tmp_path / "replica.duckdb"
    wlc.master(source, farm=s3_url, storage_options=may("master"))
    with wlc.connect(source, storage_options=may("master")) as connection:
        connection.execute("INSERT INTO t VALUES (10)")
    silent = may("replica with --no-register")
    assert wlr.replicate(f"{s3_url}/sales", into=reader, register=False, storage_options=silent).tick == 1
    assert wlr.replicate(source, into=replica, storage_options=may("replica")).tick == 1
    with pytest.raises(FarmError, match="no permission"):
        wlr.replicate(into=reader, storage_options=silent)
    with pytest.raises(FarmError, match="no permission"):
        wlc.snapshot(source, storage_options=may("replica with --no-register"))
    with wlc.connect(source, storage_options=may("master")) as connection:
        connection.execute("INSERT INTO t VALUES (11)")
    wlc.snapshot(source, storage_options=may("master"))
    for into, who in ((reader, "replica with --no-register"), (replica, "replica")):
        is_known = who == "replica"
        assert wlr.replicate(into=into, register=is_known, storage_options=may(who)).tick == 2
    pruned = wlc.prune(f"{s3_url}/sales", keep_for="0s", storage_options=may("wlc prune"))
    assert pruned.delete_batches == (1,)
    assert wlc.status(source, storage_options=may("master")).tick == 2
    wlc.stop(source, storage_options=may("master"))
    assert file_contents(reader) == file_contents(replica) == file_contents(source)
