"""Plans carried out on a torch module: stages cut from it, and an interpreter of operations with exact gradients."""
