"""Every document, every key of it: what is missing, of another type, out of range or there twice is refused by name."""

from __future__ import annotations

import copy
import functools
import importlib
import json
import operator
import re
from dataclasses import dataclass, is_dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import pytest

import wlc
import wlr
from wlc.farm import log
from wlc.farm.documents import Document
from wlc.farm.errors import CorruptError
from wlc.farm.health import Proof, Sign
from wlc.farm.json_fields import Int64, JsonForm, Presence
from wlc.farm.json_records import record_of
from wlc.farm.log import decode_batch, encode_batch
from wlc.farm.model import (
    AlteredObject,
    Batch,
    Change,
    Check,
    Clear,
    Column,
    CreatedObject,
    DataFile,
    DbObject,
    Ddl,
    Digest,
    DroppedObject,
    Handover,
    Layout,
    Manifest,
    Name,
    Origin,
    Position,
    Reference,
    RenamedObject,
    RowsRead,
    RowsRefreshed,
    SequencePosition,
    SnapshotTable,
    TableFile,
    Taken,
    Transaction,
    Unique,
)
from wlc.farm.registry import Transition
from wlc.farm.seal.checksum import DOCUMENT_END, LINES_END, with_checksum
from wlc.farm.vectors import Heir
from wlc.masters import master_state as master_state
from wlc.masters.master_state import Fence, MasterState
from wlc.multi_master import circle_place as circle_place
from wlc.multi_master.circle import Circle, CircleSite, FormerTerm, PastHistory, Rule, SiteHistory
from wlc.multi_master.circle_place import SiteState
from wlc.tiers.attachment import Attachment, Penalty
from wlr.engine.parquet.folder import LakeTable
from wlr.engine.parquet.open_tables import LevelLog
from wlr.engine.replica_state import ReplicaState
from wlr.replay.derivation.settings import chosen_tables
from wlr.replay.fold.files import FilePart
from wlr.replay.fold.tally import Uncompared
from wlr.replay.plan.common_position import Contained
from wlr.replay.plan.failure import Failure
from wlr.replay.plan.row_filters import Mask, RowFilters, TableFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NOW = datetime(2026, 11, 20, 10, 0, 0, 1, UTC)
SHA = "0123456789abcdef" * 4
TABLE, OTHER = Name("main", "t"), Name("main", "u")
POSITION = Position("h1", 9, 2, SHA)
LAYOUT = Layout((Column("id", "INTEGER", nullable=False, default="1"), Column("g", "INTEGER", generated="id")), ("id",))
STEPS = ((None, "a"), ("b", "c"))
RULES = (Unique(("a",)), Check(("a",), "a > 0"), Reference(("b",), OTHER, ("k",)))
EFFECTS = (
    CreatedObject(DbObject("TABLE", TABLE), True, None, (), STEPS, RULES, (OTHER,), ("a",)),
    CreatedObject(DbObject("INDEX", OTHER), of=TABLE, unique=("a", None)),
    DroppedObject(DbObject("FUNCTION", OTHER, ("integer",))),
    RenamedObject(DbObject("TRIGGER", OTHER), TABLE, of=TABLE),
    AlteredObject(DbObject("TABLE", TABLE), None, STEPS, ("a",), RULES, (OTHER,)),
    AlteredObject(DbObject("TYPE", TABLE), values=STEPS),
)
DDL = Ddl(
    "ALTER TABLE",
    TABLE,
    "ALTER TABLE …",
    ("main",),
    "postgres",
    LAYOUT,
    "…",
    Digest(3, 7),
    (("TimeZone", "UTC"),),
    EFFECTS,
)
# What it says is walked in a log file.
PLAIN_DDL = Ddl("CREATE INDEX", OTHER, "CREATE INDEX …")
TAKEN = Taken("rome", "h0", 3, 1, SHA, SHA)
DIGESTS = {TABLE: Digest(3, 7)}
SEQUENCES = (SequencePosition(OTHER, 4),)
TRANSITIONS = (Transition("active", "holds a position", "ann@host", NOW),)
ATTACHMENT = Attachment("hq", ("a",), "prod", "r", "a", 2, NOW, (Penalty("b", 3, NOW),), ("hq",))
FILTERS = RowFilters((TableFilter(TABLE, "a > 1", ("a", "b"), (Mask("b", "constant", "x"),)),), "key", "mark")
CONTAINED = Contained(9, {"h1": 9}, 8, (TAKEN,))
HELD = {TABLE: Digest(3, 7), OTHER: Uncompared.LOST}
STATE = ReplicaState(
    "id", "farm", "shop", ("main.*",), left_out={"view v": "no"}, attachment=ATTACHMENT, filters=FILTERS,
    accepted=frozenset({4}), failure=Failure(8, "main.t", "id = 1", "why", NOW, "in the way", "drop it"),
)  # fmt: skip
CIRCLE = Circle(
    "shop",
    3,
    "oslo",
    "mesh",
    "oslo",
    (CircleSite("oslo", ".", "primary", (SiteHistory("h1", Origin("h0", 3)),), NOW, "prod"),),
    (Rule(TABLE, "newest", add=("n",)), Rule(OTHER, "max", column="n")),
    (PastHistory("h7", Origin("h1", 2), Heir(Origin("h1", 5), 6)),),
    (FormerTerm("rome", "sites/rome", "h9", 3, 4, True),),
)

