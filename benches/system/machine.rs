//! Describes the machine of a measurement, and reads the CPU time and memory of a process.

use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context as _;

/// CPU time of a process so far, user and system; `None` once it is gone.
pub fn cpu(pid: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the name of the program in brackets, and may hold any character.
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    // The kernel shows these in hundredths of a second, whatever its own tick.
    Some(Duration::from_millis(ticks * 10))
}

/// Seconds of CPU time that all processes together have used, idle not counted.
pub fn busy() -> f64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let fields = stat
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(1);
    let ticks: Vec<f64> = fields.filter_map(|field| field.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal
    let idle: f64 = ticks.iter().skip(3).take(2).sum();
    (ticks.iter().take(8).sum::<f64>() - idle) / 100.0
}

/// The machine in one line: processor, memory, kernel.
pub fn describe() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let model =
        field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown processor".to_owned());
    let kib: u64 = field("/proc/meminfo", "MemTotal")
        .and_then(|text| text.split(' ').next().and_then(|kib| kib.parse().ok()))
        .unwrap_or_default();
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!(
        "{cores} cores ({model}), {} GiB, Linux {}",
        kib / (1024 * 1024),
        kernel.trim()
    )
}

/// The first line that a program prints, or a sentence that it does not run.
pub fn version(program: &str, argument: &str) -> String {
    let output = match Command::new(program).arg(argument).output() {
        Ok(output) => [output.stdout, output.stderr].concat(),
        Err(error) => return format!("{program}: {error}"),
    };
    String::from_utf8_lossy(&output)
        .lines()
        .next()
        .unwrap_or("says nothing")
        .to_owned()
}

fn field(file: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Waits until earlier writes are on disk, so that the disks are idle during a measurement.
pub fn write_back() -> anyhow::Result<()> {
    let done = Command::new("sync").status().context("cannot run sync")?;
    anyhow::ensure!(done.success(), "sync ended with {done}");
    Ok(())
}

/// Notices a step of the wall clock during a measurement.
pub struct ClockCheck {
    wall: SystemTime,
    mono: Instant,
}

/// Largest difference of the two clocks that slewing may cause within a run, seconds.
const MAX_CLOCK_STEP: f64 = 0.005;

impl ClockCheck {
    pub fn start() -> Self {
        Self {
            wall: SystemTime::now(),
            mono: Instant::now(),
        }
    }

    /// Fails with a sentence if the two clocks have moved apart.
    pub fn check(&self) -> anyhow::Result<()> {
        let mono = self.mono.elapsed().as_secs_f64();
        let wall = match self.wall.elapsed() {
            Ok(forward) => forward.as_secs_f64(),
            Err(back) => -back.duration().as_secs_f64(),
        };
        let step = wall - mono;
        anyhow::ensure!(
            step.abs() < MAX_CLOCK_STEP,
            "the clock was stepped by {step:.3} s in mid-run: not measured"
        );
        Ok(())
    }
}

/// Resident bytes of a process: at present (`VmRSS`), or at most so far (`VmHWM`).
pub fn resident(pid: u32, which: &str) -> Option<f64> {
    let kib = field(&format!("/proc/{pid}/status"), which)?;
    Some(kib.split(' ').next()?.parse::<f64>().ok()? * 1024.0)
}

/// Bytes that processes can still have.
pub fn available() -> Option<u64> {
    let kib = field("/proc/meminfo", "MemAvailable")?;
    Some(kib.split(' ').next()?.parse::<u64>().ok()? * 1024)
}
