"""The reference backend: numpy, float32, eager. Slow and plainly right, it is what every other backend is
compared with.
"""
