"""The embedded data set: ten digits in four domains, a Parquet file each (see ATTRIBUTION.md)."""
