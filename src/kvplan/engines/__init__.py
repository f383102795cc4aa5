"""How an engine spends memory."""
