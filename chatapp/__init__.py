"""The terminal chat: what the user sees."""
