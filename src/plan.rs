//! `plan`: from what a broker has declared to the topology that does the same with Postdate. Reads definitions and writes
//! text.
//!
//! An exchange `bills` of the delayed-message plugin becomes three things beside it, so that both ways run side by side
//! until the plugin's is empty:
//!
//! ```text
//! producers -> exchange bills.in (fanout) -> queue bills.delayed -> Postdate -> exchange bills.out -> the same queues
//! ```
//!
//! `bills.out` has the type that the plugin's exchange imitated, and its bindings. The ingress queue is bound to `bills.in`
//! alone: bound to the exchange that Postdate publishes to, it would get every message again.

mod shell;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use serde_json::{Map, Value};

pub use self::source::{PlanSource, read_definitions};

use self::shell::DeclareCommand;
use crate::broker::rabbitmq::{BindingDefinition, Definitions, ExchangeDefinition};
use crate::domain::unsafe_text::is_unsafe;
use crate::domain::{RouteName, percent_encoded};

/// Type of the plugin's exchanges.
const PLUGIN_TYPE: &str = "x-delayed-message";
/// Their argument that names the type they imitate.
const IMITATED_TYPE: &str = "x-delayed-type";
/// Longest name of an exchange or queue, bytes.
const MAX_NAME_BYTES: usize = 255;
/// Deliveries of one message that an ingress queue allows: as good as no limit on every version. RabbitMQ 4 drops a message
/// that came back twenty times; earlier versions do not take -1, which would be no limit there.
const DELIVERY_LIMIT: u32 = 1_000_000;
/// Characters of an exchange's name that go into its route's.
const ROUTE_CHARS: usize = 48;
/// Most names that are tried for the successors of one exchange.
const MAX_TRIED_NAMES: usize = 100;
/// Beginning of the configuration. The user fills in the addresses.
const CONFIGURATION_HEAD: &str =
    "# The store. Redis must have `maxmemory-policy noeviction` and an append-only file.
[redis]
url = \"redis://127.0.0.1:6379\"

# `management`, with the user of `url`, lets `postdate check --connect` find loops through bindings.
[rabbitmq.main]
url = \"amqp://USER:PASSWORD@127.0.0.1:5672/VHOST\"
management = \"http://127.0.0.1:15672\"

# The plugin took delays of up to 49.7 days, and dropped what no binding wanted.
[defaults]
max_delay = \"50d\"
on_refused = \"drop\"
on_unroutable = \"drop\"
";

/// The plan for one virtual host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginPlan {
    /// The exchanges that are replaced.
    pub exchanges: Vec<ReplacedExchange>,
    /// Sentences about what a person must see to.
    pub warnings: Vec<String>,
    /// The commands that have successors lead to successors.
    onward: Vec<String>,
    vhost: String,
}

/// One exchange of the plugin's, and what replaces it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplacedExchange {
    /// The plugin's exchange.
    pub old: String,
    /// The exchange that producers publish to from now on.
    pub ingress: String,
    /// The queue that Postdate reads.
    pub queue: String,
    /// The exchange that Postdate publishes to.
    pub target: String,
    /// The route's name.
    pub route: String,
    /// Messages that wait in the plugin, if the broker tells.
    pub waiting: Option<u64>,
    /// Commands that declare it all; the bindings are the last.
    declare: Vec<String>,
    /// Commands that lead other exchanges to the new one: for each its new binding, and at once the end of the old one.
    switch: Vec<String>,
    /// Commands that remove what is no longer needed.
    remove: Vec<String>,
}

impl PluginPlan {
    /// The plan for these definitions.
    pub fn new(definitions: &Definitions, vhost: &str) -> Self {
        let mut plan = Self {
            exchanges: Vec::new(),
            warnings: Vec::new(),
            onward: Vec::new(),
            vhost: vhost.to_owned(),
        };
        if vhost.contains(is_unsafe) {
            let warning = "the virtual host's name holds control or invisible characters: no command can name it";
            plan.warnings.push(warning.to_owned());
            return plan;
        }
        let mut names = TakenNames::new(definitions);
        for exchange in definitions
            .exchanges
            .iter()
            .filter(|exchange| exchange.kind == PLUGIN_TYPE)
        {
            match replaced(exchange, definitions, vhost, &mut names) {
                Ok(replaced) => plan.exchanges.push(replaced),
                Err(why) => plan
                    .warnings
                    .push(format!("exchange `{}`: {why}", exchange.name)),
            }
        }
        for onward in plan.onward(definitions, vhost) {
            match onward {
                Ok(command) => plan.onward.push(command),
                Err(why) => plan.warnings.push(why),
            }
        }
        plan
    }

