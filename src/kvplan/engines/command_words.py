"""Words of a pasted command line, split as a POSIX shell would, with nothing expanded and nothing run.

Variables and substitutions stay as they are typed. Line continuations are joined, comments and
redirections dropped, and what blogs and chats do to quotes and dashes is undone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvplan.errors import BadInput, shown

MOST_CHARACTERS = 64 * 1024
_PASTED = {
    "\u2018": "'", "\u2019": "'", "\u201a": "'", "\u201c": '"', "\u201d": '"', "\u201e": '"',
    "\u00a0": " ", "\u2007": " ", "\u202f": " ", "\u3000": " ", "\u200b": "", "\ufeff": "", "\u2060": "",
}  # fmt: skip
_DASHES = "\u2013\u2014\u2015"
_SEPARATORS = ";&|()"


@dataclass(slots=True)
class _Reader:
    """Where the reading of a text stands."""

    text: str
    at: int = 0
    word: list[str] | None = None
    words: list[str] = field(default_factory=list)
    statements: list[list[str]] = field(default_factory=list)

    def peek(self, ahead: int = 0) -> str:
        i = self.at + ahead
        return self.text[i] if i < len(self.text) else ""

    def end_word(self) -> None:
        if self.word is not None:
            self.words.append("".join(self.word))
        self.word = None

    def end_statement(self) -> None:
        self.end_word()
        if self.words:
            self.statements.append(self.words)
        self.words = []


def statements(text: str) -> list[list[str]]:
    """The commands of a text, each a list of words.

    Raises BadInput for text that is empty, far too long, or has a quote that is never closed.
    """
    if not text.strip():
        raise BadInput("--command: empty; paste the command that starts the engine")
    if len(text) > MOST_CHARACTERS:
        raise BadInput(
            f"--command: {len(text):,} characters; a launch command has at most {MOST_CHARACTERS:,}"
        )
    if "\0" in text:
        raise BadInput("--command: holds a NUL character; paste the command as text")
    reader = _Reader(_cleaned(text))
    while reader.at < len(reader.text):
        _step(reader)
    reader.end_statement()
    return reader.statements


def _cleaned(text: str) -> str:
    plain = "".join(_PASTED.get(c, c) for c in text.replace("\r\n", "\n").replace("\r", "\n"))
    lines = []
    for line in plain.split("\n"):
        bare = line.lstrip()
        for prompt in ("$ ", "% "):
            bare = bare.removeprefix(prompt)
        lines.append(bare if bare != line.lstrip() else line)
    return "\n".join(lines)


def _step(r: _Reader) -> None:
    c = r.peek()
    if c == "\\":
        _escape(r)
    elif c in "`^" and r.peek(1) == "\n":  # how PowerShell and cmd join lines
        r.end_word()
        r.at += 2
    elif c in "'\"":
        _quoted(r, c)
    elif c == "`" or (c == "$" and r.peek(1) == "("):
        _substitution(r)
    elif c == "\n":
        _newline(r)
    elif c.isspace():
        r.end_word()
        r.at += 1
    elif c == "#" and r.word is None:
        _comment(r)
    elif c in "<>" or (c == "&" and r.peek(1) == ">"):
        _redirection(r)
    elif c in _SEPARATORS:
        r.end_statement()
        r.at += 1
    else:
        _plain(r, c)


def _plain(r: _Reader, c: str) -> None:
    dash = r.word is None and c in _DASHES
    _push(r, "--" if dash else c)
    r.at += 1


def _push(r: _Reader, piece: str) -> None:
    if r.word is None:
        r.word = []
    r.word.append(piece)


def _escape(r: _Reader) -> None:
    """A backslash: before a line's end (blanks there forgiven) it joins lines, else it quotes a character."""
    end = r.at + 1
    while end < len(r.text) and r.text[end] in " \t":
        end += 1
    if end >= len(r.text) or r.text[end] == "\n":
        if end > r.at + 1:
            r.end_word()
        r.at = end + 1
        return
    _push(r, r.peek(1))
    r.at += 2


def _quoted(r: _Reader, quote: str) -> None:
    start = r.at
    _push(r, "")
    r.at += 1
    while r.at < len(r.text) and r.peek() != quote:
        c = r.peek()
        if c == "\\" and quote == '"' and r.peek(1) in '"\\$`\n':
            _push(r, "" if r.peek(1) == "\n" else r.peek(1))
            r.at += 2
            continue
        _push(r, c)
        r.at += 1
    if r.at >= len(r.text):
        raise BadInput(
            f"--command: a quote is never closed, from {shown(r.text[start : start + 40])}; close it"
        )
    r.at += 1


def _substitution(r: _Reader) -> None:
    """`…` or $(…): kept as typed, to be named and left out, never run."""
    opened, closed = ("`", "`") if r.peek() == "`" else ("(", ")")
    depth, start = 0, r.at
    while r.at < len(r.text):
        c = r.peek()
        _push(r, c)
        r.at += 1
        if c == closed and (depth > 0 if opened == "(" else depth == 1):
            depth -= 1
            if depth == 0:
                return
        elif c == opened:
            depth += 1
    raise BadInput(f"--command: {shown(r.text[start : start + 40])} is never closed; close it")


def _newline(r: _Reader) -> None:
    """A line's end ends the command, unless the next line starts with an option."""
    r.end_word()
    following = r.text[r.at :].lstrip()
    if not following.startswith(("-", *_DASHES)):
        r.end_statement()
    r.at += 1


def _comment(r: _Reader) -> None:
    while r.at < len(r.text) and r.peek() != "\n":
        r.at += 1


def _redirection(r: _Reader) -> None:
    """Skip `> file`, `2>&1`, `&> file`, `< file`."""
    if r.word is not None and "".join(r.word).isdigit():
        r.word = None
    r.end_word()
    while r.at < len(r.text) and r.peek() in "<>&":
        r.at += 1
    while r.at < len(r.text) and r.peek() in " \t":
        r.at += 1
    held, r.words = r.words, []
    while r.at < len(r.text) and not r.peek().isspace() and r.peek() not in _SEPARATORS:
        _step(r)
    r.end_word()
    r.words = held
