//! The registry of games: the program, the page and the trained policies agree with it.

use crate::support::{Scratch, for_every_game, grove, repository, stdout};
use grove::env::look::SceneInfo;
use grove::env::{Env, NAMES};

/// Checks that a game has the texts that the page shows.
fn assert_has_page_texts<G: Env + SceneInfo>(game: G) {
    assert!(!game.title().is_empty() && !game.rules_text().is_empty(), "{}", G::NAME);
    assert_ne!(game.training_time(), Some(""), "{}", G::NAME);
    let is_action = |idle| (idle as usize) < game.num_actions();
    assert!(game.idle_action().is_none_or(is_action), "{}", G::NAME);
}

#[test]
fn the_page_and_the_program_have_all_games() {
    for_every_game!(game => assert_has_page_texts(game));
    let help = stdout(&grove(&Scratch::new(), &["train", "--help"]));
    for name in NAMES {
        assert!(help.contains(name), "{help}");
    }
}

#[test]
fn trained_policies_are_of_registered_games() {
    let policies = repository("assets/policies");
    for entry in policies.read_dir().unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert!(NAMES.contains(&name), "{name}");
    }
}
