"""The models that can be run, by the architecture that their files name."""
