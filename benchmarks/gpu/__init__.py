"""What the learner, the engine and the whole loop do on a CUDA device, on models of random weights."""
