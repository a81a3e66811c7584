"""The circle of a database with several masters: its sites, their roles, and the rules that decide conflicts.

It is one object of the farm, `circle.json` in the founder's folder, replaced by compare-and-swap. A database without it
has one master. Pure functions from one circle to the next decide which changes are valid.
"""

from __future__ import annotations

import re
import shlex
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, ClassVar

from wlc.farm.documents import Document
from wlc.farm.errors import CorruptError, FarmError, InvalidError
from wlc.farm.json_fields import Filled, History, JsonKey, Omitted, Site, Tick, one_of
from wlc.farm.model import Parent
from wlc.farm.names import Name, TableName
from wlc.farm.paths import CIRCLE, is_folder_of
from wlc.farm.seal.signatures import is_signed_manifest, signed_manifest, verify_manifest
from wlc.farm.vectors import Heir, Lineage
from wlc.farm.versioned import VersionedObject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wlc.farm.database import FarmDatabase


PRIMARY, SECONDARY, NONE, PASS = ROLES = ("primary", "secondary", "none", "pass")
STAR, MESH = READINGS = ("star", "mesh")
EPOCH, EPOCH_TRANS, OWNER, NEWEST, ADD = ("epoch", "epoch_trans", "owner", "newest", "add")
# Rules that compare a column of a change with that of the present row; they do not guarantee convergence.
COLUMN_RULES = (OLD, MAX, MAX_DELETE_WINS, MAX_INS, MAX_DEL_WIN_INS) = (
    *("old", "max", "max_delete_wins", "max_ins", "max_del_win_ins"),
)
# Rules under which all sites of a mesh write a table.
SHARED_RULES = (NEWEST, ADD, *COLUMN_RULES)
RULES = (EPOCH, EPOCH_TRANS, OWNER, *SHARED_RULES)
# Sites that decide between concurrent changes: the primary in a star, every site in a mesh.
_RULES_OF = {STAR: (EPOCH, EPOCH_TRANS, OWNER), MESH: (OWNER, *SHARED_RULES)}
NO_READS, SHARED_READS, EXCLUSIVE_READS = READS = ("none", "shared", "exclusive")
# The founder's folder is that of the database.
FOUNDER = "."


@dataclass(frozen=True, slots=True)
class Rule:
    """The conflict rule of a table.

    Attributes:
        rule: One of `RULES`.
        site: The one site that may write the table, for the rule `owner`.
        reads: Reads that count: `none`, `shared` or `exclusive`.
        column: The column that the rule compares, if it is one of `COLUMN_RULES`.
        add: Columns whose changes are added, with `newest`.
    """

    table: TableName
    rule: Annotated[str, one_of(*RULES)]
    site: str = ""
    reads: Annotated[str, one_of(*READS)] = NO_READS
    column: Omitted[str] = ""
    add: Omitted[tuple[str, ...]] = ()


@dataclass(frozen=True, slots=True)
class SiteHistory:
    """A history of a site, and what it grew from."""

    history: History
    parent: Parent | None = None


@dataclass(frozen=True, slots=True)
class PastHistory:
    """A history of a site that left.

    Attributes:
        heir: The position from which on all of its transactions that any site has are contained; None if no site has
            any. Vectors then leave it out.
    """

    history: History
    parent: Parent | None = None
    heir: Heir | None = None


def _folder_problem(folder: str, site: str) -> str | None:
    is_there = folder == FOUNDER or is_folder_of(folder, site)
    return None if is_there else f"{folder!r} is not the folder of site {site}"


@dataclass(frozen=True, slots=True)
class FormerTerm:
    """A term that is over: a batch in the log of the primary ended its history.

    Attributes:
        folder: Of the primary's log, relative to the founder's folder.
        last: Last tick of the history, which is that of the batch.
        is_effective: The site had taken over before its term ended; otherwise it never decided anything.
    """

    site: Site
    folder: str
    history: History
    last: Tick
    batch: Tick
    is_effective: Annotated[bool, JsonKey("effective")]

    @property
    def problem(self) -> str | None:
        """Why it is invalid, None if it is valid."""
        return _folder_problem(self.folder, self.site)


@dataclass(frozen=True, slots=True)
class CircleSite:
    """One of the masters.

    Attributes:
        folder: Where its log is, relative to the founder's folder: `.` or a folder in `sites/`. Its name is the site's,
            with a number at its end if a site of this name left before.
        histories: All its histories, the present one last.
    """

    may_have_info: ClassVar = True
    name: Site
    folder: str
    role: Annotated[str, one_of(*ROLES)]
    histories: Filled[SiteHistory]
    joined: datetime
    class_name: Annotated[str, JsonKey("class")] = ""

    @property
    def problem(self) -> str | None:
        """Why it is invalid, None if it is valid."""
        return _folder_problem(self.folder, self.name)

    @property
    def history(self) -> str:
        """Its present history."""
        return self.histories[-1].history


