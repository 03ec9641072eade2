//! Exchange of completions between ranks, as bytes.

use super::LanguageTrainError;
use crate::parallel::{Team, TeamError};
use crate::task::Rewards;
use crate::text::generate::Completion;
use bytemuck::Pod;

/// The completions of a prompt; all lists are in the same order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct CompletionGroup {
    pub completions: Vec<Completion>,
    /// Text of each completion.
    pub texts: Vec<String>,
    pub rewards: Vec<Rewards>,
}

/// Gathers the completions of all ranks, in rank order; `ours` are this rank's.
pub(super) fn gather_completions(
    team: &Team,
    ours: Result<Vec<CompletionGroup>, LanguageTrainError>,
) -> Result<Vec<CompletionGroup>, LanguageTrainError> {
    if team.size() == 1 {
        return ours;
    }
    let parts = gather_bytes(team, ours.map(|groups| encode_groups(&groups)))?;
    let mut all = Vec::new();
    for (rank, bytes) in parts.iter().enumerate() {
        let unreadable_error =
            || TeamError::Failed { rank, reason: "its completions cannot be read".to_string() };
        all.extend(decode_groups(bytes).ok_or_else(unreadable_error)?);
    }
    Ok(all)
}

/// Gathers bytes from all ranks, in rank order.
///
/// # Errors
/// If one rank passes an error instead: all then fail with its rank and reason, so that none waits for it. If a rank
/// fails or does not respond.
pub(super) fn gather_bytes(
    team: &Team,
    ours: Result<Vec<u8>, LanguageTrainError>,
) -> Result<Vec<Vec<u8>>, LanguageTrainError> {
    if team.size() == 1 {
        return Ok(vec![ours?]);
    }
    let (ours, error) = match ours {
        Ok(ours) => (ours, String::new()),
        Err(error) => (Vec::new(), error.to_string()),
    };
    let errors = team.all_gather(error.as_bytes())?;
    if let Some(rank) = errors.iter().position(|error| !error.is_empty()) {
        let reason = String::from_utf8_lossy(&errors[rank]).into_owned();
        return Err(TeamError::Failed { rank, reason }.into());
    }
    Ok(team.all_gather(&ours)?)
}

/// Encodes groups as bytes, which [`decode_groups`] decodes.
fn encode_groups(all: &[CompletionGroup]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for CompletionGroup { completions, texts, rewards } in all {
        put_count(&mut bytes, completions.len());
        for ((completion, text), rewards) in completions.iter().zip(texts).zip(rewards) {
            put(&mut bytes, &completion.tokens);
            put(&mut bytes, &completion.logprobs);
            put(&mut bytes, &completion.entropies);
            put_count(&mut bytes, completion.candidates.len());
            completion.candidates.iter().for_each(|candidates| put(&mut bytes, candidates));
            bytes.push(u8::from(completion.is_terminated));
            put(&mut bytes, text.as_bytes());
            // Judged rewards are finite, and JSON keeps them to the last bit.
            put(&mut bytes, &serde_json::to_vec(rewards).expect("rewards are plain data"));
        }
    }
    bytes
}

fn put<T: Pod>(bytes: &mut Vec<u8>, values: &[T]) {
    put_count(bytes, values.len());
    bytes.extend_from_slice(bytemuck::cast_slice(values));
}

fn put_count(bytes: &mut Vec<u8>, count: usize) {
    bytes.extend((count as u32).to_le_bytes());
}

/// Parses the result of [`encode_groups`]; `None` if it is malformed.
fn decode_groups(bytes: &[u8]) -> Option<Vec<CompletionGroup>> {
    let mut bytes = ByteReader(bytes);
    let mut all = Vec::new();
    while !bytes.0.is_empty() {
        let mut group = CompletionGroup::default();
        for _ in 0..bytes.read_count()? {
            group.completions.push(Completion {
                tokens: bytes.read_values()?,
                logprobs: bytes.read_values()?,
                entropies: bytes.read_values()?,
                candidates: (0..bytes.read_count()?)
                    .map(|_| bytes.read_values())
                    .collect::<Option<_>>()?,
                is_terminated: bytes.read_flag()?,
            });
            group.texts.push(bytes.read_text()?);
            group.rewards.push(serde_json::from_slice(&bytes.read_values::<u8>()?).ok()?);
        }
        all.push(group);
    }
    Some(all)
}

/// Bytes that are still to be read.
struct ByteReader<'a>(&'a [u8]);

impl<'a> ByteReader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn read_count(&mut self) -> Option<usize> {
        let [bytes] = self.take(4)?.as_chunks().0 else { return None };
        Some(u32::from_le_bytes(*bytes) as usize)
    }

    fn read_flag(&mut self) -> Option<bool> {
        Some(self.take(1)?[0] != 0)
    }

    fn read_values<T: Pod>(&mut self) -> Option<Vec<T>> {
        let count = self.read_count()?;
        Some(bytemuck::pod_collect_to_vec(self.take(count.checked_mul(size_of::<T>())?)?))
    }

    fn read_text(&mut self) -> Option<String> {
        String::from_utf8(self.read_values()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parallel::tests::run_on_ranks;

    fn groups(count: usize) -> Vec<CompletionGroup> {
        let completion = |count: usize| Completion {
            tokens: (0..count as u32).map(|i| i << 13).collect(),
            logprobs: (0..count).map(|i| -1.0 / (i + 3) as f32).collect(),
            entropies: vec![f32::MIN_POSITIVE; count],
            candidates: (0..count as u32 / 2).map(|i| (0..i).collect()).collect(),
            is_terminated: count.is_multiple_of(2),
        };
        let rewards = |count: usize| match count {
            1 => Rewards::unjudged(2, "it is late – très".to_string()),
            _ => Rewards::new(vec![1.0 / 3.0, count as f64]),
        };
        let group = |count: usize| CompletionGroup {
            completions: (0..count).map(completion).collect(),
            texts: (0..count).map(|i| "é".repeat(i)).collect(),
            rewards: (0..count).map(rewards).collect(),
        };
        (0..count).map(group).collect()
    }

    #[test]
    fn messages_round_trip_and_truncated_ones_are_rejected() {
        let all = groups(4);
        let bytes = encode_groups(&all);
        assert_eq!(decode_groups(&bytes), Some(all.clone()));
        let is_prefix =
            |end: usize| decode_groups(&bytes[..end]).is_none_or(|some| all.starts_with(&some));
        assert!((0..bytes.len()).all(is_prefix));
        assert_eq!(decode_groups(&bytes[..bytes.len() - 1]), None);
        assert_eq!(decode_groups(&[255; 9]), None);
    }

    #[test]
    fn a_failure_in_one_process_ends_all_and_names_it() {
        run_on_ranks(3, |team| {
            let three = gather_completions(&team, Ok(groups(team.rank()))).unwrap();
            assert_eq!(three, [groups(0), groups(1), groups(2)].concat());
            let failed = LanguageTrainError::NoSolution("sums".to_string());
            let ours = if team.rank() == 1 { Err(failed) } else { Ok(groups(2)) };
            let error = gather_completions(&team, ours).unwrap_err().to_string();
            assert!(error.starts_with("rank 1 failed: the task sums"), "{error}");
        });
    }
}
