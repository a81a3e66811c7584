"""Where things are in the farm. Farm paths are formatted and parsed here only, and the two are inverses.

Paths of log and data files are relative to the log directory, all others to the database's folder.
"""

from __future__ import annotations

import re

from wlc.farm.addresses import refuse_connection_string
from wlc.farm.errors import CorruptError, InvalidError

CONFIG = "wlc.config"
LOGS = "wlc_logs"
SNAPSHOTS = "snapshots/"
REPLICAS = "replicas/"
FEEDS = "feeds/"
MANIFEST = "manifest.json"
SITES = "sites/"
CIRCLE = "circle.json"
UPSTREAMS = "upstreams/"
CLAIMS = "claims/"
PUSHES = "pushes/"
TIERS = "tiers.json"
ATTACHMENT = "attachment.json"
RETENTION = "retention.json"
HEALTH = "health.json"
TAGS = "tags/"
SNAPSHOT_LEASE = "snapshot.lease"
PRUNING = "pruning/"
DERIVED = "derived/"

_DATABASE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", re.ASCII)
_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_NUMBER = r"([0-9]{12})"
_DATA = r"(0|[1-9][0-9]{0,8})(?:-([0-9a-f]{16}))?\.parquet"
_LARGEST = 10**12 - 1
_SITE_NAME_LENGTH_MAX = 40
_FEED_NAME_LENGTH_MAX = 50
_TAG_NAME_LENGTH_MAX = 64


def check_database_name(name: str) -> str:
    """Return `name` if it can name a database in a farm.

    Raises:
        InvalidError: It cannot; the hint says what can.
    """
    if not _is_name(name):
        refuse_connection_string(name)
        raise InvalidError(
            f"{name!r} cannot name a database in a farm",
            hint="Give one with --name: letters, digits, '_', '-' and '.', at most 100, first a letter, digit or '_'.",
        )
    return name


def is_site_name(text: str) -> bool:
    """Say whether `text` can name a site: as a database's name, at most 40 characters."""
    return _is_name(text) and len(text) <= _SITE_NAME_LENGTH_MAX


def is_token(text: str) -> bool:
    """Say whether `text` can be the id of a history or a replica: 1 to 64 of letters, digits, '_' and '-'."""
    return _TOKEN.fullmatch(text) is not None


def check_relative(path: str, where: str) -> str:
    """Return `path`, found in file `where`, if it names something below the folder it is relative to.

    Raises:
        CorruptError: It could lead out of the folder, or is not in its one normal form.
    """
    if not is_relative(path):
        raise CorruptError(f"{where}: {path!r} is not a path inside the farm", path=where)
    return path


def is_relative(path: str) -> bool:
    """Say whether a path leads to something below the folder it is relative to, and is in its one normal form."""
    is_normal = path.isprintable() and not any(part in ("", ".", "..") for part in path.split("/"))
    return is_normal and "\\" not in path and ":" not in path


def log_path(name: str, number: int) -> str:
    """Path of batch `number` (1 …) in the log directory."""
    return f"{name}_{_digits(number)}"


def parse_log_path(name: str, path: str) -> int | None:
    """Return the batch number of a log file of database `name`, None if `path` is something else."""
    found = re.fullmatch(re.escape(name) + "_" + _NUMBER, path)
    return int(found.group(1)) if found and int(found.group(1)) > 0 else None


def data_folder(name: str, number: int) -> str:
    """Folder of the data files of batch `number`, with a slash at its end."""
    return log_path(name, number) + ".d/"


def data_path(name: str, number: int, file_number: int, stamp: str = "") -> str:
    """Path of a data file of batch `number`; `stamp` (16 hex digits) if the plain name is taken."""
    return data_folder(name, number) + snapshot_data_path(file_number, stamp)


def parse_data_path(name: str, path: str) -> tuple[int, int, str] | None:
    """Return (batch number, file number, stamp) of a data file of database `name`, None if `path` is something else."""
    found = re.fullmatch(re.escape(name) + "_" + _NUMBER + r"\.d/" + _DATA, path)
    if not found or int(found.group(1)) == 0:
        return None
    return int(found.group(1)), int(found.group(2)), found.group(3) or ""


