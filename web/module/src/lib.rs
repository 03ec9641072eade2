//! Grove's own page.

grove_web::page!();
