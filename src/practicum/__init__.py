"""Practicum: post-training by practice, from a base model and tasks to a measured, better model."""

__version__ = "0.1.0"
