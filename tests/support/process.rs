//! Child processes that die with this one, are told things by signal, and leave a log.

use std::fs::File;
use std::io;
use std::io::Write as _;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{LazyLock, Mutex, mpsc};
use std::time::{Duration, Instant};

pub use rustix::process::Signal;
use rustix::process::{
    Pid, Resource, Rlimit, WaitId, WaitIdOptions, getrlimit, kill_process, kill_process_group,
    prlimit, waitid,
};
use tokio::sync::oneshot;

/// A running (or ended) child. Dropping it kills it and waits for its end.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    /// Its test has ended it.
    is_ended: bool,
}

type Job = (Command, mpsc::Sender<io::Result<Child>>);

/// The thread that starts all children. The kernel's "kill me when my parent dies" means the parent
/// *thread*, and a test's own thread ends with its test.
static SPAWNER: LazyLock<Mutex<mpsc::Sender<Job>>> = LazyLock::new(|| {
    let (jobs, queue) = mpsc::channel::<Job>();
    std::thread::Builder::new()
        .name("spawner".into())
        .spawn(move || {
            for (mut command, answer) in queue {
                answer
                    .send(command.spawn())
                    .expect("whoever asked waits for the answer");
            }
        })
        .expect("a thread");
    Mutex::new(jobs)
});

fn spawn(command: Command) -> io::Result<Child> {
    let (answer, answered) = mpsc::channel();
    SPAWNER
        .lock()
        .expect("spawner")
        .send((command, answer))
        .expect("the spawner lives as long as we do");
    answered.recv().expect("the spawner answers")
}

/// Starts a child that outlives this process: only for what cleans up after it.
pub fn spawn_surviving(mut command: Command) -> io::Result<Child> {
    command.process_group(0);
    spawn(command)
}

impl Process {
    /// Starts `program` with its output appended to `FOLDER/NAME.log`. It gets SIGKILL when this process
    /// ends, and a process group of its own, so that a Ctrl-C is ours to handle.
    pub fn start(
        name: &str,
        folder: &Path,
        program: &str,
        configure: impl FnOnce(&mut Command),
    ) -> Self {
        let log = folder.join(format!("{name}.log"));
        let out = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .expect("a log file");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", program]);
        command
            .current_dir(folder)
            .process_group(0)
            .stdin(Stdio::null());
        command
            .stdout(out.try_clone().expect("a second handle"))
            .stderr(out);
        configure(&mut command);
        let child =
            spawn(command).unwrap_or_else(|error| panic!("cannot start {name} (setpriv): {error}"));
        Self {
            name: name.to_owned(),
            child,
            log,
            is_ended: false,
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// The process id, for messages.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// No file of it may grow any more, as on a full disk; or they may again. It must ignore SIGXFSZ.
    pub fn fill_disk(&self, full: bool) {
        let unlimited = getrlimit(Resource::Fsize);
        let current = if full { Some(0) } else { unlimited.current };
        prlimit(
            Some(self.pid()),
            Resource::Fsize,
            Rlimit {
                current,
                ..unlimited
            },
        )
        .expect("a child of ours");
    }

    /// Its exit status once it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child of ours")
    }

    /// Sends a signal; one that has ended already is left alone.
    pub fn signal(&mut self, signal: Signal) {
        if self.ended().is_none() {
            self.is_ended |= matches!(signal, Signal::KILL | Signal::TERM);
            kill_process(self.pid(), signal)
                .unwrap_or_else(|error| panic!("signal to {}: {error}", self.name));
            if signal == Signal::STOP {
                self.await_stopped();
            }
        }
    }

    /// SIGSTOP returns before it has taken effect: a server could still answer in between.
    fn await_stopped(&self) {
        let end = Instant::now() + Duration::from_secs(10);
        while !is_stopped(self.id()) {
            assert!(Instant::now() < end, "{} does not stop", self.name);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits for its end; `None` if it still runs after `limit`.
    pub async fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        if let Some(status) = self.ended() {
            return Some(status);
        }
        let (pid, (end, ends)) = (self.pid(), oneshot::channel());
        std::thread::spawn(move || {
            let ended = waitid(
                WaitId::Pid(pid),
                WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
            );
            // Nobody listens any more once `limit` is over.
            end.send(ended).is_ok()
        });
        let ended = tokio::time::timeout(limit, ends).await.ok()?;
        ended.expect("the thread sends").expect("a child of ours");
        self.ended()
    }

    /// SIGKILL, and gone when this returns.
    pub async fn kill9(&mut self) {
        self.signal(Signal::KILL);
        assert!(
            self.wait(Duration::from_secs(30)).await.is_some(),
            "{} survived SIGKILL",
            self.name
        );
    }

    /// SIGTERM, and gone when this returns; panics if it needs more than `limit`.
    pub async fn terminate(&mut self, limit: Duration) -> ExitStatus {
        self.signal(Signal::TERM);
        match self.wait(limit).await {
            Some(status) => status,
            None => panic!(
                "{} still runs {limit:?} after SIGTERM\n{}",
                self.name,
                self.log_tail()
            ),
        }
    }

    /// Panics, with the end of its log, if it has ended.
    pub fn assert_running(&mut self) {
        if let Some(status) = self.ended() {
            panic!("{} ended: {status}\n{}", self.name, self.log_tail());
        }
    }

    /// The file that it writes to.
    pub fn log_file(&self) -> PathBuf {
        self.log.clone()
    }

    /// All that it has written so far.
    pub fn log(&self) -> String {
        std::fs::read(&self.log).map_or_else(
            |error| error.to_string(),
            |log| String::from_utf8_lossy(&log).into_owned(),
        )
    }

    /// The last forty lines of it, for messages.
    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<_> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(40)..].join("\n");
        format!("--- the end of {}:\n{tail}\n---", self.log.display())
    }
}

