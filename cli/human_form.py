"""What a command found, for a person: what is wrong first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wlc.farm.human_form import in_words, is_absent, label

from .output import Fields, record

if TYPE_CHECKING:
    from collections.abc import Collection


def for_person(found: Any, wrong: Collection[str], unknown: Collection[str] = ()) -> Fields:
    """Report a dataclass field by field; on a terminal, a person sees it in units, without what is absent.

    Args:
        found: The dataclass.
        wrong: Names of fields that say what is wrong, or out of the ordinary, unless they are absent or false. They
            come first, in this order.
        unknown: Names of fields whose absence says that they could not be found out.
    """
    plain = record(found)

    def shown() -> Fields:
        there = {name: value for name, value in plain.values.items() if not is_absent(value)}
        first = {name: there[name] for name in wrong if there.get(name)}
        first |= {name: "unknown" for name in unknown if name not in there}
        return Fields({label(name): in_words(name, value) for name, value in (first | there).items()})

    return Fields(plain.values, on_terminal=shown)


def counted(number: int, what: str) -> str:
    """Write a number with its noun, such as `1 batch`."""
    plural = "es" if what.endswith("ch") else "s"
    return f"{number:,} {what}{'' if number == 1 else plural}"
