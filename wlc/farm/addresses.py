"""Paths, URLs and libpq's connection strings, as users type them: recognized, and shown without passwords."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

from wlc.farm.errors import InvalidError

# libpq's parameter key words, and our own `schema`.
_KNOWN = frozenset(
    """
    application_name channel_binding client_encoding connect_timeout dbname fallback_application_name gssdelegation
    gssencmode gsslib host hostaddr keepalives keepalives_count keepalives_idle keepalives_interval krbsrvname
    load_balance_hosts max_protocol_version min_protocol_version options passfile port replication require_auth
    requirepeer requiressl schema service ssl_max_protocol_version ssl_min_protocol_version sslcert sslcertmode
    sslcompression sslcrl sslcrldir sslkey sslmode sslnegotiation sslrootcert sslsni target_session_attrs
    tcp_user_timeout user
    """.split()
)
_SECRET = frozenset({"password", "sslpassword"})
_HOST = r"(?:\[[0-9A-Za-z:.%]*\]|[^][:,@/?&=]*)(?::[0-9]*)?"
_AFTER_USER = rf"(?P<place>{_HOST}(?:,{_HOST})*(?:/[^@/?:&=]*)?)(?:\?(?P<parameters>.*))?"
# As in libpq, a password ends at the first @. So it may contain a question mark, and no slash.
_WELL_FORMED = re.compile(rf"(?:(?P<user>[^:@/?]*)(?::[^@/]*)?@)?{_AFTER_USER}", re.DOTALL)
# If the password contains an @ or a slash that was not written as %40 or %2F, the place may follow the last @.
_MALFORMED = re.compile(rf"(?P<user>[^:@/?]*):[^=]*@{_AFTER_USER}", re.DOTALL)
# `host=db password=…` and other texts that name a password; write a path of such a name with ./ or / in front.
_CONNECTION_STRING = re.compile(
    rf"\s*(?:{'|'.join(_KNOWN | _SECRET)})\s*=|(?:.*\s)?(?:ssl)?passw(?:or)?d\s*=", re.DOTALL | re.IGNORECASE
)
# `ann:secret@host/db`: a URL without its scheme.
_LOGIN = re.compile(r"[\w+.-]+:[^@]*@.*", re.DOTALL)
# Without a login; an @ stands in a path only if no port or password can stand before it.
_PLAIN_URL = re.compile(
    rf"[^:@/?]*@{_HOST}(?:,{_HOST})*(?:/[^?]*)?|{_HOST}(?:,{_HOST})*(?:/[^?@]*)?|[^:@/?]*(?:/[^?]*)?", re.DOTALL
)


def absolute(url: str) -> str:
    """Return a URL or path that means the same from any working directory."""
    return url if "://" in url else str(Path(url).absolute())


def is_connection_string(text: str) -> bool:
    """Say whether a text is a connection string of libpq, or a login at a host, rather than a path or a URL."""
    return "://" not in text and any(form.match(text) for form in (_CONNECTION_STRING, _LOGIN))


def refuse_connection_string(text: str) -> None:
    """Refuse a connection string of libpq, or a login, in the place of a path, a name or a URL.

    Raises:
        InvalidError: It is one. The message does not repeat it.
    """
    if is_connection_string(text):
        raise InvalidError(
            "this is a connection string or a login, and a path or a URL is needed",
            hint="Write postgresql://USER@HOST:PORT/DATABASE, and the password into ~/.pgpass or PGPASSWORD.",
        )


def without_password(place: str) -> str:
    """Return a path or URL in the form that may be shown and stored, even if it is malformed.

    Every part that may belong to a password is left out: of a malformed URL nearly all, because its password may lack
    the escapes that URLs need.
    """
    scheme, mark, rest = place.partition("://")
    if not mark:
        return "…" if is_connection_string(place) else place
    if _PLAIN_URL.fullmatch(rest):
        return place
    for form in (_WELL_FORMED, _MALFORMED):
        if (found := form.fullmatch(rest)) and (parameters := _shown_parameters(found["parameters"])) is not None:
            user = "" if found["user"] is None else f"{found['user']}@"
            return f"{scheme}://{user}{found['place']}{parameters}"
    return f"{scheme}://{re.split('[:@/?]', rest, maxsplit=1)[0]}…"


def _shown_parameters(parameters: str | None) -> str | None:
    """Return parameters without passwords; None if some may be part of a password that lacks escapes."""
    shown = []
    may_be_part = "@" in (parameters or "")
    for pair in parameters.split("&") if parameters else []:
        name, mark, _ = pair.partition("=")
        if mark and name.lower() in _SECRET:
            may_be_part = True
        elif mark and name.lower() in _KNOWN:
            shown.append(pair)
        elif mark and not may_be_part:
            # It may be a misspelt `password`.
            shown.append(f"{name}=…")
        else:
            return None
    return f"?{'&'.join(shown)}" if shown else ""


def without_secrets(text: str, url: str) -> str:
    """Return a driver's message about a URL without the parts that `without_password` leaves out.

    A password that lacks escapes becomes part of the host's name, which drivers show.
    """
    known = set(_words(without_password(url))) | _SECRET
    for word in sorted(set(_words(url)) - known, key=len, reverse=True):
        text = text.replace(word, "…") if len(word) > 1 else text
    return text


def _words(url: str) -> list[str]:
    words = re.split(r"[@:/?&=,]", url)
    return [*words, *map(unquote, words)]
