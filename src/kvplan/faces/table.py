"""The plain table every report is made of, and where it is printed."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

Row = tuple[str, str, str]
_PIPE_WIDTH = 110


def console() -> Console:
    """Standard output; where it is no terminal, plain and of a fixed width."""
    out = Console(highlight=False, soft_wrap=True)
    return out if out.is_terminal else Console(highlight=False, soft_wrap=True, width=_PIPE_WIDTH)


def lines(out: Console, rows: list[Row]) -> None:
    """Print rows as name, value and remark, the values right-aligned."""
    table = Table.grid(padding=(0, 2), pad_edge=False)
    for _ in range(3):
        table.add_column()
    table.columns[1].justify = "right"
    for name, value, remark in rows:
        table.add_row(Text(name), Text(value, style="bold"), Text(remark, style="dim"))
    out.print(table)
