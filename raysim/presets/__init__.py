"""Configurations that ship with raysim; `raysim presets` lists them."""
