"""spmdsim: see, run and choose the layouts of distributed tensors."""
