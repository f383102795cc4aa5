"""Requests on an engine: what they wait for, and how fast they are answered."""
