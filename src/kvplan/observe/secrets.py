"""Keys, tokens and passwords that stand in a log: taken out before anything of it is kept."""

from __future__ import annotations

import re

MASK = "***"
# Settings whose value is a secret, however they are written: name=value, 'name': 'value', --name value.
_NAMES = (
    r"(?:[a-z0-9_-]*(?:api[_-]?key|access[_-]?key|private[_-]?key|secret|passw(?:or)?d|passphrase|credential|"
    r"bearer|auth[_-]?token|access[_-]?token|hf[_-]?token|hub[_-]?token|github[_-]?token|session[_-]?token|"
    r"security[_-]?token)(?:[_-]?(?:key|id|token))?s?"
    r"|authorization|token)"
)
_VALUE = (
    r"(?:\[[^\]]{0,4096}\]|'[^']{0,4096}'|\"[^\"]{0,4096}\"|"
    r"(?:bearer|basic|token)\s+[^\s,;)}\]'\"]+|[^\s,;)}\]'\"]+)"
)
_SETTING = re.compile(
    rf"(?P<name>(?<![A-Za-z0-9]){_NAMES}\\?[\"']?\s*[:=]\s*|--{_NAMES}\s+){_VALUE}", re.IGNORECASE
)
# Secrets known by their own look, wherever they stand.
_SHAPES = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"hf_[A-Za-z0-9]{16,}|api_org_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|nvapi-[A-Za-z0-9_-]{16,}|"
    r"gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}|xox[abprs]-[A-Za-z0-9-]{10,}|"
    r"A(?:KIA|SIA)[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{30,}|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"
    r")"
)
_USER = re.compile(r"(?<=://)[^/\s@'\"]{1,512}@")
_QUERY = re.compile(
    r"([?&](?:[a-z0-9_.-]*(?:token|key|sig|signature|secret|password|credential)[a-z0-9_.-]*)=)[^&\s'\"]+",
    re.IGNORECASE,
)
# What must be in a text for any of these to apply: a cheap test for the many lines without secrets.
_HINT = re.compile(
    r"key|token|secret|passw|passphrase|credential|bearer|authorization|://|hf_|sk-|nvapi-|gh[pousr]_|github_pat|"
    r"glpat-|xox|AKIA|ASIA|AIza|eyJ|api_org_",
    re.IGNORECASE,
)


def redacted(text: str) -> str:
    """The text with every secret in it replaced."""
    if not _HINT.search(text):
        return text
    found = _USER.sub(f"{MASK}@", text)
    found = _QUERY.sub(rf"\1{MASK}", found)
    found = _SHAPES.sub(MASK, found)
    return _SETTING.sub(lambda match: f"{match['name']}{MASK}", found)
