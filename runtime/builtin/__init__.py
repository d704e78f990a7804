"""The built-in model: a small one of architecture qwen35, and the recipe that makes it."""
