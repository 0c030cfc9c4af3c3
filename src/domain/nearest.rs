//! Suggests the name that was probably meant by a wrong one.

/// The candidate that was most likely meant, if any is close enough to be worth naming.
pub fn nearest<'a>(wrong: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wrong = wrong.to_ascii_lowercase();
    candidates
        .into_iter()
        .map(|candidate| (distance(&wrong, candidate), candidate))
        .filter(|((distance, _), candidate)| *distance <= 1 + candidate.len().min(wrong.len()) / 4)
        .min()
        .map(|(_, candidate)| candidate)
}

/// The distance, and the edit distance, which decides between equals. If one name contains the other the distance is at
/// most 1: `timeout` for `shutdown_timeout`.
fn distance(wrong: &str, candidate: &str) -> (usize, usize) {
    let contains = wrong.len() > 2 && (candidate.contains(wrong) || wrong.contains(candidate));
    let edits = strsim::damerau_levenshtein(wrong, candidate);
    (if contains { edits.min(1) } else { edits }, edits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_what_is_near_and_nothing_else() {
        let keys = [
            "url",
            "url_file",
            "prefix",
            "partitions",
            "shutdown_timeout",
        ];
        assert_eq!(nearest("partitons", keys), Some("partitions"));
        assert_eq!(nearest("URL", keys), Some("url"));
        assert_eq!(nearest("timeout", keys), Some("shutdown_timeout"));
        assert_eq!(nearest("prefxi", keys), Some("prefix"));
        assert_eq!(nearest("colour", keys), None);
        assert_eq!(nearest("urlfile", keys), Some("url_file"), "it holds `url`");
    }
}
