//! Stop texts, which end a completion and are removed from it.

/// The part of a text before the first of `stops`; `None` if it contains none of them. An empty text is no
/// stop.
pub fn text_before<'a>(text: &'a str, stops: &[String]) -> Option<&'a str> {
    let stops = stops.iter().filter(|stop| !stop.is_empty());
    let first = stops.filter_map(|stop| text.find(stop.as_str())).min()?;
    Some(&text[..first])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_ends_before_the_first_of_its_stops() {
        let stops = ["\n\n".to_string(), "End".to_string()];
        assert_eq!(text_before("aäEnd\n\nEnd", &stops), Some("aä"));
        assert_eq!(text_before("\n\nEnd", &stops), Some(""));
        assert_eq!((text_before("a\nb", &stops), text_before("End", &[])), (None, None));
        assert_eq!(text_before("a", &[String::new()]), None);
    }
}
