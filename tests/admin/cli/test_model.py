"""`kvitto model`: aliases as an operator keeps them."""

from tests.admin.cli.conftest import Kvitto

MODEL = "smollm2-135m-instruct"


def test_an_alias_is_set_listed_and_taken_back(kvitto: Kvitto) -> None:
    assert kvitto("model", "alias", "gpt-*").out == f"gpt-* is answered by {MODEL}.\n"
    told = kvitto("model", "alias", "claude-3", MODEL, "--json").told
    assert (told["name"], told["model"], told["kind"], told["served"]) == ("claude-3", MODEL, "alias", True)
    listed = kvitto("model", "list", "--json").told
    assert [(row["name"], row["kind"]) for row in listed] == [
        (MODEL, "model"),
        ("claude-3", "alias"),
        ("gpt-*", "prefix"),
    ]
    assert f"claude-3 {MODEL} alias yes" in " ".join(kvitto("model", "list").out.split())
    assert "is no alias any more" in kvitto("model", "unalias", "gpt-*").out
    kvitto("model", "unalias", "claude-3")
    actions = [deed["action"] for deed in kvitto("audit", "list", "--json").told]
    assert actions[-4:] == ["alias.set", "alias.set", "alias.remove", "alias.remove"]


def test_an_alias_of_what_is_not_served_here_is_set_with_a_word_of_warning(kvitto: Kvitto) -> None:
    assert "who asks gets a 404" in kvitto("model", "alias", "o3", "elsewhere").out
    assert kvitto("model", "unalias", "o3", "--json").told["model"] == "elsewhere"


def test_what_cannot_be_done_is_said_in_a_line(kvitto: Kvitto) -> None:
    nothing = kvitto("model", "unalias", "nobody")
    assert (nothing.status, nothing.err) == (
        1,
        "kvitto: no alias 'nobody': `kvitto model list` shows all of them\n",
    )
    unreadable = kvitto("model", "alias", "a*b")
    assert unreadable.status == 1
    assert "alias 'a*b'" in unreadable.err
