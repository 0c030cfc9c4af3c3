//! Figures of the process and of its runtime, read when somebody asks for the metrics. The names of the first are those
//! that Prometheus's own client libraries use, so that dashboards for any process show this one too.

use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use tokio::runtime::Handle;

/// Figures of this process and of the runtime that relays.
#[derive(Debug)]
pub struct ProcessFigures {
    runtime: Handle,
}

/// One figure.
#[derive(Debug)]
pub struct Figure {
    /// Name without `_total`.
    pub name: &'static str,
    /// Set if it is a counter.
    pub grows: bool,
    /// Help text of the exposition, without a final stop.
    pub help: &'static str,
    /// Advice for when the figure moves, in whole sentences.
    pub action: &'static str,
    /// Reads it. `None`: this system does not tell.
    read: fn(&Reading) -> Option<f64>,
}

/// State of the process and its runtime, as one scrape reads it.
struct Reading {
    runtime: tokio::runtime::RuntimeMetrics,
    /// The fields of `/proc/self/stat` behind the program's name, which may hold spaces: the first is the state.
    stat: Vec<u64>,
    booted_s: Option<f64>,
    allocator: Option<AllocatorReading>,
}

/// Bytes of the allocator. It counts the C libraries' memory too.
struct AllocatorReading {
    allocated: usize,
    resident: usize,
}

/// All of them.
pub const FIGURES: &[Figure] = &[
    Figure {
        name: "process_cpu_seconds",
        grows: true,
        help: "Processor time of the process, user and system",
        action: "Near one second a second and core: give the replica more, or add a replica.",
        read: |reading| Some(ticks(reading.field(14)? + reading.field(15)?)),
    },
    Figure {
        name: "process_resident_memory_bytes",
        grows: false,
        help: "Memory of the process that is resident",
        action: "Near the limit of the container: lower `max_size` and `prefetch`, or raise the limit. See [scaling](scaling.md).",
        read: |reading| Some(reading.field(24)? as f64 * rustix::param::page_size() as f64),
    },
    Figure {
        name: "process_virtual_memory_bytes",
        grows: false,
        help: "Address space of the process",
        action: "Says little: most of it is never used.",
        read: |reading| Some(reading.field(23)? as f64),
    },
    Figure {
        name: "process_threads",
        grows: false,
        help: "Threads of the process",
        action: "Rises with Kafka brokers and groups, each of which has threads of the client library.",
        read: |reading| Some(reading.field(20)? as f64),
    },
    Figure {
        name: "process_open_fds",
        grows: false,
        help: "Open file descriptors",
        action: "Near `process_max_fds`: raise the limit (`ulimit -n`).",
        read: |_| Some(fs::read_dir("/proc/self/fd").ok()?.count() as f64),
    },
    Figure {
        name: "process_max_fds",
        grows: false,
        help: "Most file descriptors that may be open",
        action: "Below 1024: raise it.",
        read: |_| {
            Some(rustix::process::getrlimit(rustix::process::Resource::Nofile).current? as f64)
        },
    },
    Figure {
        name: "process_start_time_seconds",
        grows: false,
        help: "When the process began, Unix time",
        action: "A new value is a restart: the log and `kubectl describe pod` say why.",
        read: |reading| Some(reading.booted_s? + ticks(reading.field(22)?)),
    },
    Figure {
        name: "postdate_allocator_allocated_bytes",
        grows: false,
        help: "Memory that the program holds, as its allocator counts it",
        action: "Compare it with `process_resident_memory_bytes`: if it only ever grows, report it.",
        read: |reading| Some(reading.allocator.as_ref()?.allocated as f64),
    },
    Figure {
        name: "postdate_allocator_resident_bytes",
        grows: false,
        help: "Memory that the allocator has from the system, in use or kept for later",
        action: "Far above what is allocated for long: the allocator keeps the pages of an earlier peak. The system may have them back when it needs them.",
        read: |reading| Some(reading.allocator.as_ref()?.resident as f64),
    },
    Figure {
        name: "postdate_runtime_workers",
        grows: false,
        help: "Threads that run the relay's tasks",
        action: "The number of cores that the process may use.",
        read: |reading| Some(reading.runtime.num_workers() as f64),
    },
    Figure {
        name: "postdate_runtime_busy_seconds",
        grows: true,
        help: "Time in which those threads were busy, all together",
        action: "Near one second a second and worker: messages become late for want of processor time.",
        read: |reading| {
            let busy = (0..reading.runtime.num_workers())
                .map(|n| reading.runtime.worker_total_busy_duration(n));
            Some(busy.sum::<std::time::Duration>().as_secs_f64())
        },
    },
    Figure {
        name: "postdate_runtime_tasks",
        grows: false,
        help: "Tasks that have not ended",
        action: "Rises with routes and connections. If it only ever grows, report it.",
        read: |reading| Some(reading.runtime.num_alive_tasks() as f64),
    },
    Figure {
        name: "postdate_runtime_queued_tasks",
        grows: false,
        help: "Tasks that wait for any of those threads",
        action: "Above some hundred for long: want of processor time.",
        read: |reading| Some(reading.runtime.global_queue_depth() as f64),
    },
];