# A document of each kind, all of whose keys are there, made of its class.
DOCUMENTS: dict[str, Callable[[Any], Any]] = {
    "attachment": lambda cls: cls(ATTACHMENT),
    "circle": lambda _: CIRCLE,
    "claim": lambda cls: cls("id"),
    "derived": lambda cls: cls("url", "h1", POSITION, SHA, Origin("h0", 3), (3, SHA), chosen_tables(FILTERS, ("main.*",))),
    "feed": lambda cls: cls(
        "id", "farm", "out", ("main.*",), "json", POSITION, 9, NOW, "h1", 3, (4, 5), 6, 7, "a,b", 8, "key", True, 2.5,
        "cluster", "run", {0: 7}, ATTACHMENT,
    ),
    "manifest": lambda cls: cls(
        "shop", POSITION, NOW, "shop", (PLAIN_DDL,), (PLAIN_DDL,), (SnapshotTable(TABLE, LAYOUT, (DataFile("0.parquet", 3, 5, SHA),)),),
        SEQUENCES, {"h1": 9}, DIGESTS,
    ) if cls is Manifest else cls(
        POSITION, 9, NOW, HELD, CONTAINED, NOW, "shop", (PLAIN_DDL,), (PLAIN_DDL,), SEQUENCES,
        (LakeTable(TABLE, LAYOUT, (FilePart(DataFile("data/main.t/9.parquet", 3, 5, SHA), ("1",), ("3",)),)),),
    ),
    "open": lambda cls: cls("manifests/9.json", (LevelLog("data/main.t/", 3, 4, "id", "sum", True),)),
    "health": lambda cls: cls(
        Sign("h1", NOW, "/srv/sales.duckdb", "host", "ann", True, "disk full"), Proof(NOW, 9, "batch 3"), Proof(NOW, 8),
        timedelta(minutes=5), timedelta(hours=1),
    ),
    "pointer": lambda cls: cls("manifests/9.json", SHA, "run", STATE),
    "pruning": lambda cls: cls(9, (3,)),
    "push": lambda cls: cls("id", "url", "edge-*", "prod", "oslo"),
    "replica": lambda cls: cls(
        "id", "/copy", POSITION, NOW, NOW, "host", "ann", "relay", "r", "place", "hq", "prod", "oslo", 2.5, ("main.*",), 9.5,
        NOW, TRANSITIONS,
    ),
    "retention": lambda cls: cls(timedelta(days=30), 7, 8, timedelta(hours=1)),
    "tag": lambda cls: cls("id", 9, NOW, "ann@host"),
    "tiers": lambda cls: cls(fanouts={"r": 3}),
    "upstream": lambda cls: cls("id", "url", "host", "ann", "relay", "prod", 3, 2.5, 4, TRANSITIONS),
    "witness": lambda cls: cls({"url": POSITION}),
}  # fmt: skip
PATH = "shop_000000000002.d/{}.parquet"
BATCH = Batch(
    "shop",
    2,
    "h1",
    5,
    6,
    SHA,
    "shop",
    (
        Transaction(5, "ann", NOW, NOW, (DDL, Change(TABLE, PATH.format(0), 2, 1), *SEQUENCES), Origin("h0", 3, NOW)),
        Transaction(
            6,
            "ann",
            NOW,
            NOW,
            (
                Clear(OTHER, 3),
                RowsRead(TABLE, PATH.format(1), 3, exclusive=True),
                RowsRefreshed(TABLE, PATH.format(2), 3, absent=False, kept=True),
            ),
        ),
    ),
    tuple(TableFile(DataFile(PATH.format(number), 3, 5, SHA), TABLE, LAYOUT) for number in range(3)),
    {"h1": 6, "h0": 3},
    Origin("h0", 3),
    DIGESTS,
    frozenset({OTHER}),
    lsn="0/16B3748",
    term=3,
    own=5,
    handover=Handover("rome", 4),
    taken=(TAKEN,),
)
MASTER = MasterState(
    "farm", "shop", "h1", 1, 1, SHA, NOW, {}, None, 1.0, "logs",
    fence=Fence("another master", "stop it", NOW),
    site=SiteState("oslo", ".", {"h0": 3}, (TAKEN,), (TAKEN,), 3, CIRCLE, 2, {"h0": 1}),
)  # fmt: skip
WHERE = "farm/id.json"


