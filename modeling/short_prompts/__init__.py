"""Prompts that have a placeholder for each token that stays: this room writes them and lays them out."""
