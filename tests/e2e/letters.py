"""Plain English of about 1,200 tokens, another text for each seed; two of them share no block."""

import random

MONTHS = ("January", "March", "April", "June", "August", "October", "November")
PEOPLE = (
    "mayor",
    "oldest farmer",
    "new schoolteacher",
    "baker's daughter",
    "harbour master",
    "chapel organist",
)
TOWNS = ("Lindby", "Marholm", "Great Oakley", "Fiskvik", "Stonebridge", "Ashford", "Nordheim")
DEEDS = (
    "bought a wooden bridge from the neighbouring parish",
    "planted forty apple trees along the northern road",
    "wrote a long letter about the price of wool",
    "found a silver coin under the floor of the mill",
    "opened a small library above the market hall",
)
ENDS = (
    "nobody spoke of anything else until the first snow",
    "the river stayed within its banks for a whole year",
    "three families moved to the coast in the spring",
    "the church bell was rung twice on every Sunday",
)


def letter(seed: int, lines: int = 45) -> str:
    """A letter that asks for one of its towns; a line is about 26 tokens."""
    chosen = random.Random(seed)  # noqa: S311 -- repeatable prose, no secret
    written = [
        f"In {chosen.choice(MONTHS)} {chosen.randint(1700, 1990)} the {chosen.choice(PEOPLE)} of "
        f"{chosen.choice(TOWNS)} {chosen.choice(DEEDS)}, and {chosen.choice(ENDS)}."
        for _ in range(lines)
    ]
    return "Read this chronicle.\n" + "\n".join(written) + "\nName one town of the chronicle."
