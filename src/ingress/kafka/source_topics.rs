//! Which route of a group reads which topic. Pure.
//!
//! A topic has one reader in a group: the route that names it, else the first route, by name, whose pattern it matches.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::domain::topics::MAX_TOPICS;
use crate::domain::{Endpoint, Route, RouteName, TopicPattern};

/// The topics of a group's routes, with their readers: each a route as it reads that topic.
pub struct SourceTopics {
    named: BTreeMap<Arc<str>, Arc<Route>>,
    matched: BTreeMap<Arc<str>, Arc<Route>>,
    by_pattern: Vec<MatchingRoute>,
}

/// A route whose topics are found by a pattern.
struct MatchingRoute {
    route: Arc<Route>,
    pattern: TopicPattern,
    /// Topics that match and that no route before this one reads, as of the last list.
    matches: usize,
}

impl SourceTopics {
    /// The topics that the routes name. Those that match patterns are not known yet.
    pub fn new(routes: &[Arc<Route>]) -> Self {
        let mut by_name = BTreeMap::new();
        let mut by_pattern = Vec::new();
        for route in routes {
            let Endpoint::Kafka { topics, .. } = &route.from else {
                continue;
            };
            let named = topics.named().iter();
            by_name.extend(named.map(|topic| (topic.as_str().into(), route.of_topic(topic))));
            by_pattern.extend(topics.pattern().map(|pattern| MatchingRoute {
                route: route.clone(),
                pattern: pattern.clone(),
                matches: 0,
            }));
        }
        by_pattern.sort_by(|one, other| one.route.name.cmp(&other.route.name));
        Self {
            named: by_name,
            matched: BTreeMap::new(),
            by_pattern,
        }
    }

    /// Reports whether topics have to be found.
    pub fn has_patterns(&self) -> bool {
        !self.by_pattern.is_empty()
    }

