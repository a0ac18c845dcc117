"""How long `kvitto up` takes until the stack answers, everything being installed and the model turned."""

from tests.bench.row import Row

UP_S_MAX = 90.0


def rows(fresh_s: float, warm_s: float) -> list[Row]:
    """Compare the first start of a data directory, which turns the model once, with one after it."""
    return [
        Row("kvitto up, fresh data directory", fresh_s, "s"),
        Row("kvitto up, warm", warm_s, "s", UP_S_MAX),
    ]