@dataclass(frozen=True, slots=True)
class Circle:
    """The sites of a database.

    Attributes:
        term: Rises with every change of the primary.
        reading: `star`: the primary reads all sites, and all others read the primary. `mesh`: all read all others.
        ddl: The one site that may change the schema.
        past: Histories of sites that left; vectors may still name them.
        former_terms: Terms that are over, in their order.
    """

    may_have_info: ClassVar = True
    database: str
    term: Tick
    primary: Site
    reading: Annotated[str, one_of(*READINGS)]
    ddl: Site
    sites: tuple[CircleSite, ...]
    rules: tuple[Rule, ...] = ()
    past: tuple[PastHistory, ...] = ()
    former_terms: Annotated[Omitted[tuple[FormerTerm, ...]], JsonKey("reigns")] = ()

    @property
    def is_shared(self) -> bool:
        """Whether there is another site."""
        return len(self.sites) > 1

    @property
    def is_mesh(self) -> bool:
        """Whether every site reads all others."""
        return self.reading == MESH

    @property
    def problem(self) -> str | None:
        """Why the circle is inconsistent, None if it is consistent."""
        names = [site.name for site in self.sites]
        if len({name.lower() for name in names}) < len(names) or len({site.folder for site in self.sites}) < len(names):
            return "two sites have one name or one folder"
        if [site.name for site in self.sites if site.role == PRIMARY] != [self.primary]:
            return f"{self.primary} is not its one primary"
        if self.ddl not in names:
            return f"it has no site {self.ddl!r}, which may change the schema"
        if any((rule.rule == OWNER) != (rule.site in names) for rule in self.rules):
            return "a table is owned by no site"
        if any((rule.rule in COLUMN_RULES) != bool(rule.column) for rule in self.rules):
            return "a rule compares a column that it does not name, or names one that it does not compare"
        if any(rule.add and rule.rule != NEWEST for rule in self.rules):
            return f"a table has columns that are added, and not the rule {NEWEST}"
        if any(rule.rule not in _RULES_OF[self.reading] for rule in self.rules):
            return f"a rule has no meaning in a {self.reading}"
        return None

    def site(self, name: str) -> CircleSite:
        """Return the site of that name.

        Raises:
            InvalidError: There is none.
        """
        found = next((site for site in self.sites if site.name == name), None)
        if found is None:
            listed = ", ".join(site.name for site in self.sites)
            raise InvalidError(f"{self.database} has no site {name!r}", hint=f"its sites are {listed}")
        return found

    def rule_of(self, table: Name) -> Rule | None:
        """Return the rule of a table, None if it has none."""
        return next((rule for rule in self.rules if rule.table.folded == table.folded), None)

    def added_columns(self, table: Name) -> tuple[str, ...]:
        """Return the columns of a table whose changes are added."""
        rule = self.rule_of(table)
        return rule.add if rule is not None else ()

    def sources_of(self, name: str) -> tuple[CircleSite, ...]:
        """Return the sites whose logs a site reads, by name."""
        others = sorted((site for site in self.sites if site.name != name), key=lambda site: site.name)
        if self.site(name).role == NONE:
            return ()
        if name == self.primary or self.is_mesh:
            return tuple(site for site in others if site.role != NONE)
        return tuple(site for site in others if site.name == self.primary)

    def former_primary(self, former_term: FormerTerm) -> CircleSite:
        """Return the site of a former term, as a primary to read, even if it has left."""
        found = next((site for site in self.sites if site.folder == former_term.folder), None)
        past = tuple(SiteHistory(each.history, each.parent) for each in self.past)
        return found or CircleSite(former_term.site, former_term.folder, NONE, past, self.sites[0].joined)

    def has_ended(self, history: str) -> bool:
        """Say whether a handover ended a history, so that it gets no further batches."""
        return any(former_term.history == history for former_term in self.former_terms)

    def former_histories(self, *, but: str = "") -> frozenset[str]:
        """Return the histories of sites before their present ones, except those of one site."""
        return frozenset(h.history for site in self.sites if site.name != but for h in site.histories[:-1])

    def lineage(self) -> Lineage:
        """Return what histories grew from."""
        parents = {each.history: each.parent for each in self.past if each.parent}
        parents |= {each.history: each.parent for site in self.sites for each in site.histories if each.parent}
        return Lineage(parents, {each.history: each.heir for each in self.past if each.heir})


