//! Training, in a worker.
