"""What turning conversations into tokens costs, and tokens into chunks.

A conversation of 100 turns and a new message is encoded as a whole and, in turn, by a recipe that has encoded
the 100 turns before; each round has a conversation of its own. DeepSeek's family is measured on the default
model's vocabulary behind DeepSeek's own pre-tokenizer. The corpus is prose, the code of our tests, and what
the tokenizer's own tests encode.
"""

import gc
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

import msgspec
import tokenizers

from admin.stack import model
from gateway.routes.chat import SURFACE
from gateway.writer import StreamWriter
from recipe import registry
from recipe.families.chatml import ChatMl
from recipe.families.deepseek import DeepSeek
from recipe.protocols.chat import ChatRequest, read
from recipe.protocols.chat_answer import AnswerHead, AnswerStyle, ChatStream
from recipe.registry import Recipe
from recipe.tokenizer import Tokenizer
from recipe.usage import Buckets
from tests.bench.prompts import prompt
from tests.bench.row import Row
from tests.recipe.conftest import DEEPSEEK_SPECIALS, DEEPSEEK_STAGES, reference, staged
from tests.recipe.test_tokenizer import CORPUS

ROOT: Final = Path(__file__).parents[2]
TURNS: Final = 100
MESSAGE_TOKENS: Final = 136  # 200 messages of about 150 tokens, as they come out
NEW_TOKENS: Final = 100
CONTEXT_TOKENS: Final = 131_072
ROUNDS: Final = 15
CHUNKS: Final = 2_000

AGAIN_RATIO_MIN: Final = 20.0
TIKTOKEN_RATIO_MIN: Final = 5.0
CHUNK_US_MAX: Final = 30.0


@dataclass(frozen=True, slots=True)
class Round:
    """One conversation both ways, in seconds of processor time: only encoded, and all that `render` does."""

    whole_s: float
    again_s: float
    rendered_whole_s: float
    rendered_again_s: float


def rows(family: str, rounds: Sequence[Round]) -> list[Row]:
    """What both ways take, and the median of the rounds' own ratios."""
    encoded = [each.whole_s / each.again_s for each in rounds]
    rendered = [each.rendered_whole_s / each.rendered_again_s for each in rounds]
    return [
        Row(f"{family}, {TURNS} turns encoded as a whole", _median_ms(each.whole_s for each in rounds), "ms"),
        Row(f"{family}, with one new message", _median_ms(each.again_s for each in rounds), "ms"),
        Row(
            f"{family}, whole : new message",
            median(encoded),
            "ratio",
            floor=AGAIN_RATIO_MIN,
            remark=f"{len(rounds)} rounds, {min(encoded):.1f} to {max(encoded):.1f}",
        ),
        Row(
            f"{family}, the same of all that `render` does",
            median(rendered),
            "ratio",
            remark=f"{_median_ms(each.rendered_again_s for each in rounds):.3f} ms with one new message",
        ),
    ]


def _median_ms(seconds: Iterable[float]) -> float:
    return 1000 * median(seconds)


def body(number: int, *more: str) -> bytes:
    """A conversation that no other number shares a message with, and new messages."""
    said = [prompt(1000 * number + place + 1, MESSAGE_TOKENS) for place in range(2 * TURNS)]
    roles = ("user", "assistant")
    messages = [
        {"role": roles[place % 2], "content": content} for place, content in enumerate([*said, *more])
    ]
    return msgspec.json.encode({"model": "m", "messages": messages, "stop": "###"})


def encoding(recipe: Recipe, request: ChatRequest) -> Callable[[str], Sequence[int]]:
    """What is left to do for a scope when the conversation has been read."""
    if isinstance(recipe, ChatMl):
        template, page = recipe._template, recipe._page(request, request.conversation, "")
        return lambda scope: template.encode(page, scope)
    assert isinstance(recipe, DeepSeek)
    conversation, encoded = request.convert(recipe._options).conversation, recipe._encoded
    return lambda scope: encoded(conversation, scope, "")[0]


def measured(model_dir: Path, rounds: int = ROUNDS) -> list[Round]:
    """Both ways, in turn, on a conversation a round, each behind somebody else's, as in a gateway at work."""
    knowing = registry.load(model_dir, "m", context_tokens=CONTEXT_TOKENS)
    forgetting = registry.load(model_dir, "m", context_tokens=CONTEXT_TOKENS, memo_bytes_max=0)
    done = []
    _freeze()
    for number in range(rounds + 1):
        scope = f"tenant/{number}"
        knowing.render(read(body(number)), scope)
        seconds: list[float] = []
        for order in (1, -1):
            asked = read(body(number, prompt(10**6 + 2 * number + order, NEW_TOKENS)))
            ways: list[Callable[[], object]] = [
                partial(encoding(forgetting, asked), scope),
                partial(encoding(knowing, asked), scope),
            ]
            if order < 0:
                ways = [partial(forgetting.render, asked, scope), partial(knowing.render, asked, scope)]
            taken = []
            for way in ways if number % 2 else ways[::-1]:
                knowing.render(read(body(max(0, number - 1), prompt(number, NEW_TOKENS))), "somebody else")
                taken.append(_seconds(way))
            seconds += taken if number % 2 else taken[::-1]
        done.append(Round(*seconds))
    return done[1:]  # the first round paid for what is loaded lazily


