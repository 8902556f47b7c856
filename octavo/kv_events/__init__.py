"""KV events: the prefix cache's content, published as it changes.

    journal     the latest steps' events, and what is cached after them, between engine and publisher
    observer    fills the journal from what the core reports
    encoding    a step's events as bytes
    publisher   a thread with two sockets: the stream, and replays for those who missed a part of it
    subscriber  the other end: follows the stream, notices gaps, asks for replays

The engine never waits for any of it: see `Journal`.
"""
