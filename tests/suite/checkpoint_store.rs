//! Stores of checkpoints, with concurrent readers, crashes and full disks.

use crate::checkpoint::forge_manifest;
use crate::support::Scratch;
use grove::checkpoint::{Checkpoint, CheckpointError, Section, Store, load, save};
use std::fs;
use std::path::{Path, PathBuf};

/// A checkpoint filled with bytes of its iteration.
fn checkpoint(iteration: u64, size: usize) -> Checkpoint {
    let section =
        |name: &str| Section { name: name.into(), version: 1, bytes: vec![iteration as u8; size] };
    Checkpoint { iteration, sections: vec![section("weights"), section("optimizer")] }
}

/// A store with a small checkpoint at each iteration.
fn store(run: &Scratch, iterations: impl IntoIterator<Item = u64>) -> Store {
    let store = Store::new(run.join("checkpoints"));
    for iteration in iterations {
        let path = store.save(&checkpoint(iteration, 100)).unwrap();
        assert_eq!(path, store.path(iteration));
    }
    store
}

fn damage(path: &Path) {
    fs::write(path.join("weights"), vec![0; 100]).unwrap();
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    let mut names: Vec<_> = entries.map(|e| e.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn the_latest_is_the_highest_iteration_in_any_order_of_saving() {
    let run = Scratch::new();
    let store = store(&run, [120, 100_000_000, 20]);
    assert_eq!(store.path(120), run.join("checkpoints/00000120"));
    assert_eq!(store.iterations().unwrap(), [20, 120, 100_000_000]);
    let latest = store.load_latest().unwrap();
    assert_eq!(latest.checkpoint, checkpoint(100_000_000, 100));
    assert_eq!(latest.path, store.path(100_000_000));
    assert!(latest.skipped_checkpoints.is_empty());
}

#[test]
fn the_latest_skips_and_reports_damaged_ones() {
    let run = Scratch::new();
    let store = store(&run, 1..=4);
    damage(&store.path(4));
    fs::remove_file(store.path(3).join("manifest.json")).unwrap();
    let latest = store.load_latest().unwrap();
    assert_eq!((latest.checkpoint, latest.path), (checkpoint(2, 100), store.path(2)));
    let [(first, wrong), (second, missing)] = &latest.skipped_checkpoints[..] else {
        panic!("two are damaged")
    };
    assert_eq!((first, second), (&store.path(4), &store.path(3)));
    assert!(wrong.to_string().contains("weights does not have the checksum"), "{wrong}");
    assert!(missing.to_string().contains("manifest.json is missing"), "{missing}");
}

#[test]
fn a_renamed_checkpoint_is_rejected() {
    let run = Scratch::new();
    let store = store(&run, [1, 2]);
    fs::rename(store.path(1), store.path(3)).unwrap();
    let latest = store.load_latest().unwrap();
    assert_eq!(latest.checkpoint.iteration, 2);
    let sentence = latest.skipped_checkpoints[0].1.to_string();
    assert!(sentence.contains("has iteration 1, not 3"), "{sentence}");
}

#[test]
fn a_store_without_an_intact_checkpoint_is_an_error() {
    let run = Scratch::new();
    let gone = Store::new(run.join("gone"));
    assert!(matches!(gone.load_latest(), Err(CheckpointError::NotFound { .. })));
    let empty = Store::new(&*run);
    assert!(matches!(empty.load_latest(), Err(CheckpointError::NoneSaved { .. })));
    let file = run.join("file");
    fs::write(&file, "text").unwrap();
    assert!(matches!(Store::new(file).load_latest(), Err(CheckpointError::NotADirectory { .. })));

    let store = store(&run, [1, 2]);
    damage(&store.path(1));
    damage(&store.path(2));
    let error = store.load_latest().unwrap_err();
    let sentence = error.to_string();
    assert!(sentence.starts_with("no checkpoint in "), "{sentence}");
    assert!(sentence.contains("00000002 is damaged: weights does not have the ch"), "{sentence}");
    let CheckpointError::NoneIntact { damaged_checkpoints, .. } = error else {
        panic!("{error:?}")
    };
    let paths: Vec<_> = damaged_checkpoints.into_iter().map(|(path, _)| path).collect();
    assert_eq!(paths, [store.path(2), store.path(1)]);
}

/// Makes a checkpoint one of a newer format, with the checksum of its manifest.
fn renew(path: &Path) {
    let text = fs::read_to_string(path.join("manifest.json")).unwrap();
    forge_manifest(path, &text.replace("\"format\": 1", "\"format\": 2"));
}

#[test]
fn an_unusable_store_reports_why() {
    let run = Scratch::new();
    let store = store(&run, 1..=3);
    (1..=3).for_each(|iteration| renew(&store.path(iteration)));
    damage(&store.path(3));
    fs::remove_file(store.path(3).join("SHA256SUMS")).unwrap();
    let newer = store.load_latest().unwrap_err();
    assert!(matches!(&newer, CheckpointError::NewerFormat { path, .. } if *path == store.path(2)));
    assert!(newer.to_string().ends_with("load it with a newer version of Grove"), "{newer}");

    // The system cannot open the file.
    #[cfg(unix)]
    {
        let file = store.path(3).join("SHA256SUMS");
        std::os::unix::fs::symlink(&file, &file).unwrap();
        let unread = store.load_latest().unwrap_err();
        assert!(unread.to_string().starts_with("cannot read "), "{unread}");
    }
}

#[test]
fn leftovers_of_crashes_are_removed_by_the_next_save() {
    let run = Scratch::new();
    let store = store(&run, [1, 2]);
    let directory = run.join("checkpoints");
    // A crash while 3 was being written.
    save(&checkpoint(3, 100), &directory.join(".00000003.tmp")).unwrap();
    // A crash while 2 was being replaced, between the two renames.
    fs::rename(store.path(2), directory.join(".00000002.old")).unwrap();
    fs::create_dir(directory.join(".00000002.tmp")).unwrap();
    // Foreign files.
    fs::create_dir(directory.join(".notes.tmp")).unwrap();
    fs::write(directory.join("00000099"), "a file").unwrap();

    assert_eq!(store.iterations().unwrap(), [1, 2]);
    let latest = store.load_latest().unwrap();
    assert_eq!(latest.checkpoint, checkpoint(2, 100));
    assert!(latest.skipped_checkpoints.is_empty());
    assert_eq!(names_in(&directory).len(), 6, "looking changes nothing");

    store.save(&checkpoint(4, 100)).unwrap();
    let names = names_in(&directory);
    assert_eq!(names, [".notes.tmp", "00000001", "00000002", "00000004", "00000099"]);
    assert_eq!(load(&store.path(2)).unwrap(), checkpoint(2, 100));
}

#[test]
fn pruning_keeps_the_newest_ones() {
    let run = Scratch::new();
    let store = store(&run, 1..=5);
    assert_eq!(store.prune(9).unwrap(), [] as [PathBuf; 0]);
    assert_eq!(store.prune(2).unwrap(), [1, 2, 3].map(|iteration| store.path(iteration)));
    assert_eq!(names_in(&run.join("checkpoints")), ["00000004", "00000005"]);
    assert_eq!(store.load_latest().unwrap().checkpoint, checkpoint(5, 100));
}

#[test]
fn pruning_keeps_the_newest_intact_one() {
    let run = Scratch::new();
    let store = store(&run, 1..=5);
    for iteration in [3, 4, 5] {
        damage(&store.path(iteration));
    }
    assert_eq!(store.prune(2).unwrap(), [1, 3].map(|iteration| store.path(iteration)));
    assert_eq!(store.iterations().unwrap(), [2, 4, 5]);
    assert_eq!(store.prune(0).unwrap(), [4, 5].map(|iteration| store.path(iteration)));
    assert_eq!(store.load_latest().unwrap().checkpoint, checkpoint(2, 100));

    damage(&store.path(2));
    assert!(matches!(store.prune(0), Err(CheckpointError::NoneIntact { .. })));
    assert_eq!(store.iterations().unwrap(), [2]);
}

// Windows cannot rename a directory with open files.
#[cfg(not(windows))]
#[test]
fn concurrent_readers_see_the_complete_old_or_new_checkpoint() {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    let run = Scratch::new();
    let best = run.join("best");
    save(&checkpoint(0, 50_000), &best).unwrap();
    let done = AtomicBool::new(false);
    let read = || {
        let (mut loads, mut newest) = (0, 0);
        while !done.load(Ordering::Relaxed) {
            let found = load(&best).unwrap();
            assert!(found.iteration >= newest, "{} after {newest}", found.iteration);
            newest = found.iteration;
            assert!(found == checkpoint(newest, 50_000), "parts of two checkpoints");
            loads += 1;
        }
        (loads, newest)
    };
    thread::scope(|scope| {
        let readers = [scope.spawn(read), scope.spawn(read)];
        let saved: Result<(), _> =
            (1..=20).try_for_each(|iteration| save(&checkpoint(iteration, 50_000), &best));
        done.store(true, Ordering::Relaxed);
        saved.unwrap();
        for reader in readers {
            let (loads, newest) = reader.join().unwrap();
            assert!(loads > 1 && newest > 0, "{loads} loads up to {newest}");
        }
    });
    assert_eq!(names_in(&run), ["best"]);
}

/// Complements the test with injected errors in `save.rs`.
#[cfg(target_os = "linux")]
#[test]
#[ignore = "mounts a small file system, which only root may"]
fn a_full_disk_keeps_the_old_checkpoint() {
    use std::process::Command;
    let disk = Scratch::new();
    let mount = ["-t", "tmpfs", "-o", "size=256k", "grove-test"];
    assert!(Command::new("mount").args(mount).arg(&*disk).status().unwrap().success());
    let outcome = std::panic::catch_unwind(|| {
        let store = Store::new(disk.join("checkpoints"));
        store.save(&checkpoint(1, 50_000)).unwrap();
        let sentence = store.save(&checkpoint(2, 100_000)).unwrap_err().to_string();
        assert_eq!(
            sentence,
            format!(
                "cannot save a checkpoint to {}: the disk is full; free at least 200000 bytes \
                 there, or save to another disk",
                store.path(2).display()
            )
        );
        assert_eq!(names_in(&disk.join("checkpoints")), ["00000001"]);
        assert_eq!(store.load_latest().unwrap().checkpoint, checkpoint(1, 50_000));
        store.save(&checkpoint(3, 50_000)).unwrap();
    });
    assert!(Command::new("umount").arg(&*disk).status().unwrap().success());
    outcome.unwrap();
}