@dataclass(frozen=True)
class Walked:
    """A record in a file.

    Attributes:
        cls: Its class.
        content: Its JSON, all keys of which are there.
        decode: Reads the file in which the record has another text.
        refuses_halves: A text may not hold half of a surrogate pair.
    """

    cls: type
    content: Any
    decode: Callable[[str], object]
    refuses_halves: bool = True


def documents() -> Iterator[tuple[str, Document[Any]]]:
    """All kinds of documents that the product has, by the names of their modules and classes."""
    for package in (wlc, wlr):
        folder = Path(package.__path__[0])
        for file in sorted(folder.rglob("*.py")):
            if re.search(r"^\w+ = Document\(", file.read_text(), re.MULTILINE):
                module = ".".join((package.__name__, *file.relative_to(folder).with_suffix("").parts))
                for found in vars(importlib.import_module(module)).values():
                    if isinstance(found, Document):
                        yield f"{found.kind}: {found.type.__name__}", found


def walked_document(document: Document[Any]) -> Walked:
    start = f'{{"{document.kind}":\n'
    content = json.loads(document.encode(DOCUMENTS[document.kind](document.type)))[document.kind]

    def decode(text: str) -> object:
        return document.decode(with_checksum(f"{start}{text}\n".encode(), DOCUMENT_END), WHERE)

    return Walked(document.type, content, decode)


def walked_line(number: int, cls: type) -> Walked:
    lines = encode_batch(BATCH).decode().split("\n")[:-2]
    ((kind, content),) = json.loads(lines[number]).items()

    def decode(text: str) -> object:
        changed = [*lines[:number], f'{{"{kind}":{text}}}', *lines[number + 1 :], ""]
        return decode_batch(with_checksum("\n".join(changed).encode(), LINES_END), WHERE)

    return Walked(cls, content, decode)


def walked_state(key: str, cls: type) -> Walked:
    values = master_state.encode(MASTER)
    return Walked(
        cls,
        json.loads(values[key]),
        lambda text: master_state.decode({**values, key: text}, WHERE),
        refuses_halves=False,
    )


WALKED = {name: walked_document(document) for name, document in documents()}
LINES = {0: log._Header, 2: Ddl, 3: Change, 4: SequencePosition, 7: Clear, 8: RowsRead, 9: RowsRefreshed, 11: log._End}
WALKED |= {f"line: {cls.__name__}": walked_line(number, cls) for number, cls in LINES.items()}
WALKED |= {"state: Fence": walked_state("fence", Fence), "state: SiteState": walked_state("site", SiteState)}


