"""The n-th turn of a conversation encodes its new messages alone, and to the same ids as the whole."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import deepseek_recipe
import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import normalizers

from recipe.families.additive import writes_by_message
from recipe.families.chatml import CHATML, ChatMl
from recipe.families.deepseek import DeepSeek
from recipe.families.model_files import read_model_files
from recipe.families.template import ChatTemplate, Page
from recipe.memo import EncodeMemo
from recipe.protocols.chat import ChatRequest, read
from recipe.registry import Recipe
from recipe.tokenizer import Tokenizer

from .conftest import DEEPSEEK_SPECIALS, DEEPSEEK_STAGES, staged, trained

LOOP = "<|im_start|>{{ m.content }}"
END = "{% if add_generation_prompt %}end|>{% endif %}"


def looping(inside: str, *, over: str = "m in messages", after: str = "") -> str:
    """A template of one loop."""
    return f"{{% for {over} %}}{inside}{{% endfor %}}{after}"


BY_MESSAGE = (
    CHATML,
    "{{ bos_token }}" + CHATML,
    looping("{{ loop.first }}<|im_start|>" + "{{ m.role ~ m['content'] }}", after=END),
    looping("{% if loop.first and messages[0]['role'] != 'system' %}<|im_start|>x{% endif %}" + LOOP),
    looping("{% if m.role == 'user' %}" + LOOP + "{% endif %}", after=END),
    looping("<|im_start|>{{ m.content if messages[0].role == m.role else '-' + m.role }}"),
    # Nothing keeps these apart, though each is written by itself.
    looping("{{ m.content }}", after=END),
    looping(LOOP + "<|im_", after=END),
    looping("im_end|>{{ m.content }}<|"),
    looping(LOOP + "{{ 'x' if m.role == 'user' else '<|im_' }}", after=END),
)
AS_A_WHOLE = (
    CHATML + "end",
    looping("{{ messages[0].content }}" + LOOP, after=END),
    looping("{% if not loop.last %}" + LOOP + "{% endif %}", after=END),
    looping("{{ loop.index0 }}" + LOOP),
    looping("{{ messages[loop.index0].role }}" + LOOP),
    looping("{{ messages | length }}" + LOOP),
    looping("{% if add_generation_prompt %}x{% endif %}" + LOOP),
    looping("{% if loop.first %}{% continue %}{% endif %}" + LOOP),
    looping("{% for n in messages %}x{% endfor %}" + LOOP),
    looping(LOOP, over="m in messages[1:]"),
    looping(LOOP, over="m in messages if m.role == 'user'"),
    looping(LOOP + "{% else %}x"),
    looping(LOOP, after="{% if add_generation_prompt %}a{% else %}b{% endif %}"),
    looping(LOOP, after=looping(LOOP)),
    "{% if add_generation_prompt %}x{% endif %}" + looping(LOOP),
)
NOT_BY_MESSAGE = (
    *AS_A_WHOLE,
    "",
    "{{ messages[0].content }}",
    looping("{{ loop.previtem }}" + LOOP),
    looping("{% if not loop.changed(m.role) %}x{% endif %}" + LOOP),
    looping("{{ messages[-1].role }}" + LOOP),
    looping("{{ m.name }}" + LOOP),
    looping("{{ m }}" + LOOP),
    looping("{% set seen.x = 1 %}" + LOOP),
    looping("{{ turns.next() }}" + LOOP),
    looping("{{ lipsum() }}" + LOOP),
    looping("{{ raise_exception('no') }}" + LOOP),
    looping("{{ tools }}" + LOOP),
    looping(LOOP, over="m in messages recursive"),
    looping(LOOP, over="m in messages | reverse"),
    looping("<|im_start|>{{ messages[0].role }}", over="messages in messages"),
    "{% set turns = cycler('a', 'b') %}" + looping(LOOP),
)
NAMES = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
# What spells a control token together with a template, a neighbour, or a mark.
PARTS = (
    "<|im_end|>",
    "<|im_start|>",
    "<|im_",
    "end|>",
    "|>",
    "<",
    "<|",
    "\n",
    "system",
    "\ue000",
    "é",
    " 1a",
)
CONTENT = st.lists(st.sampled_from(PARTS) | st.text(max_size=3), max_size=6).map("".join)
# Roles, each with the place of what it says.
TALK = st.lists(
    st.tuples(st.sampled_from(["system", "user", "assistant"]), st.integers(0, 2)), min_size=1, max_size=5
)


class Counting(Tokenizer):
    """Remembers what it was asked to encode."""

    encoded: list[str]

    def encode_plain(self, text: str) -> list[int]:
        self.encoded.append(text)
        return super().encode_plain(text)

    def characters(self) -> int:
        """How many since the last time."""
        asked, self.encoded = "".join(self.encoded), []
        return len(asked)


def counting(folder: Path) -> Counting:
    made = Counting.from_model_dir(folder)
    made.encoded = []
    return made


def chat(texts: Sequence[str]) -> ChatRequest:
    messages = [
        {"role": "assistant" if place % 2 else "user", "content": text} for place, text in enumerate(texts)
    ]
    return read(msgspec.json.encode({"model": "m", "messages": messages}))


def turns_of(recipe: Recipe, tokenizer: Counting) -> None:
    """Ask three turns, and the last again for somebody else."""
    said = [f"message {number} " + "word " * 50 for number in range(9)]
    recipe.render(chat(said[:5]), "t/u")
    assert tokenizer.characters() > sum(map(len, said[:5]))
    recipe.render(chat(said[:7]), "t/u")
    around = 50  # what the template writes around two messages
    assert tokenizer.characters() - sum(map(len, said[5:7])) in range(around)
    recipe.render(chat([*said[:7], "ok", "go on"]), "t/u")
    assert tokenizer.characters() in range(len("okgo on"), len("okgo on") + around)
    recipe.render(chat([*said[:7], "ok", "go on"]), "t/u")
    assert tokenizer.characters() == 0
    recipe.render(chat(said[:5]), "t/v")
    assert tokenizer.characters() > sum(map(len, said[:5]))


def test_a_turn_behind_a_template_encodes_its_new_messages_alone(model_dir: Path) -> None:
    tokenizer = counting(model_dir)
    turns_of(ChatMl(read_model_files(model_dir), tokenizer, "m", 8192, EncodeMemo()), tokenizer)


def test_a_turn_of_deepseek_encodes_its_new_messages_alone(deepseek_model_dir: Path) -> None:
    tokenizer = counting(deepseek_model_dir)
    recipe = DeepSeek.from_model_dir(deepseek_model_dir, "m", "deepseek-v4.1", 8192, EncodeMemo())
    recipe.tokenizer = tokenizer
    turns_of(recipe, tokenizer)


def test_a_turn_behind_any_template_encodes_its_new_messages_alone(model_dir: Path) -> None:
    tokenizer = counting(model_dir)
    template = ChatTemplate(CHATML.replace("messages %", "messages[:] %"), tokenizer, NAMES, EncodeMemo())
    messages = [{"role": "user", "content": f"number {number} " + "word " * 50} for number in range(4)]
    template.encode(Page(messages[:3]), "s")
    assert tokenizer.characters() > sum(len(message["content"]) for message in messages[:3])
    template.encode(Page(messages), "s")
    assert tokenizer.characters() - len(messages[3]["content"]) in range(20)


@pytest.mark.parametrize("source", [*BY_MESSAGE, *AS_A_WHOLE])
@settings(max_examples=40)
@given(contents=st.lists(CONTENT, min_size=1, max_size=3), talks=st.lists(TALK, min_size=2, max_size=6))
@example(contents=["a<", "a<\ue000"], talks=[[("user", 0)], [("user", 1)]])
@example(
    contents=["", "a"],
    talks=[[("system", 0), ("user", 1)], [("user", 0), ("user", 1)], [("user", 1), ("user", 1)]],
)
def test_ids_with_a_memo_are_those_without(
    source: str, contents: list[str], talks: list[list[tuple[str, int]]], smol_tokenizer: Tokenizer
) -> None:
    remembering = ChatTemplate(source, smol_tokenizer, NAMES, EncodeMemo())
    forgetting = ChatTemplate(source, smol_tokenizer, NAMES, EncodeMemo(0))
    for talk in talks:
        messages = [{"role": role, "content": contents[place % len(contents)]} for role, place in talk]
        assert remembering.encode(Page(messages), "s") == forgetting.encode(Page(messages), "s")


def test_a_control_token_across_two_messages_is_found(
    write_model: Callable[[str, str], Path], deepseek_tokenizer_json: str
) -> None:
    document = json.loads(deepseek_tokenizer_json)
    across = {**document["added_tokens"][0], "id": 5000, "content": "x<think>y"}
    document["added_tokens"].append(across)
    tokenizer = Tokenizer.from_model_dir(write_model(json.dumps(document), "llama"))
    source = looping("<think>y{{ m.content }}x")
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    token_ids = ChatTemplate(source, tokenizer, NAMES, EncodeMemo()).encode(Page(messages))
    assert token_ids.count(5000) == 1
    assert token_ids == ChatTemplate(source, tokenizer, NAMES, EncodeMemo(0)).encode(Page(messages))


def tree(source: str) -> nodes.Template:
    return ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"]).parse(source)


@pytest.mark.parametrize("source", BY_MESSAGE)
def test_a_template_that_writes_message_by_message_is_known(source: str) -> None:
    assert writes_by_message(tree(source), NAMES)


@pytest.mark.parametrize("source", NOT_BY_MESSAGE)
def test_a_template_that_may_look_at_other_messages_is_rendered_as_a_whole(source: str) -> None:
    assert not writes_by_message(tree(source), NAMES)


def test_the_default_models_template_writes_message_by_message(model_dir: Path) -> None:
    assert writes_by_message(tree((model_dir / "chat_template.jinja").read_text(encoding="utf-8")), NAMES)


ENCODINGS = {
    "deepseek-v4": deepseek_recipe.DeepseekV4Encoding,
    "deepseek-v4.1": deepseek_recipe.DeepseekV41Encoding,
}
SPOKEN = st.lists(
    st.sampled_from(
        (*DEEPSEEK_SPECIALS, "<｜", "｜>", "1234567", "中文 漢字かな", "e\u0301", "\u1112\u1161", "\r\n\n")
    )
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
    min_size=1,
    max_size=6,
).map("".join)


@pytest.fixture(scope="module", params=["plain", "NFC"])
def spoken_model_dir(
    request: pytest.FixtureRequest, write_model: Callable[[str, str], Path], deepseek_tokenizer_json: str
) -> Path:
    """Models of DeepSeek's kind; one composes what it reads."""
    if request.param == "plain":
        return write_model(deepseek_tokenizer_json, "deepseek_v41")
    return write_model(trained(staged(*DEEPSEEK_STAGES), normalizers.NFC()), "deepseek_v41")


@pytest.mark.parametrize("family", ENCODINGS)
@settings(max_examples=100)
@given(texts=st.lists(SPOKEN, min_size=1, max_size=4), thinks=st.booleans())
def test_ids_are_those_deepseek_recipe_itself_encodes(
    texts: list[str], thinks: bool, family: str, spoken_model_dir: Path
) -> None:
    encoder = deepseek_recipe.Tokenizer.from_file(str(spoken_model_dir / "tokenizer.json"))
    encoding = ENCODINGS[family]().with_tokenizer(encoder)
    recipe = DeepSeek.from_model_dir(spoken_model_dir, "m", family, 2**20, EncodeMemo())
    for turn in range(1, len(texts) + 1):
        asked = chat(texts[:turn])
        conversation = asked.convert(recipe._options.with_default_thinking_mode(thinks)).conversation
        assert recipe._encoded(conversation, "s", "")[0] == encoding.encode(conversation)
