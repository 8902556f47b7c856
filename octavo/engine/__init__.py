"""The engine: the step (`core`), how it is put together (`build`) and how it is reached (`client`)."""
