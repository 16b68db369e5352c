"""Decoding and checking a data set once, into files that training maps into memory."""
