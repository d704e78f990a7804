"""The model runtime: tokens in, tokens out."""
