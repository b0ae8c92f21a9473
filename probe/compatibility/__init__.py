"""Tiny random models of every text architecture that transformers maps to language modelling, to test against."""
