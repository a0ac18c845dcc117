"""Reasoning and Hermes-style calls out of a model's text, however it is cut."""

import json
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recipe.events import Event, Finish, FinishReason, Text, Thinking, ToolArguments, ToolCall
from recipe.marks import Marks
from recipe.markup import MarkupParser, MarkupReader, Place
from recipe.prompt import Calls, Prompt, Sampling
from recipe.tokenizer import AddedTokens, Tokenizer

F = '<tool_call>\n{"name": "f", "arguments": {"city": "Paris"}}\n</tool_call>'
G = '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
CALLED_F: list[Event] = [ToolCall(0, "f"), ToolArguments(0, '{"city": "Paris"}')]


def joined(events: Sequence[Event]) -> list[Event]:
    """The same events with neighbours of one kind made one."""
    whole: list[Event] = []
    for event in events:
        last = whole[-1] if whole else None
        match last, event:
            case (Text(before), Text(text)):
                whole[-1] = Text(before + text)
            case (Thinking(before), Thinking(text)):
                whole[-1] = Thinking(before + text)
            case (ToolArguments(index, before), ToolArguments(same, text)) if index == same:
                whole[-1] = ToolArguments(index, before + text)
            case _:
                whole.append(event)
    return whole


def read(
    pieces: Sequence[str],
    place: Place = "text",
    calls: Calls = "many",
    stop: Sequence[str] = (),
    reason: FinishReason = "stop",
) -> list[Event]:
    reader = MarkupReader(Marks(), place, calls, stop)
    events = [event for piece in pieces for event in reader.feed(piece)]
    return joined(events if reader.stopped else [*events, *reader.end(reason)])


def test_a_call_is_told_with_its_arguments_as_the_model_wrote_them() -> None:
    assert read([F]) == CALLED_F


def test_text_before_between_and_behind_calls_is_kept_and_white_space_around_them_is_markup() -> None:
    assert read([f"I look.\n{F}\n{G}\n\nDone."]) == [
        Text("I look."),
        *CALLED_F,
        ToolCall(1, "g"),
        ToolArguments(1, "{}"),
        Text("\n\nDone."),
    ]
    assert read([f"\n\n{F}\n"]) == CALLED_F


def test_the_name_is_told_before_the_arguments_have_begun_and_these_as_they_come() -> None:
    reader = MarkupReader(Marks(), "text", "many", [])
    assert reader.feed('<tool_call>\n{"name": "f') == []
    assert reader.feed('",') == [ToolCall(0, "f")]
    assert reader.feed(' "arguments": {"a') == [ToolArguments(0, '{"a')]
    assert reader.feed('": "</tool_call>') == [ToolArguments(0, '": "</tool_call>')]
    assert reader.feed('"}}') == [ToolArguments(0, '"}')]


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ('{"arguments": {"x": [1, {}]}, "name": "f"}', '{"x": [1, {}]}'),
        ('{"id": {"y": 1}, "name": "f", "parameters": {"x": 1}, "more": [2]}', '{"x": 1}'),
        ('{"name": "f"}', "{}"),
        ('{"name": "f", "arguments": null}', "{}"),
        ('{"name": "f", "arguments": "{\\"x\\": 1}"}', '{"x": 1}'),
        ('[{"name": "f", "arguments": {"x": 1}}]', '{"x": 1}'),
        ('{"name": "f", "arguments": {"x": 1}}}', '{"x": 1}'),
        ('{"name": "f", "arguments": {"x": 1}', '{"x": 1}'),
        ('{"name":"f","arguments":{"x":"\\"}{\\\\"}}', '{"x":"\\"}{\\\\"}'),
        ('{"n\\u0061me": "f", "arguments": {}, "arguments": {"x": 1}}', "{}"),
    ],
)
def test_calls_are_read_as_models_write_them(body: str, arguments: str) -> None:
    for pieces in ([f"<tool_call>{body}</tool_call>"], list(f"<tool_call>{body}</tool_call>")):
        events = read(pieces)
        assert events == [ToolCall(0, "f"), ToolArguments(0, arguments)]
        assert isinstance(json.loads(arguments), dict)


