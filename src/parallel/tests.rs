//! Collective operations between threads of this process.

use super::*;

/// Limit of every wait, which ends a hang.
pub const HANG: Duration = Duration::from_secs(600);

/// Runs `run` on `size` threads and returns the results by rank.
pub fn run_on_ranks<T: Send>(size: usize, run: impl Fn(Team) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let run = &run;
        let teams = thread_teams(size, HANG);
        let all: Vec<_> = teams.into_iter().map(|team| scope.spawn(move || run(team))).collect();
        all.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Numbers whose sum depends on the order in which they are added.
fn leaf(shard: usize) -> PartialSum {
    let number = |i: usize| ((i * 7919 + 13) % 1009) as f32 * 10f32.powi((i % 9) as i32 - 4);
    let vector = (0..23).map(|i| number(shard * 31 + i)).collect();
    let numbers = vec![f64::from(number(shard)) / 3.0, 1.0];
    PartialSum { shards: shard..shard + 1, vector, numbers }
}

fn sum(team: &Team, count: usize) -> PartialSum {
    let shards = team.cut_into_shards(40, count);
    let len = PartialSumLen { vector: 23, numbers: 2 };
    team.all_reduce_shards(&shards, shards.compute_partial_sums(&leaf, &drop), len).unwrap()
}

#[test]
fn sums_have_the_same_bytes_for_any_number_of_ranks() {
    for count in [1, 3, 12, 16] {
        let alone = sum(&Team::alone(), count);
        assert_eq!(alone.numbers[1], count as f64);
        for size in 2..6 {
            for node in run_on_ranks(size, |team| sum(&team, count)) {
                assert_eq!(node, alone, "{count} shards, {size} ranks");
            }
        }
    }
}

#[test]
fn as_many_bytes_are_sent_as_a_ring_would() {
    for size in [2, 4, 8] {
        let sent = run_on_ranks(size, |team| {
            let vector = vec![1.0; 800];
            let len = PartialSumLen { vector: 800, numbers: 1 };
            let shards = team.cut_into_shards(16, 16);
            let ours = PartialSum { shards: shards.own_shards(), vector, numbers: vec![1.0] };
            let sum = team.all_reduce_shards(&shards, vec![ours], len).unwrap();
            assert_eq!(sum.vector, vec![size as f32; 800]);
            team.take_traffic()
        });
        for traffic in &sent {
            assert_eq!(traffic.vector_bytes as usize, 800 * 4 * 2 * (size - 1) / size);
        }
        let others: u64 = sent.iter().map(|traffic| traffic.other_bytes).sum();
        assert_eq!(others as usize, 8 * 2 * (size - 1), "to the rank that sums them, and back");
    }
}

#[test]
fn gathered_values_are_the_same_on_all_ranks() {
    let errors = run_on_ranks(3, |team| {
        let text = "x".repeat(team.rank());
        assert_eq!(team.all_gather(text.as_bytes()).unwrap(), [&b""[..], b"x", b"xx"]);
        assert_eq!(team.broadcast(text.as_bytes()).unwrap(), b"");
        assert_eq!(team.all_reduce_counts(&[1.0, team.rank() as f64]).unwrap(), [3.0, 3.0]);
        assert!(team.any(team.rank() == 2).unwrap());
        assert!(!team.any(false).unwrap());
        team.check_identical("size", "3").unwrap();
        let version = if team.rank() == 1 { "new" } else { "old" };
        team.check_identical("version", version).unwrap_err().to_string()
    });
    assert!(errors.iter().all(|text| *text == errors[0]));
    assert_eq!(errors[0], "rank 1 has a different version from rank 0: new instead of old");
}

#[test]
fn ended_and_silent_ranks_are_named() {
    let errors = run_on_ranks(3, |team| match team.rank() {
        2 => None,
        _ => team.all_reduce_counts(&[1.0]).err(),
    });
    assert!(
        errors[0].as_ref().is_some_and(|error| error.to_string().starts_with("rank 2 has ended"))
    );
    let teams = thread_teams(2, Duration::from_millis(20));
    let error = teams[0].all_reduce_counts(&[1.0]).unwrap_err().to_string();
    assert!(error.starts_with("rank 1 has not answered"), "{error}");
}