# Keys whose text or number may not be any one: "", a text of no form or 0 is refused there.
STRICT = {
    "attachment: _Relay": """
        reads.chosen reads.penalties.until
    """,
    "circle: Circle": """
        ddl past.heir.at.history past.heir.last past.history past.parent.history primary reading
        reigns.batch reigns.folder reigns.history reigns.last reigns.site rules.column rules.reads
        rules.rule rules.table sites.folder sites.histories.history sites.histories.parent.history
        sites.joined sites.name sites.role term
    """,
    "health: Health": """
        drilled.time publisher.seen verified.time
    """,
    "manifest: Manifest": """
        clock database digests.sum digests.table position.chain position.history sequences.name
        tables.files.path tables.files.sha256 tables.layout.columns.name tables.layout.primary_key
        tables.table
    """,
    "push: Push": """
        id
    """,
    "replica: Replica": """
        clock id kind position.chain position.history progressed seen transitions.state transitions.time
    """,
    "tag: Tag": """
        made name
    """,
    "tiers: TierSettings": """
        candidates classes
    """,
    "upstream: Upstream": """
        first id transitions.state transitions.time
    """,
    "witness: _Seen": """
        seen.url.chain seen.url.history
    """,
    "derived: Derivation": """
        filters.tables.table history mark parent.history start.chain start.history
    """,
    "pointer: Pointer": """
        accepted attachment.chosen attachment.penalties.until failure.at failure.tick filters.tables.table
        manifest manifest_sha256
    """,
    "manifest: Version": """
        clock contained.proofs.batch contained.proofs.chain contained.proofs.filters
        contained.proofs.history contained.proofs.site contained.proofs.tick digests.sum digests.table
        digests.uncompared made position.chain position.history sequences.name tables.files.path
        tables.files.sha256 tables.layout.columns.name tables.layout.primary_key tables.table
    """,
    "feed: FeedState": """
        attachment.chosen attachment.penalties.until clock position.chain position.history
    """,
    "line: _Header": """
        database first history last number parent.history previous term
    """,
    "line: Ddl": """
        digest.sum does.constraints.to does.of does.parents does.to layout.columns.name layout.primary_key
    """,
    "line: Change": """
        added path removed table
    """,
    "line: SequencePosition": """
        name
    """,
    "line: Clear": """
        table
    """,
    "line: RowsRead": """
        path rows table
    """,
    "line: RowsRefreshed": """
        path rows table
    """,
    "line: _End": """
        digests.table files.layout.columns.name files.layout.primary_key files.path files.rows files.sha256
        files.table handover.term handover.to lsn taken.batch taken.chain taken.filters taken.history
        taken.site taken.tick transactions vector.h1
    """,
    "state: Fence": """
        since
    """,
    "state: SiteState": """
        circle proofs.batch proofs.chain proofs.filters proofs.history proofs.site proofs.tick
        published.batch published.chain published.filters published.history published.site published.tick
    """,
}


# Where something can be wrong -----------------------------------------------------------------------------------------


