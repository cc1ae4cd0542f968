"""The stages of a growth between the over-grown network and the grown one (Alg. 1): descend, score, choose, commit."""
