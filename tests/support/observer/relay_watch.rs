//! One relay as its operator sees it: `/readyz`, `/metrics` and the log, looked at from its start to its end.
//!
//! By itself it finds a part that is not up for five seconds and has no metric or no line in the log, a trouble that
//! is over without a line that says so, a route that is late by its own gauge while nothing names a reason, and one whose
//! claims are not what it says to hold.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

use super::agreement::{Agreement, Told};
use super::claims::ClaimsWatch;
use super::log_lines::LogLines;
use super::route_ends::RouteEnds;
use super::{LATE_MS, Looks, RECOVERY_MS, WATCHES, are_heard, explained, verdict, watches};
use crate::support::relay::Metrics;
use crate::support::run::now_ms;

/// A line of the log may be that much older than the look that finds its part down, or up again.
const BEFORE_MS: i64 = 5000;
/// A route counts as late from here on.
const NOTED_MS: i64 = 3000;
/// How often it is looked at.
const ASK_MS: i64 = 1000;
/// The words of a route that is late for no reason that the relay knows.
const UNKNOWN: &str = "no trouble is known";

/// The watch of one relay over all its lives.
#[derive(Debug)]
pub struct RelayWatch {
    url: String,
    routes: Vec<RouteEnds>,
    unobserved: AtomicBool,
    lives: AtomicU64,
    looks: Mutex<Option<Looks>>,
    seen: Mutex<Seen>,
    claims: Mutex<ClaimsWatch>,
}

#[derive(Debug)]
struct Seen {
    log: LogLines,
    life: u64,
    asked_ms: i64,
    /// When it last answered.
    heard_ms: i64,
    /// Since when it does not answer, or drains; and when that was last so.
    away_since: Option<i64>,
    away_last: Option<i64>,
    down: BTreeMap<String, Trouble>,
    /// Parts that are up again.
    over: Vec<OverTrouble>,
    metrics: Metrics,
    agreement: Agreement,
    /// Since when each route is late by the relay's own gauge.
    late: BTreeMap<String, i64>,
    /// Lag of each route, all that it has read, and since when these figures stand still.
    lags: BTreeMap<String, (i64, (i64, i64))>,
    silences: Vec<String>,
    /// How much later than it should this watch looked of late.
    lost_ms: i64,
}

/// A part that is not up, or was not.
#[derive(Debug, Default)]
struct Trouble {
    since: i64,
    /// When the relay had last answered before that: it may have begun, and been told, at any time since.
    unseen_since: i64,
    /// When it was last seen so, and what it said.
    last: i64,
    why: String,
    /// The part whose line of the log tells it: itself, or the one that it waits for.
    told_by: String,
    /// The last reason that it gave, and when.
    reason: Option<(i64, String)>,
    metric: bool,
    line: bool,
    /// Set once a missing metric or log line was noted.
    judged: bool,
    /// Set once the log has said that the trouble is over.
    ended: bool,
}

/// What `/readyz` says of a part that is not up.
struct DownPart {
    why: String,
    cause: String,
}

/// A trouble of a part that is up again.
#[derive(Debug)]
struct OverTrouble {
    part: String,
    trouble: Trouble,
    /// Since when the part is up.
    since: i64,
    /// When the relay had last answered before that: its log may have told the end at any time since.
    unseen_since: i64,
}

/// Counts of a route's messages, by the relay's own metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Kept {
    pub(super) stored: i64,
    pub(super) dead: i64,
}

impl RelayWatch {
    /// Watches a relay that is about to start with this configuration.
    pub fn start(url: String, log: PathBuf, config: &str) -> Arc<Self> {
        let seen = Seen {
            log: LogLines::after(log),
            life: 0,
            asked_ms: 0,
            heard_ms: now_ms(),
            away_since: Some(now_ms()),
            away_last: Some(now_ms()),
            down: BTreeMap::new(),
            over: Vec::new(),
            metrics: Metrics::default(),
            agreement: Agreement::default(),
            late: BTreeMap::new(),
            lags: BTreeMap::new(),
            silences: Vec::new(),
            lost_ms: 0,
        };
        let watch = Arc::new(Self {
            url,
            routes: RouteEnds::read(config),
            unobserved: AtomicBool::new(false),
            lives: AtomicU64::new(0),
            looks: Mutex::new(None),
            seen: Mutex::new(seen),
            claims: Mutex::new(ClaimsWatch::new(config)),
        });
        WATCHES.lock().expect("the watches").push(watch.clone());
        let looking = Arc::downgrade(&watch);
        let looks = Looks::start(move |lost_ms| {
            if let Some(watch) = looking.upgrade() {
                watch.seen().lost_ms = lost_ms;
                watch.look();
            }
        });
        *watch.looks.lock().expect("the looks") = Some(looks);
        watch
    }

