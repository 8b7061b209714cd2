"""Wire structs, content keys and the error tree. Torch-free; imports nothing of this project."""
