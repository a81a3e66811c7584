"""Names of tables as users write them."""

from __future__ import annotations

import pytest

from wlc.farm.model import Name
from wlc.farm.typed_names import find, is_meant, parts

TABLES = [
    Name("main", "t"),
    Name("main", "T T"),
    Name("Weird name", "t t"),
    Name("s", "a.b"),
    Name("main", "s.c"),
    Name("s", 'q"q'),
    Name("main", "Upper"),
]


@pytest.mark.parametrize("name", TABLES, ids=str)
def test_every_way_to_write_a_name_finds_the_table(name: Name) -> None:
    assert find(name.sql, TABLES) == find(str(name), TABLES) == name
    assert parts(name.sql) == (name.schema, name.name)
    assert is_meant(name, name.sql)
    if name.schema == "main":
        assert find(name.name, TABLES) == name
        assert is_meant(name, Name("x", name.name).sql.partition(".")[2])


def test_the_case_that_is_written_comes_first() -> None:
    both = [Name("main", "t"), Name("main", "T")]
    assert find("T", both) == find('"T"', both) == both[1]
    assert find("UPPER", TABLES) == find('main."upper"', TABLES) == Name("main", "Upper")
    assert find('"weird NAME".T t', TABLES) == Name("Weird name", "t t")
    for wrong in ("", ".", '"t', 't"', "a..b", '"a"b', "x.main.t", "u", '"main.t"'):
        assert find(wrong, TABLES) is None, wrong
