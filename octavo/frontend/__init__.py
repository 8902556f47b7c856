"""The front end: tokenizers, chat templates, requests to the core, and its outputs as text."""
