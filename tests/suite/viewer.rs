//! Pictures of games: motion, layout, and agreement of all renderers.

mod gpu;

use crate::support::{for_every_game, fruit};
use grove::env::look::{Look, tile};
use grove::env::{CartPole, Catch, Episode, Fruit, Recall, initial_state, step_with_auto_reset};
use grove::rng::draw;
use grove::viewer::{Picture, SceneSize, Sprite, Wall, compute_sprites, paint};

/// Games between two steps.
pub struct Games<G: Look> {
    pub game: G,
    pub before: Vec<(G::State, Episode)>,
    pub now: Vec<(G::State, Episode)>,
}

impl<G: Look> Games<G> {
    pub fn new(game: G, count: u32) -> Self {
        game.validate().unwrap();
        let start = |i| {
            let level = draw(11, i);
            (initial_state::<G>(level, game), Episode { level, time: 0, score: 0.0 })
        };
        let now: Vec<_> = (0..count).map(start).collect();
        Self { game, before: now.clone(), now }
    }

    /// Plays a random step of each game; ended games continue with the next level.
    pub fn step(&mut self) {
        self.before.clone_from(&self.now);
        for (i, (state, episode)) in self.now.iter_mut().enumerate() {
            let random = draw(draw(episode.level, i as u32), episode.time);
            let action = random % self.game.num_actions() as u32;
            step_with_auto_reset::<G>(state, episode, action, self.game);
        }
    }

    /// States around the last step; equal if a level has started.
    pub fn states(&self) -> (Vec<G::State>, Vec<G::State>) {
        let now: Vec<_> = self.now.iter().map(|(state, _)| *state).collect();
        let pairs = self.before.iter().zip(&self.now);
        let before =
            pairs.map(|((was, old), (is, new))| if old.level == new.level { *was } else { *is });
        (before.collect(), now)
    }

    pub fn compute_sprites(&self, part: f32) -> Vec<Sprite> {
        let (before, now) = self.states();
        let mut sprites = Vec::new();
        compute_sprites(self.game, &before, &now, part, &mut sprites);
        sprites
    }
}

/// Calls a generic function with every game, and with games of other sizes and lengths.
macro_rules! each_game {
    ($function:ident) => {
        for_every_game!(game => $function(game));
        for [width, height, basket, most, fewest, interval] in
            [[20, 15, 3, 3, 1, 5], [3, 2, 1, 8, 8, 1], [5, 4, 2, 4, 3, 1], [13, 7, 13, 8, 2, 1]]
        {
            $function(fruit([width, height, basket, most, fewest, interval, 29]));
        }
        for (rows, columns) in [(2, 1), (7, 31)] {
            $function(Catch { rows, columns, ..Catch::default() });
        }
        $function(CartPole { max_steps: 40 });
        $function(Recall { steps: 2, cues: 6 });
    };
}

fn painted<G: Look>(
    game: G,
    count: usize,
    sprites: &[Sprite],
    (width, height): (u32, u32),
) -> Picture {
    let mut picture = Picture::new(width, height);
    paint(&game, count, sprites, &mut picture);
    picture
}

#[test]
fn motion_begins_with_the_state_before_and_ends_with_the_state_now() {
    fn assert_holds<G: Look>(game: G) {
        let mut games = Games::new(game, 3);
        let size = (120, 90);
        let still = |states: &[G::State], part: f32| {
            let mut sprites = Vec::new();
            compute_sprites(game, states, states, part, &mut sprites);
            painted(game, 3, &sprites, size)
        };
        for step in 0..60 {
            games.step();
            let (before, now) = games.states();
            let at = |part: f32| painted(game, 3, &games.compute_sprites(part), size);
            assert!(at(0.0) == still(&before, 0.0), "{game:?}, step {step}");
            assert!(at(1.0) == still(&now, 1.0), "{game:?}, step {step}");
            assert!(still(&now, 0.3) == still(&now, 1.0), "{game:?}, step {step}");
        }
    }
    each_game!(assert_holds);
}

