"""Storage options: which of them a master remembers, and how options given now override remembered ones."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from wlc.farm.errors import InvalidError
from wlc.farm.seal.keys import NAMES
from wlc.farm.typed_names import alike

if TYPE_CHECKING:
    from collections.abc import Mapping

# Names of credentials with s3fs, botocore and S3 itself, at any depth: key, aws_access_key_id, SSECustomerKey, …
_SECRET = re.compile(
    r"secret|token|passw|credential|authorization|^username$|access_?key|key$|connection_string", re.IGNORECASE
)
# Options that name a file with credentials, which is no secret itself.
FILES = frozenset({"client_keys", "credentials_file", "known_hosts"})

# What `s3fs.S3FileSystem` takes, and what it hands on to fsspec and to botocore's session; then what other stores take.
KNOWN = FILES | set(
    """
    anon asynchronous cache_regions client_kwargs config_kwargs default_block_size default_cache_type default_fill_cache
    endpoint_url event_hooks fixed_upload_size include_builtin_handlers key listings_expiry_time loader
    local_expiry_check loop max_concurrency max_paths password profile requester_pays s3_additional_kwargs secret
    session session_vars token use_listings_cache use_ssl username version_aware
    account_key account_name connection_string sas_token
    """.split()
)


def refuse_unknown(options: Mapping[str, Any]) -> None:
    """Refuse an option that no store has, wherever the store is: the same options may be for a replica elsewhere.

    Raises:
        InvalidError: There is one. The message does not repeat its value, which may be a secret.
    """
    for name in options:
        if name not in KNOWN:
            meant = alike(name, KNOWN | NAMES)
            hint = f"did you mean {meant[0]}?" if meant else f"Options are {', '.join(sorted(KNOWN | NAMES))}."
            raise InvalidError(f"there is no storage option {name!r}", hint=hint)


def remembered(options: Mapping[str, Any]) -> str:
    """Write what is fit to be kept in a database; secrets have to be given every time.

    Left out, at any depth, are options whose name is a credential's, URLs with a user or a password in them, and
    objects of a program. Files are remembered with their whole path.
    """
    return json.dumps(_without_secrets(with_paths(options)))


def with_paths(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options that name files by their whole paths: a later command may be typed in another folder."""
    return {
        name: str(Path(value).expanduser().absolute()) if name in FILES and isinstance(value, str) else value
        for name, value in options.items()
    }


def _without_secrets(options: Mapping[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, value in options.items():
        if _SECRET.search(name) and name not in FILES:
            continue
        if isinstance(value, dict):
            if inner := _without_secrets(value):
                kept[name] = inner
        elif (
            value is None or isinstance(value, (bool, int, float)) or (isinstance(value, str) and not _is_login(value))
        ):
            kept[name] = value
    return kept


def _is_login(text: str) -> bool:
    try:
        return "@" in urlsplit(text).netloc
    except ValueError:
        # It looks like a URL and is not one. It may hold a login, so it is not remembered and must be given again.
        return True


def recalled(text: str | None) -> dict[str, Any]:
    """Read what `remembered` wrote; no options if nothing did."""
    options: dict[str, Any] = json.loads(text or "{}")
    return options


def lay_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return `below` with the options of `above` added or in place of it."""
    options = dict(below)
    for name, value in above.items():
        inner = options.get(name)
        options[name] = lay_over(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return options
