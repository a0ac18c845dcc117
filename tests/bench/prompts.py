"""Natural-language prompts that share no block: they differ from the start."""

from tokenizers import Tokenizer

TOKENS_A_SENTENCE = 14
PLACES = (
    "harbour",
    "mountain",
    "library",
    "railway",
    "garden",
    "factory",
    "hospital",
    "school",
    "market",
    "museum",
)
SUBJECTS = (
    "a teacher",
    "the captain",
    "one engineer",
    "our neighbour",
    "a young doctor",
    "the old farmer",
    "a writer",
)
DEEDS = ("wrote down", "looked at", "talked about", "asked for", "carried away", "remembered", "repaired")
THINGS = (
    "the green door",
    "a large map",
    "many old letters",
    "the last train",
    "fresh bread",
    "a long report",
)
TIMES = ("in the morning", "before the rain", "after a short rest", "on the first day", "late at night")


def prompt(number: int, tokens: int) -> str:
    """Return a text of at least so many tokens; a common word is about one token of the default model."""
    place = PLACES[number % len(PLACES)]
    sentences = [f"This is report number {number} from the {place}. Read it and say what it is about."]
    for turn in range(tokens // TOKENS_A_SENTENCE):
        step = turn * (2 * number + 3) + number
        subject, deed = SUBJECTS[step % len(SUBJECTS)], DEEDS[(step // 2 + turn) % len(DEEDS)]
        thing, moment = THINGS[(step // 3 + turn) % len(THINGS)], TIMES[(step // 5 + turn) % len(TIMES)]
        sentences.append(f"Near the {place} {subject} {deed} {thing} {moment}.")
    return " ".join(sentences)


def prompt_ids(tokenizer: Tokenizer, number: int, tokens: int) -> list[int]:
    """Return the first tokens of one prompt's text."""
    ids = list(tokenizer.encode(prompt(number, tokens + 64)).ids[:tokens])
    assert len(ids) == tokens
    return ids
