"""Measures of the screen, each against its aim: `qwenchat bench ui`."""
