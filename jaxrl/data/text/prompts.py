"""Where a prompt ends and its answers begin, in the layouts in which these repeat it."""

from __future__ import annotations

import re

from jaxrl.data.text.messages import Message, Text


def divide(prompt: Text, pair: tuple[Text, Text], where: str) -> tuple[Text, tuple]:
    """The prompt of a preference and its answers without it."""
    chosen, rejected = pair
    if chosen == rejected:
        raise ValueError(f"{where}: chosen and rejected are equal")
    if isinstance(chosen, str) != isinstance(rejected, str):
        raise ValueError(f"{where}: one answer is a text and the other a list of messages")
    if isinstance(chosen, str) and isinstance(rejected, str):
        if not prompt:
            return _divided(chosen, rejected, where)
        dialogue = isinstance(prompt, str) and _TURN.search(prompt) and _OTHER.search(f"\n{prompt}")
        if dialogue and chosen.startswith(prompt) and rejected.startswith(prompt):  # as in HH-RLHF
            return prompt, (chosen[len(prompt) :], rejected[len(prompt) :])
        return prompt, pair
    same = 0
    while same < min(len(chosen), len(rejected)) and chosen[same] == rejected[same]:
        same += 1
    if same == min(len(chosen), len(rejected)):
        raise ValueError(f"{where}: one conversation is the beginning of the other")
    if isinstance(prompt, str) and not prompt and not same:
        raise ValueError(f"{where}: the conversations have no common beginning, so no prompt")
    divided = (chosen[same:], rejected[same:])
    # conversations that repeat their prompt are as good as those that do not
    shared, asked = _contents(chosen[:same]), _contents(prompt)
    if same and (not prompt or shared == asked):
        return chosen[:same], divided
    if not any(_is_whole(prompt, answer) for answer in (chosen, rejected)):
        return prompt, pair
    if same and _holds(shared, asked):
        return chosen[:same], divided
    if same and asked[-same:] == shared:
        return prompt, divided
    raise _other_prompt(where)


def without_prompt(prompt: Text, answer: Text, where: str) -> tuple[Text, Text]:
    """A prompt and its answer, where the answer may be the conversation that begins with it."""
    if isinstance(answer, str) or not _is_whole(prompt, answer):
        return prompt, answer
    shared, asked = _contents(answer[:-1]), _contents(prompt)
    if _holds(shared, asked):
        return answer[:-1], answer[-1:]
    if shared and asked[-len(shared) :] == shared:
        return prompt, answer[-1:]
    raise _other_prompt(where)


def _other_prompt(where: str) -> ValueError:
    return ValueError(
        f"{where}: the answer is a conversation that begins otherwise than with the prompt; leave "
        "one of them out of the row (--data.columns.prompt '' ignores the column of a preference)"
    )


def _is_whole(prompt: Text, answer: tuple[Message, ...]) -> bool:
    """Whether an answer is a conversation, whose first turn is what a prompt already holds."""
    answered = not isinstance(prompt, str) and prompt[-1]["role"] == "assistant"
    return not answered and answer[0]["role"] in ("system", "user")


def _contents(text: Text) -> list[str]:
    """The contents of a prompt, without its form and the white space around each."""
    texts = [text] if isinstance(text, str) else [str(turn["content"]) for turn in text]
    return [content.strip() for content in texts]


def _holds(texts: list[str], run: list[str]) -> bool:
    """Whether a list has another as a run of its elements."""
    return any(texts[at : at + len(run)] == run for at in range(len(texts)))


def has_question(text: str) -> bool:
    """Whether a text is a dialogue that begins with its question, as in HH-RLHF."""
    turn = _OTHER.match("\n" + text.lstrip())
    return turn is not None and _TURN.search(text) is not None


_TURN = re.compile(r"(?:^|\n)(?:Assistant|ASSISTANT|assistant|AI|Bot):")
_OTHER = re.compile(r"\n(?:Human|HUMAN|human|User|USER|user):")


def _divided(chosen: str, rejected: str, where: str) -> tuple[str, tuple[str, str]]:
    """The common beginning of two texts as their prompt, and what follows: it ends with its last
    sign of the assistant's turn; without one, at its last space or line break."""
    pairs = zip(chosen, rejected, strict=False)
    same = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(chosen), len(rejected)))
    ends = [match.end() for match in _TURN.finditer(chosen[:same])]
    at = ends[-1] if ends else max(chosen.rfind(" ", 0, same), chosen.rfind("\n", 0, same))
    answers = (chosen[at:], rejected[at:])
    if at <= 0 or not all(answer.strip() for answer in answers):
        raise ValueError(f"{where}: a preference of texts needs a prompt, or a common beginning")
    if ends and any(_OTHER.search(answer) for answer in answers):
        raise ValueError(f"{where}: the conversations differ before the last turn of the assistant")
    return chosen[:at], answers
