"""How a model's own files become one `tokenizers.Tokenizer`, and how its token texts are spelled."""
