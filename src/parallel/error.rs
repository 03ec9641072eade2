//! What goes wrong between the members of a run.

/// Why members cannot go on together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TeamError {
    /// A member is silent.
    #[error(
        "rank {rank} has not answered for {seconds} s: it hangs, was stopped, or is slower than --timeout \
         allows"
    )]
    Silent {
        /// Its rank.
        rank: usize,
        /// How long it was waited for.
        seconds: u64,
    },
    /// A member has ended.
    #[error("rank {rank} is gone: {why}")]
    Gone {
        /// Its rank.
        rank: usize,
        /// Why, as far as is known.
        why: String,
    },
    /// A member cannot do its part.
    #[error("rank {rank} cannot go on: {why}")]
    Failed {
        /// Its rank.
        rank: usize,
        /// Why, in its own words.
        why: String,
    },
    /// There are more members than shards.
    #[error(
        "this run is cut into {shards} shards, too few for {members} members: take fewer, or raise \
         update.num_shards, the number of groups or the size of a minibatch"
    )]
    TooMany {
        /// Members.
        members: usize,
        /// Shards.
        shards: usize,
    },
    /// Members that do not fit each other.
    #[error("rank {rank} has another {what} than rank 0: {theirs}, not {ours}")]
    Differs {
        /// Whose it is.
        rank: usize,
        /// What differs.
        what: String,
        /// What it is there.
        theirs: String,
        /// What it is at rank 0.
        ours: String,
    },
}
