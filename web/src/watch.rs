//! Watching, on the page.