    /// Its process is another one from now on.
    pub fn starts_again(&self) {
        self.lives.fetch_add(1, Ordering::AcqRel);
    }

    /// Judges nothing of it.
    pub fn excuse(&self) {
        self.unobserved.store(true, Ordering::Release);
    }

    /// Silences so far.
    pub fn noticed(&self) -> Vec<String> {
        self.seen().silences.clone()
    }

    /// Silences so far; ends the watch.
    pub fn silences(&self) -> Vec<String> {
        WATCHES
            .lock()
            .expect("the watches")
            .retain(|watch| !std::ptr::eq(Arc::as_ptr(watch), self));
        let looks = self.looks.lock().expect("the looks").take();
        if let Some(mut looks) = looks {
            looks.end();
        }
        let silences = std::mem::take(&mut self.seen().silences);
        if self.is_judged() {
            silences
        } else {
            Vec::new()
        }
    }

    /// Ends the watch, and fails the test if it kept something silent.
    pub fn end(&self) {
        verdict(&self.silences());
    }

    pub(super) fn is_judged(&self) -> bool {
        !self.unobserved.load(Ordering::Acquire)
    }

    pub(super) fn route(&self, source: Option<&str>, target: &str) -> Option<&RouteEnds> {
        self.routes
            .iter()
            .find(|route| route.carries(source, target))
    }

    pub(super) fn is_away(&self) -> bool {
        self.seen().away_since.is_some()
    }

    /// Reports whether it is known what the relay says since this moment, or that it does not answer.
    pub(super) fn is_heard(&self, moment: i64) -> bool {
        let seen = self.seen();
        seen.away_since.is_some() || seen.asked_ms >= moment
    }

    pub(super) fn kept(&self, route: &str) -> Kept {
        let seen = self.seen();
        let sum = |name: &str| seen.metrics.sum(name, &[("route", route)]) as i64;
        Kept {
            stored: sum("postdate_pending") + sum("postdate_in_flight") + sum("postdate_dead"),
            dead: sum("postdate_dead"),
        }
    }

    /// Why what waits on this route since then does so, if it says so.
    pub(super) fn reason(&self, route: &RouteEnds, since: i64, now: i64) -> Option<String> {
        let seen = self.seen();
        let explains = |last: i64| last >= since && now - last < RECOVERY_MS;
        // Others are to take over from one that is away for long.
        let is_new = seen.away_since.is_some_and(|at| now - at < RECOVERY_MS);
        if is_new || (seen.away_since.is_none() && seen.away_last.is_some_and(explains)) {
            return Some("it was away".to_owned());
        }
        let over = seen.over.iter().map(|over| (&over.part, &over.trouble));
        let mut troubles = seen
            .down
            .iter()
            .chain(over)
            .filter(|(part, _)| route.passes(part));
        troubles.find_map(|(part, trouble)| {
            let (last, reason) = trouble.reason.as_ref()?;
            (explains(*last) && trouble.is_told()).then(|| format!("{part}: {reason}"))
        })
    }

    /// All that it says about a route.
    pub(super) fn describe(&self, route: &RouteEnds) -> String {
        let seen = self.seen();
        let parts = seen
            .down
            .iter()
            .map(|(part, trouble)| trouble.describe(part));
        let over = seen
            .over
            .iter()
            .map(|over| format!("(over) {}", over.trouble.describe(&over.part)));
        let parts: Vec<_> = parts.chain(over).collect();
        let sum = |name: &str| seen.metrics.sum(name, &[("route", &route.name)]);
        let numbers: Vec<_> = [
            "pending",
            "in_flight",
            "dead",
            "oldest_overdue_seconds",
            "ingress_lag",
            "ingress_unresolved",
        ]
        .iter()
        .map(|name| format!("{name} {}", sum(&format!("postdate_{name}"))))
        .collect();
        format!(
            "{} route {}: {}; {}",
            self.url,
            route.name,
            numbers.join(", "),
            parts.join("; ")
        )
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().expect("what was seen")
    }

    fn look(self: &Arc<Self>) {
        let asked_ms = now_ms();
        if asked_ms - self.seen().asked_ms < ASK_MS {
            return;
        }
        let life = self.lives.load(Ordering::Acquire);
        let answers = self.ask();
        let now = now_ms();
        let mut seen = self.seen();
        seen.asked_ms = asked_ms;
        seen.log.read(now);
        let same = std::mem::replace(&mut seen.life, life) == life;
        if !same {
            // What its predecessor said is over with it.
            seen.down.clear();
            seen.over.clear();
            seen.agreement.forget();
        }
        match answers {
            Some((parts, told, metrics)) if same && life == self.lives.load(Ordering::Acquire) => {
                seen.heard(parts, metrics, now);
                let source_of = |name: &str| {
                    let route = self.routes.iter().find(|route| route.name == name)?;
                    Some(route.source_connection.clone())
                };
                if let Some(what) = seen.agreement.look(&told, source_of, now)
                    && seen.silences.is_empty()
                {
                    seen.silences.push(format!("{}: {what}", self.url));
                }
            }
            _ => seen.away(now),
        }
        drop(seen);
        self.judge(now);
    }