impl ProcessFigures {
    /// The figures of this process, and of this runtime.
    pub fn of(runtime: Handle) -> Self {
        Self { runtime }
    }
}

impl Collector for ProcessFigures {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let reading = Reading::now(&self.runtime);
        for Figure {
            name,
            grows,
            help,
            read,
            ..
        } in FIGURES
        {
            let Some(value) = read(&reading) else {
                continue;
            };
            let kind = if *grows {
                MetricType::Counter
            } else {
                MetricType::Gauge
            };
            let metric = encoder.encode_descriptor(name, help, None, kind)?;
            if *grows {
                ConstCounter::new(value).encode(metric)?;
            } else {
                ConstGauge::new(value).encode(metric)?;
            }
        }
        Ok(())
    }
}

impl AllocatorReading {
    /// `None` where the allocator is another one, or does not count.
    fn now() -> Option<Self> {
        // The figures are those of the last epoch.
        tikv_jemalloc_ctl::epoch::advance().ok()?;
        let allocated = tikv_jemalloc_ctl::stats::allocated::read().ok()?;
        let resident = tikv_jemalloc_ctl::stats::resident::read().ok()?;
        Some(Self {
            allocated,
            resident,
        })
    }
}

impl Reading {
    fn now(runtime: &Handle) -> Self {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let boot = fs::read_to_string("/proc/stat").unwrap_or_default();
        let booted_s = boot
            .lines()
            .find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok());
        Self {
            runtime: runtime.metrics(),
            stat: fields(&stat),
            booted_s,
            allocator: AllocatorReading::now(),
        }
    }

    /// A field by its number in the manual page proc(5).
    fn field(&self, number: usize) -> Option<u64> {
        self.stat.get(number - 3).copied()
    }
}

/// The fields from the third on; 0 for what is no number.
fn fields(stat: &str) -> Vec<u64> {
    let behind_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    behind_name
        .split_whitespace()
        .map(|field| field.parse().unwrap_or(0))
        .collect()
}

/// Clock ticks in seconds.
fn ticks(count: u64) -> f64 {
    count as f64 / rustix::param::clock_ticks_per_second() as f64
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::domain::Clock;

    fn value(text: &str, name: &str) -> f64 {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {text}"))
            .parse()
            .expect("a number")
    }

    #[tokio::test]
    async fn the_figures_are_those_of_this_process() {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(ProcessFigures::of(Handle::current())));
        let mut text = String::new();
        encode(&mut text, &registry).expect("into a string");
        let now = Clock::start().wall().0 as f64 / 1000.0;
        let age = now - value(&text, "process_start_time_seconds");
        assert!((-2.0..3600.0).contains(&age), "{age} s old");
        assert!(
            value(&text, "process_resident_memory_bytes") > 1e6,
            "{text}"
        );
        assert!(value(&text, "process_cpu_seconds_total") < 3600.0, "{text}");
        assert!(value(&text, "process_threads") >= 1.0, "{text}");
        let allocated = value(&text, "postdate_allocator_allocated_bytes");
        assert!(
            allocated > 1e4 && allocated <= value(&text, "postdate_allocator_resident_bytes"),
            "{text}"
        );
        assert!(
            value(&text, "process_open_fds") <= value(&text, "process_max_fds"),
            "{text}"
        );
        assert!(value(&text, "postdate_runtime_workers") >= 1.0, "{text}");
        for Figure { name, .. } in FIGURES {
            assert!(text.contains(name), "{name} is missing: {text}");
        }
    }

    #[test]
    fn a_name_with_spaces_and_brackets_moves_no_field() {
        assert_eq!(fields("7 (a) b) c) S 1 2")[..], [0, 1, 2]);
    }
}
