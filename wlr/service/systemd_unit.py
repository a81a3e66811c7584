"""A hardened unit of systemd for the service, which restarts it when it dies or hangs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from wlc.farm.errors import InvalidError
from wlr.service.settings import FeedItem, RelayItem, ReplicaItem, SiteItem
from wlr.service.wildcards import PLACEHOLDER

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wlr.service.settings import ServiceSettings

NAME = "dbfarm.service"
FOLDER = Path("/etc/systemd/system")
STATE = Path("/var/lib/dbfarm")

_UNIT = """\
# Made by `wlr serve --install`; change it with `systemctl edit {name}`.
[Unit]
Description=dbfarm: replicas, feeds, relays and farms of {config}
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
ExecStart={command}
ExecReload=/bin/kill -HUP $MAINPID
Restart=always
RestartSec=5s
# Restarting does not help against an invalid configuration.
RestartPreventExitStatus=2
# Time to finish the current step.
TimeoutStopSec=10min
TimeoutStartSec=5min
WatchdogSec=2min
# Credentials, such as AWS_ACCESS_KEY_ID=…; readable by root only.
EnvironmentFile=-{environment}

{user}
StateDirectory=dbfarm
StateDirectoryMode=0700
Environment=HOME={state}
UMask=0077
{writable}

NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome={home}
PrivateTmp=yes
PrivateDevices=yes
PrivateUsers=yes
ProtectClock=yes
ProtectHostname=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectProc=invisible
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
RemoveIPC=yes
KeyringMode=private
CapabilityBoundingSet=
AmbientCapabilities=
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""


def unit_text(program: str, config: Path, settings: ServiceSettings, user: str | None = None) -> str:
    """Return the text of the unit.

    Args:
        program: Path of `wlr`.
        config: The file of settings.
        settings: The settings, with the folders in which the service writes.
        user: User of the service; the owner of the folders if omitted, or, without folders, a dynamic user.

    Raises:
        InvalidError: A path cannot be written into a unit, or the folders have several owners.
    """
    folders = sorted(set(_folders(settings)))
    everything = [program, str(config), *folders]
    if odd := [each for each in everything if any(ord(letter) < 0x20 or letter in '"\\' for letter in each)]:
        raise InvalidError(f"{odd[0]!r} cannot be written into a unit", hint="give it a name without quotes")
    user = user or _owner(folders)
    command = " ".join(_quoted(each, is_command=True) for each in (program, "serve", str(config)))
    in_home = any(each.startswith(("/home/", "/root/", "/run/user/")) for each in everything)
    return _UNIT.format(
        name=NAME,
        state=STATE,
        config=str(config).replace("%", "%%"),
        command=command,
        environment=str(config.with_suffix(".env")).replace("%", "%%"),
        user=f"User={user}" if user else "DynamicUser=yes",
        # systemd does not start with a missing folder, unless a dash permits it.
        writable="\n".join(f"ReadWritePaths={_quoted(f'-{each}')}" for each in folders),
        home="no" if in_home else "yes",
    )


def _owner(folders: Sequence[str]) -> str | None:
    """Return the owner of the existing folders; None if there are none besides the service's own."""
    outside = [Path(each) for each in folders if not Path(each).is_relative_to(STATE)]
    owners = sorted({folder.owner() for folder in outside if folder.is_dir()})
    if len(owners) > 1:
        message = f"the folders in which the service writes belong to {', '.join(owners)}"
        raise InvalidError(message, hint=f"wlr serve --unit --user {owners[0]}")
    return owners[0] if owners else None


def _quoted(text: str, *, is_command: bool = False) -> str:
    text = text.replace("%", "%%")
    text = text.replace("$", "$$") if is_command else text
    return f'"{text}"' if any(letter in text for letter in " '\t;") else text


def _folders(settings: ServiceSettings) -> Iterator[str]:
    """Return the local folders in which the service writes: those of farms, replicas, feeds, relays and metrics."""
    places = [(farm.url, True) for farm in settings.farms.values()]
    for item in settings.items.values():
        if isinstance(item, ReplicaItem):
            places.append((item.into, False))
        elif isinstance(item, SiteItem):
            places.append((item.source, False))
        elif isinstance(item, FeedItem) or (isinstance(item, RelayItem) and item.to not in settings.farms):
            places.append((item.to, isinstance(item, RelayItem)))
    if settings.options.metrics:
        places.append((settings.options.metrics, False))
    for place, is_folder in places:
        if not urlsplit(place).scheme:
            # Replacing a file needs its folder.
            fixed, of_many, _ = place.partition(PLACEHOLDER)
            yield str(Path(place) if is_folder and not of_many else Path(f"{fixed}x" if of_many else place).parent)
