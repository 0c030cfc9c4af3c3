//! Output of a bench: a line while it runs, a table or JSON at its end.

use serde_json::{Value, json};

use crate::bench::{BenchProgress, BenchRequest, BenchSummary};
use crate::cli::output::SafeText;
use crate::cli::table;

/// Width of the longest bar, characters.
const BAR_WIDTH: u64 = 40;
/// Delay of the sending behind its plan from which on it is reported, microseconds.
const NOTABLE_DELAY_US: i64 = 100_000;

/// Counts and lateness so far, beside a bar.
pub(super) fn note(progress: &BenchProgress) -> String {
    let BenchProgress {
        sent,
        received,
        p50_us,
        p99_us,
        ..
    } = *progress;
    format!(
        "sent {sent}, received {received}, late p50 {} p99 {}",
        span(p50_us),
        span(p99_us)
    )
}

/// The result as a table.
pub(super) fn table(request: &BenchRequest, summary: &BenchSummary) -> SafeText {
    let mut parts: Vec<SafeText> = vec![
        asked(request).into(),
        format!(
            "this machine's clock minus redis's: {:.1} ms",
            summary.skew_us as f64 / 1e3
        )
        .into(),
        SafeText::default(),
        messages(summary),
    ];
    if summary.received > 0 {
        parts.extend([SafeText::default(), lateness(summary)]);
        parts.extend([SafeText::default(), histogram(&summary.rows)]);
    }
    if summary.behind_us > NOTABLE_DELAY_US {
        let behind = span(summary.behind_us.unsigned_abs());
        let why = format!(
            "sending was up to {behind} behind its plan: this machine or the ingress's broker cannot take this rate; \
             due times kept to the plan"
        );
        parts.extend([SafeText::default(), why.into()]);
    }
    SafeText::joined(parts, "\n")
}

fn asked(request: &BenchRequest) -> String {
    let (least, most) = request.delay_ms;
    let delay = if least == most {
        ms(most)
    } else {
        format!("{} to {}", ms(least), ms(most))
    };
    format!(
        "asked: {} a second for {} s, due {delay} later, bodies of {} bytes",
        request.rate,
        request.duration.as_secs_f64(),
        request.size
    )
}

fn messages(summary: &BenchSummary) -> SafeText {
    let row = |what: &str, n: u64, note: String| vec![what.to_owned(), n.to_string(), note];
    let sent_per_second = summary.sent as f64 * 1e3 / summary.sent_ms.max(1) as f64;
    // Messages arrive over a longer time than they are sent in: a rate of arrivals would look like a loss.
    let received = if summary.received == summary.sent {
        "all of them"
    } else {
        ""
    };
    let mut rows = vec![
        row("sent", summary.sent, format!("{sent_per_second:.1}")),
        row("received", summary.received, received.to_owned()),
    ];
    for (what, n) in [
        ("again", summary.again),
        ("early", summary.early),
        ("cancelled", summary.cancelled),
        ("missing", summary.missing),
        ("refused", summary.failed),
    ] {
        if n > 0 || what == "early" {
            rows.push(row(what, n, String::new()));
        }
    }
    table::table(&["MESSAGES", "", "A SECOND"], &rows)
}

fn lateness(summary: &BenchSummary) -> SafeText {
    let late = &summary.late;
    let figures = [
        ("min", late.min),
        ("mean", late.mean as u64),
        ("p50", late.p50),
        ("p90", late.p90),
        ("p99", late.p99),
        ("p99.9", late.p999),
        ("max", late.max),
    ];
    let rows = figures.map(|(what, us)| vec![what.to_owned(), span(us)]);
    table::table(&["LATENESS", ""], &rows)
}

fn histogram(rows: &[(Option<u64>, u64)]) -> SafeText {
    let all: u64 = rows.iter().map(|(_, n)| n).sum();
    let most = rows.iter().map(|(_, n)| *n).max();
    let beyond = rows.iter().rev().find_map(|(limit, _)| *limit).unwrap_or(0);
    let rows: Vec<_> = rows
        .iter()
        .map(|(limit, n)| {
            let signs = (n * BAR_WIDTH).div_ceil(most.unwrap_or(1).max(1));
            vec![
                limit.map_or_else(
                    || format!(">= {}", span(beyond)),
                    |us| format!("< {}", span(us)),
                ),
                n.to_string(),
                format!("{:6.2} %", *n as f64 * 100.0 / all.max(1) as f64),
                "#".repeat(signs as usize),
            ]
        })
        .collect();
    table::table(&["LATE BY", "MESSAGES", "", ""], &rows)
}

