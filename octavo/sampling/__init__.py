"""Samples tokens from logits. Knows no model and no request."""
