"""Many rows in one statement whose text does not depend on how many: an array a column, unnested."""

from collections.abc import Mapping, Sequence

from sqlalchemy import Table, TableValuedAlias, bindparam, column, func
from sqlalchemy.dialects.postgresql import ARRAY


def unnested(table: Table, names: Sequence[str]) -> TableValuedAlias:
    """Rows with these columns of ``table``, bound by ``arrays`` when executed."""
    columns = [table.c[name] for name in names]
    values = func.unnest(*(bindparam(f"all_{c.name}", type_=ARRAY(c.type)) for c in columns))
    rows = values.table_valued(*(column(c.name, c.type) for c in columns), name="rows")
    return rows.render_derived()


def arrays(rows: Sequence[Mapping[str, object]], names: Sequence[str]) -> dict[str, list[object]]:
    """The parameters of ``unnested``."""
    return {f"all_{name}": [row[name] for row in rows] for name in names}
