"""Models: what a model file says of itself (`spec`), and one module per family, written in the `Ops`
vocabulary.
"""
