"""What holds where every site reads all others: who may write which table, and how far clocks may be apart.

No site decides for the others. Of the changes of a row the newest one counts, by the time of its first commit, then by
history and tick. All sites decide that alike, whatever they read from whom and in which order, as long as the clock of
a site is never behind what it has taken: its own next commit is later than that.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from wlc.farm.circle import OWNER, SHARED_RULES

if TYPE_CHECKING:
    from wlc.farm.circle import Circle
    from wlc.farm.model import Name

# What was committed later than this after the reader's own clock waits: else the changes of one clock that is far ahead
# would win for ever.
AHEAD = timedelta(minutes=5)
# The least step of a clock.
STEP = timedelta(microseconds=1)


def author_of(circle: Circle, history: str) -> str | None:
    """Return the site that a history is of, None if it has left or is unknown."""
    return next((site.name for site in circle.sites if history in [each.history for each in site.histories]), None)


def may_write(circle: Circle, site: str | None, table: Name) -> bool:
    """Say whether a site of a mesh may write a table: one without a rule belongs to the primary."""
    rule = circle.rule_of(table)
    if rule is not None and rule.rule in SHARED_RULES:
        return True
    return site == (rule.site if rule is not None and rule.rule == OWNER else circle.primary)
