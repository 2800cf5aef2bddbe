"""The laboratory: what methods do, measured. It imports the library, never the other way round."""
