"""The forms of a prompt."""

from typing import TypedDict


class TokensPrompt(TypedDict):
    prompt_token_ids: list[int]
