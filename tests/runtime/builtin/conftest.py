"""Shared pieces of the built-in model's tests."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from runtime.builtin.corpus.registry import World
from runtime.builtin.corpus.tour import DEFAULT_TOUR, Tour, read_tour
from runtime.builtin.held_out import reserved
from runtime.builtin.vocabulary import pieces, train_vocabulary

VOCABULARY = 1024


@pytest.fixture(scope="session")
def tour() -> Tour:
    return read_tour(DEFAULT_TOUR)


@pytest.fixture(scope="session")
def tokenizer(tour: Tour) -> Tokenizer:
    return train_vocabulary(World(tour), VOCABULARY, seed=0, documents=3000)


@pytest.fixture(scope="session")
def world(tour: Tour, tokenizer: Tokenizer) -> World:
    return World(tour, pieces(tokenizer), reserved(tour))
