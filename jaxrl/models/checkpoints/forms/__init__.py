"""Forms that the tensors of a model take in files, other than one matrix by its usual name."""