    /// The commands that have successors lead to successors, where exchanges of the plugin lead to exchanges of the plugin.
    fn onward(&self, definitions: &Definitions, vhost: &str) -> Vec<Result<String, String>> {
        let replaced = self.exchanges.iter();
        let ingresses: BTreeMap<String, String> = replaced
            .map(|exchange| (exchange.old.clone(), exchange.ingress.clone()))
            .collect();
        let command = DeclareCommand { vhost };
        let mut onward = Vec::new();
        for exchange in &self.exchanges {
            let from_it = definitions.bindings.iter();
            let from_it = from_it.filter(|binding| binding.source == exchange.old);
            for binding in from_it.filter(|binding| leads_to_plugin(binding, definitions)) {
                let next = ingresses.get(&binding.destination);
                onward.push(command.binding(
                    &exchange.target,
                    "exchange",
                    next.unwrap_or(&binding.destination),
                    &binding.routing_key,
                    &binding.arguments,
                ));
            }
        }
        onward
    }

    /// The configuration: a connection, whose addresses the user fills in, and a route for each exchange.
    pub fn configuration(&self) -> String {
        let mut text = CONFIGURATION_HEAD.replace("VHOST", &percent_encoded(&self.vhost));
        for exchange in &self.exchanges {
            let queue = toml_text(&exchange.queue);
            let target = toml_text(&exchange.target);
            // Writing to a string cannot fail.
            write!(
                text,
                "\n[routes.{}]\nfrom = {{ rabbitmq = \"main\", queue = {queue} }}\n\
                 to   = {{ rabbitmq = \"main\", exchange = {target}, routing_key = \"preserve\" }}\n",
                exchange.route
            )
            .unwrap_or_default();
        }
        text
    }

    /// The commands that declare exchanges, queues and bindings, one a line.
    pub fn declarations(&self) -> String {
        let declared = self.exchanges.iter().flat_map(|exchange| &exchange.declare);
        lines(declared.chain(&self.onward))
    }

    /// The commands that have other exchanges lead to the new ones. Empty if none leads to the plugin's.
    pub fn switches(&self) -> String {
        lines(self.exchanges.iter().flat_map(|exchange| &exchange.switch))
    }

    /// The commands that remove the plugin's exchanges, once they are empty.
    pub fn removals(&self) -> String {
        lines(self.exchanges.iter().flat_map(|exchange| &exchange.remove))
    }
}

fn lines<'a>(commands: impl Iterator<Item = &'a String>) -> String {
    commands
        .flat_map(|command| [command.as_str(), "\n"])
        .collect()
}

