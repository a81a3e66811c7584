"""Names as users type them: which table a text names, and suggestions for a mistyped name.

Which table a text names: `table`, `schema.table`, or the same with parts in double quotes, as in SQL.
"""

from __future__ import annotations

import re
import shlex
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from wlc.farm.model import Name
from wlc.farm.paths import CONFIG

if TYPE_CHECKING:
    from collections.abc import Iterable


# How many files and databases are compared, and how many are shown.
_SEEN_MAX = 1000
_SHOWN_MAX = 5
_TABLES_SHOWN_MAX = 10


def file_meant(path: Path) -> Path | None:
    """Return the file or folder beside a path with the most similar name; None if none is similar."""
    try:
        names = [found.name for found in islice(path.parent.iterdir(), _SEEN_MAX)]
    except OSError:
        return None
    meant = alike(path.name, (name for name in names if not name.startswith(".") and name != path.name))
    return path.with_name(meant[0]) if meant else None


def other_databases(url: str, name: str) -> str:
    """Say what to type where a farm has no database of a name.

    Args:
        url: Where the database's folder would be.
        name: The database's name.
    """
    farm = url.removesuffix(f"/{name}")
    create = f"wlc master SOURCE --farm {shlex.quote(farm)}"
    # A new relay is empty, too.
    create_or_copy = f"{create}, or wlc tier ship DB --to {shlex.quote(farm)}"
    if "://" in farm:
        return f"check the name and --farm: wlc list {shlex.quote(farm)} shows them; to add a database: {create}"
    if not Path(farm).is_dir():
        return f"there is no folder {farm}: check --farm and WLC_FARM; to begin a farm there: {create_or_copy}"
    others = sorted(found.parent.name for found in islice(Path(farm).glob(f"*/{CONFIG}"), _SEEN_MAX))
    if not others:
        return f"{farm} holds no database: check --farm and WLC_FARM; to add one: {create_or_copy}"
    first = alike(name, others)
    listed = [*first, *(other for other in others if other not in first)]
    rest = f" and {len(others) - _SHOWN_MAX} more" if len(others) > _SHOWN_MAX else ""
    return f"{farm} holds {', '.join(listed[:_SHOWN_MAX])}{rest}; to add a database: {create}"


def tables_meant(wanted: str, tables: Iterable[Name]) -> str:
    """Suggest a table for a mistyped name, and list the tables.

    Args:
        wanted: A name, with or without schema, or a pattern that matched no table.
        tables: The existing tables.
    """
    known = sorted(map(str, tables))
    if not known:
        return "There are no tables then."
    bare = [text.partition(".")[2] for text in known]
    near = alike(wanted.lower(), known) or [text for text in known if text.partition(".")[2] in alike(wanted, bare)]
    meant = f"Did you mean {near[0]}? " if near else ""
    rest = len(known) - _TABLES_SHOWN_MAX
    more = f" and {rest} more" if rest > 0 else ""
    return f"{meant}There are: {', '.join(known[:_TABLES_SHOWN_MAX])}{more}."


def alike(wanted: str, known: Iterable[str]) -> list[str]:
    """Return the known names that resemble the wanted one, the most similar first; can be empty."""
    import difflib

    return difflib.get_close_matches(wanted, list(known), n=_SHOWN_MAX)


# The schema of an unqualified name.
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
    """Return the table that a text names: without a schema in schema main; an exact match comes before other cases."""
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
    """Say whether a text names a table; without a schema, in any schema."""
    return text in (name.name, str(name)) or parts(text) in ((name.name,), (name.schema, name.name))
