//! Grove's own page, with the built-in games.

use grove_web::{Page, page};

page!(Page::builtin());