def snapshot_data_path(file_number: int, stamp: str = "") -> str:
    """Path of a data file of a snapshot in the snapshot's folder."""
    return f"{file_number}-{stamp}.parquet" if stamp else f"{file_number}.parquet"


def parse_snapshot_data_path(path: str) -> tuple[int, str] | None:
    """Return (file number, stamp) of a snapshot's data file, None if `path` is something else."""
    found = re.fullmatch(_DATA, path)
    return (int(found.group(1)), found.group(2) or "") if found else None


def with_stamp(path: str, stamp: str) -> str:
    """Return the path of a data file with another stamp, "" for none."""
    folder, slash, file = path.rpartition("/")
    number = file.removesuffix(".parquet").partition("-")[0]
    return folder + slash + (f"{number}-{stamp}.parquet" if stamp else f"{number}.parquet")


def snapshot_folder(tick: int) -> str:
    """Folder of the snapshot at `tick` (0 …), without a slash at its end."""
    return SNAPSHOTS + _digits(tick)


def parse_snapshot_folder(path: str) -> int | None:
    """Return the tick of a snapshot's folder, None if `path` is something else."""
    found = re.fullmatch(SNAPSHOTS + _NUMBER, path)
    return int(found.group(1)) if found else None


def manifest_path(tick: int) -> str:
    """Path of the manifest of the snapshot at `tick`."""
    return f"{snapshot_folder(tick)}/{MANIFEST}"


def parse_manifest_path(path: str) -> int | None:
    """Return the tick of a manifest, None if `path` is something else."""
    folder, _, file = path.rpartition("/")
    return parse_snapshot_folder(folder) if file == MANIFEST else None


def replica_path(replica: str) -> str:
    """Path of the registration of the replica with that id.

    Raises:
        InvalidError: The id is not one.
    """
    return f"{REPLICAS}{_checked_id(replica, 'a replica')}.json"


def parse_replica_path(path: str) -> str | None:
    """Return the id of a registered replica, None if `path` is something else."""
    return _parse_id(REPLICAS, path)


def is_feed_name(text: str) -> bool:
    """Say whether `text` can name a feed: 1 to 50 letters, digits, '_' and '-'."""
    return is_token(text) and len(text) <= _FEED_NAME_LENGTH_MAX


def as_feed_name(text: str) -> str:
    """Return a valid feed name made from another name."""
    return "".join(sign if is_token(sign) else "-" for sign in text)[:_FEED_NAME_LENGTH_MAX]


def feed_path(feed: str) -> str:
    """Path of a feed's state in the farm; only feeds whose output cannot hold the state have this object."""
    return f"{FEEDS}{_checked_feed(feed)}.json"


def feed_lease_path(feed: str) -> str:
    """Path of the lease of the one run that may write the feed."""
    return f"{FEEDS}{_checked_feed(feed)}.lease"


def feed_id(feed: str) -> str:
    """Return the id under which a feed is registered."""
    return f"feed-{feed}"


def parse_feed_id(replica: str) -> str | None:
    """Return the name of the feed that is registered under an id, None if the id is not a feed's."""
    name = replica.removeprefix("feed-")
    return name if replica.startswith("feed-") and is_feed_name(name) else None


def _checked_feed(feed: str) -> str:
    if not is_feed_name(feed):
        hint = "Use letters, digits, '_' and '-', at most 50."
        raise InvalidError(f"{feed!r} cannot name a feed", hint=hint)
    return feed


def is_tag_name(text: str) -> bool:
    """Say whether `text` can name a tick: as a database's name, at most 64 characters."""
    return _is_name(text) and len(text) <= _TAG_NAME_LENGTH_MAX


def tag_path(tag: str) -> str:
    """Path of the tag of that name.

    Raises:
        InvalidError: It cannot name a tick.
    """
    if not is_tag_name(tag):
        raise InvalidError(f"{tag!r} cannot name a tick")
    return f"{TAGS}{tag}.json"


def parse_tag_path(path: str) -> str | None:
    """Return the name of a tag, None if `path` is something else."""
    name = path.removeprefix(TAGS).removesuffix(".json")
    return name if is_tag_name(name) and path == f"{TAGS}{name}.json" else None


