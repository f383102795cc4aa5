"""The compiled heart of `simulate`: arrays in, arrays out. It knows no engine by name."""
