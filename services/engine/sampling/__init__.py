"""Logits to tokens: penalties, truncation, seeds, grammars."""
