"""The half of a site's life that no engine differs in: what publishing, beginning and stopping ask of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wlc.masters import founding, restored
from wlc.masters.circle_place import with_circle
from wlc.masters.contract import SiteSource

if TYPE_CHECKING:
    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Batch
    from wlc.masters.contract import Source
    from wlc.masters.state import MasterState, Wish


class SiteLife(SiteSource):
    """What a database does as one of several sites, over the verbs of its engine."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def claim(self, wish: Wish, site: str | None, *, is_mesh: bool) -> FarmDatabase:
        return founding.claim_as_site(self._source, wish, site, is_mesh=is_mesh)

    def refuse_end(self, database: FarmDatabase) -> None:
        founding.refuse_end(self._source, database)

    def settle_past(self, database: FarmDatabase) -> None:
        restored.settle_past(self._source, database)

    def settle_end(self, database: FarmDatabase) -> None:
        restored.settle_end(self._source, database)

    def follow_circle(self, database: FarmDatabase) -> MasterState:
        state = self._source.require_state()
        if (site := with_circle(state.member, database)) != state.site:
            # The rule was judged by what is published. What waits here may have changed the tables since.
            self.refuse_rules(site)
            self._source.remember(replace(state, site=site))
        return self._source.require_state()

    def follow_handover(self, database: FarmDatabase, batch: Batch, chain: str) -> None:
        restored.step_down(self._source, database, batch, chain)
