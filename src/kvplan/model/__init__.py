"""What the model is: a config or a file in, one record out."""
