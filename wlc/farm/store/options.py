"""Storage options: which ones a master remembers, and how given options override remembered ones."""

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
# Options that name a file with credentials; the name is no secret.
FILES = frozenset({"client_keys", "credentials_file", "known_hosts"})

# Options of `s3fs.S3FileSystem`, fsspec and botocore's session; then those of other stores.
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
    """Refuse an option that no store knows. Options of other stores pass: they may serve a replica elsewhere.

    Raises:
        InvalidError: There is one. The message does not repeat its value, which may be a secret.
    """
    for name in options:
        if name not in KNOWN:
            meant = alike(name, KNOWN | NAMES)
            hint = f"did you mean {meant[0]}?" if meant else f"Options are {', '.join(sorted(KNOWN | NAMES))}."
            raise InvalidError(f"there is no storage option {name!r}", hint=hint)


def remembered(options: Mapping[str, Any]) -> str:
    """Encode the options that may be stored in a database; secrets must be given every time.

    Options named like credentials, URLs with a user or a password, and Python objects are left out, at any depth. Files
    are stored with their absolute path.
    """
    return json.dumps(_without_secrets(with_paths(options)))


def with_paths(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with absolute paths of files: a later command may be typed in another folder."""
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
        # A malformed URL may hold a login, so it is not stored and must be given again.
        return True


def recalled(text: str | None) -> dict[str, Any]:
    """Decode the text of `remembered`; no options if there is none."""
    options: dict[str, Any] = json.loads(text or "{}")
    return options


def lay_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return `below` overridden and extended by `above`."""
    options = dict(below)
    for name, value in above.items():
        inner = options.get(name)
        options[name] = lay_over(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return options
