//! `postdate plan`

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};

use super::output::{self, SafeText};
use super::{USAGE_EXIT, table};
use crate::config::read_secret;
use crate::domain::Secret;
use crate::plan::{PlanSource, PluginPlan, ReplacedExchange, read_definitions};

/// Read what another system has, and print what moves it to Postdate
#[derive(Debug, Args)]
pub(super) struct PlanArgs {
    #[command(subcommand)]
    system: PlannedSystem,
}

#[derive(Debug, Subcommand)]
enum PlannedSystem {
    RabbitmqPlugin(RabbitmqPluginArgs),
}

/// Plan the move from RabbitMQ's delayed-message plugin
///
/// Reads exchanges, queues and bindings, and prints the configuration, the commands that declare the new exchanges,
/// queues and bindings beside the old ones, and those that remove the old ones at the end. It changes nothing.
/// docs/migrate/rabbitmq-plugin.md has the steps.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    postdate plan rabbitmq-plugin --management http://127.0.0.1:15672\n  \
    postdate plan rabbitmq-plugin --management-file management.url --vhost shop\n  \
    postdate plan rabbitmq-plugin --definitions broker.json --only config > postdate.toml\n  \
    postdate plan rabbitmq-plugin --definitions broker.json --only declare | sh -e\n\n\
    The commands are those of the `rabbitmqadmin` that the broker itself serves at /cli/rabbitmqadmin.\n\n\
    Exit codes: 0 done, 1 failed, or something cannot be planned, 64 usage.")]
struct RabbitmqPluginArgs {
    /// The broker's management API, such as http://127.0.0.1:15672; the login is guest's, unless the URL has one
    #[arg(long, value_name = "URL")]
    management: Option<String>,
    /// A file that holds that URL, such as http://user:password@host:15672: an argument with a password can be seen by
    /// every user of the machine
    #[arg(long, value_name = "FILE", conflicts_with = "management")]
    management_file: Option<PathBuf>,
    /// A definitions file instead, as `rabbitmqctl export_definitions` writes it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["management", "management_file"],
        required_unless_present_any = ["management", "management_file"])]
    definitions: Option<PathBuf>,
    /// The virtual host
    #[arg(long, value_name = "VHOST", default_value = "/")]
    vhost: String,
    /// Print one part alone
    #[arg(long, value_enum, value_name = "PART")]
    only: Option<PlanPart>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PlanPart {
    /// The configuration
    Config,
    /// The commands that declare exchanges, queues and bindings
    Declare,
    /// The commands that have other exchanges lead to the new ones
    Switch,
    /// The commands that remove the old exchanges
    Remove,
}

pub(super) fn run(args: PlanArgs) -> ExitCode {
    let PlannedSystem::RabbitmqPlugin(args) = args.system;
    let source = match source(&args) {
        Ok(source) => source,
        Err(why) => {
            output::error(why);
            return ExitCode::from(USAGE_EXIT);
        }
    };
    let plan = match read_definitions(&source, &args.vhost) {
        Ok(definitions) => PluginPlan::new(&definitions, &args.vhost),
        Err(why) => {
            output::error(why);
            return ExitCode::FAILURE;
        }
    };
    for warning in &plan.warnings {
        output::error(warning.as_str());
    }
    if plan.exchanges.is_empty() {
        output::error(format!(
            "nothing to plan: the virtual host {} has no exchange of the type x-delayed-message that can be replaced",
            args.vhost
        ));
        return ExitCode::FAILURE;
    }
    let lines = |text: String| SafeText::lines(text.trim_end());
    let text = match args.only {
        None => whole(&plan),
        Some(PlanPart::Config) => lines(plan.configuration()),
        Some(PlanPart::Declare) => lines(plan.declarations()),
        Some(PlanPart::Switch) => lines(plan.switches()),
        Some(PlanPart::Remove) => lines(plan.removals()),
    };
    output::out(text);
    if plan.warnings.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn source(args: &RabbitmqPluginArgs) -> Result<PlanSource, String> {
    match (&args.management, &args.management_file, &args.definitions) {
        (Some(url), ..) => PlanSource::management(&Secret::new(url)),
        (None, Some(file), _) => {
            let url = read_secret(file).map_err(|why| format!("--management-file: {why}"))?;
            PlanSource::management(&Secret::new(url))
        }
        (None, None, Some(file)) => Ok(PlanSource::File(file.clone())),
        (None, None, None) => {
            Err("--management, --management-file or --definitions is needed".to_owned())
        }
    }
}

/// The row of an exchange in the table.
fn exchange_row(exchange: &ReplacedExchange) -> Vec<String> {
    let waiting = exchange
        .waiting
        .map_or("?".to_owned(), |waiting| waiting.to_string());
    let ReplacedExchange {
        old,
        ingress,
        queue,
        target,
        route,
        ..
    } = exchange;
    [old, ingress, queue, target, route, &waiting]
        .map(String::clone)
        .to_vec()
}

/// All parts, with what to do between them.
fn whole(plan: &PluginPlan) -> SafeText {
    let rows: Vec<_> = plan.exchanges.iter().map(exchange_row).collect();
    let columns = [
        "PLUGIN'S EXCHANGE",
        "PRODUCERS PUBLISH TO",
        "INGRESS QUEUE",
        "TARGET",
        "ROUTE",
        "WAITING",
    ];
    let note = |text: &str| SafeText::from(text);
    let lines = |text: String| SafeText::lines(text.trim_end());
    let mut parts = vec![
        table::table(&columns, &rows),
        note("# 1. The configuration: fill in the addresses (--only config)"),
        lines(plan.configuration()),
        note("# 2. Declare, beside what is there (--only declare)"),
        lines(plan.declarations()),
        note("# 3. postdate check --connect && postdate run"),
        note("# 4. Have producers publish to the new exchange; consumers keep their queues"),
    ];
    let switches = plan.switches();
    if !switches.is_empty() {
        parts.push(note(
            "# and exchanges that lead to the old one lead to the new one (--only switch)",
        ));
        parts.push(lines(switches));
    }
    parts.push(note(
        "# 5. When the old exchange is empty, and nobody declares it, remove it (--only remove)",
    ));
    parts.push(lines(plan.removals()));
    SafeText::joined(parts, "\n\n")
}
