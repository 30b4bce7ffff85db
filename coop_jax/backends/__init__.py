"""What differs between XLA:CPU, XLA:GPU and XLA:TPU, each in a folder of its own."""