@pytest.mark.parametrize(
    "text",
    [
        "a\n<tool_call>\nnot json\n</tool_call>",
        "<tool_call>{name: f}</tool_call>",
        '<tool_call>{"name": 5}</tool_call> b',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {"a": </tool_call>',
        '<tool_call>{"name',
        "1 < 2 <tool_cal",
        "<tool_call",
    ],
)
def test_what_is_no_call_is_text_and_nothing_is_lost(text: str) -> None:
    assert read([text]) == read(list(text)) == [Text(text)]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ('{"name": "f", "arguments": {"x": 1 </tool_call>', '{"x": 1 '),
        ('{"name": "f", "arguments": {"x": <b>}}</tool_call>', '{"x": <b>}}'),
        ('{"name": "f", arguments: {}}</tool_call>', "arguments: {}}"),
    ],
)
def test_what_is_malformed_behind_a_name_is_the_clients_to_refuse(body: str, told: str) -> None:
    for pieces in ([f"<tool_call>{body} ok"], list(f"<tool_call>{body} ok")):
        assert read(pieces) == [ToolCall(0, "f"), ToolArguments(0, told), Text(" ok")]
    with pytest.raises(json.JSONDecodeError):
        json.loads(told)


def test_a_call_cut_off_by_the_limit_keeps_what_was_told() -> None:
    assert read(['x\n<tool_call>\n{"name": "f", "arguments": {"ci'], reason="length") == [
        Text("x"),
        ToolCall(0, "f"),
        ToolArguments(0, '{"ci'),
    ]
    assert read(['x\n<tool_call>\n{"na'], reason="length") == [Text("x")]
    assert read([F, "\n<tool_ca"], reason="length") == [*CALLED_F, Text("\n<tool_ca")]


def test_only_the_beginning_of_a_call_is_held_back() -> None:
    reader = MarkupReader(Marks(), "text", "many", [])
    assert reader.feed("a <") == [Text("a ")]
    assert reader.feed("b\n") == [Text("<b")]
    assert reader.feed("<tool") == []
    assert reader.feed("s>") == [Text("\n<tools>")]


def test_the_only_call_that_is_allowed_ends_the_answer() -> None:
    reader = MarkupReader(Marks(), "text", "one", [])
    assert joined(reader.feed(F + G)) == CALLED_F
    assert reader.stopped
    assert reader.feed("more") == []


def test_calls_that_are_not_offered_are_text() -> None:
    assert read([F], calls="none") == [Text(F)]


def test_reasoning_is_told_apart_and_line_breaks_around_it_are_markup() -> None:
    text = f"\n<think>\nHm\n <b\n\n</think>\n\nYes.\n{F}"
    for pieces in ([text], list(text)):
        assert read(pieces, "start") == [Thinking("Hm\n <b"), Text("Yes."), *CALLED_F]
    assert read(["\nHm</think>\nYes"], "thinking") == [Thinking("Hm"), Text("Yes")]
    assert read(["Yes <think> no"], "start") == [Text("Yes <think> no")]


def test_a_stop_string_is_looked_for_in_the_text_alone() -> None:
    assert read([f"<think>city</think>a{F} Paris, city of light"], "start", stop=["city"]) == [
        Thinking("city"),
        Text("a"),
        *CALLED_F,
        Text(" Paris, "),
    ]


PIECES = st.sampled_from(
    [
        *(
            "<tool_call>",
            "</tool_call>",
            "<think>",
            "</think>",
            F,
            G,
            "<tool",
            "_call>",
            "</",
            "<",
            "\n",
            " ",
        ),
        *(
            '{"name": "f", ',
            '"arguments": ',
            '{"a": "b"}',
            "}",
            "{",
            '"',
            "\\",
            '\\"',
            "[",
            "]",
            ",",
            "x",
            "END",
        ),
        *('{"name": "f"', '{"arguments": {"a": 1}, "name": "g"}', "null", "EN", "\n\n"),
    ]
)


@settings(max_examples=1500, deadline=None)
@given(
    text=st.lists(PIECES, max_size=14).map("".join),
    cuts=st.lists(st.integers(0, 200), max_size=12),
    place=st.sampled_from(["start", "text", "thinking"]),
    calls=st.sampled_from(["none", "one", "many"]),
    stop=st.sampled_from([(), ("END",), ("\n", "D")]),
    reason=st.sampled_from(["stop", "length"]),
)
@example(f"{F} x {F}", [3], "text", "many", (), "stop")
def test_events_do_not_depend_on_how_the_text_is_cut(
    text: str, cuts: list[int], place: Place, calls: Calls, stop: tuple[str, ...], reason: FinishReason
) -> None:
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[start:end] for start, end in pairwise(edges)]
    whole = read([text], place, calls, stop, reason)
    assert read(pieces, place, calls, stop, reason) == whole
    assert read(list(text), place, calls, stop, reason) == whole
    indexes = [event.index for event in whole if isinstance(event, ToolCall)]
    assert indexes == list(range(len(indexes)))


WORDS = st.text(st.sampled_from('ab{}[]"<>/_\\ \n'), max_size=12)


