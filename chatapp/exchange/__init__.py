"""Conversations out of the chat, as Markdown, HTML and JSON, and from JSON back into it."""
