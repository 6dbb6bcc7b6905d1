"""From a run file to a trained model: batches, the loop, checkpoints, both stages."""