    /// The parts that are not up, and the metrics; `None` if it does not answer, or drains.
    fn ask(&self) -> Option<(BTreeMap<String, DownPart>, Told, Metrics)> {
        let (date, ready) = self.get("/readyz")?;
        let ready: Value = serde_json::from_str(&ready).ok()?;
        if ready["draining"] == true {
            return None;
        }
        let (up, down): (Vec<_>, Vec<_>) = ready["parts"]
            .as_array()?
            .iter()
            .partition(|part| part["state"] == "up");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let troubles = ready["troubles"].as_array()?;
        let cause = |part: &Value| {
            let of = troubles.iter().find(|trouble| {
                let follows = trouble["follows"].as_array().into_iter().flatten();
                trouble["part"] == *part || follows.into_iter().any(|follows| follows == part)
            });
            of.map(|trouble| text(&trouble["part"])).unwrap_or_default()
        };
        let parts = down
            .iter()
            .map(|part| {
                let down = DownPart {
                    why: text(&part["why"]),
                    cause: cause(&part["name"]),
                };
                (text(&part["name"]), down)
            })
            .collect();
        let metrics = Metrics::parse(&self.get("/metrics")?.1).ok()?;
        let names = |parts: &[&Value]| parts.iter().map(|part| text(&part["name"])).collect();
        let is_zero =
            |part: &String| metrics.sum("postdate_part_up", &[("part", part.as_str())]) == 0.0;
        let up: BTreeSet<String> = names(&up);
        let told = Told {
            at_ms: jiff::fmt::rfc2822::parse(&date)
                .ok()?
                .timestamp()
                .as_millisecond(),
            zero: up.iter().filter(|part| is_zero(part)).cloned().collect(),
            up,
            down: down
                .iter()
                .filter_map(|part| {
                    let since = part["since"].as_str()?.parse::<jiff::Timestamp>().ok()?;
                    Some((text(&part["name"]), since.as_millisecond()))
                })
                .collect(),
            troubles: troubles
                .iter()
                .map(|trouble| text(&trouble["part"]))
                .collect(),
        };
        Some((parts, told, metrics))
    }

    /// The date of an answer, and its text.
    fn get(&self, path: &str) -> Option<(String, String)> {
        let agent = ureq::Agent::config_builder()
            .timeout_global(Some(Duration::from_secs(2)))
            .http_status_as_error(false)
            .build();
        let mut answer = ureq::Agent::new_with_config(agent)
            .get(format!("{}{path}", self.url))
            .call()
            .ok()?;
        let date = answer.headers().get("date")?.to_str().ok()?.to_owned();
        Some((date, answer.body_mut().read_to_string().ok()?))
    }

    /// Judges each route that is late or stands still by its own figures, or holds what is not claimed: without a reported
    /// reason it is a silence.
    fn judge(self: &Arc<Self>, now: i64) {
        let claims = self.compare_claims(now);
        for route in &self.routes {
            let of_claims = claims.as_ref().filter(|(name, ..)| *name == route.name);
            let of_claims = of_claims.map(|(_, since, what)| (*since, what.clone()));
            let Some((since, what)) = self.seen().stands(&route.name, now).or(of_claims) else {
                continue;
            };
            // Others may serve the same route: what one of them took with it is late for the rest.
            let ways: Vec<_> = watches()
                .into_iter()
                .filter(|watch| watch.routes.iter().any(|other| other.shares(route)))
                .map(|watch| (watch, route.clone()))
                .collect();
            if are_heard(&ways, since) && explained(&ways, since, now).is_none() {
                let said = self.describe(route);
                let mut seen = self.seen();
                if seen.silences.is_empty() {
                    seen.silences.push(format!("{what}:\n  {said}"));
                }
            }
        }
    }
}

impl RelayWatch {
    /// A route whose claims are not what this relay says to hold, since when, and how.
    fn compare_claims(&self, now: i64) -> Option<(String, i64, String)> {
        let mut claims = self.claims.lock().expect("the claims");
        let metrics = {
            let seen = self.seen();
            if seen.away_since.is_some() {
                claims.forget();
                return None;
            }
            seen.metrics.clone()
        };
        let routes: Vec<_> = self
            .routes
            .iter()
            .map(|route| route.name.as_str())
            .collect();
        claims.look(&routes, &metrics, now)
    }
}

impl Seen {
    fn away(&mut self, now: i64) {
        self.away_since.get_or_insert(now);
        self.away_last = Some(now);
        self.late.clear();
        self.lags.clear();
    }

