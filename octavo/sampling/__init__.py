"""Sampling of tokens from logits. Depends on no model and no request."""
