"""Check what a user asks about a video: a text, a chat, or several of these. Nothing here imports PyTorch."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

from ..errors import OptionError, brief, did_you_mean

Message: TypeAlias = Mapping[str, Any]
Chat: TypeAlias = Sequence[Message]
Prompt: TypeAlias = str | Chat

ROLES = ("system", "developer", "user", "assistant", "tool")
ABOUT_ONE_VIDEO = "For other chats call the processor and the model's own `generate`."


def prompts_of(question: Any) -> list[Prompt]:
    """Return the texts or chats of a call as a list. `is_single` says whether the caller passed one or a list.

    Raises:
        OptionError: on anything other than texts and chats, and on a text or a chat that cannot be asked.
    """
    prompts = [question] if is_single(question) else list(question) if _is_list(question) else []
    if not prompts:
        raise OptionError(
            f"`question` is {brief(question)}, but must be text, a chat (a list of messages), or a list of several of "
            "these."
        )
    for prompt in prompts:
        if isinstance(prompt, str) and not prompt.strip():
            raise OptionError(f"`question` is {brief(prompt)}. Ask something about the video.")
        chat_about(prompt)
    return prompts


def is_single(question: Any) -> bool:
    """Return whether the caller asks a single text or a single chat, not a list of these."""
    return isinstance(question, str) or (_is_list(question) and len(question) > 0 and isinstance(question[0], Mapping))


def chat_about(prompt: Prompt) -> list[dict[str, Any]]:
    """Return the chat for the processor's template, with exactly one placeholder for the video in it.

    Args:
        prompt: a text, or a chat. In a chat without a `{"type": "video"}`, the video comes before the user's first
            text. If the assistant's words end it, the model continues them.

    Raises:
        OptionError: on a chat that is not about one video, or does not end with text of the user or the assistant.
    """
    if isinstance(prompt, str):
        check_characters(prompt)
        return [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": prompt}]}]
    if not _is_list(prompt) or not all(isinstance(message, Mapping) for message in prompt):
        raise OptionError(
            f"`question` holds {brief(prompt)}, but each entry must be text or a chat, a list of messages."
        )
    chat = [_message(cast(Message, message)) for message in prompt]
    user_messages = [message for message in chat if message["role"] == "user"]
    ends = bool(chat) and chat[-1]["role"] in ("user", "assistant")
    if not user_messages or not ends or not any(part["type"] == "text" for part in chat[-1]["content"]):
        raise OptionError(
            f"`question` is the chat {brief(prompt)}, which does not end with text of the user, or with words of the "
            "assistant to continue after a question of the user."
        )
    num_videos = sum(part["type"] == "video" for message in chat for part in message["content"])
    if num_videos > 1:
        raise OptionError(f"`question` is a chat with {num_videos} videos, but must be about one. {ABOUT_ONE_VIDEO}")
    if num_videos == 0:
        user_messages[0]["content"].insert(0, {"type": "video"})
    return chat


def _message(message: Message) -> dict[str, Any]:
    """Return a message whose content is a list of parts. Raises an OptionError if it cannot be asked."""
    content = message.get("content")
    if not isinstance(message.get("role"), str) or not (isinstance(content, str) or _is_list(content)):
        raise OptionError(
            f"`question` is a chat with the message {brief(dict(message))}. A message has a `role` and a `content`: "
            '{"role": "user", "content": "What happens?"}.'
        )
    if message["role"] not in ROLES:
        raise OptionError(
            f"`question` is a chat with the role {brief(message['role'])}, but roles are {', '.join(ROLES)}."
            f"{did_you_mean(message['role'], ROLES)}"
        )
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else list(cast(Sequence, content))
    for part in parts:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "video" and message["role"] != "user":
            raise OptionError(
                f"`question` is a chat with the video in a message of the {message['role']}. Put it into the user's."
            )
        if kind == "video" and set(part) > {"type"}:
            raise OptionError(
                "`question` is a chat that brings its own video, but the video is an argument of `ask`. Pass it there, "
                'and write only {"type": "video"} in the chat.'
            )
        is_text = kind == "text" and isinstance(part.get("text"), str)
        is_text = is_text and (message["role"] != "user" or part["text"].strip())  # a model's answer may be empty
        if kind != "video" and not is_text:
            raise OptionError(
                f"`question` is a chat with {brief(part)}, but may hold only text and the video. {ABOUT_ONE_VIDEO}"
            )
        check_characters(part.get("text", ""))
    return {**message, "content": [dict(part) for part in parts]}


def check_characters(text: str) -> None:
    """Raise an OptionError on halves of characters, which JSON can hold and no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise OptionError(
            f"the text {text[:80]!r} has half of a character at place {error.start}, which is no text in UTF-8. Write "
            "it anew."
        ) from None


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)
