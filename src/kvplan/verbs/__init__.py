"""The verbs: arguments in, the contract's document out."""
