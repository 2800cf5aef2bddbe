"""Files of weights: families of Hugging Face, adapters of PEFT, GGUF, quantised tensors."""
