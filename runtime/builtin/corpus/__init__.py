"""Generates the text that the built-in model learns from: seeded dialogues in many phrasings.

One module per subject; an intent is one decorated function there (`registry.intent`), or one table in a TOML file
beside it (`talk.toml`, `facts.toml`, `outside.toml`).
"""
