"""GGUF, llama.cpp's format: read through the loader of `interop.hf`, under its own tensor names."""
