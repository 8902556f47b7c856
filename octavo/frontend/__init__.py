"""The side of the engine that speaks text: tokenizers, chat templates, detokenization, requests in and
outputs out."""