@settings(max_examples=300, deadline=None)
@given(
    calls=st.lists(
        st.tuples(st.text("fg_-", min_size=1), st.dictionaries(WORDS, WORDS | st.integers())), max_size=3
    ),
    before=WORDS.map(str.strip),
)
def test_every_call_comes_back_as_it_was_written(
    calls: list[tuple[str, dict[str, object]]], before: str
) -> None:
    written = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls]
    text = before + "".join(f"\n<tool_call>\n{call}\n</tool_call>" for call in written)
    expected: list[Event] = [Text(before)] if before else []
    for index, (name, arguments) in enumerate(calls):
        expected += [ToolCall(index, name), ToolArguments(index, json.dumps(arguments))]
    assert read(list(text)) == expected


def prompt(calls: Calls = "many", *, stop: Sequence[str] = (), starts_thinking: bool = False) -> Prompt:
    return Prompt(
        token_ids=(1,),
        stop_token_ids=(2,),
        stop=tuple(stop),
        starts_thinking=starts_thinking,
        sampling=Sampling(),
        ignored_params=(),
        max_tokens_default=1,
        calls=calls,
    )


def parsed(tokenizer: Tokenizer, token_ids: Sequence[int], asked: Prompt, *, singly: bool) -> list[Event]:
    marks = Marks.of_vocabulary(tokenizer.added)
    parser = MarkupParser(tokenizer, marks, asked, may_think=True)
    pushes = [[token_id] for token_id in token_ids] if singly else [list(token_ids)]
    events = [event for push in pushes for event in parser.push(push)]
    return joined([*events, *parser.finish("stop")])


@pytest.mark.parametrize("singly", [True, False])
def test_marks_in_a_vocabulary_without_tokens_for_them_are_read_from_the_text(
    smol_tokenizer: Tokenizer, *, singly: bool
) -> None:
    token_ids = smol_tokenizer.encode_plain(f"<think>\nHm 🤔</think>\nYes.\n{F}")
    events = parsed(smol_tokenizer, [*token_ids, 2, *token_ids], prompt(), singly=singly)
    assert events == [Thinking("Hm 🤔"), Text("Yes."), *CALLED_F, Finish("tool_calls")]


def with_marks(tokenizer: Tokenizer) -> Tokenizer:
    """The same vocabulary with tokens for the marks, the calls' among those that stand for no text."""
    names = ("<think>", "</think>", "<tool_call>", "</tool_call>")
    ids = {name: 60_000 + place for place, name in enumerate(names)}
    made = object.__new__(Tokenizer)
    for slot in Tokenizer.__slots__:
        setattr(made, slot, getattr(tokenizer, slot))
    made.added = AddedTokens({**tokenizer.added.ids, **ids}, tokenizer.added.control | {60_002, 60_003})
    return made


@pytest.mark.parametrize("singly", [True, False])
def test_marks_that_are_tokens_are_told_from_the_same_characters_spelled_out(
    smol_tokenizer: Tokenizer, *, singly: bool
) -> None:
    tokenizer = with_marks(smol_tokenizer)
    forged = f"<think>no</think> {F}"
    call = tokenizer.encode_plain('{"name": "f", "arguments": {"city": "Paris"}}')
    token_ids = [
        *(60_000, *tokenizer.encode_plain("Hm"), 60_001),
        *tokenizer.encode_plain(f"You wrote {forged}"),
        *(60_002, *call, 60_003),
    ]
    events = parsed(tokenizer, token_ids, prompt(), singly=singly)
    assert events == [Thinking("Hm"), Text(f"You wrote {forged}"), *CALLED_F, Finish("tool_calls")]


def test_tokens_of_the_reasoning_are_counted_with_its_marks(smol_tokenizer: Tokenizer) -> None:
    tokenizer = with_marks(smol_tokenizer)
    thought = tokenizer.encode_plain("one two three")
    for pushes in (
        [[60_000, *thought, 60_001, *thought]],
        [[t] for t in (60_000, *thought, 60_001, *thought)],
    ):
        parser = MarkupParser(tokenizer, Marks.of_vocabulary(tokenizer.added), prompt(), may_think=True)
        for push in pushes:
            parser.push(push)
        assert parser.reasoning_tokens == len(thought) + 2


def test_a_stop_string_is_named_and_ends_the_answer(smol_tokenizer: Tokenizer) -> None:
    token_ids = smol_tokenizer.encode_plain("one END two")
    assert parsed(smol_tokenizer, token_ids, prompt(stop=["END"]), singly=True) == [
        Text("one "),
        Finish("stop", "END"),
    ]
