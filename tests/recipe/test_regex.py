"""Which regular expressions are served: those that are of one mind about every text."""

import pytest

from recipe.regex import CHARS_MAX, RegexRefused, check


@pytest.mark.parametrize(
    "pattern",
    [
        r"[\w.-]+@[\w-]+\.\w{2,4}",
        r"^[^@\s]+@[^@\s]+\.[^@\s]+$",
        "cat|car|dog",
        r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?",
        r"^\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}(:\d{2})?Z?)?$",
        r"(\d{1,3}\.){3}\d{1,3}",
        r"^(https?://)?[a-z0-9.-]+(/[^\s]*)?$",
        "[a-z]+(-[a-z]+)*",
        r"(\d+,)*\d+",
        "^#[0-9a-fA-F]{6}$",
        r"(yes|no)\$",
        r"[^,]{0,100}(,[^,]{1,100})*",
        ".*foo.*",
        r"a*?b",
        r"\u00e9\x41[\]\-a]",
    ],
)
def test_what_people_write_is_served(pattern: str) -> None:
    check(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "(.{1,60} ?){3}",
        "(.+ ?){1,30}",
        "(.{1,2}){1,64}",
        "(.|..|...){1,60}",
        "(.{1,10}){1,10}",
        "(.?){32}",
        ".?" * 16,
        "(" * 15 + ".+" + ")+" * 15,
        r"(\w+\s?){1,5}",
        "([a-z]+ ?)+",
        ".*a.{20}",
        "(.+,)+.+",
        "a?" * 200,
    ],
)
def test_what_stalled_an_engine_core_is_refused(pattern: str) -> None:
    """Each of them took a mask of xgrammar 0.2.8 from 60 ms to more than 25 s, in a step of all requests."""
    with pytest.raises(RegexRefused, match=r"may also belong|may be empty|begin alike|follow each other"):
        check(pattern)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(?=a)b", "lookahead"),
        ("(?<!a)b", "lookbehind"),
        (r"\bfoo", "word boundary"),
        (r"(a)\1", "reference"),
        (r"\p{L}+", "Unicode class"),
        ("(?i)abc", "flag"),
        ("(?P<n>a)", "named group"),
        ("[[:alpha:]]", "by its name"),
        ("^a$|b", r"\$ in the middle, at position 2"),
        ("a^b", r"\^ in the middle, at position 1"),
        ("(", r"without its \)"),
        ("a)", r"unmatched \)"),
        ("[a", r"without its \]"),
        ("[]", "empty class"),
        ("[z-a]", "backwards"),
        ("a++", "two repetitions"),
        ("*a", "repetition of nothing"),
        ("a{,5}", "counts nothing"),
        ("a{2,1}", "matches nothing"),
        ("a{1001}", "above 1000"),
        ("(a{1000}b){1000}c", "too long"),
        ("", "empty"),
        ("a" * (CHARS_MAX + 1), "more than 512"),
        ("(" * 17 + "a" + ")" * 17, "nested deeper"),
        ("ab" * 140, "more than 256"),
        ("\\", "unknown escape"),
        (r"\q", "unknown escape, at position 0"),
        (r"\x0", "unknown escape"),
    ],
)
def test_what_is_not_served_is_named_with_its_place(pattern: str, why: str) -> None:
    with pytest.raises(RegexRefused, match=why):
        check(pattern)


def test_repetitions_are_counted_as_they_are_written_out() -> None:
    assert check(r"(ab{3}){4}c*").expanded == 17
    assert check(r"x{2,7}|y").count_max == 7
