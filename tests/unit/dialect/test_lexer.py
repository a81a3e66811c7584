"""SQL text as tokens: places, depths and names, for every kind of text and however it is broken."""

from __future__ import annotations

import itertools
import random

import duckdb
import pytest

from wlc.dialect.duckdb.lexer import Token, numbered, tokens, unquoted, words

PIECES = (
    "a b_1 'x' 'it''s' \"Q\" \"q\"\"q\" $1 ? ?2 ( ) , . 1.5 é 'ü' \"É\" SELECT update [ ] { } :: ->> $$z'$$ 1e5 ; € \\ '"
).split() + ["-- c\n", "/* d */", " ", "\n", "\r", "\u2028", "E'\\''"]


def test_fields() -> None:
    found = tokens("SELECT f(\"a b\", 'x', 1) -- ;\n FROM t;")
    assert found[:4] == [
        Token("keyword", "SELECT", "SELECT", 0, 0),
        Token("identifier", "f", "F", 7, 0),
        Token("operator", "(", "", 8, 0),
        Token("identifier", '"a b"', "", 9, 1),
    ]
    assert [token.text for token in found[4:]] == [",", "'x'", ",", "1", ")", "FROM", "t", ";"]
    assert [token.name for token in found if token.is_string] == ["x"]
    assert {token.depth for token in found[9:]} == {0}


def test_tokens_lie_where_they_say() -> None:
    chance = random.Random(5)
    for _ in range(3000):
        text = "".join(chance.choice(PIECES) + chance.choice(["", " "]) for _ in range(chance.randint(0, 12)))
        found = tokens(text)
        assert [text[token.start : token.end] for token in found] == [token.text for token in found]
        assert all(one.end <= other.start for one, other in itertools.pairwise(found))


def test_a_comment_ends_where_duckdb_ends_it() -> None:
    assert [token.text for token in tokens("a -- b\r c /* /* */ d */ e")] == ["a", "c", "e"]


def test_spaces_that_duckdb_takes_for_letters_belong_to_the_name() -> None:
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE t\u2028 (a INTEGER)")
        ((name,),) = connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()
    assert name in words("DELETE FROM t\u2028 WHERE a = 1")


def test_words_of_quoted_names() -> None:
    assert {"my table", 'a"b', "update"} <= words('UPDATE "My Table" SET "a""b" = 1')


@pytest.mark.parametrize("text", ["SELECT '?', ?, \"?\" -- ?\n, ?", "SELECT '?', $1, \"?\" -- ?\n, $2"])
def test_numbered(text: str) -> None:
    assert numbered(text) == "SELECT '?', $1, \"?\" -- ?\n, $2"
    assert numbered("SELECT 'é', ?2, ?") == "SELECT 'é', $2, $1", "numbers stay"


@pytest.mark.parametrize(
    ("text", "name"), [('"a""b"', 'a"b'), ("'it''s'", "it's"), ("T", "T"), ('"', '"'), ("'x", "'x"), ("", "")]
)
def test_unquoted(text: str, name: str) -> None:
    assert unquoted(text) == name
