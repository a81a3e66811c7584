"""A master's state as one of several sites, and the place of their circle in the founder's folder."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Annotated

from wlc.farm.database import open_database
from wlc.farm.errors import FencedError
from wlc.farm.json_fields import DECODER, JsonForm, Later, Omitted, as_text, as_vector
from wlc.farm.json_records import form_of, record_of
from wlc.farm.model import Taken
from wlc.farm.store import join_url
from wlc.farm.vectors import normal
from wlc.multi_master.circle import FOUNDER, Circle, decode_circle, encode_circle, how_to_join_anew, read_circle

if TYPE_CHECKING:
    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Batch


def _as_circle(text: object) -> Circle:
    return decode_circle(as_text(text).encode(), "the circle")


def _circle_text(circle: Circle) -> str:
    return encode_circle(circle).decode()


# Each with all of its keys.
Proofs = Annotated[
    tuple[Taken, ...],
    JsonForm(lambda value: form_of(tuple[Taken, ...]).read(value), lambda proofs: [*map(asdict, proofs)]),
]


@dataclass(frozen=True, slots=True)
class SiteState:
    """The stored state of a master as one of several sites of its database.

    Attributes:
        folder: Where its log is, relative to the founder's folder.
        contained: Per history of other sites the last tick that the database contains, published here or not.
        proofs: The newest position read in each other site's log.
        published: The proofs in the last published batch.
        own: Last published tick of an own transaction with records, 0 before the first.
        circle: The circle as it was last read; None while there is no other site.
        floor: In a mesh, where the history that the site inherited when it joined begins; None if it inherited none.
        led: The last term in which it has taken over as the primary, 0 if none; the founder leads the first one.
    """

    name: str
    folder: str
    contained: Annotated[Mapping[str, int], JsonForm(as_vector, dict)] = field(default_factory=dict)
    proofs: Proofs = ()
    published: Proofs = ()
    own: int = 0
    circle: Annotated[Circle, JsonForm(_as_circle, _circle_text)] | None = None
    led: Later[int] = 0
    floor: Omitted[Annotated[Mapping[str, int], JsonForm(as_vector, dict)] | None] = None

    @property
    def is_founder(self) -> bool:
        """Whether its folder is the one that holds the folders of all other sites."""
        return self.folder == FOUNDER

    @property
    def known_circle(self) -> Circle:
        """The circle, of a site that is not alone."""
        assert self.circle is not None
        return self.circle

    @property
    def is_leading(self) -> bool:
        """Whether it is the primary and has judged its own transactions as such: only then it judges other sites."""
        circle = self.circle
        return circle is not None and circle.primary == self.name and circle.term in (1, self.led)

    @property
    def log_term(self) -> int | None:
        """The term of its log: that of a successor that has not taken over yet is the term before."""
        circle = self.circle
        if circle is None:
            return None
        return circle.term - 1 if circle.primary == self.name and not self.is_leading else circle.term

    def proof_of(self, site: str) -> Taken | None:
        """Return the newest position read in a site's log, None before the first."""
        return next((proof for proof in self.proofs if proof.site == site), None)

    def after(self, batch: Batch) -> SiteState:
        """Return what to remember once a batch is published."""
        # While it has taken nothing, every tick is its own, and batches do not state it.
        own = batch.own or (batch.last if batch.vector.keys() <= {batch.history} else self.own)
        return replace(self, own=own, published=batch.taken)

    def with_site_state(self, batch: Batch, taken: tuple[Taken, ...]) -> Batch:
        """Add the site's vector, proofs and term after the last transaction to a batch, unless the site is alone.

        Args:
            batch: The batch to publish.
            taken: Positions in the logs of other sites that it takes.
        """
        if self.circle is None:
            return batch
        vector, own = dict(batch.vector), self.own
        for transaction in batch.transactions:
            if (origin := transaction.origin) is not None:
                vector[origin.history] = max(vector.get(origin.history, 0), origin.tick)
            elif transaction.records:
                own = transaction.tick
        # Histories of former sites are dropped once they are contained completely.
        vector = {**normal(vector, self.circle.lineage()), batch.history: batch.last}
        taken = newest_proofs(self.published, taken)
        return replace(batch, vector=vector, own=own or None, taken=taken, term=self.log_term)

    def how_to_go_on(self, database: FarmDatabase, alone: str) -> str:
        """Return the hint if another process has published this site's next batch; `alone` is for a single master."""
        url = founder_of(database, self).url
        if self.name != self.known_circle.primary:
            return how_to_join_anew(url, self.name, "SOURCE")
        return f"let the other sites leave, wlc site leave {shlex.quote(url)} SITE; {alone}; then they join again"

    def having_taken(self, contained: Mapping[str, int], proof: Taken | None) -> SiteState:
        """Return the state after taking a part of another site's log."""
        return replace(self, contained=dict(contained), proofs=newest_proofs(self.proofs, (proof,) if proof else ()))

    def encoded(self) -> str:
        """Encode it as text."""
        return json.dumps(record_of(SiteState).write(self))


def newest_proofs(before: tuple[Taken, ...], later: tuple[Taken, ...]) -> tuple[Taken, ...]:
    """Return the last proof of each site, by its name."""
    found = {proof.site: proof for proof in (*before, *later)}
    return tuple(found[site] for site in sorted(found))


def decode_site(text: str) -> SiteState:
    """Decode the text of `SiteState.encoded`."""
    return record_of(SiteState).read(DECODER.decode(text))


def founder_of(database: FarmDatabase, site: SiteState) -> FarmDatabase:
    """Return the founder's folder, given the one of a site."""
    return founder_at(database, site.folder)


def founder_at(database: FarmDatabase, folder: str) -> FarmDatabase:
    """Return the founder's folder, given that of a site and its path below the founder's."""
    if folder == FOUNDER:
        return database
    url = database.url.rstrip("/").removesuffix(folder).rstrip("/")
    return open_database(url, storage_options=database.storage_options)


def site_database(founder: FarmDatabase, folder: str) -> FarmDatabase:
    """Return a site's folder, a whole farm database."""
    return (
        founder
        if folder == FOUNDER
        else open_database(join_url(founder.url, folder), storage_options=founder.storage_options)
    )


def without_site_that_lies(database: str, site: str) -> str:
    """Return the hint for continuing without a site whose log is not trusted, given the URL of any site's folder."""
    return f"to go on without this site: wlc site leave {shlex.quote(database)} {site} --force"


def is_member(site: SiteState, circle: Circle) -> bool:
    """Say whether a site is a member of a circle; after it left, another site may have its name."""
    return (site.name, site.folder) in [(each.name, each.folder) for each in circle.sites]


def with_circle(site: SiteState, database: FarmDatabase) -> SiteState:
    """Return a site's state with the present circle; nothing changes while it is alone.

    Raises:
        FencedError: The site has left the circle.
    """
    circle = read_circle(founder_of(database, site))
    if not is_member(site, circle):
        raise FencedError(
            f"site {site.name} has left {circle.database}",
            hint="to publish this database by itself: wlc stop SOURCE, then wlc master SOURCE --name OTHER",
            path=database.url,
        )
    return replace(site, circle=circle) if circle.is_shared or site.circle else site
