"""Model files: tensors and metadata of GGUF files and safetensors folders, memory-mapped and checked."""