    /// Takes in the topics of the cluster: of those that match a pattern the first [`MAX_TOPICS`] by name are read.
    /// Reports whether other topics are read now.
    pub fn found<'a>(&mut self, listed: impl IntoIterator<Item = &'a str>) -> bool {
        let mut listed: Vec<&str> = listed.into_iter().collect();
        listed.sort_unstable();
        listed.dedup();
        let before = std::mem::take(&mut self.matched);
        for MatchingRoute {
            route,
            pattern,
            matches,
        } in &mut self.by_pattern
        {
            *matches = 0;
            for topic in &listed {
                let is_read = self.named.contains_key(*topic) || self.matched.contains_key(*topic);
                if is_read || !pattern.matches(topic) {
                    continue;
                }
                *matches += 1;
                if *matches <= MAX_TOPICS {
                    let known = before.get(*topic).filter(|known| known.name == route.name);
                    let view = known.cloned().unwrap_or_else(|| route.of_topic(topic));
                    self.matched.insert((*topic).into(), view);
                }
            }
        }
        !self.matched.keys().eq(before.keys())
    }

    /// The route that reads a topic, as it reads it.
    pub fn route_of(&self, topic: &str) -> Option<&Arc<Route>> {
        self.named.get(topic).or_else(|| self.matched.get(topic))
    }

    /// A route as it reads each of its topics.
    pub fn read_by(&self, route: &RouteName) -> Vec<Arc<Route>> {
        let readers = self.named.values().chain(self.matched.values());
        readers
            .filter(|reader| reader.name == *route)
            .cloned()
            .collect()
    }

    /// All topics that are read.
    pub fn topics(&self) -> impl Iterator<Item = &Arc<str>> {
        self.named.keys().chain(self.matched.keys())
    }

    /// Why a route does not read all that its pattern says.
    pub fn trouble(&self, route: &RouteName) -> Option<String> {
        let matching = self
            .by_pattern
            .iter()
            .find(|matching| matching.route.name == *route)?;
        let pattern = matching.pattern.as_str();
        match matching.matches {
            0 => Some(format!("no topic matches {pattern:?} yet")),
            matches if matches > MAX_TOPICS => Some(format!(
                "{matches} topics match {pattern:?}, and a route reads the first {MAX_TOPICS} by name: the others are not read; \
                 share them out among several routes"
            )),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::topics::DerivedTargets;
    use crate::domain::{OwnTarget, StartRule, Target, TargetRef, TopicTemplate, Topics, testing};

    fn route(name: &str, topics: Topics) -> Arc<Route> {
        let mut route = Route::clone(&testing::route());
        route.name = RouteName::new(name).expect("a name");
        route.from = Endpoint::Kafka {
            connection: "main".into(),
            topics,
            group: "postdate".into(),
            start: StartRule::Earliest,
        };
        Arc::new(route)
    }

    fn pattern(text: &str) -> Topics {
        Topics::Pattern(TopicPattern::new(text).expect("a pattern"))
    }

    fn readers(topics: &SourceTopics) -> Vec<String> {
        let readers = topics.named.iter().chain(&topics.matched);
        readers
            .map(|(topic, route)| format!("{topic} {}", route.name))
            .collect()
    }

    #[test]
    fn a_topic_has_the_reader_that_names_it_or_the_first_whose_pattern_it_matches() {
        let routes = [
            route("z-all", pattern(".*")),
            route("b-orders", pattern("orders\\..*\\.delayed")),
            route(
                "two",
                Topics::Named(vec!["mail.delayed".into(), "orders.eu.delayed".into()]),
            ),
        ];
        let mut topics = SourceTopics::new(&routes);
        assert_eq!(
            readers(&topics),
            ["mail.delayed two", "orders.eu.delayed two"]
        );
        assert_eq!(
            topics.trouble(&routes[1].name).as_deref(),
            Some("no topic matches \"orders\\\\..*\\\\.delayed\" yet")
        );
        let listed = [
            "orders.us.delayed",
            "__consumer_offsets",
            "orders.eu.delayed",
            "orders.delayed.us",
            "orders.us.delayed",
        ];
        assert!(topics.found(listed));
        let expected = [
            "mail.delayed two",
            "orders.eu.delayed two",
            "orders.delayed.us z-all",
            "orders.us.delayed b-orders",
        ];
        assert_eq!(
            readers(&topics),
            expected,
            "an internal topic is never read"
        );
        assert!(
            routes
                .iter()
                .all(|route| topics.trouble(&route.name).is_none())
        );
        let view = topics
            .route_of("orders.us.delayed")
            .expect("a reader")
            .clone();
        assert!(!topics.found(listed), "nothing is new");
        let again = topics.route_of("orders.us.delayed").expect("a reader");
        assert!(Arc::ptr_eq(&view, again), "what is read stays as it is");
        assert!(topics.found(["orders.delayed.us"]), "a topic is gone");
        assert_eq!(
            readers(&topics),
            [
                "mail.delayed two",
                "orders.eu.delayed two",
                "orders.delayed.us z-all"
            ]
        );
    }

    #[test]
    fn a_pattern_that_matches_ten_thousand_topics_reads_a_thousand_and_says_so() {
        let routes = [route("orders", pattern("t\\d+"))];
        let mut topics = SourceTopics::new(&routes);
        let listed: Vec<String> = (0..10_000).map(|number| format!("t{number:05}")).collect();
        topics.found(listed.iter().map(String::as_str));
        assert_eq!(topics.topics().count(), MAX_TOPICS);
        assert_eq!(topics.topics().last().map(|topic| &**topic), Some("t00999"));
        let said = topics.trouble(&routes[0].name).expect("a trouble");
        assert!(
            said.starts_with(
                "10000 topics match \"t\\\\d+\", and a route reads the first 1000 by name"
            ),
            "{said}"
        );
    }

    #[test]
    fn each_topic_has_a_target_of_its_own_if_it_is_derived_and_no_loop() {
        let text = "(orders|bills|own)\\.(.*)";
        let mut derived = Route::clone(&route("orders", pattern(text)));
        let expression = TopicPattern::new(text).expect("a pattern");
        let template = TopicTemplate::new("{1}.{2}", &expression).expect("a template");
        assert!(TopicTemplate::new("{3}", &expression).is_err());
        let own = derived.from.clone();
        let Endpoint::Kafka { topics, .. } = own else {
            panic!("from Kafka")
        };
        derived.to = Arc::new(Target::Kafka {
            connection: "main".into(),
            topic: "{1}.{2}".into(),
        });
        let template_of = |text| TopicTemplate::new(text, &expression).expect("a template");
        let per_topic = |template| {
            OwnTarget::PerTopic(Arc::new(DerivedTargets::new(
                "main".into(),
                template,
                vec![topics.clone()],
            )))
        };
        derived.own_target = per_topic(template);
        let looping = Arc::new(derived.clone()).of_topic("orders.eu");
        let why = looping.own_target().expect_err("a loop").as_str();
        assert_eq!(
            why,
            "its target, derived from topic orders.eu, is orders.eu, which Postdate reads itself: a loop"
        );
        assert_eq!(looping.own_target_ref(), TargetRef::Own);

        derived.own_target = per_topic(template_of("{2}"));
        let base = Arc::new(derived);
        let one = base.of_topic("orders.eu");
        let named = TargetRef::Named("eu".into());
        assert_eq!(
            one.target_ref(&one.to),
            named,
            "the store knows it by its name"
        );
        assert_eq!(base.target_ref(&one.to), named);
        let found = base.target(&named).expect("a target");
        assert!(
            Arc::ptr_eq(&found, &one.to),
            "it is one and the same everywhere"
        );
        assert!(
            base.target(&TargetRef::Named("orders.eu".into())).is_none(),
            "a loop"
        );
        assert!(
            base.target(&TargetRef::Own).is_none(),
            "the topic is not known"
        );
        assert!(base.named_target("eu").is_none(), "no producer may name it");
        let empty = base.of_topic("orders.");
        let why = empty.own_target().expect_err("no name").as_str();
        assert_eq!(
            why,
            "its target, derived from topic orders., would be \"\", which cannot be a topic"
        );
    }
}
