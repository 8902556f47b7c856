"""KV events: publishes the changes of the prefix cache.

    journal     the events of the latest steps, and the cached blocks after them
    observer    writes the core's events to the journal
    encoding    encodes a step's events as bytes
    publisher   a thread with two sockets: the stream, and replays for subscribers that missed a part of it
    subscriber  the receiver: follows the stream, finds gaps, asks for replays

The engine never waits for the publisher or a subscriber (`Journal`).
"""