/// A string of TOML.
fn toml_text(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// Names that the broker or the plan uses already.
struct TakenNames {
    exchanges: BTreeSet<String>,
    queues: BTreeSet<String>,
    routes: BTreeSet<String>,
}

impl TakenNames {
    fn new(definitions: &Definitions) -> Self {
        Self {
            exchanges: definitions
                .exchanges
                .iter()
                .map(|exchange| exchange.name.clone())
                .collect(),
            queues: definitions
                .queues
                .iter()
                .map(|queue| queue.name.clone())
                .collect(),
            routes: BTreeSet::new(),
        }
    }

    /// Free names of the ingress exchange, the queue and the target: the exchange's own name with an ending, and a number
    /// before it if they are taken.
    fn successors(&mut self, exchange: &str) -> Result<[String; 3], String> {
        let bases = (2..MAX_TRIED_NAMES).map(|n| format!("{exchange}.{n}"));
        for base in std::iter::once(exchange.to_owned()).chain(bases) {
            let [ingress, queue, target] =
                ["in", "delayed", "out"].map(|part| format!("{base}.{part}"));
            let is_free = !self.exchanges.contains(&ingress)
                && !self.exchanges.contains(&target)
                && !self.queues.contains(&queue);
            if is_free && queue.len() <= MAX_NAME_BYTES {
                self.exchanges.extend([ingress.clone(), target.clone()]);
                self.queues.insert(queue.clone());
                return Ok([ingress, queue, target]);
            }
        }
        Err(
            "no free names for its successors: its own is too long, or they are all taken"
                .to_owned(),
        )
    }

    /// A route's name that is like the exchange's.
    fn route(&mut self, exchange: &str) -> Result<String, String> {
        let mut slug = String::new();
        for c in exchange.chars().take(ROUTE_CHARS) {
            slug.push(if c.is_ascii_alphanumeric() {
                c.to_ascii_lowercase()
            } else {
                '-'
            });
        }
        let slug = slug.trim_matches('-');
        let is_name = slug.starts_with(|c: char| c.is_ascii_lowercase());
        let slug = if is_name {
            slug.to_owned()
        } else {
            format!("route-{slug}")
        };
        let slug = slug.trim_end_matches('-').to_owned();
        let numbered = (2..MAX_TRIED_NAMES).map(|n| format!("{slug}-{n}"));
        for name in std::iter::once(slug.clone()).chain(numbered) {
            if RouteName::new(&name).is_some() && !self.routes.contains(&name) {
                self.routes.insert(name.clone());
                return Ok(name);
            }
        }
        Err("no free name for its route".to_owned())
    }
}

/// Reports whether a binding leads to an exchange of the plugin.
fn leads_to_plugin(binding: &BindingDefinition, definitions: &Definitions) -> bool {
    let mut exchanges = definitions.exchanges.iter();
    binding.destination_type == "exchange"
        && exchanges.any(|one| one.name == binding.destination && one.kind == PLUGIN_TYPE)
}

fn replaced(
    exchange: &ExchangeDefinition,
    definitions: &Definitions,
    vhost: &str,
    names: &mut TakenNames,
) -> Result<ReplacedExchange, String> {
    let old = &exchange.name;
    let kind = exchange
        .arguments
        .get(IMITATED_TYPE)
        .and_then(Value::as_str);
    let kind = kind.ok_or("it does not say which type it imitates (`x-delayed-type`)")?;
    let from_it = definitions.bindings.iter().filter(|b| b.source == *old);
    let to_it: Vec<_> = definitions
        .bindings
        .iter()
        .filter(|b| b.destination == *old && b.destination_type == "exchange")
        .collect();
    if kind == PLUGIN_TYPE {
        return Err(format!(
            "it imitates the type `{kind}`, which is none of RabbitMQ's own"
        ));
    }
    let [ingress, queue, target] = names.successors(old)?;
    let route = names.route(old)?;
    let command = DeclareCommand { vhost };
    let mut arguments = exchange.arguments.clone();
    arguments.remove(IMITATED_TYPE);
    let none = Map::new();
    let quorum = Map::from_iter([
        ("x-queue-type".to_owned(), Value::from("quorum")),
        ("x-delivery-limit".to_owned(), Value::from(DELIVERY_LIMIT)),
    ]);
    let mut declare = vec![
        command.exchange(&ingress, "fanout", &none)?,
        command.queue(&queue, &quorum)?,
        command.binding(&ingress, "queue", &queue, "", &none)?,
        command.exchange(&target, kind, &arguments)?,
    ];
    // The others come once all is declared, see `onward`.
    for binding in from_it.filter(|binding| !leads_to_plugin(binding, definitions)) {
        declare.push(command.binding(
            &target,
            &binding.destination_type,
            &binding.destination,
            &binding.routing_key,
            &binding.arguments,
        )?);
    }
    let mut switch = Vec::new();
    for binding in &to_it {
        let BindingDefinition {
            source,
            routing_key,
            arguments,
            ..
        } = binding;
        switch.push(command.binding(source, "exchange", &ingress, routing_key, arguments)?);
        switch.push(command.unbinding(binding)?);
    }
    let remove = vec![command.removal(old)?];
    let waiting = exchange.messages_delayed;
    Ok(ReplacedExchange {
        old: old.clone(),
        ingress,
        queue,
        target,
        route,
        waiting,
        declare,
        switch,
        remove,
    })
}

#[cfg(test)]
mod tests;