impl Process {
    /// SIGKILL to it and to what it has started: none of them writes any more when this returns. Also for a drop,
    /// which can await nothing.
    pub fn end(&mut self) {
        // Once its end has been seen, its number may be another's.
        if let Some(status) = self.ended() {
            if std::thread::panicking() && !self.is_ended {
                let (name, tail) = (&self.name, self.log_tail());
                let told = writeln!(
                    std::io::stderr(),
                    "{name} had ended before: {status}\n{tail}"
                );
                // There is nobody else to tell.
                drop(told);
            }
            return;
        }
        self.is_ended = true;
        kill_process_group(self.pid(), Signal::KILL).expect("a child of ours");
        self.child.wait().expect("a child of ours");
        let end = Instant::now() + Duration::from_secs(30);
        while group_runs(self.id()) {
            assert!(
                Instant::now() < end,
                "what {} has started survived SIGKILL",
                self.name
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// Reports whether a process of this group still runs. One that was killed may end a call that it was in, such as
/// one that makes a file.
fn group_runs(group: u32) -> bool {
    let processes = std::fs::read_dir("/proc").expect("Linux");
    processes.flatten().any(|process| {
        let stat = std::fs::read_to_string(process.path().join("stat")).unwrap_or_default();
        // After the name: the state, the parent, the group.
        stat.rsplit_once(") ").is_some_and(|(_, rest)| {
            let mut fields = rest.split(' ');
            let state = fields.next();
            fields.nth(1) == Some(&group.to_string()) && !matches!(state, Some("Z" | "X"))
        })
    })
}

/// Reports whether no thread of a process runs; a process that has ended has none.
fn is_stopped(id: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{id}/task")) else {
        return true;
    };
    threads.flatten().all(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The state follows the name, which may hold anything, in parentheses.
        stat.rsplit_once(") ")
            .is_none_or(|(_, rest)| rest.starts_with(['T', 't', 'Z', 'X']))
    })
}
