"""The functions that users call: `remat_train_step`, `fit`; and the dispatch of a call."""
