"""Plain data that passes between the parts of the engine, and the protocols between these parts.

Values and protocols have no behaviour but validation and derived quantities. Of octavo, these modules import
only each other and `octavo.errors`.
"""
