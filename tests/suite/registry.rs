//! The registry of games: the program, the page and the trained policies agree with it.

use crate::support::{Scratch, for_every_game, grove, repository, stdout};
use grove::env::NAMES;
use grove::env::look::Look;

/// Checks that a game has the texts that the page shows.
fn assert_has_page_texts<G: Look>(game: G) {
    assert!(!G::TITLE.is_empty() && !G::RULES_TEXT.is_empty(), "{}", G::NAME);
    assert_ne!(G::TRAINING_TIME, Some(""), "{}", G::NAME);
    let is_action = |idle| (idle as usize) < game.num_actions();
    assert!(G::IDLE_ACTION.is_none_or(is_action), "{}", G::NAME);
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
