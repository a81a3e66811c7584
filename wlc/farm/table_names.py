"""Which table a text names: `table`, `schema.table`, or the same with parts in double quotes, as in SQL."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from wlc.farm.model import Name

if TYPE_CHECKING:
    from collections.abc import Iterable

# The schema of a name that has none.
MAIN = "main"
_QUOTED = r'"(?:[^"]|"")*"'
_PART = re.compile(rf'{_QUOTED}|[^."]+')
_QUALIFIED = re.compile(rf'(?:{_QUOTED}|[^."]+)(?:\.(?:{_QUOTED}|[^."]+))*')


def parts(text: str) -> tuple[str, ...]:
    """Return the parts of a name as SQL writes it, without quotes; empty if the text is no such name."""
    if not _QUALIFIED.fullmatch(text):
        return ()
    return tuple(p[1:-1].replace('""', '"') if p.startswith('"') else p for p in _PART.findall(text))


def find(text: str, tables: Iterable[Name]) -> Name | None:
    """Return the table that a text names: in schema main if it has no schema, as it is written before other cases."""
    known = list(tables)
    by_text: dict[str, Name] = {str(name): name for name in known}
    readings = [found for each in (text, f"{MAIN}.{text}") if (found := by_text.get(each)) is not None]
    said = parts(text)
    if 1 <= len(said) <= 2:
        readings += [name for name in known if name == _name(said)]
        readings += [name for name in known if name.folded == _name(said).folded]
    folded = {str(name).lower(): name for name in known}
    readings += [found for each in (text, f"{MAIN}.{text}") if (found := folded.get(each.lower())) is not None]
    return next(iter(readings), None)


def _name(said: tuple[str, ...]) -> Name:
    return Name(*said) if len(said) == 2 else Name(MAIN, said[0])


def is_meant(name: Name, text: str) -> bool:
    """Say whether a text names a table; without a schema, it names those of all schemas."""
    return text in (name.name, str(name)) or parts(text) in ((name.name,), (name.schema, name.name))
