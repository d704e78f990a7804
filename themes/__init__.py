"""Colour themes: TOML files turned into Textual themes."""
