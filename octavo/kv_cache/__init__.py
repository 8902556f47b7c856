"""The paged KV cache as the scheduler sees it: which blocks hold the KV of which tokens.

Pure bookkeeping: imports only the standard library, numpy, msgspec and `octavo.types`. No tensor is ever
touched here.
"""