/// The troubles of a run, a sentence each.
pub(super) fn troubles(summary: &BenchSummary) -> Vec<String> {
    let mut troubles = Vec::new();
    if summary.stopped {
        troubles.push(format!(
            "ended by a signal after {} ms of sending",
            summary.sent_ms
        ));
    }
    if summary.failed > 0 {
        let why = summary
            .why
            .as_deref()
            .unwrap_or("its broker did not answer in time");
        troubles.push(format!(
            "{} message(s) were not taken by the ingress: {why}",
            summary.failed
        ));
    }
    if summary.cancelled > 0 && !summary.stopped {
        troubles.push(format!(
            "{} message(s) had not arrived; they were taken out of the store",
            summary.cancelled
        ));
    }
    if summary.missing > 0 {
        troubles.push(format!(
            "{} message(s) did not arrive and do not wait in the store: unread in the ingress, in flight, dead \
             letters, or lost (header `postdate-bench`, run {})",
            summary.missing, summary.run
        ));
    }
    if summary.early > 0 {
        troubles.push(format!(
            "{} message(s) arrived before they were due by this machine's clock, by at most {}; postdate goes by redis's \
             clock and its own: are all three the same?",
            summary.early,
            span(summary.earliest_us)
        ));
    }
    troubles
}

/// The result as JSON.
pub(super) fn json(request: &BenchRequest, summary: &BenchSummary) -> Value {
    let BenchSummary { late, .. } = summary;
    let milli = |us: u64| us as f64 / 1e3;
    let rows: Vec<Value> = summary
        .rows
        .iter()
        .map(|(limit, n)| json!({ "below_ms": limit.map(milli), "messages": n }))
        .collect();
    json!({
        "run": summary.run,
        "route": request.route.name.as_str(),
        "rate": request.rate,
        "duration_ms": request.duration.as_millis() as u64,
        "delay_ms": [request.delay_ms.0, request.delay_ms.1],
        "size": request.size,
        "stopped": summary.stopped,
        "sent": summary.sent,
        "sent_per_second": summary.sent as f64 * 1e3 / summary.sent_ms.max(1) as f64,
        "behind_ms": summary.behind_us as f64 / 1e3,
        "refused": summary.failed,
        "received": summary.received,
        "received_per_second": summary.received_per_second,
        "again": summary.again,
        "early": summary.early,
        "earliest_ms": milli(summary.earliest_us),
        "cancelled": summary.cancelled,
        "missing": summary.missing,
        "clock_skew_ms": summary.skew_us as f64 / 1e3,
        "lateness_ms": {
            "min": milli(late.min),
            "mean": late.mean / 1e3,
            "p50": milli(late.p50),
            "p90": milli(late.p90),
            "p99": milli(late.p99),
            "p999": milli(late.p999),
            "max": milli(late.max),
        },
        "histogram": rows,
    })
}

/// Microseconds for people.
fn span(us: u64) -> String {
    match us {
        0..10_000 => format!("{} ms", trimmed(us as f64 / 1e3, 2)),
        10_000..1_000_000 => format!("{} ms", trimmed(us as f64 / 1e3, 1)),
        _ => format!("{} s", trimmed(us as f64 / 1e6, 2)),
    }
}

fn ms(ms: i64) -> String {
    span(ms.unsigned_abs() * 1000)
}

/// A number with at most this many digits behind the point.
fn trimmed(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_short() {
        let texts = [0, 99, 100, 1_234, 12_340, 1_000_000, 61_500_000].map(span);
        assert_eq!(
            texts,
            [
                "0 ms", "0.1 ms", "0.1 ms", "1.23 ms", "12.3 ms", "1 s", "61.5 s"
            ]
        );
    }

    #[test]
    fn the_histogram_has_a_sign_for_the_smallest_row() {
        let text = histogram(&[(Some(500), 1), (Some(1_000), 999), (None, 0)]);
        let lines: Vec<&str> = text.as_str().lines().collect();
        assert_eq!(lines[1], "< 0.5 ms         1    0.10 %  #");
        assert_eq!(
            lines[2],
            format!("< 1 ms         999   99.90 %  {}", "#".repeat(40))
        );
        assert_eq!(lines[3], ">= 1 ms          0    0.00 %");
    }
}