def pruning_path(process: str) -> str:
    """Path of the announcement of a process that prunes, given its id."""
    return f"{PRUNING}{process}.json"


def parse_pruning_path(path: str) -> str | None:
    """Return the id of a process that prunes, None if `path` is something else."""
    process = path.removeprefix(PRUNING).removesuffix(".json")
    return process if _TOKEN.fullmatch(process) and path == pruning_path(process) else None


def derived_path(name: str, number: int) -> str:
    """Path of document `number` (1 …) about the derived database of that name."""
    return f"{DERIVED}{check_database_name(name)}/{_digits(number)}.json"


def parse_derived_path(path: str) -> tuple[str, int] | None:
    """Return the name of a derived database and the number of the document, None if `path` is something else."""
    found = re.fullmatch(DERIVED + f"({_DATABASE_NAME.pattern})/{_NUMBER}" + r"\.json", path, re.ASCII)
    return (found.group(1), int(found.group(2))) if found and _is_name(found.group(1)) else None


def upstream_path(upstream: str) -> str:
    """Path of the registration of the upstream with that id.

    Raises:
        InvalidError: The id is not one.
    """
    return f"{UPSTREAMS}{_checked_upstream(upstream)}.json"


def parse_upstream_path(path: str) -> str | None:
    """Return the id of a registered upstream, None if `path` is something else."""
    return _parse_id(UPSTREAMS, path)


def push_path(push: str) -> str:
    """Path of the entry of that id for a farm that must be served by pushing.

    Raises:
        InvalidError: The id is not one.
    """
    return f"{PUSHES}{_checked_id(push, 'an entry')}.json"


def parse_push_path(path: str) -> str | None:
    """Return the id of a push entry, None if `path` is something else."""
    return _parse_id(PUSHES, path)


def claim_path(upstream: str, slot: int) -> str:
    """Path of the claim of slot 0 … of an upstream.

    Raises:
        InvalidError: The id is not one.
    """
    return f"{CLAIMS}{_checked_upstream(upstream)}/{slot}.json"


def parse_claim_path(path: str) -> tuple[str, int] | None:
    """Return (upstream, slot) of a claim, None if `path` is something else."""
    found = re.fullmatch(CLAIMS + f"({_TOKEN.pattern})" + r"/(0|[1-9][0-9]{0,5})\.json", path, re.ASCII)
    return (found.group(1), int(found.group(2))) if found else None


def _checked_upstream(upstream: str) -> str:
    return _checked_id(upstream, "an upstream", hint="wlc tier show DB lists them.")


def _checked_id(text: str, of: str, hint: str = "Use letters, digits, '_' and '-'.") -> str:
    if not is_token(text):
        raise InvalidError(f"{text!r} cannot be the id of {of}", hint=hint)
    return text


def _parse_id(folder: str, path: str) -> str | None:
    """Return the id that names a document in a folder, None if `path` is something else."""
    found = re.fullmatch(folder + f"({_TOKEN.pattern})" + r"\.json", path)
    return found.group(1) if found else None


def site_folder(site: str, number: int = 1) -> str:
    """Folder of a joined site, a whole farm database, without a slash at its end.

    Args:
        site: Its name.
        number: Greater than 1 if earlier folders belong to former sites of this name.

    Raises:
        InvalidError: The name cannot name a site.
    """
    if not is_site_name(site):
        raise InvalidError(f"{site!r} cannot name a site", hint="Use a name as for databases, at most 40 characters.")
    return f"{SITES}{site}-{number}" if number > 1 else SITES + site


def is_folder_of(path: str, site: str) -> bool:
    """Say whether `path` can be a folder of the site of that name."""
    if not is_site_name(site):
        return False
    number = path.removeprefix(SITES + site).removeprefix("-")
    return path == site_folder(site, int(number) if re.fullmatch(r"[1-9][0-9]{0,5}", number) else 1)


def _is_name(text: str) -> bool:
    return _DATABASE_NAME.fullmatch(text) is not None and not text.endswith(".")


def _digits(number: int) -> str:
    if not 0 <= number <= _LARGEST:
        raise InvalidError(f"number {number} does not fit into a farm path of 12 digits")
    return f"{number:012d}"
