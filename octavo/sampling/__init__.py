"""From logits to tokens: the order of the steps, and each step. Knows no model and no request."""
