"""Tables for terminals and text files, by rich: readable at 100 columns, wide ones split in two."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from .content import Table

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 100
EDGES = 2  # of the drawn table, beside its columns
_NARROWEST_HEAD = 8  # a heading may be broken over lines down to this width


def _widths(table: Table) -> list[int]:
    """What each column wants: its widest cell whole; a heading only its longest word."""
    heads = [max(min(len(c), _NARROWEST_HEAD), *(len(w) for w in c.split())) for c in table.columns]
    return [max([head, *(len(row[i]) for row in table.rows)]) for i, head in enumerate(heads)]


def _given(table: Table, width: int) -> list[int]:
    """The width of each column: what it wants, and what is left goes to headings that had to be broken."""
    widths = [min(w, width // 3) for w in _widths(table)]
    left = width - EDGES - sum(w + 2 for w in widths)
    for i, column in enumerate(table.columns):
        more = max(0, min(left, len(column) - widths[i]))
        widths[i] += more
        left -= more
    return widths


def _parts(widths: Mapping[int, int], room: int) -> list[list[int]]:
    """The columns in their order, as many in each part as fit into the room, at least one."""
    parts: list[list[int]] = [[]]
    left = room
    for i, wide in widths.items():
        if parts[-1] and wide > left:
            parts.append([])
            left = room
        parts[-1].append(i)
        left -= wide
    return parts


def split(table: Table, width: int = WIDTH) -> list[Table]:
    """The table, or as few parts as fit, about equally wide; every part repeats the columns that name the case."""
    widths = [w + 2 for w in _widths(table)]
    most = width - sum(widths[: table.names]) - EDGES
    numbers = dict(enumerate(widths[table.names :], table.names))
    fewest = len(_parts(numbers, most))
    rooms = range(min(most, sum(numbers.values()) // fewest), most + 1)  # the least that needs no more parts
    parts = next(p for p in (_parts(numbers, room) for room in rooms) if len(p) == fewest)
    if len(parts) == 1:
        return [table]
    chosen = [[*range(table.names), *part] for part in parts]
    return [
        Table(
            title=f"{table.title}, part {n} of {len(parts)}",
            columns=tuple(table.columns[i] for i in part),
            names=table.names,
            rows=tuple(tuple(row[i] for i in part) for row in table.rows),
            notes=table.notes if n == len(parts) else (),
        )
        for n, part in enumerate(chosen, 1)
    ]


def print_tables(tables: Iterable[Table], console: Console) -> None:
    """Print each table with its notes; never wider than the console, at most `WIDTH` columns."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    width = min(WIDTH, console.width)
    for table in (part for whole in tables for part in split(whole, width)):
        drawn = RichTable(
            title=Text(table.title), title_justify="left", box=box.SIMPLE_HEAD, title_style="bold", padding=(0, 1, 0, 0)
        )
        widths = _given(table, width)
        for i, column in enumerate(table.columns):
            drawn.add_column(
                Text(column),
                justify="left" if i < table.names else "right",
                vertical="bottom",
                overflow="fold",
                width=widths[i],
            )
        for row in table.rows:
            drawn.add_row(*(Text(cell) for cell in row))
        console.print(drawn, width=width)
        for note in table.notes:
            console.print(Text(note), style="dim", width=width)
        console.print()


def print_notices(notices: Sequence[str], console: Console) -> None:
    """The notices as a list; nothing if there are none."""
    from rich.text import Text

    if notices:
        console.print(Text("Read this first"), style="bold")
        for notice in notices:
            console.print(Text(f"- {notice}"), width=min(WIDTH, console.width))
        console.print()


def as_text(tables: Iterable[Table], notices: Sequence[str] = (), head: Sequence[str] = ()) -> str:
    """What `print_tables` shows, as plain text of at most `WIDTH` columns."""
    from rich.console import Console

    out = io.StringIO()
    console = Console(file=out, width=WIDTH, color_system=None, force_terminal=False, legacy_windows=False)
    for line in head:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if head:
        console.print()
    print_notices(notices, console)
    print_tables(tables, console)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"
