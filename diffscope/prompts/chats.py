"""Write chats as a tokenizer's template does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from diffscope.errors import PromptError, translated
from diffscope.fields import shown
from diffscope.prompts.encoded import ChatText

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def write_chat(messages: Sequence, tokenizer: PreTrainedTokenizerBase | None) -> ChatText:
    """Write a chat with the tokenizer's template; unless its last message is the assistant's, with what begins the answer.

    Raises PromptError if it is no chat of text alone, there is no tokenizer or template, or the template refuses it.

    Parameters
    ----------
    messages : sequence of dict
        Each with a ``role`` and ``content``, a text or parts of text.
    """
    for number, message in enumerate(messages):
        _check_message(number, message)
    if tokenizer is None:
        raise PromptError("this model came without a tokenizer; give the chat as token ids")
    if not getattr(tokenizer, "chat_template", None):
        raise PromptError("the tokenizer has no chat template; give the chat as text, or set tokenizer.chat_template")
    answer_next = messages[-1]["role"] != "assistant"
    chat = [dict(message) for message in messages]
    with translated(PromptError, "the tokenizer's chat template refuses this chat", "change it, or give it as text"):
        text = str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=answer_next))
    for parts in (message["content"] for message in chat if isinstance(message.get("content"), (list, tuple))):
        # A template that knows no parts writes them as Python does, or leaves them out.
        if str(parts) in text or not all(part["text"].strip() in text for part in parts):
            raise PromptError("the tokenizer's chat template takes no content in parts; give each message's content as one text")
    return ChatText(text)


def _check_message(number: int, message: Any) -> None:
    """Raise PromptError unless a message is one of a chat, made of text alone."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise PromptError(f"message {number} of the chat is {shown(message)}; a message is {{'role': …, 'content': …}}")
    content = message.get("content")
    if isinstance(content, str) or (content is None and message.get("tool_calls")):
        return
    if not isinstance(content, (list, tuple)) or not content:
        raise PromptError(f"the content of message {number} of the chat is {shown(content)}; give a text, or parts of text")
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else part
        if kind != "text" or not isinstance(part.get("text"), str):
            words = "{'type': 'text', 'text': …}"
            raise PromptError(f"message {number} of the chat has a part {shown(kind)}; diffscope reads text alone: {words}")
