//! Pages of lists: `{"items": [...], "next": CURSOR | null}`.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::problem::Problem;

/// Reads `limit` of a query: 1 to 1000, 100 if not given.
pub(super) fn limit(text: Option<&str>) -> Result<usize, Problem> {
    let limit = text.map_or(Ok(100), str::parse);
    limit
        .ok()
        .filter(|n| (1..=1000).contains(n))
        .ok_or_else(|| Problem::bad("`limit` is a number from 1 to 1000"))
}

/// Place in a list at which it goes on, and the query that the place belongs to.
#[derive(Serialize, Deserialize)]
struct PageCursor<Q, T> {
    query: Q,
    after: T,
}

/// Writes a cursor, which is opaque to callers. `query` is everything that selects the list, but not the limit.
pub(super) fn write_cursor(
    query: impl Serialize,
    after: impl Serialize,
) -> Result<String, Problem> {
    let text = serde_json::to_vec(&PageCursor { query, after }).map_err(|e| {
        Problem::new(
            axum::http::StatusCode::INTERNAL_SERVER_ERROR,
            format!("no cursor can be written: {e}"),
        )
    })?;
    Ok(URL_SAFE_NO_PAD.encode(text))
}

/// Reads a cursor of the same query back. 400 if the text is no cursor, or belongs to another query.
pub(super) fn read_cursor<Q, T>(text: &str, query: &Q) -> Result<T, Problem>
where
    Q: DeserializeOwned + PartialEq,
    T: DeserializeOwned,
{
    let bytes = URL_SAFE_NO_PAD.decode(text).ok();
    let cursor = bytes.and_then(|bytes| serde_json::from_slice::<PageCursor<Q, T>>(&bytes).ok());
    let cursor = cursor.ok_or_else(|| {
        Problem::bad(
            "`cursor` is not one that this list gave: leave it out to begin at the first page",
        )
    })?;
    if cursor.query != *query {
        return Err(Problem::bad(
            "`cursor` belongs to another query: ask with the same filters, or leave it out",
        ));
    }
    Ok(cursor.after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_goes_on_in_its_own_query_only() {
        let query = ("orders".to_owned(), Some(7_i64));
        let cursor = write_cursor(&query, (1_i64, "id")).expect("written");
        assert!(
            cursor
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'),
            "{cursor}"
        );
        assert_eq!(
            read_cursor::<_, (i64, String)>(&cursor, &query).expect("read"),
            (1, "id".to_owned())
        );
        for (text, other) in [
            (cursor.as_str(), ("mail".to_owned(), Some(7))),
            (&cursor[1..], query),
            ("", Default::default()),
        ] {
            assert!(
                read_cursor::<_, (i64, String)>(text, &other).is_err(),
                "{text}"
            );
        }
    }
}
