"""`octavo bench`: how fast Octavo is on this machine, measured."""
