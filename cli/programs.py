"""The two programs: which commands each has, and in which groups and order help and docs/cli.md list them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Group:
    """Commands behind one word, such as `wlc site`."""

    summary: str
    commands: tuple[str, ...]


@dataclass(frozen=True)
class Program:
    """A program, in the order of its first screen.

    Attributes:
        name: What is typed.
        summary: What `--help` opens with.
        start: Command lines to begin with, each with what it does. They work in this order.
        tasks: What people come for every day, and the commands for it.
        groups: All other commands, by the word before them.
    """

    name: str
    summary: str
    start: Mapping[str, str] = field(default_factory=dict)
    tasks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    groups: Mapping[str, Group] = field(default_factory=dict)

    @property
    def paths(self) -> tuple[str, ...]:
        """All commands, such as `status` and `site join`, in the order of help."""
        daily = (name for names in self.tasks.values() for name in names)
        return (*daily, *(f"{word} {name}" for word, group in self.groups.items() for name in group.commands))


WLC = Program(
    "wlc",
    "Capture what a master database commits and publish it to a farm.",
    {
        "wlc master sales.duckdb --create": "make a database a master",
        'wlc sql sales.duckdb "CREATE TABLE t (id INT)"': "write to it",
        "wlc status sales.duckdb": "see what is published",
        "wlr replicate sales.duckdb --into copy.duckdb": "make a replica",
        "wlc list": "see how all databases are",
    },
    {
        "Write and publish": ("master", "sql", "exec", "run", "flush", "beat", "snapshot", "stop"),
        "Look": ("status", "tick", "clock", "log", "list", "doctor"),
        "Go back and delete": ("undo", "prune", "retention"),
    },
    {
        "site": Group(
            "Several masters of one database: join, take, roles, rules.",
            ("join", "take", "list", "role", "rule", "leave", "conflicts", "exceptions"),
        ),
        "tier": Group(
            "Copies of a farm, and who reads which: ship, push, show.",
            ("ship", "push", "upstream", "fanout", "show", "set"),
        ),
        "farm": Group(
            "What a farm holds: verify, repair, tags, readers, keys.",
            ("verify", "repair", "tag", "replicas", "forget", "derive", "report", "key"),
        ),
    },
)

WLR = Program(
    "wlr",
    "Roll a replica forward from a farm: to the end, to a time, or to a transaction.",
    {
        "wlr replicate sales.duckdb --into copy.duckdb": "make a replica",
        "wlr replicate --into copy.duckdb": "roll it forward",
        "wlr status copy.duckdb": "see where it is",
        "wlr replicate --into copy.duckdb --tick 1": "go back to a transaction",
        "wlr verify copy.duckdb": "compare it with the log",
    },
    {
        "Replicate": ("replicate", "feed", "serve", "beat"),
        "Look": ("status", "tick", "clock"),
        "Check and mend": ("verify", "repair", "accept", "promote"),
    },
    {
        "rows": Group("Changes of rows: list them, compare two transactions.", ("diff", "changes")),
        "lake": Group("Replicas of Parquet files: list, attach, prune.", ("files", "attach", "prune")),
        "replica": Group(
            "Care of a replica: pause, unlock, switch, drop, retry, drill.",
            ("pause", "resume", "lock", "unlock", "switch", "drop", "retry", "drill"),
        ),
    },
)

# Names of parameters that few need, by the heading under which a command's help lists them.
_SOURCES = ("upstream", "registry", "class_name")
_FILTERS = ("where", "columns", "mask", "mask_key")
HEADINGS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "wlc master": {"PostgreSQL": ("tables", "yes", "print_sql"), "Several sites": ("site", "mesh")},
    "wlc tier ship": {
        "Where it reads": (*_SOURCES, "no_register"),
        "The relay": ("fanout", "keep", "prune_every", "target_option"),
        "Pushing": ("pushes",),
    },
    "wlc farm derive": {"Rows and columns": _FILTERS},
    "wlr replicate": {
        "Rows and columns": (*_FILTERS, "change_filters"),
        "Where it reads": (*_SOURCES, "delay", "register"),
        "DuckDB files": ("adopt", "swap", "storage_version"),
        "Parquet": ("keep", "open_tables", "engine", "spark_master"),
        "PostgreSQL": ("access",),
    },
    "wlr feed": {
        "Where it reads": _SOURCES,
        "Much at once": ("max_bytes", "drop", "rotate"),
        "Kafka": ("transactional", "output_option"),
    },
    "wlr serve": {"A unit of systemd": ("unit", "install", "user", "folder")},
}


def namesakes(program: str, name: str) -> list[str]:
    """Return the commands and groups of both programs whose last word is `name`, those of `program` first."""
    both = sorted((WLC, WLR), key=lambda each: each.name != program)
    return [f"{each.name} {path}" for each in both for path in (*each.paths, *each.groups) if path.split()[-1] == name]
