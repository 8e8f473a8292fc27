"""The marks that enclose what a model thinks before it answers. Nothing here imports PyTorch."""

import re

BEGINS_THOUGHT, ENDS_THOUGHT = re.compile(r"<think(?:ing)?>|<\|channel>"), re.compile(r"</think(?:ing)?>|<channel\|>")


def begun_thought(prompt: str) -> str:
    """Return the mark of a thought that a prompt begins on its last line, for the model to go on with; "" without."""
    line = prompt.rstrip().rpartition("\n")[2]
    found = BEGINS_THOUGHT.search(ENDS_THOUGHT.split(line)[-1])
    return found[0] if found else ""
