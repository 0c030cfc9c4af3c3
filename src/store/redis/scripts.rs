//! The scripts, as constants: each is the prelude and its own file under a shebang that says whether it
//! may run at `maxmemory`.

use redis::Script;

/// A script as it is, and for calls that concern a route which remembers what it delivered: only those are given
/// the key for it, so that all others pay nothing.
pub(super) struct Versions {
    plain: Script,
    remembering: Script,
}

impl Versions {
    /// The one for a call.
    pub(super) fn of(&self, remembers: bool) -> &Script {
        if remembers { &self.remembering } else { &self.plain }
    }
}

macro_rules! whole {
    ($flags:literal $remembers:literal $file:literal) => {
        text(concat!(
            "#!lua",
            $flags,
            "\nlocal REMEMBERS = ",
            $remembers,
            "\n",
            include_str!("scripts/prelude.lua"),
            include_str!(concat!("scripts/", $file))
        ))
    };
}
macro_rules! script {
    (allow_oom $file:literal) => {
        whole!(" flags=allow-oom" "false" $file)
    };
    (bare $file:literal) => {
        text(concat!("#!lua flags=allow-oom\n", include_str!(concat!("scripts/", $file))))
    };
}
macro_rules! versions {
    (allow_oom $file:literal) => {
        Versions { plain: whole!(" flags=allow-oom" "false" $file), remembering: whole!(" flags=allow-oom" "true" $file) }
    };
    ($file:literal) => {
        Versions { plain: whole!("" "false" $file), remembering: whole!("" "true" $file) }
    };
}

use std::sync::LazyLock;

#[cfg(not(feature = "test-util"))]
fn text(script: &str) -> Script {
    Script::new(script)
}

#[cfg(feature = "test-util")]
pub use shifted::shift_clock;
#[cfg(feature = "test-util")]
use shifted::text;

/// A store whose clock is elsewhere than Redis's: what is due in an hour can be stored an hour ago.
#[cfg(feature = "test-util")]
mod shifted {
    use std::sync::atomic::{AtomicI64, Ordering};

    use redis::Script;

    /// The line that reads it, in `prelude.lua` alone.
    const READS: &str = "local time = redis.call('TIME')\n";

    static SECONDS: AtomicI64 = AtomicI64::new(0);

    /// Moves the store's clock, as every script and every answer of this process has it, by so many
    /// seconds. To be called before the store is first used.
    pub fn shift_clock(seconds: i64) {
        SECONDS.store(seconds, Ordering::Release);
    }

    pub(super) fn text(script: &str) -> Script {
        match SECONDS.load(Ordering::Acquire) {
            0 => Script::new(script),
            by => Script::new(&script.replace(READS, &format!("{READS}time[1] = time[1] + {by}\n"))),
        }
    }

    #[test]
    fn the_prelude_reads_the_clock_in_that_line_alone() {
        let prelude = include_str!("scripts/prelude.lua");
        assert_eq!(prelude.matches("'TIME'").count(), 1);
        assert!(prelude.contains(READS));
    }
}

/// Stores; refused at `maxmemory`.
pub(super) static WRITE: LazyLock<Versions> = LazyLock::new(|| versions!("write.lua"));
/// The same for a call that stores nothing: cancels free memory.
pub(super) static CANCEL: LazyLock<Versions> = LazyLock::new(|| versions!(allow_oom "write.lua"));
/// Stores the command's own message; refused at `maxmemory`.
pub(super) static RESCHEDULE: LazyLock<Versions> = LazyLock::new(|| versions!("reschedule.lua"));
/// Moves a message that is in the store already.
pub(super) static MOVE: LazyLock<Versions> = LazyLock::new(|| versions!(allow_oom "reschedule.lua"));
pub(super) static CLAIM: LazyLock<Script> = LazyLock::new(|| script!(allow_oom "claim.lua"));
pub(super) static SETTLE: LazyLock<Versions> = LazyLock::new(|| versions!(allow_oom "settle.lua"));
pub(super) static DIVIDE: LazyLock<Versions> = LazyLock::new(|| versions!(allow_oom "divide.lua"));
pub(super) static HOLD: LazyLock<Versions> = LazyLock::new(|| versions!(allow_oom "hold.lua"));
pub(super) static GIVE_BACK: LazyLock<Versions> = LazyLock::new(|| versions!(allow_oom "give_back.lua"));
pub(super) static SWEEP: LazyLock<Script> = LazyLock::new(|| script!(allow_oom "sweep.lua"));
pub(super) static AUDIT: LazyLock<Script> = LazyLock::new(|| script!(allow_oom "audit.lua"));
pub(super) static RECOUNT: LazyLock<Script> = LazyLock::new(|| script!(allow_oom "recount.lua"));
pub(super) static LOOK: LazyLock<Script> = LazyLock::new(|| script!(bare "look.lua"));
pub(super) static LEASE: LazyLock<Script> = LazyLock::new(|| script!(bare "lease.lua"));
pub(super) static TRIM: LazyLock<Script> = LazyLock::new(|| script!(bare "trim.lua"));
pub(super) static REDRIVE: LazyLock<Script> = LazyLock::new(|| script!(allow_oom "redrive.lua"));
pub(super) static DROP: LazyLock<Script> = LazyLock::new(|| script!(allow_oom "drop.lua"));
pub(super) static MARK: LazyLock<Script> = LazyLock::new(|| script!(bare "mark.lua"));
