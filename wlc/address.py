"""The URL of a PostgreSQL database, which may hold a password, as it may be shown."""

from __future__ import annotations

import re
from urllib.parse import unquote

# What libpq's documentation calls parameter key words, and our own `schema`.
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
# A password ends at the first @, as libpq has it. It may hold a question mark then, and no slash.
_WELL_FORMED = re.compile(rf"(?:(?P<user>[^:@/?]*)(?::[^@/]*)?@)?{_AFTER_USER}", re.DOTALL)
# Where an @ or a slash of the password was not written as %40 or %2F, what comes after the last @ may be the place.
_MALFORMED = re.compile(rf"(?P<user>[^:@/?]*):[^=]*@{_AFTER_USER}", re.DOTALL)


def without_password(url: str) -> str:
    """Return the URL of a PostgreSQL database as it may be shown.

    Whatever may be part of a password is left out: where the URL is malformed, perhaps because the password was not
    written as URLs want it, most of it is.
    """
    scheme, mark, rest = url.partition("://")
    if not mark:
        return "…"
    for form in (_WELL_FORMED, _MALFORMED):
        if (found := form.fullmatch(rest)) and (parameters := _shown_parameters(found["parameters"])) is not None:
            user = "" if found["user"] is None else f"{found['user']}@"
            return f"{scheme}://{user}{found['place']}{parameters}"
    return f"{scheme}://{re.split('[:@/?]', rest, maxsplit=1)[0]}…"


def _shown_parameters(parameters: str | None) -> str | None:
    """Return parameters without passwords, None if some may be part of one that was not written as URLs want it."""
    shown = []
    may_be_part = "@" in (parameters or "")
    for pair in parameters.split("&") if parameters else []:
        name, mark, _ = pair.partition("=")
        if mark and name.lower() in _SECRET:
            may_be_part = True
        elif mark and name.lower() in _KNOWN:
            shown.append(pair)
        elif mark and not may_be_part:
            # It may be a password's name, misspelt.
            shown.append(f"{name}=…")
        else:
            return None
    return f"?{'&'.join(shown)}" if shown else ""


def without_secrets(text: str, url: str) -> str:
    """Return what a driver says of a URL without what `without_password` leaves out of it.

    A password that was not written as URLs want it ends up in the name of the host, which drivers show.
    """
    known = set(_words(without_password(url))) | _SECRET
    for word in sorted(set(_words(url)) - known, key=len, reverse=True):
        text = text.replace(word, "…") if len(word) > 1 else text
    return text


def _words(url: str) -> list[str]:
    words = re.split(r"[@:/?&=,]", url)
    return [*words, *map(unquote, words)]
