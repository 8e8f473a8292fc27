"""This room holds the methods, which choose the tokens that stay. They work on tensors and know no models."""
