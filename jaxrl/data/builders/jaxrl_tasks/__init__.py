"""The bundled tasks as a TFDS data set."""
