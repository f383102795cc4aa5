"""The user's token for the Hugging Face Hub, read where huggingface_hub keeps it; no request is made."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvplan.errors import BadInput, shown

VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


@dataclass(frozen=True, slots=True)
class Token:
    """A token, what it was read from, and what to do when it is refused. Its text is never shown."""

    text: str
    where: str
    remedy: str

    def __repr__(self) -> str:
        return f"Token({self.where})"


def find_token(constants: Any) -> Token | None:
    """The token of HF_TOKEN, else of the file that `hf auth login` wrote; None without one.

    `constants` are huggingface_hub's. A login that has run out is not renewed: renewing asks the Hub
    without a bound. Raises BadInput for a token that no request can carry.
    """
    if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN:
        return None
    for name in VARIABLES:
        text = os.environ.get(name, "").strip()
        if text:
            return _checked(Token(text, name, f"set a valid one, or unset {name}"))
    path = Path(constants.HF_TOKEN_PATH)
    try:
        text = path.read_text("utf-8").strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise BadInput(
            f"MODEL: the token in {shown(str(path))} cannot be read ({reason}); run hf auth login"
        ) from None
    return _checked(Token(text, str(path), "run hf auth login, or hf auth logout")) if text else None


def _checked(token: Token) -> Token:
    strange = next((c for c in token.text if not "!" <= c <= "~"), None)
    if strange is not None:
        raise BadInput(
            f"MODEL: the token in {token.where} holds {strange!a}, which no token has; {token.remedy}"
        )
    return token