#[test]
fn sprites_move_continuously() {
    fn assert_holds<G: Look>(game: G) {
        let mut games = Games::new(game, 3);
        const PARTS: u16 = 32;
        for step in 0..60 {
            games.step();
            let mut last = games.compute_sprites(0.0);
            for part in 1..=PARTS {
                let sprites = games.compute_sprites(f32::from(part) / f32::from(PARTS));
                for (a, b) in last.iter().zip(&sprites).filter(|(a, b)| a.opacity * b.opacity > 0.0)
                {
                    let moved = (a.x - b.x).hypot(a.y - b.y);
                    // A step moves a sprite by one cell, or slightly more for a landing fruit.
                    assert!(moved <= 1.5 / f32::from(PARTS), "{game:?}, step {step}: {a:?}, {b:?}");
                    assert!(
                        (a.rotation - b.rotation).abs() < 0.1,
                        "{game:?}, step {step}: {a:?}, {b:?}"
                    );
                }
                last = sprites;
            }
        }
    }
    each_game!(assert_holds);
}

#[test]
fn a_fruit_keeps_its_look_and_lands_in_the_basket_or_beside_it() {
    let game = Fruit { width: 9, height: 6, ..Fruit::default() };
    let mut games = Games::new(game, 40);
    let (mut caught, mut missed) = (0, 0);
    for _ in 0..200 {
        let is_fruit =
            |s: &&Sprite| (tile::APPLE..=tile::PUFF).contains(&s.tile) && s.opacity > 0.0;
        let fruits = |sprites: &[Sprite]| -> Vec<Vec<Sprite>> {
            let games = sprites.chunks_exact(sprites.len() / 40);
            games.map(|game| game.iter().filter(is_fruit).copied().collect()).collect()
        };
        let last = fruits(&games.compute_sprites(1.0));
        let scores: Vec<_> = games.now.iter().map(|(_, episode)| *episode).collect();
        games.step();
        let (start, late) =
            (fruits(&games.compute_sprites(0.0)), fruits(&games.compute_sprites(0.99)));
        for (i, (_, episode)) in games.now.iter().enumerate() {
            if episode.level != scores[i].level {
                continue;
            }
            for fruit in &last[i] {
                let same = |f: &&Sprite| (f.x, f.y, f.tile) == (fruit.x, fruit.y, fruit.tile);
                assert!(start[i].iter().any(|f| same(&f)), "{fruit:?} in {:?}", start[i]);
            }
            let puffs = late[i].iter().filter(|f| f.tile == tile::PUFF).count();
            let gained = episode.score - scores[i].score;
            assert_eq!(puffs == 1, gained < 0.0, "a fruit that is missed bursts");
            let sunk = late[i].iter().filter(|f| f.tile != tile::PUFF && f.y > 6.5).count();
            assert_eq!(sunk == 1, gained > 0.0, "a fruit that is caught sinks into the basket");
            (caught, missed) = (caught + sunk, missed + puffs);
        }
    }
    assert!(caught > 50 && missed > 50, "{caught}, {missed}");
}

#[test]
fn scenes_hold_nothing_but_tiles_of_the_atlas() {
    fn assert_holds<G: Look>(game: G) {
        let tiles = tile::NAMES.len() as u32;
        let SceneSize { columns, rows } = game.size();
        for (column, row) in (0..rows).flat_map(|row| (0..columns).map(move |c| (c, row))) {
            assert!(game.background(column, row) < tiles, "{game:?}: {column}, {row}");
        }
        let mut games = Games::new(game, 2);
        for _ in 0..20 {
            games.step();
            for sprite in games.compute_sprites(0.6) {
                assert!(sprite.tile < tiles && sprite.width >= 0.0, "{sprite:?}");
                assert!((0.0..=1.0).contains(&sprite.opacity), "{sprite:?}");
            }
        }
    }
    each_game!(assert_holds);
    assert_holds(Fruit { width: 255, height: 255, basket: 255, ..Fruit::default() });
    assert_holds(Catch { rows: 256, columns: 256, ..Catch::default() });
}

#[test]
fn a_background_covers_its_board_and_nothing_else() {
    fn assert_holds<G: Look>(game: G) {
        for (count, size) in [(1, (97, 61)), (7, (200, 150)), (33, (640, 201))] {
            let wall = Wall::fit(game.size(), count, size.0, size.1);
            let unseen = vec![Sprite::default(); count * game.num_sprites()];
            let picture = painted(game, count, &unseen, size);
            let inside = |x: u32, y: u32| {
                (0..count).map(|i| wall.board_origin(i)).any(|board| {
                    (board.x..board.x + wall.board_width).contains(&x)
                        && (board.y..board.y + wall.board_height).contains(&y)
                })
            };
            for (at, pixel) in picture.pixels.chunks_exact(4).enumerate() {
                let (x, y) = (at as u32 % size.0, at as u32 / size.0);
                assert_eq!(pixel[3] == 255, inside(x, y), "{game:?}, {count}: {x}, {y}");
            }
        }
    }
    each_game!(assert_holds);
}

