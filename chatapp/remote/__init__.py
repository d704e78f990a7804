"""Models that a server answers for, over the OpenAI chat API."""
