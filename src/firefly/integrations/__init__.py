"""Growth inside the tools that people work with; each file imports its tool as it is used."""