/// Sprites that reach far out of their game, number 4 of 9: upright, rotated, repeated.
pub fn wild_sprites(num_sprites: usize, scene_size: SceneSize) -> Vec<Sprite> {
    let mut sprites = vec![Sprite::default(); 9 * num_sprites];
    let (x, y) = (scene_size.columns as f32, scene_size.rows as f32);
    for (k, sprite) in sprites[4 * num_sprites..5 * num_sprites].iter_mut().enumerate() {
        *sprite = Sprite {
            x: [0.0, x, x / 2.0, -3.0][k % 4],
            y: [0.0, y, y / 2.0, y + 3.0][k % 4],
            width: x,
            height: y * 1.5,
            rotation: [0.0, 0.7, -2.0][k % 3],
            tile: tile::BASKET_MIDDLE,
            repeat: 3.0,
            opacity: [1.0, 0.5][k % 2],
        };
    }
    sprites
}

#[test]
fn sprites_stay_on_their_board() {
    fn assert_holds<G: Look>(game: G) {
        let scene_size = game.size();
        let size = (411, 333);
        let unseen = vec![Sprite::default(); 9 * game.num_sprites()];
        let empty = painted(game, 9, &unseen, size);
        let wild = painted(game, 9, &wild_sprites(game.num_sprites(), scene_size), size);
        let wall = Wall::fit(scene_size, 9, size.0, size.1);
        let board = wall.board_origin(4);
        let pixels = wild.pixels.chunks_exact(4).zip(empty.pixels.chunks_exact(4));
        let mut differ = 0;
        for (at, (wild, empty)) in pixels.enumerate() {
            let (x, y) = (at as u32 % size.0, at as u32 / size.0);
            let inside = (board.x..board.x + wall.board_width).contains(&x)
                && (board.y..board.y + wall.board_height).contains(&y);
            assert!(inside || wild == empty, "{game:?}: {x}, {y}");
            differ += usize::from(wild != empty);
        }
        assert!(differ > 0, "{game:?}: there is something to see");
    }
    each_game!(assert_holds);
}

#[test]
fn walls_are_whole_and_of_the_size_that_is_asked_for() {
    for (columns, rows) in [(22, 17), (5, 10), (25, 9), (1, 2), (257, 257)] {
        let scene_size = SceneSize { columns, rows };
        for count in (1..=40).chain([100, 333, 1024]) {
            for scale in [1, 2, 3, 5, 8, 16, 33] {
                let (width, height) = Wall::picture_size(scene_size, count, scale);
                let wall = Wall::fit(scene_size, count, width as u32, height as u32);
                let is_large = wall.cell_size >= scale as f32;
                assert!(is_large, "{scene_size:?}, {count}, {scale}: {wall:?}");
            }
            for (width, height) in [(1200, 800), (333, 777), (4000, 100)] {
                let wall = Wall::fit(scene_size, count, width, height);
                assert!(wall.cell_size < 4.0 || wall.cell_size.fract() == 0.0, "{wall:?}");
                let mut last = None;
                for board in (0..count).map(|i| wall.board_origin(i)) {
                    let (right, bottom) = (board.x + wall.board_width, board.y + wall.board_height);
                    assert!(right <= width, "{scene_size:?}, {count}: {wall:?}");
                    assert!(bottom <= height, "{scene_size:?}, {count}: {wall:?}");
                    if let Some((x, y)) = last.replace((board.x, board.y)) {
                        let follows = board.y == y && board.x >= x + wall.board_width;
                        assert!(follows || board.y >= y + wall.board_height, "{count}: {wall:?}");
                    }
                }
            }
        }
    }
    let scene_size = SceneSize { columns: 22, rows: 17 };
    assert_eq!(Wall::picture_size(scene_size, 1, 16), (352, 272));
    assert_eq!(Wall::fit(scene_size, 1, 352, 272).cell_size, 16.0);
    assert_eq!(Wall::fit(scene_size, 4, 720, 555).columns, 2);
    assert_eq!(Wall::fit(scene_size, 4, 720, 555).cell_size, 16.0);
    let empty = Wall::fit(scene_size, 0, 352, 272);
    assert_eq!((empty.count, empty.cell_size), (0, 16.0), "the size of a single game's cells");
}
