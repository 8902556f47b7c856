"""The engine: the step (`core`), how its parts are put together (`build`), and how a front end reaches it
(`client`).
"""
