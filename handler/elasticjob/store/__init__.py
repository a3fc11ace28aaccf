"""In the agent: TCPStores of a round, served and reached, by calls that can be abandoned."""
