"""Practice: decks of questions, answers as people type them, and what went wrong in one."""
