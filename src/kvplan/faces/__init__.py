"""How it is seen: no arithmetic here."""