def with_rule(circle: Circle, rule: Rule) -> Circle:
    """Return the circle with a table's new rule, without a check of the table.

    Raises:
        InvalidError: There is no such rule or site.
    """
    if rule.rule not in RULES or rule.reads not in READS:
        raise InvalidError(f"{rule.rule!r} is no rule", hint=f"the rules are {', '.join(RULES)}")
    if rule.rule == OWNER:
        circle.site(rule.site)
    if rule.rule not in (suited := _RULES_OF[circle.reading]):
        raise InvalidError(
            f"{circle.database} is a {circle.reading} of sites, where rule {rule.rule} has no meaning",
            hint=f"the rules of a {circle.reading} are {', '.join(suited)}",
        )
    others = tuple(each for each in circle.rules if each.table.folded != rule.table.folded)
    return replace(circle, rules=tuple(sorted((*others, rule), key=lambda each: each.table)))


def without_rule(circle: Circle, table: Name) -> Circle:
    """Return the circle in which a table has no rule."""
    return replace(circle, rules=tuple(each for each in circle.rules if each.table.folded != table.folded))


# In the farm ---------------------------------------------------------------------------------------------------------


def circle_object(database: FarmDatabase) -> VersionedObject[Circle]:
    """Return where the circle of a database is; `database` is the founder's folder."""
    where, is_signed = f"{database.url}/{CIRCLE}", False

    def decode(data: bytes) -> Circle:
        nonlocal is_signed
        verify_manifest(data, where, database.keys)
        is_signed = is_signed_manifest(data)
        return decode_circle(data, where)

    def encode(circle: Circle) -> bytes:
        if is_signed and not database.keys.signs:
            raise InvalidError(
                f"{where} is signed, and no signing key is given: sites that verify it would refuse it",
                hint="add --storage-option signing_key_file=FILE, or name the file of a site, which knows its key",
                path=where,
            )
        return signed_manifest(encode_circle(circle), database.keys)

    return VersionedObject(database.store, CIRCLE, encode, decode)


def find_circle(database: FarmDatabase) -> Circle | None:
    """Return the circle of a database, None if it has only one master.

    Raises:
        CorruptError: The object is damaged.
    """
    found = circle_object(database).load()
    return found[0] if found is not None else None


def read_circle(database: FarmDatabase, *, to_change: bool = False) -> Circle:
    """Return the circle of a database; `to_change`: the caller is about to change the circle.

    Raises:
        InvalidError: It has only one master, or the caller will change it without a key to sign it.
        CorruptError: The object is damaged.
    """
    place = circle_object(database)
    found = place.load()
    circle = _present(database, found[0] if found is not None else None)
    if to_change:
        place.encode(circle)
    return circle


def change_circle(database: FarmDatabase, change: Callable[[Circle], Circle]) -> Circle:
    """Replace the circle of a database with the result of a function, and return it.

    Raises:
        InvalidError: The database has one master only.
        CorruptError: The object is damaged.
    """
    with naming(lambda: database.url):
        return circle_object(database).change(lambda present: change(_present(database, present)))


@contextmanager
def naming(url: Callable[[], str]) -> Iterator[None]:
    """Name the database by its URL where the hint of an error says DB: a bare name would need a farm."""
    try:
        yield
    except FarmError as error:
        if error.hint:
            error.hint = re.sub(r"\bDB\b", lambda _: shlex.quote(url()), error.hint)
        raise


def _present(database: FarmDatabase, circle: Circle | None) -> Circle:
    if circle is None:
        with suppress(CorruptError):
            # A name that was mistyped.
            database.config()
        raise InvalidError(
            f"{database.url} has one master and no sites",
            hint="wlc master SOURCE --site NAME makes its master the first site",
            path=database.url,
        )
    return circle


def how_to_join_anew(database: str, site: str, file: str = "") -> str:
    """Return the command by which a site that cannot continue begins anew; `file` is its file on this machine."""
    where = "" if file else f"at site {site}: "
    return f"{where}wlc site join {file or 'FILE'} --name {shlex.quote(database)} --site {site} --again"


_DOCUMENT = Document(
    "circle",
    Circle,
    hint="Restore {where} from a backup: it lists the sites.",
    may_be_signed=True,
)
encode_circle, decode_circle = _DOCUMENT.encode, _DOCUMENT.decode
