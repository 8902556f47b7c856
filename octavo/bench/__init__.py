"""`octavo bench`: measures how fast Octavo is on this machine."""
