"""The store: a folder of Parquet files that holds an extraction."""
