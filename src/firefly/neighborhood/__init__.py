"""The neighbourhood of a network (Sec. 2.2): kinds of growth, and the over-grown network f_{ε,δ} with all of them."""
