"""Answering a question with options by a letter: the one that is the most probable as the answer's first token."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..asking.thoughts import BEGINS_THOUGHT
from ..errors import NoAnswersError
from .named_choice import LETTERS

# Arguments of `generate`. The logits are the model's own, without penalties of the checkpoint's generation config.
FIRST_TOKEN = {"num_beams": 1, "return_dict_in_generate": True, "output_logits": True}


def letter_answers(tokenizer: Any, logits: Tensor, counts: Sequence[int]) -> list[dict[str, Any]]:
    """Return the most probable letter as the `text` of each answer, and the log-probability of each letter, which may
    have a space before it: what a model writes depends on how its chat template ends.

    Args:
        logits: (B, vocabulary) those of the first token.
        counts: how many options each question has.

    Raises:
        NoAnswersError: if an answer rather begins with a thought, or if a letter is no token.
    """
    thoughts = [i for i, token in tokenizer.added_tokens_decoder.items() if BEGINS_THOUGHT.fullmatch(str(token))]
    tokens = {letter: _tokens(tokenizer, letter) for letter in LETTERS[: max(counts)]}
    found = []
    for row, count in zip(logits.float().log_softmax(dim=-1).cpu(), counts, strict=True):
        logprobs = {letter: round(row[tokens[letter]].logsumexp(0).item(), 4) for letter in LETTERS[:count]}
        likeliest = max(logprobs, key=lambda letter: logprobs[letter])
        if not all(tokens.values()) or any(row[thought] > logprobs[likeliest] for thought in thoughts):
            reason = "the model begins its answers with a thought" if all(tokens.values()) else "a letter is no token"
            raise NoAnswersError(f"{reason}. Read the answers as texts: `letters=False` (--no-letters).")
        found.append({"text": likeliest, "letter_logprobs": logprobs})
    return found


def _tokens(tokenizer: Any, letter: str) -> list[int]:
    forms = [letter, f"Ġ{letter}", f"▁{letter}"]
    ids = tokenizer.convert_tokens_to_ids(forms)  # of unknown ones, that of a token for these
    return [i for form, i in zip(forms, ids) if i is not None and tokenizer.convert_ids_to_tokens(i) == form]
