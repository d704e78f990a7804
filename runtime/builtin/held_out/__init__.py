"""The held-out dialogues: written by hand, apart from the grammar of the corpus, with other words and other values."""
