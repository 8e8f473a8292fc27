"""Measuring how good answers are, with all tokens and with several methods of compression."""