class Place(NamedTuple):
    """A key or an element of a list: how to get there, its declared type, and whether the key must be there."""

    path: tuple[str | int, ...]
    hint: Any
    presence: Presence | None

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of which an error names one: the last one, and where that is data, such as a history, the one before."""
        named = [step for step in self.path if isinstance(step, str)]
        return tuple(named[-1:] if self.presence or not isinstance(self.path[-1], str) else named[-2:])


def places(hint: Any, value: Any, path: tuple[str | int, ...] = ()) -> Iterator[Place]:
    """Every key and element below a value of a type."""
    is_formed = False
    while get_origin(hint) is Annotated:
        is_formed |= any(isinstance(mark, JsonForm) for mark in get_args(hint)[1:])
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, UnionType):
        classes = [each for each in get_args(hint) if each is not NoneType]
        fit = [each for each in classes if len(classes) == 1 or record_of(each).keys[0] in value]
        yield from places(fit[0], value, path)
    elif (
        isinstance(value, dict)
        and isinstance(hint, type)
        and is_dataclass(hint)
        and (not is_formed or value.keys() <= record_of(hint).known)
    ):
        yield from members(hint, value, path)
    elif isinstance(value, dict):
        for key, each in value.items():
            yield Place((*path, key), None, Presence.NEEDED if hint is None else None)
            yield from places(None if is_formed or hint is None else get_args(hint)[1], each, (*path, key))
    elif isinstance(value, list):
        inner = get_args(hint)[0] if get_origin(hint) in (tuple, frozenset) else None
        for number, each in enumerate(value):
            if not isinstance(each, list | dict):
                yield Place((*path, number), inner, None)
            yield from places(inner, each, (*path, number))


def members(cls: Any, value: dict[str, Any], path: tuple[str | int, ...]) -> Iterator[Place]:
    """Every key of a record, and what is below."""
    hints = get_type_hints(cls, include_extras=True)
    left = dict(value)
    for member in record_of(cls).members:
        hint = hints[member.name]
        if member.presence is Presence.INLINE:
            inner = get_args(hint)[0]
            if member.form.keys - {"format"} <= record_of(inner).known:
                yield from members(inner, {key: left.pop(key) for key in member.form.keys}, path)
        elif member.key in left and member.presence is not Presence.ABSENT:
            yield Place((*path, member.key), hint, member.presence)
            yield from places(hint, left.pop(member.key), (*path, member.key))
    yield from places(None, left, path)


# What can be wrong there ----------------------------------------------------------------------------------------------


def changed(content: Any, place: Place, value: Any) -> str:
    """The content with another value at a place; "twice" for what is there already, "gone" for nothing."""
    made = copy.deepcopy(content)
    holder = made
    for step in place.path[:-1]:
        holder = holder[step]
    last = place.path[-1]
    if value is GONE:
        del holder[last]
    elif value is TWICE:
        items = [(key, each) for key, each in holder.items()]
        holder.clear()
        holder |= {f"{TWICE}{last}": holder_value for key, holder_value in items if key == last} | dict(items)
    else:
        holder[last] = value
    return json.dumps(made).replace(TWICE, "")


GONE, TWICE = "gone", "TWICE-"


def faults(place: Place, value: Any, *, refuses_halves: bool) -> Iterator[tuple[str, Any]]:
    """What can be wrong at a place, and the value that is."""
    yield "type", "x" if isinstance(value, int | float) and not isinstance(value, bool) else 7
    if isinstance(value, int) and not isinstance(value, bool):
        yield "too great", 2**63
        if place.hint is not Int64:
            yield "negative", -1
    if isinstance(value, float):
        yield "negative", -0.5
    if isinstance(value, str) and refuses_halves:
        yield "half a character", "\ud800"
    if isinstance(place.path[-1], str):
        yield "twice", TWICE
        if place.presence is Presence.NEEDED:
            yield "missing", GONE


def is_read(walked: Walked, text: str) -> bool:
    """Say whether a text is read; any other error than of a damaged file is one of ours."""
    try:
        walked.decode(text)
    except CorruptError:
        return False
    return True


def refused(walked: Walked, text: str, keys: tuple[str, ...]) -> bool:
    """Say whether a text is refused by an error that names the document and one of the keys."""
    try:
        walked.decode(text)
    except CorruptError as error:
        return WHERE in error.message and any(re.search(rf"\b{re.escape(key)}\b", error.message) for key in keys)
    return False


def test_every_kind_of_document_is_walked() -> None:
    assert {document.kind for _, document in documents()} == DOCUMENTS.keys()


@pytest.mark.parametrize("name", WALKED)
def test_every_fault_of_every_key_is_refused_by_name(name: str) -> None:
    walked = WALKED[name]
    walked.decode(json.dumps(walked.content))
    # Of the same key of several records in a list, one.
    found = {tuple(s for s in place.path if isinstance(s, str)): place for place in places(walked.cls, walked.content)}
    assert {path[0] for path in found} == walked.content.keys()
    missed: list[object] = []
    strict = set()
    for path, place in found.items():
        value = functools.reduce(operator.getitem, place.path, walked.content)
        missed += [
            (place.path, fault)
            for fault, wrong in faults(place, value, refuses_halves=walked.refuses_halves)
            if not refused(walked, changed(walked.content, place, wrong), place.keys)
        ]
        loose = ("", "?\n?") if isinstance(value, str) else (0,) if type(value) is int else ()
        if not all(is_read(walked, changed(walked.content, place, other)) for other in loose):
            strict.add(".".join(path))
        if place.presence in (Presence.OMITTED, Presence.LATER):
            is_read(walked, changed(walked.content, place, GONE))
    assert missed == []
    assert strict - {"format"} == set(STRICT.get(name, "").split())


@pytest.mark.parametrize("name", WALKED)
def test_what_readers_ignore_is_called_info(name: str) -> None:
    walked = WALKED[name]
    text = json.dumps(walked.content | {"info": {"of": "a version to come"}})
    if getattr(walked.cls, "may_have_info", False):
        walked.decode(text)
    else:
        assert refused(walked, text, ("info",))


@pytest.mark.parametrize("name", WALKED)
def test_an_unknown_key_is_refused_in_every_object(name: str) -> None:
    walked = WALKED[name]
    found = [place.path[:-1] for place in places(walked.cls, walked.content) if place.presence is not None]
    objects = {tuple(s for s in path if isinstance(s, str)): path for path in found}
    assert () in objects
    grants = {path: changed(walked.content, Place((*path, "grant"), None, None), 1) for path in objects.values()}
    assert [path for path, text in grants.items() if not refused(walked, text, ("grant",))] == []


def test_a_table_is_there_once_in_what_a_lake_holds() -> None:
    walked = WALKED["manifest: Version"]
    twice = json.dumps(walked.content | {"digests": walked.content["digests"] * 2})
    assert refused(walked, twice, ("table",))
