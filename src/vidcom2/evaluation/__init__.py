"""How good answers are: questions with known answers, methods side by side."""
