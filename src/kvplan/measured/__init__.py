"""What this machine does: its memory, its arithmetic and a real model on it, timed."""
