"""Write the table of docs/limits.md that says what a compressed prompt is refused with, from the code's own tables.

python -m benchmarks.refusal_table
"""

from vidcom2.modeling.prompt.call_description import TABLES

from .pages import write_tables

PAGE = "docs/limits.md"


def refusal_table() -> str:
    rows = [(refusal.asked, refusal.instead) for table in TABLES for refusal in table]
    lines = ["| asked for | instead |", "|---|---|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


if __name__ == "__main__":
    write_tables([PAGE], "refusals", {"compressed-prompt": refusal_table()})
