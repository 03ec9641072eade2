//! The type of a game, by its name.

macro_rules! named {
    ($d:tt, $($Game:ident),*) => {
        /// Runs the same for the type of the game of this name; `None` if there is no such game.
        macro_rules! with_named {
            ($d name:expr, $d G:ident => $d run:expr) => {
                match $d name {
                    $(
                        <grove::env::$Game as grove::env::Env>::NAME => {
                            type $d G = grove::env::$Game;
                            Some($d run)
                        }
                    )*
                    _ => None,
                }
            };
        }
        pub(crate) use with_named;
    };
}
grove::for_each_game!(named, $);
