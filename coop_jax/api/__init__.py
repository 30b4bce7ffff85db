"""What users call: `remat_train_step`, `fit`, and how a call is dispatched."""