    fn heard(&mut self, parts: BTreeMap<String, DownPart>, metrics: Metrics, now: i64) {
        // A relay that did not answer, because it was stopped, could write no line meanwhile.
        if let Some(away_since) = self.away_since.take() {
            for trouble in self.down.values_mut() {
                trouble.since += now - away_since;
            }
        }
        let unseen_since = std::mem::replace(&mut self.heard_ms, now).min(now);
        let gone: Vec<_> = self
            .down
            .keys()
            .filter(|part| !parts.contains_key(*part))
            .cloned()
            .collect();
        for part in gone {
            if let Some(trouble) = self.down.remove(&part) {
                self.over.push(OverTrouble {
                    part,
                    trouble,
                    since: now,
                    unseen_since,
                });
            }
        }
        for (part, DownPart { why, cause }) in parts {
            let is_zero = metrics.sum("postdate_part_up", &[("part", &part)]) == 0.0;
            // A cause may have been told long before this part followed from it.
            let cause_unseen_since = self.down.get(&cause).map(|cause| cause.unseen_since);
            let trouble = self
                .down
                .entry(part.clone())
                .or_insert_with(|| Trouble::begins(now, unseen_since));
            trouble.metric |= is_zero;
            let unseen_since = cause_unseen_since.unwrap_or(trouble.unseen_since);
            let told_since = unseen_since.min(trouble.unseen_since) - BEFORE_MS;
            if !trouble.line && self.log.begins(&cause, told_since) {
                trouble.line = true;
                trouble.told_by = cause;
            }
            trouble.says(why, now);
            if now - trouble.since >= LATE_MS + self.lost_ms
                && !trouble.is_told()
                && !trouble.judged
            {
                trouble.judged = true;
                self.silences.push(trouble.describe(&part));
            }
        }
        for OverTrouble {
            part,
            trouble,
            since,
            unseen_since,
        } in &mut self.over
        {
            // What followed from another part ends without a line of its own.
            trouble.ended = trouble.ended
                || trouble.told_by != *part
                || self.log.ends(part, *unseen_since - BEFORE_MS);
            let is_late = now - *since >= LATE_MS + self.lost_ms;
            if trouble.line && !trouble.ended && !trouble.judged && is_late {
                trouble.judged = true;
                self.silences.push(format!(
                    "no line says that this is over: {}",
                    trouble.describe(part)
                ));
            }
        }
        self.over.retain(|over| now - over.since < RECOVERY_MS);
        self.metrics = metrics;
    }

    /// Figure by which a route is late or stands still for [`LATE_MS`], and since when.
    fn stands(&mut self, route: &str, now: i64) -> Option<(i64, String)> {
        if self.away_since.is_some() {
            return None;
        }
        let sum = |name: &str| self.metrics.sum(name, &[("route", route)]);
        let late_ms = (sum("postdate_oldest_overdue_seconds") * 1e3) as i64;
        let unresolved = sum("postdate_ingress_unresolved");
        let lag = (
            sum("postdate_ingress_lag").max(unresolved) as i64,
            sum("postdate_admitted_total") as i64,
        );
        // What comes with a due time long ago is late when it comes.
        if late_ms < NOTED_MS {
            self.late.remove(route);
        } else {
            self.late.entry(route.to_owned()).or_insert(now);
        }
        if lag.0 == 0 {
            self.lags.remove(route);
        } else {
            let standing = self.lags.entry(route.to_owned()).or_insert((now, lag));
            if standing.1 != lag {
                *standing = (now, lag);
            }
        }
        let late = self
            .late
            .get(route)
            .filter(|since| now - **since >= LATE_MS + self.lost_ms);
        if let Some(since) = late {
            return Some((
                *since,
                format!("route {route} is {late_ms} ms late by its own gauge"),
            ));
        }
        let (since, (lag, _)) = *self.lags.get(route)?;
        (now - since >= LATE_MS + self.lost_ms)
            .then(|| (since, format!("route {route} stands still, {lag} behind")))
    }
}

impl Trouble {
    fn begins(now: i64, unseen_since: i64) -> Self {
        Self {
            since: now,
            last: now,
            unseen_since,
            ..Self::default()
        }
    }

    fn says(&mut self, why: String, now: i64) {
        self.last = now;
        if !why.contains(UNKNOWN) {
            self.reason = Some((now, why.clone()));
        }
        self.why = why;
    }

    /// Reports whether the reason is reported everywhere.
    fn is_told(&self) -> bool {
        self.metric && self.line
    }

    fn describe(&self, part: &str) -> String {
        let lasts = self.last - self.since;
        let told = format!("metric {}, line of the log {}", self.metric, self.line);
        format!("{part} is not up for {lasts} ms ({told}): {}", self.why)
    }
}