def _seconds(work: Callable[[], object]) -> float:
    """Processor time of this thread, in which all of it is done: other processes do not count."""
    started_s = time.thread_time()
    work()
    return time.thread_time() - started_s


def _freeze() -> None:
    """Keep what was made before the clock starts out of the collector's way."""
    gc.collect()
    gc.freeze()


def corpus() -> list[str]:
    """Prose, code, and what tokenizers stumble over."""
    code = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests").rglob("*.py"))]
    return [*(prompt(number, 1000) for number in range(1, 100)), *code, *(text * 20 for text in CORPUS)]


def tokenizer_rows(ours: Tokenizer, theirs: tokenizers.Tokenizer, rounds: int = 7) -> list[Row]:
    """The corpus by both, in turn, text after text on one core."""
    texts = corpus()
    assert all(ours.encode_plain(text) == theirs.encode(text).ids for text in texts)
    pairs = []
    _freeze()
    for _ in range(rounds):
        theirs_s = _seconds(lambda: [theirs.encode(text).ids for text in texts])
        pairs.append((_seconds(lambda: [ours.encode_plain(text) for text in texts]), theirs_s))
    ratios = [theirs_s / ours_s for ours_s, theirs_s in pairs]
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    return [
        Row("a corpus by tiktoken", median(ours_s for ours_s, _ in pairs), "s", remark=f"{megabytes:.1f} MB"),
        Row("the same by tokenizers", median(theirs_s for _, theirs_s in pairs), "s"),
        Row(
            "tokenizers : tiktoken, time",
            median(ratios),
            "ratio",
            floor=TIKTOKEN_RATIO_MIN,
            remark=f"{rounds} rounds, {min(ratios):.2f} to {max(ratios):.2f}",
        ),
    ]


def chunk_row(family: str, recipe: Recipe, rounds: int = 7) -> Row:
    """Processor time from one token to the bytes of its chunk: parser, stream, frame."""
    asked = read(
        msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stop": "###"})
    )
    rendered = recipe.render(asked)
    token_ids = recipe.tokenizer.encode_plain(prompt(7, CHUNKS))[:CHUNKS]
    if rendered.starts_thinking:
        token_ids[CHUNKS // 2] = recipe.tokenizer.special("</think>")
    taken_us = []
    for _ in range(rounds):
        parser = recipe.parser(rendered)
        stream = ChatStream(
            AnswerHead("chatcmpl-1", "m", 1), AnswerStyle.of(asked, thinking=rendered.starts_thinking)
        )
        writer = StreamWriter(stream, SURFACE.broken)
        writer.prefilled(Buckets(hit=0, miss=1, output=0))
        started_s = time.process_time()
        frames = [writer.events(parser.push((token_id,))) for token_id in token_ids]
        taken_us.append(1e6 * (time.process_time() - started_s) / len(token_ids))
        assert len(frames) - sum(map(bool, frames)) < 10, "hardly a token without a chunk"
    return Row(f"{family}, a token to its chunk, processor time", median(taken_us), "us", CHUNK_US_MAX)


def reading_rows() -> list[Row]:
    """What a body of that length takes before it is encoded; linear in it, turn by turn."""
    text = body(1)
    document = [_seconds(lambda: msgspec.json.decode(text)) for _ in range(ROUNDS)]
    whole = [_seconds(lambda: read(text)) for _ in range(ROUNDS)]
    return [
        Row(
            "reading that body",
            _median_ms(whole),
            "ms",
            remark=f"{len(text):,} bytes; JSON alone {_median_ms(document):.3f} ms",
        )
    ]


def deepseek_model(default: Path, folder: Path) -> Path:
    """The default model's vocabulary as a DeepSeek model's: its pre-tokenizer, its control tokens."""
    changed = tokenizers.Tokenizer.from_file(str(default / "tokenizer.json"))
    changed.pre_tokenizer = staged(*DEEPSEEK_STAGES)
    changed.add_special_tokens(list(DEEPSEEK_SPECIALS))
    changed.save(str(folder / "tokenizer.json"))
    config = {"model_type": "deepseek_v41", "max_position_embeddings": CONTEXT_TOKENS, "eos_token_id": 0}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def measure() -> list[Row]:
    """Both families, the tokenizer and the relay."""
    default = model.prepare_now(ROOT / ".cache")
    with tempfile.TemporaryDirectory() as folder:
        families = {"ChatML": default, "DeepSeek": deepseek_model(default, Path(folder))}
        made = [row for name, model_dir in families.items() for row in rows(name, measured(model_dir))]
        chunks = [chunk_row(name, registry.load(model_dir, "m")) for name, model_dir in families.items()]
    ours = Tokenizer.from_model_dir(default)
    return [*made, *reading_rows(), *tokenizer_rows(ours, reference(default / "tokenizer.json")), *chunks]
