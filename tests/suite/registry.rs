//! The one list of games: the program, the page and the trained policies have the same.

use crate::support::{grove, stdout};
use grove::env::look::Setting;
use grove::env::{Env, NAMES};
use std::path::Path;
use tempfile::TempDir;

/// Whether a game has its words for the page.
fn tells<G: Env + Default + Setting>() {
    let game = G::default();
    assert!(!game.title().is_empty() && !game.rules().is_empty(), "{}", G::NAME);
    assert!(game.idle().is_none_or(|idle| (idle as usize) < game.num_actions()), "{}", G::NAME);
}

#[test]
fn the_page_and_the_program_have_the_games_of_the_registry() {
    macro_rules! all {
        ($($Game:ident),*) => { $(tells::<grove::env::$Game>();)* };
    }
    grove::for_each_game!(all);
    let help = stdout(&grove(TempDir::new().unwrap().path(), &["train", "--help"]));
    for name in NAMES {
        assert!(help.contains(name), "{help}");
    }
}

#[test]
fn a_trained_policy_is_of_a_game_of_the_registry() {
    let policies = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/policies");
    for entry in policies.read_dir().unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert!(NAMES.contains(&name), "{name}");
    }
}
