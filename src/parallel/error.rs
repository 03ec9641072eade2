//! Errors between the ranks of a run.

/// The reason why the ranks cannot continue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TeamError {
    /// A rank has not sent a message within the timeout.
    #[error(
        "rank {rank} has not answered for {seconds} s: it hangs, was stopped, or is slower than --timeout \
         allows"
    )]
    TimedOut {
        /// The rank that does not respond.
        rank: usize,
        /// The timeout, seconds.
        seconds: u64,
    },
    /// A rank has ended.
    #[error("rank {rank} has ended: {reason}")]
    Ended {
        /// The rank that ended.
        rank: usize,
        /// The reason, if known.
        reason: String,
    },
    /// A rank reported an error.
    #[error("rank {rank} failed: {reason}")]
    Failed {
        /// The rank that failed.
        rank: usize,
        /// The rank's error message.
        reason: String,
    },
    /// There are more ranks than shards.
    #[error(
        "this run has {shards} shard{}, too few for {ranks} ranks: use fewer ranks, or raise \
         update.num_shards, the number of groups or the minibatch size",
        if *shards == 1 { "" } else { "s" }
    )]
    TooManyRanks {
        /// Number of ranks.
        ranks: usize,
        /// Number of shards.
        shards: usize,
    },
    /// The ranks were started with different versions, settings or data.
    #[error("rank {rank} has a different {what} from rank 0: {theirs} instead of {ours}")]
    Differs {
        /// The rank that differs from rank 0.
        rank: usize,
        /// The item that differs.
        what: String,
        /// The item's text on this rank.
        theirs: String,
        /// The item's text on rank 0.
        ours: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_shard_is_counted_as_one() {
        let text = |shards| TeamError::TooManyRanks { ranks: 5, shards }.to_string();
        assert!(text(1).starts_with("this run has 1 shard, too few for 5 ranks"), "{}", text(1));
        assert!(text(4).starts_with("this run has 4 shards, too few for 5 ranks"), "{}", text(4));
    }
}
