"""Time to first token of the same prompts, cold and after everything was stopped and started again."""

from dataclasses import dataclass
from statistics import median

from tests.bench.prompts import prompt
from tests.bench.row import Row
from tests.bench.stack import Stack

PROMPTS = 5
RATIO_MAX = 1 / 3
# First requests of a process pay for what is loaded lazily, on both sides of the restart.
WARM_UPS = 2


@dataclass(frozen=True, slots=True)
class Answers:
    """One round over all prompts: seconds to first token, prompt tokens, hit tokens, shape `[PROMPTS]`."""

    first_token_s: list[float]
    prompt_tokens: list[int]
    hit_tokens: list[int]


def ask_all(stack: Stack) -> Answers:
    """Ask every prompt once, one after the other."""
    for number in range(WARM_UPS):
        stack.chat(f"Count from {number} to ten.")
    answers = [stack.chat(prompt(number)) for number in range(1, PROMPTS + 1)]
    return Answers(
        first_token_s=[float(answer["first_token_s"]) for answer in answers],
        prompt_tokens=[int(answer["usage"]["prompt_tokens"]) for answer in answers],
        hit_tokens=[int(answer["usage"]["prompt_cache_hit_tokens"]) for answer in answers],
    )


def rows(cold: Answers, stored: Answers) -> list[Row]:
    """Compare two rounds; the ratio is the median of the prompts' own ratios."""
    ratios = [after / before for before, after in zip(cold.first_token_s, stored.first_token_s, strict=True)]
    name = f"first token, {median(cold.prompt_tokens):.0f} tokens"
    return [
        Row(f"{name}, cold", median(cold.first_token_s), "s", remark=_spread(cold)),
        Row(f"{name}, after down and up", median(stored.first_token_s), "s", remark=_spread(stored)),
        Row(
            "first token, stored : cold",
            median(ratios),
            "ratio",
            RATIO_MAX,
            f"worst of {PROMPTS} {max(ratios):.3f}",
        ),
    ]


def _spread(answers: Answers) -> str:
    return (
        f"{min(answers.first_token_s):.3f} to {max(answers.first_token_s):.3f}, "
        f"hits {min(answers.hit_tokens)} to {max(answers.hit_tokens)}"
    )
