"""The side that speaks text: tokenizers, chat templates, detokenization, requests in, outputs out."""
