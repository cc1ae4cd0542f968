"""What a model is made of: its widths, found in its exported graph and proved on the example (Sec. 2.1)."""
