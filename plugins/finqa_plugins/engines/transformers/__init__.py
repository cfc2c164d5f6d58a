"""Token engine on Hugging Face transformers, for one CPU or one CUDA device."""
