"""The attacks of `campaign.py`, one file each; an attack is a function (count, folder, seed) -> Tally."""
